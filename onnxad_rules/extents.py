"""Extents that are numbers where shapes tell them, and tensors where only the run does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from onnxad_ir import dims
from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import Dim

#: An extent: known, or a tensor of shape [1].
Extent: TypeAlias = "int | Var"


def numbers(shape: Sequence[Dim] | None) -> tuple[int, ...] | None:
    """Extents that are all numbers, else None."""
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return tuple(shape)  # type: ignore[arg-type]


def extent(op: Builder, x: Var, axis: int) -> Extent:
    """The extent of an axis: a number where it is known."""
    d = None if x.shape is None else x.shape[axis]
    return d if isinstance(d, int) else op.extent(x, axis)


def difference(op: Builder, x: Var, y: Var, axis: int) -> Extent:
    """How much longer `x` is than `y` along an axis; a number where symbols cancel."""
    if x.shape is not None and y.shape is not None:
        d = dims.sub(x.shape[axis], y.shape[axis])
        if isinstance(d, int):
            return d
    return minus(op, extent(op, x, axis), extent(op, y, axis))


def minus(op: Builder, a: Extent, b: Extent) -> Extent:
    """a - b."""
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return _tensor(op, a) - _tensor(op, b)


def plus(op: Builder, a: Extent, b: Extent) -> Extent:
    """a + b."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0 and isinstance(a, int):
        return b
    return _tensor(op, a) + _tensor(op, b)


def product(extents: Sequence[Extent]) -> Extent:
    """The product of extents, a number where all are."""
    total: Extent = math.prod(e for e in extents if isinstance(e, int))
    for e in extents:
        if not isinstance(e, int):
            total = e if total == 1 and isinstance(total, int) else e * total
    return total


def reshape(op: Builder, x: Var, sides: Sequence[Extent]) -> Var:
    """`x` with extents of which some are known to the run only; a single one is left to Reshape (-1) where it may."""
    known = [d for d in sides if isinstance(d, int)]
    if len(known) == len(sides) - 1 and all(d > 0 for d in known):
        return op.Reshape(x, [d if isinstance(d, int) else -1 for d in sides])
    return op.Reshape(x, op.shape_of(sides), allowzero=None if len(known) == len(sides) and all(known) else 1)


def _tensor(op: Builder, a: Extent) -> Var:
    return op.const([a]) if isinstance(a, int) else a
