"""Operators that read and write at indices."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.batching.core import Batch, batched, shift
from onnxad_rules.node import NodeView


@batched("Gather", any_rank=True)
def _gather(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.indices is None:
        return op.Gather(b.data, n.indices, axis=shift(n.axis))
    rank = n.indices.rank
    if rank is None or n.data.rank is None:
        return NotImplemented
    axis = n.axis % n.data.rank
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


@batched("GatherElements", any_rank=True)
def _gather_elements(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.GatherElements(b.full(n.data), b.full(n.indices), axis=shift(n.axis))


@batched("GatherND", any_rank=True)
def _gather_nd(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.data is None and not n.batch_dims:
        return op.GatherND(n.data, b.indices)
    return op.GatherND(b.full(n.data), b.full(n.indices), batch_dims=n.batch_dims + 1)


@batched("ScatterElements", any_rank=True)
def _scatter_elements(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(*map(b.full, (n.data, n.indices, n.updates)), axis=shift(n.axis))


@batched("ScatterND", any_rank=True)
def _scatter_nd(op: Builder, n: NodeView, b: Batch) -> Any:
    """Every entry is another index along the first axis."""
    return b.again(b.full(n.data), _numbered(op, b, n.indices), b.full(n.updates))


def _numbered(op: Builder, b: Batch, indices: Var) -> Var:
    """Tuples of indices, each with the number of its entry in front."""
    full = b.full(indices)
    column = op.Concat(op.const([-1]), op.Expand(op.const([1]), b.rank(indices)), axis=0)
    entries = op.Reshape(op.iota(b.size), column)
    one = op.Slice(op.Shape(full), [0], [-1], [0])
    return op.Concat(op.Expand(entries, op.Concat(one, op.const([1]), axis=0)), full, axis=-1)


@batched("TensorScatter", any_rank=True)
def _tensor_scatter(op: Builder, n: NodeView, b: Batch) -> Any:
    """The entries become part of the batch, the first axis, along which there is one place to write at for each."""
    rank = n.past_cache.rank
    if n.axis == 0 or (rank is not None and n.axis == -rank):
        return NotImplemented
    where = None if n.write_indices is None else b.fold(n.write_indices)
    return b.unfold(b.again(b.fold(n.past_cache), b.fold(n.update), where), n.past_cache)


@batched("ReverseSequence")
def _reverse_sequence(op: Builder, n: NodeView, b: Batch) -> Any:
    """The same, where each sequence of the batch has its own length."""
    x, lengths = b.full(n.input), b.fold(n.sequence_lens)
    turn = n.batch_axis == 1
    batch = op.Shape(x, start=2, end=3) if turn else op.Shape(x, start=1, end=2)
    order = [0, 2, 1, *range(3, n.input.rank + 1)]
    x = op.Transpose(x, perm=order) if turn else x
    tail = op.Shape(x, start=2)
    flat = op.Reshape(x, op.Concat(b.size * batch, tail, axis=0), allowzero=1)
    y = b.again(flat, lengths, batch_axis=0, time_axis=1)
    y = op.Reshape(y, op.Concat(b.size, batch, tail, axis=0), allowzero=1)
    return op.Transpose(y, perm=order) if turn else y
