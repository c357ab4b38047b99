"""Run small models before and after a pass."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import parser

from onnxad_passes import run_pipeline

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'


def model(text):
    """A model of opset 18 from the text of its graph."""
    return parser.parse_model(HEAD + text)


def run(proto, feeds):
    """Results in ONNX Runtime without optimization; inputs that the model lacks are not fed."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    known = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    return session.run(None, {k: v for k, v in feeds.items() if k in known})


def same(proto, pipeline, feeds):
    """The model after a pipeline; asserts that it is valid, called the same and computes the same."""
    proto = model(proto) if isinstance(proto, str) else proto
    out = run_pipeline(proto, pipeline)
    onnx.checker.check_model(out, full_check=True)
    for before, after in ((proto.graph.input, out.graph.input), (proto.graph.output, out.graph.output)):
        assert [v.name for v in before] == [v.name for v in after]
    for got, want in zip(run(out, feeds), run(proto, feeds), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    return out


def ops(proto):
    """The operators of the main graph, in order."""
    return [n.op_type for n in proto.graph.node]
