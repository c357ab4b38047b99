"""One more axis in front: several evaluations in one (vmap)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from onnxad_ir.core import Graph, Model, Value
from onnxad_ir.diagnostics import UsageError, did_you_mean
from onnxad_passes.layouts import check_free, check_name, extents
from onnxad_passes.manager import Pass
from onnxad_passes.tidy import tidy
from onnxad_rules.batching import RULES
from onnxad_rules.batching.sweep import Sweep
from onnxad_rules.ruleset import Ruleset, default_rules


@dataclass(frozen=True)
class Vectorize(Pass):
    """Give inputs a leading axis, and everything that depends on them: one evaluation does many.

    Operators are batched by a rule each, or through their composition; what has neither runs for each entry in turn, in
    a Scan. What does not depend on the inputs stays as it is.

    inputs: which (default: all). dim: the name of the new axis, one that the model does not have.
    """

    name: ClassVar[str] = "vectorize"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")
    inputs: tuple[str, ...] | None = None
    dim: str = "batch"
    rules: Ruleset | None = field(default=None, repr=False, compare=False, metadata={"option": False})

    def run(self, model: Model) -> bool:
        check_name(self.dim)
        chosen = _choose(model.graph, self.inputs)
        check_free(self.dim, extents(model.graph))
        Sweep(self.dim, RULES, self.rules or default_rules()).model(model, chosen)
        tidy(model)
        return True


def _choose(graph: Graph, names: Sequence[str] | None) -> list[Value]:
    inputs = {v.name: v for v in graph.inputs}
    for name in names or ():
        if name not in inputs:
            hint = did_you_mean(name, inputs)
            raise UsageError(f"the model has no input called {name!r}{hint} (its inputs: {', '.join(inputs)})")
    chosen = list(inputs.values()) if names is None else [inputs[name] for name in dict.fromkeys(names)]
    if not chosen:
        raise UsageError("no input to vectorize was named, or the model has none")
    return chosen
