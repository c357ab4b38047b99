"""Operators of ONNX Runtime that are no compositions of others."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, batched
from onnxad_rules.node import NodeView

DOMAIN = "com.microsoft"


@batched("BiasGelu", "FastGelu", "Gelu", "Inverse", "QuickGelu", "Trilu", domain=DOMAIN, any_rank=True)
def _one(op: Builder, n: NodeView, b: Batch) -> Any:
    """Those that work place by place, add a vector to the last axis, or look at the last two axes."""
    x, *others = n.node.inputs
    if any(b.twin(v) is not None for v in others):
        return NotImplemented
    return b.again(b.twin(x), *(None if v is None else op.var(v) for v in others))


@batched("NhwcMaxPool", domain=DOMAIN, any_rank=True)
def _pool(op: Builder, n: NodeView, b: Batch) -> Any:
    x = n.operand(0)
    return b.unfold(b.again(b.fold(x)), x)
