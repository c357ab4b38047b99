"""Normalizations over batches, channels and groups."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched, shift
from onnxad_rules.node import NodeView


@batched("LayerNormalization", "RMSNormalization", any_rank=True)
def _over_the_last(op: Builder, n: NodeView, b: Batch) -> Any:
    first, *others = n.node.inputs
    if any(b.twin(v) is not None for v in others):
        return NotImplemented
    return b.again(b.twin(first), *(None if v is None else op.var(v) for v in others), axis=shift(n.axis))


@batched("InstanceNormalization")
def _instance(op: Builder, n: NodeView, b: Batch) -> Any:
    """Without the scale and the bias of one entry, which are applied to what comes out."""
    if b.only("input"):
        return b.unfold(b.again(b.fold(n.input), n.scale, n.B), n.input)
    channels = op.extent(n.scale, 0) if b.scale is None else op.Shape(b.scale, start=1)
    one, zero = (op.Expand(op.like(k, n.scale), channels) for k in (1, 0))
    x = n.input if b.input is None else b.fold(n.input)
    y = b.again(x, one, zero)
    y = y if b.input is None else b.unfold(y, n.input)
    return y * _per_channel(op, b, n.scale, n.input.rank) + _per_channel(op, b, n.B, n.input.rank)


@batched("GroupNormalization")
def _group(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("X"):
        return NotImplemented
    return b.unfold(b.again(b.fold(n.X), n.scale, n.bias), n.X)


@batched("BatchNormalization")
def _batch(op: Builder, n: NodeView, b: Batch) -> Any:
    if n.training_mode:
        return _training(op, n, b)
    if b.only("X"):
        y = b.again(b.fold(n.X), n.scale, n.B, n.input_mean, n.input_var)
        return b.unfold(y, n.X)
    x = op.Cast(n.X if b.X is None else b.X, to=int(n.input_var.dtype))
    scale, shift, mean, variance = (
        op.Cast(_per_channel(op, b, v, n.X.rank), to=int(n.input_var.dtype))
        for v in (n.scale, n.B, n.input_mean, n.input_var)
    )
    y = (x - mean) * (scale * op.Reciprocal(op.Sqrt(variance + n.epsilon))) + shift
    return op.Cast(y, to=int(n.X.dtype))


def _training(op: Builder, n: NodeView, b: Batch) -> Any:
    """Each entry by the statistics of its own batch."""
    wide, rank = int(n.input_var.dtype), n.X.rank
    x = op.Cast(b.full(n.X), to=wide)
    axes = [1, *range(3, rank + 1)]
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    variance = op.ReduceMean(centred * centred, axes, keepdims=1)
    scale, shift = (op.Cast(_per_channel(op, b, v, rank), to=wide) for v in (n.scale, n.B))
    y = op.Cast(centred * op.Reciprocal(op.Sqrt(variance + n.epsilon)) * scale + shift, to=int(n.X.dtype))
    moving = [
        b.aligned(old, 1) * n.momentum + op.Squeeze(new, axes) * (1 - n.momentum)
        for old, new in ((n.input_mean, mean), (n.input_var, variance))
    ]
    return (y, *moving)[: len(n.node.outputs)]


def _per_channel(op: Builder, b: Batch, v: Var, rank: int) -> Var:
    """A vector along the channels, which are axis 1 of one entry, so that it broadcasts against twins."""
    twin = b.twin(v)
    x = v if twin is None else op.Unsqueeze(twin, [1])
    return op.Unsqueeze(x, list(range(-(rank - 2), 0))) if rank > 2 else x
