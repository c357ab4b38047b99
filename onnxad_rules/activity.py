"""Activity: what lies on a path from the differentiated values to the seeded ones. Nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.diagnostics import describe
from onnxad_ir.traverse import Captures
from onnxad_rules.ruleset import Ruleset, UnsupportedOperator


def activity(
    graph: Graph, sources: Iterable[Value], sinks: Iterable[Value], rules: Ruleset, captures: Captures | None = None
) -> set[Value]:
    """The values of `graph` that depend differentiably on a source and that a sink depends on (both included).

    Raises UnsupportedOperator, naming every node without a rule that such a path goes through.
    """
    captures = Captures() if captures is None else captures
    varied, through = varying(graph.nodes, sources, rules, captures)
    useful = set(sinks)
    active = useful & varied
    missing: list[Node] = []
    for n in reversed(through):
        if not any(v in useful for v in n.outputs):
            continue
        if not rules.candidates(n):
            missing.append(n)
        allowed = rules.differentiable(n)
        if (flow := rules.flow(n)) is not None:
            used = frozenset[int]().union(*(f for v, f in zip(n.outputs, flow, strict=False) if v in useful))
            allowed = tuple(ok and i in used for i, ok in enumerate(allowed))
        reached = [v for v, ok in zip(n.inputs, allowed, strict=True) if v is not None and ok]
        for v in (*reached, *captures[n]):
            useful.add(v)
            if v in varied:
                active.add(v)
    if missing:
        raise unsupported(reversed(missing))
    return active


def varying(
    nodes: Iterable[Node], sources: Iterable[Value], rules: Ruleset, captures: Captures
) -> tuple[set[Value], list[Node]]:
    """The values that depend differentiably on a source, the sources included, and the nodes that compute them."""
    found, through = reached(nodes, dict.fromkeys(sources, 1), rules, captures)
    return set(found), through


def reached(
    nodes: Iterable[Node], marks: Mapping[Value, int], rules: Ruleset, captures: Captures
) -> tuple[dict[Value, int], list[Node]]:
    """The marks (bits) of all that a value depends on differentiably, and the nodes that marks go through."""
    found, through = dict(marks), list[Node]()
    for n in nodes:
        arrived = _arrived(n, found, rules, captures)
        if not arrived:
            continue
        if (flow := rules.flow(n)) is None:
            left = [(v, arrived) for v in rules.outputs(n)]
        else:
            own = [0 if v is None else found.get(v, 0) & arrived for v in n.inputs]
            left = [
                (v, reduce(or_, (own[i] for i in f if i < len(own)), 0)) for v, f in zip(n.outputs, flow, strict=False)
            ]
            left = [(v, m) for v, m in left if m]
        if left:
            through.append(n)
            for v, m in left:
                found[v] = found.get(v, 0) | m
    return found, through


def _arrived(n: Node, found: Mapping[Value, int], rules: Ruleset, captures: Captures) -> int:
    """The marks that a node takes in."""
    marks = 0
    if any(v in found for v in n.inputs):
        for v, ok in zip(n.inputs, rules.differentiable(n), strict=True):
            if ok and v is not None:
                marks |= found.get(v, 0)
    for v in captures[n] if n.regions else ():
        if v in found and rules.carries(n, v):
            marks |= found[v]
    return marks


#: What to do about the operators of a whole domain.
_HINTS = {
    "com.microsoft.nchwc": "com.microsoft.nchwc is a memory layout that ONNX Runtime chose for the processor at hand: "
    "differentiate the model as it was before, or save it with the optimization level ORT_ENABLE_EXTENDED.",
}


def unsupported(nodes: Iterable[Node]) -> UnsupportedOperator:
    """The error that names every node without a rule, why, and the ways out."""
    nodes = list(nodes)
    what = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    have = "has" if len(nodes) == 1 else "have"
    lines = [f"{what} between the inputs and outputs to differentiate {have} no derivative rule:"]
    lines += [f"  {describe(n)}" for n in nodes]
    lines += [hint for domain, hint in _HINTS.items() if any(n.domain == domain for n in nodes)]
    lines.append(
        "Add a rule for (domain, op_type) to the rule set (docs/extending.md), differentiate fewer inputs or outputs, "
        "or replace the operator; `onnxad-opt --list-rules` lists what has one."
    )
    return UnsupportedOperator("\n".join(lines), nodes)
