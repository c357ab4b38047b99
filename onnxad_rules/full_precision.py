"""Reference implementations in the precision of the operands, for finite differences in float64.

onnx's own reference evaluator computes these in float32 whatever the element type of the operands. (GlobalMaxPool
it gets wrong unless there are two spatial axes, and GatherElements it refuses where the axis is long.)
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


OPERATORS: list[type[OpRun]] = [
    DynamicQuantizeLinear,
    Erf,
    GatherElements,
    Gelu,
    GlobalMaxPool,
    LayerNormalization,
    RMSNormalization,
]
