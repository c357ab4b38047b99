"""Running sums and products."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import linear, pushforward
from onnxad_rules.node import NodeView
from onnxad_rules.products import is_zero, rows_of_zeros


def _flag(x: int) -> int | None:
    return x or None


linear(
    "CumSum",
    x=lambda op, n, ct: op.CumSum(ct, n.axis, exclusive=_flag(n.exclusive), reverse=_flag(1 - n.reverse)),
)


@pushforward("CumProd")
def _cumprod(op: Builder, n: NodeView, t: Any) -> Var:
    """y cumsum(t / x) over the factors that are not zero; for each zero, t times the product of the others.

    A row per zero factor (`rows_of_zeros`): its tangent where it takes part, times the product without it.
    """
    x, zero = n.x, is_zero(op, n.x)
    how = {"exclusive": _flag(n.exclusive), "reverse": _flag(n.reverse)}
    smooth = n.y * op.CumSum(op.where(zero, 0, t.x) / op.where(zero, 1, x), n.axis, **how)
    here = rows_of_zeros(op, zero)
    axis = _behind_rows(op, n.axis)
    others = op.CumProd(op.where(here, 1, x), axis, **how)
    own = op.CumSum(op.where(here, t.x, 0), axis, **how)
    return smooth + op.ReduceSum(own * others, [0], keepdims=0)


def _behind_rows(op: Builder, axis: Var) -> Var:
    """The axis in a tensor with one more axis in front: one more, unless it counts from the end."""
    return axis + op.cast_like(op.GreaterOrEqual(axis, op.like(0, axis)), axis)
