"""Resize: linear in the image, axis by axis.

Along one axis a resize is a matrix, which the operator itself computes when it is given the identity: that is right for
every mode, coordinate transformation and policy, at build time or at run time, and constant operands make it a
constant when a runtime loads the model. The transpose of a Resize multiplies by these matrices.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxad_ir import dims
from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.types import Dim
from onnxad_rules.kinds import linear, pushforward
from onnxad_rules.node import NodeView
from onnxad_rules.windows import extent, reshape

#: The transformations under which enlarging by a whole factor repeats every element that often, by rounding mode.
_REPEATS = {
    ("half_pixel", "round_prefer_floor"),
    ("half_pixel", "round_prefer_ceil"),
    ("asymmetric", "floor"),
}


def _attributes(n: NodeView, **changes: Any) -> dict[str, Any]:
    drop = ("axes", "keep_aspect_ratio_policy", "extrapolation_value")
    return {k: a for k, a in n.node.attributes.items() if k not in drop} | changes


def _axes(n: NodeView) -> tuple[int, ...]:
    """The axes that `scales`, `sizes` and `roi` are about."""
    shape = n.X.shape if n.X.shape is not None else n.Y.shape
    if shape is None:
        raise ModelError(
            f"the derivative of {describe(n.node)} needs the rank of its image; infer or declare it"
        )
    return tuple(a % len(shape) for a in n.axes or range(len(shape)))


def _scales(n: NodeView) -> tuple[float, ...] | None:
    """The scales, where they are constant."""
    if n.scales is None or n.scales.value.const is None:
        return None
    found = tuple(float(s) for s in n.scales.value.const.numpy().reshape(-1))
    return found or None


def _crops(n: NodeView) -> bool:
    return n.coordinate_transformation_mode == "tf_crop_and_resize"  # type: ignore[no-any-return]


def _identity(op: Builder, x: Var, axis: int) -> Var:
    """The identity matrix of the extent of one axis."""
    d = extent(op, x, axis)
    if isinstance(d, int) and d <= 32:
        return op.const(np.eye(d), x.dtype)
    shape = op.shape_of([d, d])
    return op.EyeLike(op.Expand(op.like(0, x), shape))  # type: ignore[no-any-return]


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
    return op.Resize(eye, roi, scales, sizes, **_attributes(n, axes=(1,)))  # type: ignore[no-any-return]


def _policy_matrix(op: Builder, n: NodeView, index: int) -> Var:
    """The same where one axis decides the scale of all: that axis is resized along, and dropped again."""
    axes, sizes = _axes(n), op.known(n.sizes)
    extents = None if n.X.shape is None else [n.X.shape[a] for a in axes]
    if sizes is None or extents is None or not all(isinstance(d, int) for d in (*sizes, *extents)):
        policy = n.keep_aspect_ratio_policy
        raise ModelError(f"the derivative of {describe(n.node)} with {policy} needs known extents and sizes")
    ratios = [s / d for s, d in zip(sizes, extents, strict=True)]  # type: ignore[operator]
    chosen = min(ratios) if n.keep_aspect_ratio_policy == "not_larger" else max(ratios)
    leader = ratios.index(chosen)
    policy = {"keep_aspect_ratio_policy": n.keep_aspect_ratio_policy}
    eye = _identity(op, n.X, axes[index])
    if ratios[index] == chosen:
        return op.Resize(eye, None, None, [sizes[index]], **_attributes(n, axes=(1,), **policy))  # type: ignore[no-any-return]
    spread = op.Expand(op.Unsqueeze(eye, [2]), [1, 1, extents[leader]])
    both = [sizes[index], sizes[leader]]
    wide = op.Resize(spread, None, None, both, **_attributes(n, axes=(1, 2), **policy))
    return op.Gather(wide, op.const(0), axis=2)  # type: ignore[no-any-return]


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
        if scales is None and (
            not isinstance(factors[axis], int) or dims.mul(x[axis], factors[axis]) != y[axis]
        ):  # type: ignore[arg-type]
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
        return op.MatMul(matrix, x)  # type: ignore[no-any-return]
    if axis == rank - 1 and rank > 1:
        return op.MatMul(x, op.swap(matrix))  # type: ignore[no-any-return]
    sides = [extent(op, x, a) for a in range(rank)]
    lead, rest = _product(op, sides[:axis]), _product(op, sides[axis + 1 :])
    flat = op.MatMul(matrix, reshape(op, x, [lead, sides[axis], rest]))
    return reshape(op, flat, [*sides[:axis], extent(op, flat, 1), *sides[axis + 1 :]])


def _product(op: Builder, sides: list[int | Var]) -> int | Var:
    out: int | Var = 1
    for d in sides:
        out = d if isinstance(out, int) and out == 1 else out * d
    return out


_REFUSED = {
    "scales": "a resize has no derivative in its scales (they also decide its shape)",
    "roi": "a resize has no rule for its region of interest",
}


linear("Resize", X=_transpose, refuse=_REFUSED)
# what lies outside the image is constant: it drops out of the tangent
pushforward(
    "Resize",
    X=lambda op, n, t: op.Resize(
        t,
        n.roi,
        n.scales,
        n.sizes,
        **{k: a for k, a in n.node.attributes.items() if k != "extrapolation_value"},
    ),
    refuse=_REFUSED,
    when=lambda n: _crops(n) and n.extrapolation_value != 0,
)
