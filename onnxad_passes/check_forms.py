"""One direction of a derivative model that takes several, or returns all: what differences can be compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from onnxad_ir.core import Model
from onnxad_ir.diagnostics import UsageError
from onnxad_passes.engines import Run
from onnxad_passes.layouts import SINGLE, check_layout
from onnxad_passes.seeds import choose_sinks, choose_sources
from onnxad_passes.signature import Signature

Array: TypeAlias = "np.ndarray[Any, Any]"

JACOBIAN = "jacobian"


def jacobian_signature(
    primal: Model, derivative: Model, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> Signature:
    """What a model with results jac_<y>_<x> is the Jacobian of. Raises UsageError where it is none."""
    sources = tuple(v.name for v in choose_sources(primal, inputs))
    sinks = tuple(v.name for v in choose_sinks(primal, outputs))
    results = [v.name for v in derivative.graph.outputs[len(primal.graph.outputs) :]]
    ends = [f"{y}_{x}" for y in sinks for x in sources]
    prefix = results[0][: -len(ends[0])] if results else ""
    if results != [prefix + end for end in ends]:
        raise UsageError(
            f"not the Jacobian of {', '.join(sinks)} by {', '.join(sources)}: {', '.join(results) or 'none'}"
        )
    return Signature(JACOBIAN, prefix, sources, sinks)


class Form:
    """How a derivative model is fed one direction, and what it returns for it.

    layout: of its seeds and results. In a layout of several directions it is fed two, of which the first is zero. Of a
    Jacobian, the product with cotangents is taken.
    """

    def __init__(self, signature: Signature, layout: str, kept: int):
        check_layout(layout)
        self.signature = signature
        self.layout = layout
        #: How many outputs are those of the primal.
        self.kept = kept
        #: Shapes of results for one direction, in their order.
        self.shapes: list[tuple[int, ...]] = []

    def of(self, run: Run) -> Run:
        """A runner of the derivative for one direction, given one of the model."""
        if self.signature.mode == JACOBIAN:
            return lambda feeds: self._product(run, feeds)
        return (
            run
            if self.layout == SINGLE or self.signature.mode == "gradient"
            else lambda feeds: self._second(run, feeds)
        )

    def _second(self, run: Run, feeds: Mapping[str, Array]) -> list[Array]:
        s = self.signature
        seeds = {s.prefix + k for k in (s.sources if s.mode == "forward" else s.sinks)}
        results = run({k: self._pack(v) if k in seeds else v for k, v in feeds.items()})
        found = [self._unpack(r, shape) for r, shape in zip(results[self.kept :], self.shapes, strict=True)]
        return [*results[: self.kept], *found]

    def _pack(self, d: Array) -> Array:
        if self.layout == "casadi":
            m = d.reshape(1, 1) if d.ndim == 0 else d if d.ndim == 2 else d.reshape(-1, 1)
            return np.hstack([np.zeros_like(m), m])
        return np.stack([np.zeros_like(d), d], axis=0 if self.layout == "leading" else -1)

    def _unpack(self, r: Array, shape: tuple[int, ...]) -> Array:
        if self.layout == "casadi":
            return r[:, r.shape[1] // 2 :].reshape(shape)
        return r[1] if self.layout == "leading" else r[..., 1]

    def _product(self, run: Run, feeds: Mapping[str, Array]) -> list[Array]:
        s = self.signature
        seeds = [feeds[s.prefix + y] for y in s.sinks]
        results = run({k: v for k, v in feeds.items() if k not in {s.prefix + y for y in s.sinks}})
        blocks = iter(results[self.kept :])
        sums: list[Array] = [np.zeros(())] * len(s.sources)
        for seed in seeds:
            for i in range(len(s.sources)):
                block = next(blocks)
                sums[i] = sums[i] + np.tensordot(seed.astype(block.dtype), block, seed.ndim)
        return [*results[: self.kept], *sums]
