"""Zeros and sums of tangents and cotangents of any type: of tensors, and of sequences of them."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Value
from onnxad_ir.types import SequenceType, TensorType
from onnxad_rules.ruleset import UnsupportedOperator


def zeros(op: Builder, like: Value) -> Var:
    """The zero tangent of a value."""
    if isinstance(like.type, TensorType):
        return op.zeros_like(op.var(like))
    if isinstance(like.type, SequenceType) and isinstance(like.type.elem, TensorType):
        body = op.region("zeros")
        x = body.graph.add_input("x", like.type.elem)
        body.graph.set_outputs([body.zeros_like(body.var(x)).value])
        return _sequence_map(op, [op.var(like)], body.graph)
    raise UnsupportedOperator(f"there is no zero of type {like.type} ({like!r})")


def add(op: Builder, a: Var, b: Var) -> Var:
    """The sum of two tangents of one value."""
    if isinstance(a.type, SequenceType):
        body = op.region("add")
        x, y = (body.graph.add_input(name, a.type.elem) for name in "xy")
        body.graph.set_outputs([body.Add(x, y).value])
        return _sequence_map(op, [a, b], body.graph)
    return op.Add(a, b)  # type: ignore[no-any-return]


def _sequence_map(op: Builder, operands: list[Var], body: Graph) -> Var:
    (v,) = op.emit("SequenceMap", [x.value for x in operands], {"body": body})
    return op.var(v)
