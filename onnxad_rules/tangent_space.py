"""Zeros and sums of tangents and cotangents of any type: of tensors, and of sequences and optionals of them."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Value
from onnxad_ir.region_rules import element
from onnxad_ir.types import QUANTIZED, DataType, OptionalType, SequenceType, TensorType, Type
from onnxad_rules.ruleset import UnsupportedOperator

#: Names the body of a SequenceMap that adds two sequences of equal shapes, element by element.
SUM = "sum_of_tangents"


def zeros(op: Builder, like: Value) -> Var:
    """The zero tangent of a value."""
    t = like.type
    if isinstance(t, TensorType) and t.dtype in QUANTIZED:
        return op.expand_to(op.const(0.0, DataType.FLOAT), op.var(like))
    if isinstance(t, TensorType):
        return op.zeros_like(op.var(like))
    if isinstance(t, SequenceType) and isinstance(t.elem, TensorType):
        if like.producer is not None and like.producer.op_type == "SequenceEmpty":
            return op.var(like)
        body = op.region("zeros")
        x = body.graph.add_input("x", element(op.inference, t))
        body.graph.set_outputs([body.zeros_like(body.var(x)).value])
        return _sequence_map(op, [op.var(like)], body.graph)
    if isinstance(t, OptionalType):
        inner: Var = op.OptionalGetElement(op.var(like))
        return op.Optional(zeros(op, inner.value))
    raise UnsupportedOperator(f"there is no zero of type {t} ({like!r})")


def tangent_type(t: Type | None) -> Type | None:
    """The type that a tangent of a value of type `t` has where it enters or leaves a region or function.

    That of a quantized tensor is in single precision there, which is what quantization computes in at most.
    """
    return TensorType(DataType.FLOAT, t.shape) if isinstance(t, TensorType) and t.dtype in QUANTIZED else t


def at_border(op: Builder, t: Var, of: Value) -> Var:
    """A tangent or cotangent of a value, of its `tangent_type`, and of known rank where the value is."""
    if of.dtype in QUANTIZED and t.dtype != DataType.FLOAT:
        return op.Cast(t, to=int(DataType.FLOAT))
    return op.fit_rank(t, op.var(of))


def add(op: Builder, a: Var, b: Var) -> Var:
    """The sum of two tangents of one value."""
    if isinstance(a.type, SequenceType):
        body = op.region(SUM)
        one = element(op.inference, a.type)
        x, y = (body.graph.add_input(name, one) for name in "xy")
        body.graph.set_outputs([body.Add(x, y).value])
        return _sequence_map(op, [a, b], body.graph)
    if isinstance(a.type, OptionalType):
        total = add(op, op.OptionalGetElement(a), op.OptionalGetElement(b))
        return op.Optional(total)
    return op.Add(a, b)


def _sequence_map(op: Builder, operands: list[Var], body: Graph) -> Var:
    (v,) = op.emit("SequenceMap", [x.value for x in operands], {"body": body})
    return op.var(v)
