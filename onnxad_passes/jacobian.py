"""Dense Jacobians: a derivative in one direction, and then all directions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from onnxad_ir.core import Model, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.types import TensorType
from onnxad_passes.dce import drop_dead_states
from onnxad_passes.dense import Single, add_dense, check_tensors, order_outputs, start, tangents_along
from onnxad_passes.manager import Pass
from onnxad_passes.reverse import adjoint
from onnxad_passes.seeds import choose_sinks, choose_sources, named_values, next_prefix, release, reserve
from onnxad_rules.derive import Cotangents, total
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.straight_through import straight_through

MODES = ("auto", "forward", "reverse")


@dataclass(frozen=True)
class Jacobian(Pass):
    """Every derivative of outputs with respect to inputs: adds outputs jac_<y>_<x>, of the shape of y, then that of x.

    inputs: with respect to what (inputs, initializers or inner values; a "*" stands for any text; default: every
    floating input). outputs: of what (default: every floating output). prefix: of the new names (default: jac_, counted
    up). mode: forward takes a direction for every element of the inputs, reverse one for every element of an output;
    auto is, for each output, the one with fewer, and where extents are symbols the one whose number is known, else
    reverse.
    straight_through: operators of rounding and quantization whose derivative is passed on instead of zero (Round,
    Floor, Ceil, Sign, QuantizeLinear, DynamicQuantizeLinear).
    """

    name: ClassVar[str] = "jacobian"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    prefix: str | None = None
    mode: str = "auto"
    rules: Ruleset | None = field(default=None, repr=False, compare=False, metadata={"option": False})
    straight_through: tuple[str, ...] = ()

    def prepare(self, model: Model) -> None:
        reserve(model, self.inputs, self.outputs)

    def run(self, model: Model) -> bool:
        if self.mode not in MODES:
            raise UsageError(f"there is no mode {self.mode!r}; the modes are {', '.join(MODES)}")
        drop_dead_states(model)
        graph, rules = model.graph, straight_through(self.straight_through, self.rules)
        sources, sinks = choose_sources(model, self.inputs), choose_sinks(model, self.outputs)
        check_tensors((*sources, *sinks))
        prefix = self.prefix if self.prefix is not None else next_prefix("jac", graph)
        count, pairs = len(graph.outputs), [(y.name, x.name) for y in sinks for x in sources]
        backward = [y.name for y in sinks if self._is_reverse(y, sources)]
        ahead = [y.name for y in sinks if y.name not in backward]
        names = {(y, x): f"{prefix}{y}_{x}" for y, x in pairs}
        for y in backward:
            v = named_values(graph)[y]
            seed, op, xs = Value("", v.type, graph), start(model), choose_sources(model, self.inputs)
            cotangents: Cotangents = {v: [op.var(seed)]}
            adjoint(op, xs, cotangents, rules)
            singles = [Single(names[y, x.name], x.name, total(op, cotangents, x)) for x in xs]
            add_dense(model, seed, y, singles, True, rules)
        for x in [v.name for v in sources] if ahead else ():
            values = named_values(graph)
            seed, tangents = tangents_along(model, values[x], [values[y] for y in ahead], rules)
            add_dense(model, seed, x, [Single(names[y, x], y, tangents.get(values[y])) for y in ahead], False, rules)
        order_outputs(graph, count, list(names.values()))
        values = named_values(graph)
        release(model, (*choose_sources(model, self.inputs), *(values[y] for y in self.outputs or ())))
        return True

    def _is_reverse(self, y: Value, sources: Sequence[Value]) -> bool:
        if self.mode != "auto":
            return self.mode == "reverse"
        rows, columns = _size([y]), _size(sources)
        return columns is None or (rows is not None and rows < columns)


def _size(values: Sequence[Value]) -> int | None:
    sizes = [v.type.size for v in values if isinstance(v.type, TensorType)]
    return None if None in sizes else sum(n for n in sizes if n is not None)
