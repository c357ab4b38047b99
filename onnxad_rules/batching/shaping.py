"""Operators that rearrange their operand."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, Same, batched, shift, shift_all, shift_axes
from onnxad_rules.node import NodeView


@batched("Transpose")
def _transpose(op: Builder, n: NodeView, b: Batch) -> Any:
    perm = n.perm or range(n.data.rank - 1, -1, -1)
    return op.Transpose(b.data, perm=[0, *(p + 1 for p in perm)])


@batched("Reshape")
def _reshape(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("data"):
        return NotImplemented
    return reshaped(op, b, b.data, n.shape, n.result(0), bool(n.allowzero))


def reshaped(op: Builder, b: Batch, x: Var, shape: Var, result: Var, allowzero: bool) -> Var:
    """A twin with the axes after the first in another shape, that of `result` where it is known."""
    known = result.shape
    if known is not None and all(isinstance(d, int) and d > 0 for d in known):
        return op.Reshape(x, [0, *known])
    target = op.known(shape)
    if not allowzero or (target is not None and 0 not in target):  # a zero copies an extent, that of the first axis too
        return op.Reshape(x, op.Concat(op.const([0]), shape, axis=0))
    return op.Reshape(x, op.Concat(b.size, shape, axis=0), allowzero=1)


@batched("Flatten")
def _flatten(op: Builder, n: NodeView, b: Batch) -> Any:
    axis = n.axis % n.input.rank if n.axis < 0 else n.axis
    known = n.result(0).shape
    if known is not None and all(isinstance(d, int) and d > 0 for d in known):
        return op.Reshape(b.input, [0, *known])
    shape = b.shape(n.input)
    before, after = (op.ReduceProd(op.Slice(shape, [i], [k], [0]), keepdims=1) for i, k in ((0, axis), (axis, 2**62)))
    return op.Reshape(b.input, op.Concat(b.size, before, after, axis=0), allowzero=1)


@batched("Squeeze")
def _squeeze(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("data"):
        return NotImplemented
    if n.axes is not None:
        return op.Squeeze(b.data, shift_axes(op, n.axes))
    if not all(isinstance(d, int) for d in n.data.shape):
        return NotImplemented
    axes = [i + 1 for i, d in enumerate(n.data.shape) if d == 1]
    return op.Squeeze(b.data, axes) if axes else b.data


@batched("Unsqueeze", any_rank=True)
def _unsqueeze(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Unsqueeze(b.data, shift_axes(op, n.axes)) if b.only("data") else NotImplemented


@batched("Expand")
def _expand(op: Builder, n: NodeView, b: Batch) -> Any:
    length = n.shape.shape[0] if n.shape.shape is not None else None
    if not b.only("input") or not isinstance(length, int):
        return NotImplemented
    rank = max(n.input.rank, length)
    return op.Expand(b.aligned(n.input, rank), op.Concat(op.const([1] * (1 + rank - length)), n.shape, axis=0))


@batched("Concat")
def _concat(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Concat(*map(b.full, n.inputs), axis=shift(n.axis))


@batched("Split")
def _split(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input, n.split, axis=shift(n.axis)) if b.only("input") else NotImplemented


@batched("Tile")
def _tile(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.Tile(b.input, op.Concat(op.const([1]), n.repeats, axis=0)) if b.only("input") else NotImplemented


@batched("Trilu")
def _trilu(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input, n.k) if b.only("input") else NotImplemented


@batched("EyeLike")
def _eye_like(op: Builder, n: NodeView, b: Batch) -> Any:
    dtype = n.dtype if n.dtype is not None else int(n.input.dtype)
    return Same(b.again(op.Expand(op.like(0, n.input), b.shape(n.input)), dtype=dtype))


@batched("OneHot")
def _one_hot(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.indices, n.depth, n.values, axis=shift(n.axis)) if b.only("indices") else NotImplemented


@batched("CenterCropPad")
def _center_crop_pad(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("input_data"):
        return NotImplemented
    axes = range(n.input_data.rank) if n.axes is None else n.axes
    return b.again(b.input_data, n.shape, axes=shift_all(list(axes)))
