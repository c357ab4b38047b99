"""What a derivative goes through: what is differentiated, what is zero by convention, what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxad_ir.builder import Builder
from onnxad_ir.core import Model, Node, Value, clone_model
from onnxad_ir.diagnostics import describe
from onnxad_ir.infer import Inference
from onnxad_ir.types import can_vary
from onnxad_passes.seeds import choose_sinks, choose_sources
from onnxad_passes.specialize_functions import SpecializeFunctions
from onnxad_rules.activity import varying
from onnxad_rules.derive import pull
from onnxad_rules.functions import with_functions
from onnxad_rules.kinds import Multilinear, Zero
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import Ruleset, UnsupportedOperator, default_rules
from onnxad_rules.survey import Survey
from onnxad_rules.tangent_space import tangent_type

#: Nodes named for one reason, at most.
_NAMED = 8
#: Why a derivative is zero, where the rule gives no reason of its own.
_STEPS = "piecewise constant, or no derivative by definition"
#: Operators that read the form of their operand only: no derivative is lost in them.
_FORM = frozenset({"Shape", "Size"})


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

    The model is in an opset that rules know, as `upgrade-opset` leaves it. It is not changed, and nothing is raised for
    what is missing: each node is differentiated by itself, in a copy, as a rule may refuse some forms of an operator.
    Raises UsageError for unknown names.
    """
    copy = clone_model(model)
    originals = dict(zip(copy.graph.walk(), model.graph.walk(), strict=True))
    if copy.functions:
        SpecializeFunctions().run(copy)
    else:
        Inference(copy).graph(copy.graph)
    rules = with_functions(default_rules() if rules is None else rules, copy)
    sources, sinks = choose_sources(copy, inputs), choose_sinks(copy, outputs)
    found = _Collector(copy, sources, rules, originals)
    useful = found.sweep(sinks)
    return DerivativeReport(
        tuple(v.name for v in sources),
        tuple(v.name for v in sinks),
        tuple(v.name for v in sources if v not in useful),
        len(model.graph.nodes),
        _entries(found.differentiated),
        _entries(found.zero),
        _entries(found.missing),
    )


class _Found(dict[tuple[str, str, str], list[Node]]):
    """Nodes, last to first, by operator and what the fields `how` and `why` of an `Entry` say."""

    def add(self, n: Node, why: str = "", how: str = "") -> None:
        self.setdefault((n.operator, how, why), []).append(n)


def _entries(found: _Found) -> tuple[Entry, ...]:
    """The most frequent first."""
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(Entry(*key, tuple(reversed(nodes))) for key, nodes in ordered)


class _Collector:
    """Files the nodes of a model that may be spoilt. `originals`: those that entries name in their stead."""

    def __init__(self, model: Model, sources: list[Value], rules: Ruleset, originals: dict[Node, Node]):
        self.rules = rules
        self.originals = originals
        self.op = Builder(model, model.graph)
        self.op.scope.define_all(model.graph)
        self.nodes = model.graph.nodes[:]
        self.op.survey = Survey(self.nodes, calls=rules.calls)
        self.varied, _ = varying(self.nodes, sources, rules, self.op.captures)
        self.differentiated = _Found()
        self.zero = _Found()
        self.missing = _Found()

    def sweep(self, sinks: Iterable[Value]) -> set[Value]:
        """File every node that a derivative may go through, or ends in; returns what the sinks depend on."""
        useful = set(sinks)
        read = set(useful)  # a derivative would come in here, if what reads it did not vary by steps only
        for n in reversed(self.nodes):
            if not any(v in read for v in n.outputs):
                continue
            results = [v for v in n.outputs if v in useful]
            touched = [i for i, v in enumerate(n.inputs) if v is not None and v in self.varied]
            inside = [v for v in self.op.captures[n] if v in self.varied and can_vary(v.type)]
            if not (touched or inside):
                read.update(v for v in n.inputs if v is not None)
                read.update(self.op.captures[n])
            elif results:
                allowed = self.rules.differentiable(n)
                reached = {v for v, ok in zip(n.inputs, allowed, strict=True) if v is not None and ok}
                reached.update(self.op.captures[n])
                useful |= reached
                read |= reached
                self.file(n, touched, bool(inside), results)
            elif n.op_type not in _FORM:
                rule = next(iter(self.rules.candidates(n)), None)
                if isinstance(rule, Zero):
                    self.zero.add(self.originals[n], rule.reason or _STEPS)
        return useful

    def file(self, n: Node, touched: list[int], inside: bool, results: list[Value]) -> None:
        """File a node whose `results` matter and that is reached by operands `touched`, or `inside` its regions."""
        original = self.originals.get(n, n)
        candidates = self.rules.candidates(n)
        view = NodeView(self.op, n, self.rules)
        rule = next((r for r in candidates if r.when is None or r.when(view)), None)
        if rule is None:
            self.missing.add(original, "no rule for this form of the operator" if candidates else "no rule")
            return
        if isinstance(rule, Zero):
            self.zero.add(original, rule.reason or _STEPS)
            return
        additive = rule.additive if isinstance(rule, Multilinear) else ()
        passed, refused = inside, False
        for name in dict.fromkeys(view.formal(i) for i in touched if self.rules.carries(n, view.operand(i).value)):
            if name in rule.zeros:
                self.zero.add(original, f"operand {name!r} has no derivative by convention")
            elif rule.formals is not None and name not in {*rule.formals, *additive}:
                why = rule.refuse.get(name, "its derivative is not defined")
                self.missing.add(original, f"operand {name!r}: {why}")
                refused = True
            else:
                passed = True
        if passed and (refused or self.goes_through(n, results)):
            self.differentiated.add(original, how=rule.kind)

    def goes_through(self, n: Node, results: list[Value]) -> bool:
        """True where the cotangents of results can be pulled through a node; otherwise what refuses is filed."""
        seeds = [v for v in results if self.rules.carries(n, v)]
        given = {v: [self.op.var(self.op.graph.add_input("", tangent_type(v.type)))] for v in seeds}
        try:
            pull(self.op, n, given, self.varied.__contains__, self.rules)
        except UnsupportedOperator as e:
            stops = e.nodes or (n,)
            for stop in stops:
                known = self.rules.candidates(stop)
                self.missing.add(self.originals.get(stop, stop), str(e) if known else "no rule")
            for inner in (m for region in n.regions for m in region.walk()):  # the first region that fails is the last
                if inner not in stops and not self.rules.candidates(inner):
                    self.missing.add(self.originals.get(inner, inner), "no rule (if a derivative goes through it)")
            return False
        return True
