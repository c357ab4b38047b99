"""The attention operators of ONNX Runtime in the forms that encoders use: without a cache of past keys."""

from __future__ import annotations

import math

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import describe
from onnxad_ir.shape_rules_contrib import DOMAIN
from onnxad_ir.types import DataType
from onnxad_rules.kinds import decompose
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import UnsupportedOperator


def _refuse(n: NodeView, why: str) -> UnsupportedOperator:
    return UnsupportedOperator(f"no derivative rule for {describe(n.node)} {why}", (n.node,))


def _heads(op: Builder, n: NodeView, x: Var) -> Var:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    return op.Transpose(op.Reshape(x, [0, 0, n.num_heads, -1]), perm=[0, 2, 1, 3])


def _padding(op: Builder, n: NodeView, mask: Var, k: Var) -> Var:
    """What is added to the scores for keys that are padding: `mask` is 0 there, or counts those that are not."""
    if mask.rank == 1:
        mask = op.Less(op.iota(op.extent(k, 2), DataType.INT32), op.Unsqueeze(mask, [1]))
    elif mask.rank == 2:
        mask = op.Cast(mask, to=int(DataType.BOOL))
    else:
        raise _refuse(n, "with a mask that is neither one of lengths nor one of keys")
    return op.where(op.Unsqueeze(mask, [1, 2]), op.like(0, k), op.like(_filter(n), k))


def _filter(n: NodeView) -> float:
    return -10000.0 if n.mask_filter_value is None else float(n.mask_filter_value)


def _attend(op: Builder, n: NodeView, q: Var, k: Var, v: Var, mask: Var | None) -> Var:
    """softmax(scale q k^T + biases) v, heads side by side again."""
    if n.scale:
        q = q * n.scale
    elif q.shape is not None and isinstance(q.shape[3], int):
        q = q * (1 / math.sqrt(q.shape[3]))
    else:
        q = q / op.Sqrt(op.cast_like(op.scalar(op.extent(q, 3)), q))
    scores = op.MatMul(q, op.swap(k))
    if n.attention_bias is not None:
        scores = scores + n.attention_bias
    if mask is not None:
        scores = scores + _padding(op, n, mask, k)
    if n.unidirectional:
        seen = op.LessOrEqual(op.iota(op.extent(k, 2)), op.Unsqueeze(op.iota(op.extent(q, 2)), [1]))
        scores = scores + op.where(seen, op.like(0, k), op.like(_filter(n), k))
    y = op.MatMul(op.Softmax(scores, axis=-1), v)
    return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])


@decompose("MultiHeadAttention", domain=DOMAIN)
def _multi_head(op: Builder, n: NodeView) -> dict[str, Var]:
    q, k, v = n.query, n.key, n.value
    if k is None or v is None or any(x.rank != 3 for x in (q, k, v)):
        raise _refuse(n, "with packed or cached operands")
    if n.past_key is not None or len(n.node.outputs) > 1:
        raise _refuse(n, "with a cache")
    if n.bias is not None:
        sizes = op.Concat(*(op.extent(x, 2) for x in (q, k, v)), axis=0)
        q, k, v = (x + b for x, b in zip((q, k, v), op.Split(n.bias, sizes, axis=0, outputs=3), strict=True))
    q, k, v = (_heads(op, n, x) for x in (q, k, v))
    return {"output": _attend(op, n, q, k, v, n.key_padding_mask)}


@decompose("Attention", domain=DOMAIN)
def _attention(op: Builder, n: NodeView) -> dict[str, Var]:
    """Multi-head attention of a sequence with itself, with the projections of queries, keys and values in it."""
    if n.past is not None or len(n.node.outputs) > 1 or n.do_rotary:
        raise _refuse(n, "with a cache or a rotary embedding")
    projected = op.MatMul(n.input, n.weights)
    if n.bias is not None:
        projected = projected + n.bias
    if n.qkv_hidden_sizes:
        parts = op.Split(projected, op.const(list(n.qkv_hidden_sizes)), axis=2, outputs=3)
    else:
        parts = op.Split(projected, num_outputs=3, axis=2, outputs=3)
    q, k, v = (_heads(op, n, x) for x in parts)
    return {"output": _attend(op, n, q, k, v, n.mask_index)}
