"""Operators on shapes: attributes that became operands."""

from __future__ import annotations

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.types import DataType
from onnxad_passes.upgrade.registry import adapter, number, operand, required, set_operand, take, take_ints


def _ints(op: Builder, numbers: list[int]) -> Var:
    return op.const(np.asarray(numbers, np.int64))


@adapter("Squeeze", "Unsqueeze", "ReduceSum", before=13)
@adapter("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", before=18)
@adapter("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", before=18)
def axes(op: Builder, n: Node) -> None:
    """No axes means all of them, written as an empty list or not at all."""
    found = take_ints(n, "axes")
    if found:
        set_operand(n, 1, _ints(op, found))
    elif n.op_type == "Unsqueeze":
        raise ModelError(f"{describe(n)}: attribute axes is required")


@adapter("Split", before=2)
def split_typed(op: Builder, n: Node) -> None:
    """The lengths could be an operand of the element type of the input."""
    lengths = operand(op, n, 1)
    if lengths is not None:
        n.attributes.pop("split", None)
        set_operand(n, 1, op.Cast(lengths, to=int(DataType.INT64)))


@adapter("Split", before=13)
def split(op: Builder, n: Node) -> None:
    """The lengths were an attribute."""
    lengths = take_ints(n, "split")
    if lengths:
        set_operand(n, 1, _ints(op, lengths))


@adapter("Split", before=18)
def split_evenly(op: Builder, n: Node) -> None:
    """Without lengths the number of results has to be said."""
    if operand(op, n, 1) is None:
        n.set_inputs(n.inputs[:1])
        n.attributes["num_outputs"] = len(n.outputs)


@adapter("Slice", before=10)
def slice_(op: Builder, n: Node) -> None:
    """Bounds and axes were attributes."""
    for i, name in enumerate(("starts", "ends", "axes")):
        found = take_ints(n, name)
        if found or i < 2:
            set_operand(n, 1 + i, _ints(op, found or []))


@adapter("Pad", before=2)
def pad_named(op: Builder, n: Node) -> None:
    """The attribute had another name."""
    if "paddings" in n.attributes:
        n.attributes["pads"] = n.attributes.pop("paddings")


@adapter("Pad", before=11)
def pad(op: Builder, n: Node) -> None:
    """Pads and the number to pad with were attributes."""
    set_operand(n, 1, _ints(op, take_ints(n, "pads") or []))
    value = take(n, "value", 0.0)
    if value != 0:
        set_operand(n, 2, number(op, value, required(op, n, 0)))


@adapter("TopK", before=10)
def top_k(op: Builder, n: Node) -> None:
    """The number of results was an attribute."""
    set_operand(n, 1, op.const([int(take(n, "k"))]))


@adapter("Reshape", before=5)
def reshape(op: Builder, n: Node) -> None:
    """The shape was an attribute."""
    set_operand(n, 1, _ints(op, take_ints(n, "shape") or []))


@adapter("Concat", before=4)
def concat(op: Builder, n: Node) -> None:
    """The axis had a default."""
    n.attributes.setdefault("axis", 1)


@adapter("Tile", before=6)
def tile(op: Builder, n: Node) -> Var:
    """One axis was repeated; its number and the count were of the element type of the input."""
    x = required(op, n, 0)
    count, axis = (op.Reshape(op.Cast(required(op, n, i), to=int(DataType.INT64)), [1]) for i in (1, 2))
    here = op.Equal(op.iota(op.rank(x)), axis)
    return op.Tile(x, op.Where(here, count, op.const([1])))


@adapter("Scatter", since=9, before=18)
def scatter(op: Builder, n: Node) -> None:
    """Only the name changed."""
    n.op_type = "ScatterElements"
