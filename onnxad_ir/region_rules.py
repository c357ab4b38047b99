"""Type inference of operators with regions.

A loop's state has the types that hold in every iteration: the operand's, with each extent that the body changes made
unknown. They are found by inferring the body until nothing changes. What a loop had to widen is remembered
(`Inference.memory`), so that a nest of loops costs one more inference of a body per extent that is widened anywhere,
not one per level of the nest. While types may still change, nothing but inference looks at a body; what else a pass
does with regions (folding, say) happens once, at the end.

A symbol that a body introduces means another extent in every iteration: outside of the region it is a fresh one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxad_ir import dims
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.infer import Inference, Types, infer_shapes, known
from onnxad_ir.types import (
    DataType,
    Dim,
    OptionalType,
    SequenceType,
    Shape,
    TensorType,
    Type,
    is_made_after,
    map_tensors,
)

#: Where a type was widened: axes (numbers) or "rank", below "elem" for what a sequence or optional holds.
Path = tuple[int | str, ...]


def merge_types(a: Type | None, b: Type | None, ctx: Inference) -> Type | None:
    """What is true of a value that has type `a` or type `b`: extents that differ become a fresh symbol."""
    if a is None or b is None:
        return _without_shape(b if a is None else a)
    if a == b:
        return a
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return TensorType(a.dtype, _merge_shapes(a.shape, b.shape, ctx))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(merge_types(a.elem, b.elem, ctx))
    if isinstance(a, OptionalType) or isinstance(b, OptionalType):  # what one of them holds may be held by the other
        return OptionalType(merge_types(content(a), content(b), ctx))
    return a


def content(t: Type | None) -> Type | None:
    """What a value of type `t` holds where that is optional, else `t` itself."""
    return t.elem if isinstance(t, OptionalType) else t


def _without_shape(t: Type | None) -> Type | None:
    return map_tensors(t, lambda t: TensorType(t.dtype))


def _merge_shapes(a: Shape | None, b: Shape | None, ctx: Inference) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    merged: list[Dim] = [x if x == y else ctx.fresh() for x, y in zip(a, b, strict=True)]
    return tuple(merged)


@infer_shapes("If")
def _if(ctx: Inference, n: Node) -> Types:
    branches: list[Graph] = [n.attributes["then_branch"], n.attributes["else_branch"]]
    for g in branches:
        ctx.region(g)
    a, b = (g.outputs for g in branches)
    return tuple(merge_types(x.type, y.type, ctx) for x, y in zip(a, b, strict=True))


@infer_shapes("Loop")
def _loop(ctx: Inference, n: Node) -> Types:
    body: Graph = n.attributes["body"]
    before = ctx.model.symbols
    counter, flag = TensorType(DataType.INT64, ()), TensorType(DataType.BOOL, ())
    initial = [None if v is None else v.type for v in n.inputs[2:]]
    states = _settle(ctx, n, body, [counter, flag], initial, [], first_output=1)
    trips = trip_count(n)
    length = ctx.fresh() if trips is None else trips
    export = _Export(ctx, before)
    scanned = [export.stacked(v.type, 0, length) for v in body.outputs[1 + len(states) :]]
    finals = [_as_yielded(t, v.type) for t, v in zip(states, body.outputs[1:], strict=False)]
    return (*(export.fresh(t) for t in finals), *scanned)


def _as_yielded(state: Type | None, out: Type | None) -> Type | None:
    """The type of a final state: an optional where the body yields one, although it may be handed what that holds, and
    the other way round."""
    if out is None or isinstance(state, OptionalType) == isinstance(out, OptionalType):
        return state
    return OptionalType(state) if isinstance(out, OptionalType) else content(state)


def trip_count(n: Node) -> Dim | None:
    """How often the body of a Loop runs, where a number or a symbol tells it."""
    limit = n.inputs[0] if n.inputs else None
    trips = known(limit)
    if trips is None or len(trips) != 1 or not runs_on(n):
        return None
    d = trips[0]
    if isinstance(d, int):
        return max(d, 0)
    return None if isinstance(d, dims.Expr) else d  # N - 1 may be negative; N is an extent


def runs_on(n: Node) -> bool:
    """True where the condition of a Loop is known to stay true."""
    body: Graph = n.attributes["body"]
    start = n.inputs[1] if len(n.inputs) > 1 else None
    if start is not None and not _is_true(start):
        return False
    again = body.outputs[0]
    while (p := again.producer) is not None and p.op_type == "Identity" and p.graph is body and p.inputs[0] is not None:
        again = p.inputs[0]
    return again is body.inputs[1] or _is_true(again)


def _is_true(v: Value) -> bool:
    return v.const is not None and bool(v.const.numpy().reshape(-1)[0])


def scan_axes(n: Node) -> tuple[list[int], list[int]]:
    """The scan axes of a Scan's scan inputs and outputs, as written (they may be negative)."""
    body: Graph = n.attributes["body"]
    scanned = n.attributes["num_scan_inputs"]
    stacked = len(body.outputs) - (len(n.inputs) - scanned)
    ins = n.attributes.get("scan_input_axes") or (0,) * scanned
    outs = n.attributes.get("scan_output_axes") or (0,) * stacked
    return list(ins), list(outs)


@infer_shapes("Scan")
def _scan(ctx: Inference, n: Node) -> Types:
    body: Graph = n.attributes["body"]
    before = ctx.model.symbols
    carried = len(n.inputs) - n.attributes["num_scan_inputs"]
    axes, out_axes = scan_axes(n)
    length: Dim | None = None
    slices: list[Type | None] = []
    for v, axis in zip(n.inputs[carried:], axes, strict=True):
        t = None if v is None else v.type
        if not isinstance(t, TensorType) or not t.shape:
            slices.append(_without_shape(t))
            continue
        axis %= len(t.shape)
        slices.append(TensorType(t.dtype, t.shape[:axis] + t.shape[axis + 1 :]))
        if length is None or isinstance(t.shape[axis], int):
            length = t.shape[axis]
    initial = [None if v is None else v.type for v in n.inputs[:carried]]
    initial = [_of_any_step(ctx, t, v.type) for t, v in zip(initial, body.outputs, strict=False)]
    states = _settle(ctx, n, body, [], initial, slices)
    if length is None:
        length = ctx.fresh()
    export = _Export(ctx, before)
    scanned = [export.stacked(v.type, axis, length) for v, axis in zip(body.outputs[carried:], out_axes, strict=True)]
    return (*(export.fresh(t) for t in states), *scanned)


def _of_any_step(ctx: Inference, initial: Type | None, after: Type | None) -> Type | None:
    """The type of a state of a Scan, which has one shape in all steps: what is declared of the next one holds."""
    if not isinstance(initial, TensorType) or initial.shape is not None:
        return initial
    if not isinstance(after, TensorType) or after.shape is None:
        return initial
    return TensorType(initial.dtype, tuple(d if isinstance(d, int) else ctx.fresh() for d in after.shape))


@infer_shapes("SequenceMap")
def _sequence_map(ctx: Inference, n: Node) -> Types:
    body: Graph = n.attributes["body"]
    before = ctx.model.symbols
    types = [None if v is None else v.type for v in n.inputs]
    elements = [element(ctx, t) if isinstance(t, SequenceType) else t for t in types]
    _settle(ctx, n, body, elements, [], [])
    export = _Export(ctx, before)
    return tuple(SequenceType(export.fresh(v.type)) for v in body.outputs)


def element(ctx: Inference, sequence: SequenceType) -> Type | None:
    """The type of one element of a sequence: a symbol is another extent in every element, even where it has a name."""
    t = sequence.elem
    if not isinstance(t, TensorType) or t.shape is None:
        return t
    return TensorType(t.dtype, tuple(ctx.fresh() if isinstance(d, str) else d for d in t.shape))


# --- bodies that run more than once


@dataclass
class _Memory:
    """What inference knows about a loop from earlier visits."""

    #: Every value inside the body, at any depth, with the type its author declared.
    declared: list[tuple[Value, Type | None]]
    #: Where the type of each state had to be widened.
    widened: list[set[Path]] = field(default_factory=list)


def _settle(
    ctx: Inference,
    node: Node,
    body: Graph,
    leading: list[TensorType] | list[Type | None],
    initial: list[Type | None],
    trailing: list[Type | None],
    first_output: int = 0,
) -> list[Type | None]:
    """Infer a body whose inputs are leading, state and trailing values; return the types of the states in it."""
    memory: _Memory | None = ctx.memory.get(node)
    if memory is None:
        memory = ctx.memory[node] = _Memory(_declared(body), [set() for _ in initial])
    region, ctx.region = ctx.region, ctx.graph
    try:
        settled = False
        while not settled:
            _reset(ctx, memory)
            at = len(leading)
            starts = map(_declared_where_unknown, initial, body.inputs[at:])
            states = [_widen(ctx, t, w) for t, w in zip(starts, memory.widened, strict=True)]
            slices = map(_declared_where_unknown, trailing, body.inputs[at + len(states) :])
            for v, t in zip(body.inputs, (*leading, *states, *slices), strict=True):
                v.type = t if t is not None else v.type
                v.content = None  # a counter starts at a known number, but does not stay there
            ctx.graph(body)
            settled = True
            results = body.outputs[first_output : first_output + len(states)]
            for state, out, widened in zip(states, results, memory.widened, strict=True):
                new = set(_differences(state, out.type)) - widened
                if new:
                    widened |= new
                    settled = False
    finally:
        ctx.region = region
    if region != ctx.graph:
        region(body)
    return states


def _declared_where_unknown(t: Type | None, v: Value) -> Type | None:
    """`t`, or what the author declared of `v` where `t` tells no rank."""
    known = t is not None and not (isinstance(t, TensorType) and t.shape is None)
    return t if known or v.type is None else v.type


def _declared(body: Graph) -> list[tuple[Value, Type | None]]:
    found = [(v, v.type) for v in body.inputs]
    for n in body.walk():
        found += [(v, v.type) for v in n.outputs]
        for g in n.regions:
            found += [(v, v.type) for v in g.inputs]
    return found


def _reset(ctx: Inference, memory: _Memory) -> None:
    """Forget what was inferred. A declared symbol becomes a fresh one: it says which extents inside are equal."""
    fresh: dict[str, Dim] = {}
    for v, t in memory.declared:
        v.type = _renamed(ctx, t, fresh)
        v.content = None


def _renamed(ctx: Inference, t: Type | None, fresh: dict[str, Dim]) -> Type | None:
    def renamed(d: Dim) -> Dim:
        if isinstance(d, str) and d not in fresh:
            fresh[d] = ctx.fresh()
        return fresh[d] if isinstance(d, str) else d

    return map_tensors(t, lambda t: TensorType(t.dtype, None if t.shape is None else tuple(map(renamed, t.shape))))


def _widen(ctx: Inference, t: Type | None, widened: set[Path], at: Path = ()) -> Type | None:
    if not widened:
        return t
    if isinstance(t, TensorType):
        if (*at, "rank") in widened or t.shape is None:
            return TensorType(t.dtype)
        return TensorType(t.dtype, tuple(ctx.fresh() if (*at, i) in widened else d for i, d in enumerate(t.shape)))
    if isinstance(t, SequenceType | OptionalType):
        return type(t)(_widen(ctx, t.elem, widened, (*at, "elem")))
    return t


def _differences(a: Type | None, b: Type | None, at: Path = ()) -> list[Path]:
    """Where a value of type `b` is not of type `a`; where only one of them is optional, in what that holds."""
    if isinstance(a, OptionalType):
        return _differences(a.elem, content(b), (*at, "elem"))
    b = content(b)
    if isinstance(a, SequenceType):
        return _differences(a.elem, b.elem if isinstance(b, SequenceType) else None, (*at, "elem"))
    if not isinstance(a, TensorType) or a.shape is None:
        return []
    s = b.shape if isinstance(b, TensorType) else None
    if s is None or len(s) != len(a.shape):
        return [(*at, "rank")]
    return [(*at, i) for i, (x, y) in enumerate(zip(a.shape, s, strict=True)) if x != y]


class _Export:
    """Types as the outside of a region sees them: symbols made since `before` are replaced."""

    def __init__(self, ctx: Inference, before: int):
        self.ctx = ctx
        self.before = before
        self.seen: dict[str, Dim] = {}

    def fresh(self, t: Type | None) -> Type | None:
        """`t` with a fresh symbol for every local extent."""
        return self._outside(t, {})

    def stacked(self, t: Type | None, axis: int, length: Dim) -> Type | None:
        """The type of what every iteration yields, stacked. Its extents are the same in all iterations."""
        if not isinstance(t, TensorType) or t.shape is None:
            return t
        outer = self._outside(t, self.seen)
        assert isinstance(outer, TensorType) and outer.shape is not None
        axis %= len(t.shape) + 1
        return TensorType(t.dtype, (*outer.shape[:axis], length, *outer.shape[axis:]))

    def _outside(self, t: Type | None, seen: dict[str, Dim]) -> Type | None:
        def outside(d: Dim) -> Dim:
            if isinstance(d, int) or not any(is_made_after(a, self.before) for m in dims.terms(d) for a in m):
                return d
            if d not in seen:
                seen[d] = self.ctx.fresh()
            return seen[d]

        return map_tensors(t, lambda t: TensorType(t.dtype, None if t.shape is None else tuple(map(outside, t.shape))))
