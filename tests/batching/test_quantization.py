"""Quantization, batched in values, scales and zero points; and Dropout where it drops nothing."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)
#: (scale, attributes): one, one along an axis, one for each block.
KINDS = [((), {}), ((1,), {}), ((4,), {"axis": 1}), ((4,), {"axis": -1}), ((3, 2), {"axis": 1, "block_size": 2})]


def scales(*shape):
    return RNG.uniform(0.01, 0.05, shape).astype(np.float32)


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize(("shape", "attrs"), KINDS)
def test_quantize(shape, attrs, zero_point):
    x = RNG.uniform(-1, 1, (3, 4)).astype(np.float32)
    more = [RNG.integers(0, 200, shape).astype(np.uint8)] if zero_point else []
    check_node("QuantizeLinear", [x, scales(*shape), *more], attrs)


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize(("shape", "attrs"), KINDS)
def test_dequantize(shape, attrs, zero_point):
    x = RNG.integers(-128, 128, (3, 4)).astype(np.int8)
    more = [RNG.integers(-9, 9, shape).astype(np.int8)] if zero_point else []
    check_node("DequantizeLinear", [x, scales(*shape), *more], attrs)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_quantized_products(rank):
    a, b = (RNG.integers(0, 200, s).astype(np.uint8) for s in ((2, 2, 3)[3 - rank :], (3, 4)))
    check_node("MatMulInteger", [a, b, np.array(3, np.uint8)], which=[[0]])
    check_node("MatMulInteger", [a, b], which=[[1], [0, 1]], scan=True)
    one = lambda x: [np.array(x, np.float32), np.array(7, np.uint8)]  # noqa: E731
    check_node("QLinearMatMul", [a, *one(0.01), b, *one(0.02), *one(0.5)], which=[[0]])


def test_quantized_convolutions():
    x, w = (RNG.integers(0, 200, s).astype(np.uint8) for s in ((2, 3, 4, 5), (4, 3, 2, 2)))
    check_node("ConvInteger", [x, w, np.array(3, np.uint8)], {"pads": [1, 0, 0, 1]}, which=[[0]])
    one = lambda x: [np.array(x, np.float32), np.array(7, np.uint8)]  # noqa: E731
    check_node("QLinearConv", [x, *one(0.01), w, *one(0.02), *one(0.5)], which=[[0]])


def test_dropout_at_inference():
    check_node("Dropout", [scales(3, 4)], outputs=2)
    check_node("Dropout", [scales(3, 4), np.float32(0.5), np.array(False)], outputs=2, which=[[0]])
