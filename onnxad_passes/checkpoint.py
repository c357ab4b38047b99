"""Checkpointing: a loop as a loop over blocks of iterations, of which the way back keeps the first state only.

A Scan or Loop of T iterations becomes an outer loop over T / K blocks whose body is the same loop over K iterations,
and a rest. The outer loop is marked: its derivative runs a block again instead of keeping what its iterations
computed. At any time the tape then holds T / K states and what K iterations keep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Function, Graph, Model, Node, Value, clone_graph
from onnxad_ir.diagnostics import UsageError, describe
from onnxad_ir.infer import Inference
from onnxad_ir.inline import substitute
from onnxad_ir.noise import is_random
from onnxad_ir.region_rules import runs_on, trip_count
from onnxad_ir.types import DataType, Dim, TensorType
from onnxad_rules.activity import activity
from onnxad_rules.loop_view import LoopView, scan_attributes
from onnxad_rules.recompute import REPLAY
from onnxad_rules.ruleset import Ruleset, UnsupportedOperator

_END = 2**62


def check_checkpoint(every: str | None) -> int | str | None:
    """An option `checkpoint` as a number of iterations, "auto" or None. Raises UsageError for anything else."""
    if every is None or every == "auto":
        return every
    try:
        number = int(every)
    except ValueError:
        number = 0
    if number < 1:
        raise UsageError(f"checkpoint is a number of iterations or auto, not {every!r}")
    return number


def checkpoint_loops(
    model: Model, sources: Sequence[Value], sinks: Sequence[Value], rules: Ruleset, every: int | str
) -> None:
    """Block every Scan and Loop that is to be differentiated, but for those inside of another one.

    Those of branches, and of local functions that are kept, too. The operators RNN, GRU and LSTM are not loops unless
    `lower-rnn` makes them some.

    every: iterations per block, or "auto": about the square root of their number, which may be known at run time only.
    Raises UnsupportedOperator for a loop that cannot be blocked: one that may end early and stacks results, one whose
    iterations draw random numbers, or a Scan over operands of unknown rank.
    """
    active = activity(model.graph, sources, sinks, rules)
    blocks = _Blocks(every)
    waiting = [n for n in model.graph.nodes if any(v in active for v in n.outputs)]
    blocks.graph(Builder(model, model.graph, []), set(waiting).__contains__)
    seen: set[Function] = set()
    while waiting:
        n = waiting.pop()
        f = model.called(n)
        if f is not None and f not in seen:
            seen.add(f)
            waiting += f.body.walk()
            blocks.graph(Builder(model, f.body, [], inference=Inference(model, f.opset)), lambda _: True)
        for region in n.regions:
            waiting += region.nodes


@dataclass
class _Cut:
    """Iterations in `count` blocks of `size` and a rest, as tensors of shape [1]; `dims`: the same as extents."""

    count: Var
    size: Var
    rest: Var
    blocked: Var
    dims: tuple[Dim, Dim, Dim]

    @property
    def is_static(self) -> bool:
        """True where all of these are known numbers."""
        return all(isinstance(d, int) for d in self.dims)


class _Blocks:
    def __init__(self, every: int | str):
        self.every = every

    def graph(self, op: Builder, chosen: Callable[[Node], bool]) -> None:
        """Rewrite the graph of a builder, whose list of nodes is empty."""
        old, op.graph.nodes = op.graph.nodes, op.nodes
        op.scope.define(*op.graph.inputs)
        for n in old:
            if n.op_type in ("Scan", "Loop") and not n.domain and chosen(n):
                self.loop(op, n)
                continue
            if n.op_type == "If" and not n.domain and chosen(n):
                for region in n.regions:
                    self.graph(op.inside(region, []), lambda _: True)
            op.keep(n)

    def loop(self, op: Builder, node: Node) -> None:
        """Put the blocked form of a loop in its place, or leave one of too few iterations."""
        if (noise := _random(op.model, node.attributes["body"])) is not None:
            raise self.refuse(node, f"{noise.op_type} gives other numbers when it runs again")
        op.label = node.name
        loop = LoopView(op, node)
        trips = loop.length() if loop.is_scan else trip_count(node)
        size = self.size(trips) if isinstance(trips, int) else None
        if self.every == 1 or (size is not None and isinstance(trips, int) and size >= trips):
            if self.every == 1 or size == 1:
                node.metadata = {**(node.metadata or {}), REPLAY: "1"}
            op.keep(node)
            return
        if loop.is_scan:
            results = _block_scan(op, loop, self.cut(op, self.scan_trips(op, loop)))
        elif runs_on(node) and node.inputs and node.inputs[0] is not None:
            results = _block_for(op, loop, self.cut(op, _trips(op, node)))
        else:
            results = self.block_while(op, loop)
        for old, new in zip(node.outputs, results, strict=True):
            new.value.type = old.type
            new.value.name = new.value.name or old.name
            if old in op.model.variables:
                op.model.variables[new.value] = op.model.variables.pop(old)
            substitute(op.graph, op.nodes, old, new.value)
        node.set_inputs(())

    def refuse(self, node: Node, why: str) -> UnsupportedOperator:
        """The error for a loop that cannot be blocked."""
        return UnsupportedOperator(
            f"no checkpoints can be set in {describe(node)}: {why}; leave `checkpoint` out to keep every iteration",
            (node,),
        )

    def scan_trips(self, op: Builder, loop: LoopView) -> Var:
        for v in loop.scanned:
            if v.rank is None:
                raise self.refuse(loop.node, f"the rank of {v!r} is unknown")
        for v, axis in zip(loop.scanned, loop.in_axes, strict=True):
            if isinstance(v.type, TensorType) and v.shape is not None and isinstance(v.shape[axis], int):
                return op.extent(op.var(v), axis)
        return op.extent(op.var(loop.scanned[0]), loop.in_axes[0])

    def size(self, trips: int) -> int:
        """The iterations per block, about the square root of a number of them where nothing else was said."""
        return isqrt(max(trips - 1, 0)) + 1 if self.every == "auto" else int(self.every)

    def size_at_run_time(self, op: Builder, trips: Var) -> Var:
        """The same: at least one, and no more than there are."""
        least = op.Max(trips, op.const([1]))
        if self.every == "auto":
            root = op.Ceil(op.Sqrt(op.Cast(least, to=int(DataType.DOUBLE))))
            return op.Cast(root, to=int(DataType.INT64))
        return op.Min(op.const([self.every]), least)

    def cut(self, op: Builder, trips: Var) -> _Cut:
        """Cut a number of iterations, a tensor of shape [1], into blocks."""
        known = op.known(trips)
        if known is not None and isinstance(t := known[0], int):
            k = min(self.size(t), max(t, 1))
            q, r = divmod(t, k)
            return _Cut(op.const([q]), op.const([k]), op.const([r]), op.const([q * k]), (q, k, r))
        size = self.size_at_run_time(op, trips)
        count = op.Div(trips, size)
        blocked = op.Mul(count, size)
        fresh = op.model.fresh_dim
        return _Cut(count, size, op.Sub(trips, blocked), blocked, (fresh(), fresh(), fresh()))

    def block_while(self, op: Builder, loop: LoopView) -> list[Var]:
        """A Loop that may end early: the blocks carry whether to go on."""
        node, body = loop.node, loop.region
        if loop.stacks:
            raise self.refuse(node, "it may end in the middle of a block, and it stacks results")
        limited = bool(node.inputs) and node.inputs[0] is not None
        if not limited and self.every == "auto":
            raise self.refuse(node, "nothing tells how often it may run at most; name a number of iterations")
        trips = _trips(op, node) if limited else None
        size = op.const([self.every]) if trips is None else self.size_at_run_time(op, trips)
        count = None if trips is None else op.Div(trips + size - op.const([1]), size)
        start = node.inputs[1] if len(node.inputs) > 1 else None
        outer, block, go, states = _outer_loop(op, loop)
        base = block.Mul(block.scalar(block.var(outer.inputs[0])), block.scalar(block.var(size)))
        steps = block.scalar(block.var(size))
        if trips is not None:
            steps = block.Min(steps, block.Sub(block.scalar(block.var(trips)), base))
        _shift(block, body, base)
        inner = Node("Loop", [steps.value, go, *states], {"body": body}, ("",) * loop.count, name=node.name)
        inner.graph = outer
        flag = Value("", TensorType(DataType.BOOL, ()), body)
        LoopView(block, inner).add_states([flag], [block.var(go)], [body.outputs[0]])
        results = block.place(inner)
        outer.set_outputs([results[-1], *results[:-1]])
        operands = [None if count is None else op.scalar(count).value, start, *loop.carried]
        return [op.var(v) for v in op.place(_marked("Loop", operands, {"body": outer}, loop.count, node))]


def _random(model: Model, body: Graph) -> Node | None:
    """A node in a body, or in a function that it calls, that draws random numbers."""
    waiting, seen = [body], set[Graph]()
    while waiting:
        graph = waiting.pop()
        seen.add(graph)
        for n in graph.walk():
            f = model.called(n)
            if f is not None and f.body not in seen:
                waiting.append(f.body)
            elif f is None and is_random(n):
                return n
    return None


def _marked(
    op_type: str, operands: Sequence[Value | None], attributes: dict[str, object], results: int, like: Node
) -> Node:
    """The loop over blocks."""
    node = Node(op_type, operands, attributes, ("",) * results, name=like.name)
    node.metadata = {**(like.metadata or {}), REPLAY: "1"}
    return node


def _trips(op: Builder, node: Node) -> Var:
    """How often a Loop runs at most, [1]."""
    limit = node.inputs[0]
    assert limit is not None
    return op.Max(op.Reshape(op.var(limit), op.const([1])), op.const([0]))


# --- Scan


def _block_scan(op: Builder, loop: LoopView, cut: _Cut) -> list[Var]:
    """The results of a Scan, by a Scan over blocks and one over the rest."""
    node, body = loop.node, loop.region
    rest_body = None if cut.dims[2] == 0 else clone_graph(body)
    parts = [
        _split(op, op.var(v), axis, back, cut)
        for v, axis, back in zip(loop.scanned, loop.in_axes, loop.in_directions, strict=True)
    ]
    in_axes = tuple(axis % (v.rank or 1) for v, axis in zip(loop.scanned, loop.in_axes, strict=True))
    out_axes = tuple(
        axis % (v.rank + 1) if axis < 0 and v.rank is not None else axis
        for v, axis in zip(loop.yields, loop.out_axes, strict=True)
    )
    shared = scan_attributes(in_axes, loop.in_directions, out_axes, loop.out_directions)
    total = loop.count + len(loop.yields)

    def scan(b: Builder, states: Sequence[Value], slices: Sequence[Value], region: Graph) -> tuple[Value, ...]:
        attributes = {"body": region, "num_scan_inputs": len(slices), **shared}
        return b.place(Node("Scan", [*states, *slices], attributes, ("",) * total, name=node.name))

    outer = Graph("blocks")
    states = [outer.add_input(v.name, v.type) for v in loop.states]
    slices = []
    for (main, _), axis, v in zip(parts, in_axes, loop.slices, strict=True):
        shape = main.shape
        t = None if shape is None else TensorType(main.dtype, shape[:axis] + shape[axis + 1 :])
        slices.append(outer.add_input(v.name, t))
    block = op.inside(outer)
    block.scope.define(*outer.inputs)
    outer.set_outputs(scan(block, states, slices, body))
    operands = [*loop.carried, *(main.value for main, _ in parts)]
    attributes = {"body": outer, "num_scan_inputs": len(slices), **shared}
    results = [op.var(v) for v in op.place(_marked("Scan", operands, attributes, total, node))]
    finals = results[: loop.count]
    stacks = [_merge(op, v, axis, cut) for v, axis in zip(results[loop.count :], out_axes, strict=True)]
    if rest_body is None:
        return [*finals, *stacks]

    def run_rest(b: Builder) -> list[Value]:
        return list(scan(b, [v.value for v in finals], [r.value for _, r in parts if r is not None], rest_body))

    rest = _rest(op, cut, run_rest, [v.value for v in finals], stacks, out_axes)
    joined = []
    for main, more, axis, back in zip(stacks, rest[loop.count :], out_axes, loop.out_directions, strict=True):
        joined.append(op.Concat(more, main, axis=axis) if back else op.Concat(main, more, axis=axis))
    return [*rest[: loop.count], *joined]


def _split(op: Builder, v: Var, axis: int, back: int, cut: _Cut) -> tuple[Var, Var | None]:
    """An operand of a Scan as blocks, the axis of iterations in two, and what is left for the rest."""
    assert v.shape is not None
    axis %= len(v.shape)
    count, size, rest = cut.dims
    main, left = v, None
    if rest != 0:
        if back:
            main, left = op.Slice(v, cut.rest, [_END], [axis]), op.Slice(v, [0], cut.rest, [axis])
        else:
            main, left = op.Slice(v, [0], cut.blocked, [axis]), op.Slice(v, cut.blocked, [_END], [axis])
        left = op.shaped(left, (*v.shape[:axis], rest, *v.shape[axis + 1 :]))
    extents = [op.extent(v, i) for i in range(len(v.shape))]
    shape = op.Concat(*extents[:axis], cut.count, cut.size, *extents[axis + 1 :], axis=0)
    blocked = op.Reshape(main, shape, allowzero=1)
    return op.shaped(blocked, (*v.shape[:axis], count, size, *v.shape[axis + 1 :])), left


def _merge(op: Builder, v: Var, axis: int, cut: _Cut) -> Var:
    """Stacks of stacks as one stack."""
    if v.shape is None:
        head = op.Shape(v, start=0, end=axis)
        shape = op.Concat(head, cut.blocked, op.Shape(v, start=axis + 2), axis=0)
    else:
        extents = [op.extent(v, i) for i in range(len(v.shape))]
        shape = op.Concat(*extents[:axis], cut.blocked, *extents[axis + 2 :], axis=0)
    return op.Reshape(v, shape, allowzero=1)


def _rest(
    op: Builder,
    cut: _Cut,
    run: Callable[[Builder], list[Value]],
    finals: Sequence[Value],
    stacks: Sequence[Var],
    axes: Sequence[int],
) -> list[Var]:
    """The results of the iterations behind the blocks; where only the run tells whether there are any, an If."""
    if cut.is_static:
        return [op.var(v) for v in run(op)]
    some, none = op.region("rest"), op.region("no_rest")
    some.graph.set_outputs(run(some))
    empty = [none.Slice(none.var(v), [0], [0], [axis]).value for v, axis in zip(stacks, axes, strict=True)]
    none.graph.set_outputs([*finals, *empty])
    condition = op.Greater(op.scalar(cut.rest), 0)
    branches: dict[str, object] = {"then_branch": some.graph, "else_branch": none.graph}
    count = len(finals) + len(stacks)
    return [op.var(v) for v in op.place(Node("If", [condition.value], branches, ("",) * count, name=op.label))]


# --- Loop


def _outer_loop(op: Builder, loop: LoopView) -> tuple[Graph, Builder, Value, list[Value]]:
    """The body of a Loop over blocks: its graph, a builder for it, the condition and the states it is given."""
    outer = Graph("blocks")
    outer.add_input("block", TensorType(DataType.INT64, ()))
    go = outer.add_input("go", TensorType(DataType.BOOL, ()))
    states = [outer.add_input(v.name, v.type) for v in loop.states]
    block = op.inside(outer)
    block.scope.define(*outer.inputs)
    return outer, block, go, states


def _shift(op: Builder, body: Graph, base: Var) -> None:
    """Let the body of a Loop, whose node stands at the builder's place, count from `base`."""
    old = body.inputs[0]
    if not old.users:
        return
    new = body.inputs[0] = Value(old.name, old.type, body)
    inside = op.inside(body)
    inside.nodes = []
    counter = inside.Add(inside.var(new), inside.var(base))
    old.replace_by(counter.value)
    body.nodes[:0] = inside.nodes


def _block_for(op: Builder, loop: LoopView, cut: _Cut) -> list[Var]:
    """The results of a Loop whose number of iterations is known when it starts."""
    node, body = loop.node, loop.region
    rest_body = None if cut.dims[2] == 0 else clone_graph(body)
    outer, block, go, states = _outer_loop(op, loop)
    total = loop.count + len(loop.yields)

    def run(b: Builder, steps: Var, base: Var, region: Graph, states: Sequence[Value]) -> tuple[Value, ...]:
        _shift(b, region, base)
        operands = [b.scalar(b.var(steps)).value, None, *states]
        return b.place(Node("Loop", operands, {"body": region}, ("",) * total, name=node.name))

    base = block.Mul(block.scalar(block.var(outer.inputs[0])), block.scalar(block.var(cut.size)))
    outer.set_outputs([go, *run(block, cut.size, base, body, states)])
    operands = [op.scalar(cut.count).value, None, *loop.carried]
    results = [op.var(v) for v in op.place(_marked("Loop", operands, {"body": outer}, total, node))]
    finals, stacks = results[: loop.count], [_merge(op, v, 0, cut) for v in results[loop.count :]]
    if rest_body is None:
        return [*finals, *stacks]

    def run_rest(b: Builder) -> list[Value]:
        start = b.scalar(b.var(cut.blocked))
        return list(run(b, cut.rest, start, rest_body, [v.value for v in finals]))

    rest = _rest(op, cut, run_rest, [v.value for v in finals], stacks, (0,) * len(stacks))
    joined = [op.Concat(main, more, axis=0) for main, more in zip(stacks, rest[loop.count :], strict=True)]
    return [*rest[: loop.count], *joined]
