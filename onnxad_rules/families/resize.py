"""Resize: linear in the image, axis by axis.

Along one axis a resize is a matrix, which the operator itself computes when it is given the identity: that is right for
every mode, coordinate transformation and policy, at build time or at run time, and constant operands make it a
constant when a runtime loads the model. The transpose of a Resize multiplies by these matrices.
"""

from __future__ import annotations

import math
import string
from typing import Any

import numpy as np

from onnxad_ir import dims
from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.types import DataType, Dim
from onnxad_rules.extents import extent, product, reshape
from onnxad_rules.kinds import pair
from onnxad_rules.node import NodeView
from onnxad_rules.ranks import Choice, by_rank, unsettled
from onnxad_rules.ruleset import NotDifferentiable

#: The highest rank that is tried where nothing tells it: a batch of volumes with channels.
MOST = 5
#: The transformations under which enlarging by a whole factor repeats every element that often, by rounding mode.
_REPEATS = {
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("asymmetric", "floor"),
}


def _attributes(n: NodeView, **changes: Any) -> dict[str, Any]:
    drop = ("axes", "keep_aspect_ratio_policy", "extrapolation_value")
    return {k: a for k, a in n.node.attributes.items() if k not in drop} | changes


def _ranks(n: NodeView) -> list[Choice]:
    """Without `axes` the operands have an entry per axis; where nothing tells the rank, each up to `MOST` is tried."""
    operands = () if n.axes else ((n.scales, 1), (n.sizes, 1), (n.roi if _crops(n) else None, 2))
    lengths = [(v.shape[0], per) for v, per in operands if v is not None and v.shape is not None]
    known = [d // per for d, per in lengths if isinstance(d, int) and d]
    least = max((a + 1 if a >= 0 else -a for a in n.axes or ()), default=1)
    ranks = known[:1] or range(least, max(least, MOST) + 1)
    letters = string.ascii_letters
    return [dict(X=letters[:k], Y=letters[26 : 26 + k], scales=["#s"], sizes=["#n"], roi=["#r"]) for k in ranks]


def _axes(n: NodeView) -> tuple[int, ...]:
    """The axes that `scales`, `sizes` and `roi` are about."""
    shape = n.X.shape if n.X.shape is not None else n.Y.shape
    if shape is None:
        raise ModelError(f"the derivative of {describe(n.node)} needs the rank of its image; infer or declare it")
    return tuple(a % len(shape) for a in n.axes or range(len(shape)))


def _scales(n: NodeView) -> tuple[float, ...] | None:
    """The scales, where they are constant."""
    if n.scales is None or n.scales.value.const is None:
        return None
    found = tuple(float(s) for s in n.scales.value.const.numpy().reshape(-1))
    return found or None


def _crops(n: NodeView) -> bool:
    return n.coordinate_transformation_mode == "tf_crop_and_resize"


def _identity(op: Builder, x: Var, axis: int) -> Var:
    """The identity matrix of the extent of one axis."""
    d = extent(op, x, axis)
    if isinstance(d, int) and d <= 32:
        return op.const(np.eye(d), x.dtype)
    shape = op.shape_of([d, d])
    return op.EyeLike(op.Expand(op.like(0, x), shape))


def _part(op: Builder, x: Var | None, *at: int) -> Var | None:
    """Some elements of an operand."""
    return None if x is None else op.Gather(x, list(at))


def axis_matrix(op: Builder, n: NodeView, index: int) -> Var:
    """The matrix [extent before, extent after] of the resize along one of its axes."""
    axes = _axes(n)
    count = len(axes)
    if n.keep_aspect_ratio_policy != "stretch":
        return _policy_matrix(op, n, index)
    roi = _part(op, n.roi, index, index + count) if _crops(n) else None
    given = n.sizes is None
    scales, sizes = (_part(op, n.scales, index), None) if given else (None, _part(op, n.sizes, index))
    eye = _identity(op, n.X, axes[index])
    return op.Resize(eye, roi, scales, sizes, **_attributes(n, axes=(1,)))


def _policy_matrix(op: Builder, n: NodeView, index: int) -> Var:
    """The same where one axis decides the scale of all: that axis is resized along, and dropped again.

    As an image of rank 4, which is what ONNX Runtime takes in every mode.
    """
    axes = _axes(n)
    extents = op.Gather(op.shape(n.X), list(axes))
    ratios = op.Cast(n.sizes, to=int(DataType.FLOAT)) / op.Cast(extents, to=int(DataType.FLOAT))
    pick = op.ArgMin if n.keep_aspect_ratio_policy == "not_larger" else op.ArgMax
    leader = pick(ratios, axis=0, keepdims=1)
    eye = op.Unsqueeze(_identity(op, n.X, axes[index]), [0, 3])
    spread = op.Expand(eye, op.Concat(op.const([1, 1, 1]), op.Gather(extents, leader), axis=0))
    sizes = op.Concat(op.Gather(n.sizes, [index]), op.Gather(n.sizes, leader), axis=0)
    attributes = _attributes(n, axes=(2, 3), keep_aspect_ratio_policy=n.keep_aspect_ratio_policy)
    roi = None
    if _crops(n):  # all of the axis that is dropped again
        whole = (op.const([edge], n.roi.dtype) for edge in (0, 1))
        parts = zip((_part(op, n.roi, i) for i in (index, index + len(axes))), whole, strict=True)
        roi = op.Concat(*(part for pair in parts for part in pair), axis=0)
    resized = op.Resize(spread, roi, None, sizes, **attributes)
    return op.Squeeze(op.Gather(resized, op.const(0), axis=3), [0])


def _same(n: NodeView, index: int, scales: tuple[float, ...] | None) -> bool:
    """True where an axis is sure to stay as it is."""
    axis = _axes(n)[index]
    if _crops(n):
        return False
    if scales is not None:
        return scales[index] == 1
    return n.X.shape is not None and n.Y.shape is not None and n.X.shape[axis] == n.Y.shape[axis]


def _repeats(op: Builder, n: NodeView) -> tuple[int, ...] | None:
    """How often each spatial element is repeated, where that is all a Resize does."""
    mode = (n.coordinate_transformation_mode, n.nearest_mode)
    x, y, scales = n.X.shape, n.Y.shape, _scales(n)
    if n.mode != "nearest" or n.antialias or mode not in _REPEATS or x is None or y is None or len(x) < 3:
        return None
    factors: list[Dim | float | None] = [1] * len(x)
    for i, axis in enumerate(_axes(n)):
        factors[axis] = dims.floordiv(y[axis], x[axis]) if scales is None else scales[i]
        if scales is None and (not isinstance(factors[axis], int) or dims.mul(x[axis], factors[axis]) != y[axis]):  # type: ignore[arg-type]
            return None
    if any(f is None or isinstance(f, str) or f != int(f) or f < 1 for f in factors) or factors[:2] != [1, 1]:
        return None
    return tuple(int(f) for f in factors[2:])  # type: ignore[arg-type]


def _transpose(op: Builder, n: NodeView, ct: Var) -> Var:
    repeats = _repeats(op, n)
    if repeats is not None:
        return op.AveragePool(ct, kernel_shape=repeats, strides=repeats) * float(math.prod(repeats))
    scales = _scales(n)
    for i, axis in enumerate(_axes(n)):
        if not _same(n, i, scales):
            ct = along(op, ct, axis, axis_matrix(op, n, i))
    return ct


def along(op: Builder, x: Var, axis: int, matrix: Var) -> Var:
    """`x` with the vectors along an axis multiplied by a matrix [after, before]."""
    rank = x.rank
    assert rank is not None
    if axis == rank - 2:
        return op.MatMul(matrix, x)
    if axis == rank - 1 and rank > 1:
        return op.MatMul(x, op.swap(matrix))
    sides = [extent(op, x, a) for a in range(rank)]
    lead, rest = product(sides[:axis]), product(sides[axis + 1 :])
    flat = op.MatMul(matrix, reshape(op, x, [lead, sides[axis], rest]))
    return reshape(op, flat, [*sides[:axis], extent(op, flat, 1), *sides[axis + 1 :]])


# --- the region of interest


def _slope(op: Builder, n: NodeView, index: int) -> tuple[Var, Var, Var]:
    """The derivative of a linear crop along one axis in its coordinates, and of those in the axis' start and end.

    The coordinate of element o is span * (start + f (end - start)), f = o / (after - 1), or 1/2 for a single element.
    """
    axes = _axes(n)
    axis, count = axes[index], len(axes)
    x = n.X
    before, after = (op.cast_like(op.extent(v, axis), x) for v in (x, n.Y))
    start, end = (op.cast_like(op.Gather(n.roi, [k]), x) for k in (index, index + count))
    last = op.Max(after - 1, op.like(1, x))
    place = op.where(op.Equal(after, op.like(1, x)), 0.5, op.iota(op.extent(n.Y, axis), x.dtype) / last)
    span = before - 1
    at = span * (start + place * (end - start))
    inside = op.And(op.GreaterOrEqual(at, op.like(0, x)), op.LessOrEqual(at, span))
    left = op.Floor(op.Min(at, op.Max(span - 1, op.like(0, x))))
    taps = op.iota(op.extent(x, axis), x.dtype)
    near, far = (op.cast_like(op.Equal(taps, op.Unsqueeze(v, [1])), x) for v in (left, left + 1))
    slope = (far - near) * op.Unsqueeze(op.cast_like(inside, x), [1])
    return _image(op, n, index, slope), span * (1 - place), span * place


def _image(op: Builder, n: NodeView, index: int, slope: Var) -> Var:
    """The image resized along every axis but one, which is multiplied by a matrix [after, before]."""
    y = n.X
    for i, axis in enumerate(_axes(n)):
        y = along(op, y, axis, slope if i == index else op.swap(axis_matrix(op, n, i)))
    return y


def _has_region(n: NodeView) -> bool:
    """Whether `roi` has an effect that is differentiated; an error where it has one that is not."""
    if not _crops(n) or n.mode == "nearest":
        return False
    if n.mode != "linear" or n.antialias:
        raise NotDifferentiable(f"{describe(n.node)} has no derivative in roi but in mode linear", (n.node,))
    return True


def _region_tangent(op: Builder, n: NodeView, t: Var) -> Var:
    terms: list[Var | None] = []
    count = len(_axes(n))
    for i, axis in enumerate(_axes(n)):
        image, by_start, by_end = _slope(op, n, i)
        start, end = (op.cast_like(op.Gather(t, [k]), n.X) for k in (i, i + count))
        rank = image.rank or 0
        along_axis = by_start * start + by_end * end
        terms.append(image * op.Unsqueeze(along_axis, list(range(1, rank - axis))))
    return op.add_n(terms) or op.zeros_like(n.Y)


def _region_cotangent(op: Builder, n: NodeView, ct: Var) -> Var:
    starts: list[Var] = []
    ends: list[Var] = []
    for i, axis in enumerate(_axes(n)):
        image, by_start, by_end = _slope(op, n, i)
        others = [a for a in range(image.rank or 0) if a != axis]
        weight = op.ReduceSum(ct * image, others, keepdims=0)
        starts.append(op.ReduceSum(weight * by_start, [0], keepdims=1))
        ends.append(op.ReduceSum(weight * by_end, [0], keepdims=1))
    return op.cast_like(op.Concat(*starts, *ends, axis=0), n.roi)


# --- both modes by hand: the operator is linear in its image, but what lies outside drops out of the tangent


def _no_scales(n: NodeView, active: bool) -> None:
    """In mode nearest the result is constant in the scales, wherever it has a derivative."""
    if active and n.mode != "nearest":
        why = "which decide its shape; leave them out of the inputs to differentiate, or make them constant"
        raise NotDifferentiable(f"{describe(n.node)} has no derivative in its scales, {why}", (n.node,))


def _forward(op: Builder, n: NodeView, ts: Any) -> list[Var | None]:
    tx, troi, tscales = (*ts, None, None)[:3]
    _no_scales(n, tscales is not None)
    attributes = {k: a for k, a in n.node.attributes.items() if k != "extrapolation_value"}
    through = None if tx is None else op.Resize(tx, n.roi, n.scales, n.sizes, **attributes)
    if troi is None or not _has_region(n):
        return [through]

    def moved(inner: Builder, copies: object = None) -> list[Var]:
        return [_region_tangent(inner, NodeView(inner, n.node, n.rules), inner.var(troi))]

    choices = unsettled(op, n, _ranks(n))
    return [op.add_n([through, *(by_rank(op, n, choices, moved, [n.Y.type]) if choices else moved(op))])]


@pair("Resize", forward=_forward, ranks=_ranks)
def _reverse(op: Builder, n: NodeView, cts: Any, wanted: Any) -> list[Var | None]:
    x, roi, scales = (*wanted, False, False)[:3]
    _no_scales(n, scales)
    image = _transpose(op, n, cts[0]) if x else None
    region = _region_cotangent(op, n, cts[0]) if roi and _has_region(n) else None
    return [image, region, None]
