"""Spellings that all runtimes agree on, for operators some runtime gets wrong in another spelling.

Only what the builder emits is respelled; an author's own nodes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from onnxad_ir.core import Attr, Node, Value
from onnxad_ir.infer import known_ints
from onnxad_ir.types import DataType

if TYPE_CHECKING:
    from onnxad_ir.builder import Builder

Inputs: TypeAlias = "Sequence[Value | None]"
_HALF = (DataType.FLOAT16, DataType.BFLOAT16)


def _pad(op: Builder, inputs: Inputs, attributes: dict[str, Attr]) -> Inputs | None:
    """Pads of every axis instead of an `axes` operand.

    ONNX Runtime 1.32 moves a Transpose through a Pad by permuting `pads` as if they were those of every axis.
    """
    if len(inputs) < 4 or inputs[3] is None or inputs[0] is None or inputs[1] is None:
        return None
    axes, rank = known_ints(inputs[3]), inputs[0].rank
    if axes is None or rank is None:
        return None
    at = [a % rank for a in axes]
    k = len(axes)
    source = [at.index(i) if i in at else 2 * k for i in range(rank)]
    index = source + [s + k if s < k else s for s in source]
    pads = known_ints(inputs[1])
    full = (
        op.const([(*pads, 0)[i] for i in index])
        if pads is not None
        else op.Gather(op.Concat(inputs[1], op.const([0]), axis=0), op.const(index))
    )
    value = inputs[2]
    return (inputs[0], full.value) if value is None else (inputs[0], full.value, value)


def _slice(op: Builder, inputs: Inputs, attributes: dict[str, Attr]) -> Inputs | None:
    """Bounds, axes and steps of one element type, as the operator wants: the author's may be int32, ours are int64."""
    bounds = inputs[1:]
    if len({v.dtype for v in bounds if v is not None}) < 2:
        return None
    wide = {"to": int(DataType.INT64)}
    return inputs[0], *(
        v if v is None or v.dtype == DataType.INT64 else op.emit("Cast", [v], dict(wide))[0] for v in bounds
    )


def in_single(op: Builder, op_type: str, inputs: Inputs, attributes: dict[str, Attr]) -> Value | None:
    """A reduction of ScatterElements in half precision by way of single precision; None for anything else.

    ONNX Runtime 1.32 has no kernel for it, and says so in the run only. (Sums are more exact so, besides.)
    """
    kind = inputs[0].dtype if inputs and inputs[0] is not None else None
    if op_type != "ScatterElements" or attributes.get("reduction", "none") == "none" or kind not in _HALF:
        return None
    data, updates = (op.emit("Cast", [v], {"to": int(DataType.FLOAT)})[0] for v in (inputs[0], inputs[2]))
    wide = op.emit(op_type, [data, inputs[1], updates], attributes)[0]
    return op.emit("Cast", [wide], {"to": int(kind)})[0]


def turn(op: Builder, v: Value, axis: int) -> Value:
    """`v` from last to first along an axis."""
    return op.emit("Slice", [v, *(op.const([k]).value for k in (-1, -(2**63), axis, -1))], {})[0]


def turn_scan(op: Builder, node: Node) -> dict[int, int]:
    """Make a Scan in double precision run from first to last, on turned operands.

    Returns the axis of each result (by position) that has to be turned back. In double precision, models with recurrent
    operators run in onnx's reference evaluator only, whose Scan has no directions.
    """
    moving, stacking = node.attributes.get("scan_input_directions"), node.attributes.get("scan_output_directions")
    if not any(moving or ()) and not any(stacking or ()):
        return {}
    if not any(v is not None and v.dtype == DataType.DOUBLE for v in node.inputs):
        return {}
    first = len(node.inputs) - node.attributes["num_scan_inputs"]
    in_axes, out_axes = node.attributes.get("scan_input_axes"), node.attributes.get("scan_output_axes")
    for i, backwards in enumerate(moving or ()):
        v = node.inputs[first + i]
        if backwards and v is not None:
            node.set_input(first + i, turn(op, v, in_axes[i] if in_axes else 0))
    for name in ("scan_input_directions", "scan_output_directions"):
        node.attributes.pop(name, None)
    return {first + i: out_axes[i] if out_axes else 0 for i, backwards in enumerate(stacking or ()) if backwards}


#: Other operands for an operator, or None where the spelling is fine.
SPELLINGS: dict[str, Callable[[Builder, Inputs, dict[str, Attr]], Inputs | None]] = {"Pad": _pad, "Slice": _slice}
