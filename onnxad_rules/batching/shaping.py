"""Operators that rearrange their operand."""

from __future__ import annotations

import math
from typing import Any

from onnxad_ir.builder import Builder
from onnxad_ir.types import DataType
from onnxad_rules.batching.core import Batch, Same, batched, shift, shift_all, shift_axes
from onnxad_rules.node import NodeView


@batched("Transpose", any_rank=True)
def _transpose(op: Builder, n: NodeView, b: Batch) -> Any:
    if n.perm is None and n.data.rank is None:
        return NotImplemented
    perm = range(n.data.rank - 1, -1, -1) if n.perm is None else n.perm
    return op.Transpose(b.data, perm=[0, *(p + 1 for p in perm)])


@batched("Reshape", any_rank=True)
def _reshape(op: Builder, n: NodeView, b: Batch) -> Any:
    """The axes after the first in another shape, that of the result where it is known."""
    if not b.only("data"):
        return NotImplemented
    known = n.result(0).shape
    if known is not None and all(isinstance(d, int) and d > 0 for d in known):
        return op.Reshape(b.data, [0, *known])
    shape, target = n.shape, op.known(n.shape)
    sure = target is not None and all(isinstance(d, int) and d != 0 for d in target)
    if target is not None and sure and -1 in target:  # which no engine tells where there are no entries
        i, rest = target.index(-1), abs(math.prod(int(d) for d in target))
        size = op.ReduceProd(b.shape(n.data), keepdims=1)
        shape = op.shape_of([*target[:i], size if rest == 1 else size / rest, *target[i + 1 :]])
    elif not n.allowzero or sure:  # a zero copies an extent, that of the first axis too
        return op.Reshape(b.data, op.Concat(op.const([0]), shape, axis=0))
    return op.Reshape(b.data, op.Concat(b.size, shape, axis=0), allowzero=1)


@batched("Flatten", any_rank=True)
def _flatten(op: Builder, n: NodeView, b: Batch) -> Any:
    known = n.result(0).shape
    if known is not None and all(isinstance(d, int) and d > 0 for d in known):
        return op.Reshape(b.input, [0, *known])
    shape = b.shape(n.input)
    before, after = (
        op.ReduceProd(op.Slice(shape, [i], [k], [0]), keepdims=1) for i, k in ((0, n.axis), (n.axis, 2**62))
    )
    return op.Reshape(b.input, op.Concat(b.size, before, after, axis=0), allowzero=1)


@batched("Squeeze", any_rank=True)
def _squeeze(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("data"):
        return NotImplemented
    if n.axes is not None:
        return op.Squeeze(b.data, shift_axes(op, n.axes))
    if n.data.shape is None or not all(isinstance(d, int) for d in n.data.shape):
        shape = b.shape(n.data)
        wide = op.Compress(shape, op.Not(op.Equal(shape, op.const(1))), axis=0)
        return op.Reshape(b.data, op.Concat(b.size, wide, axis=0), allowzero=1)
    axes = [i + 1 for i, d in enumerate(n.data.shape) if d == 1]
    return op.Squeeze(b.data, axes) if axes else b.data


@batched("Unsqueeze", any_rank=True)
def _unsqueeze(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Unsqueeze(b.data, shift_axes(op, n.axes)) if b.only("data") else NotImplemented


@batched("Expand", any_rank=True)
def _expand(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("input"):
        return NotImplemented
    length = n.shape.shape[0] if n.shape.shape is not None else None
    own = n.input.rank
    if isinstance(length, int) and own is not None:
        rank = max(own, length)
        return op.Expand(b.aligned(n.input, rank), op.Concat(op.const([1] * (1 + rank - length)), n.shape, axis=0))
    size = op.Shape(n.shape)
    rank = op.Max(size, b.rank(n.input))
    ones = op.Expand(op.const([1]), rank - b.rank(n.input))
    x = op.Reshape(b.input, op.Concat(b.size, ones, b.shape(n.input), axis=0), allowzero=1)
    return op.Expand(x, op.Concat(op.Expand(op.const([1]), rank + 1 - size), n.shape, axis=0))


@batched("Concat", any_rank=True)
def _concat(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Concat(*map(b.full, n.inputs), axis=shift(n.axis))


@batched("Split", any_rank=True)
def _split(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input, n.split, axis=shift(n.axis)) if b.only("input") else NotImplemented


@batched("Tile", any_rank=True)
def _tile(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Tile(b.input, op.Concat(op.const([1]), n.repeats, axis=0)) if b.only("input") else NotImplemented


@batched("Trilu", any_rank=True)
def _trilu(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input, n.k) if b.only("input") else NotImplemented


@batched("EyeLike")
def _eye_like(op: Builder, n: NodeView, b: Batch) -> Any:
    dtype = n.dtype if n.dtype is not None else int(n.input.dtype)
    return Same(b.again(op.Expand(op.like(0, n.input), b.shape(n.input)), dtype=dtype))


@batched("OneHot", any_rank=True)
def _one_hot(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.depth is not None:
        return NotImplemented
    if b.values is None:
        return b.again(b.indices, n.depth, n.values, axis=shift(n.axis))
    indices, axis = (n.indices, n.axis) if b.indices is None else (b.indices, shift(n.axis))
    hot = op.Cast(b.again(indices, n.depth, op.const([0, 1]), axis=axis), to=int(DataType.BOOL))
    own = b.rank(n.indices)
    column = op.Concat(op.const([-1]), op.Expand(op.const([1]), own + 1), axis=0)
    off, on = (op.Reshape(op.Slice(b.values, [k], [k + 1], [1]), column) for k in (0, 1))
    return op.Where(hot, on, off)


@batched("CenterCropPad")
def _center_crop_pad(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("input_data"):
        return NotImplemented
    axes = range(n.input_data.rank) if n.axes is None else n.axes
    return b.again(b.input_data, n.shape, axes=shift_all(list(axes)))
