"""Names, seeds and results of a derivative model: what is differentiated, what is seeded, what it is all called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import count

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Model, Value
from onnxad_ir.diagnostics import UsageError, did_you_mean
from onnxad_ir.printer import print_type
from onnxad_ir.types import is_floating

#: What the name of a result ends in where a value is differentiated and seeded, so that its seed has the name already.
SECOND = "_1"


def next_prefix(kind: str, graph: Graph, values: Iterable[Value] = ()) -> str:
    """The prefix of the next derivative of a kind, counted up as CasADi's diff_prefix does: adj_, adj2_, adj3_, ...

    Among the names of inputs and outputs, those that start with the kind, with digits or nothing up to the
    first "_", carry an index (nothing is 1); the prefix has the highest one plus one. It is counted up
    further where it would give one of `values` the name of an initializer.
    """
    highest = 0
    for v in (*graph.inputs, *graph.outputs):
        if v.name.startswith(kind):
            head, sep, _ = v.name[len(kind) :].partition("_")
            if sep and (not head or (head.isascii() and head.isdigit())):
                highest = max(highest, int(head or 1))
    taken, names = {c.name for c in graph.constants}, [v.name for v in values]
    for index in count(highest + 1):
        prefix = f"{kind}{index if index > 1 else ''}_"
        if not any(prefix + n in taken for n in names):
            break
    return prefix


def named_values(graph: Graph) -> dict[str, Value]:
    """Every value of the main graph by name; inputs, outputs and constants go before inner values."""
    names: dict[str, Value] = {}
    for n in graph.nodes:
        for v in n.outputs:
            if v.name:
                names[v.name] = v
    for v in (*graph.constants, *graph.outputs, *graph.inputs):
        if v.name:
            names[v.name] = v
    return names


def choose_sources(model: Model, inputs: Sequence[str] | None) -> list[Value]:
    """What to differentiate with respect to: by name, or every floating input without a default.

    A "*" in a name stands for any text: the floating inputs and constants that are called so. Raises UsageError for an
    unknown name, for a value that is not a floating tensor, for a constant whose
    number has already been used to simplify the model, and where nothing is left.
    """
    graph = model.graph
    if inputs is None:
        found = [v for v in graph.inputs if is_floating(v.type) and v not in graph.defaults]
        if not found:
            raise UsageError("the model has no floating-point input to differentiate; name values with `inputs`")
        return found
    inputs = _spelt_out(model, inputs)
    constants, values = {v.name for v in graph.constants}, named_values(graph)
    gone = model.frozen - {v.name for v in (*graph.inputs, *graph.outputs)}
    for name in inputs:
        if name in gone and (name in constants or name not in values):
            raise UsageError(
                f"the derivative with respect to {name!r} cannot be told any more: an earlier pass used its number "
                "to simplify the model; make it an input, or differentiate before that pass"
            )
    return _choose(graph, inputs, "input")


def _spelt_out(model: Model, names: Sequence[str]) -> list[str]:
    """Names without patterns. Values that are reserved go before those that passes have made since."""
    if not any("*" in name for name in names):
        return list(names)
    found: dict[str, None] = {}
    given = {v.name: v for v in (*model.graph.inputs, *model.graph.constants) if v.name and is_floating(v.type)}
    for name in names:
        matching = [x for x in given if _matches(x, name)] if "*" in name and name not in given else [name]
        if not matching:
            raise UsageError(f"the model has no floating-point input or constant whose name matches {name!r}")
        found.update(dict.fromkeys([x for x in matching if given.get(x) in model.variables] or matching))
    return list(found)


def _matches(name: str, pattern: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None


def choose_sinks(model: Model, outputs: Sequence[str] | None) -> list[Value]:
    """What to seed: by name, or every floating output. Raises UsageError as `choose_sources` does."""
    graph = model.graph
    if outputs is None:
        found = list(dict.fromkeys(v for v in graph.outputs if is_floating(v.type)))
        if not found:
            raise UsageError("the model has no floating-point output to differentiate")
        return found
    return _choose(graph, outputs, "output")


def _choose(graph: Graph, names: Sequence[str], what: str) -> list[Value]:
    if not names:
        raise UsageError(f"no {what} to differentiate was named")
    values = named_values(graph)
    out: dict[Value, None] = {}
    for name in names:
        v = values.get(name)
        if v is None:
            listed = ", ".join(x.name for x in (graph.inputs if what == "input" else graph.outputs))
            hint = did_you_mean(name, values)
            raise UsageError(f"the model has no value called {name!r}{hint} (its {what}s: {listed})")
        if not is_floating(v.type):
            kind = print_type(v.type)
            raise UsageError(f"{what} {name!r} is not a floating-point tensor ({kind}): it has no derivative")
        if v in out:
            raise UsageError(f"{what} {name!r} is named twice")
        out[v] = None
    return list(out)


def reserve(model: Model, inputs: Sequence[str] | None, outputs: Sequence[str] | None = None) -> None:
    """Have every pass leave alone what is named (`Model.variables`), until it is released.

    A constant that stands in a region is moved to the main graph.
    """
    wanted = {*_spelt_out(model, inputs or ()), *(outputs or ())}
    if wanted:
        _hoist(model.graph, wanted)
        for name, v in named_values(model.graph).items():
            if name in wanted:
                model.variables[v] = model.variables.get(v, 0) + 1


def release(model: Model, values: Iterable[Value]) -> None:
    """Undo `reserve` for values that have been differentiated."""
    for v in values:
        left = model.variables.pop(v, 0) - 1
        if left > 0:
            model.variables[v] = left


def _hoist(graph: Graph, wanted: set[str]) -> None:
    """Move the floating constants of regions that are named, and that nothing in the main graph is called, there.

    Raises UsageError for a name that several regions give to constants of their own.
    """
    missing = wanted - named_values(graph).keys()
    if not missing:
        return
    found: dict[str, tuple[Graph, Value]] = {}
    for region in graph.graphs():
        for v in region.constants:
            if region is not graph and v.name in missing and is_floating(v.type):
                if v.name in found:
                    raise UsageError(f"several branches or bodies have a constant called {v.name!r}: rename them")
                found[v.name] = (region, v)
    gone = {v for _, v in found.values()}
    for region in {r for r, _ in found.values()}:
        region.constants = [v for v in region.constants if v not in gone]
    for region, v in found.values():
        if v in region.notes:
            graph.notes[v] = region.notes.pop(v)
        v.owner = graph
        graph.constants.append(v)


def add_seeds(op: Builder, graph: Graph, values: Iterable[Value], prefix: str) -> dict[Value, Var]:
    """An input for the tangent or cotangent of each value, of its own type. A name in use is a UsageError."""
    taken = {v.name for v in (*graph.inputs, *graph.constants, *graph.outputs)}
    out: dict[Value, Var] = {}
    for v in values:
        name = prefix + v.name
        if name in taken:
            raise UsageError(f"the seed {name!r} would clash with a value of the model; choose another prefix")
        seed = graph.add_input(name, v.type)
        op.scope.define(seed)
        out[v] = op.var(seed)
    return out


def add_results(
    op: Builder, graph: Graph, results: Iterable[tuple[str, Value, Var | None]], seeds: Iterable[Var] = ()
) -> None:
    """Outputs by name, each of the type of a value; None is an identically zero result, an output all the same.

    A result whose name one of `seeds` has is called by another (`SECOND`); any other name in use is a
    UsageError.
    """
    outputs = list(graph.outputs)
    used = set(outputs)
    names = {v.name for v in (*graph.inputs, *graph.constants, *outputs)}
    seeded = {s.value.name for s in seeds}
    for name, like, var in results:
        if name in seeded:
            name += SECOND
        if name in names:
            raise UsageError(f"the result {name!r} would clash with a value of the model; choose another prefix")
        v = op.zeros_like(op.var(like)).value if var is None else var.value
        if v.producer is None or v.name or v in used or v.graph is not graph:
            v = op.place_identity(v, name)
        v.name = name
        if like.type is not None and v.shape is None:
            v.type = like.type
        outputs.append(v)
        used.add(v)
        names.add(name)
    graph.set_outputs(outputs)
