"""Operators that let some of their operands through: Where, Clip, Min, Max, TopK, Dropout, and the casts."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import describe
from onnxad_rules.context import gate, is_exact
from onnxad_rules.kinds import Times, decompose, elementwise, linear, pair, times
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import NotDifferentiable


def _where_forward(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> list[Var]:
    """A Where as well: the tangent of the branch not taken may be infinite."""
    _, x, y = ts
    return [op.expand_to(op.where(n.condition, 0 if x is None else x, 0 if y is None else y), n.output)]


@pair("Where", forward=_where_forward)
def _where(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]) -> list[Var | None]:
    """The cotangent where the branch was taken. By hand for speed: Y gets what X did not."""
    ct = cts[0]
    assert ct is not None
    x = gate(op, n, ct, n.condition) if wanted[1] else None
    y = None
    if wanted[2]:
        y = gate(op, n, ct, op.Not(n.condition)) if x is None or is_exact(x) else ct - x
    return [None, None if x is None else op.sum_to(x, n.X), None if y is None else op.sum_to(y, n.Y)]


# float to float; anything else carries no derivative
linear("Cast", input=lambda op, n, ct: op.cast_like(ct, n.input))
linear("CastLike", input=lambda op, n, ct: op.cast_like(ct, n.input), zeros=("target_type",))


# --- Clip, as PyTorch's clamp: both bounds belong to the inside; with min > max the result is max everywhere


def _inside(op: Builder, n: NodeView, x: Var) -> Var:
    low, high = n.min, n.max
    if low is None and high is None:
        return x
    if low is not None and high is not None:
        a, b = op.number(low), op.number(high)
        if a is not None and b is not None and a <= b:
            return gate(op, n, x, op.Equal(n.output, n.input))
        mask = op.And(op.GreaterOrEqual(n.input, low), op.LessOrEqual(n.input, high))
    else:
        mask = op.LessOrEqual(n.input, high) if low is None else op.GreaterOrEqual(n.input, low)
    return gate(op, n, x, mask)


def _at_min(op: Builder, n: NodeView, x: Var) -> Var:
    low = op.Less(n.input, n.min)
    return gate(op, n, x, low if n.max is None else op.And(low, op.Less(n.min, n.max)))


def _at_max(op: Builder, n: NodeView, x: Var) -> Var:
    high = op.Greater(n.input, n.max)
    return gate(op, n, x, high if n.min is None else op.Or(high, op.Less(n.max, n.min)))


elementwise("Clip", input=times(_inside), min=times(_at_min), max=times(_at_max))


# --- Min and Max: ties share the derivative evenly, as PyTorch's maximum and minimum of two operands


def _extreme(formal: str, result: str) -> Times:
    def share(op: Builder, n: NodeView, x: Var, i: int) -> Var:
        vs, y = getattr(n, formal), getattr(n, result)
        if len(vs) == 1:
            return x
        at = [op.Equal(v, y) for v in vs]
        count = op.add_n([op.cast_like(a, y) for a in at])
        assert count is not None
        return gate(op, n, x / count, at[i])

    return times(share)


elementwise("Max", data_0=_extreme("data_0", "max"))
elementwise("Min", data_0=_extreme("data_0", "min"))


# --- TopK


@pair("TopK", forward=lambda op, n, ts: [op.GatherElements(ts[0], n.Indices, axis=n.axis)])
def _top_k(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]) -> list[Var | None]:
    """By hand: the indices of a row differ from each other, so that nothing has to be added up."""
    return [op.ScatterElements(op.zeros_like(n.X), n.Indices, cts[0], axis=n.axis)]


# --- Dropout: with a flag that the caller of the model sets, the derivative for the mask of the very run


def _dropout(op: Builder, n: NodeView, x: Var) -> Var:
    """x mask / (1 - ratio) in training; the node is made to return its mask."""
    if _training(op, n) is False:
        return x
    _refuse_where_always_random(op, n)
    n.extend_results("mask")
    return _masked(op, n, x, n.mask)


def _masked(op: Builder, n: NodeView, x: Var, mask: Var) -> Var:
    keep = _kept_share(op, n, x)
    scale = op.where(op.Equal(keep, op.like(0, x)), 0, 1 / keep)
    if _training(op, n) is None:
        scale = op.where(n.training_mode, scale, 1)
    return x * (op.cast_like(mask, x) * scale)


def _dropout_ratio(op: Builder, n: NodeView, x: Var) -> Var | None:
    """x y / (1 - ratio) in training: the mask is piecewise constant.

    The ratio may have another element type; `x` is a tangent of it or a cotangent of the output.
    """
    if _training(op, n) is False:
        return None
    _refuse_where_always_random(op, n)
    y = n.output
    d = op.cast_like(x, y) * (y / _kept_share(op, n, y)) * op.cast_like(n.training_mode, y)
    same = n.ratio.dtype == y.dtype
    return d if same else op.cast_like(d, n.ratio if x.dtype == y.dtype else y)


def _refuse_where_always_random(op: Builder, n: NodeView) -> None:
    if _training(op, n):
        raise NotDifferentiable(
            f"{describe(n.node)} is always in training mode and draws another mask in every run, so that there is no "
            "function to differentiate; export the model for inference, or let decompose{ops=Dropout} multiply by the "
            "mask first: the derivative is then that of the very run",
            (n.node,),
        )


def _training(op: Builder, n: NodeView) -> bool | None:
    """Whether the node drops anything; None where only the run tells."""
    if n.training_mode is None or (n.ratio is not None and op.number(n.ratio, 0) is not None):
        return False
    flag = op.number(n.training_mode)
    return None if flag is None else bool(flag)


def _kept_share(op: Builder, n: NodeView, x: Var) -> Var:
    return 1 - op.cast_like(n.ratio, x) if n.ratio is not None else op.like(0.5, x)


@decompose("Dropout", zeros=("mask",), when=lambda n: n.training_mode is not None)
def _multiply_by_mask(op: Builder, n: NodeView) -> tuple[Var, Var | None]:
    """Only where it is asked for: a number for each element that the run draws, and that a derivative can read."""
    _, mask = op.Dropout(n.data, n.ratio, n.training_mode, seed=n.seed, outputs=2)
    y = n.data if _training(op, n) is False else _masked(op, n, n.data, mask)
    return y, mask if len(n.node.outputs) > 1 else None


elementwise("Dropout", data=times(_dropout), ratio=times(_dropout_ratio), zeros=("mask",))
