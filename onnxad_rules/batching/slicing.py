"""Operators that take parts of their operand, or put something around it."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, batched, shift, shift_axes
from onnxad_rules.node import NodeView


@batched("Slice")
def _slice(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("data"):
        return NotImplemented
    if n.axes is not None:
        axes = shift_axes(op, n.axes)
    elif n.starts.shape is not None and isinstance(n.starts.shape[0], int):
        axes = op.const(list(range(1, 1 + n.starts.shape[0])))
    else:
        return NotImplemented
    return op.Slice(b.data, n.starts, n.ends, axes, n.steps)


@batched("Pad")
def _pad(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("data"):
        return NotImplemented
    axes = shift_axes(op, n.axes) if n.axes is not None else op.const(list(range(1, 1 + n.data.rank)))
    return b.again(b.data, n.pads, n.constant_value, axes)


@batched("Compress")
def _compress(op: Builder, n: NodeView, b: Batch) -> Any:
    if n.axis is None or not b.only("input"):
        return NotImplemented
    return b.again(b.input, n.condition, axis=shift(n.axis))


@batched("TopK")
def _top_k(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.X, n.K, axis=shift(n.axis)) if b.only("X") else NotImplemented
