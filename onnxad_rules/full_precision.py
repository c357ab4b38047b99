"""Reference implementations in the precision of the operands, for finite differences in float64.

onnx's own reference evaluator computes these in float32 whatever the element type of the operands. (GlobalMaxPool
it gets wrong unless there are two spatial axes, LRN unless there are as many examples as channels; GatherElements it
refuses where the axis is long, Mean where the first operand is not the largest.)
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from onnx.reference.op_run import OpRun

Array: TypeAlias = "np.ndarray[Any, Any]"


def erf(x: Array) -> Array:
    """The error function, elementwise, in float64."""
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x)).reshape(x.shape)


class DynamicQuantizeLinear(OpRun):  # type: ignore[misc]
    """Eight bits over the range of x and 0; the scale is in the element type of x."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array, Array, Array]:
        low, high = min(0, x.min(initial=0)), max(0, x.max(initial=0))
        scale = np.asarray((high - low) / 255 or 1, x.dtype)
        zero_point = np.clip(np.rint(-low / scale), 0, 255)
        q = np.clip(np.rint(x / scale) + zero_point, 0, 255)
        return q.astype(np.uint8), scale, np.asarray(zero_point, np.uint8)


class Erf(OpRun):  # type: ignore[misc]
    """The error function."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (erf(x).astype(x.dtype),)


class Gelu(OpRun):  # type: ignore[misc]
    """x Phi(x), exactly or by the tanh approximation."""

    op_domain = ""

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array]:
        if approximate == "tanh":
            inner = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        else:
            inner = erf(x / math.sqrt(2))
        return ((x * (1 + inner) / 2).astype(x.dtype),)


class LayerNormalization(OpRun):  # type: ignore[misc]
    """Normalization over the trailing axes; the statistics are in the element type of x."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int = -1,
        epsilon: float = 1e-5,
        stash_type: int = 1,
    ) -> tuple[Array, Array, Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        mean = x.mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
        y = (x - mean) * inverse * scale + (0 if bias is None else bias)
        return y.astype(x.dtype), mean.astype(x.dtype), inverse.astype(x.dtype)


class RMSNormalization(OpRun):  # type: ignore[misc]
    """Normalization by the root of the mean square over the trailing axes."""

    op_domain = ""

    def _run(self, x: Array, scale: Array, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> tuple[Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        inverse = 1 / np.sqrt((x**2).mean(axes, keepdims=True) + epsilon)
        return ((x * inverse * scale).astype(x.dtype),)


class GatherElements(OpRun):  # type: ignore[misc]
    """One element of a line of the data for each index."""

    op_domain = ""

    def _run(self, data: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        if 0 in indices.shape:
            return (np.empty(indices.shape, data.dtype),)
        # the data may be longer than the indices in the other axes
        cut = tuple(slice(None) if i == axis % data.ndim else slice(n) for i, n in enumerate(indices.shape))
        return (np.take_along_axis(data[cut], indices, axis),)


class GlobalMaxPool(OpRun):  # type: ignore[misc]
    """The maximum over all spatial axes, which stay."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(tuple(range(2, x.ndim)), keepdims=True),)


class LRN(OpRun):  # type: ignore[misc]
    """Division by a power of the sum of squares over neighbouring channels."""

    op_domain = ""

    def _run(self, x: Array, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1) -> tuple[Array]:
        channels, before, after = x.shape[1], (size - 1) // 2, size // 2
        near = [x[:, max(0, c - before) : c + after + 1] for c in range(channels)]
        squares = np.stack([(w**2).sum(1) for w in near], 1) if channels else x
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


class Mean(OpRun):  # type: ignore[misc]
    """The mean of operands that broadcast."""

    op_domain = ""

    def _run(self, *operands: Array) -> tuple[Array]:
        return (np.asarray(sum(operands) / len(operands), operands[0].dtype),)


OPERATORS: list[type[OpRun]] = [
    DynamicQuantizeLinear,
    Erf,
    GatherElements,
    Gelu,
    GlobalMaxPool,
    LRN,
    LayerNormalization,
    Mean,
    RMSNormalization,
]
