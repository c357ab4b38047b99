"""A rewrite of other people, on an onnx_ir model, applied to a model of ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from onnxad_ir.core import Model, clone_model
from onnxad_ir.diagnostics import ModelError, OnnxadError, UsageError
from onnxad_ir.onnx_ir import from_onnx_ir, to_onnx_ir
from onnxad_ir.onnx_ir_equality import same_onnx_ir
from onnxad_ir.types import FLOATING
from onnxad_passes.cut_variables import Cuts
from onnxad_passes.seeds import named_values


def rewrite_as_onnx_ir(model: Model, rewrite: Callable[[ir.Model], Any], label: str) -> bool:
    """Rewrite `model` in place by a function on onnx_ir models; True where that changed anything.

    `rewrite` returns a model, a PassResult, or None where it worked in place. Raises ModelError, with `label`, where
    it raises, and where it drops or renames a value that a later pass differentiates.
    """
    work = clone_model(model)
    cuts = Cuts(work)
    given = to_onnx_ir(work)
    try:
        result = rewrite(given)
    except (OnnxadError, MemoryError):
        raise
    except Exception as e:
        raise ModelError(f"the pass {label} failed: {_reason(e)}") from e
    found = given if result is None else getattr(result, "model", result)
    if not isinstance(found, ir.Model):
        raise UsageError(f"the pass {label} returned a {type(found).__name__}, not an onnx_ir.Model")
    cuts.join(found.graph, label)
    if same_onnx_ir(to_onnx_ir(model), found):
        return False
    try:
        new = from_onnx_ir(found, model.base_dir)
    except ModelError as e:
        raise ModelError(f"after the pass {label}, whose fault this is: {e}") from e
    _replace(model, new, label)
    return True


def _replace(model: Model, new: Model, label: str) -> None:
    """Let `model` be what a rewrite made of it."""
    values = named_values(new.graph)
    variables = {}
    for v, n in model.variables.items():
        if v.name not in values:
            raise ModelError(f"the pass {label} dropped {v.name!r}, which a later pass of the pipeline differentiates")
        variables[values[v.name]] = n
    before, after = _uses(model), _uses(new)
    kept = {v.name for v in model.variables}
    new.frozen |= model.frozen | {name for name, uses in before.items() if name not in kept and after[name] != uses}
    new.variables, new.training = variables, model.training
    vars(model).update(vars(new))


def _uses(model: Model) -> dict[str, list[tuple[int, int]]]:
    """How often each named floating constant is read, by name.

    Where a rewrite has changed that, it may have used the number: what it left of the uses is not the derivative's
    whole story.
    """
    uses: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for g in model.graph.graphs():
        for v in g.constants:
            if v.name and v.dtype in FLOATING and v.users:
                uses[v.name].append((id(v.const), sum(v.users.values())))
    return uses


def _reason(e: BaseException) -> str:
    """The first cause: a PassManager of onnx_ir only says that a pass of it failed."""
    while isinstance(e, ir.passes.PassError | ir.passes.InvariantError) and e.__cause__ is not None:
        e = e.__cause__
    return f"{type(e).__name__}: {e}"
