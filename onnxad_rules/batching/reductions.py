"""Operators along axes: reductions, cumulations, normalizations."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, batched, shift, shift_axes
from onnxad_rules.node import NodeView


@batched(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
)  # fmt: skip
def _reduce(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("data"):
        return NotImplemented
    every = list(range(1, 1 + n.data.rank))
    count = 0 if n.axes is None else n.axes.shape[0] if n.axes.shape is not None else None
    if count == 0:
        if n.noop_with_empty_axes:
            return b.again(b.data, n.axes)
        return b.again(b.data, op.const(every)) if every else b.again(b.data, n.axes, noop_with_empty_axes=1)
    if not isinstance(count, int):
        return NotImplemented
    return b.again(b.data, shift_axes(op, n.axes))


@batched("ArgMax", "ArgMin")
def _argument(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.data, axis=shift(n.axis))


@batched("Softmax", "LogSoftmax", "Hardmax", "LpNormalization")
def _along_axis(op: Builder, n: NodeView, b: Batch) -> Any:
    (x,) = n.node.inputs
    return b.again(b.twin(x), axis=shift(n.axis))


@batched("CumSum", "CumProd")
def _cumulate(op: Builder, n: NodeView, b: Batch) -> Any:
    x, axis = n.node.inputs
    if b.twin(axis) is not None or axis is None:
        return NotImplemented
    return b.again(b.twin(x), shift_axes(op, op.var(axis)))


@batched("LayerNormalization", "RMSNormalization")
def _normalize(op: Builder, n: NodeView, b: Batch) -> Any:
    first, *others = n.node.inputs
    if any(b.twin(v) is not None for v in others):
        return NotImplemented
    return b.again(b.twin(first), *(None if v is None else op.var(v) for v in others), axis=shift(n.axis))
