"""Arithmetic with broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_rules.context import divisor, factor, may_be_dropped, positive
from onnxad_rules.kinds import elementwise, pair, times
from onnxad_rules.node import NodeView

elementwise("Add", A=1, B=1)
elementwise("Sub", A=1, B=-1)
elementwise("Mul", A=lambda op, n: factor(op, n, n.B), B=lambda op, n: factor(op, n, n.A))
elementwise("Neg", X=-1)
elementwise("Sum", data_0=lambda op, n, i: 1)
elementwise("Mean", data_0=lambda op, n, i: 1 / len(n.data_0))
# sqrt'(0) is infinite, but zero times it is zero: x / max(y, smallest)
elementwise("Sqrt", X=times(lambda op, n, x: x * 0.5 / positive(op, factor(op, n, n.Y, certain=True))))


def _reciprocal(op: Builder, n: NodeView, x: Var) -> Var:
    if may_be_dropped(op, n):
        b = divisor(op, n, n.X)
        return -(x / b / b)
    return -(x * (n.Y * n.Y))


elementwise("Reciprocal", X=times(_reciprocal))


def _div_forward(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> list[Var]:
    """(tA - tB C) / B."""
    a, b = ts
    if b is not None:
        a = -(b * n.C) if a is None else a - b * n.C
    assert a is not None
    return [op.expand_to(a / divisor(op, n, n.B), n.C)]


@pair("Div", forward=_div_forward)
def _div(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]) -> list[Var | None]:
    """ct / B, and minus that times C.

    By hand for speed: the quotient is shared, and the sign is changed after the sum over what B was broadcast
    along.
    """
    ct = cts[0]
    assert ct is not None
    b = divisor(op, n, n.B)
    share = ct / b
    da = op.sum_to(share, n.A) if wanted[0] else None
    if not wanted[1]:
        return [da]
    # where B may be zero, C is infinite there and no factor to use
    db = share * n.C if b.value is n.B.value else share * n.A / b
    return [da, -op.sum_to(db, n.B)]


# C = A - q B with a whole number q, which is constant between its jumps (fmod truncates, otherwise it is the
# floor)
elementwise("Mod", A=1, B=times(lambda op, n, x: -(x * op.Round((n.A - n.C) / n.B))))
