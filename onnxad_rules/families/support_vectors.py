"""Support vector machines, of the domain ai.onnx.ml.

The probabilities of a classifier are fitted to those of every pair of classes, r_ij = 1 / (1 + exp(a score + b)), as
libsvm does it: they minimize the sum of (r_ji p_i - r_ij p_j)^2 over the probability simplex (Wu, Lin, Weng:
Probability estimates for multi-class classification by pairwise coupling, 2004, the second method). ONNX Runtime stops
its iteration at an error of 0.005 / classes; the derivative is that of the minimum, by the implicit function theorem.

Results follow ONNX Runtime where the specification is silent: see `machine_learning` about single scores. It does not
write the second column of PROBIT of a single score, which gets no derivative; and it ignores the post_transform of a
regressor.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.families.machine_learning import (
    DOMAIN,
    both_directions,
    examples,
    refused,
    scored,
    transformed,
    transformed_alone,
    vector,
)
from onnxad_rules.kinds import pushforward
from onnxad_rules.node import NodeView

Array = np.ndarray[Any, Any]

#: Probabilities of pairs of classes are kept this far from 0 and 1.
MARGIN = 1e-7


# --- kernels


def _parameters(n: NodeView) -> tuple[float, float, float]:
    """gamma, the constant, the degree."""
    gamma, shift, degree = n.kernel_params or (0.0, 0.0, 0.0)
    return gamma, shift, degree


def _products(op: Builder, x: Var, vectors: Array) -> Var:
    """The scalar product of every example with every support vector, [examples, vectors]."""
    return op.MatMul(x, op.const(np.ascontiguousarray(vectors.T)))


def _inner(op: Builder, n: NodeView, x: Var, vectors: Array) -> Var:
    gamma, shift, _ = _parameters(n)
    return _products(op, x, vectors) * op.like(gamma, x) + op.like(shift, x)


def _kernel(op: Builder, n: NodeView, x: Var, vectors: Array) -> Var:
    """The kernel of every example with every support vector, [examples, vectors]."""
    gamma, _, degree = _parameters(n)
    kind = n.kernel_type
    if kind == "LINEAR":
        return _products(op, x, vectors)
    if kind == "RBF":  # exp(-gamma |x - v|^2)
        square = op.ReduceSum(x * x, [1], keepdims=1)
        distance = square - _products(op, x, vectors) * op.like(2, x) + op.const(np.square(vectors).sum(1))
        return op.Exp(distance * op.like(-gamma, x))
    if kind == "POLY":
        return op.Pow(_inner(op, n, x, vectors), op.like(degree, x))
    if kind == "SIGMOID":
        return op.Tanh(_inner(op, n, x, vectors))
    raise refused(n, f"the specification has no kernel {kind!r}")


def _kernel_tangent(op: Builder, n: NodeView, x: Var, t: Var, vectors: Array) -> Var:
    """The tangent of `_kernel` from that of the examples."""
    gamma, _, degree = _parameters(n)
    kind, moved = n.kernel_type, _products(op, t, vectors)
    if kind == "LINEAR":
        return moved
    k = _kernel(op, n, x, vectors)
    if kind == "RBF":
        return (moved - op.ReduceSum(x * t, [1], keepdims=1)) * (k * op.like(2 * gamma, x))
    if kind == "SIGMOID":
        return moved * ((op.like(1, x) - k * k) * op.like(gamma, x))
    if degree == 0:  # the kernel is 1
        return moved * op.like(0, x)
    power = op.Pow(_inner(op, n, x, vectors), op.like(degree - 1, x))
    return moved * (power * op.like(degree * gamma, x))


# --- regression


@pushforward("SVMRegressor", domain=DOMAIN)
def _svm_regressor(op: Builder, n: NodeView, t: Any) -> Var | None:
    if n.one_class:  # +1 or -1
        return None
    if n.n_supports == 0:
        return scored(op, n, t.X, 1)
    vectors = np.asarray(n.support_vectors, np.float32).reshape(n.n_supports, -1)
    moved = _kernel_tangent(op, n, examples(op, n.X), examples(op, t.X), vectors)
    return op.MatMul(moved, op.const(np.asarray(n.coefficients, np.float32).reshape(-1, 1)))


# --- classification


def _pair_weights(sizes: Sequence[int], coefficients: Array) -> Array:
    """[support vectors, pairs of classes]: the weights of the decision between two classes.

    The coefficients are in libsvm's order: those of a class' vectors against another class stand in the row of that
    class, less one where it comes later.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    columns = []
    for i, j in combinations(range(len(sizes)), 2):
        column = np.zeros(starts[-1], np.float32)
        first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
        column[first] = coefficients[j - 1, first]
        column[second] = coefficients[i, second]
        columns.append(column)
    return np.stack(columns, axis=1)


@pushforward("SVMClassifier", domain=DOMAIN)
def _svm_classifier(op: Builder, n: NodeView, t: Any) -> dict[str, Var]:
    sizes = n.vectors_per_class or ()
    labels = n.classlabels_ints or n.classlabels_strings or ()
    if sum(sizes) == 0:  # a linear model per class
        finish = transformed if len(labels) > 1 else transformed_alone
        return {"Z": finish(op, n, n.Z, scored(op, n, t.X, len(labels)))}
    if len(sizes) == 1:
        raise refused(n, "a single class has no decision to make")
    x, dx = examples(op, n.X), examples(op, t.X)
    vectors = np.asarray(n.support_vectors, np.float32).reshape(sum(sizes), -1)
    weights = op.const(_pair_weights(sizes, np.asarray(n.coefficients, np.float32).reshape(-1, sum(sizes))))
    moved = op.MatMul(_kernel_tangent(op, n, x, dx, vectors), weights)
    if n.prob_a:
        pairs = len(sizes) * (len(sizes) - 1) // 2
        scores = op.MatMul(_kernel(op, n, x, vectors), weights) + vector(op, n.rho[:pairs])
        probabilities = _probabilities(op, n, scores, moved, len(sizes), pairs)
        return {"Z": transformed(op, n, n.Z, probabilities)}
    if len(sizes) > 2:
        return {"Z": transformed(op, n, n.Z, moved)}
    if n.post_transform != "PROBIT":
        return {"Z": both_directions(op, n, n.Z, moved)}
    first = transformed(op, n, op.Slice(n.Z, [0], [1], [1]), moved)
    return {"Z": op.Concat(first, op.zeros_like(first), axis=1)}


def _probabilities(op: Builder, n: NodeView, scores: Var, t: Var, classes: int, pairs: int) -> Var:
    """The tangent of the probabilities of the classes, [examples, classes], from that of the scores of pairs.

    In double precision up to the Jacobian: a probability of a pair may be as small as `MARGIN`.
    """
    scores = op.Cast(scores, to=int(DataType.DOUBLE))
    a, b = (np.asarray(v[:pairs], np.float64) for v in (n.prob_a, n.prob_b))
    exponent = scores * a + b
    r, q = op.Sigmoid(-exponent), op.Sigmoid(exponent)
    low = op.like(MARGIN, r)
    inside = op.And(op.GreaterOrEqual(r, low), op.GreaterOrEqual(q, low))
    slope = op.cast_like(op.where(inside, r * q * -a, 0), t)
    t = t * slope
    if classes == 2:
        return op.Concat(t, -t, axis=1)
    jacobian = op.cast_like(_coupling(op, op.Max(r, low), op.Max(q, low), classes), t)
    return op.Squeeze(op.MatMul(jacobian, op.Unsqueeze(t, [2])), [2])


def _coupling(op: Builder, r: Var, q: Var, classes: int) -> Var:
    """The Jacobian, [examples, classes, pairs], of the probabilities p of classes with respect to those of pairs.

    `r`: [examples, pairs], the probability r_ij of i where it is i or j, for i < j in order; `q` is r_ji = 1 - r_ij.

    At the minimum Q p is the same number in every row, where Q_ij = -r_ij r_ji and Q_ii is the sum of r_ki^2; so p
    is proportional to u = M^-1 1 for M = Q + 1 1^T. M is positive definite: p^T Q p vanishes for a p of one sign
    only. Differentiating, dp = -(M^-1 - p u^T) dQ p, and in row i (Q p)_i is the sum over j of r_ji (r_ji p_i -
    r_ij p_j), whose derivative by r_ij is -(2 r_ji p_i + (r_ji - r_ij) p_j).
    """
    first, second = (np.asarray(v) for v in zip(*combinations(range(classes), 2), strict=True))
    pairs = len(first)
    place = np.zeros((classes, classes), np.int64)  # of r_ij among r, q and a zero for the diagonal
    np.fill_diagonal(place, 2 * pairs)
    place[first, second] = np.arange(pairs)
    place[second, first] = pairs + np.arange(pairs)
    one, two = op.like(1, r), op.like(2, r)
    table = op.Concat(r, q, op.zeros_like(op.Slice(r, [0], [1], [1])), axis=1)
    rs, flipped = op.Gather(table, op.const(place), axis=1), op.Gather(table, op.const(place.T), axis=1)
    diagonal = op.ReduceSum(rs * rs, [1], keepdims=1) * op.const(np.eye(classes))
    inverse = inverted(op, one - rs * flipped + diagonal, classes)
    u = op.ReduceSum(inverse, [2], keepdims=1)
    p = u / op.ReduceSum(u, [1], keepdims=1)
    b = inverse - p * op.Transpose(u, perm=[0, 2, 1])
    i, j = op.const(first), op.const(second)
    row = op.Squeeze(p, [2])
    pi, pj = op.Gather(row, i, axis=1), op.Gather(row, j, axis=1)
    at_first = two * q * pi + (q - r) * pj
    at_second = two * r * pj + (r - q) * pi
    return op.Gather(b, i, axis=2) * op.Unsqueeze(at_first, [1]) - op.Gather(b, j, axis=2) * op.Unsqueeze(
        at_second, [1]
    )


def inverted(op: Builder, m: Var, size: int) -> Var:
    """The inverses of positive definite matrices, [batch, size, size], by Gauss and Jordan's elimination.

    A step takes the first column of what is left off, and scales and subtracts a row; no pivots are searched.
    """
    eye = np.eye(size)
    left = op.Concat(m, op.expand_to(op.const(eye, m.dtype), m), axis=2)
    for k in range(size):
        column, left = op.Split(left, [1, 2 * size - 1 - k], axis=2, outputs=2)
        row, pivot = op.Slice(left, [k], [k + 1], [1]), op.Slice(column, [k], [k + 1], [1])
        left = left - (column - op.const(eye[:, k : k + 1], m.dtype)) * (row / pivot)
    return left
