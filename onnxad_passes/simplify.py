"""Algebraic simplification of what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir.builder import Builder
from onnxad_ir.core import Graph, Model
from onnxad_ir.peephole import peephole
from onnxad_passes.dce import drop_dead
from onnxad_passes.manager import Pass


@dataclass(frozen=True)
class Simplify(Pass):
    """Apply the builder's algebraic identities to every node: x + 0, a transpose of a transpose, ..."""

    name: ClassVar[str] = "simplify"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")

    def run(self, model: Model) -> bool:
        changed = _simplify(Builder(model, model.graph, []))
        if changed:
            drop_dead(model.graph, model.variables)
        return changed


def _simplify(op: Builder) -> bool:
    graph: Graph = op.graph
    changed = False
    pinned = {*graph.outputs, *op.model.variables}
    old, graph.nodes = graph.nodes, op.nodes
    for v in graph.inputs:
        op.scope.define(v)
    for node in old:
        for region in node.regions:
            inner = Builder(op.model, region, [], type(op.scope)(op.scope), op.inference, root=op.root)
            changed |= _simplify(inner)
        if not node.domain and len(node.outputs) == 1 and node.outputs[0] not in pinned:
            op.label = node.name
            same = peephole(op, node.op_type, node.inputs, node.attributes)
            if same is not None:
                node.outputs[0].replace_by(same)
                node.detach()
                changed = True
                continue
        op.nodes.append(node)
        for v in node.outputs:
            op.scope.define(v)
    return changed
