"""Forward mode: tangents, interleaved with the primal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Model, Value
from onnxad_passes.dce import drop_dead_states
from onnxad_passes.layouts import SINGLE, add_directions, check_layout
from onnxad_passes.manager import Pass
from onnxad_passes.seeds import (
    add_results,
    add_seeds,
    choose_sinks,
    choose_sources,
    next_prefix,
    release,
    reserve,
)
from onnxad_passes.specialize_functions import function_passes
from onnxad_passes.tidy import tidy
from onnxad_rules.activity import activity
from onnxad_rules.derive import push
from onnxad_rules.functions import with_functions
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.straight_through import straight_through
from onnxad_rules.survey import Survey


@dataclass(frozen=True)
class Forward(Pass):
    """The Jacobian times a direction: adds inputs fwd_<x> and outputs fwd_<y>.

    inputs: what to differentiate with respect to (inputs, initializers or inner values; a "*" stands for any text;
    default: every floating input). outputs: whose tangents to return (default: every floating output). prefix: of the
    new names (default: fwd_, counted up where it is taken). layout: how directions are handed over (single: one, in the
    shape of the value; casadi, onnx, leading: several). dim: the name of the axis of directions (default: nfwd, counted
    up like the prefix).
    functions: inline, or keep: local functions are differentiated once and called (in layout single).
    straight_through: operators of rounding and quantization whose derivative is passed on instead of zero (Round,
    Floor, Ceil, Sign, QuantizeLinear, DynamicQuantizeLinear).
    """

    name: ClassVar[str] = "forward"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    prefix: str | None = None
    layout: str = SINGLE
    rules: Ruleset | None = field(default=None, repr=False, compare=False, metadata={"option": False})
    functions: str = "inline"
    straight_through: tuple[str, ...] = ()
    dim: str | None = None

    @property
    def instead(self) -> Mapping[str, str]:
        kept = function_passes(self.functions)
        return kept if self.layout == SINGLE else {}

    def prepare(self, model: Model) -> None:
        reserve(model, self.inputs, self.outputs)

    def run(self, model: Model) -> bool:
        check_layout(self.layout, self.dim)
        drop_dead_states(model)
        graph, rules = model.graph, with_functions(straight_through(self.straight_through, self.rules), model)
        sources, sinks = choose_sources(model, self.inputs), choose_sinks(model, self.outputs)
        prefix = self.prefix if self.prefix is not None else next_prefix("fwd", graph, (*sources, *sinks))
        op = Builder(model, graph)
        op.scope.define(*graph.inputs)
        seeds = add_seeds(op, graph, sources, prefix)
        tangents = interleave(op, seeds, sinks, rules)
        op.label = "forward"
        add_results(op, graph, [(prefix + v.name, v, tangents.get(v)) for v in sinks], seeds.values())
        release(model, (*sources, *sinks))
        tidy(model)
        if self.layout != SINGLE:
            default = "nfwd" if self.prefix is not None else f"n{prefix[:-1]}"
            types = [v.type for v in sinks]
            add_directions(model, self.layout, self.dim or default, self.dim is not None, len(sources), types, rules)
            tidy(model)
        return True


def interleave(op: Builder, seeds: Mapping[Value, Var], sinks: Sequence[Value], rules: Ruleset) -> dict[Value, Var]:
    """Interleave tangents with the nodes of the builder's graph; those of all values, the seeds included."""
    graph = op.graph
    active = activity(graph, seeds, sinks, rules, op.captures)
    primal = graph.nodes[:]
    graph.nodes.clear()
    op.survey = Survey(primal, calls=rules.calls)
    tangents = {v: t for v, t in seeds.items() if v in active}
    inner = {v for v in tangents if v.producer is not None}
    for node in primal:
        graph.nodes.append(node)
        if any(v in active for v in node.outputs):
            op.label = f"forward({node.name or node.op_type})"
            push(op, node, tangents, rules)
            for v in node.outputs:
                if v in inner:  # a source of its own, on top of what reaches it
                    arrived = tangents[v]
                    tangents[v] = seeds[v] if arrived is seeds[v] else op.Add(arrived, seeds[v])
                elif v in tangents and v not in active:
                    del tangents[v]
        op.scope.define(*node.outputs)
    return tangents
