"""The gradient of a scalar output: reverse mode without a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from onnxad_ir.builder import Builder
from onnxad_ir.core import Model, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.types import TensorType
from onnxad_passes.checkpoint import check_checkpoint, checkpoint_loops
from onnxad_passes.dce import drop_dead_states
from onnxad_passes.manager import Pass
from onnxad_passes.reverse import adjoint
from onnxad_passes.seeds import add_results, choose_sinks, choose_sources, next_prefix, release, reserve
from onnxad_passes.specialize_functions import function_passes
from onnxad_passes.tidy import tidy
from onnxad_rules.derive import Cotangents, total
from onnxad_rules.functions import with_functions
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.straight_through import straight_through


@dataclass(frozen=True)
class Gradient(Pass):
    """The gradient of an output with one element: adds outputs grad_<x>, of the shape of x; no seed.

    output: which (default: the model's only floating output). inputs: with respect to what (inputs,
    initializers or inner values; a "*" stands for any text; default: every floating input). prefix: of the new names
    (default: grad_, counted up). functions: inline, or keep: local functions are differentiated once and called.
    straight_through: operators of rounding and quantization whose derivative is passed on instead of zero (Round,
    Floor, Ceil, Sign, QuantizeLinear, DynamicQuantizeLinear).
    checkpoint: keep every so many-th state of a Scan or Loop only and compute in between again on the way back (a
    number, or auto: about the square root of the number of iterations). For RNN, GRU and LSTM run lower-rnn first.
    """

    name: ClassVar[str] = "gradient"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    output: str | None = None
    inputs: tuple[str, ...] | None = None
    prefix: str | None = None
    rules: Ruleset | None = field(default=None, repr=False, compare=False, metadata={"option": False})
    functions: str = "inline"
    straight_through: tuple[str, ...] = ()
    checkpoint: str | None = None

    @property
    def instead(self) -> Mapping[str, str]:
        return function_passes(self.functions)

    def prepare(self, model: Model) -> None:
        reserve(model, self.inputs, None if self.output is None else (self.output,))

    def run(self, model: Model) -> bool:
        drop_dead_states(model)
        graph, rules = model.graph, with_functions(straight_through(self.straight_through, self.rules), model)
        sources, sink = choose_sources(model, self.inputs), self._sink(model)
        if (every := check_checkpoint(self.checkpoint)) is not None:
            checkpoint_loops(model, sources, [sink], rules, every)
            sources, sink = choose_sources(model, self.inputs), self._sink(model)
        prefix = self.prefix if self.prefix is not None else next_prefix("grad", graph, sources)
        op = Builder(model, graph)
        op.scope.define_all(graph)
        cotangents: Cotangents = {sink: [op.ones_like(op.var(sink))]}
        adjoint(op, sources, cotangents, rules)
        add_results(op, graph, [(prefix + v.name, v, total(op, cotangents, v)) for v in sources])
        release(model, (*sources, sink))
        tidy(model)
        return True

    def _sink(self, model: Model) -> Value:
        sinks = choose_sinks(model, None if self.output is None else (self.output,))
        if len(sinks) > 1:
            names = ", ".join(v.name for v in sinks)
            raise UsageError(f"the model has {len(sinks)} floating outputs ({names}); name the one to differentiate")
        (sink,) = sinks
        t = sink.type
        if isinstance(t, TensorType) and t.shape is not None and any(isinstance(d, int) and d != 1 for d in t.shape):
            raise UsageError(
                f"the gradient needs an output with one element, but {sink.name!r} has shape {list(t.shape)}; "
                "use `reverse`, which takes a direction, or add a loss to the model"
            )
        return sink
