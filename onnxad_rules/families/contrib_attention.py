"""The attention operators of ONNX Runtime that encoders and decoders with separate heads use, and rotary embedding."""

from __future__ import annotations

import math

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import describe
from onnxad_ir.shape_rules_contrib import DOMAIN
from onnxad_ir.types import DataType
from onnxad_rules.kinds import decompose
from onnxad_rules.node import NodeView
from onnxad_rules.ranks import Choice
from onnxad_rules.ruleset import UnsupportedOperator


def refuse(n: NodeView, why: str) -> UnsupportedOperator:
    """The error about a form of an operator that is not differentiated."""
    return UnsupportedOperator(f"no derivative rule for {describe(n.node)} {why}", (n.node,))


def split_heads(op: Builder, x: Var, count: int) -> Var:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    return op.Transpose(op.Reshape(x, [0, 0, count, -1]), perm=[0, 2, 1, 3])


def joined_heads(op: Builder, x: Var) -> Var:
    """[batch, heads, sequence, size] as [batch, sequence, heads * size]."""
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1])


def scaled_query(op: Builder, n: NodeView, q: Var) -> Var:
    """The queries times `scale`, by default one over the root of their size."""
    if n.scale:
        return q * n.scale
    if q.shape is not None and isinstance(q.shape[3], int):
        return q * (1 / math.sqrt(q.shape[3]))
    return q / op.Sqrt(op.cast_like(op.scalar(op.extent(q, 3)), q))


# --- attention


def _padding(op: Builder, n: NodeView, mask: Var, k: Var) -> Var:
    """What is added to the scores for keys that are padding: `mask` is 0 there, or counts those that are not."""
    if mask.rank == 1:
        batch, given = k.shape and k.shape[0], mask.shape and mask.shape[0]
        if isinstance(batch, int) and isinstance(given, int) and batch != given:
            raise refuse(n, "with a mask of starts and ends")
        mask = op.Less(op.iota(op.extent(k, 2), DataType.INT32), op.Unsqueeze(mask, [1]))
    elif mask.rank in (2, 3):
        mask = op.Cast(mask, to=int(DataType.BOOL))
    else:
        raise refuse(n, "with a mask that is neither one of lengths nor one of keys")
    return op.where(op.Unsqueeze(mask, [1] if mask.rank == 3 else [1, 2]), op.like(0, k), op.like(_filter(n), k))


def _filter(n: NodeView) -> float:
    return -10000.0 if n.mask_filter_value is None else float(n.mask_filter_value)


def _attend(op: Builder, n: NodeView, q: Var, k: Var, v: Var, mask: Var | None) -> Var:
    """softmax(scale q k^T + biases) v, heads side by side again. The queries are at the last places of the keys."""
    scores = op.MatMul(scaled_query(op, n, q), op.swap(k))
    if n.attention_bias is not None:
        scores = scores + n.attention_bias
    if mask is not None:
        scores = scores + _padding(op, n, mask, k)
    if n.unidirectional:
        keys, queries = op.extent(k, 2), op.extent(q, 2)
        seen = op.LessOrEqual(op.iota(keys), op.Unsqueeze(op.iota(queries) + (keys - queries), [1]))
        scores = scores + op.where(seen, op.like(0, k), op.like(_filter(n), k))
    return joined_heads(op, op.MatMul(op.Softmax(scores, axis=-1), v))


def _masks(mask: Var | None) -> list[str]:
    """A mask of lengths, of keys, or of keys for each query."""
    return ["b", "bt", "bqt"] if mask is not None else ["b"]


def _multi_head_ranks(n: NodeView) -> list[Choice]:
    """Heads of keys and values side by side, or apart."""
    if n.key is None or n.value is None:
        return []
    masks = _masks(n.key_padding_mask)
    forms: list[Choice] = [dict(key="bsk", value="bsv"), dict(key="bhsd", value="bhse")]
    return [{**form, "query": "bqm", "key_padding_mask": mask, "output": "bqo"} for form in forms for mask in masks]


@decompose("MultiHeadAttention", domain=DOMAIN, ranks=_multi_head_ranks)
def _multi_head(op: Builder, n: NodeView) -> dict[str, Var]:
    q, k, v = n.query, n.key, n.value
    if k is None or v is None or q.rank != 3 or any(x.rank not in (3, 4) for x in (k, v)):
        raise refuse(n, "with packed operands")
    if n.past_sequence_length is not None or n.cache_indirection is not None or len(n.node.outputs) > 3:
        raise refuse(n, "with a cache that is shared, or the scores for a result")
    apart = k.rank == 4  # heads are: keys and values of a cross attention that were computed before
    if n.bias is not None and apart:
        q = q + op.Slice(n.bias, [0], op.extent(q, 2), [0])
    elif n.bias is not None:
        sizes = op.Concat(*(op.extent(x, 2) for x in (q, k, v)), axis=0)
        q, k, v = (x + b for x, b in zip((q, k, v), op.Split(n.bias, sizes, axis=0, outputs=3), strict=True))
    q = split_heads(op, q, n.num_heads)
    if not apart:
        k, v = (split_heads(op, x, n.num_heads) for x in (k, v))
    if n.past_key is not None:
        k, v = op.Concat(n.past_key, k, axis=2), op.Concat(n.past_value, v, axis=2)
    return {"output": _attend(op, n, q, k, v, n.key_padding_mask), "present_key": k, "present_value": v}


def _self_ranks(n: NodeView) -> list[Choice]:
    return [dict(input="bqi", weights="iw", mask_index=mask, output="bqo") for mask in _masks(n.mask_index)]


@decompose("Attention", domain=DOMAIN, ranks=_self_ranks)
def _attention(op: Builder, n: NodeView) -> dict[str, Var]:
    """Multi-head attention of a sequence with itself, with the projections of queries, keys and values in it."""
    if n.past_present_share_buffer or n.past_sequence_length is not None or n.do_rotary:
        raise refuse(n, "with a cache that is shared or a rotary embedding")
    projected = op.MatMul(n.input, n.weights)
    if n.bias is not None:
        projected = projected + n.bias
    if n.qkv_hidden_sizes:
        parts = op.Split(projected, op.const(list(n.qkv_hidden_sizes)), axis=2, outputs=3)
    else:
        parts = op.Split(projected, num_outputs=3, axis=2, outputs=3)
    q, k, v = (split_heads(op, x, n.num_heads) for x in parts)
    if n.past is not None:
        k, v = (op.Concat(op.Gather(n.past, op.const(i), axis=0), x, axis=2) for i, x in enumerate((k, v)))
    present = op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0)
    return {"output": _attend(op, n, q, k, v, n.mask_index), "present": present}


# --- rotary embedding


def turned(op: Builder, x: Var, cos: Var, sin: Var, interleaved: int) -> Var:
    """Pairs of elements (halves of the last axis, or neighbours where interleaved) turned by angles; `x` has rank 4.

    `cos` and `sin` broadcast against [batch, heads, sequence, pairs].
    """
    if interleaved:
        a, b = op.Slice(x, [0], [2**31], [3], [2]), op.Slice(x, [1], [2**31], [3], [2])
    else:
        a, b = op.Split(x, num_outputs=2, axis=3, outputs=2)
    both = [a * cos - b * sin, a * sin + b * cos]
    if interleaved:
        return op.reshape_like(op.Concat(*(op.Unsqueeze(v, [4]) for v in both), axis=4), x)
    return op.Concat(*both, axis=3)


def _rotary_ranks(n: NodeView) -> list[Choice]:
    """Heads apart or side by side; a place for every token, or one for all sequences."""
    forms = [dict(input=form, output=form) for form in ("bhsd", "bsm")]
    return [{**form, "position_ids": at} for form in forms for at in ("bs", ["one"])]


@decompose("RotaryEmbedding", domain=DOMAIN, ranks=_rotary_ranks)
def _rotary(op: Builder, n: NodeView) -> Var:
    x = n.input
    if x.rank == 3:  # [batch, sequence, heads * size]
        # how many heads: the attribute, or what the width of the tables tells
        heads = op.const([n.num_heads]) if n.num_heads else op.extent(x, 2) / (op.extent(n.cos_cache, 1) * 2)
        x = op.Transpose(op.Reshape(x, op.Concat([0, 0], heads, [-1], axis=0)), perm=[0, 2, 1, 3])
    at = n.position_ids
    if at.rank == 1:  # the place of the first of a sequence
        at = at + op.iota(op.extent(x, 2))
    cos, sin = (op.Gather(v, at, axis=0) for v in (n.cos_cache, n.sin_cache))
    if at.rank == 2:
        cos, sin = op.Unsqueeze(cos, [1]), op.Unsqueeze(sin, [1])
    rest = None
    if n.rotary_embedding_dim:
        rest = op.Slice(x, [n.rotary_embedding_dim], [2**31], [3])
        x = op.Slice(x, [0], [n.rotary_embedding_dim], [3])
    y = turned(op, x, cos, sin, n.interleaved)
    if rest is not None:
        y = op.Concat(y, rest, axis=3)
    return op.reshape_like(op.Transpose(y, perm=[0, 2, 1, 3]), n.input) if n.input.rank == 3 else y
