"""Convolution: one trilinear form, <grid, conv(image, kernel)>, and its three partial transposes.

`Conv` maps an image and a kernel to a grid; `ConvTranspose` maps a grid and a kernel to an image. The derivative in
any of the three is the map from the other two, on the same `Geometry`:

    to_grid    Conv            to_image   ConvTranspose            to_kernel   windows of the image times the grid

`ConvTranspose` is never given both `pads` and `output_shape` (the runtimes disagree about the two together).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import Dim, Shape
from onnxad_rules.extents import extent, numbers, reshape
from onnxad_rules.kinds import multilinear
from onnxad_rules.node import NodeView
from onnxad_rules.placing import TO_END
from onnxad_rules.ranks import GRID, IMAGE, Choice, spatial
from onnxad_rules.windows import (
    channel_sum,
    distribute,
    explicit_pads,
    known_spatial_rank,
    per_channel,
    single_channels,
    spatial_rank,
    spatial_size,
)

#: Kernels with more taps than this, of few channels, have their gradient by one large convolution: unfolding windows
#: by a convolution costs taps squared.
MANY_TAPS = 16
#: From this many channels a group on, windows are cheaper to gather channel-last than to unfold by a convolution.
MANY_CHANNELS = 8
#: From this many windows a channel, and this many elements in all windows, they are unfolded row by row: all of them at
#: once no longer fit into caches.
MANY_PLACES, MANY_ELEMENTS = 128, 2**19


@dataclass(frozen=True)
class Geometry:
    """How windows lie on an image. `begin` and `end` pads are numbers, or Vars of shape [spatial rank]."""

    spatial: int
    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int
    #: False where the image may go on for a whole stride or more behind the last window.
    exact: bool
    begin: tuple[int, ...] | Var
    end: tuple[int, ...] | Var

    @property
    def static_pads(self) -> bool:
        """True where the pads are numbers."""
        return isinstance(self.begin, tuple)

    @property
    def axes(self) -> list[int]:
        """The spatial axes."""
        return list(range(2, self.spatial + 2))

    def pads(self) -> tuple[int, ...]:
        """The pads as the attribute has them."""
        assert isinstance(self.begin, tuple) and isinstance(self.end, tuple)
        return self.begin + self.end

    def attributes(self) -> dict[str, object]:
        """strides, dilations, group and pads, without those that say nothing."""
        ones = (1,) * self.spatial
        return {
            "strides": self.strides if self.strides != ones else None,
            "dilations": self.dilations if self.dilations != ones else None,
            "group": self.group if self.group != 1 else None,
            "pads": self.pads() if self.static_pads and any(self.pads()) else None,
        }

    def span(self) -> tuple[int, ...] | None:
        """The extents of a dilated kernel."""
        if not all(isinstance(k, int) for k in self.kernel):
            return None
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))  # type: ignore[operator]

    def unpadded(self) -> Geometry:
        """The same windows on an image that has its pads."""
        return replace(self, begin=(0,) * self.spatial, end=(0,) * self.spatial)


def _geometry(n: NodeView, image: Var | None, grid: Var | None, kernel: Var) -> Geometry:
    """What the attributes say; pads are still to be found."""
    r = spatial_rank(n, kernel, image, grid)
    extents: Shape = tuple(n.op.inference.fresh() for _ in range(r)) if kernel.shape is None else kernel.shape[2:]
    none = (0,) * r
    ones = (1,) * r
    return Geometry(r, n.kernel_shape or extents, n.strides or ones, n.dilations or ones, n.group, True, none, none)


def _span(op: Builder, g: Geometry, kernel: Var) -> tuple[int, ...] | Var:
    """The extents of a dilated kernel, at run time where shapes do not tell them."""
    if (known := g.span()) is not None:
        return known
    return (op.Shape(kernel, start=2) - 1) * list(g.dilations) + 1


def conv_geometry(op: Builder, n: NodeView) -> Geometry:
    """The geometry of a Conv node."""
    g = _geometry(n, n.X, n.Y, n.W)
    begin, end = explicit_pads(op, n, n.X, g.strides, _span(op, g, n.W))
    return replace(g, begin=begin, end=end)


def conv_transpose_geometry(op: Builder, n: NodeView) -> Geometry:
    """The geometry of a ConvTranspose node. Pads that `output_shape` would make negative are 0, as in the runtime."""
    g = _geometry(n, n.Y, n.X, n.W)
    extra = n.output_padding or (0,) * g.spatial
    exact = not n.output_shape and all(a < s for a, s in zip(extra, g.strides, strict=True))
    g = replace(g, exact=exact)
    same = n.auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if not n.output_shape and not same:
        pads = (n.pads if n.auto_pad == "NOTSET" else None) or (0,) * (2 * g.spatial)
        return replace(g, begin=tuple(pads[: g.spatial]), end=tuple(pads[g.spatial :]))
    # total = (d - 1) * stride + extra + span - out, where SAME has out = d * stride
    rest = [a - s for a, s in zip(extra, g.strides, strict=True)]
    grow: list[Dim] = [0] * g.spatial
    if n.output_shape:
        rest = [a - out for a, out in zip(rest, n.output_shape[-g.spatial :], strict=True)]
        dims = (None if n.X.shape is None else numbers(n.X.shape[2:])) or ()
        grow = [d * s for d, s in zip(dims, g.strides, strict=False)]
    span = _span(op, g, n.W)
    total: tuple[int, ...] | Var
    if isinstance(span, tuple) and len(grow) == g.spatial:
        total = tuple(max(0, d + k + a) for d, k, a in zip(grow, span, rest, strict=True))  # type: ignore[operator]
    else:
        free = op.const(list(span)) if isinstance(span, tuple) else span
        if n.output_shape:
            free = op.Shape(n.X, start=2) * list(g.strides) + free
        total = op.Max(free + rest, op.const([0]))
    begin, end = distribute(op, total, n.auto_pad == "SAME_UPPER")
    return replace(g, begin=begin, end=end)


def padded(op: Builder, x: Var, g: Geometry) -> Var:
    """The image with its pads."""
    if isinstance(g.begin, tuple) and isinstance(g.end, tuple):
        return op.Pad(x, list(g.pads()), None, g.axes) if any(g.pads()) else x
    return op.Pad(x, op.Concat(g.begin, g.end, axis=0), None, g.axes)


def cropped(op: Builder, x: Var, g: Geometry, like: Var, begin: Var | None = None) -> Var:
    """The part of `x` from `begin` on with the spatial extents of `like`."""
    if begin is None and x.shape is not None and like.shape is not None and x.shape[2:] == like.shape[2:]:
        return x
    extents = op.shape_of(like.shape[2:]) if like.shape is not None else op.Shape(like, start=2)
    start = op.const([0] * g.spatial) if begin is None else begin
    return op.Slice(x, start, extents if begin is None else begin + extents, g.axes)


# --- the three maps


def to_grid(op: Builder, g: Geometry, image: Var, kernel: Var, grid: Var) -> Var:
    """The correlation of an image with a kernel; `grid` has the shape wanted."""
    if not g.static_pads:
        image, g = padded(op, image, g), g.unpadded()
    out = op.Conv(image, kernel, **g.attributes())
    return out if g.exact else cropped(op, out, g, grid)


def to_image(op: Builder, g: Geometry, grid: Var, kernel: Var, image: Var) -> Var:
    """Every element of the grid puts its kernel onto an image; `image` has the shape wanted.

    The image ends up to a stride behind the last window: `output_padding` where shapes tell by how much, else as much
    as may be, cut off at run time.
    """
    if (flipped := _flipped(op, g, grid, kernel)) is not None:
        return flipped
    if not g.static_pads:
        begin = g.begin
        assert isinstance(begin, Var)
        out = op.ConvTranspose(grid, kernel, **g.unpadded().attributes(), output_padding=_unless_zero(g.strides))
        return cropped(op, out, g, image, begin)
    span = g.span()
    small = None if grid.shape is None else numbers(grid.shape[2:])
    large = None if image.shape is None else numbers(image.shape[2:])
    if all(s == 1 for s in g.strides):
        return op.ConvTranspose(grid, kernel, **g.attributes())
    if span is not None and small is not None and large is not None:
        begin_end = zip(large, small, g.strides, span, g.pads()[: g.spatial], g.pads()[g.spatial :], strict=True)
        rest = tuple(x - ((o - 1) * s + k - b - e) for x, o, s, k, b, e in begin_end)
        return op.ConvTranspose(grid, kernel, **g.attributes(), output_padding=rest if any(rest) else None)
    out = op.ConvTranspose(grid, kernel, **g.attributes(), output_padding=_unless_zero(g.strides))
    return cropped(op, out, g, image)


def _unless_zero(strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The most output padding that strides allow."""
    rest = tuple(s - 1 for s in strides)
    return rest if any(rest) else None


def _turned(g: Geometry) -> Geometry | None:
    """The geometry in which image and grid have changed places (kernels flipped): stride 1 and known extents only."""
    span = g.span()
    if span is None or not g.static_pads or any(s != 1 for s in g.strides):
        return None
    pads = tuple(s - 1 - p for s, p in zip(span + span, g.pads(), strict=True))
    return replace(g, begin=pads[: g.spatial], end=pads[g.spatial :]) if min(pads) >= 0 else None


def _flip(op: Builder, g: Geometry, kernel: Var) -> Var:
    """The kernel with its taps in reverse order."""
    axes = [a for a, k in zip(g.axes, g.kernel, strict=True) if k != 1]
    count = len(axes)
    return op.Slice(kernel, [-1] * count, [-(2**31)] * count, axes, [-1] * count) if axes else kernel


def _flipped(op: Builder, g: Geometry, grid: Var, kernel: Var) -> Var | None:
    """`to_image` with stride 1 as a Conv with the flipped kernel, where that is faster than a ConvTranspose.

    That is for kernels that work on each channel alone (the runtime takes those one at a time), and for dense ones that
    are constant (the runtime flips them once) or whose image has the more channels (the smaller side is then unfolded).
    """
    k, turned = kernel.shape, _turned(g)
    if turned is None or k is None or not isinstance(k[0], int) or not isinstance(k[1], int):
        return None
    if g.group > 1 and k[:2] == (g.group, 1):
        return op.Conv(grid, _flip(op, g, kernel), **turned.attributes())
    if g.group == 1 and (k[0] < k[1] or kernel.value.const is not None):
        back = op.Transpose(_flip(op, g, kernel), perm=[1, 0, *g.axes])
        return op.Conv(grid, back, **turned.attributes())
    return None


def to_kernel(op: Builder, g: Geometry, image: Var, grid: Var, kernel: Var) -> Var:
    """The sum over windows of image times grid: of five spellings the fastest in ONNX Runtime that shapes allow.

    A product with the image itself (kernels of one tap), with windows gathered channel-last (many channels) or unfolded
    by a convolution (few channels, groups, extents that only the run knows), row by row where these are many and
    kernels work on one channel alone; or one large convolution (many taps of few channels, kernels whose extents only
    the run knows). With stride 1 the side of fewer channels is unfolded.
    """
    if not g.static_pads:
        image, g = padded(op, image, g), g.unpadded()
    taps, out, inside = numbers(g.kernel), extent(op, kernel, 0), extent(op, kernel, 1)
    if g.group == 1 and taps is not None and isinstance(out, int) and isinstance(inside, int) and out < inside:
        turned = _turned(g) if math.prod(taps) > 1 else None
        if turned is not None:
            found = _to_kernel(op, turned, taps, inside, out, grid, image)
            return op.Transpose(_flip(op, g, found), perm=[1, 0, *g.axes])
    if taps is None:
        return cropped(op, _by_convolution(op, g, inside, image, grid), g, kernel)
    return _to_kernel(op, g, taps, out, inside, image, grid)


def _to_kernel(
    op: Builder, g: Geometry, taps: tuple[int, ...], out: int | Var, inside: int | Var, image: Var, grid: Var
) -> Var:
    """`to_kernel` for known taps; `out` and `inside` are the kernel's first extents."""
    few = g.group > 1 or not isinstance(inside, int) or inside < MANY_CHANNELS
    if inside == 1 and _has_many_windows(g, taps, image, grid):
        return _by_rows(op, g, taps, out, image, grid)
    if few and math.prod(taps) > MANY_TAPS:
        found = _by_convolution(op, g, inside, image, grid)
        count = [0] * g.spatial
        return op.Slice(found, count, list(taps), g.axes)
    plain = math.prod(taps) == 1 and not any(g.pads()) and all(s == 1 for s in g.strides)
    places = None if image.shape is None or grid.shape is None else numbers(image.shape[2:] + grid.shape[2:])
    if plain or few or places is None or not isinstance(out, int) or not isinstance(inside, int):
        return _by_products(op, g, taps, out, inside, image, grid)
    return _by_gather(op, g, taps, out, inside, image, grid)


def _by_gather(op: Builder, g: Geometry, taps: tuple[int, ...], out: int, inside: int, image: Var, grid: Var) -> Var:
    """Windows gathered channel-last, each tap one run of channels, and one Gemm. Only the batch may be unknown."""
    r = g.spatial
    assert image.shape is not None and grid.shape is not None
    places = numbers(grid.shape[2:]) or ()
    sides = zip(image.shape[2:], g.pads()[:r], g.pads()[r:], strict=True)
    extents = [int(d) + b + e for d, b, e in sides]
    rows = op.Transpose(image, perm=[0, *g.axes, 1])
    if any(g.pads()):
        rows = op.Pad(rows, list(g.pads()), None, list(range(1, r + 1)))
    batch = extent(op, image, 0)
    rows = reshape(op, rows, [batch, math.prod(extents), inside])
    index: Var | None = None
    for i in range(r):
        at = np.arange(places[i])[:, None] * g.strides[i] + np.arange(taps[i]) * g.dilations[i]
        spread = [1] * (2 * r)
        spread[i], spread[r + i] = at.shape
        term = op.const((at * math.prod(extents[i + 1 :])).reshape(spread))
        index = term if index is None else op.Add(index, term)
    total = batch * math.prod(places)
    windows = op.Gather(rows, index, axis=1)
    left = reshape(op, op.Transpose(grid, perm=[1, 0, *g.axes]), [out, total])
    width = math.prod(taps) * inside
    if isinstance(total, int) and total < out:  # channels go before taps in the smaller one: in the windows ...
        windows = op.Transpose(windows, perm=[*range(r + 1), 2 * r + 1, *range(r + 1, 2 * r + 1)])
        return op.Reshape(op.Gemm(left, reshape(op, windows, [total, width])), [out, inside, *taps])
    columns = reshape(op, windows, [total, width])
    product = op.Reshape(op.Gemm(left, columns), [out, *taps, inside])  # ... or in the kernel
    return op.Transpose(product, perm=[0, r + 1, *range(1, r + 1)])


def _by_products(
    op: Builder, g: Geometry, taps: tuple[int, ...], out: int | Var, inside: int | Var, image: Var, grid: Var
) -> Var:
    """Windows unfolded by a convolution with one-hot kernels, and one matrix product per example and group."""
    count = math.prod(taps)
    columns = image
    if count > 1 or any(g.pads()) or any(s != 1 for s in g.strides):
        one_hot = op.const(np.eye(count).reshape(count, 1, *taps), image.dtype)
        columns = op.Conv(single_channels(op, image, g.spatial), one_hot, **{**g.attributes(), "group": None})
    if not g.exact:
        columns = cropped(op, columns, g, grid)
    rows = out // g.group if isinstance(out, int) else out / g.group
    group, batch, places = [] if g.group == 1 else [g.group], extent(op, image, 0), spatial_size(op, grid)
    left = reshape(op, grid, [batch, *group, rows, places])
    right = reshape(op, columns, [batch, *group, inside * count, places])
    product = op.ReduceSum(op.MatMul(left, op.swap(right)), [0], keepdims=0)
    return reshape(op, product, [out, inside, *taps])


def _has_many_windows(g: Geometry, taps: tuple[int, ...], image: Var, grid: Var) -> bool:
    """True where windows in two dimensions are unfolded row by row: of many elements, or of nobody knows how many.

    (With strides, a Slice down costs more than it saves.)
    """
    if len(taps) != 2 or taps[0] == 1 or taps[1] > MANY_TAPS or g.strides != (1, 1) or not g.exact:
        return False
    places = None if grid.shape is None else numbers(grid.shape[2:])
    if places is None:
        return True
    examples = 1 if image.shape is None or not isinstance(image.shape[0], int) else image.shape[0]
    windows = math.prod(places)
    return windows >= MANY_PLACES and examples * g.group * windows * math.prod(taps) >= MANY_ELEMENTS


def _by_rows(op: Builder, g: Geometry, taps: tuple[int, ...], out: int | Var, image: Var, grid: Var) -> Var:
    """`_by_products` for kernels that work on one channel alone, with one row of taps at a time.

    Windows are unfolded along the last axis only, by a convolution with one-hot kernels; moving down is a Slice. (It is
    written with a third axis, as ONNX Runtime makes blocks of 16 channels of a constant kernel with two.)
    """
    (high, wide), (gap, gap_across) = taps, g.dilations
    (above, left_of), (below, right_of) = g.pads()[:2], g.pads()[2:]
    batch, sides = extent(op, image, 0), [extent(op, image, a) for a in g.axes]
    unfolded = op.Conv(
        reshape(op, image, [batch * g.group, 1, 1, *sides]),
        op.const(np.eye(wide).reshape(wide, 1, 1, 1, wide), image.dtype),
        dilations=(1, 1, gap_across),
        pads=(0, above, left_of, 0, below, right_of),
    )
    places, rows = spatial_size(op, grid), out // g.group if isinstance(out, int) else out / g.group
    left = reshape(op, grid, [batch, g.group, rows, places])
    products = []
    for i in range(high):
        behind = (high - 1 - i) * gap
        window = op.Slice(unfolded, [i * gap], [-behind if behind else TO_END], [3])
        products.append(op.MatMul(left, op.swap(reshape(op, window, [batch, g.group, wide, places]))))
    product = op.ReduceSum(op.Concat(*products, axis=3), [0], keepdims=0)
    return reshape(op, product, [out, 1, *taps])


def _by_convolution(op: Builder, g: Geometry, inside: int | Var, image: Var, grid: Var) -> Var:
    """The grid as a kernel on the image: batch and channels exchanged, strides and dilations exchanged.

    Has more taps than the kernel where the last window ends before the image does.
    """
    perm = [1, 0, *g.axes]
    if g.group == 1:
        flat = op.Transpose(image, perm=perm)
    else:
        batch, sides = extent(op, image, 0), [extent(op, image, a) for a in g.axes]
        split = op.Transpose(
            reshape(op, image, [batch, g.group, inside, *sides]), perm=[2, 1, 0, *[a + 1 for a in g.axes]]
        )
        flat = reshape(op, split, [inside, batch * g.group, *sides])
    turned = replace(g, strides=g.dilations, dilations=g.strides)
    return op.Transpose(op.Conv(flat, op.Transpose(grid, perm=perm), **turned.attributes()), perm=perm)


# --- the operators


def _bias(op: Builder, n: NodeView, t: Var) -> Var:
    return op.expand_to(per_channel(op, t, n.Y), n.Y)


def _ranks(n: NodeView) -> list[Choice]:
    """One tensor or attribute is enough to tell how many axes there are."""

    def shapes(k: int) -> Choice:
        return dict(X="nc" + IMAGE[:k], W="iouvw"[: k + 2], Y="nd" + GRID[:k])

    known = known_spatial_rank(n, n.X, n.W, n.Y)
    return [] if known is not None else spatial(n, shapes)


multilinear(
    "Conv",
    X=lambda op, n, ct: to_image(op, conv_geometry(op, n), ct, n.W, n.X),
    W=lambda op, n, ct: to_kernel(op, conv_geometry(op, n), n.X, ct, n.W),
    B=lambda op, n, ct: channel_sum(op, ct, n.X, n.W),
    additive={"B": _bias},
    ranks=_ranks,
)
multilinear(
    "ConvTranspose",
    X=lambda op, n, ct: to_grid(op, conv_transpose_geometry(op, n), ct, n.W, n.X),
    W=lambda op, n, ct: to_kernel(op, conv_transpose_geometry(op, n), ct, n.X, n.W),
    B=lambda op, n, ct: channel_sum(op, ct, n.X, n.W),
    additive={"B": _bias},
    ranks=_ranks,
)
