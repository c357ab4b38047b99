"""Steps of optimizers, of the domain ai.onnx.preview.training, as the specification's pseudo code has them.

The inputs come in groups, the tensors first: [X_1, X_2, ..., G_1, G_2, ..., ...].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import decompose, linear
from onnxad_rules.node import NodeView

DOMAIN = "ai.onnx.preview.training"


def _groups(n: NodeView, count: int) -> list[tuple[Var, ...]]:
    """The variadic inputs, a tuple of `count` tensors per optimized tensor."""
    size = len(n.inputs) // count
    return list(zip(*(n.inputs[i * size : (i + 1) * size] for i in range(count)), strict=True))


def _by_kind(results: Sequence[tuple[Var, ...]]) -> list[Var]:
    """Results in the order of the operator: every new tensor, then every new average."""
    return [r for kind in zip(*results, strict=True) for r in kind]


def _regularized(op: Builder, n: NodeView, x: Var, g: Var) -> Var:
    return x * op.like(n.norm_coefficient, x) + g if n.norm_coefficient else g


def _root(op: Builder, x: Var) -> Var:
    """The square root of sums of squares; its derivative at 0, where everything squared is 0, is 0."""
    tiny = float(np.finfo(x.dtype.numpy()).tiny)
    return op.Sqrt(op.Max(x, op.like(tiny, x)))


@decompose("Momentum", domain=DOMAIN)
def _momentum(op: Builder, n: NodeView) -> list[Var]:
    results = []
    for x, g, v in _groups(n, 3):
        rate = op.cast_like(op.scalar(n.R), x)
        g = _regularized(op, n, x, g)
        beta = op.where(op.Greater(op.scalar(n.T), op.const(0)), op.like(n.beta, x), 1)
        alpha = op.like(n.alpha, x)
        v_new = v * alpha + g * beta
        step = g + v_new * alpha if n.mode == "nesterov" else v_new
        results.append((x - rate * step, v_new))
    return _by_kind(results)


@decompose("Adagrad", domain=DOMAIN)
def _adagrad(op: Builder, n: NodeView) -> list[Var]:
    results = []
    for x, g, h in _groups(n, 3):
        one = op.like(1, x)
        decay = op.cast_like(op.scalar(n.T), x) * op.like(n.decay_factor, x) + one
        rate = op.cast_like(op.scalar(n.R), x) / decay
        g = _regularized(op, n, x, g)
        h_new = h + g * g
        x_new = x - rate * g / (_root(op, h_new) + op.like(n.epsilon, x))
        results.append((x_new, h_new))
    return _by_kind(results)


@decompose("Adam", domain=DOMAIN)
def _adam(op: Builder, n: NodeView) -> list[Var]:
    results = []
    for x, g, v, h in _groups(n, 4):
        one = op.like(1, x)
        alpha, beta = op.like(n.alpha, x), op.like(n.beta, x)
        g = _regularized(op, n, x, g)
        v_new = v * alpha + g * (one - alpha)
        h_new = h * beta + g * g * (one - beta)
        steps = op.cast_like(op.scalar(n.T), x)
        started = op.Greater(steps, op.like(0, x))
        steps = op.where(started, steps, 1)
        correction = op.Sqrt(one - op.Pow(beta, steps)) / (one - op.Pow(alpha, steps))
        rate = op.cast_like(op.scalar(n.R), x) * op.where(started, correction, 1)
        x_new = x - rate * v_new / (_root(op, h_new) + op.like(n.epsilon, x))
        if n.norm_coefficient_post:
            x_new = x_new * op.like(1 - n.norm_coefficient_post, x)
        results.append((x_new, v_new, h_new))
    return _by_kind(results)


linear(
    "Gradient",
    domain=DOMAIN,
    refuse={
        "Inputs": "Gradient stands for a derivative of the graph that surrounds it, which runtimes take; "
        "put that derivative in its place (with this package) and differentiate the result"
    },
)
