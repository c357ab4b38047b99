"""What a derivative model is the derivative of, read off the names that it adds to its primal's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxad_ir.core import Model, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.types import is_floating
from onnxad_passes.seeds import SECOND, named_values

MODES = ("forward", "reverse", "gradient")


@dataclass(frozen=True)
class Signature:
    """`sources` are differentiated with respect to, `sinks` are the values that are differentiated."""

    mode: str
    prefix: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]


def signature_of(
    primal: Model, derivative: Model, mode: str | None = None, outputs: Sequence[str] | None = None
) -> Signature:
    """The signature of a derivative model.

    `mode` is needed only where names do not begin with fwd, adj or grad. `outputs`: the differentiated output
    of a gradient. Raises UsageError where the model is no derivative of the primal.
    """
    p, d = primal.graph, derivative.graph
    if mode is not None and mode not in MODES:
        raise UsageError(f"there is no mode {mode!r}; the modes are {', '.join(MODES)}")
    for what, old, new in (("input", p.inputs, d.inputs), ("output", p.outputs, d.outputs)):
        if [v.name for v in old] != [v.name for v in new[: len(old)]]:
            raise UsageError(f"not a derivative of the model: its first {what}s are not those of the model")
    seeds = [v.name for v in d.inputs[len(p.inputs) :]]
    results = [v.name for v in d.outputs[len(p.outputs) :]]
    if not results:
        raise UsageError("not a derivative of the model: it has no output that the model does not have")
    mode = mode or _guess(seeds, results)
    if (mode == "gradient") == bool(seeds):
        what = "takes no seeds" if seeds else "needs seeds, inputs that the model does not have"
        raise UsageError(f"not a derivative of the model: mode {mode!r} {what}")
    names = set(named_values(p))
    # the result of a value that is differentiated and seeded
    results = [n[: -len(SECOND)] if n.endswith(SECOND) and n[: -len(SECOND)] in seeds else n for n in results]
    common = _common_start([*seeds, *results])
    stems = [common[:k] for k in range(len(common), 0, -1)]
    fits = [s for s in stems if all(n[len(s) :] in names for n in (*seeds, *results))]
    declared = {v.name for v in (*p.inputs, *p.constants, *p.outputs)}
    fits.sort(key=lambda s: not all(n[len(s) :] in declared for n in (*seeds, *results)))
    if not fits:
        raise UsageError(
            "not a derivative of the model: its new inputs and outputs are not called like values of the "
            f"model, behind one prefix ({', '.join([*seeds, *results][:6])})"
        )
    cut = len(fits[0])
    first, second = tuple(n[cut:] for n in seeds), tuple(n[cut:] for n in results)
    if mode == "forward":
        return Signature(mode, fits[0], first, second)
    return Signature(mode, fits[0], second, first if mode == "reverse" else _sink(list(p.outputs), outputs))


def _common_start(names: list[str]) -> str:
    low, high = min(names), max(names)
    same = next((i for i, c in enumerate(low) if i >= len(high) or c != high[i]), len(low))
    return low[:same]


def _guess(seeds: list[str], results: list[str]) -> str:
    if not seeds:
        return "gradient"
    for mode, start in (("forward", "fwd"), ("reverse", "adj")):
        if all(n.startswith(start) for n in (*seeds, *results)):
            return mode
    raise UsageError("the names of a derivative model begin with fwd or adj; say its mode where they do not")


def _sink(outputs: list[Value], named: Sequence[str] | None) -> tuple[str, ...]:
    found = tuple(named) if named else tuple(dict.fromkeys(v.name for v in outputs if is_floating(v.type)))
    if len(found) != 1:
        raise UsageError(f"name the one output that the gradient is of (the model has {', '.join(found) or 'none'})")
    return found
