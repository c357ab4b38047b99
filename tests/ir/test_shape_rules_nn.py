"""Fast paths of inference: convolutions, pools, normalizations and Resize, with symbolic extents."""

import pytest

from onnxad_ir.core import Graph, Model, Node
from onnxad_ir.infer import Inference
from onnxad_ir.shape_rules_nn import window_extent
from onnxad_ir.types import DataType, TensorType


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
