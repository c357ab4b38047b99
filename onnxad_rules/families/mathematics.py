"""Functions of one variable, and powers."""

from __future__ import annotations

import math

from onnxad_ir.builder import Builder, Var
from onnxad_rules.context import SMALLEST, divisor, factor, positive
from onnxad_rules.kinds import elementwise, times
from onnxad_rules.node import NodeView

elementwise("Exp", input=lambda op, n: factor(op, n, n.output, certain=True))
# log'(0) is infinite, but zero times it is zero. Where x is negative, the logarithm itself is undefined.
elementwise("Log", input=times(lambda op, n, x: x / positive(op, n.input)))
# PyTorch: 0 at 0
elementwise("Abs", X=lambda op, n: op.Sign(n.X))
# 2/sqrt(pi) exp(-x^2)
elementwise("Erf", input=lambda op, n: op.Exp(op.like(math.log(2 / math.sqrt(math.pi)), n.input) - n.input * n.input))

elementwise("Sin", input=lambda op, n: op.Cos(n.input))
elementwise("Cos", input=times(lambda op, n, x: -(x * op.Sin(n.input))))
elementwise("Tan", input=lambda op, n: n.output * n.output + 1)
elementwise("Sinh", input=lambda op, n: op.Cosh(n.input))
elementwise("Cosh", input=lambda op, n: op.Sinh(n.input))
elementwise("Tanh", input=lambda op, n: 1 - n.output * n.output)
elementwise("Atan", input=times(lambda op, n, x: x / (n.input * n.input + 1)))
elementwise("Asin", input=times(lambda op, n, x: x / _root(op, n, 1 - n.input * n.input)))
elementwise("Acos", input=times(lambda op, n, x: -(x / _root(op, n, 1 - n.input * n.input))))
elementwise("Asinh", input=times(lambda op, n, x: x / op.Sqrt(n.input * n.input + 1)))
# (x - 1)(x + 1) rather than x^2 - 1: exact near 1
elementwise("Acosh", input=times(lambda op, n, x: x / _root(op, n, (n.input - 1) * (n.input + 1))))
elementwise("Atanh", input=times(lambda op, n, x: x / divisor(op, n, (1 - n.input) * (n.input + 1))))


def _root(op: Builder, n: NodeView, x: Var) -> Var:
    """A square root to divide by: 0 / 0 is 0."""
    return positive(op, factor(op, n, op.Sqrt(x), certain=True))


# --- Pow


def _base(op: Builder, n: NodeView, x: Var) -> Var | None:
    """x Y X^(Y-1), which at X = 0 is zero for Y > 1, X^0 = 1 for Y = 1 and zero for Y = 0."""
    p = op.number(n.Y)
    if p is None:
        return _base_by_computed_exponent(op, n, x)
    if p == 0:
        return None
    if p == 1:
        return x
    if p == 0.5:
        return x * 0.5 / positive(op, factor(op, n, n.Z, certain=True))
    if p == 2:
        return x * (n.X + n.X)
    if p == 3:
        return x * (n.X * n.X * 3)
    if p > 1:
        return x * (factor(op, n, op.Pow(n.X, _exponent(op, n, p - 1)), certain=p != int(p)) * p)
    # infinite at 0: dividing by X^(1-Y) keeps zero times it zero; a whole power may be negative
    power = op.Pow(n.X, _exponent(op, n, 1 - p))
    return x * p / (divisor(op, n, power) if p == int(p) else positive(op, factor(op, n, power, certain=True)))


def _exponent(op: Builder, n: NodeView, p: float) -> Var:
    return op.const(p, n.X.dtype)


def _base_by_computed_exponent(op: Builder, n: NodeView, x: Var) -> Var:
    base, y = n.X, op.cast_like(n.Y, n.X)
    # infinite where the base is 0 and the exponent below 1, but zero where the exponent is 0
    steep = op.And(op.Equal(base, op.like(0, base)), op.Less(y, op.like(1, y)))
    instead = op.where(op.Equal(y, op.like(0, y)), op.like(1, base), SMALLEST[base.dtype])
    return x * (y * factor(op, n, op.Pow(op.where(steep, instead, base), y - 1), certain=True))


def _power(op: Builder, n: NodeView, x: Var) -> Var:
    """x Z log X, zero where X is 0 (PyTorch's convention, for exponents of at least 0).

    X and Y may have different element types; Z has that of X. `x` is a tangent of Y or a cotangent of Z.
    """
    base = op.where(op.Equal(n.X, op.like(0, n.X)), 1, n.X)
    d = op.cast_like(x, n.Z) * (n.Z * op.Log(base))
    same = n.Y.dtype == n.Z.dtype
    return d if same else op.cast_like(d, n.Y if x.dtype == n.Z.dtype else n.Z)


elementwise("Pow", X=times(_base), Y=times(_power))
