"""Elementwise operators: broadcasting by attributes, bounds as attributes, types as text."""

from __future__ import annotations

import math

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import AttrRef, Node
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.types import DataType
from onnxad_passes.upgrade.registry import adapter, number, required, set_operand, take

_FLOAT_MAX = float(np.finfo(np.float32).max)


@adapter("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less", before=7)
def broadcasting(op: Builder, n: Node) -> None:
    """broadcast=1 stretches B, whose axes are those of A from `axis` on (by default the last ones)."""
    axis = take(n, "axis")
    if take(n, "broadcast", 0) and axis is not None:
        a, b = required(op, n, 0), required(op, n, 1)
        set_operand(n, 1, _align(op, a, b, int(axis)))


def _align(op: Builder, a: Var, b: Var, axis: int) -> Var:
    """`b` with as many axes of extent 1 behind it as `a` has behind those of `b`.

    The text says nothing about negative axes; they count from the back, and -1 is a suffix, as in Caffe2.
    """
    if b.rank is not None and (axis < 0 or a.rank is not None):
        behind = -axis - b.rank if axis < 0 else (a.rank or 0) - axis - b.rank
        return op.Unsqueeze(b, list(range(b.rank, b.rank + behind))) if behind > 0 else b
    last = op.const([-axis]) if axis < 0 else op.rank(a) - op.const([axis])
    ones = op.Expand(op.const([1]), op.Max(last - op.rank(b), op.const([0])))
    return op.Reshape(b, op.Concat(op.Shape(b), ones, axis=0), allowzero=1)


@adapter("Gemm", before=7)
def gemm(op: Builder, n: Node) -> None:
    """C is broadcast without asking now."""
    n.attributes.pop("broadcast", None)


@adapter("PRelu", before=7)
def prelu(op: Builder, n: Node) -> None:
    """The slope has one number, or one a channel: axis 1 of X, not its last."""
    x, slope = required(op, n, 0), required(op, n, 1)
    if slope.shape in ((), (1,)) or (x.rank is not None and x.rank <= 2):
        return
    if x.rank is not None and slope.rank == 1:
        set_operand(n, 1, op.Unsqueeze(slope, list(range(1, x.rank - 1))))
    else:
        behind = op.Max(op.rank(x) - op.const([2]), op.const([0]))
        set_operand(n, 1, op.Reshape(slope, op.Concat([-1], op.Expand(op.const([1]), behind), axis=0)))


@adapter("Clip", before=6)
def clip_open(op: Builder, n: Node) -> None:
    """An absent bound was none; now it is the largest number of the type."""
    _clip(op, n, math.inf)


@adapter("Clip", since=6, before=11)
def clip(op: Builder, n: Node) -> None:
    """An absent bound was the largest float32, which for float32 it still is."""
    wider = n.inputs[0] is not None and n.inputs[0].dtype in (DataType.DOUBLE, DataType.FLOAT16)
    _clip(op, n, _FLOAT_MAX if wider else None)


def _clip(op: Builder, n: Node, limit: float | None) -> None:
    x = required(op, n, 0)
    low, high = take(n, "min", None if limit is None else -limit), take(n, "max", limit)
    if low is not None:
        set_operand(n, 1, number(op, low, x))
    if high is not None:
        set_operand(n, 2, number(op, high, x))


@adapter("Selu", before=6)
def selu(op: Builder, n: Node) -> None:
    """The defaults had fewer digits."""
    n.attributes.setdefault("alpha", 1.673200011253357)
    n.attributes.setdefault("gamma", 1.0506999492645264)


@adapter("Cast", before=6)
def cast(op: Builder, n: Node) -> None:
    """The type was the name of its number."""
    to = n.attributes.get("to")
    if isinstance(to, AttrRef):
        take(n, "to")
    if isinstance(to, str):
        try:
            n.attributes["to"] = int(DataType[to.upper()])
        except KeyError:
            raise ModelError(f"{describe(n)}: there is no element type {to}") from None


@adapter("LpPool", "GlobalLpPool", before=2)
def lp_pool(op: Builder, n: Node) -> None:
    """The exponent was a float."""
    p = float(take(n, "p", 2.0))
    if p != int(p):
        raise ModelError(f"{describe(n)}: since opset 2 the exponent is an integer; it is {p} here")
    n.attributes["p"] = int(p)


@adapter("QuantizeLinear", "DequantizeLinear", since=10, before=13)
def quantize(op: Builder, n: Node) -> None:
    """One scale for the whole tensor: a vector of one would be one scale for each element of axis 1 now."""
    for i in range(1, len(n.inputs)):
        if n.inputs[i] is not None:
            x = required(op, n, i)
            if x.rank != 0:
                set_operand(n, i, op.scalar(x))


@adapter("RoiAlign", since=10, before=16)
def roi_align(op: Builder, n: Node) -> None:
    """Boxes were not shifted by half a pixel."""
    n.attributes["coordinate_transformation_mode"] = "output_half_pixel"
