"""Fourier transforms: DFT and STFT.

A transform of complex numbers is the matrix F = exp(-2 pi i k n / N), of which the inverse transform is conj(F) / N.
F is symmetric and the adjoint of a real map of pairs (re, im) is the conjugate transpose, so the adjoint of the inverse
is F / N, and that of F is conj(F), which takes x to the conjugate of F conj(x). What real signals and one-sided spectra
drop of the pairs comes back as zeros.
"""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import decompose, linear
from onnxad_rules.node import NodeView


def dft(
    op: Builder, x: Var, length: Var | None, axis: int | Var, *, inverse: bool = False, onesided: bool = False
) -> Var:
    """A DFT in the spelling of the model's opset: before 20 the axis is an attribute."""
    flags = {"inverse": int(inverse) or None, "onesided": int(onesided) or None}
    count = None if length is None else op.scalar(length)
    if op.version < 20:
        return op.DFT(x, count, axis=axis, **flags)
    return op.DFT(x, count, op.const(axis) if isinstance(axis, int) else axis, **flags)


def _axis(op: Builder, n: NodeView) -> int | Var:
    """The axis, which from opset 20 on is an operand."""
    axis = n.axis
    if axis is None:
        return -2
    if isinstance(axis, int):
        return axis
    known = op.known(axis)
    return known[0] if known is not None and isinstance(known[0], int) else op.scalar(axis)


def _size(op: Builder, x: Var, axis: int | Var) -> Var:
    """The extent of an axis that only the run may know, of shape [1]."""
    if isinstance(axis, int):
        return op.extent(x, axis)
    return op.Gather(op.shape(x), op.Reshape(axis, [1]))


def _length(op: Builder, n: NodeView, axis: int | Var) -> Var:
    """How many samples are transformed, of shape [1]."""
    if n.dft_length is not None:
        return op.Reshape(n.dft_length, [1])
    size = _size(op, n.input, axis)
    return (size - 1) * 2 if n.inverse and n.onesided else size


def _fit(op: Builder, x: Var, axis: int | Var, have: Var, want: Var) -> Var:
    """`x` cut off or filled up with zeros along an axis, from `have` to `want` elements."""
    a, b = op.known(have), op.known(want)
    if a is not None and a == b:
        return x
    axes = [axis] if isinstance(axis, int) else op.Reshape(axis, [1])
    numbers = [d[0] if d is not None and isinstance(d[0], int) else None for d in (a, b)]
    both = None not in numbers
    if not both or numbers[0] > numbers[1]:  # type: ignore[operator]
        x = op.Slice(x, [0], want, axes)
    if not both or numbers[0] < numbers[1]:  # type: ignore[operator]
        x = op.Pad(x, op.Concat([0], op.Max(want - have, op.const([0])), axis=0), None, axes)
    return x


def _along(op: Builder, vector: Var, like: Var, axis: int | Var) -> Var:
    """A vector along an axis of `like`, so that it broadcasts against it."""
    if isinstance(axis, int) and like.rank is not None:
        return op.Unsqueeze(vector, [a for a in range(like.rank) if a != axis % like.rank])
    rank = op.rank(like)
    here = op.Equal(op.iota(rank), op.Mod((op.const(axis) if isinstance(axis, int) else axis) + rank, rank))
    return op.Reshape(vector, op.Where(here, op.extent(vector, 0), op.const([1])))


def _dft_transpose(op: Builder, n: NodeView, ct: Var) -> Var:
    x, axis = n.input, _axis(op, n)
    length = _length(op, n, axis)
    count, bins = op.cast_like(length, ct), length
    last = None if x.shape is None else x.shape[-1]
    if not n.inverse:
        # N times the inverse by conjugation: ONNX Runtime (seen in 1.32) divides by N in single precision;
        # a one-sided cotangent is short: the transform fills it up with zeros
        conjugate = op.const([1, -1], ct.dtype)
        out = dft(op, ct * conjugate, length, axis)
        out = out if last == 1 else out * conjugate
    elif not n.onesided:
        out = dft(op, ct, length, axis) / count
    else:
        # every bin but the first, and the middle one of an even length, stands for two
        bins = length / 2 + 1
        k = op.iota(bins)
        single = op.Or(op.Equal(k, op.const(0)), op.Equal(k * 2, length))
        share = op.where(single, op.like(1, ct), 2) / count
        out = dft(op, ct, length, axis, onesided=True)
        out = out * _along(op, share, out, axis)
    out = _fit(op, out, axis, bins, _size(op, x, axis))
    if last != 2:  # the imaginary part of a real signal
        out = op.Slice(out, [0], op.extent(x, -1), [-1])
    return op.fit_type(out, x)


linear("DFT", input=_dft_transpose)


@decompose("STFT")
def _stft(op: Builder, n: NodeView) -> Var:
    """The transform of frames of the signal, each times the window."""
    signal, window = n.signal, n.window
    if window is not None:
        length = op.extent(window, 0)
    elif n.frame_length is not None:
        length = op.Reshape(n.frame_length, [1])
    else:
        length = op.extent(signal, 1)
    shape = n.output.shape
    count = op.const([shape[1]]) if shape is not None and isinstance(shape[1], int) else None
    if count is None:
        count = (op.extent(signal, 1) - length) / op.Reshape(n.frame_step, [1]) + 1
    starts = op.iota(count) * op.scalar(n.frame_step)
    frames = op.Gather(signal, op.Unsqueeze(starts, [1]) + op.iota(length), axis=1)
    if window is not None:
        frames = frames * op.Unsqueeze(window, [1])
    return dft(op, frames, None, 2, onesided=bool(n.onesided))
