"""Operators on a batch of images: the entries become part of the batch."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched, shift_all
from onnxad_rules.extents import extent, reshape
from onnxad_rules.node import NodeView
from onnxad_rules.placing import TO_END


@batched(
    "AveragePool", "Col2Im", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LRN", "LpPool",
    "SpaceToDepth",
    any_rank=True,
)  # fmt: skip
def _image_by_image(op: Builder, n: NodeView, b: Batch) -> Any:
    x, *others = n.node.inputs
    if x is None or any(b.twin(v) is not None for v in others):
        return NotImplemented
    y = b.again(b.fold(op.var(x)), *(None if v is None else op.var(v) for v in others))
    return b.unfold(y, op.var(x))


@batched("MaxPool", any_rank=True)
def _max_pool(op: Builder, n: NodeView, b: Batch) -> Any:
    """The indices count through the whole batch, of all entries here and of one entry in the result."""
    x = b.fold(n.X)
    if len(n.node.outputs) == 1:
        return b.unfold(b.again(x), n.X)
    if n.X.rank is None:
        return NotImplemented
    y, indices = b.again(x)
    return b.unfold(y, n.X), b.unfold(indices, n.X) - _starts(op, b, n.X.rank, op.Size(x) / op.scalar(b.size))


@batched("MaxUnpool")
def _max_unpool(op: Builder, n: NodeView, b: Batch) -> Any:
    if n.output_shape is not None:  # which the indices may, but need not, be relative to
        return NotImplemented
    x, spatial = b.full(n.X), n.X.rank - 2
    strides, pads = n.strides or (1,) * spatial, n.pads or (0,) * (2 * spatial)
    span = [k - p - q for k, p, q in zip(n.kernel_shape, pads[:spatial], pads[spatial:], strict=True)]
    sides = (op.Shape(x, start=3) - 1) * list(strides) + span
    size = op.ReduceProd(op.Concat(op.Shape(x, start=1, end=3), sides, axis=0), keepdims=0)
    indices = b.full(n.I) + _starts(op, b, n.X.rank, size)
    flat = op.reshape_like(indices, x)
    folded = op.Reshape(flat, op.Concat([-1], op.Shape(x, start=2), axis=0))
    return b.unfold(b.again(b.fold(n.X), folded), n.X)


def _starts(op: Builder, b: Batch, rank: int, size: Var) -> Var:
    """Where each entry starts in what has `size` elements for each, to be added to values of a rank."""
    return op.Unsqueeze(op.iota(b.size) * size, list(range(1, 1 + rank)))


@batched("Resize")
def _resize(op: Builder, n: NodeView, b: Batch) -> Any:
    """As one batch where that is not resized itself (engines resize few axes only)."""
    rank = n.X.rank
    if not b.only("X") or (n.keep_aspect_ratio_policy != "stretch" and n.axes is None):
        return NotImplemented
    axes = list(range(rank)) if n.axes is None else [a % rank for a in n.axes]
    x, sizes = b.fold(n.X), n.sizes
    if 0 in axes:
        at = axes.index(0)
        if not _stays(op, n, at):
            if n.mode != "nearest" or n.antialias:
                return NotImplemented
            return b.again(b.X, n.roi, n.scales, n.sizes, axes=shift_all(axes))
        if sizes is not None:
            before, after = op.Slice(sizes, [0], [at]), op.Slice(sizes, [at + 1], [2**31])
            sizes = op.Concat(*([before] if at else []), op.Shape(x, start=0, end=1), after, axis=0)
    return b.unfold(b.again(x, n.roi, n.scales, sizes), n.X)


def _crops(n: NodeView) -> bool:
    return n.coordinate_transformation_mode == "tf_crop_and_resize"


def _stays(op: Builder, n: NodeView, at: int) -> bool:
    """True where the batch, which `at` is the place of among the axes that are resized, is sure to stay as it is."""
    if _crops(n):
        return False
    if n.sizes is not None:
        size = op.known(n.sizes)
        return size is not None and size[at] == n.X.shape[0]
    scales = n.scales.value.const
    return scales is not None and scales.numpy().reshape(-1)[at] == 1


@batched("AffineGrid")
def _affine_grid(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("theta"):
        return NotImplemented
    theta = b.fold(n.theta)
    size = op.Concat(op.Shape(theta, start=0, end=1), op.Slice(n.size, [1], [TO_END], [0]), axis=0)
    return b.unfold(b.again(theta, size), n.theta)


@batched("RoiAlign")
def _roi_align(op: Builder, n: NodeView, b: Batch) -> Any:
    """Entries of images are further channels; entries of regions are further regions, each of an image of its own."""
    if b.only("X"):
        return _channels_apart(op, b, b.again(_as_channels(op, b, b.X), n.rois, n.batch_indices))
    where = b.full(n.batch_indices)
    if b.X is not None:
        where = where + op.Cast(_starts(op, b, 1, op.scalar(op.Shape(b.X, start=1, end=2))), to=int(where.dtype))
    x = n.X if b.X is None else b.fold(n.X)
    return b.unfold(b.again(x, b.fold(n.rois), op.Reshape(where, [-1])), n.rois)


@batched("MaxRoiPool")
def _max_roi_pool(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.only("X"):
        return _channels_apart(op, b, b.again(_as_channels(op, b, b.X), n.rois))
    if b.only("rois"):
        return b.unfold(b.again(n.X, b.fold(n.rois)), n.rois)
    return NotImplemented


@batched("GridSample")
def _grid_sample(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.only("X"):  # one grid for all entries: they are channels
        return _channels_apart(op, b, b.again(_as_channels(op, b, b.X), n.grid))
    return b.unfold(b.again(b.fold(n.X), b.fold(n.grid)), n.X)


def _as_channels(op: Builder, b: Batch, x: Var) -> Var:
    """A twin [n, B, C, ...] as [B, n * C, ...]."""
    rank = x.rank
    assert rank is not None
    batch, channels, *sides = (extent(op, x, a) for a in range(1, rank))
    return reshape(op, op.Transpose(x, perm=[1, 0, *range(2, rank)]), [batch, b.count * channels, *sides])


def _channels_apart(op: Builder, b: Batch, y: Var) -> Var:
    """[B, n * C, ...] as [n, B, C, ...]."""
    rank = y.rank
    assert rank is not None
    batch, joint, *sides = (extent(op, y, a) for a in range(rank))
    whole = op.const([joint]) if isinstance(joint, int) else joint
    channels = joint // b.dim if isinstance(joint, int) and isinstance(b.dim, int) else whole / b.size
    return op.Transpose(reshape(op, y, [batch, b.count, channels, *sides]), perm=[1, 0, *range(2, rank + 1)])
