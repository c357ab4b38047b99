"""A product divided by one of its factors, and a quotient multiplied by its divisor: the factor cancels.

The derivative of a root or a norm divides by its result, guarded against zero; that of a square multiplies by it. Where
one meets the other, as in the square of a norm, the two cancel, also at zero: there the quotient is 0 by convention,
but the product has a derivative of every order. Only guarded divisors are cancelled: `max(y, tiny)`, as `Builder` users
write it for a y that is never negative, and `y == 0 ? inf : y`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxad_ir.core import Node, Value

if TYPE_CHECKING:
    from onnxad_ir.builder import Builder

#: Products are looked into this deep.
_DEPTH = 4
#: No guard is larger.
_TINY = 1e-7


def quotient(op: Builder, a: Value, b: Value) -> Value | None:
    """What `a / b` is where b guards a factor of a, of the same shape; None otherwise."""
    factor = _guarded(op, b)
    if factor is None:
        return None
    found = _cofactor(op, a, factor, _DEPTH)
    return found if found is not None and found.shape is not None and found.shape == a.shape else None


def product(op: Builder, a: Value, b: Value) -> Value | None:
    """What `a * b` is where a is a quotient whose divisor guards a factor of b, of one shape; None otherwise."""
    p = a.producer
    if p is None or p.op_type != "Div" or p.domain:
        return None
    x, y = p.inputs
    if x is None or y is None or x.shape is None or x.shape != a.shape or b.shape != y.shape:
        return None
    factor = _guarded(op, y)
    if factor is None or factor is b:
        return None if factor is None else x
    rest = _cofactor(op, b, factor, _DEPTH)
    return None if rest is None else op.emit("Mul", (x, rest), {})[0]


def _guarded(op: Builder, b: Value) -> Value | None:
    """The value that a divisor guards against zero."""
    p = b.producer
    if p is None or p.domain:
        return None
    if p.op_type == "Max" and len(p.inputs) == 2:
        x, tiny = p.inputs
        number = None if tiny is None else op.number(tiny)
        return x if number is not None and 0 < number <= _TINY else None
    if p.op_type == "Where":
        c, top, y = p.inputs
        number = None if top is None else op.number(top, float("inf"))
        return y if number is not None and c is not None and y is not None and _is_zero(op, c.producer, y) else None
    return None


def _is_zero(op: Builder, p: Node | None, y: Value) -> bool:
    if p is None or p.op_type != "Equal" or p.inputs[0] is not y:
        return False
    zero = p.inputs[1]
    return zero is not None and op.number(zero, 0) is not None


def _cofactor(op: Builder, a: Value, factor: Value, depth: int) -> Value | None:
    """The value whose product with `factor` is `a`."""
    p = a.producer
    if p is None or p.domain or depth == 0 or p.op_type not in ("Mul", "Add"):
        return None
    x, y = p.inputs
    assert x is not None and y is not None
    if p.op_type == "Add":
        if x is y is factor:
            return op.const(2, x.dtype).value
        left = _cofactor(op, x, factor, depth - 1)
        right = left if x is y or left is None else _cofactor(op, y, factor, depth - 1)
        return None if left is None or right is None else op.emit("Add", (left, right), {})[0]
    for one, other in ((x, y), (y, x)):
        if one is factor:
            return other
        if (rest := _cofactor(op, one, factor, depth - 1)) is not None:
            return op.emit("Mul", (other, rest), {})[0]
    return None
