"""Activation functions. Those of hot paths use the fewest cheap kernels, and the result of the primal where it helps.

At kinks PyTorch's value: Relu'(0) = 0, LeakyRelu'(0) = PRelu'(0) = the slope, Elu'(0) = alpha, HardSigmoid' = 0 and
HardSwish' = 0 or 1 at their corners, Shrink' = 0 and ThresholdedRelu' = 0 at the threshold.
"""

from __future__ import annotations

import math

from onnxad_ir.builder import Builder, Var
from onnxad_rules.context import gate
from onnxad_rules.kinds import elementwise, times
from onnxad_rules.node import NodeView


def _number(op: Builder, mask: Var, like: Var) -> Var:
    """A boolean as 0 or 1. A product with it is many times faster than Where in ONNX Runtime."""
    return op.cast_like(mask, like)


def _above(op: Builder, x: Var, number: float) -> Var:
    return op.Greater(x, op.like(number, x))


def _below(op: Builder, x: Var, number: float) -> Var:
    return op.Less(x, op.like(number, x))


elementwise("Relu", X=times(lambda op, n, x: gate(op, n, x, _above(op, n.Y, 0))))
elementwise("ThresholdedRelu", X=times(lambda op, n, x: gate(op, n, x, _above(op, n.X, n.alpha))))
elementwise("Shrink", input=times(lambda op, n, x: gate(op, n, x, _above(op, op.Abs(n.input), n.lambd))))


def _leaky(op: Builder, n: NodeView) -> Var:
    """1 above zero, else alpha."""
    positive = _number(op, _above(op, n.X, 0), n.X)
    if 0 <= n.alpha <= 1:
        return op.Max(positive, op.like(n.alpha, n.X))
    return positive * (1 - n.alpha) + n.alpha


elementwise("LeakyRelu", X=_leaky)


def _prelu(op: Builder, n: NodeView) -> Var:
    """1 above zero, else the slope, which is small beside X."""
    return _number(op, _above(op, n.X, 0), n.X) * (1 - n.slope) + n.slope


elementwise("PRelu", X=_prelu, slope=lambda op, n: op.Min(n.X, op.like(0, n.X)))


def _elu(op: Builder, n: NodeView) -> Var:
    """1 above zero, else alpha exp(x) = y + alpha."""
    if n.alpha == 1:
        return op.Min(n.Y, op.like(0, n.Y)) + 1
    return op.where(_above(op, n.X, 0), 1, n.Y + n.alpha)


elementwise("Elu", X=_elu)
elementwise("Selu", X=lambda op, n: op.where(_above(op, n.X, 0), n.gamma, n.Y + n.gamma * n.alpha))
# 1 above zero, else exp(x / alpha) = y / alpha + 1
elementwise("Celu", X=lambda op, n: op.Min(n.Y, op.like(0, n.Y)) * (1 / n.alpha) + 1)

elementwise("Sigmoid", X=lambda op, n: n.Y * (1 - n.Y))
elementwise("Softplus", X=lambda op, n: op.Sigmoid(n.X))


def _softsign(op: Builder, n: NodeView, x: Var) -> Var:
    d = op.Abs(n.input) + 1
    return x / d / d


elementwise("Softsign", input=times(_softsign))


def _inside(op: Builder, y: Var) -> Var:
    """1 where 0 < y < 1, else 0."""
    return _number(op, op.And(_above(op, y, 0), _below(op, y, 1)), y)


elementwise("HardSigmoid", X=lambda op, n: _inside(op, n.Y) * n.alpha)


def _hard_swish(op: Builder, n: NodeView) -> Var:
    """h(x) + x h'(x) with h(x) = min(1, max(0, x / 6 + 1/2))."""
    h = op.HardSigmoid(n.X, alpha=1 / 6, beta=0.5)
    inside = _number(op, _below(op, op.Abs(n.X), 3), n.X)
    return h + n.X * inside * (1 / 6)


elementwise("HardSwish", X=_hard_swish)


def swish(op: Builder, n: NodeView, x: Var, y: Var) -> Var:
    """The derivative of y = x s(alpha x): s + alpha y (1 - s)."""
    s = op.Sigmoid(x if n.alpha == 1 else x * n.alpha)
    rest = y * (1 - s)
    return s + (rest if n.alpha == 1 else rest * n.alpha)


elementwise("Swish", X=lambda op, n: swish(op, n, n.X, n.Y))


def _swiglu_gate(op: Builder, n: NodeView) -> Var:
    """Swish'(A) B = s B + alpha Y (1 - s), for Y = Swish(A) B."""
    s = op.Sigmoid(n.A if n.alpha == 1 else n.A * n.alpha)
    rest = n.Y * (1 - s)
    return s * n.B + (rest if n.alpha == 1 else rest * n.alpha)


elementwise(
    "SwiGLU",
    A=_swiglu_gate,
    B=lambda op, n: n.A * op.Sigmoid(n.A if n.alpha == 1 else n.A * n.alpha),
)


def _mish(op: Builder, n: NodeView) -> Var:
    """T + x s (1 - T^2) with T = tanh(softplus(x)) = w / (2 - w), w = s (2 - s), s = sigmoid(x).

    This form of T is exact at both ends and needs no Softplus.
    """
    s = op.Sigmoid(n.X)
    w = s * (2 - s)
    t = w / (2 - w)
    return t + n.X * s * (1 - t * t)


elementwise("Mish", X=_mish)


def _gelu(op: Builder, n: NodeView) -> Var:
    return gelu_tanh(op, n) if n.approximate == "tanh" else gelu_erf(op, n)


def gelu_erf(op: Builder, n: NodeView) -> Var:
    """1/2 + erf(u) / 2 + u exp(-u^2) / sqrt(pi), with u = x / sqrt(2); the last factor goes into the
    exponent."""
    u = n.X * math.sqrt(0.5)
    bell = u * op.Exp(op.like(-0.5 * math.log(math.pi), u) - u * u)
    return op.Erf(u) * 0.5 + 0.5 + bell


def gelu_tanh(op: Builder, n: NodeView) -> Var:
    """y = x s(v) with v = x (a + b x^2): s + y (1 - s) v', which reuses the primal's result."""
    a = 2 * math.sqrt(2 / math.pi)
    bxx = n.X * n.X * (a * 0.044715)
    s = op.Sigmoid(n.X * (bxx + a))
    return s + n.Y * (1 - s) * (bxx * 3 + a)


elementwise("Gelu", X=_gelu)
