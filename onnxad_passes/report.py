"""What a derivative goes through: what is differentiated, what is zero by convention, what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onnxad_ir.builder import Builder
from onnxad_ir.core import Graph, Model, Node
from onnxad_ir.diagnostics import describe
from onnxad_ir.traverse import Captures
from onnxad_ir.types import can_vary
from onnxad_passes.seeds import choose_sinks, choose_sources
from onnxad_rules.activity import varying
from onnxad_rules.kinds import Rule
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import Ruleset, default_rules

#: Nodes named for one reason, at most.
_NAMED = 8


@dataclass(frozen=True)
class Entry:
    """Nodes of one operator that are treated alike. `how`: the kind of rule; `why`: of zeros, refusals."""

    operator: str
    how: str
    why: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class DerivativeReport:
    """What the derivative of `sinks` with respect to `sources` goes through. `str()` is a text."""

    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    unreached: tuple[str, ...]
    total: int
    differentiated: tuple[Entry, ...]
    zero: tuple[Entry, ...]
    missing: tuple[Entry, ...]

    @property
    def ok(self) -> bool:
        """True where the derivative exists."""
        return not self.missing

    def __str__(self) -> str:
        active = sum(len(e.nodes) for e in self.differentiated)
        lines = [f"derivative of {', '.join(self.sinks)} with respect to {', '.join(self.sources)}"]
        lines.append(f"differentiated: {active} of {self.total} nodes")
        lines += [f"  {len(e.nodes):6} {e.operator:24} {e.how}" for e in self.differentiated]
        if self.unreached:
            lines.append(f"identically zero, as no output depends on it differentiably: {', '.join(self.unreached)}")
        for title, entries in (("zero by convention", self.zero), ("missing", self.missing)):
            lines.append(f"{title}: {sum(len(e.nodes) for e in entries) or 'nothing'}")
            for e in entries:
                lines.append(f"  {len(e.nodes):6} {e.operator:24} {e.why}")
                lines += [f"           {describe(n)}" for n in e.nodes[:_NAMED]]
                if len(e.nodes) > _NAMED:
                    lines.append(f"           ... and {len(e.nodes) - _NAMED} more")
        return "\n".join(lines)


def report_derivative(
    model: Model,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    rules: Ruleset | None = None,
) -> DerivativeReport:
    """What the derivative of `outputs` with respect to `inputs` goes through.

    The model has been inferred and its functions inlined, as `fold-shapes` leaves it. Nothing is built and
    nothing raised for what is missing. Raises UsageError for unknown names.
    """
    rules = default_rules() if rules is None else rules
    graph = model.graph
    sources, sinks = choose_sources(model, inputs), choose_sinks(model, outputs)
    captures = Captures()
    varied, _ = varying(graph.nodes, sources, rules, captures)
    useful = set(sinks)
    found = _Collector(model, rules)
    for n in reversed(graph.nodes):
        if not any(v in useful for v in n.outputs):
            continue
        touched = [i for i, v in enumerate(n.inputs) if v is not None and v in varied]
        inside = any(v in varied and can_vary(v.type) for v in captures[n])
        if not touched and not inside:
            continue
        found.node(n, touched, inside, captures)
        allowed = rules.differentiable(n)
        useful.update(v for v, ok in zip(n.inputs, allowed, strict=True) if v is not None and ok)
        useful.update(captures[n])
    return DerivativeReport(
        tuple(v.name for v in sources),
        tuple(v.name for v in sinks),
        tuple(v.name for v in sources if v not in useful),
        sum(1 for _ in graph.nodes),
        found.entries("differentiated"),
        found.entries("zero"),
        found.entries("missing"),
    )


class _Collector:
    def __init__(self, model: Model, rules: Ruleset):
        self.model = model
        self.rules = rules
        self.found: dict[str, dict[tuple[str, str, str], list[Node]]] = {
            "differentiated": {},
            "zero": {},
            "missing": {},
        }

    def add(self, where: str, n: Node, how: str, why: str = "") -> None:
        self.found[where].setdefault((n.operator, how, why), []).append(n)

    def entries(self, where: str) -> tuple[Entry, ...]:
        items = self.found[where].items()
        ordered = sorted(items, key=lambda item: (-len(item[1]), item[0]))
        return tuple(Entry(*key, tuple(reversed(nodes))) for key, nodes in ordered)

    def node(self, n: Node, touched: list[int], inside: bool, captures: Captures) -> None:
        """File a node that a derivative may go through: by operands `touched`, or inside its regions."""
        candidates = self.rules.candidates(n)
        if not candidates:
            self.add("missing", n, "", "no rule")
            return
        rule = self._applies(n, candidates)
        if rule is None:
            self.add("missing", n, "", "no rule for this form of the operator")
            return
        if rule.kind == "zero":
            self.add("zero", n, "", rule.reason or "piecewise constant, or no derivative by definition")
            return
        if inside:
            self.add("differentiated", n, rule.kind)
            for region in n.regions:
                self._region(region)
            return
        view = self._view(n)
        names = {i: view.formal(i) for i in touched if can_vary(n.inputs[i].type)}  # type: ignore[union-attr]
        passed = False
        for name in dict.fromkeys(names.values()):
            if name in rule.zeros:
                self.add("zero", n, "", f"operand {name!r} has no derivative by convention")
            elif rule.formals is not None and name not in rule.formals and name not in _additive(rule):
                self.add(
                    "missing",
                    n,
                    "",
                    f"operand {name!r}: {rule.refuse.get(name, 'its derivative is not defined')}",
                )
            else:
                passed = True
        if passed:
            self.add("differentiated", n, rule.kind)

    def _region(self, region: Graph) -> None:
        for n in region.nodes:
            if any(can_vary(v.type) for v in n.outputs) and not self.rules.candidates(n):
                self.add("missing", n, "", "no rule (if a derivative goes through it)")
            for inner in n.regions:
                self._region(inner)

    def _view(self, n: Node) -> NodeView:
        assert n.graph is not None
        return NodeView(Builder(self.model, n.graph, []), n, self.rules)

    def _applies(self, n: Node, candidates: tuple[Rule, ...]) -> Rule | None:
        if candidates[0].when is None:
            return candidates[0]
        view = self._view(n)
        return next((r for r in candidates if r.when is None or r.when(view)), None)


def _additive(rule: Rule) -> frozenset[str]:
    return frozenset(getattr(rule, "additive", ()))
