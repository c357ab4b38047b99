"""Operators for onnx's reference evaluator that its own implementations get wrong, or take seconds for."""

from __future__ import annotations

from itertools import product

import numpy as np
from onnx.reference.op_run import OpRun


class ConvTranspose(OpRun):
    """Any group; pads from the attributes (auto_pad and output_shape are not used by what is tested)."""

    op_domain = ""

    def _run(
        self, x, w, b=None, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None,
        output_shape=None, pads=None, strides=None,
    ):  # fmt: skip
        n = x.ndim - 2
        if output_shape or auto_pad != "NOTSET":
            raise NotImplementedError("output_shape and auto_pad")
        stride, dilation = strides or [1] * n, dilations or [1] * n
        pads, extra = pads or [0] * 2 * n, output_padding or [0] * n
        kernel, size = w.shape[2:], x.shape[2:]
        full = [s * (d - 1) + e * (k - 1) + 1 for s, d, e, k in zip(stride, size, dilation, kernel, strict=True)]
        out = np.zeros((x.shape[0], group * w.shape[1], *(f + o for f, o in zip(full, extra, strict=True))), x.dtype)
        xs = x.reshape(x.shape[0], group, -1, *size)
        ws = w.reshape(group, -1, w.shape[1], *kernel)
        for place in product(*map(range, kernel)):
            at = tuple(
                slice(p * e, p * e + s * (d - 1) + 1, s)
                for p, e, s, d in zip(place, dilation, stride, size, strict=True)
            )
            term = np.einsum("ngc...,gco->ngo...", xs, ws[(..., *place)])
            out[(slice(None), slice(None), *at)] += term.reshape(x.shape[0], -1, *size)
        cut = tuple(slice(p, f - q + o) for p, q, f, o in zip(pads[:n], pads[n:], full, extra, strict=True))
        out = out[(slice(None), slice(None), *cut)]
        return (out if b is None else out + b.reshape(-1, *(1,) * n),)


class Col2Im(OpRun):
    """The sum of the columns at their places."""

    op_domain = ""

    def _run(self, x, image_shape, block_shape, dilations=None, pads=None, strides=None):
        n = len(image_shape)
        stride, dilation, pads = strides or [1] * n, dilations or [1] * n, pads or [0] * 2 * n
        size = [d + p + q for d, p, q in zip(image_shape, pads[:n], pads[n:], strict=True)]
        steps = [(d - e * (k - 1) - 1) // s + 1 for d, e, k, s in zip(size, dilation, block_shape, stride, strict=True)]
        columns = x.reshape(x.shape[0], -1, *block_shape, *steps)
        out = np.zeros((*columns.shape[:2], *size), x.dtype)
        for place in product(*map(range, block_shape)):
            at = tuple(
                slice(p * e, p * e + s * (c - 1) + 1, s)
                for p, e, s, c in zip(place, dilation, stride, steps, strict=True)
            )
            out[(slice(None), slice(None), *at)] += columns[(slice(None), slice(None), *place)]
        cut = tuple(slice(p, p + d) for p, d in zip(pads[:n], image_shape, strict=True))
        return (out[(slice(None), slice(None), *cut)],)


OPERATORS = [ConvTranspose, Col2Im]
