"""Dense Hessians: forward mode over the gradient, in all directions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from onnxad_ir.core import Model, Value
from onnxad_ir.types import TensorType
from onnxad_passes.dense import Single, add_dense, check_tensors, order_outputs, start, tangents_along
from onnxad_passes.gradient import Gradient
from onnxad_passes.manager import Pass
from onnxad_passes.seeds import add_results, choose_sources, named_values, next_prefix, release, reserve
from onnxad_passes.tidy import tidy
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.straight_through import straight_through


@dataclass(frozen=True)
class Hessian(Pass):
    """Every second derivative of an output with one element: adds outputs hess_<x1>_<x2>, of the shapes of x1 and x2.

    output: which (default: the model's only floating output). inputs: with respect to what (inputs, initializers or
    inner values; a "*" stands for any text; default: every floating input). prefix: of the new names (default: hess_,
    counted up).
    straight_through: operators of rounding and quantization whose derivative is passed on instead of zero (Round,
    Floor, Ceil, Sign, QuantizeLinear, DynamicQuantizeLinear).
    """

    name: ClassVar[str] = "hessian"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    output: str | None = None
    inputs: tuple[str, ...] | None = None
    prefix: str | None = None
    rules: Ruleset | None = field(default=None, repr=False, compare=False, metadata={"option": False})
    straight_through: tuple[str, ...] = ()

    def prepare(self, model: Model) -> None:
        for _ in range(2):  # once for the gradient, which releases them
            reserve(model, self.inputs, None if self.output is None else (self.output,))

    def run(self, model: Model) -> bool:
        graph, rules = model.graph, straight_through(self.straight_through, self.rules)
        check_tensors(choose_sources(model, self.inputs))
        count = len(graph.outputs)
        Gradient(self.output, self.inputs, rules=self.rules, straight_through=self.straight_through).run(model)
        xs = choose_sources(model, self.inputs)
        gradients = dict(zip((x.name for x in xs), (v.name for v in graph.outputs[count:]), strict=True))
        prefix = self.prefix if self.prefix is not None else next_prefix("hess", graph)
        names = {(y.name, x.name): f"{prefix}{y.name}_{x.name}" for y in xs for x in xs}
        done: list[Value] = []
        for x in sorted(xs, key=_size):
            # what was differentiated with respect to fewer elements is there already, the other way round
            there = {y.name for y in done if _turns(x, y)}
            values = named_values(graph)
            rest = [(y, values[gradients[y]]) for y in gradients if y not in there]
            seed, tangents = tangents_along(model, values[x.name], [g for _, g in rest], rules)
            singles = [Single(names[y, x.name], y, tangents.get(g)) for y, g in rest]
            add_dense(model, seed, x.name, singles, False, rules)
            self._turn(model, [(names[x.name, y.name], names[y.name, x.name], x, y) for y in done if _turns(x, y)])
            done.append(x)
        order_outputs(graph, count, list(names.values()))
        values = named_values(graph)
        release(model, (values[name] for name in (*gradients, *(() if self.output is None else (self.output,)))))
        tidy(model)
        return True

    @staticmethod
    def _turn(model: Model, pairs: Sequence[tuple[str, str, Value, Value]]) -> None:
        """Second derivatives in the other order: by its own name, that of what there is, and the values of that."""
        op, values = start(model), named_values(model.graph)
        results = []
        for there, new, x, y in pairs:
            assert x.rank is not None and y.rank is not None
            turned = [*range(x.rank, x.rank + y.rank), *range(x.rank)]
            results.append((new, y, op.Transpose(op.var(values[there]), perm=turned)))
        add_results(op, model.graph, results)


def _size(x: Value) -> float:
    size = x.type.size if isinstance(x.type, TensorType) else None
    return float("inf") if size is None else size


def _turns(x: Value, y: Value) -> bool:
    """True where a second derivative can be had by turning the one of the other order."""
    return x.rank is not None and y.rank is not None and x.dtype == y.dtype
