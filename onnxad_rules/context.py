"""What surrounds a node, where that decides how its derivative has to be written.

A derivative that is zero times something infinite is not a number. Two cases of it matter in practice: a place that an
operator cuts off (`gate`), next to an operator whose slope is infinite; and a singular place (1/0, log 0) whose value
is thrown away by a selection further down (`divisor`, `factor`). Both have a safe spelling that costs more than the
plain one, so it is used only where the graph shows the need, which a `Survey` finds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node
from onnxad_ir.types import DataType
from onnxad_rules.node import NodeView
from onnxad_rules.survey import DROPPED, STEEP, WILD, Survey

#: The smallest positive number of each element type. Something divided by it is infinite, and zero divided by
#: it is zero: where a divisor is never negative, `Max(divisor, SMALLEST)` is the limit of x / divisor without
#: 0 / 0.
SMALLEST = {
    DataType.FLOAT: 2.0**-149,
    DataType.DOUBLE: 2.0**-1074,
    DataType.FLOAT16: 2.0**-24,
    DataType.BFLOAT16: 2.0**-133,
}
#: The largest finite number of each element type.
LARGEST = {
    DataType.FLOAT: float(np.finfo(np.float32).max),
    DataType.DOUBLE: float(np.finfo(np.float64).max),
    DataType.FLOAT16: 65504.0,
    DataType.BFLOAT16: 3.3895313892515355e38,
}


def facts_of(op: Builder, n: NodeView) -> int:
    """What the survey of the program that is differentiated says about a node."""
    return op.survey.of(n.node) if isinstance(op.survey, Survey) else 0


def survey_inside(op: Builder, node: Node, body: Sequence[Node]) -> Survey:
    """The survey of a program that stands for `node`."""
    outer = op.survey
    return Survey(body, outer.of(node), outer.calls) if isinstance(outer, Survey) else Survey(body)


def survey_of_region(op: Builder, region: Graph, primal: Sequence[Node]) -> Survey:
    """The survey of the nodes of a region, or of the body of a function."""
    outer = op.survey
    return outer.inside(region, primal) if isinstance(outer, Survey) else Survey(primal)


def gate(op: Builder, n: NodeView, x: Var, mask: Var) -> Var:
    """`x` where the boolean `mask` holds, else zero.

    A product with the mask as a number, which runtimes do many times faster than Where; but Where next to an
    operator of infinite slope, whose infinite cotangent (or tangent) must not meet a zero of the mask.
    """
    if facts_of(op, n) & STEEP:
        return op.where(mask, x, 0)
    return op.Mul(x, op.cast_like(mask, x))


def is_exact(gated: Var) -> bool:
    """True where `gate` gave a Where: infinite numbers may come through it."""
    producer = gated.value.producer
    return producer is None or producer.op_type != "Mul"


def divisor(op: Builder, n: NodeView, b: Var) -> Var:
    """`b` to divide by. Where the result of `n` may be thrown away, zeros of `b` are replaced by `SMALLEST`.

    x / b is then still infinite where x is not zero, and zero instead of undefined where it is.
    """
    if b.value.const is None and may_be_dropped(op, n):
        return op.where(op.Equal(b, op.like(0, b)), SMALLEST[b.dtype], b)
    return b


def factor(op: Builder, n: NodeView, v: Var, *, certain: bool = False) -> Var:
    """`v` to multiply by. Where the result of `n` may be thrown away, what is infinite in `v` is made finite.

    And what is undefined becomes zero, so that a zero cotangent stays one. Without `certain`, only where an operand
    of `n` can be infinite or undefined at all. A Clip would do for the numbers, but not for their derivative: its mask
    would be multiplied by the infinite tangent of what it cuts off.
    """
    facts = facts_of(op, n)
    if not facts & DROPPED or not (certain or facts & WILD):
        return v
    top = op.like(LARGEST[v.dtype], v)
    defined = op.where(op.IsNaN(v), 0, v)
    return op.Where(op.Greater(op.Abs(defined), top), op.Mul(op.Sign(defined), top), defined)


def positive(op: Builder, b: Var) -> Var:
    """A divisor that is never negative, safe to divide a zero by."""
    return op.Max(b, op.like(SMALLEST[b.dtype], b))


def may_be_dropped(op: Builder, n: NodeView) -> bool:
    """True where a selection may throw the result of `n` away."""
    return bool(facts_of(op, n) & DROPPED)
