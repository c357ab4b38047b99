"""Scan and Loop.

Forward: one loop, whose states and slices come with their tangents.

Reverse: the loop keeps, per iteration, what the adjoint of its body needs and cannot cheaply compute again; a Scan
sweeps back over that. Cotangents of the states are its states, and so are the sums that captured values receive. The
sweep over a Loop is guarded: a Scan over no iterations is not allowed. Where shapes may differ from iteration to
iteration, what is kept is a sequence, and a Loop sweeps back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value, clone_graph
from onnxad_ir.types import DataType, SequenceType, TensorType, Type, is_floating
from onnxad_rules.activity import activity, reached
from onnxad_rules.kinds import control
from onnxad_rules.loop_view import LoopView, scan_attributes
from onnxad_rules.node import NodeView
from onnxad_rules.recompute import is_replayed, plan, producers, replay, steady
from onnxad_rules.regions import Adjoint, last, push_region, seen, stacked
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.tangent_space import add, at_border, tangent_type, zeros


def _flow(loop: LoopView, sources: Iterable[Value], rules: Ruleset) -> dict[Value, int]:
    """What the values of a body depend on differentiably in one iteration, as bits: of each state, and of `sources`."""
    marks = {v: 1 << k for k, v in enumerate(loop.states)} | dict.fromkeys(sources, 1 << loop.count)
    return reached(loop.region.nodes, marks, rules, loop.op.captures)[0]


def _varied_states(loop: LoopView, flow: Mapping[Value, int], start: Sequence[int], rules: Ruleset) -> list[int]:
    """The states that carry a derivative: those of `start`, and those that come to depend on one or on the sources."""
    varied = sum(1 << k for k in start) | 1 << loop.count
    reads = {k: flow.get(v, 0) for k, v in enumerate(loop.next_states) if rules.crosses(v.type)}
    waiting = [k for k in reads if not varied >> k & 1]
    while True:
        left: list[int] = []
        for k in waiting:
            if reads[k] & varied:
                varied |= 1 << k
            else:
                left.append(k)
        if len(left) == len(waiting):
            return _members(varied, loop.count)
        waiting = left[::-1]  # states that are handed on from one to the next are, mostly, in order, up or down


def _useful_states(
    loop: LoopView, flow: Mapping[Value, int], varied: Iterable[int], cts: Sequence[Var | None]
) -> list[int]:
    """Of the states that carry a derivative those that something with a cotangent comes to depend on."""
    seeded = (v for v, ct in zip(loop.yields, cts[loop.count :], strict=False) if ct is not None)
    found = reduce(or_, (flow.get(v, 0) for v in seeded), sum(1 << k for k in range(loop.count) if cts[k] is not None))
    allowed = sum(1 << k for k in varied)
    found &= allowed
    waiting = found
    while waiting:
        k = waiting.bit_length() - 1
        new = flow.get(loop.next_states[k], 0) & allowed & ~found
        found |= new
        waiting = (waiting ^ 1 << k) | new
    return _members(found, loop.count)


def _members(bits: int, count: int) -> list[int]:
    return [k for k in range(count) if bits >> k & 1]


# --- forward


def _push_loop(op: Builder, n: NodeView, tangents: Mapping[Value, Var]) -> list[Var | None]:
    back = last(op, n.node)
    loop = LoopView(op, n.node)
    region, carried, scanned, after, yields = loop.region, loop.carried, loop.scanned, loop.next_states, loop.yields
    captured = {v: tangents[v] for v in op.captures[n.node] if v in tangents}
    moving = [m for m, v in enumerate(scanned) if v in tangents]
    start = [k for k, v in enumerate(carried) if v in tangents]
    slices = {v: Value("", tangent_type(v.type), region) for v in map(loop.slices.__getitem__, moving)}
    varied = _varied_states(loop, _flow(loop, [*captured, *slices], n.rules), start, n.rules)
    states = {v: Value("", tangent_type(v.type), region) for v in map(loop.states.__getitem__, varied)}

    seeds = {**captured, **{v: op.var(t) for v, t in (states | slices).items()}}
    inner, ts = push_region(op, region, seeds, n.rules)
    ts = ts[loop.tail :]
    next_tangents = [at_border(inner, ts[k] or zeros(inner, after[k]), after[k]).value for k in varied]
    starts = [carried[k] for k in varied]
    initial = [at_border(op, tangents.get(v) or zeros(op, v), v) for v in starts]

    count, results = loop.count, list(n.node.outputs)
    out: dict[Value, Var] = {}
    finals = loop.add_states(list(states.values()), initial, next_tangents)
    for k, v in zip(varied, finals, strict=True):
        v.type = tangent_type(results[k].type)
        out[results[k]] = op.var(v)
    loop.add_slices(list(slices.values()), [at_border(op, tangents[scanned[m]], scanned[m]) for m in moving], moving)
    for i in range(len(yields)):
        t, r = ts[count + i], results[count + i]
        if t is not None and n.rules.crosses(r.type):
            out[r] = op.var(loop.add_stack(at_border(inner, t, yields[i]).value, tangent_type(r.type), i))
    op.captures.forget(n.node)
    back()
    return [out.get(v) for v in n.node.outputs]


# --- reverse


@dataclass
class _Scanned:
    """What the sweep back reads: an operand, how the loop read or stacked it, and the slice inside."""

    operand: Value
    axis: int
    direction: int
    slice: Value

    @property
    def is_sequence(self) -> bool:
        """True for one element of a sequence per iteration."""
        return isinstance(self.operand.type, SequenceType)


@control("Loop", forward=_push_loop)
@control("Scan", forward=_push_loop)
def _pull_loop(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Iterable[Value]) -> list[tuple[Value, Var]]:
    wanted = set(wanted)
    loop = LoopView(op, n.node)
    cts = [*cts, *[None] * (len(n.node.outputs) - len(cts))]
    states, after, slices, yields = loop.states, loop.next_states, loop.slices, loop.yields
    carried, scanned, finals = loop.carried, loop.scanned, loop.finals
    captured = [v for v in op.captures[n.node] if v in wanted]
    moving = [m for m, v in enumerate(scanned) if v in wanted]
    sources = [*captured, *(slices[m] for m in moving)]
    flow = _flow(loop, sources, n.rules)
    varied = _varied_states(loop, flow, [k for k, v in enumerate(carried) if v in wanted], n.rules)
    seeded = [i for i, ct in enumerate(cts[loop.count :]) if ct is not None]
    through = _useful_states(loop, flow, varied, cts)
    sources += [states[k] for k in varied]
    sinks = [*(yields[i] for i in seeded), *(after[k] for k in through)]
    active = activity(loop.region, sources, sinks, n.rules, op.captures)

    a = Adjoint(op, loop.region, n.rules)
    for k in through:
        a.seed(after[k], op.var(a.input(tangent_type(after[k].type))))
    scans: list[_Scanned] = []
    for i in seeded:
        ct = cts[loop.count + i]
        if yields[i] in active and ct is not None:
            v = a.input(tangent_type(yields[i].type))
            scans.append(_Scanned(at_border(op, ct, yields[i]).value, loop.out_axes[i], loop.out_directions[i], v))
            a.seed(yields[i], op.var(v))
    a.sweep(active)

    outputs = [at_border(a.op, a.total(states[k]) or zeros(a.op, states[k]), states[k]) for k in through]
    initial = [at_border(op, cts[k] or zeros(op, finals[k]), states[k]) for k in through]
    targets = [(v, c) for v in captured if (c := a.total(v)) is not None]
    sums: list[Value] = []
    for v, c in targets:
        c, start = at_border(a.op, c, v), zeros(op, v)
        if _without_rank(v):  # the sum is flat: a Scan has to know the rank of a state
            c, start = a.op.Reshape(c, [-1]), op.Reshape(start, [-1])
        sums.append(a.input(start.type if _without_rank(v) else tangent_type(v.type)))
        outputs.append(add(a.op, a.op.var(sums[-1]), c))
        initial.append(start)
    moved = [(m, at_border(a.op, c, slices[m])) for m in moving if (c := a.total(slices[m])) is not None]
    if not (through or targets or moved):
        a.graph.detach()
        return []
    moved = [(m, a.op.Reshape(c, [-1]) if _without_rank(scanned[m]) else c) for m, c in moved]
    a.graph.set_outputs([v.value for v in (*outputs, *(c for _, c in moved))])
    a.prune()
    _provide(loop, a, scans)
    a.hoist()

    if not scans:
        scans.append(_anything(loop, a))
    ahead = a.graph.inputs[: len(through)]
    a.graph.set_inputs([*ahead, *sums, *(s.slice for s in scans)])
    # a state may have had another shape at the start than at the end
    types = [tangent_type(carried[k].type) for k in through] + [v.type for v in initial[len(through) :]]
    results = _sweep_back(op, loop, a.graph, initial, types, scans, [m for m, _ in moved])
    received: list[tuple[Value, Var]] = []
    for k, ct in zip(through, results, strict=False):
        if carried[k] in wanted:
            received.append((carried[k], ct))
    rest = results[len(through) :]
    for (v, _), ct in zip(targets, rest, strict=False):
        received.append((v, op.reshape_like(ct, op.var(v)) if _without_rank(v) else ct))
    for (m, _), ct in zip(moved, rest[len(targets) :], strict=True):
        v = scanned[m]
        received.append((v, _unflattened(op, ct, op.var(v), loop.in_axes[m]) if _without_rank(v) else ct))
    return received


def _unflattened(op: Builder, ct: Var, like: Var, axis: int) -> Var:
    """The cotangent of a scanned operand of unknown rank, from those of its slices, flat and stacked: [T, N]."""
    steps, shape = op.extent(ct, 0), op.Shape(like)
    if axis > 0:
        rank, parts = axis + 2, [steps, op.Slice(shape, [0], [axis]), op.const([-1])]
        perm = (*range(1, axis + 1), 0, axis + 1)
    elif axis < 0:
        rank, parts = 1 - axis, [steps, op.const([-1])]
        parts += [op.Slice(shape, [axis + 1], [2**62])] if axis < -1 else []
        perm = (1, 0, *range(2, rank))
    if axis:
        ct = op.Reshape(ct, op.Concat(*parts, axis=0))
        ct.value.type = TensorType(ct.dtype, tuple(op.model.fresh_dim() for _ in range(rank)))
        ct = op.Transpose(ct, perm=perm)
    return op.reshape_like(ct, like)


def _without_rank(v: Value) -> bool:
    """True for a tensor of unknown rank."""
    return isinstance(v.type, TensorType) and v.rank is None


def _provide(loop: LoopView, a: Adjoint, scans: list[_Scanned]) -> None:
    """Give the adjoint what it reads of the primal body: scanned again, stacked by the loop, or computed again."""
    a.move_shapes()
    a.move_sequences()
    if is_replayed(loop.node):
        had = {*loop.region.inputs}
        replay(a, producers(loop.region, set(a.residuals()) - had, had, loop.op.captures))
    _run_up_to(loop, a)
    slices, yields = loop.slices, loop.yields
    again = dict(zip(slices, zip(loop.scanned, loop.in_axes, loop.in_directions, strict=True), strict=True))
    for v, stack in zip(yields, zip(loop.stacks, loop.out_axes, loop.out_directions, strict=True), strict=True):
        again.setdefault(v, stack)
    if loop.is_scan:  # it stacks what has the same shape in every iteration
        had = {*loop.region.inputs}
        odd = {v for v in a.residuals() if v not in again and v not in had and not _uniform(loop, v)}
        if any(v.rank is not None for v in odd):
            same = steady(loop.region)
            odd = {v for v in odd if v.rank is None or v not in same}
        replay(a, producers(loop.region, odd, had, loop.op.captures))
    taped, computed = plan(loop.region, a.residuals(), set(again), loop.op.captures)
    for v in taped:
        again[v] = (loop.add_stack(v) if loop.is_scan or _uniform(loop, v) else _keep_in_sequence(loop, v), 0, 0)
    replay(a, computed)
    for v in a.residuals():
        operand, axis, direction = again[v]
        s = _Scanned(operand, axis, direction, a.input(v.type))
        scans.append(s)
        a.retarget(v, s.slice)


def _run_up_to(loop: LoopView, a: Adjoint) -> None:
    """Have sequences of the body in the adjoint: run the loop again from its start to the iteration in question.

    There are no sequences of sequences to keep them in, so this takes time that grows with the square of the number
    of iterations; only loops that carry sequences, and whose adjoint needs them whole, pay for it.
    """
    needed = {v for v in a.residuals() if not isinstance(v.type, TensorType)}
    if not needed:
        return
    states = loop.states
    replay(a, producers(loop.region, needed - set(states), set(states), loop.op.captures))
    again = [v for v in a.residuals() if not isinstance(v.type, TensorType)]
    if not again:
        return
    body = clone_graph(loop.region)
    body.set_outputs(body.outputs[: loop.tail + loop.count])
    trips = a.op.var(loop.region.inputs[0])
    node = Node("Loop", [trips.value, None, *loop.carried], {"body": body}, ("",) * loop.count, name=a.op.label)
    node.graph = a.graph
    for v, final in zip(node.outputs, loop.finals, strict=True):
        v.type = final.type
    a.graph.nodes.insert(0, node)
    for v in again:
        a.retarget(v, node.outputs[states.index(v)])


def _uniform(loop: LoopView, v: Value) -> bool:
    """True where a value of the body has the same shape in every iteration."""
    return isinstance(v.type, TensorType) and v.shape is not None and all(seen(loop.op, d) for d in v.shape)


def _keep_in_sequence(loop: LoopView, v: Value) -> Value:
    """A sequence of the values of all iterations, for a Loop."""
    assert isinstance(v.type, TensorType)
    t = SequenceType(TensorType(v.type.dtype, None))
    inner = loop.op.inside(loop.region)
    before = Value("", t, loop.region)
    longer = inner.SequenceInsert(inner.var(before), inner.var(v))
    home = loop.node.graph
    assert home is not None
    # at the start of the graph: the place of the loop itself may be long past
    empty = Node("SequenceEmpty", (), {"dtype": int(v.type.dtype)}, graph=home)
    empty.outputs[0].type = t
    home.nodes.insert(0, empty)
    (final,) = loop.add_states([before], [loop.op.var(empty.outputs[0])], [longer.value])
    final.type = t
    return final


def _anything(loop: LoopView, a: Adjoint) -> _Scanned:
    """Something to scan for the number of iterations alone."""
    if loop.is_scan:
        return _Scanned(loop.scanned[0], loop.in_axes[0], loop.in_directions[0], a.input(loop.slices[0].type))
    counter = loop.region.inputs[0]
    return _Scanned(loop.add_stack(counter), 0, 0, a.input(counter.type))


def _sweep_back(
    op: Builder,
    loop: LoopView,
    body: Graph,
    initial: Sequence[Var],
    types: Sequence[Type | None],
    scans: Sequence[_Scanned],
    moved: Sequence[int],
) -> list[Var]:
    """The Scan that runs `body` from the last iteration to the first."""
    scanned = loop.scanned
    attributes = {
        "body": body,
        "num_scan_inputs": len(scans),
        **scan_attributes(
            tuple(s.axis for s in scans),
            tuple(1 - s.direction for s in scans),
            tuple(0 if _without_rank(scanned[m]) else loop.in_axes[m] for m in moved),
            tuple(1 - loop.in_directions[m] for m in moved),
        ),
    }
    if not _can_scan(loop, body, initial, scans):
        return _sweep_back_in_loop(op, loop, body, initial, types, scans, moved)
    types = list(types)
    for m in moved:
        v = scanned[m]
        flat = TensorType(body.outputs[len(types)].dtype, (op.model.fresh_dim(), op.model.fresh_dim()))
        types.append(flat if _without_rank(v) else tangent_type(v.type))
    operands = [*(v.value for v in initial), *(s.operand for s in scans)]
    sweep = Node("Scan", operands, attributes, ("",) * len(types), name=op.label)
    if loop.runs_at_least_once():
        return [op.var(v) for v in op.place_typed(sweep, types)]
    trips = op.Shape(op.var(scans[0].operand), start=0, end=1)
    some, none = op.region("iterations"), op.region("no_iterations")
    some.graph.set_outputs(some.place_typed(sweep, types))
    none.graph.set_outputs([v.value for v in initial])
    guard = Node(
        "If",
        (op.Greater(op.scalar(trips), 0).value,),
        {"then_branch": some.graph, "else_branch": none.graph},
        ("",) * len(types),
        name=op.label,
    )
    return [op.var(v) for v in op.place_typed(guard, types)]


def _can_scan(loop: LoopView, body: Graph, initial: Sequence[Var], scans: Sequence[_Scanned]) -> bool:
    """True where a Scan can sweep back: its states are tensors that keep a shape, and every rank is known."""
    carried = (*(v.value for v in initial), *body.outputs)
    if loop.is_scan:
        return all(isinstance(v.type, TensorType) for v in carried)
    kept = all(isinstance(v.type, TensorType) and v.rank is not None for v in carried)
    steady = all(_uniform(loop, v) for v in loop.states if is_floating(v.type))
    return kept and steady and all(isinstance(s.operand.type, TensorType) and s.slice.rank is not None for s in scans)


def _sweep_back_in_loop(
    op: Builder,
    loop: LoopView,
    body: Graph,
    initial: Sequence[Var],
    types: Sequence[Type | None],
    scans: Sequence[_Scanned],
    moved: Sequence[int],
) -> list[Var]:
    """The same sweep by a Loop that reads what it needs of each iteration by its number."""
    first = op.var(scans[0].operand)
    if scans[0].is_sequence:
        trips = op.SequenceLength(first)
    else:
        trips = op.scalar(op.extent(first, scans[0].axis))
    counter = Value("", TensorType(DataType.INT64, ()), body)
    go = Value("", TensorType(DataType.BOOL, ()), body)
    read = op.inside(body)
    read.nodes = []
    forwards = read.var(counter)
    backwards = read.var(op.Sub(trips, 1)) - forwards
    for s in scans:
        at = forwards if s.direction else backwards
        operand = read.var(s.operand)
        v = read.SequenceAt(operand, at) if s.is_sequence else read.Gather(operand, at, axis=s.axis)
        s.slice.replace_by(v.value)
    body.nodes[:0] = read.nodes
    body.set_inputs([counter, go, *body.inputs[: len(initial)]])
    stacks = body.outputs[len(initial) :]
    body.set_outputs([go, *body.outputs])
    length = loop.length()
    types = [*types, *(stacked(v.type, length, op) for v in stacks)]
    node = Node("Loop", [trips.value, None, *(v.value for v in initial)], {"body": body}, ("",) * len(types))
    node.name = op.label
    results = [op.var(v) for v in op.place_typed(node, types)]
    scanned = loop.scanned
    for i, m in enumerate(moved, len(initial)):
        results[i] = _as_scanned(op, results[i], loop.in_axes[m], loop.in_directions[m], scanned[m])
    return results


def _as_scanned(op: Builder, stack: Var, axis: int, direction: int, like: Value) -> Var:
    """What a sweep back stacked along axis 0, along the axis and in the direction in which the loop reads."""
    if not direction:
        stack = op.Slice(stack, [-1], [-(2**63)], [0], [-1])
    if like.rank is None or axis % like.rank == 0:
        return stack
    perm = list(range(1, like.rank))
    perm.insert(axis % like.rank, 0)
    return op.Transpose(stack, perm=perm)
