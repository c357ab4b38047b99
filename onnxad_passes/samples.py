"""Points at which a model can be tried: random inputs of the declared types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from onnxad_ir.core import Model, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.dims import substitute, terms
from onnxad_ir.printer import print_type
from onnxad_ir.types import FLOATING, DataType, TensorType

Array: TypeAlias = "np.ndarray[Any, Any]"

#: Extents tried for symbolic dimensions: in turn (distinct ones show mistakes), or one for all.
_EXTENTS: tuple[tuple[int, ...], ...] = ((2, 3, 4, 5, 6), (2,), (8,), (32,), (1,), (64,))
#: Ranges tried for floating inputs; None is the normal distribution.
_RANGES: tuple[tuple[float, float] | None, ...] = (None, (0.1, 0.9), (1.0, 2.0))


def samples(
    model: Model, given: Mapping[str, Array], dims: Mapping[str, int], double: bool, seed: int
) -> Iterator[tuple[dict[str, Array], str]]:
    """Feeds for a model and how they were chosen, the likeliest to run first.

    `given`: inputs that are known; `dims`: extents of symbols. Integers are 0 or 1, as small indices are
    valid almost anywhere. Raises UsageError for names that are not the model's, and for inputs that cannot be
    made up.
    """
    graph = model.graph
    known = {v.name: v for v in graph.inputs}
    for name in given:
        if name not in known:
            raise UsageError(f"there is no input {name!r} to feed; the inputs are {', '.join(known)}")
    free = [v for v in graph.inputs if v.name not in given and v not in graph.defaults]
    feeds = {k: _widen(np.asarray(a), double) for k, a in given.items()}
    feeds |= {v.name: _widen(t.numpy(), double) for v, t in graph.defaults.items() if v.name not in given}
    symbols: dict[str, None] = {}
    for v in free:
        for d in _shape(v):
            if isinstance(d, str):
                symbols.update(dict.fromkeys(atom for monomial in terms(d) for atom in monomial))
    if unknown := [s for s in dims if s not in symbols]:
        raise UsageError(
            f"there is no symbolic dimension {unknown[0]!r} to set (there is {', '.join(symbols) or 'none'})"
        )
    if bad := [s for s, n in dims.items() if n < 0]:
        raise UsageError(f"the extent of {bad[0]!r} is a number from 0, not {dims[bad[0]]}")
    open_symbols = [s for s in symbols if s not in dims]
    floating = any(v.dtype in FLOATING for v in free)
    for extents in _EXTENTS if open_symbols else _EXTENTS[:1]:
        chosen = dict(dims) | {s: extents[i % len(extents)] for i, s in enumerate(open_symbols)}
        for bounds in _RANGES if floating else _RANGES[:1]:
            rng = np.random.default_rng(seed)
            made = {v.name: _random(v, chosen, bounds, double, rng) for v in free}
            where = "normal" if bounds is None else "in {} .. {}".format(*bounds)
            said = f"random inputs, floats {where}" if floating else "given inputs" if given else "random inputs"
            named = [f"{s}={n}" for s, n in chosen.items() if not s.startswith("?")]
            yield {**feeds, **made}, ", ".join([said, *named])


def _shape(v: Value) -> tuple[int | str, ...]:
    t = v.type
    if not isinstance(t, TensorType) or t.dtype == DataType.STRING:
        kind = print_type(t)
        raise UsageError(f"input {v.name!r} is no numeric tensor ({kind}); no value can be made up for it: give one")
    if t.shape is None:
        raise UsageError(f"the rank of input {v.name!r} is unknown; no value can be made up for it: give one")
    return t.shape


def _random(
    v: Value,
    extents: Mapping[str, int],
    bounds: tuple[float, float] | None,
    double: bool,
    rng: np.random.Generator,
) -> Array:
    shape = [int(d) for d in substitute(_shape(v), dict(extents)) or ()]
    assert v.dtype is not None
    if v.dtype == DataType.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if v.dtype not in FLOATING:
        return rng.integers(0, 2, shape).astype(v.dtype.numpy())
    x = rng.standard_normal(shape) if bounds is None else rng.uniform(*bounds, size=shape)
    return np.asarray(x, np.float64 if double else v.dtype.numpy())


def _widen(a: Array, double: bool) -> Array:
    return a.astype(np.float64) if double and (a.dtype.kind == "f" or a.dtype.name == "bfloat16") else a
