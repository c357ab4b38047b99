"""Operators that change the shape of a tensor, join tensors or take them apart."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_rules.derive import Tangents
from onnxad_rules.extents import Extent, extent, plus, reshape
from onnxad_rules.kinds import linear, pair
from onnxad_rules.node import NodeView
from onnxad_rules.placing import cut, surround, zeros_if_none

linear("Identity", input=lambda op, n, ct: ct)
linear("Reshape", data=lambda op, n, ct: op.reshape_like(ct, n.data))
linear("Flatten", input=lambda op, n, ct: op.reshape_like(ct, n.input))
linear("Squeeze", data=lambda op, n, ct: op.reshape_like(ct, n.data))
linear("Unsqueeze", data=lambda op, n, ct: op.reshape_like(ct, n.data))
linear("Expand", input=lambda op, n, ct: op.sum_to(ct, n.input))
linear("Transpose", data=lambda op, n, ct: op.Transpose(ct, perm=_inverse(n.perm)))
linear("Trilu", input=lambda op, n, ct: op.Trilu(ct, n.k, upper=n.upper))
linear(
    "ReverseSequence",
    input=lambda op, n, ct: op.ReverseSequence(ct, n.sequence_lens, batch_axis=n.batch_axis, time_axis=n.time_axis),
)


def _inverse(perm: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The permutation that undoes `perm` (None reverses the axes, and undoes itself)."""
    return None if perm is None else tuple(sorted(range(len(perm)), key=perm.__getitem__))


# --- joining and splitting


def _concat_forward(op: Builder, n: NodeView, ts: Tangents) -> Var:
    return op.Concat(*zeros_if_none(op, ts, n.inputs), axis=n.axis)


@pair("Concat", forward=_concat_forward)
def _concat(op: Builder, n: NodeView, cts: Tangents, wanted: Sequence[bool]) -> list[Var | None]:
    """A pair because the number of active operands decides the spelling: a Slice for one, else a Split."""
    ct, xs, axis = cts[0], n.inputs, n.axis
    if wanted.count(True) > 1:
        sizes = op.shape_of([extent(op, x, axis) for x in xs])
        return list(op.Split(ct, sizes, axis=axis, outputs=len(xs)))
    i = wanted.index(True)
    start: Extent = 0
    for x in xs[:i]:
        start = plus(op, start, extent(op, x, axis))
    assert ct is not None
    piece = ct if len(xs) == 1 else cut(op, ct, axis, start, plus(op, start, extent(op, xs[i], axis)))
    return [piece if w else None for w in wanted]


def _split(op: Builder, n: NodeView, ct: Var | Sequence[Var | None]) -> Var:
    """The pieces joined; those without a cotangent are zeros, at the ends by padding."""
    cts = [ct] if isinstance(ct, Var) else list(ct)
    outputs, axis = n.outputs, n.axis
    present = [i for i, c in enumerate(cts) if c is not None]
    first, last = present[0], present[-1] + 1
    pieces = zeros_if_none(op, cts[first:last], outputs[first:last])
    margins: list[Extent] = [0, 0]
    for i, y in enumerate(outputs):
        if not first <= i < last:
            margins[i >= last] = plus(op, margins[i >= last], extent(op, y, axis))
    return surround(op, op.Concat(*pieces, axis=axis), {axis: (margins[0], margins[1])})


linear("Split", input=_split)


# --- repeats, blocks, windows


def _tile(op: Builder, n: NodeView, ct: Var) -> Var:
    """The sum over the copies: every axis becomes (repeats, extent), and the repeats are summed."""
    x, repeats = n.input, op.known(n.repeats)
    if x.shape is None:
        pairs = op.Concat(op.Unsqueeze(n.repeats, [1]), op.Unsqueeze(op.shape(x), [1]), axis=1)
        both = op.Reshape(pairs, [-1])
        axes = op.Range(0, op.scalar(op.Size(both)), 2)
        return op.ReduceSum(op.Reshape(ct, both, allowzero=1), axes, keepdims=0, noop_with_empty_axes=1)
    parts: list[Extent] = []
    summed: list[int] = []
    for axis in range(len(x.shape)):
        r = None if repeats is None else repeats[axis]
        if r != 1:
            summed.append(len(parts))
            one: Extent = op.Slice(n.repeats, [axis], [axis + 1]) if not isinstance(r, int) else r
            parts.append(one)
        parts.append(extent(op, x, axis))
    if not summed:
        return ct
    blocks = op.Reshape(ct, op.shape_of(parts), allowzero=1)
    out = op.ReduceSum(blocks, summed, keepdims=0)
    return op.fit_type(out, x)


def _depth_to_space(op: Builder, n: NodeView, ct: Var) -> Var:
    out: Var = op.SpaceToDepth(ct, blocksize=n.blocksize)
    if n.mode != "CRD":
        return out
    # SpaceToDepth has a mode from opset 28 only; channels of a block come first without it
    block, (batch, channels, *sides) = n.blocksize**2, (extent(op, n.input, a) for a in range(4))
    share = channels // block if isinstance(channels, int) else channels / block
    blocks = op.Transpose(reshape(op, out, [batch, block, share, *sides]), perm=(0, 2, 1, 3, 4))
    return op.reshape_like(blocks, n.input)


def _space_to_depth(op: Builder, n: NodeView, ct: Var) -> Var:
    return op.DepthToSpace(ct, blocksize=n.blocksize, mode=n.node.attributes.get("mode"))


def _center_crop_pad(op: Builder, n: NodeView, ct: Var) -> Var:
    """Cropping d to s starts where padding s to d would: the transpose is the operator itself, back to d."""
    x = n.input_data
    target = op.shape(x) if n.axes is None else op.shape_of([extent(op, x, a) for a in n.axes])
    return op.CenterCropPad(ct, target, axes=n.axes)


linear("Tile", input=_tile)
linear("DepthToSpace", input=_depth_to_space)
linear("SpaceToDepth", input=_space_to_depth)
linear("CenterCropPad", input_data=_center_crop_pad)
