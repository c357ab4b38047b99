"""Pools over regions of interest: RoiAlign and MaxRoiPool.

Conventions: at the edge of a pixel, of the image or of the smallest region the derivative with respect to a box is that
of the side where nothing is cut off, or zero; elements that tie for a maximum share it.
"""

from __future__ import annotations

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.extents import extent, product, reshape
from onnxad_rules.kinds import decompose
from onnxad_rules.node import NodeView
from onnxad_rules.sampling import LINEAR, clamp, pixel_rows, taps

# --- RoiAlign


def _samples(op: Builder, n: NodeView, size: Var, bins: int) -> tuple[Var, Var | None, Var]:
    """Along one axis, for regions of a size: where in a bin its samples lie (in bins) [regions, samples], which of
    them there are (None: all), and how many, [regions, 1].

    An adaptive number differs from region to region: the most that any takes are made, and some masked.
    """
    half = op.like(0.5, size)
    if n.sampling_ratio > 0:
        count = op.const([[n.sampling_ratio]], size.dtype)
        number = op.const([n.sampling_ratio])
    else:
        count = op.Unsqueeze(op.Ceil(size / op.like(bins, size)), [1])
        number = op.Max(op.Cast(op.ReduceMax(count, keepdims=0), to=DataType.INT64), op.const(1))
    i = op.iota(number, size.dtype)
    there = op.Less(i, count) if n.sampling_ratio <= 0 else None
    divisor = op.Max(count, op.like(1, count)) if n.sampling_ratio <= 0 else count
    return (i + half) / divisor, there, divisor


def _axis_taps(op: Builder, n: NodeView, axis: int, start: Var, size: Var, bins: int) -> tuple[Var, Var, Var | None]:
    """The pixels along one axis that each bin reads, their weights, and which are there: [regions, bins, taps].

    For the average, the weights are divided by the number of samples.
    """
    within, there, count = _samples(op, n, size, bins)
    step = op.Unsqueeze(size / op.like(bins, size), [1, 2])
    first = op.const(np.arange(bins).reshape(-1, 1), size.dtype) + op.Unsqueeze(within, [1])
    place = op.Unsqueeze(start, [1, 2]) + first * step  # [regions, bins, samples]
    side = op.cast_like(op.scalar(op.extent(n.X, axis)), place)
    last = side - op.like(1, side)
    inside = op.And(op.GreaterOrEqual(place, op.like(-1, place)), op.LessOrEqual(place, side))
    index, weight = taps(op, clamp(op, place, op.like(0, place), last), LINEAR)
    index = op.Min(index, last)
    seen = inside if there is None else op.And(inside, op.Unsqueeze(there, [1]))
    weight = weight * op.Unsqueeze(op.cast_like(seen, weight), [-1])
    if n.mode == "avg":
        weight = weight / op.Unsqueeze(count, [2, 3])
    every = [extent(op, n.rois, 0), bins, product([2, extent(op, index, 2)])]
    if there is not None:
        there = reshape(op, op.Expand(op.Unsqueeze(there, [1, 3]), op.Shape(weight)), every)
    return reshape(op, index, every), reshape(op, weight, every), there


def _axis_matrix(op: Builder, index: Var, weight: Var, side: Var) -> Var:
    """Taps [regions, bins, taps] as a matrix of weights [regions, bins, pixels]."""
    hit = op.Equal(op.Unsqueeze(index, [3]), op.iota(side, index.dtype))
    total = op.MatMul(op.Unsqueeze(weight, [2]), op.cast_like(hit, weight))
    return op.Squeeze(total, [2])


@decompose("RoiAlign", ranks=lambda n: [dict(X="ncxy", rois=["r", 4], batch_indices="r", Y="rcXY")])
def _roi_align(op: Builder, n: NodeView) -> Var:
    image, rois = n.X, n.rois
    height, width = n.output_height, n.output_width
    scaled = rois * op.like(n.spatial_scale, rois)
    shift = n.coordinate_transformation_mode == "half_pixel"
    if shift:
        scaled = scaled - op.like(0.5, scaled)
    x1, y1, x2, y2 = (op.Gather(scaled, op.const(i), axis=1) for i in range(4))

    def size(low: Var, high: Var) -> Var:
        d = high - low
        return d if shift else op.where(op.Greater(d, op.like(1, d)), d, 1)  # at least one pixel

    rows, row_weight, row_there = _axis_taps(op, n, 2, y1, size(y1, y2), height)
    columns, column_weight, column_there = _axis_taps(op, n, 3, x1, size(x1, x2), width)
    if n.mode == "avg" and n.sampling_ratio <= 0:
        # large regions have many samples: fewer numbers in a matrix over all pixels of each axis
        images = image if image.shape is not None and image.shape[0] == 1 else op.Gather(image, n.batch_indices)
        above = op.Unsqueeze(_axis_matrix(op, rows, row_weight, op.extent(image, 2)), [1])
        beside = op.Unsqueeze(_axis_matrix(op, columns, column_weight, op.extent(image, 3)), [1])
        return op.MatMul(op.MatMul(above, images), op.swap(beside))

    def outer(a: Var) -> Var:  # [regions, height, 1, taps, 1]
        return op.Unsqueeze(a, [2, 4])

    def inner(a: Var) -> Var:  # [regions, 1, width, 1, taps]
        return op.Unsqueeze(a, [1, 3])

    def whole(a: Var) -> Var:
        return op.Cast(a, to=DataType.INT64)

    pixels = product([extent(op, image, a) for a in (2, 3)])
    place = outer(whole(rows) * op.extent(image, 3)) + inner(whole(columns))
    place = place + op.Unsqueeze(whole(n.batch_indices) * pixels, [1, 2, 3, 4])
    weight = outer(row_weight) * inner(column_weight)
    regions, count = extent(op, rois, 0), _tap_count(op, n, rows, columns)
    place = reshape(op, place, [regions, height * width, count])
    weight = reshape(op, weight, [regions, height * width, 1, count])
    values = op.Gather(pixel_rows(op, image), place, axis=0)
    if n.mode == "avg":
        out = op.Squeeze(op.MatMul(weight, values), [2])
    else:
        # the maximum of the weighted taps, not of the interpolated samples: so the runtimes have it
        values = values * op.swap(weight)
        if row_there is not None and column_there is not None:
            there = op.And(outer(row_there), inner(column_there))
            there = reshape(op, there, [regions, height * width, count, 1])
            some = op.ReduceMax(op.cast_like(there, values), [2], keepdims=0)
            values = op.Where(there, values, op.like(-np.inf, values))
            out = op.where(op.Greater(some, op.like(0, some)), op.ReduceMax(values, [2], keepdims=0), 0)
        else:
            out = op.ReduceMax(values, [2], keepdims=0)
    return op.reshape_like(op.Transpose(out, perm=(0, 2, 1)), n.Y)


def _tap_count(op: Builder, n: NodeView, rows: Var, columns: Var) -> int | Var:
    """How many pixels each bin reads."""
    if n.sampling_ratio > 0:
        return 4 * n.sampling_ratio**2
    return product([extent(op, rows, 2), extent(op, columns, 2)])


# --- MaxRoiPool


def _bin_mask(op: Builder, first: Var, last: Var, bins: int, side: Var) -> Var:
    """Which pixels along an axis each bin of a region holds: [regions, bins, pixels]. Regions are whole pixels."""
    one = op.like(1, first)
    step = op.Unsqueeze(op.Max(last - first + one, one) / op.like(bins, first), [1])
    i = op.const(np.arange(bins), first.dtype)
    first = op.Unsqueeze(first, [1])
    low = op.Floor(i * step) + first
    high = op.Ceil((i + one) * step) + first
    pixel = op.iota(side, first.dtype)
    return op.And(op.GreaterOrEqual(pixel, op.Unsqueeze(low, [2])), op.Less(pixel, op.Unsqueeze(high, [2])))


@decompose("MaxRoiPool", zeros=("rois",), ranks=lambda n: [dict(X="ncxy", rois=["r", 5], Y="rcXY")])
def _max_roi_pool(op: Builder, n: NodeView) -> Var:
    """Maxima over the columns of each bin, then over its rows; 0 for an empty bin. Boxes are rounded to pixels."""
    image, rois = n.X, n.rois
    height, width = n.pooled_shape
    scaled = op.Slice(rois, [1], [5], [1]) * op.like(n.spatial_scale, rois)
    # halves are rounded away from zero
    whole = op.Sign(scaled) * op.Floor(op.Abs(scaled) + op.like(0.5, scaled))
    x1, y1, x2, y2 = (op.Gather(whole, op.const(i), axis=1) for i in range(4))
    batch = op.Cast(op.Gather(rois, op.const(0), axis=1), to=DataType.INT64)
    image = op.Gather(image, batch, axis=0)  # [regions, C, H, W]
    lowest = op.like(-np.inf, image)
    columns = op.Unsqueeze(_bin_mask(op, x1, x2, width, op.extent(n.X, 3)), [1, 2])
    rows = op.Unsqueeze(_bin_mask(op, y1, y2, height, op.extent(n.X, 2)), [1, 4])
    wide = op.ReduceMax(op.Where(columns, op.Unsqueeze(image, [3]), lowest), [4], keepdims=0)
    out = op.ReduceMax(op.Where(rows, op.Unsqueeze(wide, [2]), lowest), [3], keepdims=0)
    return op.where(op.Equal(out, lowest), 0, out)
