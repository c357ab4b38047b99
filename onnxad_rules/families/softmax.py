"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.context import may_be_dropped
from onnxad_rules.kinds import pushforward
from onnxad_rules.node import NodeView


@pushforward("Softmax")
def _softmax(op: Builder, n: NodeView, t: Any) -> Var:
    """y t - y sum(y t).

    A row in which everything is minus infinity has no softmax; where the model goes on to throw such rows
    away, they pass no derivative on.
    """
    y = n.output
    if may_be_dropped(op, n):
        y = op.where(op.IsNaN(y), 0, y)
    weighted = y * t.input
    return weighted - y * op.ReduceSum(weighted, [n.axis], keepdims=1)  # type: ignore[no-any-return]


@pushforward("LogSoftmax")
def _log_softmax(op: Builder, n: NodeView, t: Any) -> Var:
    """t - sum(exp(y) t)."""
    return t.input - op.ReduceSum(op.Exp(n.output) * t.input, [n.axis], keepdims=1)  # type: ignore[no-any-return]
