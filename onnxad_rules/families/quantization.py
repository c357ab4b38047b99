"""Quantization: the quantized side carries no derivative, the scale of DequantizeLinear does."""

from __future__ import annotations

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import linear, specification, zero
from onnxad_rules.node import NodeView

zero(
    "QuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger",
    reason="the result is quantized",
)  # fmt: skip

# the quantized result has no derivative; the scale, (max - min) / 255, has one
specification("DynamicQuantizeLinear")


def scale_of_elements(op: Builder, n: NodeView, scale: Var, like: Var) -> Var:
    """The scale that each element of `like` has by the attributes of `n`; a single one as a scalar."""
    if scale.rank == 0 or scale.shape == (1,):
        return op.scalar(scale)
    attributes = {k: v for k, v in n.node.attributes.items() if k in ("axis", "block_size")}
    ones = op.Expand(op.const(np.int8(1)), op.shape(like))
    return op.var(op.emit("DequantizeLinear", (ones.value, scale.value), attributes)[0])


def scale_share(op: Builder, n: NodeView, ct: Var) -> Var:
    """ct (x - zero point), summed over the elements that share a scale: all, those of a place on `axis`, a
    block."""
    scale = n.x_scale
    operands = [n.x.value, op.ones_like(scale).value] + ([n.x_zero_point.value] if n.x_zero_point is not None else [])
    unit = op.var(op.emit("DequantizeLinear", operands, dict(n.node.attributes))[0])
    share = ct * unit
    axis, block = n.node.attributes.get("axis", 1), n.node.attributes.get("block_size", 0)
    if block:
        out = _sum_blocks(op, share, scale, axis, block)
    elif scale.rank == 0 or scale.shape == (1,):
        out = op.reshape_like(op.ReduceSum(share, keepdims=0), scale)
    else:
        out = _sum_others(op, share, scale, axis)
    return op.cast_like(out, scale)


def _sum_others(op: Builder, share: Var, scale: Var, axis: int) -> Var:
    """Summed over all axes but one, and over that one too if the run finds a single scale."""
    if share.rank is not None:
        rest = op.const(np.asarray([i for i in range(share.rank) if i != axis % share.rank], np.int64))
    else:
        rank = op.rank(share)
        kept = op.const([axis]) if axis >= 0 else rank + axis
        rest = op.Squeeze(op.NonZero(op.Not(op.Equal(op.iota(rank), kept))), [0])
    line = op.ReduceSum(share, rest, keepdims=0, noop_with_empty_axes=1)
    if scale.rank == 1:
        return op.sum_to(line, scale)
    # one scale or one for each place, a scalar or a vector: only the run tells
    column = op.Reshape(scale, [-1])
    return op.reshape_like(op.sum_to(op.Reshape(line, [-1]), column), scale)


def _sum_blocks(op: Builder, share: Var, scale: Var, axis: int, block: int) -> Var:
    """Summed over runs of `block` elements along `axis`, the last of which may be shorter."""
    blocks = op.extent(scale, axis)
    missing = blocks * block - op.extent(share, axis)
    pads = op.Concat(op.const([0]), missing, axis=0)
    padded = op.Pad(share, pads, None, op.const([axis]))
    shape = op.shape(share)
    before = op.Slice(shape, [0], [axis])
    after = [] if axis == -1 else [op.Slice(shape, [axis + 1], [2**31])]
    split = op.Reshape(padded, op.Concat(before, blocks, op.const([block]), *after, axis=0), allowzero=1)
    summed = op.ReduceSum(split, [axis + 1 if axis >= 0 else axis], keepdims=0)
    return op.fit_type(summed, scale)


linear("DequantizeLinear", x_scale=scale_share)
