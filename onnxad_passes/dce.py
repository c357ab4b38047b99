"""Dead-code elimination."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir.core import Graph, Model, Value
from onnxad_ir.liveness import Liveness
from onnxad_ir.traverse import is_control
from onnxad_passes.dead_results import drop_results
from onnxad_passes.inline_functions import called_functions
from onnxad_passes.manager import Pass


@dataclass(frozen=True)
class Dce(Pass):
    """Drop nodes whose results nobody reads, constants nobody reads, and local functions nobody calls.

    Single results of If, Loop and Scan go too, scan inputs, and states that only feed themselves and each other.
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


def drop_dead(graph: Graph, keep: Collection[Value] = ()) -> bool:
    """Drop what its outputs do not depend on from a graph and the regions inside, but for `keep`; True if anything was.

    Of If, Loop and Scan also single results, states and scan inputs, however loops are nested.
    """
    live = Liveness(graph, keep)
    changed = False
    graphs = [graph]
    for g in graphs:  # grows on the way
        kept = [n for n in g.nodes if n in live.nodes]
        for n in kept:
            if n.regions:
                changed |= is_control(n) and drop_results(n, live.values)
                graphs += n.regions
        if len(kept) != len(g.nodes):
            for n in g.nodes:
                if n not in live.nodes:
                    n.detach()
            g.nodes[:] = kept
            changed = True
    for g in graphs:
        alive = [v for v in g.constants if v.users or v in keep]
        if len(alive) != len(g.constants):
            g.constants[:] = alive
            changed = True
    return changed


def drop_dead_states(model: Model) -> None:
    """Where there is control flow, drop what is dead before it is differentiated, lest dead states have derivatives."""
    for body in model.bodies():
        if any(n.regions for n in body.nodes):
            drop_dead(body, model.variables)
