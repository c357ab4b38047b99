"""Operators that work place by place, batched."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(0.2, 0.9, shape).astype(np.float32)


@pytest.mark.parametrize("op", ["Tanh", "Neg", "Sqrt", "Softplus", "Identity"])
def test_one_operand(op):
    check_node(op, [floats(2, 3)])


@pytest.mark.parametrize(
    "shapes", [((2, 3), (3,)), ((3,), (2, 3)), ((2, 1), (1, 3)), ((), (2, 3)), ((4, 1, 3), (2, 1))]
)
@pytest.mark.parametrize("op", ["Mul", "Pow", "Greater", "Max"])
def test_operands_that_broadcast(op, shapes):
    check_node(op, [floats(*s) for s in shapes])


@pytest.mark.parametrize("slope", [(2, 3), (3,), (2, 1), (1,), ()])
def test_a_slope_broadcasts_to_the_operand(slope):
    """And never the other way round, also where the slope alone has entries."""
    check_node("PRelu", [floats(2, 3) - 0.5, floats(*slope)])


@pytest.mark.parametrize("op", ["Mean", "Sum", "Max"])
def test_variadic_operands(op):
    check_node(op, [floats(3), floats(2, 1), floats(4, 1, 3)])


def test_three_operands():
    check_node("Where", [np.array([[True], [False]]), floats(3), floats(4, 1, 3)])
    check_node("Sum", [floats(2, 1), floats(3), floats(4, 1, 3)])


def test_clip():
    lo, hi = np.array(0.3, np.float32), np.array(0.6, np.float32)
    check_node("Clip", [floats(2, 3), lo, hi])
    check_node("Clip", [floats(2, 3), None, hi])
    check_node("Clip", [floats(2, 3)])


def test_a_cast_by_the_type_of_another():
    check_node("CastLike", [floats(2, 3), np.zeros(4, np.float64)], which=[[0]])
