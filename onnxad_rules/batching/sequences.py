"""Sequences and optionals: the twin of a sequence holds the twins of its elements."""

from __future__ import annotations

from typing import Any

from onnxad_ir.builder import Builder
from onnxad_rules.batching.core import Batch, Same, batched, shift
from onnxad_rules.node import NodeView


@batched("SequenceConstruct", any_rank=True)
def _construct(op: Builder, n: NodeView, b: Batch) -> Any:
    return op.SequenceConstruct(*map(b.full, n.inputs))


@batched("SequenceInsert", any_rank=True)
def _insert(op: Builder, n: NodeView, b: Batch) -> Any:
    if b.position is not None:
        return NotImplemented
    return op.SequenceInsert(b.full(n.input_sequence), b.full(n.tensor), n.position)


@batched("SequenceErase", "SequenceAt", any_rank=True)
def _at(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input_sequence, n.position) if b.only("input_sequence") else NotImplemented


@batched("SequenceLength", any_rank=True)
def _length(op: Builder, n: NodeView, b: Batch) -> Any:
    return Same(op.SequenceLength(b.input_sequence))


@batched("SplitToSequence", any_rank=True)
def _split(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input, n.split, axis=shift(n.axis)) if b.only("input") else NotImplemented


@batched("ConcatFromSequence", any_rank=True)
def _concat(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input_sequence, axis=shift(n.axis))


@batched("Optional", "OptionalGetElement", any_rank=True)
def _optional(op: Builder, n: NodeView, b: Batch) -> Any:
    return b.again(b.input)


@batched("OptionalHasElement", any_rank=True)
def _has_element(op: Builder, n: NodeView, b: Batch) -> Any:
    return Same(op.OptionalHasElement(b.input))
