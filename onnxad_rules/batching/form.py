"""Operators that look at the form of their operand only."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, Same, batched
from onnxad_rules.node import NodeView


@batched("Shape", any_rank=True)
def _shape(op: Builder, n: NodeView, b: Batch) -> Any:
    shape = b.shape(n.data)
    if not n.start and n.end is None:
        return Same(shape)
    last = 2**62 if n.end is None else n.end
    return Same(op.Slice(shape, [n.start], [last], [0]))


@batched("Size", any_rank=True)
def _size(op: Builder, n: NodeView, b: Batch) -> Any:
    return Same(op.Size(b.data) / op.scalar(b.size))
