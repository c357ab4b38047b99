"""Normalizations, batched in what they normalize and in their parameters."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(0.2, 1.5, shape).astype(np.float32)


@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization(axis):
    norm = (4,) if axis == -1 else (3, 4)
    check_node("LayerNormalization", [floats(2, 3, 4), floats(*norm)], {"axis": axis}, tolerance=1e-5)
    operands = [floats(2, 3, 4), floats(*norm), floats(*norm)]
    check_node("LayerNormalization", operands, {"axis": axis}, tolerance=1e-5)
    check_node("RMSNormalization", operands[:2], {"axis": axis}, opset=23, tolerance=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 5)])
def test_instance_normalization(shape):
    check_node("InstanceNormalization", [floats(*shape), floats(3), floats(3)], tolerance=1e-5)


def test_group_normalization():
    check_node("GroupNormalization", [floats(2, 6, 5), floats(6), floats(6)], {"num_groups": 3}, tolerance=1e-5)


@pytest.mark.parametrize("shape", [(3, 2), (3, 2, 4)])
def test_batch_normalization(shape):
    operands = [floats(*shape), *(floats(2) for _ in range(4))]
    which = [[0], [1], [2], [3], [4], [0, 1], [1, 2, 3, 4], [0, 1, 2, 3, 4]]
    check_node("BatchNormalization", operands, which=which, tolerance=1e-5)
    attrs = {"training_mode": 1, "momentum": 0.7}
    check_node("BatchNormalization", operands, attrs, outputs=3, which=which, tolerance=1e-5)
