"""Products of matrices: one product for all entries wherever they can stand below each other."""

import numpy as np
import pytest
from batched import check_batched, check_node, node_model

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


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,...jk->...ik", [(6, 5, 2, 3), (1, 1, 3, 4)]),
        ("...ij,jk->...ik", [(5, 2, 3), (3, 4)]),
        ("i...j,...j->...i", [(2, 5, 6, 3), (5, 6, 3)]),
        ("...ij->...", [(5, 2, 3)]),
        ("...i,i", [(5, 2), (2,)]),
    ],
)
def test_ellipses(equation, shapes):
    check_node("Einsum", [floats(*s) for s in shapes], {"equation": equation}, tolerance=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 0), (0, 3)]),
        ("ij,jk->ik", [(0, 4), (4, 3)]),
        ("ij,jk->ik", [(2, 4), (4, 0)]),
        ("bij,bjk->bik", [(0, 2, 3), (0, 3, 4)]),
        ("...ij,jk->...ik", [(0, 2, 3), (3, 4)]),
        ("...ij->...ji", [(0, 2, 3)]),
        ("...ij,...jk->...ik", [(0, 2, 3), (0, 3, 4)]),
    ],
)
@pytest.mark.parametrize("hide", [(), ("dims",), ("rank",)])
def test_einsum_of_nothing(equation, shapes, hide):
    """ONNX Runtime ends the process where it has to transpose an empty operand for an Einsum."""
    operands = [floats(*s) for s in shapes]
    model = node_model("Einsum", operands, {"equation": equation}, hide=hide)
    for chosen in (["x0"], ["x1"], ["x0", "x1"])[: 2 * len(shapes) - 1]:
        check_batched(model, {f"x{i}": x for i, x in enumerate(operands)}, chosen, scan=None)


def test_determinant():
    check_node("Det", [floats(3, 3)], tolerance=1e-5)
    check_node("Det", [floats(2, 3, 3)], tolerance=1e-5)
