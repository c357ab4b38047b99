"""Classical machine learning, the domain ai.onnx.ml: linear models, preprocessing, trees.

Results are single precision whatever the operands are. The specification says little about the scores of a model that
has a single one; ONNX Runtime, the only runtime with all of these operators, is followed: it transforms a single score
by PROBIT only, and LOGISTIC where it stands for two classes.

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


def refused(n: NodeView, why: str) -> NotDifferentiable:
    """The error that says why the derivative of a node is not there."""
    return NotDifferentiable(f"{why} at {describe(n.node)}; leave it out of the path to differentiate", (n.node,))


# --- linear models


def vector(op: Builder, numbers: Sequence[float]) -> Var:
    """Numbers of an attribute as a constant."""
    return op.const(np.asarray(numbers, np.float32))


def examples(op: Builder, x: Var) -> Var:
    """Operands in single precision, [examples, features]; a vector is one example."""
    x = _single(op, x)
    return op.Unsqueeze(x, [0]) if x.rank == 1 else x


def scored(op: Builder, n: NodeView, x: Var, rows: int) -> Var:
    """x times the coefficients, [examples, rows]."""
    weights = np.asarray(n.coefficients, np.float32).reshape(rows, -1)
    return op.MatMul(examples(op, x), op.const(np.ascontiguousarray(weights.T)))


def transformed(op: Builder, n: NodeView, z: Var, t: Var) -> Var:
    """The tangent of z = post_transform(scores) from that of several scores."""
    kind = n.post_transform
    if kind == "NONE":
        return t
    if kind == "LOGISTIC":
        return t * (z * (op.like(1, z) - z))
    if kind == "PROBIT":  # the inverse of the normal distribution's cumulative function
        return t * (op.Exp(z * z * op.like(0.5, z)) * op.like(math.sqrt(2 * math.pi), z))
    if kind not in ("SOFTMAX", "SOFTMAX_ZERO"):
        raise refused(n, f"the specification has no transformation {kind!r}")
    if kind == "SOFTMAX_ZERO":  # a score of zero stays zero and out of the sum
        t = op.where(op.Equal(z, op.like(0, z)), 0, t)
    weighted = z * t
    return weighted - z * op.ReduceSum(weighted, [-1], keepdims=1)


def transformed_alone(op: Builder, n: NodeView, z: Var, t: Var) -> Var:
    """The tangent of the results from that of a single score, which is not transformed but by PROBIT."""
    return transformed(op, n, z, t) if n.post_transform == "PROBIT" else t


def both_directions(op: Builder, n: NodeView, z: Var, t: Var) -> Var:
    """The tangent of (-s, s) or (1 - s, s), the results of a single score s that stands for two classes."""
    t = op.Concat(-t, t, axis=1)
    return transformed(op, n, z, t) if n.post_transform == "LOGISTIC" else t


@pushforward("LinearRegressor", domain=DOMAIN)
def _linear_regressor(op: Builder, n: NodeView, t: Any) -> Var:
    finish = transformed_alone if n.targets == 1 else transformed
    return finish(op, n, n.Y, scored(op, n, t.X, n.targets))


@pushforward("LinearClassifier", domain=DOMAIN)
def _linear_classifier(op: Builder, n: NodeView, t: Any) -> dict[str, Var]:
    labels = n.classlabels_ints or n.classlabels_strings or ()
    rows = len(n.intercepts or labels) or 1
    finish = transformed
    if rows == 1:
        finish = both_directions if len(labels) == 2 else transformed_alone
        if len(labels) == 2 and n.post_transform == "PROBIT":
            raise refused(n, "ONNX Runtime mixes up the rows of results of PROBIT with one score for two classes")
    return {"Z": finish(op, n, n.Z, scored(op, n, t.X, rows))}


# --- preprocessing


@pushforward("Scaler", domain=DOMAIN)
def _scaler(op: Builder, n: NodeView, t: Any) -> Var:
    """(x - offset) * scale."""
    return _single(op, t.X) * vector(op, n.scale or (1.0,))


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
        x = examples(op, x)
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
