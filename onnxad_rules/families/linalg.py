"""Products of matrices, and determinants."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import multilinear, pushforward
from onnxad_rules.node import NodeView

# --- MatMul


def _matmul_a(op: Builder, n: NodeView, ct: Var) -> Var:
    """ct B^T, summed over what A was broadcast along."""
    a, b = n.A, n.B
    out: Var
    if a.rank == 2 and b.rank == 2:
        out = op.Gemm(ct, b, transB=1)
        return out
    if b.rank == 2:  # one matrix: every row of A has its own row of the cotangent, whatever the rank of A
        return op.fit_type(op.MatMul(ct, op.swap(b)), a)
    if b.rank == 1:
        return op.fit_type(op.Mul(op.Unsqueeze(ct, [-1]), b), a)
    if a.rank is None or b.rank is None:
        _, matrix, ct = _as_matrices(op, a, b, ct)
        return op.sum_to(op.MatMul(ct, op.swap(matrix)), a)
    if a.rank == 1:
        return op.sum_to(op.Squeeze(op.MatMul(b, op.Unsqueeze(ct, [-1])), [-1]), a)
    return op.sum_to(op.MatMul(ct, op.swap(b)), a)


def _matmul_b(op: Builder, n: NodeView, ct: Var) -> Var:
    """A^T ct, summed over what B was broadcast along; for a matrix B one large product, no batch and sum."""
    a, b = n.A, n.B
    out: Var
    if b.rank == 2 and a.rank != 1:
        out = op.Gemm(_rows(op, a), _rows(op, ct), transA=1)
        return op.fit_type(out, b)
    if b.rank == 1 and a.rank != 1:
        out = op.MatMul(op.Reshape(ct, [-1]), _rows(op, a))
        return op.fit_type(out, b)
    if a.rank == 1 and b.rank == 1:
        out = op.Mul(ct, a)
        return out
    if a.rank is None or b.rank is None:
        rows, matrix, ct = _as_matrices(op, a, b, ct)
        return op.reshape_like(op.sum_to(op.MatMul(op.swap(rows), ct), matrix), b)
    if a.rank == 1:
        return op.sum_to(op.Mul(op.Unsqueeze(a, [-1]), op.Unsqueeze(ct, [-2])), b)
    return op.sum_to(op.MatMul(op.swap(a), ct), b)


def _rows(op: Builder, x: Var) -> Var:
    """All axes but the last one merged; a vector is one row."""
    if x.rank == 2:
        return x
    last = None if x.shape is None else x.shape[-1]
    return op.Reshape(x, [-1, last]) if isinstance(last, int) and last > 0 else op.Flatten(x, axis=-1)


def _as_matrices(op: Builder, a: Var, b: Var, ct: Var) -> tuple[Var, Var, Var]:
    """The operands of a product of unknown ranks and its cotangent, with vectors made a row and a column."""
    one, two = op.const([1]), op.const([2])
    rows, columns, cta = a, b, op.shape(ct)
    ra, rb = op.rank(a), op.rank(b)
    if a.rank is None:  # the last max(rank, 2) of (1, *shape)
        target = op.Slice(op.Concat(one, op.shape(a), axis=0), op.Neg(op.Max(ra, two)), [2**62])
        rows = op.Reshape(a, target, allowzero=1)
    elif a.rank == 1:
        rows = op.Unsqueeze(a, [0])
    if b.rank is None:  # the first max(rank, 2) of (*shape, 1)
        target = op.Slice(op.Concat(op.shape(b), one, axis=0), [0], op.Max(rb, two))
        columns = op.Reshape(b, target, allowzero=1)
    has_row, has_column = op.Min(ra - one, one), op.Min(rb - one, one)
    batch = op.Slice(cta, [0], op.rank(ct) - has_row - has_column)
    full = op.Concat(batch, op.Shape(rows, start=-2, end=-1), op.Shape(columns, start=-1), axis=0)
    return rows, columns, op.Reshape(ct, full, allowzero=1)


multilinear("MatMul", A=_matmul_a, B=_matmul_b)

# --- Gemm


def _gemm_a(op: Builder, n: NodeView, ct: Var) -> Var:
    out: Var
    if n.transA:
        out = op.Gemm(n.B, ct, transA=n.transB, transB=1, alpha=_unless_one(n.alpha))
    else:
        out = op.Gemm(ct, n.B, transB=_unless_zero(1 - n.transB), alpha=_unless_one(n.alpha))
    return out


def _gemm_b(op: Builder, n: NodeView, ct: Var) -> Var:
    out: Var
    if n.transB:
        out = op.Gemm(ct, n.A, transA=1, transB=_unless_zero(n.transA), alpha=_unless_one(n.alpha))
    else:
        out = op.Gemm(n.A, ct, transA=_unless_zero(1 - n.transA), alpha=_unless_one(n.alpha))
    return out


def _scaled(x: Var, factor: float) -> Var:
    return x if factor == 1 else x * factor


def _unless_zero(x: int) -> int | None:
    return x or None


def _unless_one(x: float) -> float | None:
    return None if x == 1 else x


multilinear(
    "Gemm",
    A=_gemm_a,
    B=_gemm_b,
    C=lambda op, n, ct: _scaled(op.sum_to(ct, n.C), n.beta),
    additive={"C": lambda op, n, t: op.expand_to(_scaled(t, n.beta), n.Y)},
)

# --- Det


@pushforward("Det")
def _det(op: Builder, n: NodeView, t: Any) -> Var:
    """Jacobi's formula with the matrix of cofactors, which singular matrices have too.

    The cofactor at (i, j) is the determinant of the matrix with row i replaced by the unit row e_j; all are
    taken at once as a batch of n^2 matrices, O(n^5) operations for a matrix of n rows.

    Nothing cheaper is as good. The methods without divisions (Faddeev-LeVerrier; Bird's determinant and its gradient)
    take n products, O(n^4), but cancel: on normal random matrices in single precision they are off by 1e-6 for n = 8,
    2e-4 for 16 and 2e-2 for 24, where this is off by 4e-8; and below 8 rows there is nothing to save. The determinant
    times the inverse, or an elimination with the pivots kept, is O(n^3) but not defined at singular matrices, at the
    latest in the second derivative.
    """
    x = n.X
    order = op.iota(op.extent(x, -1))
    replaced = op.Equal(op.Reshape(order, [-1, 1, 1, 1]), op.Reshape(order, [-1, 1]))  # (i, 1, row, 1)
    unit = op.Equal(op.Reshape(order, [-1, 1, 1]), order)  # (j, 1, column)
    unit = op.Where(unit, op.like(1, x), op.like(0, x))
    minors = op.Where(replaced, unit, op.Unsqueeze(x, [-3, -4]))
    cofactors = op.Det(minors)
    return op.ReduceSum(op.Mul(cofactors, t.X), [-1, -2], keepdims=0)
