"""Pools: sums, maxima and norms over windows or over everything, and MaxUnpool.

The sum over windows is a convolution of every channel by itself with a kernel of ones; its geometry and its transpose
are those of `convolution`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.extents import extent, numbers
from onnxad_rules.families.convolution import Geometry, padded, to_image
from onnxad_rules.kinds import linear, pushforward
from onnxad_rules.node import NodeView
from onnxad_rules.windows import as_var, axes_but, explicit_pads, single_channels, spatial_size

# --- windows


def pool_geometry(op: Builder, n: NodeView) -> Geometry:
    """The geometry of a pooling node. With `ceil_mode` the end pads reach to the end of the last window."""
    kernel = n.kernel_shape
    r = len(kernel)
    ones = (1,) * r
    dilations = n.node.attributes.get("dilations") or ones  # AveragePool has none before opset 19
    g = Geometry(r, kernel, n.strides or ones, dilations, 1, True, (0,) * r, (0,) * r)
    span = g.span()
    assert span is not None
    begin, end = explicit_pads(op, n, n.X, g.strides, span)
    if n.ceil_mode:
        if _static(n) and isinstance(begin, tuple) and isinstance(end, tuple):
            sizes = zip(_sides(n.X), _sides(n.Y), g.strides, span, begin, end, strict=True)
            end = tuple(max((o - 1) * s + k - d - b, e) for d, o, s, k, b, e in sizes)
        else:
            begin = as_var(op, begin)
            image, grid = op.Shape(n.X, start=2), op.Shape(n.Y, start=2)
            end = op.Max((grid - 1) * list(g.strides) + list(span) - image - begin, as_var(op, end))
    return replace(g, begin=begin, end=end)


def _sides(x: Var) -> tuple[int, ...]:
    assert x.shape is not None
    return numbers(x.shape[2:]) or ()


def _static(n: NodeView) -> bool:
    return all(x.shape is not None and numbers(x.shape[2:]) is not None for x in (n.X, n.Y))


def window_sum(op: Builder, g: Geometry, x: Var, grid: Var) -> Var:
    """The sum of `x` over each window, of the shape of `grid`."""
    if not g.static_pads:
        x, g = padded(op, x, g), g.unpadded()
    flat = single_channels(op, x, g.spatial)
    ones = op.const(np.ones((1, 1, *g.kernel)), x.dtype)
    return op.reshape_like(op.Conv(flat, ones, **g.attributes()), grid)


def window_spread(op: Builder, g: Geometry, ct: Var, image: Var) -> Var:
    """The transpose of `window_sum`: every element goes to its whole window."""
    flat = single_channels(op, ct, g.spatial)
    ones = op.const(np.ones((1, 1, *g.kernel)), ct.dtype)
    return op.reshape_like(to_image(op, g, flat, ones, single_channels(op, image, g.spatial)), image)


# --- AveragePool


def window_counts(op: Builder, n: NodeView, g: Geometry) -> float | Var:
    """How many elements each window of an AveragePool divides by: one number, or a Var that broadcasts.

    The taps on the image, or with `count_include_pad` on the image and its pads (not beyond them, where `ceil_mode`
    lets a window reach).
    """
    whole = float(math.prod(n.kernel_shape))
    spatial = g.spatial
    begin, end = explicit_pads(op, n, n.X, g.strides, g.span() or ())
    padless = isinstance(begin, tuple) and isinstance(end, tuple) and not any(begin + end)
    if not n.ceil_mode and (n.count_include_pad or padless):
        return whole
    factors: list[Var] = []
    for i in range(spatial):
        image, grid = extent(op, n.X, i + 2), extent(op, n.Y, i + 2)
        first = _part(op, begin, i)
        low = op.const([0]) - first if n.count_include_pad else op.const([0])
        high = op.const([image]) if isinstance(image, int) else image
        if n.count_include_pad:
            high = high + _part(op, end, i)
        starts = op.iota(op.const([grid]) if isinstance(grid, int) else grid) * g.strides[i] - first
        taps = op.Unsqueeze(starts, [1]) + [k * g.dilations[i] for k in range(int(g.kernel[i]))]
        inside = op.And(op.GreaterOrEqual(taps, low), op.Less(taps, high))
        count = op.ReduceSum(op.Cast(inside, to=int(n.X.dtype)), [1], keepdims=0)
        factors.append(op.Unsqueeze(count, list(range(1, spatial - i))) if i < spatial - 1 else count)
    return reduce(op.Mul, factors)


def _part(op: Builder, pads: tuple[int, ...] | Var, i: int) -> Var:
    return op.const([pads[i]]) if isinstance(pads, tuple) else op.Slice(pads, [i], [i + 1], [0])


def _average_transpose(op: Builder, n: NodeView, ct: Var) -> Var:
    g = pool_geometry(op, n)
    counts = window_counts(op, n, g)
    span = g.span()
    if isinstance(counts, float) and span is not None and isinstance(g.begin, tuple) and set(g.strides) == {1}:
        # windows at every place: the transpose is the pool of the padded cotangent
        pads = [s - 1 - p for s, p in zip(span + span, g.pads(), strict=True)]
        if min(pads) >= 0:
            attributes = {"kernel_shape": g.kernel, "dilations": g.attributes()["dilations"]}
            if any(pads):
                attributes |= {"pads": tuple(pads), "count_include_pad": 1}
            return op.AveragePool(ct, **attributes)
    return window_spread(op, g, ct / counts, n.X)


linear("AveragePool", X=_average_transpose)


# --- MaxPool and MaxUnpool


def _max_pool(op: Builder, n: NodeView, t: Var) -> Var:
    """The tangent at the place of each maximum. Of equal maxima the runtime picks one (the first), as PyTorch does."""
    places = n.Indices
    if places is None or n.storage_order:
        again = {k: a for k, a in n.node.attributes.items() if k != "storage_order"}
        _, places = op.MaxPool(n.X, outputs=2, **again)
    return op.Gather(op.Reshape(t, [-1]), places, axis=0)


pushforward("MaxPool", X=_max_pool)


def _unpool_transpose(op: Builder, n: NodeView, ct: Var) -> Var:
    """The cotangent at the places that were written."""
    if n.output_shape is None:
        return op.Gather(op.Reshape(ct, [-1]), n.I, axis=0)
    # Runtimes disagree about what places mean in another shape (the one inferred, or `output_shape`): unpool the
    # number of each element to see where the runtime put it; in two digits, which are exact in single precision.
    size = op.Size(n.X)
    number = op.reshape_like(op.iota(size), n.X)
    base = op.const(2**20)

    def where(digit: Var) -> Var:
        marks = op.Cast(digit, to=int(DataType.FLOAT))
        return op.Cast(op.MaxUnpool(marks, n.I, n.output_shape, **n.node.attributes), to=int(DataType.INT64))

    source = where(number / base) * base + where(op.Mod(number, base) + 1)  # 0 where nothing was put
    zeros = op.Expand(op.like(0, ct), op.Unsqueeze(size, [0]) + 1)
    found = op.ScatterElements(zeros, op.Reshape(source, [-1]), op.Reshape(ct, [-1]), reduction="add")
    return op.reshape_like(op.Slice(found, [1], [2**63 - 1], [0]), n.X)


linear("MaxUnpool", X=_unpool_transpose)


# --- norms over windows


def _power_terms(op: Builder, p: int, x: Var, y: Var, t: Var) -> tuple[Var, Var | None]:
    """What the tangent of (sum |x|^p)^(1/p) sums, and what the sum is divided by.

    d y = sum(sign(x) |x|^(p-1) t) / y^(p-1), and 0 where y = 0.
    """
    if p == 1:
        return op.Sign(x) * t, None
    inner = x if p == 2 else x * op.Pow(op.Abs(x), op.like(p - 2, x))
    safe = op.where(op.Equal(y, op.like(0, y)), 1, y)
    return inner * t, safe if p == 2 else op.Pow(safe, op.like(p - 1, y))


def _lp_pool(op: Builder, n: NodeView, t: Var) -> Var:
    terms, over = _power_terms(op, n.p, n.X, n.Y, t)
    summed = window_sum(op, pool_geometry(op, n), terms, n.Y)
    return summed if over is None else summed / over


pushforward("LpPool", X=_lp_pool)


# --- pools over everything


def _global_average_transpose(op: Builder, n: NodeView, ct: Var) -> Var:
    size = spatial_size(op, n.X)
    share = (
        ct * op.like(1 / size, ct)
        if isinstance(size, int) and size
        else ct / op.cast_like(op.const([size]) if isinstance(size, int) else size, ct)
    )
    return op.expand_to(share, n.X)


def _global_max(op: Builder, n: NodeView, t: Var) -> Var:
    """The tangent at the first of the maxima."""
    flat = op.Shape(n.X, end=2)
    target = op.Concat(flat, op.const([-1]), axis=0)
    place = op.ArgMax(op.Reshape(n.X, target), axis=2, keepdims=1)
    return op.reshape_like(op.GatherElements(op.Reshape(t, target), place, axis=2), n.Y)


def _global_lp(op: Builder, n: NodeView, t: Var) -> Var:
    terms, over = _power_terms(op, n.p, n.X, n.Y, t)
    summed = op.ReduceSum(terms, axes_but(op, n.X, 0, 1), keepdims=1)
    return summed if over is None else summed / over


linear("GlobalAveragePool", X=_global_average_transpose)
pushforward("GlobalMaxPool", X=_global_max)
pushforward("GlobalLpPool", X=_global_lp)
