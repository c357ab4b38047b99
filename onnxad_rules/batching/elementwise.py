"""Operators that work place by place."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, Same, batched
from onnxad_rules.node import NodeView


@batched(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu", "Cos", "Cosh",
    "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Log",
    "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus",
    "Bernoulli", "BitCast", "RandomNormalLike", "RandomUniformLike", "Softsign", "Sqrt", "Swish", "Tan", "Tanh",
    "ThresholdedRelu",
    any_rank=True,
)  # fmt: skip
def _one(op: Builder, n: NodeView, b: Batch) -> Any:
    (x,) = n.node.inputs
    return b.again(b.twin(x))


@batched(
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
    any_rank=True,
)  # fmt: skip
def _broadcasting(op: Builder, n: NodeView, b: Batch) -> Any:
    operands = [op.var(v) for v in n.node.inputs if v is not None]
    return b.again(*b.together(*operands))


@batched("PRelu", any_rank=True)
def _prelu(op: Builder, n: NodeView, b: Batch) -> Any:
    """The slope broadcasts to the operand, never the other way round."""
    if b.slope is None:
        return b.again(b.X, n.slope)
    if n.X.rank is None:
        return NotImplemented
    return b.again(b.full(n.X), *b.together(n.slope, rank=n.X.rank))


@batched("CastLike")
def _cast_like(op: Builder, n: NodeView, b: Batch) -> Any:
    x = n.input if b.input is None else b.input
    y = op.Cast(x, to=int(n.target_type.dtype), **_saturation(n))
    return Same(y) if b.input is None else y


@batched("Clip")
def _clip(op: Builder, n: NodeView, b: Batch) -> Any:
    rank = n.input.rank
    if b.min is None and b.max is None:
        return b.again(b.input, n.min, n.max)
    x = b.full(n.input)
    if n.min is not None:
        x = op.Max(x, b.aligned(n.min, rank))
    return x if n.max is None else op.Min(x, b.aligned(n.max, rank))


def _saturation(n: NodeView) -> dict[str, int]:
    return {"saturate": n.node.attributes["saturate"]} if "saturate" in n.node.attributes else {}
