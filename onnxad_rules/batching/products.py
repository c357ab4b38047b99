"""Products of matrices."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched
from onnxad_rules.node import NodeView


@batched("MatMul", any_rank=True)
def _matmul(op: Builder, n: NodeView, b: Batch) -> Any:
    ranks = n.A.rank, n.B.rank
    if b.B is None and ranks[1] in (1, 2):
        return op.MatMul(b.A, n.B)
    if None in ranks:
        return NotImplemented
    if b.A is None and ranks in ((1, 1), (2, 1)):  # one product of matrices, not one with each vector
        return op.MatMul(b.B, n.A if ranks[0] == 1 else op.swap(n.A))
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


@batched("Gemm")
def _gemm(op: Builder, n: NodeView, b: Batch) -> Any:
    """One product where the rows of the entries can stand below each other, else one for each entry."""
    bias = n.C
    per_row = bias is not None and (bias.shape is None or (bias.rank == 2 and bias.shape[0] != 1))
    if b.only("A") and not n.transA and not per_row:
        return b.unfold(b.again(b.fold(n.A), n.B, bias), n.A.shape[0])
    x, y = (op.swap(v) if t else v for v, t in ((b.aligned(n.A, 2), n.transA), (b.aligned(n.B, 2), n.transB)))
    out = op.MatMul(x, y)
    if n.alpha != 1:
        out = out * n.alpha
    if bias is None or n.beta == 0:
        return out
    bias = b.aligned(bias, 2)
    return out + (bias if n.beta == 1 else bias * n.beta)


@batched("Einsum", any_rank=True)
def _einsum(op: Builder, n: NodeView, b: Batch) -> Any:
    operands, arrow, result = n.equation.replace(" ", "").partition("->")
    if not arrow:
        once = sorted(c for c in set(operands) - set(".,") if operands.count(c) == 1)
        result = ("..." if "." in operands else "") + "".join(once)
    free = next(c for c in ascii_letters if c not in n.equation)
    terms = [t if v is None else free + t for t, v in zip(operands.split(","), b.Inputs, strict=True)]
    values = [x if v is None else v for x, v in zip(n.Inputs, b.Inputs, strict=True)]
    return op.Einsum(*values, equation=f"{','.join(terms)}->{free}{result}")


@batched("Det")
def _det(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Det(b.X)
