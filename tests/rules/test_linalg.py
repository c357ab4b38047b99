import numpy as np
import pytest

from onnxad_rules.testing import check_rule

R = np.random.default_rng(0)
r = R.standard_normal


@pytest.mark.parametrize(
    "a, b",
    [((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((5, 3, 4), (4, 2)), ((3, 4), (5, 4, 2)),
     ((2, 1, 3, 4), (5, 4, 2)), ((4,), (5, 4, 2)), ((5, 3, 4), (4,)), ((1, 3, 4), (5, 4, 2)),
     ((5, 1, 4), (5, 4, 1)),      ((4,), (2, 3, 4, 2)), ((2, 3, 5, 4), (4,))],
)  # fmt: skip
def test_matmul(a, b):
    check_rule("MatMul", [r(a), r(b)])


@pytest.mark.parametrize("a, b", [((3, 4), (4, 2)), ((4,), (4, 2)), ((5, 3, 4), (4,)), ((5, 3, 4), (5, 4, 2))])
@pytest.mark.parametrize("constant", [0, 1])
def test_matmul_with_a_constant(a, b, constant):
    """With unknown ranks only the constant's rank is known."""
    check_rule("MatMul", [r(a), r(b)], constants=[constant])


@pytest.mark.parametrize(
    "a, b",
    [((0, 4), (4, 2)), ((3, 0), (0, 2)), ((0, 3, 4), (4, 2)), ((0, 3, 4), (0, 4, 2)), ((2, 3, 0), (0,))],
)
def test_matmul_of_empty(a, b):
    check_rule("MatMul", [r(a), r(b)])


@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("tb", [0, 1])
@pytest.mark.parametrize("c", [(3, 2), (2,), (1,), (3, 1), (), None])
def test_gemm(ta, tb, c):
    a, b = r((4, 3) if ta else (3, 4)), r((2, 4) if tb else (4, 2))
    check_rule(
        "Gemm",
        [a, b] + ([r(c)] if c is not None else []),
        {"transA": ta, "transB": tb, "alpha": 0.7, "beta": 1.3},
    )


def test_gemm_without_scales_and_empty():
    check_rule("Gemm", [r((3, 4)), r((4, 2)), r((2,))])
    check_rule("Gemm", [r((0, 4)), r((4, 2)), r((2,))])
    check_rule("Gemm", [r((3, 0)), r((0, 2)), r((2,))], {"transB": 0})


def test_det():
    check_rule("Det", [r((3, 3))], rtol=1e-5)
    check_rule("Det", [r((2, 1, 2, 2))], rtol=1e-5)
    check_rule("Det", [r((2, 1, 1))], rtol=1e-5)


def test_det_of_singular_matrices():
    one_short = np.array([[1.0, 2, 3], [2, 4, 6], [1, 1, 5]])
    two_short = np.array([[1.0, 2, 3], [2, 4, 6], [3, 6, 9]])
    check_rule("Det", [np.stack([one_short, two_short, np.zeros((3, 3))])], rtol=1e-5)
