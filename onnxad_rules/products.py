"""What the derivative of a product needs where factors are zero: the product of all the others, factor by
factor.
 y / x gives it wherever x is not zero, at any order. At a zero it does not; there each zero factor gets a row
of its own, a copy of the operand in which it is replaced by 1, and the product is taken again. The number of
rows is the number of zeros that the run meets, normally none, so that nothing is computed.
"""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var


def is_zero(op: Builder, x: Var) -> Var:
    """Where `x` is zero."""
    return op.Equal(x, op.like(0, x))


def rows_of_zeros(op: Builder, zero: Var) -> Var:
    """Booleans of shape [Z, *shape of `zero`]: row k is True at the place of the k-th of the Z true elements
    alone."""
    place = op.NonZero(op.Reshape(zero, [-1]))
    ones = op.const([1] * zero.rank) if zero.rank is not None else op.Expand(op.const([1]), op.rank(zero))
    place = op.Reshape(place, op.Concat(op.const([-1]), ones, axis=0))
    places = op.Reshape(op.iota(op.Size(zero)), op.shape(zero), allowzero=1)
    return op.Equal(place, places)
