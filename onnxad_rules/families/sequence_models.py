"""Fused operators of sequence models."""

from __future__ import annotations

import math

from onnxad_ir.builder import Builder, Var
from onnxad_ir.inline import inline_body
from onnxad_ir.types import DataType
from onnxad_rules.extents import extent, reshape
from onnxad_rules.kinds import decompose, specification
from onnxad_rules.node import NodeView
from onnxad_rules.placing import TO_END
from onnxad_rules.ranks import Choice

specification(
    "LinearAttention",
    ranks=lambda n: [
        dict(query="btq", key="btk", value="btv", past_state="bhde", decay="btx", beta="bty", output="bto")
    ],
)


def _channels(n: NodeView) -> bool:
    """Whether the number of channels is known: the specification's body has it for an attribute."""
    shapes = [x.shape for x, axis in ((n.input, 1), (n.weight, 0)) if x.shape and isinstance(x.shape[axis], int)]
    return bool(shapes)


specification("CausalConvWithState", when=_channels)


def _causal_shapes(n: NodeView) -> list[Choice]:
    return [dict(input="bcl", weight=["c", 1, "k"], bias="c", past_state="bcs", output="bcl")]


@decompose("CausalConvWithState", ranks=_causal_shapes)
def _causal_convolution(op: Builder, n: NodeView) -> dict[str, Var]:
    """Every channel's windows times its kernel."""
    x, w = n.input, n.weight
    taps, length = op.extent(w, 2), op.extent(x, 2)
    if n.past_state is None:
        x = op.Pad(x, op.Concat(taps - 1, [0], axis=0), None, [2])
    else:
        x = op.Concat(n.past_state, x, axis=2)
    windows = op.Gather(x, op.Unsqueeze(op.iota(length), [1]) + op.iota(taps), axis=2)
    y = op.Squeeze(op.MatMul(windows, op.swap(w)), [3])
    if n.bias is not None:
        y = y + op.Unsqueeze(n.bias, [1])
    if n.activation != "none":
        y = y * op.Sigmoid(y)
    return {"output": y, "present_state": op.Slice(x, length, [TO_END], [2])}


@decompose("FlexAttention", domain="ai.onnx.preview", ranks=lambda n: [dict(Q="bhqd", K="bgkd", V="bgke", Y="bhqe")])
def _flex_attention(op: Builder, n: NodeView) -> Var:
    """Attention with the author's changes to scores and probabilities written in their places.

    Query heads that share a key and value head are an axis of their own in the products. (The specification's body
    leaves out the import of the operators it uses, and repeats keys and values per query head.)
    """
    q, k, v = n.Q, n.K, n.V
    precision = n.softmax_precision or (DataType.DOUBLE if q.dtype == DataType.DOUBLE else DataType.FLOAT)
    size = extent(op, q, 3)
    if n.scale is not None:
        scale = op.like(n.scale, q)
    elif isinstance(size, int):
        scale = op.like(1 / math.sqrt(size), q)
    else:
        scale = op.Reciprocal(op.Sqrt(op.cast_like(op.scalar(size), q)))
    heads = extent(op, k, 1)
    grouped = heads != extent(op, q, 1) or not isinstance(heads, int)
    scores = op.MatMul(_grouped(op, q, heads) if grouped else q, op.swap(_shared(op, k, grouped)))
    scores = op.Cast(scores * scale, to=int(precision))
    if grouped:
        scores = reshape(op, scores, [extent(op, x, a) for x, a in ((q, 0), (q, 1), (q, 2), (k, 2))])
    scores = _modified(op, n.score_mod, scores)
    p = _modified(op, n.prob_mod, op.Softmax(scores, axis=-1))
    if grouped:
        p = _grouped(op, p, heads)
    out = op.MatMul(p, op.Cast(_shared(op, v, grouped), to=int(precision)))
    return op.reshape_like(op.cast_like(out, q), n.Y) if grouped else op.cast_like(out, q)


def _grouped(op: Builder, x: Var, heads: int | Var) -> Var:
    """[batch, heads, ...] as [batch, key and value heads, query heads of each, ...]."""
    every = extent(op, x, 1)
    if isinstance(every, int) and isinstance(heads, int):
        group: int | Var = every // heads
    else:
        group = op.extent(x, 1) / (op.const([heads]) if isinstance(heads, int) else heads)
    return reshape(op, x, [extent(op, x, 0), heads, group, extent(op, x, 2), extent(op, x, 3)])


def _shared(op: Builder, x: Var, grouped: bool) -> Var:
    return op.Unsqueeze(x, [2]) if grouped else x


def _modified(op: Builder, graph: object, x: Var) -> Var:
    """What a region of one operand makes of `x`."""
    if graph is None:
        return x
    (out,) = inline_body(op, graph, (x.value,), {}, simplify=True)  # type: ignore[arg-type]
    assert out is not None
    return op.var(out)
