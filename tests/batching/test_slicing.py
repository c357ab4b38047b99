"""Operators that take parts of their operand, or put something around it, batched."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(0.2, 0.9, shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
def test_slice(constants):
    x = floats(4, 5, 6)
    check_node("Slice", [x, ints(1, 0), ints(3, 9)], which=[[0]], constants=constants)
    check_node("Slice", [x, ints(-1, 1), ints(-9, 5), ints(-1, 0), ints(-2, 1)], which=[[0]], constants=constants)


@pytest.mark.parametrize("constants", [(), (1, 2, 3, 4)])
def test_slice_with_narrow_bounds(constants):
    """Bounds are int32 as well as int64, but all the same: axes that are added are made so."""
    x, (a, b, c) = floats(4, 5, 6), (np.array(v, np.int32) for v in ([1, 0], [3, 9], [1, 2]))
    check_node("Slice", [x, a, b], which=[[0]], constants=constants)
    check_node("Slice", [x, a, b, None, c], which=[[0]], constants=constants)


@pytest.mark.parametrize("constants", [(), (1, 3)])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad(mode, constants):
    value = None if mode != "constant" else np.array(0.25, np.float32)
    check_node("Pad", [floats(3, 4), ints(1, 0, 1, 2), value], {"mode": mode}, which=[[0]], constants=constants)
    operands = [floats(3, 4), ints(1, 2), value, ints(-1)]
    check_node("Pad", operands, {"mode": mode}, which=[[0]], constants=constants)


def test_pad_with_a_value_of_every_entry():
    check_node("Pad", [floats(3, 4), ints(1, 0, 1, 2), np.array(0.25, np.float32)], which=[[2], [0, 2]])
    operands = [floats(2, 3), ints(1, -1), np.array(0.25, np.float32), ints(1)]
    check_node("Pad", operands, which=[[2], [0, 2]])


@pytest.mark.parametrize("attrs", [{}, {"axis": 1}, {"axis": -2}])
def test_compress(attrs):
    condition = np.array([True, False, True])
    check_node("Compress", [floats(3, 3), condition], attrs, which=[[0]])


@pytest.mark.parametrize("axis", [0, -1])
def test_top_k(axis):
    check_node("TopK", [floats(4, 5), ints(2)], {"axis": axis}, outputs=2, which=[[0]])
