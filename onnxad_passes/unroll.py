"""Loops written out, iteration by iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.diagnostics import OnnxadError, UsageError, describe
from onnxad_ir.inline import inline_body, substitute
from onnxad_ir.region_rules import scan_axes, trip_count
from onnxad_ir.traverse import loop_layout
from onnxad_ir.types import TensorType
from onnxad_passes.dce import drop_dead
from onnxad_passes.manager import Pass

#: How many nodes a model may have after its loops are written out.
LIMIT = 100_000


class UnrollTooLarge(OnnxadError, ValueError):
    """Writing the loops of a model out would make it larger than asked for."""


@dataclass(frozen=True)
class Unroll(Pass):
    """Write out every Scan and Loop whose number of iterations is known; one that ends on a condition stays.

    limit: the most nodes the model may have (UnrollTooLarge beyond).
    """

    name: ClassVar[str] = "unroll"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    limit: int = LIMIT

    def run(self, model: Model) -> bool:
        if not isinstance(self.limit, int) or self.limit < 1:
            raise UsageError(f"limit is a number of nodes, not {self.limit!r}")
        unroller = _Unroller(self.limit)
        unroller.graph(Builder(model, model.graph, []))
        if unroller.changed:
            drop_dead(model.graph, model.variables)
        return unroller.changed


class _Unroller:
    def __init__(self, limit: int):
        self.limit = limit
        self.count = 0
        self.changed = False
        #: The loop that is being written out, the outermost one.
        self.loop: Node | None = None
        #: What stands for the result of a loop that is gone.
        self.replaced: dict[Value, Value] = {}

    def graph(self, op: Builder) -> None:
        """Rewrite the graph of a builder, whose list of nodes is empty."""
        old, op.graph.nodes = op.graph.nodes, op.nodes
        op.scope.define(*op.graph.inputs)
        for n in old:
            self.node(op, n)

    def node(self, op: Builder, node: Node) -> None:
        trips = _trips(node)
        if trips is not None:
            outer, self.loop = self.loop, self.loop or node
            self.write_out(op, node, trips)
            self.loop = outer
            return
        for region in node.regions:
            self.graph(op.inside(region, []))
        self.count += 1
        if self.changed and self.count > self.limit:  # a model without loops may be of any size
            raise UnrollTooLarge(
                f"writing out the loops makes more than {self.limit} nodes, at {describe(self.loop or node)}; raise "
                "`limit`, or differentiate the loops in place, which needs no unrolling"
            )
        op.keep(node)

    def write_out(self, op: Builder, node: Node, trips: int) -> None:
        """Put the iterations of a loop in its place."""
        self.changed = True
        body: Graph = node.attributes["body"]
        scan = node.op_type == "Scan"
        inputs = node.inputs
        head, tail, count = loop_layout(node)
        states, scanned = list(inputs[head : head + count]), inputs[head + count :]
        in_axes, out_axes = scan_axes(node) if scan else ([], [0] * (len(body.outputs) - tail - count))
        back = node.attributes.get("scan_input_directions") or (0,) * len(scanned)
        prepend = node.attributes.get("scan_output_directions") or (0,) * len(out_axes)
        stacks: list[list[Var]] = [[] for _ in out_axes]
        for t in range(trips):
            op.label = node.name
            slices = [
                op.Gather(op.var(v), op.const(trips - 1 - t if d else t), axis=axis).value
                for v, axis, d in zip(scanned, in_axes, back, strict=True)
                if v is not None
            ]
            counter = [] if scan else [op.const(t).value, op.const(True).value]
            outs = self.iteration(op, body, [*counter, *states, *slices])[tail:]
            states = outs[:count]
            for stack, v in zip(stacks, outs[count:], strict=True):
                assert v is not None
                stack.append(op.var(v))
        results = [*states, *map(_stack, [op] * len(stacks), stacks, out_axes, prepend, body.outputs[-len(stacks) :])]
        for old, new in zip(node.outputs, results, strict=False):
            assert new is not None
            value = op.fit_rank(op.var(new), op.var(old)).value
            self.replaced[old] = value
            substitute(op.graph, op.nodes, old, value)
        node.detach()

    def iteration(self, op: Builder, body: Graph, operands: list[Value | None]) -> list[Value | None]:
        """One iteration; the loops inside are written out too."""
        written = op.scratch()
        outs = inline_body(written, body, operands, {}, simplify=True)
        for n in written.nodes:
            self.node(op, n)
        return [self._current(v) for v in outs]

    def _current(self, v: Value | None) -> Value | None:
        while v is not None and v in self.replaced:
            v = self.replaced[v]
        return v


def _trips(node: Node) -> int | None:
    """How often the body of a Scan or Loop runs, None where that is not a known number or `node` is neither."""
    if node.domain or node.op_type not in ("Scan", "Loop"):
        return None
    _, tail, count = loop_layout(node)
    if node.op_type == "Loop":
        trips = trip_count(node)
        if trips == 0 and any(_static(v) is None for v in node.attributes["body"].outputs[tail + count :]):
            return None  # stacks of nothing, of a shape that nobody knows
        return trips if isinstance(trips, int) else None
    for v, axis in zip(node.inputs[count:], scan_axes(node)[0], strict=True):
        if v is not None and v.shape is not None and isinstance(d := v.shape[axis], int) and d > 0:
            return d
    return None


def _static(v: Value) -> tuple[int, ...] | None:
    t = v.type
    return t.shape if isinstance(t, TensorType) and t.is_static else None  # type: ignore[return-value]


def _stack(op: Builder, parts: list[Var], axis: int, prepend: int, like: Value) -> Var:
    """The values of all iterations along a new axis."""
    if not parts:
        shape = _static(like)
        assert shape is not None and like.dtype is not None
        return op.const(np.zeros((0, *shape)), like.dtype)
    rows = [op.Unsqueeze(v, [axis]) for v in (reversed(parts) if prepend else parts)]
    return op.Concat(*rows, axis=axis)
