"""What surrounds every node of a program: infinite slopes, undefined numbers, and selections that drop them.

Each fact is reachability along the values of a program, through the operators that pass it on. It crosses the borders
of If, Loop and Scan both ways, from iteration to iteration as well, and calls of local functions. A value is reached at
most once for each fact, so that a survey takes time linear in the program, however its loops are nested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from onnxad_ir.core import FunctionKey, Graph, Node, Value
from onnxad_ir.region_rules import trip_count
from onnxad_ir.traverse import crossings, is_control

#: What a survey finds out about a node; see `Survey`.
DROPPED, STEEP, WILD = 1, 2, 4
#: What an operator or a call of a local function is to the nodes around it: it may drop an operand; it lets an infinity
#: through; it keeps a zero zero; its slope may be infinite, as seen from an operand and from a result; a result may be
#: infinite or undefined.
SELECTS, CARRIES, KEEPS_ZERO, STEEP_START, STEEP_END, WILD_END = (1 << i for i in range(6))

#: What calls of local functions are to the nodes around them, by domain, name and overload.
Calls: TypeAlias = Mapping[FunctionKey, int]

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
#: Operators whose slope is infinite somewhere; of Div and Pow it depends on the second operand.
_STEEP = frozenset(["Sqrt", "Log", "Reciprocal", "Acos", "Asin", "Acosh", "Atanh", "ReduceLogSum"])


def _effects_by_operator() -> dict[str, int]:
    steep = STEEP_START | STEEP_END | WILD_END
    table = [
        (_SELECT, SELECTS),
        (_KEEP_INFINITY, CARRIES),
        (_KEEP_ZERO, KEEPS_ZERO),
        (_WILD, WILD_END),
        (_STEEP, steep),
    ]
    found: dict[str, int] = {}
    for operators, effect in table:
        for op in operators:
            found[op] = found.get(op, 0) | effect
    return found


_EFFECTS = _effects_by_operator()


def _effects(n: Node) -> int:
    found = _EFFECTS.get(n.op_type, 0)
    if n.op_type in ("Div", "Pow"):
        by = n.inputs[1]
        if by is None or by.const is None or (n.op_type == "Pow" and bool((by.const.numpy() < 1).any())):
            found |= STEEP_START | STEEP_END | WILD_END
    return found


class Survey:
    """Facts about the nodes of a program and of the regions inside, found when they are first asked for.

    DROPPED: a selection may throw the results away, behind operators that let an infinity through; so may a branch that
    is not taken, and a loop that does not run, with what they read from outside. STEEP: an operator of infinite slope
    lies before or behind, and what lies between keeps a zero zero. WILD: an operand may be infinite or undefined. The
    nodes of a decomposition, or of a function, have besides what the node they stand for has (`around`). `calls`: what
    functions are to the nodes around their calls.
    """

    def __init__(self, nodes: Sequence[Node], around: int = 0, calls: Calls | None = None):
        self.around = around
        self.calls: Calls = calls or {}
        self._nodes = nodes
        self._found: _Program | None = None

    @property
    def _program(self) -> _Program:
        if self._found is None:
            self._found = _Program(self._nodes, self.calls)
        return self._found

    def of(self, node: Node) -> int:
        """The facts about a node; of one that is not in the program, those around it."""
        return self._program.facts.get(node, 0) | self.around

    def angle(self, node: Node) -> Node | None:
        """Of a Div that nothing in the program but an Atan beside it reads, the Atan; of that, the Div."""
        return self._program.angles.get(node)

    def inside(self, region: Graph, nodes: Sequence[Node]) -> Survey:
        """The survey of the nodes of a region of a node of the program; what is new there has the facts of that node.

        For the regions of If, Loop and Scan it is this one, and has to be asked for before they are changed.
        """
        owner = region.parent
        inner = Survey(nodes, self.around if owner is None else self.of(owner), self.calls)
        if region in self._program.reads:
            inner._found = self._program
        return inner

    def effects(self, body: Graph) -> int:
        """What a call of a function is to the nodes around it; this is the survey of its body."""
        return self._program.effects(body)


class _Program:
    """The values of a program by what is known of them, and the facts about its nodes at any depth."""

    def __init__(self, nodes: Sequence[Node], calls: Calls):
        self.nodes = nodes
        self.calls = calls
        self.facts: dict[Node, int] = {}
        #: The regions of the program, with what each reads from outside.
        self.reads: dict[Graph, set[Value]] = {}
        #: What each operator is to those around it.
        self._is: dict[Node, int] = {}
        #: What a value becomes across borders, and what it was.
        self._after: dict[Value, list[Value]] = {}
        self._before: dict[Value, list[Value]] = {}
        #: See `Survey.angle`. What a derivative adds reads the quotient at most, and is not counted.
        self.angles: dict[Node, Node] = {}
        tangents: list[Node] = []
        selected: list[Value] = []
        steep_start: list[Value] = []
        steep_end: list[Value] = []
        wild_end: list[Value] = []
        for n in self._walk():
            self.facts[n] = 0
            self._is[n] = effects = self._effects_of(n)
            if n.key == ("", "Atan"):
                tangents.append(n)
            if effects & (SELECTS | STEEP_START):
                operands = [v for v in n.inputs if v is not None]
                if effects & SELECTS:
                    selected += operands
                if effects & STEEP_START:
                    steep_start += operands
            if effects & STEEP_END:
                steep_end += n.outputs
            if effects & WILD_END:
                wild_end += n.outputs
        for n in tangents:
            self._find_angle(n)
        for g in self.reads:
            selected += self._may_be_unread(g)
        self._dropped = self._backward(selected, CARRIES)
        self._steep_behind = self._backward(steep_start, KEEPS_ZERO)
        self._steep_before = self._forward(steep_end, KEEPS_ZERO)
        self._wild = self._forward(wild_end, CARRIES)
        for fact, values in ((DROPPED, self._dropped), (STEEP, self._steep_behind)):
            for v in values:
                self._mark(v.producer, fact)
        for fact, values in ((STEEP, self._steep_before), (WILD, self._wild)):
            for v in values:
                for u in v.users:
                    self._mark(u, fact)

    def _find_angle(self, atan: Node) -> None:
        q = atan.inputs[0]
        div = q.producer if q is not None else None
        if q is None or div is None or div.key != ("", "Div") or div not in self.facts or div.graph is not atan.graph:
            return
        if all(u is atan or (isinstance(u, Node) and u not in self.facts) for u in q.users):
            self.angles |= {div: atan, atan: div}

    def _mark(self, node: Node | Graph | None, fact: int) -> None:
        if isinstance(node, Node) and node in self.facts:
            self.facts[node] |= fact

    def _effects_of(self, n: Node) -> int:
        if self.calls and (known := self.calls.get(n.callee)) is not None:
            return known
        return _effects(n)

    def _walk(self) -> Iterator[Node]:
        """Every node, at any depth; notes what crosses the borders of the regions."""
        stack: list[tuple[Iterable[Node], Graph | None]] = [(self.nodes, None)]
        while stack:
            nodes, inside = stack.pop()
            for n in nodes:
                yield n
                if inside is not None:
                    self._read(inside, n.inputs)
                if not is_control(n):
                    continue
                for source, target in crossings(n):
                    self._after.setdefault(source, []).append(target)
                    self._before.setdefault(target, []).append(source)
                for g in n.regions:
                    self.reads[g] = set()
                    self._read(g, g.outputs)
                    stack.append((g.nodes, g))

    def _read(self, region: Graph, values: Iterable[Value | None]) -> None:
        for v in values:
            g: Graph | None = region
            while v is not None and g in self.reads and g is not v.graph and v not in self.reads[g]:
                self.reads[g].add(v)
                g = g.enclosing

    def _may_be_unread(self, region: Graph) -> Iterable[Value]:
        """What only this branch of an If reads, or a loop that may run no iteration."""
        n = region.parent
        assert n is not None
        if n.op_type == "If":
            other = n.regions[region is n.regions[0]]
            return self.reads[region] - self.reads[other]
        trips = trip_count(n) if n.op_type == "Loop" else 1
        return () if isinstance(trips, int) and trips > 0 else self.reads[region]

    def _backward(self, seeds: Iterable[Value], through: int) -> set[Value]:
        """`seeds`, and what they are computed from by operators with the effect `through`."""
        reached = set(seeds)
        waiting = list(reached)
        while waiting:
            v = waiting.pop()
            sources: Iterable[Value | None] = self._before.get(v, ())
            p = v.producer
            if p is not None and self._is.get(p, 0) & through:
                sources = p.inputs
            for w in sources:
                if w is not None and w not in reached:
                    reached.add(w)
                    waiting.append(w)
        return reached

    def _forward(self, seeds: Iterable[Value], through: int) -> set[Value]:
        """`seeds`, and what is computed from them by operators with the effect `through`."""
        reached = set(seeds)
        waiting = list(reached)
        while waiting:
            v = waiting.pop()
            found = list(self._after.get(v, ()))
            for u in v.users:
                if isinstance(u, Node) and self._is.get(u, 0) & through:
                    found += u.outputs
            for w in found:
                if w not in reached:
                    reached.add(w)
                    waiting.append(w)
        return reached

    def effects(self, body: Graph) -> int:
        """What a call of the function whose body this is is to the nodes around it."""
        found = 0
        for effect, reached, border in (
            (SELECTS, self._dropped, body.inputs),
            (STEEP_START, self._steep_behind, body.inputs),
            (STEEP_END, self._steep_before, body.outputs),
            (WILD_END, self._wild, body.outputs),
            (CARRIES, self._forward(body.inputs, CARRIES), body.outputs),
            (KEEPS_ZERO, self._forward(body.inputs, KEEPS_ZERO), body.outputs),
        ):
            found |= effect * any(v in reached for v in border)
        return found
