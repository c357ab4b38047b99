"""Operators that take parts of their operand, or put something around it."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxad_ir.builder import Builder
from onnxad_ir.types import DataType
from onnxad_rules.batching.core import Batch, batched, shift, shift_axes
from onnxad_rules.node import NodeView


@batched("Slice", any_rank=True)
def _slice(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("data"):
        return NotImplemented
    if n.axes is not None:
        axes = shift_axes(op, n.axes)
    elif n.starts.shape is not None and isinstance(n.starts.shape[0], int):
        axes = op.const(list(range(1, 1 + n.starts.shape[0])))
    else:
        axes = op.iota(op.Shape(n.starts)) + 1
    return op.Slice(b.data, n.starts, n.ends, axes, n.steps)


@batched("Pad", any_rank=True)
def _pad(op: Builder, n: NodeView, b: Batch) -> Any:
    if n.axes is not None:
        axes = shift_axes(op, n.axes)
    elif n.data.rank is not None:
        axes = op.const(list(range(1, 1 + n.data.rank)))
    else:
        axes = op.iota(op.Shape(n.pads) / 2) + 1
    if b.only("data"):
        return b.again(b.data, n.pads, n.constant_value, axes)
    if not b.only("data", "constant_value") or n.mode != "constant":
        return NotImplemented
    # what is around one entry, of another value for each
    inside = op.Pad(op.Expand(op.const(np.int32(1)), b.shape(n.data)), n.pads, None, n.axes)
    x = b.again(n.data, n.pads, None, n.axes) if b.data is None else b.again(b.data, n.pads, None, axes)
    column = op.Concat(op.const([-1]), op.Expand(op.const([1]), b.rank(n.data)), axis=0)
    around = op.Reshape(b.constant_value, column)
    return op.Where(op.Cast(inside, to=int(DataType.BOOL)), x, around)


@batched("Compress", any_rank=True)
def _compress(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("input"):
        return NotImplemented
    if n.axis is not None:
        return b.again(b.input, n.condition, axis=shift(n.axis))
    elements = op.ReduceProd(b.shape(n.input), keepdims=1)
    return b.again(op.Reshape(b.input, op.Concat(b.size, elements, axis=0), allowzero=1), n.condition, axis=1)


@batched("TopK", any_rank=True)
def _top_k(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.X, n.K, axis=shift(n.axis)) if b.only("X") else NotImplemented
