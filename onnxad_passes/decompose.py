"""Operators written out in terms of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from onnxad_ir.builder import Builder
from onnxad_ir.core import Graph, Model
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.inline import substitute
from onnxad_ir.schema import latest
from onnxad_passes.manager import Pass
from onnxad_rules.derive import decomposition
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import Ruleset, default_rules


@dataclass(frozen=True)
class Decompose(Pass):
    """Replace operators by their composition: ours where a rule gives one, else the specification's function body.

    ops: which operators, with their domain but for the default one: com.microsoft.BiasGelu (default: those that are
    differentiated through their composition).
    """

    name: ClassVar[str] = "decompose"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    ops: tuple[str, ...] | None = None
    rules: Ruleset | None = field(default=None, repr=False, compare=False, metadata={"option": False})

    def run(self, model: Model) -> bool:
        rules = self.rules or default_rules()
        for name in self.ops or ():
            domain, _, op_type = name.rpartition(".")
            facts = latest(domain, op_type)
            if not rules.compositions(op_type, domain) and (facts is None or not facts.has_body):
                raise UsageError(f"there is no composition for operator {name!r}, ours or the specification's")
        return self._graph(Builder(model, model.graph, []), rules)

    def _graph(self, op: Builder, rules: Ruleset) -> bool:
        graph: Graph = op.graph
        changed = False
        old, graph.nodes = graph.nodes, op.nodes
        op.scope.define(*graph.inputs)
        for node in old:
            for region in node.regions:
                changed |= self._graph(op.inside(region, []), rules)
            rule = None
            if self.ops is None or node.operator in self.ops:
                rule = rules.composition(NodeView(op, node, rules), asked=self.ops is not None)
            if rule is None:
                op.keep(node)
                continue
            op.label = node.name
            results = decomposition(op, rule, NodeView(op, node, rules))
            for v, new in zip(node.outputs, results, strict=True):
                if new is not None:
                    substitute(graph, op.nodes, v, new.value)
            node.detach()
            changed = True
        return changed
