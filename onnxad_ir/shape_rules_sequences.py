"""Fast paths of inference for sequences.

A symbol in the type of a sequence's elements is another extent in every element.
"""

from __future__ import annotations

from onnxad_ir.core import Node
from onnxad_ir.infer import Inference, Types, infer_shapes, known_ints, onnx_dtype
from onnxad_ir.region_rules import element, merge_types
from onnxad_ir.types import DataType, SequenceType, TensorType


@infer_shapes("SequenceEmpty")
def _empty(ctx: Inference, n: Node) -> Types | None:
    return (SequenceType(TensorType(onnx_dtype(n.attributes.get("dtype", DataType.FLOAT)))),)


@infer_shapes("SequenceConstruct")
def _construct(ctx: Inference, n: Node) -> Types | None:
    types = [None if v is None else v.type for v in n.inputs]
    t = types[0]
    for other in types[1:]:
        t = merge_types(t, other, ctx)
    return (SequenceType(t),)


@infer_shapes("SequenceAt")
def _at(ctx: Inference, n: Node) -> Types | None:
    v = n.inputs[0]
    return (element(ctx, v.type),) if v is not None and isinstance(v.type, SequenceType) else None


@infer_shapes("SequenceInsert")
def _insert(ctx: Inference, n: Node) -> Types | None:
    sequence, v = n.inputs[:2]
    if sequence is None or v is None or not isinstance(sequence.type, SequenceType):
        return None
    return (SequenceType(merge_types(sequence.type.elem, v.type, ctx)),)


@infer_shapes("SequenceErase")
def _erase(ctx: Inference, n: Node) -> Types | None:
    return None if n.inputs[0] is None else (n.inputs[0].type,)


@infer_shapes("SequenceLength")
def _length(ctx: Inference, n: Node) -> Types | None:
    return (TensorType(DataType.INT64, ()),)


@infer_shapes("SplitToSequence")
def _split(ctx: Inference, n: Node) -> Types | None:
    v = n.inputs[0]
    if v is None or not isinstance(v.type, TensorType) or v.type.shape is None:
        return None
    shape = v.type.shape
    axis = n.attributes.get("axis", 0) % len(shape)
    sizes = n.inputs[1] if len(n.inputs) > 1 else None
    if sizes is None:
        one = () if not n.attributes.get("keepdims", 1) else (1,)
        return (SequenceType(TensorType(v.type.dtype, (*shape[:axis], *one, *shape[axis + 1 :]))),)
    ints = known_ints(sizes)
    equal = ints is not None and len(set(ints)) == 1 and sizes.rank == 1
    extent = ints[0] if ints is not None and equal else ctx.fresh()
    return (SequenceType(TensorType(v.type.dtype, (*shape[:axis], extent, *shape[axis + 1 :]))),)
