"""Passes of onnx_ir, and functions on onnx_ir models, as a pass of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

import onnx_ir as ir

from onnxad_ir.core import Model
from onnxad_ir.diagnostics import UsageError, did_you_mean
from onnxad_passes.manager import Pass

#: Where a name without a module is looked up.
_COMMON = "onnx_ir.passes.common"
_DEFAULT = "onnxscript.optimizer:optimize_ir"


@dataclass(frozen=True)
class OnnxIrPasses(Pass):
    """Run passes of onnx_ir: those of onnx_ir itself, of onnxscript, or of anybody.

    passes: the name of a pass in onnx_ir.passes.common, or module:attribute of a pass, of a class that makes one
    without arguments, or of a function on an onnx_ir model (default: onnxscript.optimizer:optimize_ir). They run in
    order, and what later passes of the pipeline differentiate is an input to them.
    """

    name: ClassVar[str] = "onnx-ir"
    #: Extents are known by name only on the other side; functions may appear, and the opset may be another.
    undoes: ClassVar[tuple[str, ...]] = ("fold-shapes", "inline-functions", "specialize-functions", "upgrade-opset")
    passes: tuple[str, ...] | None = None
    #: Passes as Python objects, which run after those that are named.
    objects: tuple[Any, ...] = field(default=(), metadata={"option": False})

    def prepare(self, model: Model) -> None:
        self._resolved()

    def run(self, model: Model) -> bool:
        from onnxad_passes.foreign import rewrite_as_onnx_ir

        changed = False
        for label, p in self._resolved():
            changed |= rewrite_as_onnx_ir(model, p, label)
        return changed

    def _resolved(self) -> list[tuple[str, Callable[[ir.Model], Any]]]:
        names = self.passes if self.passes is not None else () if self.objects else (_DEFAULT,)
        named = [(p, resolve(p if ":" in p else f"{_COMMON}:{p}", "pass")) for p in names]
        found = [(label, _callable(label, p)) for label, p in (*named, *((_label(p), p) for p in self.objects))]
        if not found:
            raise UsageError("pass 'onnx-ir' has nothing to run; leave `passes` out for the optimizer of onnxscript")
        return found


def from_onnx_ir_pass(*passes: Any) -> OnnxIrPasses:
    """Passes of onnx_ir as one pass of ours, which stands in a PassManager and in `run_pipeline`.

    `passes`: onnx_ir.passes.PassBase objects, classes of them that take no arguments, or functions that take an
    onnx_ir.Model and return a model, a PassResult, or None for the one they took (onnxscript.optimizer.optimize_ir).

    The model is verified afterwards as after any pass, and `modified` is found by comparing. What raises inside is a
    ModelError that names the pass.
    """
    return OnnxIrPasses(objects=passes)


def resolve(path: str, what: str) -> Any:
    """The Python object that `module:attribute` names (attributes may be nested: a.b).

    Raises UsageError where there is no such module or attribute, and where importing the module fails.
    """
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise UsageError(f"{what} {path!r} is not written as module:attribute")
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as e:
        if e.name is not None and (module == e.name or module.startswith(f"{e.name}.")):
            raise UsageError(f"{what} {path!r}: there is no module {e.name!r} (is its folder on PYTHONPATH?)") from e
        raise UsageError(f"{what} {path!r}: importing {module!r} failed: {type(e).__name__}: {e}") from e
    except Exception as e:
        raise UsageError(f"{what} {path!r}: importing {module!r} failed: {type(e).__name__}: {e}") from e
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = did_you_mean(part, dir(found))
            raise UsageError(f"{what} {path!r}: {module!r} has no attribute {attribute!r}{hint}")
        found = getattr(found, part)
    return found


def _callable(label: str, p: Any) -> Callable[[ir.Model], Any]:
    if isinstance(p, type) and issubclass(p, ir.passes.PassBase):
        try:
            p = p()
        except Exception as e:
            raise UsageError(f"the pass {label} cannot be made without arguments: {type(e).__name__}: {e}") from e
    if isinstance(p, type) or not callable(p):
        raise UsageError(f"{label} is no onnx_ir pass and no function on an onnx_ir model, but a {type(p).__name__}")
    return p


def _label(p: Any) -> str:
    return getattr(p, "__qualname__", None) or type(p).__qualname__
