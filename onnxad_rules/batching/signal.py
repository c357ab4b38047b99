"""Transforms of signals."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, batched, shift, shift_axes
from onnxad_rules.node import NodeView


@batched("DFT", any_rank=True)
def _dft(op: Builder, n: NodeView, b: Batch) -> Any:
    """The axis is an attribute (1 where it is not set) before opset 20, an operand (-2 where it is not given) since."""
    if not b.only("input"):
        return NotImplemented
    if n.facts.since < 20:
        return b.again(b.input, n.dft_length, axis=shift(n.axis))
    return b.again(b.input, n.dft_length, None if n.axis is None else shift_axes(op, n.axis))


@batched("STFT")
def _stft(op: Builder, n: NodeView, b: Batch) -> Any:
    if not b.only("signal"):
        return NotImplemented
    y = b.again(b.fold(n.signal), n.frame_step, n.window, n.frame_length)
    return b.unfold(y, n.signal)
