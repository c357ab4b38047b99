"""The reference implementations of operators on images against ONNX Runtime, bit for bit or nearly."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxad_rules.testing import run_in_ort, run_in_reference


def compare(op, inputs, attributes, outputs=1, constants=()):
    """Both runtimes on the same operands; those at `constants` are initializers."""
    names = [f"x{i}" for i in range(len(inputs))]
    types = {k: helper.np_dtype_to_tensor_dtype(a.dtype) for k, a in zip(names, inputs, strict=True)}
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(k, types[k], a.shape) for k, a in zip(names, inputs, strict=True)],
        [
            helper.make_tensor_value_info(y, types["x0"] if i == 0 else TensorProto.INT64, None)
            for i, y in enumerate(node.output)
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    feeds = dict(zip(names, inputs, strict=True))
    want, got = run_in_ort(model)(feeds), run_in_reference(model)(feeds)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
        assert a.dtype == b.dtype


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


GEOMETRIES = [
    {},
    {"strides": [2, 3]},
    {"dilations": [2, 1]},
    {"strides": [2, 1], "dilations": [1, 3], "pads": [1, 0, 2, 1]},
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER"},
    {"auto_pad": "VALID", "strides": [3, 1]},
]


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("ceil_mode, outputs", product((0, 1), (1, 2)))
def test_max_pool(geometry, ceil_mode, outputs):
    if "auto_pad" in geometry and ceil_mode:
        return  # ONNX Runtime rounds otherwise with both, and no text says how
    attributes = {"kernel_shape": [3, 2], "ceil_mode": ceil_mode, **geometry}
    compare("MaxPool", [draw(2, 3, 10, 9)], attributes, outputs)


def test_max_pool_of_equal_and_of_whole_numbers():
    x = np.random.default_rng(1).integers(0, 3, (1, 2, 6, 7)).astype(np.float32)
    compare("MaxPool", [x], {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]}, 2)
    compare("MaxPool", [x.astype(np.int8)], {"kernel_shape": [2, 3], "pads": [1, 1, 0, 1]})


@pytest.mark.parametrize("rank", [1, 3])
def test_max_pool_of_other_ranks(rank):
    x = draw(2, 3, *(5, 6, 4)[:rank])
    compare("MaxPool", [x], {"kernel_shape": [2] * rank, "strides": [2] * rank, "pads": [1] * rank + [0] * rank}, 2)


@pytest.mark.parametrize("geometry", GEOMETRIES[:6])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_conv_transpose(geometry, group):
    w, b = draw(4, 3, 3, 2), draw(3 * group)
    compare("ConvTranspose", [draw(2, 4, 5, 6), w, b], {"group": group, **geometry})


@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER"])
def test_conv_transpose_to_a_shape(auto_pad):
    attributes = {"strides": [2, 2], "output_shape": [9, 10], "output_padding": [1, 0], "auto_pad": auto_pad}
    compare("ConvTranspose", [draw(2, 4, 5, 5), draw(4, 3, 3, 2)], attributes)


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_transpose_of_other_ranks(rank):
    attributes = {"strides": [2] * rank, "pads": [1] * rank + [0] * rank, "output_padding": [1] * rank}
    compare("ConvTranspose", [draw(2, 2, *(4, 3, 5)[:rank]), draw(2, 3, *(3,) * rank)], attributes)


@pytest.mark.parametrize("geometry", GEOMETRIES[:4])
def test_col2im(geometry):
    stride, dilation = geometry.get("strides", [1, 1]), geometry.get("dilations", [1, 1])
    pads = geometry.get("pads", [0] * 4)
    image, block = [8, 7], [3, 2]
    steps = [
        (d + pads[i] + pads[i + 2] - dilation[i] * (block[i] - 1) - 1) // stride[i] + 1 for i, d in enumerate(image)
    ]
    columns = draw(2, 3 * 6, int(np.prod(steps)))
    compare("Col2Im", [columns, np.array(image), np.array(block)], geometry)
