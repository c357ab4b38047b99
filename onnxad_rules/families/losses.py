"""Losses over classes: in terms of LogSoftmax, GatherElements and a mean."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import decompose
from onnxad_rules.node import NodeView


def _loss(op: Builder, n: NodeView, log_prob: Var, labels: Var, weights: Var | None) -> Var:
    """The negative log-likelihood of `labels` [N, d1, ...] under `log_prob` [N, C, d1, ...].

    Places with the label `ignore_index`, which need not be a class, count for nothing; a mean is weighted.
    """
    ignored = None
    if n.ignore_index is not None:
        ignored = op.Equal(labels, op.like(n.ignore_index, labels))
        labels = op.where(ignored, 0, labels)
    picked = op.GatherElements(log_prob, op.Unsqueeze(labels, [1]), axis=1)
    loss = -op.Squeeze(picked, [1])
    weight = None
    if weights is not None:
        weight = op.Gather(weights, labels)
        if ignored is not None:
            weight = op.where(ignored, 0, weight)
    elif ignored is not None:
        weight = op.cast_like(op.Not(ignored), log_prob)
    if weight is not None:
        loss = loss * weight
    if n.reduction == "none":
        return loss
    if n.reduction == "mean" and weight is None:
        return op.ReduceMean(loss, keepdims=0)
    total = op.ReduceSum(loss, keepdims=0)
    return total / op.ReduceSum(weight, keepdims=0) if n.reduction == "mean" else total


@decompose("NegativeLogLikelihoodLoss")
def _nll(op: Builder, n: NodeView) -> Var:
    return _loss(op, n, n.input, n.target, n.weight)


@decompose("SoftmaxCrossEntropyLoss")
def _cross_entropy(op: Builder, n: NodeView) -> tuple[Var, Var]:
    """The node is made to return its log-probabilities, which the derivative needs and the primal has
    anyway."""
    n.extend_results("log_prob")
    log_prob = op.LogSoftmax(n.scores, axis=1)
    return _loss(op, n, log_prob, n.labels, n.weights), log_prob
