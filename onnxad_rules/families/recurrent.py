"""RNN, GRU and LSTM. The value comes from the fused operator, but in reverse mode for a large LSTM.

Reverse mode with the standard activations is written for speed (`recurrent_adjoint`); everything else goes through
the equations (`recurrent_cells`).
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_rules.derive import push_composition
from onnxad_rules.kinds import decompose, pair
from onnxad_rules.node import NodeView
from onnxad_rules.recurrent_adjoint import pull_recurrent, standard
from onnxad_rules.recurrent_cells import recurrent


@decompose("RNN")
@decompose("GRU")
@decompose("LSTM")
def _equations(op: Builder, n: NodeView) -> tuple[Var, ...]:
    return recurrent(op, n)


def _push(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> Sequence[Var | None]:
    return push_composition(op, n, ts)


@pair("RNN", forward=_push, when=standard)
@pair("GRU", forward=_push, when=standard)
@pair("LSTM", forward=_push, when=standard)
def _pull(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]) -> list[Var | None]:
    return pull_recurrent(op, n, cts, wanted)
