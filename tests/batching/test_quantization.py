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


def test_dropout_at_inference():
    check_node("Dropout", [scales(3, 4)], outputs=2)
    check_node("Dropout", [scales(3, 4), np.float32(0.5), np.array(False)], outputs=2, which=[[0]])
