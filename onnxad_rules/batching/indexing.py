"""Operators that read and write at indices."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.batching.core import Batch, batched, shift
from onnxad_rules.node import NodeView


@batched("Gather")
def _gather(op: Builder, n: NodeView, b: Batch) -> Any:
    axis = n.axis % n.data.rank if n.data.rank is not None else n.axis
    if b.indices is None:
        return op.Gather(b.data, n.indices, axis=shift(n.axis))
    rank = n.indices.rank
    if rank is None or n.data.rank is None:
        return NotImplemented
    if b.data is None:  # the entries are where the indices are
        y = op.Gather(n.data, b.indices, axis=axis)
        return y if axis == 0 else op.Transpose(y, perm=[axis, *range(axis), *range(axis + 1, rank + n.data.rank)])
    order = [axis, *(i for i in range(n.data.rank) if i != axis)]
    data = b.data if axis == 0 else op.Transpose(b.data, perm=[0, *(i + 1 for i in order)])
    y = op.GatherND(data, op.Unsqueeze(op.Cast(b.indices, to=int(DataType.INT64)), [-1]), batch_dims=1)
    if axis == 0:
        return y
    # [n, indices, others]: the indices go where the axis was
    places = list(range(1, 1 + rank))
    others = list(range(1 + rank, rank + n.data.rank))
    return op.Transpose(y, perm=[0, *others[:axis], *places, *others[axis:]])


@batched("GatherElements")
def _gather_elements(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.GatherElements(b.full(n.data), b.full(n.indices), axis=shift(n.axis))


@batched("GatherND")
def _gather_nd(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.data is None and not n.batch_dims:
        return op.GatherND(n.data, b.indices)
    return op.GatherND(b.full(n.data), b.full(n.indices), batch_dims=n.batch_dims + 1)


@batched("ScatterElements")
def _scatter_elements(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(*map(b.full, (n.data, n.indices, n.updates)), axis=shift(n.axis))


@batched("ScatterND")
def _scatter_nd(op: Builder, n: NodeView, b: Batch) -> Any:
    """Every entry is another index along the first axis."""
    if n.indices.rank is None:
        return NotImplemented
    return b.again(b.full(n.data), _numbered(op, b, n.indices), b.full(n.updates))


def _numbered(op: Builder, b: Batch, indices: Var) -> Var:
    """Tuples of indices, each with the number of its entry in front."""
    full = b.full(indices)
    rank = indices.rank
    assert rank is not None
    entries = op.Reshape(op.iota(b.size), [-1, *[1] * rank])
    one = op.Slice(op.Shape(full), [0], [-1], [0])
    return op.Concat(op.Expand(entries, op.Concat(one, op.const([1]), axis=0)), full, axis=-1)
