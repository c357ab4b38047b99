"""Recurrent layers: with the same weights for all, entries become part of the batch."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched
from onnxad_rules.extents import extent, reshape
from onnxad_rules.node import NodeView

#: Where the batch is in operands and results, by layout.
_BATCH = {
    "X": (1, 0),
    "sequence_lens": (0, 0),
    "initial_h": (1, 0),
    "initial_c": (1, 0),
    "Y": (2, 0),
    "Y_h": (1, 0),
    "Y_c": (1, 0),
}


@batched("RNN", "GRU", "LSTM")
def _recurrent(op: Builder, n: NodeView, b: Batch) -> Any:
    names = [k for k in n.facts.inputs if k in _BATCH]
    if not b.only(*names):
        return NotImplemented
    at = {k: i[n.layout] for k, i in _BATCH.items()}
    operands = [
        _joined(op, b, op.var(v), at[k]) if v is not None and k in at else None if v is None else op.var(v)
        for k, v in zip(n.facts.inputs, n.node.inputs, strict=False)
    ]
    results = b.again(*operands)
    results = results if isinstance(results, tuple) else (results,)
    return [
        _parted(op, b, y, at[k], extent(op, b.full(n.X), 1 + at["X"]))
        for k, y in zip(n.facts.outputs, results, strict=False)
    ]


def _joined(op: Builder, b: Batch, x: Var, axis: int) -> Var:
    """A twin with the entries in front of the batch, along one axis."""
    twin = b.full(x)
    assert twin.rank is not None
    sides = [extent(op, twin, a) for a in range(1, twin.rank)]
    order = [*range(1, axis + 1), 0, *range(axis + 1, twin.rank)]
    turned = op.Transpose(twin, perm=order) if axis else twin
    return reshape(op, turned, [*sides[:axis], b.count * sides[axis], *sides[axis + 1 :]])


def _parted(op: Builder, b: Batch, y: Var, axis: int, batch: int | Var) -> Var:
    """The inverse."""
    assert y.rank is not None
    sides = [extent(op, y, a) for a in range(y.rank)]
    split = reshape(op, y, [*sides[:axis], b.count, batch, *sides[axis + 1 :]])
    return op.Transpose(split, perm=[axis, *range(axis), *range(axis + 1, y.rank + 1)]) if axis else split
