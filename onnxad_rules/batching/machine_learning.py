"""Classical machine learning: the entries are further examples."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched
from onnxad_rules.node import NodeView

DOMAIN = "ai.onnx.ml"


@batched("Binarizer", "LabelEncoder", domain=DOMAIN, any_rank=True)
def _one(op: Builder, n: NodeView, b: Batch) -> Any:
    (x,) = n.node.inputs
    return b.again(b.twin(x))


@batched(
    "Imputer", "LinearClassifier", "LinearRegressor", "Normalizer", "SVMClassifier", "SVMRegressor", "Scaler",
    "TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor",
    domain=DOMAIN,
)  # fmt: skip
def _examples(op: Builder, n: NodeView, b: Batch) -> Any:
    """[examples, features]; a vector is one example, and a result has an axis of examples all the same."""
    if n.X.rank not in (1, 2):
        return NotImplemented
    alone = n.X.rank == 1
    results = b.again(b.X if alone else b.fold(n.X))
    results = results if isinstance(results, tuple) else (results,)
    return [_of_entries(op, n, b, i, y, alone) for i, y in enumerate(results)]


def _of_entries(op: Builder, n: NodeView, b: Batch, index: int, y: Var, alone: bool) -> Var:
    if not alone:
        return b.unfold(y, n.X)
    return y if y.rank == (n.result(index).rank or 0) + 1 else op.Unsqueeze(y, [1])


@batched("ArrayFeatureExtractor", domain=DOMAIN)
def _extract(op: Builder, n: NodeView, b: Batch) -> Any:
    """Elements along the last axis; of a vector the result has an axis in front, of extent 1."""
    if b.Y is not None:
        return NotImplemented
    y = op.Gather(b.X, op.Reshape(n.Y, [-1]), axis=-1)
    return op.Unsqueeze(y, [1]) if n.X.rank == 1 else y
