"""Reading images between their pixels: what GridSample, DeformConv and RoiAlign share.

An interpolation reads, along each axis, a few neighbouring pixels (its taps) with weights that are polynomials of the
place between them. What is read is one Gather of rows, one per tap, and one MatMul with the weights.
"""

from __future__ import annotations

from functools import reduce

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.extents import extent, product, reshape

#: Offsets of the taps from the pixel at or before a place, and their weights as polynomials of the distance f from
#: that pixel: a row per power of f, the highest first.
LINEAR = ((0, 1), ((-1, 1), (1, 0)))
#: Keys' cubic convolution with a = -0.75 (R. G. Keys, IEEE Trans. ASSP 29, 1981).
CUBIC = (
    (-1, 0, 1, 2),
    (
        (-0.75, 1.25, -1.25, 0.75),
        (1.5, -2.25, 1.5, -0.75),
        (-0.75, 0, 0.75, 0),
        (0, 1, 0, 0),
    ),
)
Kernel = tuple[tuple[int, ...], tuple[tuple[float, ...], ...]]


def taps(op: Builder, x: Var, kernel: Kernel) -> tuple[Var, Var]:
    """The pixels read for places `x`, as whole numbers in the element type of `x`, and their weights.

    Both have one more axis than `x`, over the taps. The derivative at a pixel is the one to its right.
    """
    offsets, powers = kernel
    below = op.Floor(x)
    f = op.Unsqueeze(x - below, [-1])
    weight: Var = op.const(powers[0], x.dtype)
    for row in powers[1:]:
        weight = weight * f + op.const(row, x.dtype)
    return op.Unsqueeze(below, [-1]) + op.const(offsets, x.dtype), weight


def sides(op: Builder, image: Var) -> Var:
    """The spatial extents, an int64 tensor of shape [axes]."""
    assert image.rank is not None
    return op.shape_of([extent(op, image, a) for a in range(2, image.rank)])


def clamp(op: Builder, x: Var, low: Var, high: Var) -> Var:
    """`x` cut off at both bounds, which broadcast; at a bound the derivative is zero, as in PyTorch's samplers."""
    x = op.Where(op.Greater(x, low), x, low)
    return op.Where(op.Less(x, high), x, high)


def reflect(op: Builder, x: Var, low: Var, high: Var) -> Var:
    """`x` mirrored at both bounds until it lies between them."""
    two = op.like(2, x)
    span = high - low
    safe = op.where(op.Greater(span, op.like(0, span)), span, 1)
    inner = x - low
    inner = op.Where(op.Less(inner, op.like(0, x)), -inner, inner)  # derivative 1 at the bound, where Abs has 0
    turns = op.Floor(inner / safe)
    rest = inner - turns * safe
    odd = op.Greater(turns - op.Floor(turns / two) * two, op.like(0, x))
    return low + op.Where(odd, safe - rest, rest)


def pixel_rows(op: Builder, image: Var) -> Var:
    """An image [N, C, ...] as rows [N * pixels, C]."""
    assert image.rank is not None
    lead = [extent(op, image, a) for a in (0, 1)]
    space = [extent(op, image, a) for a in range(2, image.rank)]
    size = product(space)
    rows = op.Transpose(reshape(op, image, [*lead, size]), perm=(0, 2, 1))
    return reshape(op, rows, [lead[0] * size, lead[1]])


def strides(op: Builder, image: Var) -> Var:
    """How far apart neighbours along each spatial axis are in the flat order of pixels, int64 [axes]."""
    assert image.rank is not None
    space = [extent(op, image, a) for a in range(2, image.rank)]
    return op.shape_of([product(space[i + 1 :]) for i in range(len(space))])


def across(op: Builder, x: Var, count: int) -> list[Var]:
    """[..., axes, taps] as a tensor per axis, which broadcast together to [..., taps, taps, ...]."""
    assert x.rank is not None
    lead = x.rank - 2
    parts = op.Split(x, axis=lead, num_outputs=count, outputs=count) if count > 1 else (x,)
    out = []
    for i, part in enumerate(parts):
        others = [lead + a for a in range(count) if a != i]
        out.append(op.Unsqueeze(op.Squeeze(part, [lead]), others) if others else op.Squeeze(part, [lead]))
    return out


def sample(op: Builder, image: Var, index: Var, weight: Var) -> Var:
    """[N, places, C]: the sums of pixels of an image [N, C, ...] over the product of the taps of each axis.

    `index`, `weight`: [N, places, axes, taps]; the index is whole and within the image.
    """
    assert image.rank is not None and index.shape is not None
    axes = image.rank - 2
    count = index.shape[-1]
    assert isinstance(count, int)
    steps = op.Unsqueeze(strides(op, image), [1])
    place = reduce(op.Add, across(op, op.Cast(index, to=DataType.INT64) * steps, axes))
    w = reduce(op.Mul, across(op, op.cast_like(weight, image), axes))
    every = count**axes
    if axes > 1:  # a zero copies an extent
        place = op.Reshape(place, [0, 0, every])
    first = op.iota(op.extent(image, 0)) * product([extent(op, image, a) for a in range(2, image.rank)])
    values = op.Gather(pixel_rows(op, image), place + op.Unsqueeze(first, [1, 2]), axis=0)
    return op.Squeeze(op.MatMul(op.Reshape(w, [0, 0, 1, every]), values), [2])


def within(op: Builder, index: Var, last: Var) -> tuple[Var, Var]:
    """An index moved into 0..last (0 for something undefined), and 1 where it was there, else 0."""
    zero = op.like(0, index)
    there = op.And(op.GreaterOrEqual(index, zero), op.LessOrEqual(index, last))
    return clamp(op, index, zero, last), op.cast_like(there, index)
