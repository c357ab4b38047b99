"""Quantization, with one scale, one along an axis, or one for each block."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched, shift
from onnxad_rules.node import NodeView


@batched("QuantizeLinear")
def _quantize(op: Builder, n: NodeView, b: Batch) -> Any:
    return _by_scale(op, n, b, n.y_scale)


@batched("DequantizeLinear")
def _dequantize(op: Builder, n: NodeView, b: Batch) -> Any:
    """It is linear in the scale: one of each entry multiplies what a scale of one gives."""
    scale = n.x_scale
    if b.x_scale is None or not b.only("x", "x_scale") or n.node.attributes.get("block_size", 0):
        return _by_scale(op, n, b, scale)
    x, axis = (n.x, n.axis) if b.x is None else (b.x, shift(n.axis))
    one = op.Expand(op.like(1, scale), op.Shape(b.x_scale, start=1))
    unit = b.again(x, one, n.x_zero_point, axis=axis)
    if scale.rank == 1 and scale.shape != (1,):
        after = n.x.rank - 1 - n.axis % n.x.rank
        factor = op.Unsqueeze(b.x_scale, [*range(1, n.x.rank - after), *range(-after, 0)])
    else:
        factor = op.Reshape(b.x_scale, [-1, *[1] * n.x.rank])
    return op.Cast(op.Cast(unit, to=int(scale.dtype)) * factor, to=int(unit.dtype))


def _by_scale(op: Builder, n: NodeView, b: Batch, scale: Var) -> Any:
    x, *parameters = (None if v is None else op.var(v) for v in n.node.inputs)
    assert x is not None
    if n.node.attributes.get("block_size", 0):
        return b.again(b.full(x), *(None if v is None else b.full(v) for v in parameters), axis=shift(n.axis))
    if all(v is None or b.twin(v) is None for v in parameters):
        return b.again(b.twin(x), *parameters, axis=shift(n.axis))
    line = [None if v is None else op.Reshape(b.full(v), [-1]) for v in parameters]
    if scale.rank == 0 or scale.shape == (1,):  # one scale for each entry: along the axis of the entries
        return b.again(b.full(x), *line, axis=0)
    rank = x.rank
    if scale.rank != 1 or rank is None:
        return NotImplemented
    # the entries and the axis of the scales made one, the first
    axis = n.axis % rank
    if not isinstance(scale.shape[0], int):  # type: ignore[index] # as many as there are places on the axis, or one
        target = op.Concat(b.size, op.Shape(b.full(x), start=axis + 1, end=axis + 2), axis=0)
        line = [None if v is None else op.Reshape(op.Expand(b.full(v), target), [-1]) for v in parameters]
    order = [0, axis + 1, *(i for i in range(1, rank + 1) if i != axis + 1)]
    turned = op.Transpose(b.full(x), perm=order)
    shape = op.Shape(turned)
    flat = op.Reshape(turned, op.Concat(op.const([-1]), op.Slice(shape, [2], [2**31]), axis=0))
    y = op.Reshape(b.again(flat, *line, axis=0), shape, allowzero=1)
    return op.Transpose(y, perm=[order.index(i) for i in range(rank + 1)])


@batched("QLinearMatMul", "MatMulInteger")
def _product(op: Builder, n: NodeView, b: Batch) -> Any:
    """Rows of a quantized operand times a matrix that all entries share, as quantized values have one scale each."""
    first, *others = n.node.inputs
    second = n.node.inputs[3 if n.node.op_type == "QLinearMatMul" else 1]
    if any(b.twin(v) is not None for v in others) or second is None or second.rank not in (1, 2):
        return NotImplemented
    if any(v is not None and v is not second and v.rank != 0 and v.shape != (1,) for v in others):
        return NotImplemented
    return b.again(b.twin(first), *(None if v is None else op.var(v) for v in others))


@batched("QLinearConv", "ConvInteger")
def _convolution(op: Builder, n: NodeView, b: Batch) -> Any:
    others = n.node.inputs[1:]
    if any(b.twin(v) is not None for v in others):
        return NotImplemented
    x = n.operand(0)
    return b.unfold(b.again(b.fold(x), *(None if v is None else op.var(v) for v in others)), x)


@batched("Dropout", any_rank=True)
def _dropout(op: Builder, n: NodeView, b: Batch) -> Any:
    """Every entry has a mask of its own."""
    return b.again(b.full(n.data), n.ratio, n.training_mode) if b.only("data") else NotImplemented
