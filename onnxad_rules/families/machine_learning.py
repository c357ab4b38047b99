"""Classical machine learning, the domain ai.onnx.ml: linear models, support vector machines, preprocessing.

Results are single precision whatever the operands are. A transformation of a single score is refused: the runtimes do
not apply it (ONNX Runtime) or do not agree about it.

Conventions: the largest of a row that Normalizer divides by is the first of several; a trained tree is piecewise
constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import describe
from onnxad_ir.types import DataType
from onnxad_rules.kinds import decompose, pushforward, zero
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import NotDifferentiable

DOMAIN = "ai.onnx.ml"


def _single(op: Builder, x: Var) -> Var:
    return op.Cast(x, to=int(DataType.FLOAT))


def _vector(op: Builder, numbers: Sequence[float]) -> Var:
    return op.const(np.asarray(numbers, np.float32))


def _refuse(n: NodeView, why: str) -> NotDifferentiable:
    return NotDifferentiable(f"{why} at {describe(n.node)}; leave it out of the path to differentiate", (n.node,))


# --- linear models


def _scores(op: Builder, n: NodeView, x: Var, rows: int) -> Var:
    """x times the coefficients, [examples, rows]; a vector is one example."""
    weights = np.asarray(n.coefficients, np.float32).reshape(rows, -1)
    x = _single(op, x)
    if x.rank == 1:
        x = op.Unsqueeze(x, [0])
    return op.MatMul(x, op.const(np.ascontiguousarray(weights.T)))


def _transformed(op: Builder, n: NodeView, z: Var, t: Var) -> Var:
    """The tangent of z = post_transform(scores) from that of the scores."""
    kind = n.post_transform
    if kind == "NONE":
        return t
    if kind == "LOGISTIC":
        return t * (z * (op.like(1, z) - z))
    if kind == "PROBIT":  # the inverse of the normal distribution's cumulative function
        return t * (op.Exp(z * z * op.like(0.5, z)) * op.like(math.sqrt(2 * math.pi), z))
    if kind not in ("SOFTMAX", "SOFTMAX_ZERO"):
        raise _refuse(n, f"the specification has no transformation {kind!r}")
    if kind == "SOFTMAX_ZERO":  # a score of zero stays zero and out of the sum
        t = op.where(op.Equal(z, op.like(0, z)), 0, t)
    weighted = z * t
    return weighted - z * op.ReduceSum(weighted, [-1], keepdims=1)


def _one_score(n: NodeView) -> NotDifferentiable:
    return _refuse(n, f"what post_transform {n.post_transform!r} does to a single score differs between runtimes")


@pushforward("LinearRegressor", domain=DOMAIN)
def _linear_regressor(op: Builder, n: NodeView, t: Any) -> Var:
    if n.targets == 1 and n.post_transform not in ("NONE", "PROBIT"):
        raise _one_score(n)
    return _transformed(op, n, n.Y, _scores(op, n, t.X, n.targets))


@pushforward("LinearClassifier", domain=DOMAIN)
def _linear_classifier(op: Builder, n: NodeView, t: Any) -> dict[str, Var]:
    labels = n.classlabels_ints or n.classlabels_strings or ()
    rows = len(n.intercepts or labels) or 1
    scores = _scores(op, n, t.X, rows)
    if rows == 1 and len(labels) == 2:  # one score for two classes: both directions of it
        if n.post_transform not in ("NONE", "LOGISTIC"):
            raise _one_score(n)
        scores = op.Concat(-scores, scores, axis=1)
    return {"Z": _transformed(op, n, n.Z, scores)}


# --- support vector machines


def _kernel(op: Builder, n: NodeView, x: Var, vectors: np.ndarray[Any, Any]) -> Var:
    """The kernel of every example with every support vector, [examples, vectors]."""
    gamma, shift, degree = n.kernel_params or (0.0, 0.0, 0.0)
    kind = n.kernel_type
    dot = op.MatMul(x, op.const(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return dot
    if kind == "RBF":  # exp(-gamma |x - v|^2)
        norms = op.const(np.square(vectors).sum(1))
        square = op.ReduceSum(x * x, [1], keepdims=1)
        return op.Exp((square - dot * op.like(2, x) + norms) * op.like(-gamma, x))
    inner = dot * op.like(gamma, x) + op.like(shift, x)
    if kind == "POLY":
        return op.Pow(inner, op.like(degree, x))
    if kind == "SIGMOID":
        return op.Tanh(inner)
    raise _refuse(n, f"the specification has no kernel {kind!r}")


def _examples(op: Builder, x: Var) -> Var:
    x = _single(op, x)
    return op.Unsqueeze(x, [0]) if x.rank == 1 else x


def _bias(op: Builder, n: NodeView, index: int = 0) -> Var:
    rho = n.rho or ()
    return _vector(op, [rho[index] if index < len(rho) else 0.0])


@decompose("SVMRegressor", domain=DOMAIN)
def _svm_regressor(op: Builder, n: NodeView) -> Var:
    x, count = _examples(op, n.X), n.n_supports
    if n.one_class:  # +1 or -1
        return op.expand_to(op.like(1, n.Y), n.Y)
    if n.post_transform != "NONE":
        raise _one_score(n)
    coefficients = np.asarray(n.coefficients, np.float32).reshape(-1, 1)
    if count > 0:
        x = _kernel(op, n, x, np.asarray(n.support_vectors, np.float32).reshape(count, -1))
    return op.MatMul(x, op.const(coefficients)) + _bias(op, n)


def _pair_weights(sizes: Sequence[int], coefficients: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """[support vectors, pairs of classes]: the weights of the decision between two classes.

    The coefficients are in libsvm's order: those of a class' vectors against another class stand in the row of that
    class, less one where it comes later.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    columns = []
    for i in range(len(sizes)):
        for j in range(i + 1, len(sizes)):
            column = np.zeros(starts[-1], np.float32)
            first, second = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
            column[first] = coefficients[j - 1, first]
            column[second] = coefficients[i, second]
            columns.append(column)
    return np.stack(columns, axis=1)


@decompose("SVMClassifier", domain=DOMAIN)
def _svm_classifier(op: Builder, n: NodeView) -> dict[str, Var]:
    x, sizes = _examples(op, n.X), n.vectors_per_class or ()
    labels = n.classlabels_ints or n.classlabels_strings or ()
    if sum(sizes) == 0:  # a linear model per class
        weights = np.asarray(n.coefficients, np.float32).reshape(len(labels), -1)
        scores = op.MatMul(x, op.const(np.ascontiguousarray(weights.T))) + _bias(op, n)
        return {"Z": _transform(op, n, scores)}
    vectors = np.asarray(n.support_vectors, np.float32).reshape(sum(sizes), -1)
    weights = _pair_weights(sizes, np.asarray(n.coefficients, np.float32).reshape(-1, sum(sizes)))
    pairs = weights.shape[1]
    scores = op.MatMul(_kernel(op, n, x, vectors), op.const(weights)) + _vector(op, (n.rho or (0.0,) * pairs)[:pairs])
    if not n.prob_a:
        if len(sizes) == 2:
            if n.post_transform not in ("NONE", "LOGISTIC"):
                raise _one_score(n)
            scores = op.Concat(-scores, scores, axis=1)
        return {"Z": _transform(op, n, scores)}
    if len(sizes) > 2:
        raise _refuse(n, "probabilities of more than two classes come from an iteration that stops early")
    # Platt's 1 / (1 + exp(a score + b))
    fitted = -(scores * _vector(op, n.prob_a) + _vector(op, n.prob_b))
    return {"Z": _transform(op, n, op.Sigmoid(op.Concat(fitted, -fitted, axis=1)))}


def _transform(op: Builder, n: NodeView, scores: Var) -> Var:
    """The scores after post_transform."""
    kind = n.post_transform
    if kind == "NONE":
        return scores
    if kind == "LOGISTIC":
        return op.Sigmoid(scores)
    if kind == "SOFTMAX":
        return op.Softmax(scores, axis=-1)
    raise _refuse(n, f"post_transform {kind!r} is not differentiated here")


# --- preprocessing


@pushforward("Scaler", domain=DOMAIN)
def _scaler(op: Builder, n: NodeView, t: Any) -> Var:
    """(x - offset) * scale."""
    return _single(op, t.X) * _vector(op, n.scale or (1.0,))


@pushforward("Normalizer", domain=DOMAIN)
def _normalizer(op: Builder, n: NodeView, t: Any) -> Var:
    """y = x / d along the last axis, where d is the largest element, or the 1-norm or 2-norm; y = x where d is zero."""
    x, y, dx = _single(op, n.X), n.Y, _single(op, t.X)
    if n.norm == "MAX":
        first = op.ArgMax(x, axis=-1, keepdims=1)
        d, dd = op.GatherElements(x, first, axis=-1), op.GatherElements(dx, first, axis=-1)
    elif n.norm == "L1":
        d = op.ReduceSum(op.Abs(x), [-1], keepdims=1)
        dd = op.ReduceSum(op.Sign(x) * dx, [-1], keepdims=1)
    else:
        d = op.Sqrt(op.ReduceSum(op.Mul(x, x), [-1], keepdims=1))
        dd = op.ReduceSum(y * dx, [-1], keepdims=1)
    nothing = op.Equal(d, op.like(0, d))
    return op.Where(nothing, dx, (dx - y * dd) / op.where(nothing, 1, d))


@decompose("FeatureVectorizer", domain=DOMAIN)
def _feature_vectorizer(op: Builder, n: NodeView) -> Var:
    """The operands side by side, each cut or filled up with zeros to its number of features."""
    sizes = n.inputdimensions or (None,) * len(n.X)
    columns = []
    for x, size in zip(n.X, sizes, strict=True):
        x = _examples(op, x)
        d = None if x.shape is None else x.shape[1]
        if size is not None and d != size:
            room = op.Max(op.const([size]) - op.extent(x, 1), op.const([0]))
            x = op.Pad(op.Slice(x, [0], [size], [1]), op.Concat([0], room, axis=0), None, [1])
        columns.append(x)
    return op.Concat(*columns, axis=1)


@pushforward("Imputer", domain=DOMAIN)
def _imputer(op: Builder, n: NodeView, t: Any) -> Var:
    """The tangent where nothing was replaced."""
    missing = n.replaced_value_float
    replaced = op.IsNaN(n.X) if math.isnan(missing) else op.Equal(n.X, op.like(missing, n.X))
    return op.where(replaced, 0, t.X)


zero("Binarizer", domain=DOMAIN, reason="piecewise constant")
zero("LabelEncoder", "OneHotEncoder", domain=DOMAIN, reason="looks keys up in a table: piecewise constant")
zero(
    "TreeEnsemble",
    "TreeEnsembleClassifier",
    "TreeEnsembleRegressor",
    domain=DOMAIN,
    reason="a decision tree is piecewise constant",
)
zero("CategoryMapper", domain=DOMAIN, reason="works on text and integers")
zero("CastMap", "DictVectorizer", "ZipMap", domain=DOMAIN, reason="works on maps, which carry no derivative")
