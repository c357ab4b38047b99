"""Reverse mode: the adjoint, appended to the primal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from onnxad_ir.builder import Builder
from onnxad_ir.core import Model, Value
from onnxad_passes.checkpoint import check_checkpoint, checkpoint_loops
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
from onnxad_rules.derive import Cotangents, pull, total
from onnxad_rules.functions import with_functions
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.straight_through import straight_through
from onnxad_rules.survey import Survey


@dataclass(frozen=True)
class Reverse(Pass):
    """A direction times the Jacobian: adds inputs adj_<y> and outputs adj_<x>.

    inputs: what to differentiate with respect to (inputs, initializers or inner values; a "*" stands for any text;
    default: every floating input). outputs: what to seed (default: every floating output). prefix: of the new names
    (default: adj_, counted up where it is taken). layout: how directions are handed over (single: one, in the shape of
    the value; casadi, onnx, leading: several). dim: the name of the axis of directions (default: nadj, counted up like
    the prefix).
    functions: inline, or keep: local functions are differentiated once and called (in layout single).
    straight_through: operators of rounding and quantization whose derivative is passed on instead of zero (Round,
    Floor, Ceil, Sign, QuantizeLinear, DynamicQuantizeLinear).
    checkpoint: keep every so many-th state of a Scan or Loop only and compute in between again on the way back (a
    number, or auto: about the square root of the number of iterations). For RNN, GRU and LSTM run lower-rnn first.
    """

    name: ClassVar[str] = "reverse"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    prefix: str | None = None
    layout: str = SINGLE
    rules: Ruleset | None = field(default=None, repr=False, compare=False, metadata={"option": False})
    functions: str = "inline"
    straight_through: tuple[str, ...] = ()
    checkpoint: str | None = None
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
        if (every := check_checkpoint(self.checkpoint)) is not None:
            checkpoint_loops(model, sources, sinks, rules, every)
            sources, sinks = choose_sources(model, self.inputs), choose_sinks(model, self.outputs)
        prefix = self.prefix if self.prefix is not None else next_prefix("adj", graph, (*sources, *sinks))
        op = Builder(model, graph)
        op.scope.define_all(graph)
        seeds = add_seeds(op, graph, sinks, prefix)
        cotangents: Cotangents = {v: [s] for v, s in seeds.items()}
        adjoint(op, sources, cotangents, rules)
        add_results(op, graph, [(prefix + v.name, v, total(op, cotangents, v)) for v in sources], seeds.values())
        release(model, (*sources, *sinks))
        tidy(model)
        if self.layout != SINGLE:
            default = "nadj" if self.prefix is not None else f"n{prefix[:-1]}"
            types = [v.type for v in sources]
            add_directions(model, self.layout, self.dim or default, self.dim is not None, len(sinks), types, rules)
            tidy(model)
        return True


def adjoint(op: Builder, sources: list[Value], cotangents: Cotangents, rules: Ruleset) -> None:
    """Append the adjoint of the builder's graph: `cotangents`, which holds the seeds, receives those of all else."""
    graph = op.graph
    active = activity(graph, sources, cotangents, rules, op.captures)
    primal = graph.nodes[:]
    op.survey = Survey(primal, calls=rules.calls)
    for node in reversed(primal):
        if any(v in active and v in cotangents for v in node.outputs):
            op.label = f"reverse({node.name or node.op_type})"
            pull(op, node, cotangents, active.__contains__, rules)
    op.label = "reverse"
