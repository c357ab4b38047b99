"""A vectorized model against the model itself, run for one entry after the other."""

import numpy as np
import onnx
from onnx import helper
from support import evaluate

from onnxad_passes import run_pipeline
from onnxad_passes.vectorize import Vectorize


def node_model(op_type, inputs, attrs=None, outputs=1, domain="", opset=21, constants=(), hide=()):
    """A model of one node whose operands x0, x1, ... are arrays (None: omitted); results y0, y1, ...

    constants: positions of initializers. hide: "dims" for inputs with symbolic extents, "rank" for unknown ranks.
    """
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    infos, initializers = [], []
    for i, (name, x) in enumerate(zip(names, inputs, strict=True)):
        if not name:
            continue
        if i in constants:
            initializers.append(onnx.numpy_helper.from_array(np.asarray(x), name))
            continue
        shape = None if "rank" in hide else [f"{name}_{k}" for k in range(x.ndim)] if "dims" in hide else x.shape
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), shape))
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, **(attrs or {}))
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=r) for r in results], initializers)
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model


def check_batched(model, feeds, batched, n=3, scan=False, tolerance=1e-6, levels=(0, 99), seed=0):
    """Assert that the model with a leading axis on some inputs gives what it gives for each entry alone.

    batched: names of inputs, each with n entries: feeds[x] is one of them, the others are shuffled copies of it, or
    arrays [n, ...] given in `feeds` under "x*". scan: whether a Scan is expected; None where either will do. Returns the
    vectorized model.
    """
    rng = np.random.default_rng(seed)
    entries = {x: feeds.get(f"{x}*", _entries(rng, feeds[x], n)) for x in batched}
    base = {k: v for k, v in feeds.items() if not k.endswith("*")}
    want = [evaluate(model, {**base, **{x: np.asarray(v[i]) for x, v in entries.items()}}) for i in range(n)]
    vectorized = run_pipeline(_ranked(model, want[0]), [Vectorize(tuple(batched), dim="entries")])
    if all(x.type.tensor_type.HasField("shape") for x in model.graph.input):
        onnx.checker.check_model(vectorized, full_check=True)
    has_scan = any(node.op_type == "Scan" for node in vectorized.graph.node)
    assert scan is None or has_scan == scan, onnx.printer.to_text(vectorized)
    for level in levels:
        got = evaluate(vectorized, {**base, **entries}, level)
        for k, v in got.items():
            stacked = np.stack([w[k] for w in want]) if np.ndim(v) > np.ndim(want[0][k]) else want[0][k]
            np.testing.assert_allclose(v, stacked, tolerance, tolerance, err_msg=f"{k} at level {level}")
            assert v.dtype == stacked.dtype
    return vectorized


def _ranked(model, results):
    """The model with the ranks of results declared, which the checker asks for."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for y in model.graph.output:
        if not y.type.tensor_type.HasField("shape"):
            y.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(results[y.name].dtype)
            y.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
            for _ in range(results[y.name].ndim):
                y.type.tensor_type.shape.dim.add()
    return model


def _entries(rng, x, n):
    flat = np.asarray(x).reshape(-1)
    return np.stack([x, *(rng.permutation(flat).reshape(np.shape(x)) for _ in range(n - 1))])


def check_node(
    op_type, inputs, attrs=None, which=None, outputs=1, domain="", opset=21, constants=(), feeds=None, **options
):
    """`check_batched` of one node for every choice of batched operands (or those of `which`), with known shapes and
    with symbolic extents. Batched operands are given by position. feeds: entries of operands, as "x1*"."""
    free = [i for i, x in enumerate(inputs) if x is not None and i not in constants]
    choices = which or [[i for i in free if mask >> i & 1] for mask in range(1, 2 ** len(inputs))]
    choices = [c for c in dict.fromkeys(map(tuple, choices)) if c]
    feeds = {**{f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if i in free}, **(feeds or {})}
    for hide in ((), ("dims",)):
        model = node_model(op_type, inputs, attrs, outputs, domain, opset, constants, hide)
        for choice in choices:
            check_batched(model, feeds, [f"x{i}" for i in choice], **options)
