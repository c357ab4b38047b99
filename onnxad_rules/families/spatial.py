"""Samplers of images: GridSample, AffineGrid and DeformConv; Col2Im.

Conventions: a grid that points beyond a border that is repeated or mirrored, or exactly at it, gets no derivative, as
in PyTorch's grid_sample; between two pixels' linear pieces it is the one to the right.
"""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_rules.extents import extent, product, reshape
from onnxad_rules.kinds import decompose, linear
from onnxad_rules.node import NodeView
from onnxad_rules.placing import TO_END
from onnxad_rules.ranks import GRID, IMAGE, MOST_AXES, Choice, spatial
from onnxad_rules.sampling import CUBIC, LINEAR, Kernel, clamp, reflect, sample, sides, taps, within
from onnxad_rules.windows import known_spatial_rank, per_channel, spatial_rank

# --- GridSample

_KERNELS: dict[str, Kernel] = {"linear": LINEAR, "bilinear": LINEAR, "cubic": CUBIC, "bicubic": CUBIC}


def _places(op: Builder, grid: Var, side: Var, align: bool) -> Var:
    """A grid in [-1, 1] as places in pixels; spelled as runtimes compute it, so that whole numbers agree."""
    one, two = op.like(1, grid), op.like(2, grid)
    if align:
        return (grid + one) / two * (side - one)
    return ((grid + one) * side - one) / two


def _grid_ranks(n: NodeView) -> list[Choice]:
    """Images, and from opset 20 on volumes."""
    counts = (2, 3) if n.facts.since >= 20 else (2,)
    return [dict(X="nc" + IMAGE[:k], grid=["n", *GRID[:k], k], Y="nc" + GRID[:k]) for k in counts]


@decompose("GridSample", ranks=_grid_ranks)
def _grid_sample(op: Builder, n: NodeView) -> Var:
    image, grid, padding = n.X, n.grid, n.padding_mode
    axes = spatial_rank(n, image)
    points = product([extent(op, grid, a) for a in range(1, axes + 1)])
    grid = reshape(op, grid, [extent(op, grid, 0), points, axes])
    if axes > 1:  # grids list the innermost axis first
        grid = op.Gather(grid, list(reversed(range(axes))), axis=2)
    side = op.cast_like(sides(op, image), grid)
    zero, last, half = op.like(0, grid), side - op.like(1, grid), op.like(0.5, grid)
    low, high = (zero, last) if n.align_corners else (-half, side - half)
    x = _places(op, grid, side, bool(n.align_corners))
    if n.mode == "nearest":
        index = op.Round(x)
        index = reflect(op, index, low, high) if padding == "reflection" else index
        index = op.Unsqueeze(index, [-1])
        weight = op.ones_like(index)
    else:
        kernel = _KERNELS[n.mode]
        if padding == "reflection":
            x = reflect(op, x, low, high)
        if kernel is LINEAR and padding != "zeros":
            x = clamp(op, x, zero, last)
        # a cubic kernel repeats the border for each of its taps, as in PyTorch and ONNX Runtime; onnx's reference
        # evaluator moves the place itself first, which makes the result jump at the border
        index, weight = taps(op, x, kernel)
        if kernel is CUBIC and padding == "reflection":
            index = reflect(op, index, op.Unsqueeze(low, [-1]), op.Unsqueeze(high, [-1]))
    index, there = within(op, index, op.Unsqueeze(last, [-1]))
    if padding == "zeros":
        weight = weight * there
    out = sample(op, image, index, weight)
    return op.reshape_like(op.Transpose(out, perm=(0, 2, 1)), n.Y)


# --- AffineGrid


def _affine_grid(op: Builder, n: NodeView, ct: Var) -> Var:
    """The places before the transformation, from the operator itself on the identity, times the cotangent."""
    axes = extent(op, n.theta, 1)
    if isinstance(axes, int):
        identity = op.const([[[float(i == j) for j in range(axes + 1)] for i in range(axes)]], ct.dtype)
    else:
        blank = op.Expand(op.like(0, ct), op.Concat(axes, axes + 1, axis=0))
        identity = op.Unsqueeze(op.EyeLike(blank), [0])
    places = op.Slice(n.size, [2], [TO_END], [0])
    known = op.known(places)
    points = op.ReduceProd(places, keepdims=1) if known is None or 0 in known else -1
    base = op.AffineGrid(identity, op.Concat([1, 1], places, axis=0), align_corners=n.align_corners)
    base = reshape(op, base, [points, axes])
    ones = op.expand_to(op.like(1, ct), op.Slice(base, [0], [1], [1]))
    ct = reshape(op, ct, [extent(op, n.theta, 0), points, axes])
    return op.MatMul(op.swap(ct), op.Concat(base, ones, axis=1))


linear("AffineGrid", theta=_affine_grid)

# --- DeformConv


def _conv_places(op: Builder, n: NodeView, kernel: list[int | Var], grid: list[int | Var]) -> Var:
    """Where a convolution without offsets reads: [kernel points, output points, axes], in the type of X."""
    axes = len(grid)
    ones = (1,) * axes
    stride, dilation, pads = n.strides or ones, n.dilations or ones, n.pads or (0,) * 2 * axes
    shape = op.shape_of([*kernel, *grid])

    def along(count: int | Var, step: int, axis: int) -> Var:
        numbers = op.iota(op.const([count]) if isinstance(count, int) else count) * step
        return op.Unsqueeze(numbers, list(range(1, 2 * axes - axis))) if axis < 2 * axes - 1 else numbers

    parts = []
    for i in range(axes):
        place = along(kernel[i], dilation[i], i) - pads[i] + along(grid[i], stride[i], axes + i)
        parts.append(op.Unsqueeze(op.Expand(place, shape), [-1]))
    places = op.cast_like(op.Concat(*parts, axis=-1), n.X)
    return reshape(op, places, [product(kernel), product(grid), axes])


def _deform_ranks(n: NodeView) -> list[Choice]:
    def shapes(k: int) -> Choice:
        grid = GRID[:k]
        return dict(X="nc" + IMAGE[:k], W="oiuvw"[: k + 2], offset="ns" + grid, mask="nm" + grid, Y="no" + grid)

    return spatial(n, shapes, "X", "W", "offset", "mask", "Y")


@decompose("DeformConv", ranks=_deform_ranks)
def _deform_conv(op: Builder, n: NodeView) -> Var:
    """Columns sampled at the shifted places, then one product with the weights."""
    x, w = n.X, n.W
    axes, groups, shifts = spatial_rank(n, x), n.group, n.offset_group
    rank = axes + 2
    batch, channels = extent(op, x, 0), extent(op, x, 1)
    own = _share(op, channels, shifts)
    kernel = list(n.kernel_shape or [extent(op, w, a) for a in range(2, rank)])
    grid = [extent(op, n.offset, a) for a in range(2, rank)]
    points, outputs = product(kernel), product(grid)
    images = product([batch, shifts])

    offset = op.Transpose(reshape(op, n.offset, [images, points, axes, outputs]), perm=(0, 1, 3, 2))
    places = offset + _conv_places(op, n, kernel, grid)
    places = reshape(op, places, [images, product([points, outputs]), axes])
    image = reshape(op, x, [images, own, *(extent(op, x, a) for a in range(2, rank))])
    last = op.cast_like(sides(op, image), x) - op.like(1, x)
    index, weight = taps(op, places, LINEAR)
    index, there = within(op, index, op.Unsqueeze(last, [-1]))
    columns = sample(op, image, index, weight * there)
    if n.mask is not None:
        columns = columns * reshape(op, n.mask, [images, product([points, outputs]), 1])
    columns = op.Transpose(reshape(op, columns, [images, points, outputs, own]), perm=(0, 3, 1, 2))
    depth = product([_share(op, channels, groups), points])
    columns = reshape(op, columns, [batch, groups, depth, outputs])
    out = op.MatMul(reshape(op, w, [groups, _share(op, extent(op, w, 0), groups), depth]), columns)
    out = op.reshape_like(out, n.Y)
    return out if n.B is None else out + per_channel(op, n.B, out)


def _share(op: Builder, extent: int | Var, parts: int) -> int | Var:
    """An extent divided by a number of groups."""
    return extent // parts if isinstance(extent, int) else extent / op.const([parts])


# --- Col2Im


def _col_ranks(n: NodeView) -> list[Choice]:
    """The number of spatial axes is the length of `image_shape`."""
    lengths = [x.shape[0] for x in (n.image_shape, n.block_shape) if x.shape is not None]
    known = next((d for d in lengths if isinstance(d, int)), None) or known_spatial_rank(n, n.output)
    counts = [known] if known is not None else range(1, MOST_AXES + 1)
    return [dict(image_shape=[k], block_shape=[k], output="nc" + IMAGE[:k]) for k in counts]


def _part(op: Builder, x: Var, i: int) -> int | Var:
    """Element `i` of a shape operand: a number where it is known."""
    found = op.known(x)
    if found is not None and isinstance(known := found[i], int):
        return known
    return op.Slice(x, [i], [i + 1], [0])


def _col2im(op: Builder, n: NodeView, ct: Var) -> Var:
    """Blocks of the image as columns: along each axis in turn, the pixels of every block."""
    axes = spatial_rank(n, n.output)
    ones = (1,) * axes
    stride, dilation, pads = n.strides or ones, n.dilations or ones, n.pads or (0,) * 2 * axes
    if any(pads):
        ct = op.Pad(ct, [0, 0, *pads[:axes], 0, 0, *pads[axes:]])
    for i in range(axes):
        block, image = _part(op, n.block_shape, i), _part(op, n.image_shape, i)
        room = image + (pads[i] + pads[axes + i] + stride[i] - 1)
        room = room - (block - 1) * dilation[i]
        count = room // stride[i] if isinstance(room, int) else room / op.const([stride[i]])
        inside = op.Unsqueeze(op.iota(_tensor(op, block)) * dilation[i], [1])
        index = inside + op.iota(_tensor(op, count)) * stride[i]
        ct = op.Gather(ct, index, axis=2 + 2 * i)
    # [N, C, block, count, block, count, ...]
    order = [2 + 2 * i for i in range(axes)] + [3 + 2 * i for i in range(axes)]
    return op.reshape_like(op.Transpose(ct, perm=(0, 1, *order)), n.input)


def _tensor(op: Builder, extent: int | Var) -> Var:
    return op.const([extent]) if isinstance(extent, int) else extent


linear("Col2Im", input=_col2im, ranks=_col_ranks)
