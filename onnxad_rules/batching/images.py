"""Operators on a batch of images: the entries become part of the batch."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, batched
from onnxad_rules.node import NodeView


@batched(
    "AveragePool", "BatchNormalization", "ConvTranspose", "DepthToSpace", "GlobalAveragePool", "GlobalLpPool",
    "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "SpaceToDepth",
)  # fmt: skip
def _image_by_image(op: Builder, n: NodeView, b: Batch) -> Any:
    x, *others = n.node.inputs
    if x is None or len(n.node.outputs) > 1 or any(b.twin(v) is not None for v in others):
        return NotImplemented
    y = b.again(b.fold(op.var(x)), *(None if v is None else op.var(v) for v in others))
    assert x.shape is not None
    return b.unfold(y, x.shape[0])


@batched("MaxPool")
def _max_pool(op: Builder, n: NodeView, b: Batch) -> Any:
    """Only where the indices, which count through the whole batch, are not asked for."""
    if len(n.node.outputs) > 1 and n.node.outputs[1].users:
        return NotImplemented
    y = b.again(b.fold(n.X), outputs=1)
    return b.unfold(y, n.X.shape[0])


@batched("Conv")
def _conv(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.only("X"):
        return b.unfold(b.again(b.fold(n.X), n.W, n.B), n.X.shape[0])
    if b.only("W") and n.group == 1 and n.B is None:
        return _kernels(op, n, b)
    return NotImplemented


def _kernels(op: Builder, n: NodeView, b: Batch) -> Any:
    """One image with the kernels of all entries: they become channels of the result."""
    rank, channels = n.W.rank, n.W.shape[0]
    y = b.again(n.X, b.fold(n.W))
    assert y.shape is not None
    spatial = op.Shape(y, start=2)
    parts = op.Concat(op.extent(n.X, 0), b.size, op.dim(channels), spatial, axis=0)
    return op.Transpose(op.Reshape(y, parts, allowzero=1), perm=[1, 0, *range(2, rank + 1)])
