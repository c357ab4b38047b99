"""Activity: what lies on a path from the differentiated values to the seeded ones. Nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterable

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
    varied = set(sources)
    through: list[Node] = []
    for n in nodes:
        if not _varies(n, varied, rules, captures):
            continue
        if (flow := rules.flow(n)) is None:
            reached = rules.outputs(n)
        else:
            at = {i for i, v in enumerate(n.inputs) if v in varied}
            reached = [v for v, f in zip(n.outputs, flow, strict=False) if at & f]
        if reached:
            through.append(n)
            varied.update(reached)
    return varied, through


def _varies(n: Node, varied: set[Value], rules: Ruleset, captures: Captures) -> bool:
    if any(v in varied for v in n.inputs):
        allowed = rules.differentiable(n)
        if any(v in varied and ok for v, ok in zip(n.inputs, allowed, strict=True)):
            return True
    return bool(n.regions) and any(v in varied and rules.carries(n, v) for v in captures[n])


#: What to do about the operators of a whole domain.
_HINTS = {
    "com.microsoft.nchwc": "com.microsoft.nchwc is a memory layout that ONNX Runtime chose for the processor at hand: "
    "differentiate the model as it was before, or save it with the optimization level ORT_ENABLE_EXTENDED.",
}


def unsupported(nodes: Iterable[Node]) -> UnsupportedOperator:
    """The error that names every node without a rule, why, and the ways out."""
    nodes = list(nodes)
    lines = [f"{len(nodes)} node(s) between the inputs and outputs to differentiate have no derivative rule:"]
    lines += [f"  {describe(n)}" for n in nodes]
    lines += [hint for domain, hint in _HINTS.items() if any(n.domain == domain for n in nodes)]
    lines.append(
        "Add a rule for (domain, op_type) to the rule set, differentiate fewer inputs or outputs, or replace the "
        "operator; `onnxad-opt --list-rules` lists what has one."
    )
    return UnsupportedOperator("\n".join(lines), nodes)
