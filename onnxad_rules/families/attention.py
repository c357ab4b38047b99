"""Attention and rotary embeddings."""

from __future__ import annotations

import math

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.types import DataType
from onnxad_rules.extents import extent, reshape
from onnxad_rules.kinds import decompose, linear, specification
from onnxad_rules.node import NodeView
from onnxad_rules.ranks import Choice


def _heads(op: Builder, x: Var, count: int | None) -> Var:
    """[batch, heads, sequence, size] from that or from [batch, sequence, heads * size]."""
    if x.rank == 4 or count is None:
        return x
    size = extent(op, x, 2)
    per_head = size // count if isinstance(size, int) else -1
    lead = [extent(op, x, 0), extent(op, x, 1)]
    split = reshape(op, x, [*lead, count, per_head]) if per_head != -1 else op.Reshape(x, [0, 0, count, -1])
    return op.Transpose(split, perm=[0, 2, 1, 3])


def _grouped(op: Builder, x: Var, kv: Var) -> Var:
    """Query heads that share a key head, one after the other in the sequence: no key needs to be repeated."""
    ours, theirs = extent(op, x, 1), extent(op, kv, 1)
    if isinstance(ours, int) and ours == theirs:
        return x
    rows = extent(op, x, 2)
    share = ours // theirs if isinstance(ours, int) and isinstance(theirs, int) else _ratio(op, ours, theirs)
    return reshape(op, x, [extent(op, x, 0), theirs, share * rows, extent(op, x, 3)])


def _ratio(op: Builder, a: int | Var, b: int | Var) -> Var:
    x, y = (op.const([v]) if isinstance(v, int) else v for v in (a, b))
    return x / y


def _scale(op: Builder, n: NodeView, q: Var) -> Var:
    if n.scale is not None:
        return op.like(n.scale, q)
    size = extent(op, q, 3)
    if isinstance(size, int):
        return op.like(1 / math.sqrt(size), q)
    return op.Reciprocal(op.Sqrt(op.cast_like(op.scalar(size), q)))


def _allowed(op: Builder, n: NodeView, q: Var, k: Var) -> Var | None:
    """Which keys a query may attend by position: [.., queries, keys] of booleans, None where any key."""
    nonpad = getattr(n, "nonpad_kv_seqlen", None) if "nonpad_kv_seqlen" in n.facts.inputs else None
    left, right = (n.node.attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    if n.is_causal:
        right = 0 if right < 0 else min(right, 0)
    if nonpad is None and left < 0 and right < 0:
        return None
    keys = _range(op, extent(op, k, 2))
    found: Var | None = None
    if left >= 0 or right >= 0:
        at = op.Unsqueeze(_range(op, extent(op, q, 2)), [1])
        if n.past_key is not None:
            at = at + extent(op, n.past_key, 2)
        elif nonpad is not None:
            before = op.Unsqueeze(nonpad, [1, 2, 3]) - extent(op, q, 2)
            at = at + before
        if right >= 0:
            found = op.LessOrEqual(keys, at + right)
        if left >= 0:
            near = op.GreaterOrEqual(keys, at - left)
            found = near if found is None else op.And(found, near)
    if nonpad is not None:
        there = op.Less(keys, op.Unsqueeze(nonpad, [1, 2, 3]))
        found = there if found is None else op.And(found, there)
    return found


def _range(op: Builder, n: int | Var) -> Var:
    return op.const(np.arange(n)) if isinstance(n, int) else op.iota(n)


def _bias(op: Builder, n: NodeView, q: Var, k: Var) -> Var | None:
    """What is added to the scores: the mask, and minus infinity where a key must not be attended."""
    allowed, mask = _allowed(op, n, q, k), n.attn_mask
    if mask is not None:
        mask = _as_long(op, n, mask, k)
        if mask.dtype == DataType.BOOL:
            allowed = mask if allowed is None else op.And(mask, allowed)
            mask = None
    if allowed is None:
        return mask
    return op.where(allowed, op.like(0, q) if mask is None else mask, op.like(-np.inf, q))


def _as_long(op: Builder, n: NodeView, mask: Var, k: Var) -> Var:
    """From opset 24 on a mask may end early: keys behind it are not attended."""
    have, want = extent(op, mask, -1), extent(op, k, 2)
    if n.facts.since < 24 or (isinstance(have, int) and have == want):
        return mask
    missing = op.const([want]) if isinstance(want, int) else want
    fill = op.const(False) if mask.dtype == DataType.BOOL else op.like(-np.inf, mask)
    return op.Pad(mask, op.Concat(op.const([0]), missing - have, axis=0), fill, [-1])


def _ranks(n: NodeView) -> list[Choice]:
    """Heads are an axis, or side by side where the attributes tell how many there are, as the specification has it."""
    apart: Choice = dict(Q="bhqd", K="bgkd", V="bgke", Y="bhqe", past_key="bgpd", past_value="bgpe")
    together: Choice = dict(Q="bqm", K="bkn", V="bko", Y="bqy", past_key="bgpd", past_value="bgpe")
    return [apart if n.q_num_heads is None else together]


@decompose("Attention", ranks=_ranks)
def _attention(op: Builder, n: NodeView) -> dict[str, Var]:
    """softmax(scale q k^T, capped, plus bias) v.

    A query that may attend no key gives zeros (and passes no derivative): its bias is dropped, so that its softmax
    is finite, and its row of the result is replaced.
    """
    q = _heads(op, n.Q, n.q_num_heads)
    k, v = _heads(op, n.K, n.kv_num_heads), _heads(op, n.V, n.kv_num_heads)
    if n.past_key is not None:
        k, v = op.Concat(n.past_key, k, axis=2), op.Concat(n.past_value, v, axis=2)
    scores = op.MatMul(_grouped(op, q * _scale(op, n, q), k), op.swap(k))
    whole = [extent(op, q, 0), extent(op, q, 1), extent(op, q, 2), extent(op, k, 2)]
    scores = taken = reshape(op, scores, whole)
    if n.softcap:
        scores = op.Tanh(scores / n.softcap) * n.softcap
        taken = taken if n.qk_matmul_output_mode == 0 else scores
    bias, dead = _bias(op, n, q, k), None
    if bias is not None:
        if n.qk_matmul_output_mode == 2:
            taken = scores + bias
        if _may_be_dead(op, n, q):
            lowest = op.like(-np.inf, bias)
            dead = op.Equal(op.ReduceMax(bias, [-1], keepdims=1), lowest)
            bias = op.where(dead, 0, bias)
        scores = scores + bias
    if n.softmax_precision:
        scores = op.Cast(scores, to=n.softmax_precision)
    weights = op.cast_like(op.Softmax(scores, axis=-1), q)
    if n.qk_matmul_output_mode == 3:
        taken = weights if dead is None else op.where(dead, 0, weights)
    y = op.MatMul(_grouped(op, weights, k), v)
    y = reshape(op, y, [*whole[:3], extent(op, v, 3)])
    if dead is not None:
        y = op.where(dead, 0, y)
    if n.Q.rank == 3:
        y = op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), op.shape(n.Y), allowzero=1)
    found = {"Y": y, "qk_matmul_output": taken}
    # one of the two is never asked for without the other
    if any(result.users or result.name for result in n.node.outputs[1:3]):
        found |= {"present_key": k, "present_value": v}
    return found


def _may_be_dead(op: Builder, n: NodeView, q: Var) -> bool:
    """True where a query may have no key to attend: not under a causal mask alone, which leaves all the first key."""
    windows = any(n.node.attributes.get(f"{side}_window_size", -1) >= 0 for side in ("left", "right"))
    padded = "nonpad_kv_seqlen" in n.facts.inputs and n.nonpad_kv_seqlen is not None
    return n.attn_mask is not None or windows or padded


# cos and sin on one operand each: whatever they depend on, the specification's own composition has it right; where
# they are constant tables the transpose is the rotation back
def _rotary_ranks(n: NodeView) -> list[Choice]:
    tables = "pr" if n.position_ids is not None else "bsr"
    apart: Choice = dict(X="bhsd", cos_cache=tables, sin_cache=tables, position_ids="bs", Y="bhsd")
    together: Choice = dict(X="bsm", cos_cache=tables, sin_cache=tables, position_ids="bs", Y="bsm")
    return [apart, together] if n.num_heads else [apart]


specification("RotaryEmbedding", ranks=_rotary_ranks)
linear(
    "RotaryEmbedding",
    X=lambda op, n, ct: op.RotaryEmbedding(ct, n.cos_cache, -n.sin_cache, n.position_ids, **n.node.attributes),
    when=lambda n: n.cos_cache.value.is_const and n.sin_cache.value.is_const,
)
