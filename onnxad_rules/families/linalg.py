"""Products of matrices."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import multilinear
from onnxad_rules.node import NodeView


def _matmul_a(op: Builder, n: NodeView, ct: Var) -> Var:
    """ct B^T, summed over what A was broadcast along."""
    a, b = n.A, n.B
    if a.rank == 2 and b.rank == 2:
        return op.Gemm(ct, b, transB=1)  # type: ignore[no-any-return]
    if b.rank == 1:
        return op.sum_to(op.Mul(op.Unsqueeze(ct, [-1]), b), a)
    if a.rank == 1:
        return op.sum_to(op.Squeeze(op.MatMul(b, op.Unsqueeze(ct, [-1])), [-1]), a)
    return op.sum_to(op.MatMul(ct, op.swap(b)), a)


def _matmul_b(op: Builder, n: NodeView, ct: Var) -> Var:
    """A^T ct, summed over what B was broadcast along; for a matrix B as one large product, not a batch and a sum."""
    a, b = n.A, n.B
    if a.rank == 1 and b.rank == 1:
        return op.Mul(ct, a)  # type: ignore[no-any-return]
    if a.rank == 1:
        return op.sum_to(op.Mul(op.Unsqueeze(a, [-1]), op.Unsqueeze(ct, [-2])), b)
    if b.rank == 1:
        rows = op.MatMul(op.Unsqueeze(ct, [-2]), a)
        return op.sum_to(op.Squeeze(rows, [-2]), b)
    if b.rank == 2 and a.rank is not None:
        return op.Gemm(_rows(op, a), _rows(op, ct), transA=1)  # type: ignore[no-any-return]
    return op.sum_to(op.MatMul(op.swap(a), ct), b)


def _rows(op: Builder, x: Var) -> Var:
    """All axes but the last one merged."""
    if x.rank == 2:
        return x
    assert x.shape is not None
    last = x.shape[-1]
    if isinstance(last, int) and last > 0:
        return op.Reshape(x, [-1, last])  # type: ignore[no-any-return]
    return op.Flatten(x, axis=-1)  # type: ignore[no-any-return]


multilinear("MatMul", A=_matmul_a, B=_matmul_b)


def _gemm_a(op: Builder, n: NodeView, ct: Var) -> Var:
    if n.transA:
        return op.Gemm(n.B, ct, transA=n.transB, transB=1, alpha=_unless_one(n.alpha))  # type: ignore[no-any-return]
    return op.Gemm(ct, n.B, transB=_unless_zero(1 - n.transB), alpha=_unless_one(n.alpha))  # type: ignore[no-any-return]


def _gemm_b(op: Builder, n: NodeView, ct: Var) -> Var:
    if n.transB:
        return op.Gemm(ct, n.A, transA=1, transB=_unless_zero(n.transA), alpha=_unless_one(n.alpha))  # type: ignore[no-any-return]
    return op.Gemm(n.A, ct, transA=_unless_zero(1 - n.transA), alpha=_unless_one(n.alpha))  # type: ignore[no-any-return]


def _unless_zero(x: int) -> int | None:
    return x or None


def _unless_one(x: float) -> float | None:
    return None if x == 1 else x


multilinear(
    "Gemm",
    A=_gemm_a,
    B=_gemm_b,
    C=lambda op, n, ct: op.sum_to(ct if n.beta == 1 else ct * n.beta, n.C),
    additive={"C": lambda op, n, t: op.expand_to(t if n.beta == 1 else t * n.beta, n.Y)},
)
