"""Softmax and its logarithm. By hand in both modes, for speed: they sit in every layer of large models."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_rules.context import may_be_dropped
from onnxad_rules.kinds import pair
from onnxad_rules.node import NodeView


def _softmax(op: Builder, n: NodeView, x: Var) -> Var:
    """y x - y sum(y x): the Jacobian diag(y) - y y^T is symmetric, so both modes are the same.

    A row in which everything is minus infinity has no softmax; where the model goes on to throw such rows
    away, they pass no derivative on.
    """
    y = n.output
    if may_be_dropped(op, n):
        y = op.where(op.IsNaN(y), 0, y)
    weighted = y * x
    return weighted - y * op.ReduceSum(weighted, [n.axis], keepdims=1)


@pair("Softmax", forward=lambda op, n, ts: [_softmax(op, n, ts[0])])
def _softmax_reverse(op: Builder, n: NodeView, cts: Sequence[Var], wanted: Sequence[bool]) -> list[Var]:
    return [_softmax(op, n, cts[0])]


def _log_softmax(op: Builder, n: NodeView, ts: Sequence[Var]) -> list[Var]:
    """t - sum(exp(y) t)."""
    t = ts[0]
    return [t - op.ReduceSum(op.Exp(n.output) * t, [n.axis], keepdims=1)]


@pair("LogSoftmax", forward=_log_softmax)
def _log_softmax_reverse(op: Builder, n: NodeView, cts: Sequence[Var], wanted: Sequence[bool]) -> list[Var]:
    """ct - exp(y) sum(ct)."""
    ct = cts[0]
    return [ct - op.Exp(n.output) * op.ReduceSum(ct, [n.axis], keepdims=1)]
