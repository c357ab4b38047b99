"""Rewrite rules of onnxscript as a pass. onnxscript is imported only where the pass runs: that takes a second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import onnx_ir as ir

from onnxad_ir.core import Model
from onnxad_ir.diagnostics import UsageError
from onnxad_passes.manager import Pass
from onnxad_passes.onnx_ir_passes import OnnxIrPasses, resolve

#: The rules that onnxscript's own optimizer applies.
DEFAULT = "default"


@dataclass(frozen=True)
class OnnxscriptRewrite(Pass):
    """Apply rewrite rules of onnxscript, and drop what is unused after them.

    rules: default, or module:attribute of a rule, a RewriteRuleSet or a list of rules; several are applied one after
    the other (default: default, the rules of onnxscript's own optimizer). What later passes of the pipeline
    differentiate is an input to the rules.
    """

    name: ClassVar[str] = "onnxscript-rewrite"
    undoes: ClassVar[tuple[str, ...]] = OnnxIrPasses.undoes
    rules: tuple[str, ...] | None = None
    #: Rules as Python objects, applied after those that are named.
    objects: tuple[Any, ...] = field(default=(), metadata={"option": False})

    def prepare(self, model: Model) -> None:
        self._resolved()

    def run(self, model: Model) -> bool:
        from onnxscript.rewriter import rewrite

        from onnxad_passes.foreign import rewrite_as_onnx_ir

        changed = False
        for label, rules in self._resolved():

            def apply(m: ir.Model, rules: Any = rules) -> ir.Model:
                return rewrite(m, pattern_rewrite_rules=rules)

            changed |= rewrite_as_onnx_ir(model, apply, f"onnxscript-rewrite ({label})")
        return changed

    def _resolved(self) -> list[tuple[str, Any]]:
        """Rule sets with what to call them; None is what onnxscript applies by default."""
        names = self.rules if self.rules is not None else () if self.objects else (DEFAULT,)
        if not names and not self.objects:
            raise UsageError("pass 'onnxscript-rewrite' has no rules to apply; leave `rules` out for the default ones")
        found: list[tuple[str, Any]] = []
        for name in names:
            found.append((name, None if name == DEFAULT else _rules(name, resolve(name, "rules"))))
        return found + [(type(x).__name__, _rules("objects", x)) for x in self.objects]


def onnxscript_rewrite(*rules: Any) -> OnnxscriptRewrite:
    """The pass that applies rules given as objects: RewriteRuleSets, rules, rule classes, or sequences of them.

    Without arguments, the rules that onnxscript applies by default.
    """
    return OnnxscriptRewrite(objects=rules)


def _rules(name: str, found: Any) -> Any:
    """A RewriteRuleSet or a list of rules. Raises UsageError for anything else."""
    from onnxscript.rewriter import RewriteRuleSet

    if isinstance(found, RewriteRuleSet):
        return found
    rules = list(_each(name, found))
    if not rules:
        raise UsageError(f"rules {name!r} is empty")
    return rules


def _each(name: str, found: Any) -> Iterator[Any]:
    from onnxscript.rewriter import RewriteRule, RewriteRuleClassBase, RewriteRuleSet

    if isinstance(found, RewriteRule):
        yield found
    elif isinstance(found, RewriteRuleSet):
        yield from found
    elif isinstance(found, type) and issubclass(found, RewriteRuleClassBase):
        yield found.rule()  # type: ignore[attr-defined]
    elif isinstance(found, Sequence) and not isinstance(found, str):
        for x in found:
            yield from _each(name, x)
    else:
        raise UsageError(
            f"rules {name!r} is no onnxscript rewrite rule, no rule set and no list of rules, but a "
            f"{found.__name__ if isinstance(found, type) else type(found).__name__}"
        )
