"""Normalizations: a value is centred and divided by a norm, then scaled and shifted.

Standardization over axes, x^ = (x - mean) / sqrt(var + epsilon), has one tangent, shared by all of them:

    t^ = inv (t - mean(t) - x^ mean(x^ t)),    inv = 1 / sqrt(var + epsilon)

Where all elements are equal and epsilon is 0, or a norm is 0, the derivative is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.extents import extent, reshape
from onnxad_rules.kinds import pushforward
from onnxad_rules.node import NodeView
from onnxad_rules.windows import axes_but, per_channel, spatial_size


@dataclass(frozen=True)
class Standard:
    """A tensor standardized over axes."""

    axes: Var
    value: Var
    inverse: Var
    centred: bool = True

    def mean(self, op: Builder, x: Var) -> Var:
        """The mean over the axes, which are kept."""
        return op.ReduceMean(x, self.axes, keepdims=1)

    def tangent(self, op: Builder, t: Var) -> Var:
        """The tangent of `value`."""
        pull = self.value * self.mean(op, self.value * t)
        return (t - self.mean(op, t) - pull if self.centred else t - pull) * self.inverse


def standardize(op: Builder, x: Var, axes: Var, epsilon: float) -> tuple[Standard, Var]:
    """`x` standardized, and its mean."""
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    inverse = _inverse_root(op, op.ReduceMean(centred * centred, axes, keepdims=1), epsilon)
    return Standard(axes, centred * inverse, inverse), mean


def _inverse_root(op: Builder, variance: Var, epsilon: float) -> Var:
    if epsilon == 0:
        zero = op.Equal(variance, op.like(0, variance))
        return op.where(zero, 0, op.Reciprocal(op.Sqrt(op.where(zero, 1, variance))))
    return op.Reciprocal(op.Sqrt(variance + epsilon))


def _add(*terms: Var | None) -> Var | None:
    """The sum of the terms that are there; they may broadcast."""
    out: Var | None = None
    for t in terms:
        if t is not None:
            out = t if out is None else out + t
    return out


def _affine(t: Var | None, scale: Var | None, value: Var, t_scale: Var | None, t_shift: Var | None) -> Var | None:
    """The tangent of value * scale + shift."""
    through = t if t is None or scale is None else t * scale
    return _add(through, None if t_scale is None else value * t_scale, t_shift)


def _maybe(f: Any, x: Var | None) -> Var | None:
    return None if x is None else f(x)


# --- per channel


@pushforward("BatchNormalization", when=lambda n: not n.training_mode)
def _batch_inference(op: Builder, n: NodeView, t: Any) -> Var | None:
    """tX f + (X - mean) gain + shift, with f = scale / sqrt(var + epsilon), gain and shift one number a channel.

    X, scale and bias, and the statistics may have three element types.
    """
    inverse = op.cast_like(op.Reciprocal(op.Sqrt(n.input_var + n.epsilon)), n.scale)
    factor = n.scale * inverse

    def spread(v: Var) -> Var:
        return per_channel(op, op.cast_like(v, n.X), n.X)

    gain = _add(
        _maybe(lambda s: s * inverse, t.scale),
        _maybe(lambda v: op.cast_like(v, factor) * (factor * inverse * inverse * op.like(-0.5, factor)), t.input_var),
    )
    shift = _add(t.B, _maybe(lambda m: -(op.cast_like(m, factor) * factor), t.input_mean))
    out = _maybe(lambda x: x * spread(factor), t.X)
    if gain is not None:
        out = _add(out, (n.X - spread(n.input_mean)) * spread(gain))
    return _add(out, _maybe(spread, shift))


@pushforward("BatchNormalization", when=lambda n: n.training_mode)
def _batch_training(op: Builder, n: NodeView, t: Any) -> dict[str, Var | None]:
    """The statistics are those of the batch (with the population's variance), and move the running ones."""
    axes = axes_but(op, n.X, 1)
    standard, _ = standardize(op, n.X, axes, n.epsilon)
    parameters = (n.scale, t.scale, t.B)
    scale, t_scale, t_shift = (_maybe(lambda v: per_channel(op, op.cast_like(v, n.X), n.X), v) for v in parameters)
    new = 1 - n.momentum
    mean = variance = None
    if t.X is not None:
        mean = op.cast_like(op.ReduceMean(t.X, axes, keepdims=0) * new, n.input_mean)
        centred = standard.value / standard.inverse
        variance = op.cast_like(op.ReduceMean(centred * t.X, axes, keepdims=0) * (2 * new), n.input_var)
    return {
        "Y": _affine(_maybe(lambda x: standard.tangent(op, x), t.X), scale, standard.value, t_scale, t_shift),
        "running_mean": _add(mean, _maybe(lambda m: m * n.momentum, t.input_mean)),
        "running_var": _add(variance, _maybe(lambda v: v * n.momentum, t.input_var)),
    }


@pushforward("InstanceNormalization")
def _instance(op: Builder, n: NodeView, t: Any) -> Var | None:
    standard, _ = standardize(op, n.input, axes_but(op, n.input, 0, 1), n.epsilon)
    scale, t_scale, t_shift = (_maybe(lambda v: per_channel(op, v, n.input), v) for v in (n.scale, t.scale, t.B))
    return _affine(_maybe(lambda x: standard.tangent(op, x), t.input), scale, standard.value, t_scale, t_shift)


@pushforward("GroupNormalization")
def _group(op: Builder, n: NodeView, t: Any) -> Var | None:
    """Standardized over groups of channels; scale and bias are one number a channel, before opset 21 one a group."""
    wide = int(_wide(n.X.dtype, n.node.attributes.get("stash_type", 1)))
    groups, channels = n.num_groups, extent(op, n.X, 1)
    per_group = channels // groups if isinstance(channels, int) else channels / groups
    flat = [extent(op, n.X, 0), groups, per_group * spatial_size(op, n.X)]

    def split(x: Var) -> Var:
        return reshape(op, op.Cast(x, to=wide), flat)

    def spread(v: Var) -> Var:
        v = op.Cast(v, to=wide)
        return per_channel(op, v, n.X) if n.facts.since >= 21 else op.Reshape(v, [groups, 1])

    def joined(x: Var) -> Var:
        return op.reshape_like(x, n.X)

    standard, _ = standardize(op, split(n.X), op.const([2]), n.epsilon)
    value, tangent = standard.value, _maybe(lambda x: standard.tangent(op, split(x)), t.X)
    if n.facts.since >= 21:
        value, tangent = joined(value), _maybe(joined, tangent)
    y = _affine(tangent, spread(n.scale), value, _maybe(spread, t.scale), _maybe(spread, t.bias))
    return _maybe(lambda v: op.Cast(joined(op.expand_to(v, value)), to=int(n.X.dtype)), y)


# --- over the last axes


def _wide(dtype: DataType, stash: int) -> DataType:
    """The precision of the statistics: what `stash_type` says, but never less than the data's own."""
    return DataType.DOUBLE if DataType.DOUBLE in (dtype, DataType(stash)) else DataType(stash)


def last_axes(op: Builder, x: Var, axis: int) -> Var:
    """The axes from `axis` on, whatever the rank of `x`."""
    if axis < 0:
        return op.const(list(range(axis, 0)))
    if x.rank is not None:
        return op.const(list(range(axis, x.rank)))
    return op.Range(op.const(axis), op.scalar(op.rank(x)), op.const(1))


@pushforward("LayerNormalization")
def _layer(op: Builder, n: NodeView, t: Any) -> dict[str, Var | None]:
    """The statistics come from the fused kernel itself, run without scale, where it gives them in full precision."""
    wide = _wide(n.X.dtype, n.stash_type)
    axes = last_axes(op, n.X, n.axis)
    scale, t_scale, t_shift, t_x = (_maybe(lambda v: op.Cast(v, to=int(wide)), v) for v in (n.Scale, t.Scale, t.B, t.X))
    if n.X.dtype == wide == DataType(n.stash_type):
        plain = {k: a for k, a in n.node.attributes.items() if k in ("axis", "epsilon", "stash_type")}
        value, _, inverse = op.LayerNormalization(n.X, op.ones_like(n.Scale), outputs=3, **plain)
        standard = Standard(axes, value, inverse)
    else:
        standard, _ = standardize(op, op.Cast(n.X, to=int(wide)), axes, n.epsilon)
    y = _affine(_maybe(lambda x: standard.tangent(op, x), t_x), scale, standard.value, t_scale, t_shift)
    out: dict[str, Var | None] = {"Y": _maybe(lambda v: op.Cast(v, to=int(n.X.dtype)), y)}
    if t_x is not None and len(n.node.outputs) > 1:
        stash = n.stash_type
        moved = standard.inverse * standard.inverse * standard.mean(op, standard.value * t_x)
        out |= {"Mean": op.Cast(standard.mean(op, t_x), to=stash), "InvStdDev": op.Cast(-moved, to=stash)}
    return out


@pushforward("RMSNormalization")
def rms(op: Builder, n: NodeView, t: Any) -> Var | None:
    """The tangent of x / sqrt(mean(x^2) + epsilon) * scale."""
    wide = _wide(n.X.dtype, n.stash_type)
    axes = last_axes(op, n.X, n.axis)
    x, scale, t_scale, t_x = (_maybe(lambda v: op.Cast(v, to=int(wide)), v) for v in (n.X, n.scale, t.scale, t.X))
    assert x is not None
    inverse = _inverse_root(op, op.ReduceMean(x * x, axes, keepdims=1), n.epsilon)
    standard = Standard(axes, x * inverse, inverse, centred=False)
    y = _affine(_maybe(lambda v: standard.tangent(op, v), t_x), scale, standard.value, t_scale, None)
    return _maybe(lambda v: op.Cast(v, to=int(n.X.dtype)), y)


# --- without scale


def _safe(op: Builder, norm: Var) -> Var:
    return op.where(op.Equal(norm, op.like(0, norm)), 1, norm)


@pushforward("LpNormalization")
def _lp(op: Builder, n: NodeView, t: Any) -> Var:
    """(t - y d|x|) / |x|, with d|x| = sum(y t) for the 2-norm and sum(sign(x) t) for the 1-norm; 0 where |x| is."""
    axes = [n.axis]
    if n.p == 1:
        norm, slope = op.ReduceL1(n.input, axes, keepdims=1), op.Sign(n.input)
    else:
        norm, slope = op.ReduceL2(n.input, axes, keepdims=1), n.output
    zero = op.Equal(norm, op.like(0, norm))
    over = op.where(zero, 0, op.Reciprocal(op.where(zero, 1, norm)))
    return (t.input - n.output * op.ReduceSum(slope * t.input, axes, keepdims=1)) * over


@pushforward("MeanVarianceNormalization")
def _mean_variance(op: Builder, n: NodeView, t: Any) -> Var:
    """y = (x - mean) / (std + 1e-9), with d std = mean((x - mean) t) / std."""
    axes = op.const(list(n.axes))
    centred = n.X - op.ReduceMean(n.X, axes, keepdims=1)
    std = op.Sqrt(_safe(op, op.ReduceMean(centred * centred, axes, keepdims=1)))
    slope = op.ReduceMean(centred * t.X, axes, keepdims=1) / std
    through = t.X - op.ReduceMean(t.X, axes, keepdims=1)
    return (through - n.Y * slope) / (std + 1e-9)


@pushforward("LRN")
def _local_response(op: Builder, n: NodeView, t: Any) -> Var:
    """y = x base^-beta, base = bias + alpha mean(x^2 over a window of channels)."""

    def window_mean(v: Var) -> Var:
        flat = reshape(op, v, [extent(op, n.X, 0), 1, extent(op, n.X, 1), spatial_size(op, n.X)])
        before, after = (n.size - 1) // 2, n.size // 2
        pooled = op.AveragePool(flat, kernel_shape=(n.size, 1), pads=(before, 0, after, 0), count_include_pad=1)
        return op.reshape_like(pooled, n.X)

    base = window_mean(n.X * n.X) * n.alpha + n.bias
    slope = window_mean(n.X * t.X) * (2 * n.alpha * n.beta)
    return t.X * op.Pow(base, op.like(-n.beta, base)) - n.Y / base * slope
