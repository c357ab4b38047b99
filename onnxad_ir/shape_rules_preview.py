"""Result types of operators of the preview domains whose regions keep onnx's inference from answering."""

from __future__ import annotations

from onnxad_ir.core import Graph, Node
from onnxad_ir.infer import Inference, Types, infer_shapes, onnx_dtype
from onnxad_ir.types import DataType, TensorType


@infer_shapes("ai.onnx.preview.FlexAttention")
def _flex_attention(ctx: Inference, n: Node) -> Types:
    q, k, v = (None if x is None else x.type for x in n.inputs[:3])
    if not isinstance(q, TensorType):
        return (None,)
    asked = n.attributes.get("softmax_precision")
    wide = DataType.DOUBLE if q.dtype == DataType.DOUBLE else DataType.FLOAT
    scores = TensorType(onnx_dtype(asked) if asked else wide)
    if q.shape is not None and isinstance(k, TensorType) and k.shape is not None:
        scores = TensorType(scores.dtype, (*q.shape[:3], k.shape[2]))
    for name in ("score_mod", "prob_mod"):
        region = n.attributes.get(name)
        if isinstance(region, Graph):
            region.inputs[0].type = scores
            ctx.graph(
                region
            )  # only types: what is folded moves outside, where onnx's reference evaluator does not look
    if q.shape is None or not isinstance(v, TensorType) or v.shape is None:
        return (TensorType(q.dtype),)
    return (TensorType(q.dtype, (*q.shape[:3], v.shape[3])),)
