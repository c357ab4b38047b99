"""Type inference of operators with regions."""

from __future__ import annotations

from onnxad_ir.core import Graph, Node
from onnxad_ir.infer import Inference, infer_shapes
from onnxad_ir.types import Dim, OptionalType, SequenceType, Shape, TensorType, Type


def merge_types(a: Type | None, b: Type | None, ctx: Inference) -> Type | None:
    """What is true of a value that has type `a` or type `b`: extents that differ become a fresh symbol."""
    if a is None or b is None or a == b:
        return a if a == b else (a if b is None else b)
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        return TensorType(a.dtype, _merge_shapes(a.shape, b.shape, ctx))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(merge_types(a.elem, b.elem, ctx))
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return OptionalType(merge_types(a.elem, b.elem, ctx))
    return a


def _merge_shapes(a: Shape | None, b: Shape | None, ctx: Inference) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    merged: list[Dim] = [x if x == y else ctx.fresh() for x, y in zip(a, b, strict=True)]
    return tuple(merged)


@infer_shapes("If")
def _if(ctx: Inference, n: Node) -> tuple[Type | None, ...]:
    branches: list[Graph] = [n.attributes["then_branch"], n.attributes["else_branch"]]
    for g in branches:
        ctx.region(g)
    a, b = (g.outputs for g in branches)
    return tuple(merge_types(x.type, y.type, ctx) for x, y in zip(a, b, strict=True))
