"""Experimental operators, never standardised, that early converters wrote and ONNX Runtime still runs."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_ir.types import DataType
from onnxad_passes.upgrade.registry import Results, adapter, number, required, take, take_ints


@adapter("Affine", before=18)
def affine(op: Builder, n: Node) -> Var:
    """alpha * x + beta"""
    x = required(op, n, 0)
    return x * _factor(op, n, "alpha", x) + _factor(op, n, "beta", x, 0.0)


@adapter("Scale", before=18)
def scale(op: Builder, n: Node) -> Var:
    """scale * x"""
    x = required(op, n, 0)
    return x * _factor(op, n, "scale", x)


@adapter("ScaledTanh", before=18)
def scaled_tanh(op: Builder, n: Node) -> Var:
    """alpha * tanh(beta * x)"""
    x = required(op, n, 0)
    return op.Tanh(x * _factor(op, n, "beta", x)) * _factor(op, n, "alpha", x)


@adapter("ParametricSoftplus", before=18)
def parametric_softplus(op: Builder, n: Node) -> Var:
    """alpha * log(1 + exp(beta * x))"""
    x = required(op, n, 0)
    return op.Softplus(x * _factor(op, n, "beta", x)) * _factor(op, n, "alpha", x)


@adapter("ImageScaler", before=18)
def image_scaler(op: Builder, n: Node) -> Var:
    """scale * x + bias, one bias a channel of a batch of images"""
    x = required(op, n, 0)
    bias = op.const([[[float(b)]] for b in take(n, "bias", (0.0,))], DataType.FLOAT)
    bias = op.CastLike(bias, x) if x.value.dtype is None else op.cast_like(bias, x)
    return x * _factor(op, n, "scale", x) + bias


@adapter("Crop", before=18)
def crop(op: Builder, n: Node) -> Var:
    """border = left, top, right, bottom; scale = height, width of what is kept, instead of the last two"""
    x = required(op, n, 0)
    left, top, right, bottom = take_ints(n, "border") or [0, 0, 0, 0]
    size = take_ints(n, "scale")
    if size:
        ends = op.const([top + size[0], left + size[1]])
    else:
        ends = op.Shape(x, start=2, end=4) - op.const([bottom, right])
    return op.Slice(x, [top, left], ends, [2, 3])


@adapter("MeanVarianceNormalization", before=9)
def mean_variance_normalization(op: Builder, n: Node) -> Results:
    """Over batch and image, or over the channels as well; the variance is optional."""
    axes = [0, 1, 2, 3] if take(n, "across_channels", 0) else [0, 2, 3]
    if take(n, "normalize_variance", 1):
        n.attributes["axes"] = tuple(axes)
        return None
    x = required(op, n, 0)
    return x - op.ReduceMean(x, axes, keepdims=1)


def _factor(op: Builder, n: Node, name: str, x: Var, default: float = 1.0) -> Var:
    return number(op, float(take(n, name, default)), x)
