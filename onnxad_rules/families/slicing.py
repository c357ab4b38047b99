"""Windows on a tensor: Slice cuts one out, Pad puts margins around one; each is the other's transpose."""

from __future__ import annotations

import math

from onnxad_ir.builder import Builder, Var
from onnxad_ir.infer import known_ints
from onnxad_ir.types import DataType
from onnxad_rules.extents import Extent, difference, extent, minus
from onnxad_rules.kinds import linear
from onnxad_rules.node import NodeView
from onnxad_rules.placing import TO_END, cut, flip, put_back, surround

#: Runs of fewer elements than this are interleaved with zeros by Concat, which ONNX Runtime does ten times faster than
#: to Pad one element after the other; of at most so many parts.
WIDE, MANY_PARTS = 16, 8


def _ints(x: Var | None) -> tuple[int, ...] | None:
    return None if x is None else known_ints(x.value)


# --- Slice


def _slice(op: Builder, n: NodeView, ct: Var) -> Var:
    """Zeros around the window; between its elements, too, where a step skips some."""
    steps = (1,) if n.steps is None else _ints(n.steps)
    plain = steps is not None and all(s == 1 for s in steps)
    starts = _ints(n.starts)
    axes = _axes(n, n.starts)
    if plain and axes is not None:
        return _uncut(op, n, ct, axes, starts)
    if plain:
        return _uncut_at_run_time(op, n, ct)
    if steps is not None and axes is not None and starts is not None:
        x, y = n.data.shape, n.output.shape
        if all(isinstance(x[a], int) and isinstance(y[a], int) for a in axes):
            return _unstride(op, n, ct, axes, starts, steps)
    return put_back(op, n.data, ct, lambda p: op.Slice(p, n.starts, n.ends, n.axes, n.steps), repeats=False)


def _axes(n: NodeView, vector: Var) -> tuple[int, ...] | None:
    """The axes of a Slice or Pad counted from the front, None where the run tells them or the rank."""
    rank = n.data.rank
    if rank is None:
        return None
    if n.axes is not None:
        axes = _ints(n.axes)
        return None if axes is None else tuple(a % rank for a in axes)
    if n.node.op_type == "Pad":
        return tuple(range(rank))
    count = None if vector.shape is None else vector.shape[0]
    return tuple(range(count)) if isinstance(count, int) else None


def _uncut(op: Builder, n: NodeView, ct: Var, axes: tuple[int, ...], starts: tuple[int, ...] | None) -> Var:
    """Margins per axis: the begin is the clamped start, the end is what is left over."""
    x, y = n.data, n.output
    ends = _ints(n.ends)
    margins: dict[int, tuple[Extent, Extent]] = {}
    for i, a in enumerate(axes):
        over = difference(op, x, y, a)
        d = extent(op, x, a)
        start = None if starts is None else starts[i]
        if over == 0 or start == 0:
            margins[a] = (0, over)
        elif ends is not None and ends[i] >= TO_END // 2**32:
            margins[a] = (over, 0)
        else:
            # an empty window may start beyond the end that the margins leave, and is put anywhere
            begin = _clamped(op, n.starts if start is None else start, i, d)
            margins[a] = (begin, minus(op, over, begin))
    return surround(op, ct, margins)


def _clamped(op: Builder, start: int | Var, i: int, d: Extent) -> Extent:
    """The start of a window on an axis of extent d, between 0 and d."""
    if isinstance(start, int) and isinstance(d, int):
        return min(max(start + d if start < 0 else start, 0), d)
    length = op.const([d]) if isinstance(d, int) else d
    out: Var
    if isinstance(start, int):
        out = op.Min(length, [start]) if start >= 0 else op.Max(length + op.const([start]), [0])
        return out
    s = op.Cast(op.Slice(start, [i], [i + 1]), to=DataType.INT64)
    return _clamp(op, s, length)


def _clamp(op: Builder, starts: Var, lengths: Var) -> Var:
    wrapped = op.Where(op.Less(starts, [0]), starts + lengths, starts)
    return op.Min(op.Max(wrapped, [0]), lengths)


def _uncut_at_run_time(op: Builder, n: NodeView, ct: Var) -> Var:
    """The margins of all sliced axes as tensors."""
    axes = op.iota(op.Size(n.starts)) if n.axes is None else n.axes
    d = op.Gather(op.shape(n.data), axes)
    over = d - op.Gather(op.shape(n.output), axes)
    begin = _clamp(op, op.Cast(n.starts, to=DataType.INT64), d)
    return op.Pad(ct, op.Concat(begin, over - begin, axis=0), None, axes)


def _unstride(
    op: Builder, n: NodeView, ct: Var, axes: tuple[int, ...], starts: tuple[int, ...], steps: tuple[int, ...]
) -> Var:
    """Constant bounds and steps: the elements spread out by zeros, reversed for a negative step."""
    margins: dict[int, tuple[Extent, Extent]] = {}
    ends = _ints(n.ends)
    for i, (a, step) in enumerate(zip(axes, steps, strict=False)):
        d, count = n.data.shape[a], n.output.shape[a]
        if ends is None or count == 0:
            margins[a] = (0, d - count)
            continue
        first = min(max(starts[i] + d if starts[i] < 0 else starts[i], 0), d - 1)
        if step < 0:
            ct = flip(op, ct, a)
            first, step = first + step * (count - 1), -step
        lead = min(first, step - 1)
        ct = _spread(op, ct, a, count, step, lead)
        after = d - (first - lead) - count * step
        if after < 0:
            ct = cut(op, ct, a, 0, after)
        margins[a] = (first - lead, max(after, 0))
    return surround(op, ct, margins)


def _spread(op: Builder, x: Var, axis: int, count: int, step: int, lead: int) -> Var:
    """Every element along an axis of `count` in a run of `step`, after `lead` zeros and before the others."""
    if step == 1:
        return x
    assert x.shape is not None
    runs = op.Unsqueeze(x, [axis + 1])
    inner = x.shape[axis + 1 :]
    if step <= MANY_PARTS and all(isinstance(d, int) for d in inner) and math.prod(map(int, inner)) < WIDE:
        zero = op.zeros_like(runs)
        runs = op.Concat(*[zero] * lead, runs, *[zero] * (step - 1 - lead), axis=axis + 1)
    else:
        runs = surround(op, runs, {axis + 1: (lead, step - 1 - lead)})
    merged = [*x.shape[:axis], count * step, *x.shape[axis + 1 :]]
    plain = all(isinstance(d, int) and d for d in merged)
    return op.Reshape(runs, op.shape_of(merged), allowzero=None if plain else 1)


linear("Slice", data=_slice)


# --- Pad


def _pad(op: Builder, n: NodeView, ct: Var) -> Var:
    if n.mode == "constant":
        return _unpad(op, n, ct)
    pads, axes = _ints(n.pads), _axes(n, n.pads)
    if pads is not None and axes is not None and min(pads, default=0) >= 0:
        sides = {a: (pads[i], pads[i + len(axes)]) for i, a in enumerate(axes)}
        if all(_is_one_wide(n, a, sides[a]) for a in axes):
            for a, (before, after) in sides.items():
                ct = _fold_in(op, n, ct, a, before, after)
            return ct
    return put_back(op, n.data, ct, lambda p: op.Pad(p, n.pads, None, n.axes, mode=n.mode))


def _unpad(op: Builder, n: NodeView, ct: Var) -> Var:
    """The window that the data fills; where pads are negative, they cut the data and zeros take its place."""
    pads, axes = _ints(n.pads), _axes(n, n.pads)
    if pads is None or axes is None:
        return _unpad_at_run_time(op, n, ct)
    k = len(axes)
    at = [i for i in range(k) if pads[i] > 0 or pads[i + k] > 0]
    if at:
        starts = [max(pads[i], 0) for i in at]
        ends = [-pads[i + k] if pads[i + k] > 0 else TO_END for i in at]
        ct = op.Slice(ct, starts, ends, [axes[i] for i in at])
    return surround(op, ct, {axes[i]: (max(-pads[i], 0), max(-pads[i + k], 0)) for i in range(k)})


def _unpad_at_run_time(op: Builder, n: NodeView, ct: Var) -> Var:
    """A Pad by the negated pads, in two steps: the reference evaluator knows no negative pads."""
    before, after = op.Split(n.pads, num_outputs=2, outputs=2)
    ends = op.shape(ct) if n.axes is None else op.Gather(op.shape(ct), n.axes)
    window = op.Slice(ct, op.Max(before, [0]), ends - op.Max(after, [0]), n.axes)
    return op.Pad(window, op.Max(op.Neg(n.pads), [0]), None, n.axes)


def _pad_value(op: Builder, n: NodeView, ct: Var) -> Var:
    """The sum over the margins, picked by a mask (a difference of two sums would cancel)."""
    mask = op.Pad(op.zeros_like(n.data), n.pads, op.like(1, ct), n.axes)
    return op.reshape_like(op.ReduceSum(op.Mul(ct, mask), keepdims=0), n.constant_value)


def _is_one_wide(n: NodeView, axis: int, sides: tuple[int, int]) -> bool:
    """True where every margin repeats each element of the data at most once (at an edge: the last only)."""
    d = n.data.shape[axis]
    if max(sides) == 0 or n.mode == "edge":
        return True
    if not isinstance(d, int):
        # runtimes refuse margins of a reflection that are as wide as the data
        return n.mode == "reflect"
    return max(sides) <= (d - 1 if n.mode == "reflect" else d)


def _fold_in(op: Builder, n: NodeView, ct: Var, axis: int, before: int, after: int) -> Var:
    """Along one axis, the two margins added to where their elements came from."""
    if before == 0 and after == 0:
        return ct
    d = extent(op, n.data, axis)
    last = minus(op, d, 1)
    terms: list[Var | None] = [cut(op, ct, axis, before, -after if after else TO_END)]
    if before:
        left = cut(op, ct, axis, 0, before)
        if n.mode == "edge":
            left = op.ReduceSum(left, [axis], keepdims=1)
            margin: tuple[Extent, Extent] = (0, last)
        elif n.mode == "reflect":
            left = flip(op, left, axis)
            margin = (1, minus(op, last, before))
        else:
            margin = (minus(op, d, before), 0)
        terms.append(surround(op, left, {axis: margin}))
    if after:
        right = cut(op, ct, axis, -after, TO_END)
        if n.mode == "edge":
            right = op.ReduceSum(right, [axis], keepdims=1)
            margin = (last, 0)
        elif n.mode == "reflect":
            right = flip(op, right, axis)
            margin = (minus(op, last, after), 1)
        else:
            margin = (0, minus(op, d, after))
        terms.append(surround(op, right, {axis: margin}))
    total = op.add_n(terms)
    assert total is not None
    return total


linear("Pad", data=_pad, constant_value=_pad_value)
