"""Operators along axes: reductions, cumulations, normalizations."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_ir.types import DataType
from onnxad_rules.batching.core import Batch, batched, shift, shift_axes
from onnxad_rules.node import NodeView

#: Reductions that leave a single element as it is.
_KEEP_ONE = frozenset({"ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"})


@batched(
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
    any_rank=True,
)  # fmt: skip
def _reduce(op: Builder, n: NodeView, b: Batch) -> Any:
    """Where there are no axes all of them are meant: then, or where only the run knows, they are listed."""
    if not b.only("data"):
        return NotImplemented
    rank = n.data.rank
    count = 0 if n.axes is None else n.axes.shape[0] if n.axes.shape is not None else None
    if n.noop_with_empty_axes or (count and isinstance(count, int)):
        return b.again(b.data, None if n.axes is None else shift_axes(op, n.axes))
    if rank == 0:
        return b.again(op.Unsqueeze(b.data, [1]), op.const([1]), keepdims=0)
    if rank is None and n.node.op_type not in _KEEP_ONE:
        return NotImplemented
    every = op.const(list(range(1, 1 + rank))) if rank else op.iota(op.rank(b.data) - 1) + 1
    if count != 0:
        none = op.Cast(op.Equal(op.Size(n.axes), op.const(0)), to=int(DataType.INT64))
        every = op.Slice(every, [0], op.Reshape(op.Size(every) * none, [1]))
        every = op.Concat(shift_axes(op, n.axes), every, axis=0)
    return b.again(b.data, every, noop_with_empty_axes=None if rank else 1)


@batched("ArgMax", "ArgMin", any_rank=True)
def _argument(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.data, axis=shift(n.axis))


@batched("Softmax", "LogSoftmax", "Hardmax", "LpNormalization", any_rank=True)
def _along_axis(op: Builder, n: NodeView, b: Batch) -> Any:
    (x,) = n.node.inputs
    return b.again(b.twin(x), axis=shift(n.axis))


@batched("CumSum", "CumProd", any_rank=True)
def _cumulate(op: Builder, n: NodeView, b: Batch) -> Any:
    x, axis = n.node.inputs
    if b.twin(axis) is not None or axis is None:
        return NotImplemented
    return b.again(b.twin(x), shift_axes(op, op.var(axis)))
