"""Points at which a model can be tried: random inputs of the declared types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from onnxad_ir.core import Model, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.dims import Expr, substitute, terms
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

    `given`: inputs that are known; `dims`: extents of symbols, which those of what is given tell as well. Integers are
    0 or 1, as small indices are valid almost anywhere. Raises UsageError for names that are not the model's, for arrays
    that do not fit their inputs, and for inputs that cannot be made up.
    """
    graph = model.graph
    known = {v.name: v for v in graph.inputs}
    for name in given:
        if name not in known:
            raise UsageError(f"there is no input {name!r} to feed; the inputs are {', '.join(known)}")
    for s, n in dims.items():
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
            raise UsageError(f"the extent of {s!r} is a number from 0, not {n!r}")
    taken = {k: _accepted(known[k], a, double) for k, a in given.items()}
    free = [v for v in graph.inputs if v.name not in given and v not in graph.defaults]
    feeds = dict(taken)
    feeds |= {v.name: _widen(t.numpy(), double) for v, t in graph.defaults.items() if v.name not in given}
    symbols: dict[str, None] = {}
    for v in free:
        for d in _shape(v):
            if isinstance(d, str):
                symbols.update(dict.fromkeys(atom for monomial in terms(d) for atom in monomial))
    told = _extents(known, taken, dims)
    if unknown := [s for s in dims if s not in symbols and s not in told]:
        raise UsageError(
            f"there is no symbolic dimension {unknown[0]!r} to set (there is {', '.join(symbols) or 'none'})"
        )
    extents_told = {**told, **dims}
    open_symbols = [s for s in symbols if s not in extents_told]
    floating = any(v.dtype in FLOATING for v in free)
    drawn = [tuple(extents[i % len(extents)] for i in range(len(open_symbols))) for extents in _EXTENTS]
    for sizes in dict.fromkeys(drawn):
        chosen = extents_told | dict(zip(open_symbols, sizes, strict=True))
        for bounds in _RANGES if floating else _RANGES[:1]:
            rng = np.random.default_rng(seed)
            made = {v.name: _random(v, chosen, bounds, double, rng) for v in free}
            where = "normal" if bounds is None else "in {} .. {}".format(*bounds)
            made_up = f"random inputs, floats {where}" if floating else "random inputs"
            said = made_up if not given else f"given {', '.join(given)}, other {made_up}" if free else "given inputs"
            named = [f"{s}={chosen[s]}" for s in (*dims, *open_symbols) if not s.startswith("?")]
            yield {**feeds, **made}, ", ".join([said, *named])


def _accepted(v: Value, given: Any, double: bool) -> Any:
    """What is given for an input, in the element type to run in. Raises UsageError where it does not fit."""
    t = v.type
    if not isinstance(t, TensorType):
        return [_widen(np.asarray(x), double) for x in given] if isinstance(given, list | tuple) else given
    array = np.asarray(given)
    kind, dtype = array.dtype.kind, t.dtype.numpy()
    if t.dtype in FLOATING:
        fits = kind in "fiub" or array.dtype == dtype
    elif t.dtype == DataType.STRING:
        fits = kind in "OSU"
    else:
        fits = array.dtype == dtype or (
            kind in "iu" and dtype.kind in "iu" and np.array_equal(array.astype(dtype), array)
        )
    if not fits:
        raise UsageError(f"input {v.name!r} is {print_type(t)}, but what is given for it is of type {array.dtype}")
    if t.shape is not None:
        wrong = any(isinstance(d, int) and d != n for d, n in zip(t.shape, array.shape, strict=False))
        if len(t.shape) != array.ndim or wrong:
            raise UsageError(f"input {v.name!r} is {print_type(t)}, but what is given for it has shape {array.shape}")
    return array.astype(np.float64 if double else dtype) if t.dtype in FLOATING else array


def _extents(known: Mapping[str, Value], given: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, int]:
    """The extents of symbols by the shapes of what is given. Raises UsageError where two say something else."""
    found = {s: (int(n), "dims") for s, n in dims.items()}
    shown: set[str] = set()
    for name, array in given.items():
        t = known[name].type
        for d, n in zip(t.shape or (), np.shape(array), strict=False) if isinstance(t, TensorType) else ():
            if not isinstance(d, str) or isinstance(d, Expr):
                continue
            shown.add(d)
            before, who = found.setdefault(d, (n, repr(name)))
            if before != n:
                raise UsageError(f"the extent of {d!r} is {before} by {who}, but {n} by what is given for {name!r}")
    return {s: n for s, (n, _) in found.items() if s in shown}


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
