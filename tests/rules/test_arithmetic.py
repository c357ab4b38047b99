import numpy as np
import pytest

from onnxad_rules.testing import check_rule

R = np.random.default_rng(0)
r = R.standard_normal
SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 3)), ((2, 3), (4, 1, 3))]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("a, b", SHAPES)
def test_binary(op, a, b):
    check_rule(op, [r(a), r(b) + 3])


@pytest.mark.parametrize("op", ["Neg", "Reciprocal", "Sqrt"])
def test_unary(op):
    check_rule(op, [r((2, 3)) ** 2 + 1])


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_variadic(op):
    check_rule(op, [r((2, 3)), r((3,)), r((4, 1, 1))])
