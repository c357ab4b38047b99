"""GroupQueryAttention of ONNX Runtime, the attention of the decoders that are exported for it.

Heads of queries share heads of keys and values in groups. A step brings S new places of a sequence; what came before
stands in a cache, which may be a buffer of the longest sequence there can be. `seqlens_k` is the number of keys of
every example less one, its new ones included: so the new ones start at seqlens_k + 1 - S, or at 0 where the first
step is padded on the right. (What the results hold at places that are padding is nobody's business.)
"""

from __future__ import annotations

import math

from onnxad_ir.builder import Builder, Var
from onnxad_ir.shape_rules_contrib import DOMAIN
from onnxad_ir.types import DataType
from onnxad_rules.families.contrib_attention import joined_heads, refuse, scaled_query, split_heads, turned
from onnxad_rules.kinds import decompose
from onnxad_rules.node import NodeView
from onnxad_rules.ranks import Choice


def _check(n: NodeView) -> None:
    """Refuse what is not differentiated."""
    if n.query.rank != 3:
        raise refuse(n, "of unknown rank")
    if n.kv_cache_bit_width or n.k_scale is not None or n.v_scale is not None:
        raise refuse(n, "with a quantized cache")
    if n.sliding_window_cache or n.query_seqlens is not None:
        raise refuse(n, "with a cache that slides, or queries of several lengths")
    if n.qk_output or len(n.node.outputs) > 3:
        raise refuse(n, "with the scores for a result")


def _ranks(n: NodeView) -> list[Choice]:
    return [dict(query="bsq", key="bsk", value="bsv", cos_cache="pr", sin_cache="pr", output="bso")]


@decompose("GroupQueryAttention", domain=DOMAIN, ranks=_ranks)
def _grouped(op: Builder, n: NodeView) -> dict[str, Var]:
    _check(n)
    q, k, v = _operands(op, n)
    lengths = op.Cast(n.seqlens_k, to=int(DataType.INT64)) + op.const(1)
    if lengths.rank != 1:
        lengths = op.Reshape(lengths, [-1])
    start = op.Max(lengths - op.extent(q, 2), op.const([0]))
    places = op.Unsqueeze(start, [1]) + op.iota(op.extent(q, 2))  # of the new ones, [batch, S]
    if n.do_rotary:
        at = places if n.position_ids is None else n.position_ids
        q, k = (_rotated(op, n, x, at) for x in (q, k))
    if n.past_key is not None:
        k, v = (_cached(op, n, old, x, start) for old, x in ((n.past_key, k), (n.past_value, v)))
    return {"output": _attend(op, n, q, k, v, places, lengths), "present_key": k, "present_value": v}


def _operands(op: Builder, n: NodeView) -> tuple[Var, Var, Var]:
    """Queries, keys and values, [batch, heads, S, size]."""
    heads, shared = n.num_heads, n.kv_num_heads
    if n.key is None:  # side by side in one operand
        every = split_heads(op, n.query, heads + 2 * shared)
        q, k, v = op.Split(every, [heads, shared, shared], axis=1, outputs=3)
    else:
        q, (k, v) = split_heads(op, n.query, heads), (split_heads(op, x, shared) for x in (n.key, n.value))
    if n.q_norm_weight is not None:
        q = _normalized(op, q, n.q_norm_weight, n.q_norm_epsilon or n.qk_norm_epsilon)
        k = _normalized(op, k, n.k_norm_weight, n.k_norm_epsilon or n.qk_norm_epsilon)
    return q, k, v


def _normalized(op: Builder, x: Var, weight: Var, epsilon: float) -> Var:
    """Every head divided by its root mean square."""
    return x / op.Sqrt(op.ReduceMean(x * x, [-1], keepdims=1) + op.like(epsilon, x)) * weight


def _rotated(op: Builder, n: NodeView, x: Var, at: Var) -> Var:
    """Heads turned by the angles of their places, in the first elements where the tables are narrower."""
    cos, sin = (op.Unsqueeze(op.Gather(v, at, axis=0), [1]) for v in (n.cos_cache, n.sin_cache))
    pairs, size = n.cos_cache.shape and n.cos_cache.shape[1], x.shape and x.shape[3]
    if isinstance(pairs, int) and size == 2 * pairs:
        return turned(op, x, cos, sin, n.rotary_interleaved)
    width = op.extent(n.cos_cache, 1) * op.const([2])
    first, rest = op.Slice(x, [0], width, [3]), op.Slice(x, width, [2**31], [3])
    return op.Concat(turned(op, first, cos, sin, n.rotary_interleaved), rest, axis=3)


def _cached(op: Builder, n: NodeView, old: Var, new: Var, start: Var) -> Var:
    """A cache with new places written to it, from `start`, [batch], on; it becomes longer where it has to."""
    before = op.extent(old, 2)
    total = op.Max(op.Cast(op.Reshape(n.total_sequence_length, [1]), to=int(DataType.INT64)), before)
    at = op.iota(total)
    kept = op.Unsqueeze(op.Less(at, op.Unsqueeze(start, [1])), [1, 3])
    old = op.where(kept, op.Pad(old, op.Concat([0], total - before, axis=0), None, [2]), 0)
    # a product with zeros and ones: cheaper than to scatter, in both modes
    offsets = op.Unsqueeze(at, [1]) - op.iota(op.extent(new, 2))
    placed = op.cast_like(op.Equal(offsets, op.Unsqueeze(start, [1, 2])), new)
    return old + op.MatMul(op.Unsqueeze(placed, [1]), new)


def _attend(op: Builder, n: NodeView, q: Var, k: Var, v: Var, places: Var, lengths: Var) -> Var:
    """Every head of queries with its keys and values; those of a group are rows of one product."""
    shared = n.kv_num_heads
    rows = op.Reshape(scaled_query(op, n, q), op.Concat([0], [shared], [-1], op.extent(q, 3), axis=0))
    scores = op.Reshape(op.MatMul(rows, op.swap(k)), _by_head(op, q, k))
    if n.softcap:
        scores = op.Tanh(scores * (1 / n.softcap)) * n.softcap
    if n.attention_bias is not None:
        scores = scores + n.attention_bias
    p = _softmax(op, n, op.where(_seen(op, n, k, places, lengths), scores, -math.inf))
    weights = op.Reshape(p, op.Concat([0], [shared], [-1], op.extent(k, 2), axis=0))
    return joined_heads(op, op.Reshape(op.MatMul(weights, v), _by_head(op, q, v, last=3)))


def _by_head(op: Builder, q: Var, x: Var, last: int = 2) -> Var:
    """[batch, heads, S, the last extent]."""
    return op.Concat(op.extent(q, 0), op.extent(q, 1), op.extent(q, 2), op.extent(x, last), axis=0)


def _seen(op: Builder, n: NodeView, k: Var, places: Var, lengths: Var) -> Var:
    """Which keys a query sees, [batch, 1, S, keys]."""
    at, own = op.iota(op.extent(k, 2)), op.Unsqueeze(places, [2])
    seen = op.LessOrEqual(at, own) if n.causal else op.Less(at, op.Unsqueeze(lengths, [1, 2]))
    if n.local_window_size >= 0:
        seen = op.And(seen, op.Greater(at, own - n.local_window_size))
    return op.Unsqueeze(seen, [1])


def _softmax(op: Builder, n: NodeView, scores: Var) -> Var:
    """Along the last axis; with a sink, one more score that takes its share and is thrown away."""
    if n.head_sink is None and not n.smooth_softmax:
        return op.Softmax(scores, axis=-1)
    sink = op.like(0, scores) if n.head_sink is None else op.Unsqueeze(n.head_sink, [1, 2])
    column = op.Expand(sink, op.Concat(*(op.extent(scores, i) for i in range(3)), [1], axis=0))
    return op.Slice(op.Softmax(op.Concat(scores, column, axis=3), axis=-1), [0], [-1], [3])
