"""Dead-code elimination."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir.core import Graph, Model, Value
from onnxad_ir.traverse import Captures
from onnxad_passes.dead_results import drop_results
from onnxad_passes.inline_functions import called_functions
from onnxad_passes.manager import Pass


@dataclass(frozen=True)
class Dce(Pass):
    """Drop nodes whose results nobody reads, constants nobody reads, and local functions nobody calls.

    Single results of If, Loop and Scan go too, and states of a loop that only feed themselves.
    """

    name: ClassVar[str] = "dce"

    def run(self, model: Model) -> bool:
        changed = False
        for body in model.bodies():
            changed |= drop_dead(body, model.variables)
        called = {f.key for f in called_functions(model)} if model.functions else set()
        for key in [k for k in model.functions if k not in called]:
            del model.functions[key]
            changed = True
        return changed


def drop_dead(graph: Graph, keep: Container[Value] = (), captures: Captures | None = None) -> bool:
    """Drop what nobody reads from a graph and the regions inside, but for `keep`; True where anything went.

    Of If, Loop and Scan also single results.
    """
    captures = Captures() if captures is None else captures
    changed = False
    kept = []
    for node in reversed(graph.nodes):
        if any(v.users or v in keep for v in node.outputs):
            kept.append(node)
            if node.regions:
                changed |= drop_results(node, keep, captures)
            for region in node.regions:  # now, as it may be the last to read what comes before
                changed |= drop_dead(region, keep, captures)
        else:
            node.detach()
            changed = True
    if len(kept) != len(graph.nodes):
        graph.nodes[:] = reversed(kept)
    alive = [v for v in graph.constants if v.users or v in keep]
    if len(alive) != len(graph.constants):
        graph.constants[:] = alive
        changed = True
    return changed
