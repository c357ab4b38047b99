"""Operators of ONNX Runtime of older models and of models for graphics processors."""

import numpy as np
import pytest
from contrib_models import R, check, r, sigmoid

from onnxad_rules.full_precision import erf


def group_norm(x, gamma, beta, groups, last, silu):
    x = np.moveaxis(x, -1, 1) if last else x
    y = x.reshape(x.shape[0], groups, -1)
    y = y - y.mean(2, keepdims=True)
    y = (y / np.sqrt((y * y).mean(2, keepdims=True) + 1e-2)).reshape(x.shape)
    y = y * gamma[:, None, None] + beta[:, None, None]
    y = y * sigmoid(y) if silu else y
    return np.moveaxis(y, 1, -1) if last else y


@pytest.mark.parametrize("last, silu", [(1, 1), (1, 0), (0, 1)])
def test_group_norms(last, silu):
    attrs = {"groups": 2, "channels_last": last, "activation": silu, "epsilon": 1e-2}
    x, gamma, beta = r((2, 2, 3, 4) if last else (2, 4, 2, 3)), r(4), r(4)
    check("GroupNorm", lambda *a: [group_norm(*a, 2, last, silu)], [x, gamma, beta], attrs, kernel=False)

    def skipped(x, gamma, beta, skip, bias=None):
        rows = skip if skip.ndim == 4 else np.expand_dims(skip, (1, 2) if last else (2, 3))
        s = x + rows + (0 if bias is None else bias if last else bias[:, None, None])
        return [group_norm(s, gamma, beta, 2, last, silu), s]

    for skip, *bias in ([r(x.shape), r(4)], [r((2, 4))]):
        inputs = [x, gamma, beta, skip, *bias]
        check("SkipGroupNorm", skipped, inputs, attrs, kernel=False, second=False, elements=False)


def test_convolution_with_channels_last():
    x, w, b = r((2, 3, 4, 2)), r((3, 2, 1, 1)), r(3)
    check("NhwcConv", lambda x, w, b: [x @ w[:, :, 0, 0].T + b], [x, w, b], {"kernel_shape": [1, 1]}, kernel=False)


def test_biases():
    x, b, skip = r((2, 3, 4)), r(4), r((2, 3, 4))
    check("BiasAdd", lambda x, b, s: [x + b + s], [x, b, skip], kernel=False)

    def split(x, b):
        left, right = np.split(x + b, 2, -1)
        return [left * right * (1 + erf(right / np.sqrt(2))) / 2]

    check("BiasSplitGelu", split, [x, b], kernel=False)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances(metric):
    def f(a, b):
        square = np.square(a[:, None] - b).sum(-1)
        return [np.sqrt(square) if metric == "euclidean" else square]

    check("CDist", f, [r((3, 4)), r((2, 4))], {"metric": metric})


def test_padding_that_is_computed():
    x, w, b, pads = r((1, 2, 2, 3)), r((2, 3, 2, 2)), r(3), np.array([0, 1, 1, 0])

    def f(x, w, pads, b):
        y = np.zeros((1, 3, 4, 6)) + b[:, None, None]
        for i in range(2):
            for j in range(3):
                y[:, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2] += np.einsum("nc,cokl->nokl", x[:, :, i, j], w)
        return [y[:, :, 0:3, 1:6]]

    attrs = {"kernel_shape": [2, 2], "strides": [2, 2]}
    check("ConvTransposeWithDynamicPads", f, [x, w, pads, b], attrs, second=False)


def test_shapes():
    x = r((2, 3))
    check("ExpandDims", lambda x, a: [x[:, None] ** 1], [x, np.array(1, np.int32)])
    check("GatherND", lambda x, i: [x[i[:, 0], i[:, 1]]], [x, np.array([[0, 2], [1, 1], [0, 2]], np.int32)])
    pads = np.array([[0, 1, 1, 0]])
    check("Pad", lambda x, p, v: [np.pad(x, ((0, 1), (1, 0)), constant_values=v[0])], [x, pads, r(1)])
    check("Pad", lambda x, p: [np.pad(x, ((0, 1), (1, 0)), mode="edge")], [x, pads[0]], {"mode": "edge"})


def test_numbers():
    check(
        "Range", lambda a, b, d: [a + d * np.arange(4)], [np.array(0.5), np.array(2.0), np.array(0.4)], elements=False
    )
    x = np.array([2.0, -1.0, 3.0])
    check("Unique", lambda x: [x], [x], unused=("places", "counts"), symbolic=False)


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("block", [16, 32])
def test_four_bit_floats(kind, block):
    """Of the numbers that the codes mean, some are tested against the published ones; the kernel has them all."""
    rows, inner = 3, 16
    codes = R.integers(0, 16, rows * inner)
    codes[:16] = np.arange(16)
    numbers = (
        [0, 0.0052083333, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
        if kind == 0
        else [-1, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0]
    )
    more = (
        [-v for v in numbers]
        if kind == 0
        else [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1]
    )
    table = np.array([*numbers, *more])
    blocks = -(-rows * inner // block)

    def f(a, b, scales):
        w = table[codes] * scales.repeat(block)[: rows * inner]
        return [a @ w.reshape(rows, inner).T]

    packed = (codes[0::2] << 4 | codes[1::2]).astype(np.uint8)
    attrs = {"K": inner, "N": rows, "block_size": block, "quant_type": kind}
    check("MatMulBnb4", f, [r((2, inner)), packed, 0.5 + R.random(blocks)], attrs, second=False)
