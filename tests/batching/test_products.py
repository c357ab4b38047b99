"""Products of matrices: one product for all entries wherever they can stand below each other."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3), (3, 4)),
        ((3,), (3, 4)),
        ((2, 3), (3,)),
        ((3,), (3,)),
        ((2, 3), (3, 1)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((5, 1, 2, 3), (6, 3, 4)),
        ((3,), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((5, 2, 3), (5, 3, 1)),
    ],
)
def test_matmul(a, b):
    check_node("MatMul", [floats(*a), floats(*b)], tolerance=1e-5)


@pytest.mark.parametrize("bias", [(), (4,), (1, 4), (2, 1), (2, 4), None])
@pytest.mark.parametrize("attrs", [{}, {"transB": 1, "alpha": 0.5, "beta": 2.0}, {"transA": 1, "beta": 0.0}])
def test_gemm(attrs, bias):
    a = floats(3, 2) if attrs.get("transA") else floats(2, 3)
    b = floats(4, 3) if attrs.get("transB") else floats(3, 4)
    operands = [a, b, *([] if bias is None else [floats(*bias)])]
    check_node("Gemm", operands, attrs, tolerance=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("i,i", [(3,), (3,)]),
        ("...ij,jk->...ik", [(5, 2, 3), (3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 2)]),
    ],
)
def test_einsum(equation, shapes):
    check_node("Einsum", [floats(*s) for s in shapes], {"equation": equation}, tolerance=1e-5)


def test_determinant():
    check_node("Det", [floats(3, 3)], tolerance=1e-5)
    check_node("Det", [floats(2, 3, 3)], tolerance=1e-5)
