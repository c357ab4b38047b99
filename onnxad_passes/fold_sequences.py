"""Sequences whose elements are known one by one, and need not be sequences."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_ir.infer import known_ints
from onnxad_ir.types import TensorType

#: Longer sequences are left alone: every insertion makes a list of its own.
LIMIT = 1024


class Sequences:
    """The elements of the sequences met so far, where they are known."""

    def __init__(self) -> None:
        self._elements: dict[Value, list[Value]] = {}

    def fold(self, op: Builder, node: Node) -> Value | None:
        """What a node computes, where it can be said without a sequence. Nodes for it are added by the builder."""
        if node.domain or node.op_type not in SEQUENCE_STEPS:
            return None
        kept = SEQUENCE_STEPS[node.op_type](self, op, node)
        if isinstance(kept, list):
            if len(kept) <= LIMIT:
                self._elements[node.outputs[0]] = kept
            return None
        return kept

    def _of(self, node: Node) -> list[Value] | None:
        """The elements of the sequence that is a node's first operand."""
        v = node.inputs[0] if node.inputs else None
        return None if v is None else self._elements.get(v)

    def _construct(self, op: Builder, node: Node) -> list[Value] | None:
        return [v for v in node.inputs if v is not None]

    def _identity(self, op: Builder, node: Node) -> list[Value] | None:
        return self._of(node)

    def _insert(self, op: Builder, node: Node) -> list[Value] | None:
        elements, new = self._of(node), node.inputs[1]
        at = _position(node, 2, len(elements or ()))
        if elements is None or at is None or new is None or not 0 <= at <= len(elements):
            return None
        return [*elements[:at], new, *elements[at:]]

    def _erase(self, op: Builder, node: Node) -> list[Value] | None:
        elements = self._of(node)
        at = _position(node, 1, len(elements or ()), -1)
        if elements is None or at is None or not 0 <= at < len(elements):
            return None
        return elements[:at] + elements[at + 1 :]

    def _split(self, op: Builder, node: Node) -> list[Value] | None:
        """The parts that a Split gives, where one of them is read at a known position."""
        x = node.inputs[0]
        sizes = _sizes(node) if any(_reads_one(u) for u in node.outputs[0].users) else None
        if sizes is None or x is None:
            return None
        axis = node.attributes.get("axis", 0)
        whole = op.var(x)
        # (a Split into one part would need the attribute num_outputs)
        parts = op.Split(whole, op.const(sizes), axis=axis, outputs=len(sizes)) if len(sizes) > 1 else (whole,)
        if len(node.inputs) < 2 and not node.attributes.get("keepdims", 1):
            parts = [op.Squeeze(p, [axis]) for p in parts]
        return [p.value for p in parts]

    def _at(self, op: Builder, node: Node) -> Value | None:
        elements = self._of(node)
        at = _position(node, 1, len(elements or ()))
        return None if elements is None or at is None or not 0 <= at < len(elements) else elements[at]

    def _length(self, op: Builder, node: Node) -> Value | None:
        elements = self._of(node)
        return None if elements is None else op.const(len(elements)).value

    def _concat(self, op: Builder, node: Node) -> Value | None:
        elements = self._of(node)
        if not elements:
            return None
        axis = node.attributes["axis"]
        parts = [op.var(v) for v in elements]
        if node.attributes.get("new_axis", 0):
            parts = [op.Unsqueeze(p, [axis]) for p in parts]
        joined: Var = op.Concat(*parts, axis=axis)
        return joined.value


#: How nodes make and read sequences, by operator.
SEQUENCE_STEPS = {
    "SequenceEmpty": Sequences._construct,
    "SequenceConstruct": Sequences._construct,
    "Identity": Sequences._identity,
    "SequenceInsert": Sequences._insert,
    "SequenceErase": Sequences._erase,
    "SplitToSequence": Sequences._split,
    "SequenceAt": Sequences._at,
    "SequenceLength": Sequences._length,
    "ConcatFromSequence": Sequences._concat,
}


def _reads_one(user: object) -> bool:
    return isinstance(user, Node) and user.op_type == "SequenceAt" and _position(user, 1, 0) is not None


def _position(node: Node, index: int, length: int, default: int | None = None) -> int | None:
    """The place in a sequence that an operand is, counted from the start; an absent one is the end or a `default`."""
    v = node.inputs[index] if index < len(node.inputs) else None
    if v is None:
        return length if default is None else length + default
    ints = known_ints(v)
    if ints is None or len(ints) != 1:
        return None
    return ints[0] + length if ints[0] < 0 else ints[0]


def _sizes(node: Node) -> list[int] | None:
    """The extents of the parts that a SplitToSequence makes, where they are known."""
    x, split = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    shape = x.type.shape if x is not None and isinstance(x.type, TensorType) else None
    d = None if shape is None else shape[node.attributes.get("axis", 0)]
    if split is not None and split.rank == 1:
        ints = known_ints(split)
        return None if ints is None else list(ints)
    ints = (1,) if split is None else known_ints(split)
    if not isinstance(d, int) or ints is None or ints[0] <= 0 or d > LIMIT * ints[0]:
        return None
    whole, rest = divmod(d, ints[0])
    return [ints[0]] * whole + [rest] * (rest > 0)
