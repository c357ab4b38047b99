"""Reference implementations of operators on images, by a loop over the places of the kernel.

onnx's own reference evaluator takes minutes for an image of common size where it loops over its elements, and gets
grouped ConvTranspose wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_max_pool import MaxPool as SlowMaxPool

Array: TypeAlias = "np.ndarray[Any, Any]"
Ints: TypeAlias = "Sequence[int]"


def _places(kernel: Ints, strides: Ints, dilations: Ints, steps: Ints) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Each place of a kernel, and the elements of an image that it meets as the kernel makes `steps` in each axis."""
    for place in product(*map(range, kernel)):
        at = (
            slice(p * e, p * e + s * (c - 1) + 1, s)
            for p, e, s, c in zip(place, dilations, strides, steps, strict=True)
        )
        yield place, _behind(2, at)


def _behind(axes: int, index: Iterable[Any]) -> tuple[Any, ...]:
    """An index of what is behind some axes that stay whole."""
    return (*([slice(None)] * axes), *index)


def _window(bounds: Iterable[tuple[int, int]]) -> tuple[Any, ...]:
    """A cut of an image, from and to in each axis."""
    return _behind(2, (slice(a, b) for a, b in bounds))


class ConvTranspose(OpRun):  # type: ignore[misc]
    """The transpose of a convolution in its operand, of any group and number of axes."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str = "NOTSET",
        dilations: Ints | None = None,
        group: int = 1,
        kernel_shape: Ints | None = None,
        output_padding: Ints | None = None,
        output_shape: Ints | None = None,
        pads: Ints | None = None,
        strides: Ints | None = None,
    ) -> tuple[Array]:
        n = x.ndim - 2
        kernel, size = w.shape[2:], x.shape[2:]
        stride, dilation = strides or [1] * n, dilations or [1] * n
        extra = (output_padding or [0] * n)[:n]
        full = [s * (d - 1) + e * (k - 1) + 1 for s, d, e, k in zip(stride, size, dilation, kernel, strict=True)]
        shape = [f + o for f, o in zip(full, extra, strict=True)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER") and not output_shape:
            output_shape = [s * d for s, d in zip(stride, size, strict=True)]
        if output_shape:  # pads are not used then
            total = [f - d for f, d in zip(shape, output_shape[-n:], strict=True)]
            if min(total, default=0) < 0:
                raise NotImplementedError(f"ConvTranspose with an output_shape beyond its results: {output_shape}")
            less, more = [t // 2 for t in total], [t - t // 2 for t in total]
            begin, end = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
        else:
            pads = pads or [0] * 2 * n
            begin, end = list(pads[:n]), list(pads[n:])
        wide = x.dtype if x.dtype.itemsize > 2 else np.dtype(np.float32)
        out = np.zeros((x.shape[0], group * w.shape[1], *shape), wide)
        xs = x.reshape(x.shape[0], group, -1, *size).astype(wide)
        ws = w.reshape(group, -1, w.shape[1], *kernel).astype(wide)
        for place, at in _places(kernel, stride, dilation, size):
            term = np.einsum("ngc...,gco->ngo...", xs, ws[_behind(3, place)], optimize=True)
            out[at] += term.reshape(x.shape[0], -1, *size)
        out = out[_window([(p, f - q) for p, q, f in zip(begin, end, shape, strict=True)])].astype(x.dtype)
        return (out if b is None else out + b.reshape(-1, *(1,) * n),)


class Col2Im(OpRun):  # type: ignore[misc]
    """The sum of the columns at their places."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        image_shape: Array,
        block_shape: Array,
        dilations: Ints | None = None,
        pads: Ints | None = None,
        strides: Ints | None = None,
    ) -> tuple[Array]:
        n = len(image_shape)
        stride, dilation, pads = strides or [1] * n, dilations or [1] * n, pads or [0] * 2 * n
        size = [d + p + q for d, p, q in zip(image_shape, pads[:n], pads[n:], strict=True)]
        steps = [(d - e * (k - 1) - 1) // s + 1 for d, e, k, s in zip(size, dilation, block_shape, stride, strict=True)]
        columns = x.reshape(x.shape[0], -1, *block_shape, *steps)
        out = np.zeros((*columns.shape[:2], *size), x.dtype)
        for place, at in _places(block_shape.tolist(), stride, dilation, steps):
            out[at] += columns[_behind(2, place)]
        return (out[_window([(p, p + d) for p, d in zip(pads[:n], image_shape, strict=True)])],)


class MaxPool(SlowMaxPool):  # type: ignore[misc]
    """The greatest element of each window, and which one it is: the first of equal ones."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: str = "NOTSET",
        ceil_mode: int = 0,
        dilations: Ints | None = None,
        kernel_shape: Ints = (),
        pads: Ints | None = None,
        storage_order: int = 0,
        strides: Ints | None = None,
    ) -> tuple[Array, ...]:
        if storage_order:
            return super()._run(x, auto_pad, ceil_mode, dilations, kernel_shape, pads, storage_order, strides)
        n, size = x.ndim - 2, x.shape[2:]
        stride, dilation = strides or [1] * n, dilations or [1] * n
        span = [e * (k - 1) + 1 for e, k in zip(dilation, kernel_shape, strict=True)]
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            steps = [-(-d // s) for d, s in zip(size, stride, strict=True)]
            total = [max(0, s * (c - 1) + w - d) for d, s, c, w in zip(size, stride, steps, span, strict=True)]
            begin = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
        else:
            pads = pads if pads and auto_pad != "VALID" else [0] * 2 * n
            begin, whole = list(pads[:n]), [d + p + q for d, p, q in zip(size, pads[:n], pads[n:], strict=True)]
            room = [d - w for d, w in zip(whole, span, strict=True)]
            steps = [(-(-r // s) if ceil_mode else r // s) + 1 for r, s in zip(room, stride, strict=True)]
            # a window begins in the image or in the padding before it
            steps = [c - (s * (c - 1) >= d + p) for c, s, d, p in zip(steps, stride, size, begin, strict=True)]
        reach = [s * (c - 1) + w for s, c, w in zip(stride, steps, span, strict=True)]
        around = [(p, max(0, r - d - p)) for p, r, d in zip(begin, reach, size, strict=True)]
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        padded = np.pad(x, [(0, 0), (0, 0), *around], constant_values=lowest)
        places = np.pad(np.arange(x.size).reshape(x.shape), [(0, 0), (0, 0), *around], constant_values=-1)
        y: Array | None = None
        for _, at in _places(kernel_shape, stride, dilation, steps):
            if y is None:
                y, which = padded[at].copy(), places[at].copy()
            else:
                more = (padded[at] > y) | (which < 0)
                np.copyto(y, padded[at], where=more)
                np.copyto(which, places[at], where=more)
        assert y is not None
        return (y, which) if len(self.output) > 1 else (y,)


OPERATORS: list[type[OpRun]] = [Col2Im, ConvTranspose, MaxPool]
