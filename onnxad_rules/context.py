"""What surrounds a node, where that decides how its derivative has to be written.

A derivative that is zero times something infinite is not a number. Two cases of it matter in practice: a
place that an operator cuts off (`gate`), next to an operator whose slope is infinite; and a singular place
(1/0, log 0) whose value is thrown away by a selection further down (`divisor`). Both have a safe spelling
that costs more than the plain one, so it is used where the neighbourhood shows the need: a walk of a few
nodes, never further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_ir.types import DataType
from onnxad_rules.node import NodeView

#: How many nodes a walk looks at.
REACH = 12

_SHAPED = frozenset("Reshape Flatten Squeeze Unsqueeze Transpose Expand Concat Split Slice Gather".split())  # noqa: SIM905
_MOVES = _SHAPED | frozenset(["Identity", "Cast", "Neg", "Abs", "Mul", "ReduceSum", "ReduceMean"])
#: Operators that keep a zero zero (a cut-off place stays recognisable behind them).
_KEEP_ZERO = _MOVES | frozenset(["Relu", "LeakyRelu", "Clip", "Max", "Min", "Where", "Pow", "Div"])
#: Operators that let an infinity through.
_KEEP_INFINITY = _MOVES | frozenset(["Add", "Sub", "Sum", "Div", "Pow", "Sqrt", "Log", "Exp"])
#: Operators that may drop an infinite or undefined operand.
_SELECT = frozenset("Where Max Min Clip IsNaN IsInf Equal ReduceMax ReduceMin TopK Softmax".split())  # noqa: SIM905
#: Operators that may give something infinite or undefined, besides the steep ones.
_WILD = frozenset(["Exp", "Tan", "Sinh", "Cosh", "ReduceProd"])
#: Operators whose slope is infinite somewhere.
_STEEP = frozenset(["Sqrt", "Log", "Reciprocal", "Acos", "Asin", "Acosh", "Atanh", "ReduceLogSum"])

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


def gate(op: Builder, n: NodeView, x: Var, mask: Var) -> Var:
    """`x` where the boolean `mask` holds, else zero.

    A product with the mask as a number, which runtimes do many times faster than Where; but Where next to an
    operator of infinite slope, whose infinite cotangent (or tangent) must not meet a zero of the mask.
    """
    if _reaches(op, n.node, _is_steep, _KEEP_ZERO, down=True) or _reaches(
        op, n.node, _is_steep, _KEEP_ZERO, down=False
    ):
        return op.where(mask, x, 0)
    return op.Mul(x, op.cast_like(mask, x))  # type: ignore[no-any-return]


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

    And what is undefined becomes zero, so that a zero cotangent stays one. Without `certain`, only where
    something upstream of `v` can be infinite or undefined at all.
    """
    if not certain:
        source = v.value.producer
        if source is None:
            return v
        if not _is_wild(source) and not _reaches(op, source, _is_wild, _KEEP_INFINITY, down=False):
            return v
    if not may_be_dropped(op, n):
        return v
    top = LARGEST[v.dtype]
    return op.Clip(op.where(op.IsNaN(v), 0, v), op.like(-top, v), op.like(top, v))  # type: ignore[no-any-return]


def positive(op: Builder, b: Var) -> Var:
    """A divisor that is never negative, safe to divide a zero by."""
    return op.Max(b, op.like(SMALLEST[b.dtype], b))  # type: ignore[no-any-return]


def may_be_dropped(op: Builder, n: NodeView) -> bool:
    """True where a selection nearby may throw the result of `n` away."""
    return _reaches(op, n.node, _is_selection, _KEEP_INFINITY, down=True)


def _is_steep(node: Node) -> bool:
    if node.op_type in ("Div", "Pow"):
        by = node.inputs[1]
        if by is None or by.const is None:
            return True
        return node.op_type == "Pow" and bool((by.const.numpy() < 1).any())
    return node.op_type in _STEEP


def _is_wild(node: Node) -> bool:
    return node.op_type in _WILD or _is_steep(node)


def _is_selection(node: Node) -> bool:
    return node.op_type in _SELECT


def _reaches(
    op: Builder, start: Node, found: Callable[[Node], bool], through: frozenset[str], *, down: bool
) -> bool:
    """True where a node that is `found` lies within a few nodes of `start`, behind operators in `through`
    only.

    Nodes of the derivative that is being written are not looked at.
    """
    own = op.label[: op.label.index("(") + 1] if "(" in op.label else None
    queue, seen = [start], {start}
    for node in queue:
        for other in _users(node) if down else _producers(node):
            if other in seen or (own is not None and other.name.startswith(own)):
                continue
            if found(other):
                return True
            seen.add(other)
            if other.op_type in through and len(queue) < REACH:
                queue.append(other)
        if len(seen) > 4 * REACH:
            break
    return False


def _users(node: Node) -> Iterable[Node]:
    for v in node.outputs:
        for u, _ in zip(v.users, range(REACH), strict=False):
            if isinstance(u, Node):
                yield u


def _producers(node: Node) -> Iterable[Node]:
    values: Iterable[Value | None] = node.inputs
    return (p for v in values if v is not None and (p := v.producer) is not None)
