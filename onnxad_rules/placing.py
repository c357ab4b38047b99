"""Putting elements back: the transposes of operators that pick elements of a tensor, pieces of it or repeats.

Sums over repeated places are written with ScatterElements, never ScatterND: ONNX Runtime (seen in 1.32)
runs ScatterND on several threads without locks, so that duplicate indices lose terms of a reduction. Where no
place is written twice, ScatterND without a reduction is a copy of rows and as safe as it is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import Dim, TensorType
from onnxad_rules.extents import Extent

#: The end of a Slice that means "to the end".
TO_END = 2**63 - 1
#: The end of a Slice that means "to the beginning" for a negative step.
TO_BEGINNING = -(2**63) + 1


def cut(op: Builder, x: Var, axis: int, start: Extent, end: Extent) -> Var:
    """x[start:end] along one axis, bounds as in Slice."""
    return op.Slice(x, op.shape_of([start]), op.shape_of([end]), [axis])


def flip(op: Builder, x: Var, axis: int) -> Var:
    """`x` in reverse order along one axis."""
    return op.Slice(x, [-1], [TO_BEGINNING], [axis], [-1])


def surround(op: Builder, x: Var, margins: dict[int, tuple[Extent, Extent]]) -> Var:
    """`x` with zeros before and after it along axes; the margins are not negative."""
    margins = {a: m for a, m in margins.items() if not (m[0] == 0 and m[1] == 0)}
    if not margins:
        return x
    before, after = zip(*margins.values(), strict=True)
    return op.Pad(x, op.shape_of([*before, *after]), None, list(margins))


def flat(op: Builder, x: Var) -> Var:
    """All elements of `x` in one axis."""
    if x.rank == 1:
        return x
    return op.Reshape(x, [-1])


def positions(op: Builder, x: Var) -> Var:
    """The position of each element of `x` in its flat order, in the shape of `x`."""
    return op.reshape_like(op.iota(count(op, x)), x)


def count(op: Builder, x: Var) -> Var:
    """The number of elements as a tensor of shape [1]."""
    size = x.type.size if isinstance(x.type, TensorType) else None
    return op.Reshape(op.Size(x), [1]) if size is None else op.const([size])


def put_back(op: Builder, data: Var, ct: Var, pick: Callable[[Var], Var], repeats: bool = True) -> Var:
    """The transpose of `pick`, which picks elements of `data`, applied to `ct`.

    It picks from the positions of the elements in the same way; `repeats`: whether it may pick one twice.
    Right for any shape, rank and run-time operand, at the price of an index per element of `ct`.
    """
    index = flat(op, pick(positions(op, data)))
    zeros = flat(op, op.zeros_like(data))
    reduction = "add" if repeats else None
    out = op.ScatterElements(zeros, index, flat(op, ct), axis=0, reduction=reduction)
    return op.reshape_like(out, data)


def put_rows(op: Builder, data: Var, indices: Var, ct: Var) -> Var:
    """Zeros of the shape of `data` with `ct` at `indices` (rank 1, no two equal) of the first axis."""
    return op.ScatterND(op.zeros_like(data), op.Unsqueeze(indices, [1]), ct)


def add_slices(op: Builder, data: Var, axis: int, indices: Var, ct: Var) -> Var:
    """Zeros of the shape of `data` with slices of `ct` added at `indices` of an axis: Gather's transpose."""
    shape, q = data.shape, indices.rank
    if isinstance(data.type, TensorType) and data.type.size == 0:
        return op.zeros_like(data)  # ONNX Runtime's optimizer drops an Expand from 1 to a constant 0
    if shape is None or q is None:
        return _add_slices_of_any_rank(op, data, axis, indices, ct)
    rank = len(shape)
    axis %= rank
    if q == 0:
        ct = op.Unsqueeze(ct, [axis])
    elif q > 1:
        ct = _merge(op, ct, shape[:axis], indices, shape[axis + 1 :])
    if q != 1 or rank > 1:
        indices = op.Reshape(indices, [1] * axis + [-1] + [1] * (rank - axis - 1))
    across = [1 if a == axis else d for a, d in enumerate(shape)]
    static = all(isinstance(d, int) for d in across)
    index = op.fit_type(op.Expand(indices, across if static else op.shape(ct)), ct)
    return op.ScatterElements(op.zeros_like(data), index, ct, axis=axis, reduction="add")


def _merge(op: Builder, ct: Var, before: Sequence[Dim], indices: Var, after: Sequence[Dim]) -> Var:
    """`ct` with the axes that `indices` gave it made one."""
    others = [*before, *after]
    hole: Dim | Var
    if all(isinstance(d, int) and d for d in others):
        hole = -1
    else:
        hole = count(op, indices)
    target = op.shape_of([*before, hole, *after])
    return op.Reshape(ct, target, allowzero=None if isinstance(hole, int) else 1)


def _add_slices_of_any_rank(op: Builder, data: Var, axis: int, indices: Var, ct: Var) -> Var:
    """`add_slices` on three axes: what comes before the axis, the axis, what comes after it."""
    one = op.const([1])

    def product(shape: Var) -> Var:
        return op.ReduceProd(op.Concat(one, shape, axis=0), keepdims=1)

    # counted from the front or from the back, the axis has a known number of axes on one side
    before = one if axis == 0 else product(op.Shape(data, end=axis))
    after = one if axis == -1 else product(op.Shape(data, start=axis + 1))
    zeros = op.Expand(op.like(0, ct), op.Concat(before, op.extent(data, axis), after, axis=0))
    block = op.Reshape(ct, op.Concat(before, count(op, indices), after, axis=0), allowzero=1)
    index = op.Expand(op.Reshape(indices, [1, -1, 1]), op.Shape(block))
    out = op.ScatterElements(zeros, index, block, axis=1, reduction="add")
    return op.reshape_like(out, data)


def zeros_if_none(op: Builder, cts: Sequence[Var | None], values: Sequence[Any]) -> list[Var]:
    """Cotangents with zeros for those that are absent."""
    return [op.zeros_like(v) if c is None else c for c, v in zip(cts, values, strict=True)]
