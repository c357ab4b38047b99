"""Recurrent operators written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir.core import Model
from onnxad_passes.decompose import Decompose
from onnxad_passes.manager import Pass

RECURRENT = ("RNN", "GRU", "LSTM")


@dataclass(frozen=True)
class LowerRnn(Pass):
    """Replace RNN, GRU and LSTM by a Scan over their equations.

    Not needed before a derivative: the rules of these operators go through the same equations where they have to, and
    keep the fused operator for its value.
    """

    name: ClassVar[str] = "lower-rnn"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset", "fold-shapes")

    def run(self, model: Model) -> bool:
        return Decompose(ops=RECURRENT).run(model)
