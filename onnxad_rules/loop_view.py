"""Scan and Loop seen as one thing: states that are carried, slices that come in, and values that are stacked."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.region_rules import scan_axes, trip_count
from onnxad_ir.types import Dim, TensorType, Type
from onnxad_rules.regions import stacked

Ints = tuple[int, ...]

#: How a Scan reads and stacks: axes, and directions (1: from the last to the first, or prepended).
SCAN_ATTRIBUTES = ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")


class LoopView:
    """A Scan or a Loop. What it yields and nobody took gets a result, so that positions agree.

    `states`, `slices`: the body's inputs; `carried`, `scanned`: the operands they start from;
    `next_states`, `yields`: the body's outputs; `finals`, `stacks`: the results.
    """

    def __init__(self, op: Builder, node: Node):
        self.op = op
        self.node = node
        self._length: Dim | None = None
        self.region: Graph = node.attributes["body"]
        self.is_scan = node.op_type == "Scan"
        self.head = 0 if self.is_scan else 2
        self.tail = 0 if self.is_scan else 1
        operands = node.inputs
        self.count = len(operands) - node.attributes["num_scan_inputs"] if self.is_scan else max(len(operands) - 2, 0)
        scanned = operands[self.count :] if self.is_scan else ()
        self.in_axes: Ints = (0,) * len(scanned)
        stacks = len(self.region.outputs) - self.tail - self.count
        self.out_axes: Ints = (0,) * stacks
        if self.is_scan:
            ins, outs = scan_axes(node)
            self.in_axes, self.out_axes = tuple(ins), tuple(outs)
        self.in_directions: Ints = tuple(node.attributes.get("scan_input_directions") or (0,) * len(scanned))
        self.out_directions: Ints = tuple(node.attributes.get("scan_output_directions") or (0,) * stacks)
        for i in range(len(node.outputs), self.count + stacks):
            v = self.region.outputs[self.tail + i]
            node.add_result(v.type if i < self.count else stacked(v.type, self.length(), op))

    @property
    def states(self) -> list[Value]:
        """The body's state inputs."""
        return self.region.inputs[self.head : self.head + self.count]

    @property
    def slices(self) -> list[Value]:
        """The body's scan inputs."""
        return self.region.inputs[self.head + self.count :]

    @property
    def next_states(self) -> tuple[Value, ...]:
        """The states that the body yields."""
        return self.region.outputs[self.tail : self.tail + self.count]

    @property
    def yields(self) -> tuple[Value, ...]:
        """What the body yields for stacking."""
        return self.region.outputs[self.tail + self.count :]

    @property
    def carried(self) -> tuple[Value, ...]:
        """The initial states."""
        return _present(self.node.inputs[self.head : self.head + self.count])

    @property
    def scanned(self) -> tuple[Value, ...]:
        """The operands that are scanned."""
        return _present(self.node.inputs[self.head + self.count :])

    @property
    def finals(self) -> tuple[Value, ...]:
        """The final states."""
        return self.node.outputs[: self.count]

    @property
    def stacks(self) -> tuple[Value, ...]:
        """The stacked results."""
        return self.node.outputs[self.count :]

    def length(self) -> Dim:
        """The number of iterations; a fresh symbol where nothing tells it."""
        if self._length is None:
            self._length = self._find_length()
        return self._length

    def _find_length(self) -> Dim:
        places = list(zip(self.scanned, self.in_axes, strict=True))
        places += list(zip(self.stacks, self.out_axes, strict=False))
        for v, axis in places:
            if isinstance(v.type, TensorType) and v.type.shape is not None:
                return v.type.shape[axis]
        trips = None if self.is_scan else trip_count(self.node)
        return self.op.model.fresh_dim() if trips is None else trips

    def runs_at_least_once(self) -> bool:
        """True where the number of iterations is known not to be zero. (A Scan over nothing is an error everywhere.)"""
        if self.is_scan:
            return True
        trips = trip_count(self.node)
        return isinstance(trips, int) and trips > 0

    def add_states(self, states: Sequence[Value], initial: Sequence[Var], after: Sequence[Value]) -> list[Value]:
        """Carry more states, after those there are; return the final ones. Their types are those of `initial`."""
        node, at = self.node, self.head + self.count
        finals = [Value("", v.value.type, node) for v in initial]
        self.region.set_inputs([*self.region.inputs[:at], *states, *self.region.inputs[at:]])
        inputs = node.inputs if self.is_scan else (*node.inputs, None, None)[: max(len(node.inputs), 2)]
        node.set_inputs([*inputs[:at], *(v.value for v in initial), *inputs[at:]])
        end = self.tail + self.count
        self.region.set_outputs([*self.region.outputs[:end], *after, *self.region.outputs[end:]])
        node.set_results([*self.finals, *finals, *self.stacks])
        self.count += len(states)
        return finals

    def add_slices(self, slices: Sequence[Value], operands: Sequence[Var], like: Sequence[int]) -> None:
        """Scan more operands, each the way of the one whose position `like` gives."""
        self.region.set_inputs([*self.region.inputs, *slices])
        self.node.set_inputs([*self.node.inputs, *(v.value for v in operands)])
        self.in_axes += tuple(self.in_axes[i] for i in like)
        self.in_directions += tuple(self.in_directions[i] for i in like)
        self._attributes()

    def add_stack(self, value: Value, t: Type | None = None, like: int | None = None) -> Value:
        """Stack one more value of the body, along axis 0 or the way of the result at position `like`."""
        self.region.add_output(value)
        self.out_axes += (0 if like is None else self.out_axes[like],)
        self.out_directions += (0 if like is None else self.out_directions[like],)
        self._attributes()
        return self.node.add_result(stacked(value.type, self.length(), self.op) if t is None else t)

    def _attributes(self) -> None:
        if self.is_scan:
            node, new = self.node, scan_attributes(self.in_axes, self.in_directions, self.out_axes, self.out_directions)
            kept = {k: a for k, a in node.attributes.items() if k not in SCAN_ATTRIBUTES}
            node.attributes = {**kept, "num_scan_inputs": len(self.in_axes), **new}


def scan_attributes(in_axes: Ints, in_directions: Ints, out_axes: Ints, out_directions: Ints) -> dict[str, Ints]:
    """The attributes of a Scan that are not all zero."""
    found = zip(SCAN_ATTRIBUTES, (in_axes, in_directions, out_axes, out_directions), strict=True)
    return {k: v for k, v in found if any(v)}


def _present(values: Sequence[Value | None]) -> tuple[Value, ...]:
    return tuple(v for v in values if v is not None)
