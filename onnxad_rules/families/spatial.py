"""Samplers of images: GridSample, AffineGrid and DeformConv; Col2Im.

Conventions: a grid that points beyond a border that is repeated or mirrored, or exactly at it, gets no derivative, as
in PyTorch's grid_sample; between two pixels' linear pieces it is the one to the right.
"""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_rules.kinds import decompose, linear
from onnxad_rules.node import NodeView
from onnxad_rules.placing import TO_END
from onnxad_rules.sampling import (
    CUBIC,
    LINEAR,
    Kernel,
    clamp,
    product,
    reflect,
    sample,
    sides,
    taps,
    within,
)
from onnxad_rules.windows import extent, per_channel, reshape

# --- GridSample

_KERNELS: dict[str, Kernel] = {"linear": LINEAR, "bilinear": LINEAR, "cubic": CUBIC, "bicubic": CUBIC}


def _places(op: Builder, grid: Var, side: Var, align: bool) -> Var:
    """A grid in [-1, 1] as places in pixels; spelled as runtimes compute it, so that whole numbers agree."""
    one, two = op.like(1, grid), op.like(2, grid)
    if align:
        return (grid + one) / two * (side - one)
    return ((grid + one) * side - one) / two


@decompose("GridSample")
def _grid_sample(op: Builder, n: NodeView) -> Var:
    image, grid, padding = n.X, n.grid, n.padding_mode
    if image.rank is None:
        raise ModelError(f"the derivative of {describe(n.node)} needs the rank of X; infer or declare it")
    axes = image.rank - 2
    points = product(op, [extent(op, grid, a) for a in range(1, axes + 1)])
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
    return reshape(op, places, [product(op, kernel), product(op, grid), axes])


@decompose("DeformConv")
def _deform_conv(op: Builder, n: NodeView) -> Var:
    """Columns sampled at the shifted places, then one product with the weights."""
    x, w = n.X, n.W
    rank = next((v.rank for v in (x, w, n.offset, n.Y) if v.rank is not None), None)
    if rank is None or x.rank is None:
        raise ModelError(f"the derivative of {describe(n.node)} needs the rank of X; infer or declare it")
    axes, groups, shifts = rank - 2, n.group, n.offset_group
    batch, channels = extent(op, x, 0), extent(op, x, 1)
    own = _share(op, channels, shifts)
    kernel = list(n.kernel_shape or [extent(op, w, a) for a in range(2, rank)])
    grid = [extent(op, n.offset, a) for a in range(2, rank)]
    points, outputs = product(op, kernel), product(op, grid)
    images = product(op, [batch, shifts])

    offset = op.Transpose(reshape(op, n.offset, [images, points, axes, outputs]), perm=(0, 1, 3, 2))
    places = offset + _conv_places(op, n, kernel, grid)
    places = reshape(op, places, [images, product(op, [points, outputs]), axes])
    image = reshape(op, x, [images, own, *(extent(op, x, a) for a in range(2, rank))])
    last = op.cast_like(sides(op, image), x) - op.like(1, x)
    index, weight = taps(op, places, LINEAR)
    index, there = within(op, index, op.Unsqueeze(last, [-1]))
    columns = sample(op, image, index, weight * there)
    if n.mask is not None:
        columns = columns * reshape(op, n.mask, [images, product(op, [points, outputs]), 1])
    columns = op.Transpose(reshape(op, columns, [images, points, outputs, own]), perm=(0, 3, 1, 2))
    depth = product(op, [_share(op, channels, groups), points])
    columns = reshape(op, columns, [batch, groups, depth, outputs])
    out = op.MatMul(reshape(op, w, [groups, _share(op, extent(op, w, 0), groups), depth]), columns)
    out = op.reshape_like(out, n.Y)
    return out if n.B is None else out + per_channel(op, n.B, out)


def _share(op: Builder, extent: int | Var, parts: int) -> int | Var:
    """An extent divided by a number of groups."""
    return extent // parts if isinstance(extent, int) else extent / op.const([parts])


# --- Col2Im


def _col_axes(n: NodeView, op: Builder) -> int:
    for x in (n.image_shape, n.block_shape):
        if x.shape is not None and isinstance(x.shape[0], int):
            return x.shape[0]
    if n.output.rank is not None:
        return n.output.rank - 2
    for name in ("strides", "dilations"):
        if (a := n.node.attributes.get(name)) is not None:
            return len(a)
    raise ModelError(f"the derivative of {describe(n.node)} needs the length of image_shape; infer or declare it")


def _part(op: Builder, x: Var, i: int) -> int | Var:
    """Element `i` of a shape operand: a number where it is known."""
    found = op.known(x)
    if found is not None and isinstance(known := found[i], int):
        return known
    return op.Slice(x, [i], [i + 1], [0])


def _col2im(op: Builder, n: NodeView, ct: Var) -> Var:
    """Blocks of the image as columns: along each axis in turn, the pixels of every block."""
    axes = _col_axes(n, op)
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


linear("Col2Im", input=_col2im)
