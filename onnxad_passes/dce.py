"""Dead-code elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir.core import Graph, Model
from onnxad_passes.manager import Pass


@dataclass(frozen=True)
class Dce(Pass):
    """Drop nodes whose results nobody reads, constants nobody reads, and local functions nobody calls."""

    name: ClassVar[str] = "dce"

    def run(self, model: Model) -> bool:
        changed = False
        for body in model.bodies():
            changed |= drop_dead(body)
        called = {(n.domain, n.op_type, n.overload) for g in model.bodies() for n in g.walk()}
        for key in [k for k in model.functions if k not in called]:
            del model.functions[key]
            changed = True
        return changed


def drop_dead(graph: Graph) -> bool:
    """Drop what nobody reads from a graph and the regions inside; True where anything went."""
    changed = False
    kept = []
    for node in reversed(graph.nodes):
        if any(v.users for v in node.outputs):
            kept.append(node)
        else:
            node.detach()
            changed = True
    if changed:
        graph.nodes[:] = reversed(kept)
    for node in graph.nodes:
        for region in node.regions:
            changed |= drop_dead(region)
    alive = [v for v in graph.constants if v.users]
    if len(alive) != len(graph.constants):
        graph.constants[:] = alive
        changed = True
    return changed
