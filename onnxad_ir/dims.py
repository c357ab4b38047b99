"""Arithmetic on extents: integers fold, symbols make canonical polynomials, so that equal extents are equal text."""

from __future__ import annotations

from collections.abc import Iterable

from onnxad_ir.types import Dim, Shape

Monomial = tuple[str, ...]

#: What a sum or product of extents is whose text would be too long: no symbol at all, and equal to nothing. It is met
#: only while a type is worked out; inference puts a fresh symbol in its place.
TOO_LONG = "?"
#: Polynomials of more terms, or of a higher degree, are `TOO_LONG`: extents stay as cheap as the graph is long.
_TERMS, _DEGREE = 16, 16


class Expr(str):
    """A symbolic extent built from others: a polynomial in atoms. Compares, hashes and prints as its text."""

    terms: dict[Monomial, int]
    __slots__ = ("terms",)


def terms(d: Dim) -> dict[Monomial, int]:
    """`d` as a polynomial: coefficient by sorted monomial."""
    if isinstance(d, int):
        return {(): d} if d else {}
    if isinstance(d, Expr):
        return d.terms
    return {(d,): 1}


def _dim(poly: dict[Monomial, int]) -> Dim:
    poly = {m: c for m, c in sorted(poly.items()) if c}
    if not poly:
        return 0
    if len(poly) > _TERMS or any(len(m) > _DEGREE or TOO_LONG in m for m in poly):
        return TOO_LONG
    if len(poly) == 1:
        ((m, c),) = poly.items()
        if not m:
            return c
        if c == 1 and len(m) == 1:
            return m[0]
    text = "+".join("*".join(([] if c == 1 and m else [str(c)]) + list(m)) for m, c in poly.items())
    prefix = "?" if any(a.startswith("?") for m in poly for a in m) else ""
    e = Expr(f"{prefix}({text})")
    e.terms = poly
    return e


def add(a: Dim, b: Dim) -> Dim:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if TOO_LONG in (a, b):
        return TOO_LONG
    out = dict(terms(a))
    for m, c in terms(b).items():
        out[m] = out.get(m, 0) + c
    return _dim(out)


def mul(a: Dim, b: Dim) -> Dim:
    """a * b."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if TOO_LONG in (a, b):
        return 0 if 0 in (a, b) else TOO_LONG
    out: dict[Monomial, int] = {}
    for m, c in terms(a).items():
        for k, d in terms(b).items():
            key = tuple(sorted(m + k))
            out[key] = out.get(key, 0) + c * d
    return _dim(out)


def neg(a: Dim) -> Dim:
    """-a."""
    return mul(a, -1)


def sub(a: Dim, b: Dim) -> Dim:
    """a - b."""
    return add(a, neg(b))


def floordiv(a: Dim, b: Dim) -> Dim | None:
    """a // b where it can be told (b = 0 and inexact symbolic quotients cannot), else None."""
    if b == 0 or TOO_LONG in (a, b):
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if a == b:
        return 1
    top, bottom = terms(a), terms(b)
    if len(bottom) != 1:
        return None
    ((mono, coeff),) = bottom.items()
    out: dict[Monomial, int] = {}
    for m, c in top.items():
        left = list(m)
        for atom in mono:
            if atom not in left:
                return None
            left.remove(atom)
        if c % coeff:
            return None
        out[tuple(left)] = c // coeff
    return _dim(out)


def total(dims: Iterable[Dim]) -> Dim:
    """The sum of extents."""
    out: dict[Monomial, int] = {}
    for d in dims:
        for m, c in terms(d).items():
            out[m] = out.get(m, 0) + c
    return _dim(out)


def product(dims: Iterable[Dim]) -> Dim:
    """The product of extents."""
    out: Dim = 1
    for d in dims:
        out = mul(out, d)
    return out


def broadcast_dim(a: Dim, b: Dim) -> Dim | None:
    """The extent of two extents broadcast together; None where it depends on run-time values."""
    if a == b:
        return None if a == TOO_LONG else a
    if a == 1:
        return b
    if b == 1:
        return a
    if isinstance(a, int):
        return a  # b is 1 or a
    if isinstance(b, int):
        return b
    return None


def substitute(shape: Shape | None, mapping: dict[str, Dim]) -> Shape | None:
    """`shape` with symbols replaced."""
    if shape is None:
        return None
    out: list[Dim] = []
    for d in shape:
        if isinstance(d, int):
            out.append(d)
        elif isinstance(d, Expr):
            total: Dim = 0
            for m, c in d.terms.items():
                total = add(total, mul(c, product(mapping.get(a, a) for a in m)))
            out.append(total)
        else:
            out.append(mapping.get(d, d))
    return tuple(out)
