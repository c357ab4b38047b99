"""What convolutions, pools and normalizations share: pads of windows, and shapes with extents that only a run knows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_rules.extents import extent, numbers, reshape
from onnxad_rules.node import NodeView


def known_spatial_rank(n: NodeView, *tensors: Var | None) -> int | None:
    """The number of spatial axes, by the ranks of operands and the lengths of attributes; None without any."""
    for t in tensors:
        if t is not None and t.rank is not None:
            return t.rank - 2
    for name in ("kernel_shape", "strides", "dilations", "output_padding", "output_shape"):
        if a := n.node.attributes.get(name):
            return len(a)
    a = n.node.attributes.get("pads")
    return None if a is None else len(a) // 2


def spatial_rank(n: NodeView, *tensors: Var | None) -> int:
    """The same; a ModelError where nothing tells."""
    if (known := known_spatial_rank(n, *tensors)) is not None:
        return known
    raise ModelError(f"the derivative of {describe(n.node)} needs the rank of one of its operands; infer or declare it")


def same_total(op: Builder, image: Var, strides: Sequence[int], span: tuple[int, ...] | Var) -> tuple[int, ...] | Var:
    """How much padding SAME needs in all: max(0, (ceil(d / stride) - 1) * stride + span - d)."""
    plain = all(s == 1 for s in strides)
    dims = None if image.shape is None else numbers(image.shape[2:])
    if isinstance(span, tuple) and (plain or dims is not None):
        extents = dims or (0,) * len(span)
        sides = zip(extents, strides, span, strict=True)
        return tuple(k - 1 if plain else max(0, (-(-d // s) - 1) * s + k - d) for d, s, k in sides)
    k = op.const(list(span)) if isinstance(span, tuple) else span
    d, s = op.Shape(image, start=2), op.const(list(strides))
    return op.Max((d + s - 1) / s * s - s + k - d, op.const([0]))


def distribute(op: Builder, total: tuple[int, ...] | Var, upper: bool) -> tuple[tuple[int, ...] | Var, ...]:
    """Pads at begin and end: the odd one goes to the end for SAME_UPPER, else to the begin."""
    if isinstance(total, tuple):
        small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        return (small, large) if upper else (large, small)
    half = total / 2
    return (half, total - half) if upper else (total - half, half)


def explicit_pads(
    op: Builder, n: NodeView, image: Var, strides: Sequence[int], span: tuple[int, ...] | Var
) -> tuple[tuple[int, ...] | Var, ...]:
    """The pads of a Conv or pooling node at begin and end, whatever `auto_pad` says."""
    count = len(strides)
    if n.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return distribute(op, same_total(op, image, strides, span), n.auto_pad == "SAME_UPPER")
    pads = (n.pads if n.auto_pad == "NOTSET" else None) or (0,) * (2 * count)
    return tuple(pads[:count]), tuple(pads[count:])


def as_var(op: Builder, pads: tuple[int, ...] | Var) -> Var:
    """Pads as a value."""
    return op.const(list(pads)) if isinstance(pads, tuple) else pads


def spatial_size(op: Builder, x: Var) -> int | Var:
    """The product of the spatial extents."""
    dims = None if x.shape is None else numbers(x.shape[2:])
    return op.ReduceProd(op.Shape(x, start=2), keepdims=1) if dims is None else math.prod(dims)


def single_channels(op: Builder, x: Var, spatial: int) -> Var:
    """Every channel of every example as an example of one channel."""
    sides = [extent(op, x, a) for a in range(2, spatial + 2)]
    lead = [extent(op, x, a) for a in (0, 1)]
    return reshape(op, x, [lead[0] * lead[1], 1, *sides])


def axes_but(op: Builder, x: Var, *kept: int) -> Var:
    """All axes of `x` but the first two, or but the second, ...: those that are not in `kept`."""
    rank = x.rank
    if rank is not None:
        return op.const([a for a in range(rank) if a not in kept])
    rest = op.Range(op.const(2), op.scalar(op.rank(x)), op.const(1))
    return op.Concat([a for a in (0, 1) if a not in kept], rest, axis=0) if len(kept) < 2 else rest


def channel_sum(op: Builder, x: Var, *like: Var | None) -> Var:
    """The sum over everything but the channels (axis 1)."""
    ranked = next((t for t in (x, *like) if t is not None and t.rank is not None), x)
    out: Var = op.ReduceSum(x, axes_but(op, ranked, 1), keepdims=0)
    return out


def per_channel(op: Builder, x: Var, like: Var) -> Var:
    """A vector along the channels (axis 1) of `like`, so that it broadcasts against it."""
    if like.rank is not None:
        return op.Unsqueeze(x, list(range(1, like.rank - 1))) if like.rank > 2 else x
    ones = op.Expand(op.const([1]), op.rank(like) - 2)
    return op.Reshape(x, op.Concat([-1], ones, axis=0))
