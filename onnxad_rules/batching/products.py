"""Products of matrices."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.batching.core import Batch, Same, batched
from onnxad_rules.node import NodeView


@batched("MatMul", any_rank=True)
def _matmul(op: Builder, n: NodeView, b: Batch) -> Any:
    ranks = n.A.rank, n.B.rank
    if b.B is None and ranks[1] in (1, 2):
        return op.MatMul(b.A, n.B)
    if None in ranks:
        return _product_at_run_time(op, n, b)
    if b.A is None and ranks in ((1, 1), (2, 1)):  # one product of matrices, not one with each vector
        return op.MatMul(b.B, n.A if ranks[0] == 1 else op.swap(n.A))
    if b.A is None and ranks == (2, 2) and n.B.shape[1] == 1:  # a column is a vector
        return op.Unsqueeze(op.MatMul(op.Squeeze(b.B, [-1]), op.swap(n.A)), [-1])
    rank = max(2, *ranks)
    x, y = _matrix(op, b, n.A, rank, -2), _matrix(op, b, n.B, rank, -1)
    out = op.MatMul(x, y)
    ones = [axis for axis, r in ((-2, ranks[0]), (-1, ranks[1])) if r == 1]
    return op.Squeeze(out, ones) if ones else out


def _matrix(op: Builder, b: Batch, x: Var, rank: int, axis: int) -> Var:
    """An operand, a vector as a matrix with one more axis, to multiply twins of values of a rank."""
    if x.rank == 1:
        twin = b.twin(x)
        column = op.Unsqueeze(x if twin is None else twin, [axis])
        return column if twin is None or rank == 2 else op.Unsqueeze(column, list(range(1, rank - 1)))
    return b.aligned(x, rank)


def _product_at_run_time(op: Builder, n: NodeView, b: Batch) -> Var:
    """The same where only the run knows which operand is a vector."""
    ranks = b.rank(n.A), b.rank(n.B)
    two = op.const([2])
    wide = op.Max(*ranks, two)
    vector = [op.Cast(op.Equal(r, op.const([1])), to=int(DataType.INT64)) for r in ranks]

    def matrix(x: Var, i: int) -> Var:
        twin = b.twin(x)
        if twin is None and x.rank is not None and x.rank > 1:
            return x
        lead = [] if twin is None else [b.size, op.Expand(op.const([1]), wide - op.Max(ranks[i], two))]
        one = op.Expand(op.const([1]), vector[i])
        own = [one, b.shape(x)] if i == 0 else [b.shape(x), one]
        return op.Reshape(x if twin is None else twin, op.Concat(*lead, *own, axis=0), allowzero=1)

    out = op.MatMul(matrix(n.A, 0), matrix(n.B, 1))
    if all(x.rank is not None and x.rank > 1 for x in (n.A, n.B)):
        return out
    shape = op.Shape(out)
    rows = op.Slice(shape, [-2], op.const([-1]) - vector[0])
    columns = op.Slice(shape, [-1], op.const([2**31]) - vector[1] * (2**31 + 1))
    return op.Reshape(out, op.Concat(op.Slice(shape, [0], [-2]), rows, columns, axis=0), allowzero=1)


@batched("Gemm", any_rank=True)
def _gemm(op: Builder, n: NodeView, b: Batch) -> Any:
    """One product where the rows of the entries can stand below each other, else one for each entry."""
    bias = n.C
    per_row = bias is not None and (bias.shape is None or (bias.rank == 2 and bias.shape[0] != 1))
    if b.only("A") and not n.transA and not per_row:
        return b.unfold(b.again(b.fold(n.A), n.B, bias), n.A)
    x, y = (n.A if b.A is None else b.A), (n.B if b.B is None else b.B)
    x, y = (op.swap(v) if t else v for v, t in ((x, n.transA), (y, n.transB)))
    out = op.MatMul(x, y)
    if n.alpha != 1:
        out = out * n.alpha
    if bias is None or n.beta == 0:
        return out if b.A is not None or b.B is not None else Same(out)
    (bias,) = b.together(bias, rank=2)
    return out + (bias if n.beta == 1 else bias * n.beta)


@batched("Det")
def _det(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Det(b.X)
