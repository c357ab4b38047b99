"""Sequences and optionals. The tangent of a sequence is a sequence of tangents, that of an optional an optional.

All of these operators move values about, so all are linear.
"""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_ir.inline import inline_body
from onnxad_ir.region_rules import element
from onnxad_ir.types import DataType, OptionalType, SequenceType, TensorType
from onnxad_rules.kinds import decompose, linear, zero
from onnxad_rules.node import NodeView
from onnxad_rules.tangent_space import SUM, zeros

zero("SequenceLength", "SequenceEmpty", "OptionalHasElement", reason="no floating-point operand matters")

linear("SequenceConstruct", inputs=lambda op, n, ct, i: op.SequenceAt(ct, i))


def _index(op: Builder, position: Var, sequence: Var) -> Var:
    """A position that may be negative, counted from the start."""
    position = op.scalar(op.Cast(position, to=int(DataType.INT64)))
    known = op.known(position)
    if known is not None and isinstance(known[0], int) and known[0] >= 0:
        return position
    return op.Where(op.Less(position, 0), position + op.SequenceLength(sequence), position)


def _inserted(op: Builder, n: NodeView) -> Var | None:
    """Where SequenceInsert put its tensor; None for the end."""
    return None if n.position is None else _index(op, n.position, n.input_sequence)


def _insert_sequence(op: Builder, n: NodeView, ct: Var) -> Var:
    return op.SequenceErase(ct, _inserted(op, n))


def _insert_tensor(op: Builder, n: NodeView, ct: Var) -> Var:
    at = _inserted(op, n)
    return op.SequenceAt(ct, op.const(-1) if at is None else at)


linear("SequenceInsert", input_sequence=_insert_sequence, tensor=_insert_tensor)


def _erase(op: Builder, n: NodeView, ct: Var) -> Var:
    at = _index(op, op.const(-1) if n.position is None else n.position, n.input_sequence)
    return op.SequenceInsert(ct, op.zeros_like(op.SequenceAt(n.input_sequence, at)), at)


linear("SequenceErase", input_sequence=_erase)


def _at(op: Builder, n: NodeView, ct: Var) -> Var:
    at = _index(op, n.position, n.input_sequence)
    return op.SequenceInsert(op.SequenceErase(zeros(op, n.input_sequence.value), at), ct, at)


linear("SequenceAt", input_sequence=_at)


def _split(op: Builder, n: NodeView, ct: Var) -> Var:
    new = 1 if n.split is None and not n.keepdims else None
    return op.ConcatFromSequence(ct, axis=n.axis, new_axis=new)


linear("SplitToSequence", input=_split)


def _concat(op: Builder, n: NodeView, ct: Var) -> Var:
    if n.new_axis:
        return op.SplitToSequence(ct, axis=n.axis, keepdims=0)
    body = op.region("extent")
    sequence = n.input_sequence
    x = body.graph.add_input("x", element(op.inference, sequence.type))
    body.graph.set_outputs([body.Shape(body.var(x), start=n.axis, end=n.axis + 1 if n.axis != -1 else None).value])
    (extents,) = op.emit("SequenceMap", [sequence.value], {"body": body.graph})
    return op.SplitToSequence(ct, op.ConcatFromSequence(op.var(extents), axis=0), axis=n.axis)


linear("ConcatFromSequence", input_sequence=_concat)

linear("Optional", input=lambda op, n, ct: op.OptionalGetElement(ct))


def _get(op: Builder, n: NodeView, ct: Var) -> Var:
    return op.Optional(ct) if isinstance(n.input.type, OptionalType) else ct


linear("OptionalGetElement", input=_get)


@decompose("SequenceMap")
def _map(op: Builder, n: NodeView) -> tuple[Var, ...]:
    """A Loop that builds the results element by element."""
    first = n.input_sequence
    others = list(n.additional_inputs)
    body = op.region("map")
    graph = body.graph
    i = graph.add_input("i", TensorType(DataType.INT64, ()))
    go = graph.add_input("go", TensorType(DataType.BOOL, ()))
    types = [v.type for v in n.node.outputs]
    built = [graph.add_input("", t) for t in types]
    at = body.var(i)
    operands: list[Value | None] = [
        body.SequenceAt(body.var(v), at).value if isinstance(v.type, SequenceType) else v.value
        for v in (first, *others)
    ]
    results = inline_body(body, n.node.attributes["body"], operands, {}, simplify=True)
    longer = [
        body.SequenceInsert(body.var(s), body.var(v)).value
        for s, v in zip(built, results, strict=True)
        if v is not None
    ]
    graph.set_outputs([go, *longer])
    empty = [op.SequenceEmpty(dtype=int(_element(t))).value for t in types]
    node = Node(
        "Loop", [op.SequenceLength(first).value, None, *empty], {"body": graph}, ("",) * len(types), name=op.label
    )
    return tuple(op.var(v) for v in op.place_typed(node, types))


def _is_sum(n: NodeView) -> bool:
    return n.node.attributes["body"].name == SUM


linear("SequenceMap", when=_is_sum, input_sequence=lambda op, n, ct: ct, additional_inputs=lambda op, n, ct, i: ct)


def _element(t: object) -> DataType:
    assert isinstance(t, SequenceType) and isinstance(t.elem, TensorType)
    return t.elem.dtype
