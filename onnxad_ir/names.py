"""Unique names for the values of a model: what a written or printed model calls them.

Names that a caller sees (inputs, outputs and constants of the main graph) never change. Of other values that
share a name the first keeps it and the rest get a numbered suffix. A region never shadows a name of a graph
around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from onnxad_ir.core import MADE, Graph, Model, Node, Value
from onnxad_ir.schema import facts
from onnxad_ir.types import FLOATING


class Namer:
    """Hands out names that are unique among those visible at the same place."""

    __slots__ = ("_count", "_used")

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._count: dict[str, int] = {}

    def claim(self, name: str) -> bool:
        """Take `name` as it is; False where it is empty or taken."""
        if not name or name in self._used:
            return False
        self._used.add(name)
        return True

    def fresh(self, base: str) -> str:
        """A name nobody has: `base`, else `base_1`, `base_2`, ..."""
        name, n = base, self._count.get(base, 0)
        while name in self._used:
            n += 1
            name = f"{base}_{n}"
        self._count[base] = n
        self._used.add(name)
        return name

    def release(self, names: Iterable[str]) -> None:
        """Names that went out of sight."""
        self._used.difference_update(names)


class Names:
    """The name of every value of one body (`values`), and those of the copies its outputs need when written.

    `values` has no entry for a result that nobody named, nobody uses and the operator can do without.
    `copies[graph][i]` names an Identity of output i of `graph`, where the value cannot be an output itself.
    """

    __slots__ = ("copies", "values")

    def __init__(self) -> None:
        self.values: dict[Value, str] = {}
        self.copies: dict[Graph, dict[int, str]] = {}


def name_body(body: Graph, opset: dict[str, int], function: bool = False) -> Names:
    """Names for the values of a main graph or, with `function`, of a function body."""
    names, namer = Names(), Namer()
    # Depth-first with an explicit stack of (regions still to do, names to release afterwards).
    _name_level(body, opset, function, names, namer)
    stack: list[tuple[Iterator[Graph], list[str]]] = [(_regions(body), [])]
    while stack:
        region = next(stack[-1][0], None)
        if region is None:
            namer.release(stack.pop()[1])
        else:
            given = _name_level(region, opset, False, names, namer)
            stack.append((_regions(region), given))
    return names


def name_model(model: Model) -> dict[Value, str]:
    """Names for every value of a model; main graph and functions are separate name spaces."""
    out = name_body(model.graph, model.opset).values
    for f in model.functions.values():
        out.update(name_body(f.body, f.opset, function=True).values)
    return out


def _regions(graph: Graph) -> Iterator[Graph]:
    return (r for n in graph.nodes for r in n.regions)


def _name_level(graph: Graph, opset: dict[str, int], function: bool, names: Names, namer: Namer) -> list[str]:
    values, claim = names.values, namer.claim
    pending: list[tuple[Value, str]] = []
    given: list[str] = []

    def take(v: Value) -> None:
        if claim(v.name):
            values[v] = v.name
            given.append(v.name)
        else:
            pending.append((v, v.name or (MADE if v.const is not None and v.dtype in FLOATING else "v")))

    for v in graph.inputs:
        take(v)
    results = set()
    for v in graph.outputs:
        if isinstance(v.owner, Node) and v.owner.graph is graph and v not in results:
            results.add(v)
            take(v)
    for v in graph.constants:
        take(v)
    for n in graph.nodes:
        for v in n.outputs:
            name = v.name
            if v in results:
                continue
            if name and claim(name):
                values[v] = name
                given.append(name)
            elif name or v.users or v.index < _needed_outputs(n, opset):
                pending.append((v, name or n.op_type.lower()))
    for v, base in pending:
        name = namer.fresh(base)
        values[v] = name
        given.append(name)
    copies = _outputs_to_copy(graph, function)
    if copies:
        named = {i: namer.fresh(values.get(v) or v.name or "v") for i, v in copies.items()}
        names.copies[graph] = named
        given.extend(named.values())
    return given


def _outputs_to_copy(graph: Graph, function: bool) -> dict[int, Value]:
    """Outputs that cannot be written directly, because ONNX Runtime refuses them or gives garbage for them.

    A region cannot yield an outer value, nor one value twice, a Scan's body not even its own inputs and
    constants; a function yields no value twice and no input.
    """
    scan = graph.parent is not None and graph.parent.op_type == "Scan"
    # ONNX Runtime counts in place: a counter that is yielded as it is has its last value in every iteration
    counter = graph.inputs[0] if graph.parent is not None and graph.parent.op_type == "Loop" else None
    if graph.parent is None and not function:
        return {}
    out: dict[int, Value] = {}
    seen: set[Value] = set()
    for i, v in enumerate(graph.outputs):
        computed = v.producer is not None or (v.is_const and not scan) or (graph.is_region and not scan)
        if v in seen or v.graph is not graph or not computed or v is counter:
            out[i] = v
        seen.add(v)
    return out


def _needed_outputs(node: Node, opset: dict[str, int]) -> int:
    """How many leading results must have a name even if nobody uses them."""
    f = facts(node.domain, node.op_type, opset.get(node.domain, 0))
    if f is None:
        return 1
    # variadic results cannot be left out: ONNX Runtime 1.32 crashes on a Split with one that has no name
    return max(1, f.min_outputs) if f.variadic_output is None else len(node.outputs)
