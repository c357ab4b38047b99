"""Operators of ONNX Runtime, batched."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)
MS = "com.microsoft"


def floats(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("op", ["Gelu", "QuickGelu", "FastGelu", "Inverse"])
def test_one_operand(op):
    check_node(op, [floats(3, 3)], domain=MS, tolerance=1e-4)


def test_with_a_bias():
    check_node("BiasGelu", [floats(2, 3), floats(3)], domain=MS, tolerance=1e-4)
    check_node("FastGelu", [floats(2, 3), floats(3)], domain=MS, tolerance=1e-4)


def test_compositions():
    check_node("FusedMatMul", [floats(2, 3), floats(4, 3)], {"transB": 1, "alpha": 0.5}, domain=MS, tolerance=1e-5)
    operands = [floats(2, 3, 4), floats(2, 3, 4), floats(4), floats(4)]
    which = [[0], [1, 2], [0, 1, 2, 3]]
    check_node("SkipLayerNormalization", operands, domain=MS, which=which, tolerance=1e-5)
