"""What surrounds a node, where that decides how its derivative has to be written.

A derivative that is zero times something infinite is not a number. Two cases of it matter in practice: a place that an
operator cuts off (`gate`), next to an operator whose slope is infinite; and a singular place (1/0, log 0) whose value
is thrown away by a selection further down (`divisor`, `factor`). Both have a safe spelling that costs more than the
plain one, so it is used only where the graph shows the need: `Survey` finds that in two sweeps over the primal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node
from onnxad_ir.types import DataType
from onnxad_rules.node import NodeView

_SHAPED = frozenset(
    ["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Concat", "Split", "Slice", "Gather"]
)
_MOVES = _SHAPED | frozenset(["Identity", "Cast", "Neg", "Abs", "Mul", "ReduceSum", "ReduceMean"])
#: Operators that keep a zero zero (a cut-off place stays recognisable behind them).
_KEEP_ZERO = _MOVES | frozenset(["Relu", "LeakyRelu", "Clip", "Max", "Min", "Where", "Pow", "Div"])
#: Operators that let an infinity through.
_KEEP_INFINITY = _MOVES | frozenset(["Add", "Sub", "Sum", "Div", "Pow", "Sqrt", "Log", "Exp"])
#: Operators that may drop an infinite or undefined operand.
_SELECT = frozenset(
    ["Where", "Max", "Min", "Clip", "IsNaN", "IsInf", "Equal", "ReduceMax", "ReduceMin", "TopK", "Softmax"]
)
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


#: What a survey finds out about a node; see `Survey`.
DROPPED, STEEP, WILD = 1, 2, 4
#: What an operator or a call of a local function is to the nodes around it: it may drop an operand; it lets an infinity
#: through; it keeps a zero zero; its slope may be infinite, as seen from an operand and from a result; a result may be
#: infinite or undefined.
SELECTS, CARRIES, KEEPS_ZERO, STEEP_START, STEEP_END, WILD_END = (1 << i for i in range(6))

#: What calls of local functions are to the nodes around them, by domain, name and overload.
Calls: TypeAlias = Mapping[tuple[str, str, str], int]


class Survey:
    """Facts about the nodes of a program, found when they are first asked for.

    DROPPED: a selection may throw the results away, behind operators that let an infinity through. STEEP: an operator
    of infinite slope lies before or behind, and what lies between keeps a zero zero. WILD: an operand may be infinite
    or undefined. The nodes of a decomposition, or of a function, have besides what the node they stand for has
    (`around`). `calls`: what functions are to the nodes around their calls.
    """

    def __init__(self, nodes: Sequence[Node], around: int = 0, calls: Calls | None = None):
        self._nodes = nodes
        self.around = around
        self.calls: Calls = calls or {}
        self._facts: dict[Node, int] | None = None

    def of(self, node: Node) -> int:
        """The facts about a node; of one that is not in the program, those around it."""
        return self.facts.get(node, self.around)

    @property
    def facts(self) -> dict[Node, int]:
        """The facts about every node of the program."""
        if self._facts is None:
            self._facts = self._sweep()
        return self._facts

    def _is(self, n: Node, effect: int) -> bool:
        if self.calls and (known := self.calls.get((n.domain, n.op_type, n.overload))) is not None:
            return bool(known & effect)
        return _OPERATORS[effect](n)

    def _sweep(self) -> dict[Node, int]:
        facts = dict.fromkeys(self._nodes, self.around)
        self._steep_behind: set[Node] = set()
        for n in reversed(self._nodes):
            users = {u for v in n.outputs for u in v.users if isinstance(u, Node) and u in facts}
            if any(self._dropped_by(u, facts) for u in users):
                facts[n] |= DROPPED
            if any(self._steep_from(u) for u in users):
                self._steep_behind.add(n)
        self._steep_before: set[Node] = set()
        for n in self._nodes:
            producers = [p for v in n.inputs if v is not None and (p := v.producer) is not None and p in facts]
            if any(self._steep_to(p) for p in producers):
                self._steep_before.add(n)
            if any(self._wild_to(p, facts) for p in producers):
                facts[n] |= WILD
            if n in self._steep_before or n in self._steep_behind:
                facts[n] |= STEEP
        return facts

    def _dropped_by(self, u: Node, facts: dict[Node, int]) -> bool:
        return self._is(u, SELECTS) or (bool(facts[u] & DROPPED) and self._is(u, CARRIES))

    def _steep_from(self, u: Node) -> bool:
        return self._is(u, STEEP_START) or (u in self._steep_behind and self._is(u, KEEPS_ZERO))

    def _steep_to(self, p: Node) -> bool:
        return self._is(p, STEEP_END) or (p in self._steep_before and self._is(p, KEEPS_ZERO))

    def _wild_to(self, p: Node, facts: dict[Node, int]) -> bool:
        return self._is(p, WILD_END) or (bool(facts[p] & WILD) and self._is(p, CARRIES))

    def effects(self, body: Graph) -> int:
        """What a call of a function is to the nodes around it; this is the survey of its body."""
        facts, found = self.facts, 0
        for v in body.inputs:
            for u in v.users:
                if isinstance(u, Node) and u in facts:
                    found |= SELECTS * self._dropped_by(u, facts) | STEEP_START * self._steep_from(u)
        for v in body.outputs:
            p = v.producer
            if p is not None and p in facts:
                found |= STEEP_END * self._steep_to(p) | WILD_END * self._wild_to(p, facts)
        for effect in (CARRIES, KEEPS_ZERO):
            reached = set(body.inputs)
            for n in self._nodes:
                if any(v in reached for v in n.inputs) and self._is(n, effect):
                    reached.update(n.outputs)
            found |= effect * any(v in reached for v in body.outputs)
        return found


def facts_of(op: Builder, n: NodeView) -> int:
    """What the survey of the program that is differentiated says about a node."""
    return op.survey.of(n.node) if isinstance(op.survey, Survey) else 0


def survey_inside(op: Builder, node: Node, body: Sequence[Node]) -> Survey:
    """The survey of a program that stands for `node`."""
    outer = op.survey
    return Survey(body, outer.of(node), outer.calls) if isinstance(outer, Survey) else Survey(body)


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
    of `n` can be infinite or undefined at all.
    """
    facts = facts_of(op, n)
    if not facts & DROPPED or not (certain or facts & WILD):
        return v
    top = LARGEST[v.dtype]
    return op.Clip(op.where(op.IsNaN(v), 0, v), op.like(-top, v), op.like(top, v))


def positive(op: Builder, b: Var) -> Var:
    """A divisor that is never negative, safe to divide a zero by."""
    return op.Max(b, op.like(SMALLEST[b.dtype], b))


def may_be_dropped(op: Builder, n: NodeView) -> bool:
    """True where a selection may throw the result of `n` away."""
    return bool(facts_of(op, n) & DROPPED)


def _is_steep(node: Node) -> bool:
    if node.op_type in ("Div", "Pow"):
        by = node.inputs[1]
        if by is None or by.const is None:
            return True
        return node.op_type == "Pow" and bool((by.const.numpy() < 1).any())
    return node.op_type in _STEEP


def _is_wild(node: Node) -> bool:
    return node.op_type in _WILD or _is_steep(node)


_OPERATORS: dict[int, Callable[[Node], bool]] = {
    SELECTS: lambda n: n.op_type in _SELECT,
    CARRIES: lambda n: n.op_type in _KEEP_INFINITY,
    KEEPS_ZERO: lambda n: n.op_type in _KEEP_ZERO,
    STEEP_START: _is_steep,
    STEEP_END: _is_steep,
    WILD_END: _is_wild,
}
