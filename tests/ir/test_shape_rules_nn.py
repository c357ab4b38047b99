"""The fast paths know no less than onnx's inference, and nothing else than what the cases of onnx record."""

import os
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx.backend.test.loader import load_model_tests

from onnxad_ir.core import Graph, Model, Node
from onnxad_ir.infer import SHAPES, Inference
from onnxad_ir.proto import from_proto
from onnxad_ir.shape_rules_nn import window_extent
from onnxad_ir.types import DataType, TensorType

OPS = ["Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"]
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


def infer(op, *shapes, outputs=1, opset=22, **attributes):
    graph = Graph("g")
    inputs = [graph.add_input(f"x{i}", TensorType(DataType.FLOAT, s)) for i, s in enumerate(shapes)]
    node = graph.append(Node(op, inputs, attributes, [""] * outputs))
    Inference(Model(graph, {"": opset})).node(node)
    return node.outputs[0].shape


def test_symbols_are_kept():
    assert infer("Conv", ("N", 3, "H", "W"), (8, 3, 3, 3), pads=(1, 1, 1, 1)) == ("N", 8, "H", "W")
    assert infer("Conv", ("N", 3, "H", 9), (8, 3, 3, 3), auto_pad="SAME_UPPER") == ("N", 8, "H", 9)
    assert infer("ConvTranspose", ("N", 4, 5, 6), (4, 2, 2, 2), strides=(2, 2), group=2) == ("N", 4, 10, 12)
    assert infer("GlobalAveragePool", ("N", "C", "H", "W")) == ("N", "C", 1, 1)
    batch, channels, *spatial = infer("MaxPool", ("N", "C", "H", "W"), kernel_shape=(3, 3), strides=(2, 2))
    assert (batch, channels) == ("N", "C") and all(isinstance(d, str) and d.startswith("?") for d in spatial)
    assert spatial[0] != spatial[1]


def test_an_unknown_rank_is_told_by_the_kernel():
    found = infer("Conv", None, (8, 3, 3, 3))
    assert len(found) == 4 and found[1] == 8
    assert len(infer("MaxPool", None, kernel_shape=(2,))) == 3


@pytest.mark.parametrize(
    "extent, kernel, stride, pads, ceil, want",
    [(7, 3, 2, 1, False, 4), (6, 3, 2, 0, True, 3), (4, 1, 3, 2, True, 3), (5, 2, 2, 1, True, 3)],
)
def test_windows_start_on_the_image(extent, kernel, stride, pads, ceil, want):
    """With ceil_mode a window that would start behind the image and its begin pad is dropped."""
    assert window_extent(extent, kernel, stride, 1, 2 * pads, ceil, pads) == want
