"""Spellings that all runtimes agree on, for operators some runtime gets wrong in another spelling.

Only what the builder emits is respelled; an author's own nodes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from onnxad_ir.core import Attr, Value
from onnxad_ir.infer import known_ints

if TYPE_CHECKING:
    from onnxad_ir.builder import Builder

Inputs: TypeAlias = "Sequence[Value | None]"


def _pad(op: Builder, inputs: Inputs, attributes: dict[str, Attr]) -> Inputs | None:
    """Pads of every axis instead of an `axes` operand.

    ONNX Runtime 1.32 moves a Transpose through a Pad by permuting `pads` as if they were those of every axis.
    """
    if len(inputs) < 4 or inputs[3] is None or inputs[0] is None or inputs[1] is None:
        return None
    axes, rank = known_ints(inputs[3]), inputs[0].rank
    if axes is None or rank is None:
        return None
    at = [a % rank for a in axes]
    k = len(axes)
    source = [at.index(i) if i in at else 2 * k for i in range(rank)]
    index = source + [s + k if s < k else s for s in source]
    pads = known_ints(inputs[1])
    full = (
        op.const([(*pads, 0)[i] for i in index])
        if pads is not None
        else op.Gather(op.Concat(inputs[1], op.const([0]), axis=0), op.const(index))
    )
    value = inputs[2]
    return (inputs[0], full.value) if value is None else (inputs[0], full.value, value)


#: Other operands for an operator, or None where the spelling is fine.
SPELLINGS: dict[str, Callable[[Builder, Inputs, dict[str, Attr]], Inputs | None]] = {"Pad": _pad}
