"""Old spellings to the modern one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir.core import Model
from onnxad_passes.manager import Pass


@dataclass(frozen=True)
class UpgradeOpset(Pass):
    """Bring a model of an opset below 18 to opset 18, with unchanged results; newer models keep their opset."""

    name: ClassVar[str] = "upgrade-opset"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions",)

    def run(self, model: Model) -> bool:
        if model.version >= 18 and not model.functions:
            return False
        from onnxad_passes.upgrade import upgrade_model

        return upgrade_model(model)
