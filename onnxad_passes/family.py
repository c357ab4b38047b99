"""A model and its derivatives in files beside each other, as CasADi finds and reads them.

f.onnx           the model
adj_f.onnx       adj_<y> -> adj_<x>
fwd_adj_f.onnx   fwd_<x>, fwd_adj_<y> -> fwd_adj_<x>
fwd_f.onnx       fwd_<x> -> fwd_<y>
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from onnxad_ir.core import Model, clone_model
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.files import save_together
from onnxad_ir.traverse import deep_regions
from onnxad_ir.types import is_floating
from onnxad_passes.api import lift, paused_gc
from onnxad_passes.arguments import names_or_all
from onnxad_passes.forward import Forward
from onnxad_passes.manager import Pass, PassManager
from onnxad_passes.reverse import Reverse
from onnxad_passes.seeds import choose_sinks, choose_sources, named_values
from onnxad_passes.tidy import tidy

_LAYOUT = "casadi"


def sibling(path: str | os.PathLike[str], kind: str) -> str:
    """The file in which the derivative of a kind (fwd, adj, fwd_adj, ...) of the model in a file is looked for."""
    folder, name = os.path.split(os.fspath(path))
    return os.path.join(folder, f"{kind}_{name}")


def family(
    model: Any,
    path: str | os.PathLike[str],
    forward_sibling: bool = False,
    second_order: bool = True,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> list[str]:
    """Write a model and its derivatives in layout casadi; the paths of the files: the model's, adj_, fwd_, fwd_adj_.

    The adjoint is written, with `second_order` the forward derivative of the adjoint, and with `forward_sibling` the
    forward derivative. inputs, outputs: what is differentiated with respect to, and of which (default: every floating
    input and output); every one of them has its derivative in every file, zeros included. The derivative models return
    derivatives only.

    All weights are inside of the files, which are written all or not at all, in a folder that is made where there is
    none; siblings of other kinds that are there already are left. Raises UsageError for a model of over 2 GB, and for a
    name that is no input or output of the model; otherwise as `forward` and `reverse` do.
    """
    inputs, outputs = names_or_all(inputs), names_or_all(outputs)
    with paused_gc(), deep_regions():
        primal = lift(model)[0]
        _check_declared(primal, inputs or (), outputs or ())
        xs = tuple(v.name for v in choose_sources(primal, inputs))
        ys = tuple(v.name for v in choose_sinks(primal, outputs))
        files = {os.fspath(path): primal}
        adjoint = Reverse(xs, ys, layout=_LAYOUT)
        files[sibling(path, "adj")], whole, seeds, results = _derivative(primal, adjoint)
        if forward_sibling:
            files[sibling(path, "fwd")] = _derivative(primal, Forward(xs, ys, layout=_LAYOUT))[0]
        if second_order:
            files[sibling(path, "fwd_adj")] = _derivative(whole, Forward((*xs, *seeds), results, layout=_LAYOUT))[0]
        _make_folder(os.path.dirname(path))
        save_together(files)
    return list(files)


def _make_folder(folder: str) -> None:
    if folder:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError as e:
            raise UsageError(f"{folder}: {e.strerror or e}") from None


def _check_declared(model: Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    if not any(is_floating(v.type) for v in model.graph.inputs):
        raise UsageError(
            "the model has no floating-point input, and a family knows no other values: make inputs of the weights to "
            "differentiate"
        )
    known = named_values(model.graph)
    for what, names, values in (("input", inputs, model.graph.inputs), ("output", outputs, model.graph.outputs)):
        have = [v.name for v in values]
        for name in names:
            if name in known and name not in have:
                raise UsageError(
                    f"{name!r} is no {what} of the model ({', '.join(have)}); a family knows no other values"
                )


def _derivative(model: Model, p: Pass) -> tuple[Model, Model, tuple[str, ...], tuple[str, ...]]:
    """A derivative without the outputs of the model, the same with them, and the names of seeds and results."""
    whole = clone_model(model)
    PassManager([p], verify_each=False).run(whole)
    seeds = tuple(v.name for v in whole.graph.inputs[len(model.graph.inputs) :])
    results = tuple(v.name for v in whole.graph.outputs[len(model.graph.outputs) :])
    only = clone_model(whole)
    only.graph.set_outputs(only.graph.outputs[len(model.graph.outputs) :])
    tidy(only)
    return only, whole, seeds, results
