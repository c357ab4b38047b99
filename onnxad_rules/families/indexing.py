"""Operators that pick elements by index, and those that put elements at an index.

Conventions: scattered maxima and minima share a derivative evenly among the operands that tie, as PyTorch's
scatter_reduce does; of equal elements that Unique merges, the first carries the derivative. Duplicate indices
in a scatter without a reduction are not allowed by the specification.
"""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.infer import known_ints
from onnxad_ir.types import DataType
from onnxad_rules.extents import extent, minus
from onnxad_rules.kinds import decompose, linear, pushforward
from onnxad_rules.node import NodeView
from onnxad_rules.placing import add_slices, flat, positions, put_back, put_rows, surround

# --- picking


def _gather(op: Builder, n: NodeView, ct: Var) -> Var:
    data, axis = n.data, n.axis
    index = known_ints(n.indices.value)
    if index and data.rank is not None and index == tuple(range(index[0], index[0] + len(index))):
        # one constant index, or neighbours: a window
        axis %= data.rank
        if n.indices.rank == 0:
            ct = op.Unsqueeze(ct, [axis])
        d, first, count = extent(op, data, axis), index[0], len(index)
        if first >= 0:
            return surround(op, ct, {axis: (first, minus(op, d, first + count))})
        if first + count <= 0:
            return surround(op, ct, {axis: (minus(op, d, -first), -first - count)})
    return add_slices(op, data, axis, n.indices, ct)


def _gather_elements(op: Builder, n: NodeView, ct: Var) -> Var:
    return op.ScatterElements(op.zeros_like(n.data), n.indices, ct, axis=n.axis, reduction="add")


def _gather_nd(op: Builder, n: NodeView, ct: Var) -> Var:
    data, indices, lead = n.data, n.indices, _lead(n)
    if data.rank is None or lead is None or lead == data.rank:
        return put_back(op, data, ct, lambda p: op.GatherND(p, indices, batch_dims=n.batch_dims))
    index = _row_numbers(op, n, lead)
    rows = op.Flatten(ct, axis=indices.rank - 1)
    zeros = op.Flatten(op.zeros_like(data), axis=lead)
    out = op.ScatterElements(zeros, op.expand_to(index, rows), rows, axis=0, reduction="add")
    return op.reshape_like(out, data)


def _lead(n: NodeView) -> int | None:
    """How many axes of the data the indices of a GatherND or ScatterND address, None where the run tells."""
    k = None if n.indices.shape is None else n.indices.shape[-1]
    return k + n.node.attributes.get("batch_dims", 0) if isinstance(k, int) else None


def _row_numbers(op: Builder, n: NodeView, lead: int) -> Var:
    """What the indices address in data whose first `lead` axes are merged, as a column."""
    data = n.data
    grid = op.shape_of(data.shape[:lead])
    count = op.ReduceProd(grid, keepdims=1)
    numbers = op.Reshape(op.iota(count), grid, allowzero=1)
    picked = op.GatherND(numbers, n.indices, batch_dims=n.node.attributes.get("batch_dims"))
    return op.Reshape(picked, [-1, 1])


def _array_feature(op: Builder, n: NodeView, ct: Var) -> Var:
    """Gather on the last axis; a vector gives a row."""
    x, index = n.X, flat(op, n.Y)
    if x.rank == 1:
        ct = flat(op, ct)
    elif x.rank is None:
        ct = op.Reshape(ct, op.Concat(op.Shape(x, end=-1), [-1], axis=0))
    return add_slices(op, x, -1, index, ct)


def _compress(op: Builder, n: NodeView, ct: Var) -> Var:
    axis, x = n.axis, n.input
    if axis is None or (axis != 0 and axis != -(x.rank or 0)):
        return put_back(op, x, ct, lambda p: op.Compress(p, n.condition, axis=axis), repeats=False)
    where = op.Compress(op.iota(op.extent(x, 0)), n.condition, axis=0)
    return put_rows(op, x, where, ct)


linear("Gather", data=_gather)
linear("GatherElements", data=_gather_elements)
linear("GatherND", data=_gather_nd)
linear("ArrayFeatureExtractor", domain="ai.onnx.ml", X=_array_feature)
linear("Compress", input=_compress)


@pushforward("Unique")
def _unique(op: Builder, n: NodeView, t: Any) -> dict[str, Var]:
    if len(n.node.outputs) > 1:
        first = n.indices
    else:
        first = op.Unique(n.X, axis=n.axis, sorted=n.sorted, outputs=2)[1]
    return {"Y": op.Gather(flat(op, t.X), first) if n.axis is None else op.Gather(t.X, first, axis=n.axis)}


# --- putting


def _is(*reductions: str) -> Any:
    """A condition on the reduction of a scatter."""
    return lambda n: n.reduction in reductions


linear(
    "ScatterElements",
    when=_is("none"),
    data=lambda op, n, ct: op.ScatterElements(ct, n.indices, op.zeros_like(n.updates), axis=n.axis),
    updates=lambda op, n, ct: op.GatherElements(ct, n.indices, axis=n.axis),
)
linear(
    "ScatterElements",
    when=_is("add"),
    data=lambda op, n, ct: ct,
    updates=lambda op, n, ct: op.GatherElements(ct, n.indices, axis=n.axis),
)


def _scatter(op: Builder, n: NodeView, data: Var, updates: Var, reduction: str = "add") -> Var:
    """Another ScatterElements at the same places."""
    return op.ScatterElements(data, n.indices, updates, axis=n.axis, reduction=reduction)


@pushforward("ScatterElements", when=_is("max", "min"))
def _scatter_extreme(op: Builder, n: NodeView, t: Any) -> Var:
    """The tangents of all that equal the result, averaged."""
    y = n.output
    kept = op.cast_like(op.Equal(n.data, y), y)
    chosen = op.cast_like(op.Equal(n.updates, op.GatherElements(y, n.indices, axis=n.axis)), y)
    weight = op.Reciprocal(_scatter(op, n, kept, chosen))
    total: Var = op.zeros_like(y) if t.data is None else op.Mul(t.data, kept)
    if t.updates is not None:
        total = _scatter(op, n, total, t.updates * chosen)
    return op.Mul(total, weight)


@pushforward("ScatterElements", when=_is("mul"))
def _scatter_product(op: Builder, n: NodeView, t: Any) -> Var:
    """The product rule, without a division by zero: every factor's tangent times the product of the others.

    The product of the nonzero factors is divided by the factor itself; zeros among the others are counted.
    For one zero, the sum of the zeros stands in its place: it is zero but has a derivative, so that second
    derivatives are right as well.
    """
    u, at = n.updates, n.indices
    terms: list[Var | None] = []
    if t.data is not None:
        terms.append(t.data * _scatter(op, n, op.ones_like(n.data), u, "mul"))
    if t.updates is not None:
        none = op.zeros_like(n.data)
        zero = op.Equal(u, op.like(0, u))
        nonzero = op.where(zero, 1, u)
        own = op.where(zero, u, 0)
        own_count = op.cast_like(zero, u)

        def gathered(x: Var) -> Var:
            return op.GatherElements(x, at, axis=n.axis)

        rest = gathered(_scatter(op, n, n.data, nonzero, "mul")) / nonzero
        zeros = gathered(_scatter(op, n, none, own_count)) - own_count
        other = gathered(_scatter(op, n, none, own)) - own
        one_zero = op.where(op.Equal(zeros, op.like(1, u)), other, 0)
        factor = op.where(op.Equal(zeros, op.like(0, u)), 1, one_zero)
        terms.append(_scatter(op, n, none, t.updates * (rest * factor)))
    return op.add_n(terms)  # type: ignore[return-value]


linear(
    "ScatterND",
    when=_is("none"),
    data=lambda op, n, ct: op.ScatterND(ct, n.indices, op.zeros_like(n.updates)),
    updates=lambda op, n, ct: op.GatherND(ct, n.indices),
)
linear(
    "ScatterND",
    when=_is("add"),
    data=lambda op, n, ct: ct,
    updates=lambda op, n, ct: op.GatherND(ct, n.indices),
)


@decompose("ScatterND", when=_is("mul", "max", "min"))
def _scatter_nd(op: Builder, n: NodeView) -> Var:
    """ScatterElements of rows."""
    data, updates, lead = n.data, n.updates, _lead(n)
    if data.rank is None or lead is None or lead == data.rank:
        index = flat(op, op.GatherND(positions(op, data), n.indices))
        rows, new = flat(op, data), flat(op, updates)
    else:
        rows, new = op.Flatten(data, axis=lead), op.Flatten(updates, axis=n.indices.rank - 1)
        index = op.expand_to(_row_numbers(op, n, lead), new)
    return op.reshape_like(op.ScatterElements(rows, index, new, axis=0, reduction=n.reduction), data)


def _from_front(n: NodeView) -> int:
    """The axis from the front where the rank is known, as the reference GatherElements wants it."""
    rank, axis = n.past_cache.rank, int(n.axis)
    return axis + rank if axis < 0 and rank is not None else axis


def _cache_positions(op: Builder, n: NodeView) -> Var:
    """Where a TensorScatter puts each element of its update along its axis, in the update's shape."""
    update, cache, axis = n.update, n.past_cache, n.axis
    steps = op.Unsqueeze(op.iota(op.extent(update, axis)), [0])
    if n.write_indices is not None:
        steps = op.Unsqueeze(op.Cast(n.write_indices, to=DataType.INT64), [1]) + steps
    if n.mode == "circular":
        steps = op.Mod(steps, op.extent(cache, axis))

    def ones(count: int) -> Var:
        """That many ones; a count below zero is short by the rank, which only the run knows."""
        if count >= 0:
            return op.const([1] * count)
        return op.Expand(op.const([1]), op.rank(cache) + op.const([count]))

    if axis < 0 and cache.rank is not None:
        axis += cache.rank
    before = ones(axis - 1)
    after = ones(-n.axis - 1 if n.axis < 0 else (cache.rank or 0) - axis - 1)
    batch, length = op.extent(steps, 0), op.extent(steps, 1)
    return op.expand_to(op.Reshape(steps, op.Concat(batch, before, length, after, axis=0)), update)


linear(
    "TensorScatter",
    past_cache=lambda op, n, ct: op.TensorScatter(
        ct, op.zeros_like(n.update), n.write_indices, mode=n.node.attributes.get("mode"), axis=n.axis
    ),
    update=lambda op, n, ct: op.GatherElements(ct, _cache_positions(op, n), axis=_from_front(n)),
)


# --- making


def _one_hot_values(op: Builder, n: NodeView, ct: Var) -> Var:
    """(off, on): the sums of the cotangent over the cold places and over the hot ones."""
    numbers = op.const([[0, 1], [1, 0]], ct.dtype)

    def at(row: int) -> Var:
        mask = op.OneHot(n.indices, n.depth, op.Gather(numbers, op.const(row)), axis=n.axis)
        return op.Reshape(op.ReduceSum(op.Mul(ct, mask), keepdims=0), [1])

    return op.Concat(at(1), at(0), axis=0)


linear("OneHot", values=_one_hot_values, zeros=("indices", "depth"))


@pushforward("Range", zeros=("limit",))
def _range(op: Builder, n: NodeView, t: Any) -> Var:
    """start + i * delta; the limit only decides how many."""
    count = op.extent(n.output, 0)
    terms: list[Var | None] = []
    if t.start is not None:
        terms.append(op.Expand(t.start, count))
    if t.delta is not None:
        terms.append(op.iota(count, t.delta.dtype) * t.delta)
    total = op.add_n(terms)
    assert total is not None
    return total
