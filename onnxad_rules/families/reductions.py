"""Reductions over axes, static or computed, kept or dropped.

Without axes (omitted, or empty) everything is reduced, or nothing with `noop_with_empty_axes`; the tangents
below use ReduceSum with the axes and attributes of the operator itself, so they follow it in each of these
cases.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.context import LARGEST, positive
from onnxad_rules.kinds import linear, pushforward
from onnxad_rules.node import NodeView
from onnxad_rules.products import is_zero, rows_of_zeros


def _sum(op: Builder, n: NodeView, x: Var) -> Var:
    """`x`, of the shape of the operand, summed as the operator reduces."""
    noop = n.noop_with_empty_axes or None
    return op.ReduceSum(x, n.axes, keepdims=n.keepdims, noop_with_empty_axes=noop)


def _kept(op: Builder, n: NodeView, y: Var) -> Var:
    """`y`, of the shape of the result, with the reduced axes in place, to broadcast against the operand."""
    if n.keepdims or n.axes is None or y.rank == 0:
        return y
    return op.Unsqueeze(y, n.axes)


linear("ReduceSum", data=lambda op, n, ct: op.unreduce(ct, n.data, n.axes, n.keepdims))


# --- means


def _mean(op: Builder, n: NodeView, ct: Var) -> Var:
    return op.unreduce(ct * _share(op, n), n.data, n.axes, n.keepdims)


def _share(op: Builder, n: NodeView) -> Var:
    """1 / how many elements each element of the result is the mean of."""
    count = _static_count(op, n)
    if count is not None:
        return op.like(1 / max(count, 1), n.data)
    size = op.Div(op.Size(n.data), op.Max(op.Size(n.reduced), op.const(1)))
    # in a wide type: a large count has no place in half precision
    wide = DataType.DOUBLE if n.data.dtype == DataType.DOUBLE else DataType.FLOAT
    return op.cast_like(op.Reciprocal(op.Cast(size, to=int(wide))), n.data)


def _static_count(op: Builder, n: NodeView) -> int | None:
    """How many elements are reduced to one, None where only the run tells."""
    shape, axes = n.data.shape, op.known(n.axes)
    if shape is None or (n.axes is not None and axes is None):
        return None
    if not axes:
        if n.noop_with_empty_axes:
            return 1
        axes = tuple(range(len(shape)))
    extents = [shape[a] for a in axes if isinstance(a, int)]
    if len(extents) < len(axes):
        return None
    count = 1
    for d in extents:
        if not isinstance(d, int):
            return None
        count *= d
    return count


linear("ReduceMean", data=_mean)


# --- extrema: ties share the derivative evenly, as PyTorch's amax and amin


def _extremum(op: Builder, n: NodeView, t: Any) -> Var:
    at = op.cast_like(op.Equal(n.data, _kept(op, n, n.reduced)), n.data)
    count = _sum(op, n, at)
    if not _static_count(op, n):
        count = op.Max(count, op.like(1, count))  # the extremum of nothing is constant
    return _sum(op, n, t.data * at) / count


pushforward("ReduceMax")(_extremum)
pushforward("ReduceMin")(_extremum)


# --- norms


@pushforward("ReduceL1")
def _l1(op: Builder, n: NodeView, t: Any) -> Var:
    """PyTorch: |x|' is 0 at 0."""
    return _sum(op, n, op.Sign(n.data) * t.data)


@pushforward("ReduceL2")
def _l2(op: Builder, n: NodeView, t: Any) -> Var:
    """PyTorch: 0 where the norm is 0. Dividing by infinity there also keeps its square, and its tangent,
    finite."""
    norm = n.reduced
    divisor = op.where(op.Equal(norm, op.like(0, norm)), np.inf, norm)
    return _sum(op, n, n.data * t.data) / divisor


@pushforward("ReduceSumSquare")
def _sum_square(op: Builder, n: NodeView, t: Any) -> Var:
    return _sum(op, n, n.data * t.data) * 2


# --- logarithms


@pushforward("ReduceLogSum")
def _log_sum(op: Builder, n: NodeView, t: Any) -> Var:
    return _sum(op, n, t.data) / positive(op, _sum(op, n, n.data))


@pushforward("ReduceLogSumExp")
def _log_sum_exp(op: Builder, n: NodeView, t: Any) -> Var:
    """The weights exp(x - y); zero, not undefined, where every x and so y is minus infinity."""
    low = op.like(-LARGEST[n.reduced.dtype], n.reduced)
    y = op.where(op.Greater(n.reduced, low), n.reduced, low)  # some runtimes have NaN for minus infinity
    return _sum(op, n, op.Exp(n.data - _kept(op, n, y)) * t.data)


# --- products


@pushforward("ReduceProd")
def _prod(op: Builder, n: NodeView, t: Any) -> Var:
    """y sum(t / x) over the factors that are not zero; for each that is, t times the product of the
    others."""
    if n.noop_with_empty_axes and (n.axes is None or op.known(n.axes) == ()):
        return t.data
    x, zero = n.data, is_zero(op, n.data)
    smooth = n.reduced * _sum(op, n, op.where(zero, 0, t.data) / op.where(zero, 1, x))
    here = rows_of_zeros(op, zero)
    axes = _axes_behind_rows(op, n)
    how = {"keepdims": n.keepdims, "noop_with_empty_axes": None if op.known(axes) else 1}  # never over the rows
    others = op.ReduceProd(op.where(here, 1, x), axes, **how)
    own = op.ReduceSum(op.where(here, t.data, 0), axes, **how)
    return smooth + op.ReduceSum(own * others, [0], keepdims=0)


def _axes_behind_rows(op: Builder, n: NodeView) -> Var:
    """The reduced axes of the operand as axes of a tensor with one more axis in front."""
    rank = n.data.rank
    if n.axes is None:
        return _all_axes(op, n)
    axes = op.known(n.axes)
    if axes and all(isinstance(a, int) for a in axes):
        return op.const([a + 1 if isinstance(a, int) and a >= 0 else a for a in axes])
    if axes == ():
        return _all_axes(op, n)
    given = n.axes + op.Cast(op.GreaterOrEqual(n.axes, op.const(0)), to=int(DataType.INT64))
    if n.noop_with_empty_axes:
        return given
    # no axes at run time mean all of them, but for that of the rows
    none = op.Cast(op.Equal(op.Size(n.axes), op.const(0)), to=int(DataType.INT64))
    count = op.Mul(op.Reshape(none, [1]), op.rank(n.data) if rank is None else op.const([rank]))
    return op.Concat(given, op.Slice(_all_axes(op, n), op.const([0]), count), axis=0)


def _all_axes(op: Builder, n: NodeView) -> Var:
    """1, 2, ..., rank of the operand."""
    rank = n.data.rank
    if rank is not None:
        return op.const(np.arange(1, rank + 1, dtype=np.int64))
    return op.Add(op.iota(op.rank(n.data)), op.const(1))
