"""Pools with ceil_mode whose last window is dropped, which onnx's own inference does not know before opset 22."""

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import evaluate

from onnxad_passes import forward, reverse, run_pipeline

R = np.random.default_rng(0)
X = R.permutation(16).reshape(1, 2, 8).astype(np.float32) / 4 - 1.9


def pool(op, extent, opset=18, activation=None, **attributes):
    """A pool over an axis, and an activation."""
    nodes = [
        helper.make_node(op, ["x"], ["p"], ceil_mode=1, **attributes),
        helper.make_node(activation or "Neg", ["p"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, extent])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 3)
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize("op, counts", [("MaxPool", None), ("AveragePool", 0), ("AveragePool", 1), ("LpPool", None)])
@pytest.mark.parametrize("auto", [None, "VALID"])
def test_the_same_windows(op, counts, auto):
    """In ONNX Runtime before and after, for every small geometry."""
    more = {} if counts is None else {"count_include_pad": counts}
    changed = 0
    for extent, kernel, stride, begin, end in product((3, 6, 7, 8), (1, 2, 3), (1, 2, 3, 4), (0, 1, 2), (0, 1, 2)):
        if max(begin, end) >= kernel:
            continue
        pads = {"pads": [begin, end]} if auto is None else {"auto_pad": auto}
        model = pool(op, extent, kernel_shape=[kernel], strides=[stride], **pads, **more)
        settled = run_pipeline(model, "fold-shapes")
        onnx.checker.check_model(settled, full_check=True)
        changed += all(a.name != "ceil_mode" for a in settled.graph.node[0].attribute)
        feeds = {"x": X[:, :, :extent]}
        want, got = evaluate(model, feeds, 0)["y"], evaluate(settled, feeds, 0)["y"]
        shape = [d.dim_value for d in settled.graph.output[0].type.tensor_type.shape.dim]
        assert list(got.shape) == shape == list(want.shape)
        np.testing.assert_array_equal(got, want)
    assert changed > 20


def test_what_is_told_rightly_stays():
    for attributes in ({"strides": [2], "kernel_shape": [3]}, {"kernel_shape": [2], "auto_pad": "VALID"}):
        (node, _) = run_pipeline(pool("MaxPool", 8, **attributes), "fold-shapes").graph.node
        assert any(a.name == "ceil_mode" and a.i == 1 for a in node.attribute)
    (node, _) = run_pipeline(
        pool("MaxPool", 7, 22, kernel_shape=[2], strides=[3], pads=[1, 1]), "fold-shapes"
    ).graph.node
    assert any(a.name == "ceil_mode" and a.i == 1 for a in node.attribute)


@pytest.mark.parametrize(
    "op, opset", [*product(("MaxPool", "AveragePool"), (12, 18, 21)), ("LpPool", 18), ("LpPool", 21)]
)
@pytest.mark.parametrize("activation", ["Sin", "Relu"])
def test_derivatives_load(op, activation, opset):
    """The cotangent, of the shape that the run has, meets the result of the pool."""
    model = pool(op, 7, opset, activation, kernel_shape=[2], strides=[3], pads=[1, 1])
    tangent, adjoint = forward(model, layout="single"), reverse(model, layout="single")
    x, t, ct = (
        np.asarray(a, np.float32) for a in (X[:, :, :7], R.standard_normal((1, 2, 7)), R.standard_normal((1, 2, 3)))
    )
    for level in (0, 99):
        dy = evaluate(tangent, {"x": x, "fwd_x": t}, level)["fwd_y"]
        dx = evaluate(adjoint, {"x": x, "adj_y": ct}, level)["adj_x"]
        up, down = (evaluate(model, {"x": x + np.float32(s) * t}, 0)["y"] for s in (1e-2, -1e-2))
        np.testing.assert_allclose(dy, (up - down) / 2e-2, rtol=2e-2, atol=2e-2)
        np.testing.assert_allclose((dx * t).sum(), (ct * dy).sum(), rtol=1e-4, atol=1e-4)
