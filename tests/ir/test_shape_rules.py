"""The fast paths know no less than onnx's inference, and nothing else than what the cases of onnx record."""

import os
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from onnxad_ir.infer import SHAPES, Inference
from onnxad_ir.proto import from_proto

OPS = ["DepthToSpace", "SpaceToDepth", "CenterCropPad", "GatherND", "Compress", "OneHot", "Unique"]
OPS += ["TensorScatter", "Einsum", "Det"]
OPS += ["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"]
OPS += ["BatchNormalization", "LayerNormalization", "Resize"]


@lru_cache(maxsize=1)
def nodes():
    """(inference, node, recorded types of its results) of every case that is one such node."""
    out = []
    with np.errstate(all="ignore"):
        cases = load_model_tests(kind="node")
    for c in cases:
        m = c.model if c.model is not None else onnx.load(os.path.join(c.model_dir, "model.onnx"))
        if len(m.graph.node) == 1 and m.graph.node[0].op_type in OPS:
            model = from_proto(m)
            (node,) = model.graph.nodes
            out.append((Inference(model), node, [v.type for v in model.graph.outputs]))
    return out


@pytest.mark.parametrize("op", OPS)
def test_against_onnx(op):
    found = [x for x in nodes() if x[1].op_type == op]
    assert found
    for inference, node, recorded in found:
        fast, onnx_types = SHAPES[op](inference, node), inference._ask_onnx(node)
        for f, o, want in zip(fast, onnx_types, recorded, strict=False):
            assert f.dtype == want.dtype
            if f.shape is None:
                assert o is None or o.shape is None
                continue
            assert len(f.shape) == len(want.shape)
            for i, (d, w) in enumerate(zip(f.shape, want.shape, strict=True)):
                if isinstance(d, int):
                    assert d == w or not isinstance(w, int)
                else:
                    assert o is None or o.shape is None or not isinstance(o.shape[i], int)
