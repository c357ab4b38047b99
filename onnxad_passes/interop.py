"""onnxad among the passes of the ecosystem: ours as passes of onnx_ir, and theirs as passes of ours."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxad_ir.onnx_ir import from_onnx_ir, to_onnx_ir
from onnxad_ir.onnx_ir_equality import same_onnx_ir
from onnxad_ir.traverse import deep_regions
from onnxad_ir.verify import verify
from onnxad_passes.api import paused_gc
from onnxad_passes.manager import Pass, PassManager
from onnxad_passes.onnx_ir_passes import OnnxIrPasses, from_onnx_ir_pass
from onnxad_passes.onnxscript_rewrite import OnnxscriptRewrite, onnxscript_rewrite
from onnxad_passes.pipeline import parse_pipeline, print_pipeline

__all__ = [
    "OnnxIrPasses",
    "OnnxadPass",
    "OnnxscriptRewrite",
    "as_onnx_ir_pass",
    "from_onnx_ir_pass",
    "onnxscript_rewrite",
]


class OnnxadPass(ir.passes.InPlacePass):  # type: ignore[misc]  # onnx_ir is untyped to mypy
    """A pipeline of onnxad as a pass of onnx_ir. `as_onnx_ir_pass` makes one."""

    def __init__(self, passes: Iterable[Pass], verify_each: bool = True):
        super().__init__()
        self.manager = PassManager(passes, verify_each=verify_each)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pipeline; a model that it leaves as it was, or that it fails on, is not touched."""
        with paused_gc(), deep_regions():
            lifted = from_onnx_ir(model)
            if not self.manager.verify_each:
                verify(lifted)
            if not self.manager.run(lifted):
                return ir.passes.PassResult(model, False)
            out = to_onnx_ir(lifted)
            # extents that nobody named are written as unknown, and found again by the next run of the same pass
            if same_onnx_ir(model, out):
                return ir.passes.PassResult(model, False)
        _replace(model, out)
        return ir.passes.PassResult(model, True)

    def __repr__(self) -> str:
        return f"OnnxadPass({print_pipeline(self.manager.passes)!r})"


def as_onnx_ir_pass(passes: str | Pass | Iterable[Pass], verify_each: bool = True) -> OnnxadPass:
    """A pass of ours, several, or the text of a pipeline, as a pass that works on an onnx_ir.Model in place.

    It stands in onnx_ir.passes.Sequential and PassManager next to the passes of onnx_ir and onnxscript;
    `onnx_ir.passes.functionalize` makes it one that leaves its argument alone. Tensors are kept as they are, those in
    files unread. The model object stays the same; its graphs, nodes and values are new ones wherever `modified` is
    True. Multi-device configurations of nodes and denotations of types are not kept.

    The pass raises what `run_pipeline` raises (a Sequential wraps it in a PassError), and the model is then as it was.
    Raises UsageError for a text that does not parse.
    """
    if isinstance(passes, str):
        passes = parse_pipeline(passes)
    return OnnxadPass([passes] if isinstance(passes, Pass) else passes, verify_each)


def _replace(model: ir.Model, new: ir.Model) -> None:
    """Let `model` be the new one, but for what onnxad knows nothing of."""
    model.graph = new.graph
    for old, now in ((model.functions, new.functions), (model.metadata_props, new.metadata_props)):
        old.clear()
        old.update(now)
    for name in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        setattr(model, name, getattr(new, name))
