"""Convolutions: entries become part of the batch of images or, where the kernels differ, channels of the result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched
from onnxad_rules.extents import extent, numbers, reshape
from onnxad_rules.node import NodeView
from onnxad_rules.windows import single_channels, spatial_size

#: Kernels of every entry with more taps than this are run one after the other: unfolding costs taps squared.
MANY_TAPS = 16


@batched("Conv", any_rank=True)
def _conv(op: Builder, n: NodeView, b: Batch) -> Any:
    return _convolution(op, n, b, 0)


@batched("ConvTranspose", any_rank=True)
def _conv_transpose(op: Builder, n: NodeView, b: Batch) -> Any:
    return _convolution(op, n, b, 1)


def _convolution(op: Builder, n: NodeView, b: Batch, axis: int) -> Any:
    """`axis`: of the kernels, along which the channels of the result are."""
    if b.only("X"):
        return b.unfold(b.again(b.fold(n.X), n.W, n.B), n.X)
    if n.X.rank is None or n.W.rank is None:
        return NotImplemented
    if b.W is None:
        y = b.again(n.X, n.W) if b.X is None else b.unfold(b.again(b.fold(n.X), n.W), n.X)
    else:
        m = extent(op, b.W, axis + 1)
        if axis == 0:
            m = m // n.group if isinstance(m, int) else m / n.group
        if b.X is None:
            y = _apart(op, b, b.again(n.X, _kernels(op, n, b, axis, m)), n.group, m)
        elif isinstance(b.dim, int):  # groups for every entry: `group` is a number, so the number of entries has to be
            y = b.again(_joint(op, b, b.X, 1), b.fold(n.W), group=n.group * b.dim)
            y = _apart(op, b, y, 1, m * n.group)
        elif axis == 0 and (taps := numbers(n.W.shape[2:])) is not None and math.prod(taps) <= MANY_TAPS:
            y = _by_products(op, n, b, taps, m)
        else:
            return NotImplemented
    if n.B is None:
        return y
    bias = n.B if b.B is None else op.Unsqueeze(b.B, [1])
    return y + op.Unsqueeze(bias, list(range(-(n.X.rank - 2), 0)))


def _kernels(op: Builder, n: NodeView, b: Batch, axis: int, m: int | Var) -> Var:
    """The kernels of all entries as those of one convolution: within a group they follow each other.

    A Conv has its groups along `axis` as well, a ConvTranspose along the other axis.
    """
    if axis == 1 or n.group == 1:
        return _joint(op, b, b.W, axis)
    rank = n.W.rank
    rest = [extent(op, b.W, a) for a in range(2, rank + 1)]
    split = reshape(op, b.W, [b.count, n.group, m, *rest])
    turned = op.Transpose(split, perm=[1, 0, *range(2, rank + 2)])
    return reshape(op, turned, [b.count * (m * n.group), *rest])


def _joint(op: Builder, b: Batch, x: Var, axis: int) -> Var:
    """A twin without its first axis, which stands before `axis` of one entry, the two made one."""
    rank = x.rank
    assert rank is not None
    sides = [extent(op, x, a) for a in range(1, rank)]
    turned = op.Transpose(x, perm=[*range(1, axis + 1), 0, *range(axis + 1, rank)]) if axis else x
    return reshape(op, turned, [*sides[:axis], b.count * sides[axis], *sides[axis + 1 :]])


def _apart(op: Builder, b: Batch, y: Var, groups: int, m: int | Var) -> Var:
    """A result [B, groups * n * m, ...] as [n, B, groups * m, ...]."""
    rank = y.rank
    assert rank is not None
    batch, *sides = (extent(op, y, a) for a in (0, *range(2, rank)))
    if groups == 1:
        split = reshape(op, y, [batch, b.count, m, *sides])
        return op.Transpose(split, perm=[1, 0, *range(2, rank + 1)])
    split = reshape(op, y, [batch, groups, b.count, m, *sides])
    turned = op.Transpose(split, perm=[2, 0, 1, *range(3, rank + 2)])
    return reshape(op, turned, [b.count, batch, m * groups, *sides])


def _by_products(op: Builder, n: NodeView, b: Batch, taps: tuple[int, ...], m: int | Var) -> Var:
    """Windows of all images, unfolded by a convolution with one-hot kernels, times the kernels of their entry."""
    rank, count = n.W.rank, math.prod(taps)
    x = b.fold(n.X)
    one_hot = op.const(np.eye(count).reshape(count, 1, *taps), x.dtype)
    columns = b.again(single_channels(op, x, rank - 2), one_hot, group=None)
    batch, inside = extent(op, b.X, 1), extent(op, b.W, 2)
    places, sides = spatial_size(op, columns), [extent(op, columns, a) for a in range(2, rank)]
    right = reshape(op, columns, [b.count, batch, n.group, inside * count, places])
    left = reshape(op, b.W, [b.count, 1, n.group, m, inside * count])
    return reshape(op, op.MatMul(left, right), [b.count, batch, m * n.group, *sides])
