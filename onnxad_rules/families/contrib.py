"""Operators of ONNX Runtime that its optimizer and quantizer leave in files, mostly in terms of standard ones.

The derivative of an operator that quantizes its operands as it runs is that of the function it computes, which is
piecewise: rounding passes nothing on, the scales, (max - min) / 255, do. (Straight-through is asked for by name, as
for DynamicQuantizeLinear, which these operators are made of.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.shape_rules_contrib import DOMAIN
from onnxad_rules.families.activations import gelu_erf, gelu_tanh, swish
from onnxad_rules.families.contrib_attention import refuse
from onnxad_rules.families.normalization import last_axes, rms
from onnxad_rules.kinds import decompose, elementwise, linear, pushforward, zero
from onnxad_rules.node import NodeView
from onnxad_rules.ranks import Choice
from onnxad_rules.recurrent_cells import recurrent

zero(
    "QuantizeLinear", "QLinearAdd", "QLinearAveragePool", "QLinearConcat", "QLinearConv", "QLinearGlobalAveragePool",
    "QLinearLeakyRelu", "QLinearMul", "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere",
    domain=DOMAIN, reason="the result is quantized",
)  # fmt: skip


def _again(op: Builder, name: str, *operands: Var, **attributes: Any) -> Var:
    """An operator of this domain."""
    return op.var(op.emit(name, [v.value for v in operands], attributes, domain=DOMAIN)[0])


# --- activations

elementwise("Gelu", domain=DOMAIN, X=gelu_erf)
elementwise("FastGelu", domain=DOMAIN, X=gelu_tanh, when=lambda n: n.bias is None)
elementwise("QuickGelu", domain=DOMAIN, X=lambda op, n: swish(op, n, n.X, n.Y))


@decompose("BiasGelu", domain=DOMAIN)
def _bias_gelu(op: Builder, n: NodeView) -> Var:
    return _again(op, "Gelu", n.A + n.B)


@decompose("FastGelu", domain=DOMAIN, when=lambda n: n.bias is not None)
def _fast_gelu(op: Builder, n: NodeView) -> Var:
    return _again(op, "FastGelu", n.X + n.bias)


_PLAIN = frozenset({"Relu", "Sigmoid", "Tanh", "Softsign", "Softplus", "HardSwish"})
#: What the parameters of a fused activation are called in the operator itself.
_PARAMETERS = {
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Selu": ("alpha", "gamma"),
}


def _activated(op: Builder, n: NodeView, x: Var, parameters: Sequence[float | None] = ()) -> Var:
    """`x` through the activation that is fused into a node."""
    name, given = n.activation, [p for p in parameters if p is not None]
    if not name:
        return x
    if name == "Clip":
        low, high = given
        return op.Clip(x, op.like(low, x), op.like(high, x))
    if name == "ScaledTanh":
        alpha, beta = given
        return op.Tanh(x * beta) * alpha
    if name in _PLAIN:
        return getattr(op, name)(x)
    if name in _PARAMETERS:
        return getattr(op, name)(x, **dict(zip(_PARAMETERS[name], given, strict=False)))
    raise ModelError(f"{describe(n.node)} has an unknown activation {name!r}")


def _three(n: NodeView) -> list[float | None]:
    return [n.activation_alpha, n.activation_beta, n.activation_gamma]


# --- products


def _operand(op: Builder, n: NodeView, x: Var, transpose: int, batch: int) -> Var:
    if batch:
        x = op.exchange(x, 1, -1)
    return op.swap(x) if transpose and x.rank != 1 else x


@decompose("TransposeMatMul", domain=DOMAIN)
@decompose("FusedMatMul", domain=DOMAIN)
def _fused_matmul(op: Builder, n: NodeView) -> Var:
    """alpha a b, where each operand may be stored transposed, and with its rows before its batch."""
    get = n.node.attributes.get
    a = _operand(op, n, n.A, n.transA, get("transBatchA", 0))
    b = _operand(op, n, n.B, n.transB, get("transBatchB", 0))
    y = op.MatMul(a, b)
    return y if n.alpha == 1 else y * n.alpha


@decompose("FusedMatMulActivation", domain=DOMAIN)
def _fused_matmul_activation(op: Builder, n: NodeView) -> Var:
    y = _fused_matmul(op, n)
    if n.activation == "Softmax":
        return op.Softmax(y, axis=-1 if n.activation_axis is None else n.activation_axis)
    return _activated(op, n, y, _three(n))


@decompose("FusedGemm", domain=DOMAIN)
def _fused_gemm(op: Builder, n: NodeView) -> Var:
    y = op.Gemm(n.A, n.B, n.C, alpha=n.alpha, beta=n.beta, transA=n.transA, transB=n.transB)
    return _activated(op, n, y, _three(n))


@decompose("FusedConv", domain=DOMAIN)
def _fused_conv(op: Builder, n: NodeView) -> Var:
    window = {k: a for k, a in n.node.attributes.items() if not k.startswith("activation")}
    y = op.Conv(n.X, n.W, n.B, **window)
    return _activated(op, n, y if n.Z is None else y + n.Z, n.activation_params or ())


@pushforward("Inverse", domain=DOMAIN)
def _inverse(op: Builder, n: NodeView, t: Any) -> Var:
    return -op.MatMul(op.MatMul(n.Y, t.X), n.Y)


linear("Trilu", domain=DOMAIN, X=lambda op, n, ct: op.Trilu(ct, n.k, upper=n.upper))


# --- normalizations


@decompose("BiasSoftmax", domain=DOMAIN)
def _bias_softmax(op: Builder, n: NodeView) -> Var:
    """All axes from `axis` on are one."""
    x = n.data + n.bias
    if n.axis == -1 or n.axis + 1 == x.rank:
        return op.Softmax(x, axis=-1)
    return op.reshape_like(op.Softmax(op.Flatten(x, axis=n.axis), axis=-1), x)


def _skipped(op: Builder, n: NodeView) -> Var:
    x = n.input + n.skip
    return x if n.bias is None else x + n.bias


@decompose("SkipLayerNormalization", domain=DOMAIN)
def _skip_layer(op: Builder, n: NodeView) -> tuple[Var, ...]:
    x = _skipped(op, n)
    return (*op.LayerNormalization(x, n.gamma, n.beta, axis=-1, epsilon=n.epsilon, outputs=3), x)


@decompose("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def _skip_simplified(op: Builder, n: NodeView) -> tuple[Var, ...]:
    x = _skipped(op, n)
    attributes = {"axis": -1, "epsilon": n.epsilon}
    y, inverse = op.emit("SimplifiedLayerNormalization", [x.value, n.gamma.value], attributes, 2)
    return {"output": op.var(y), "inv_std_var": op.var(inverse), "input_skip_bias_sum": x}  # type: ignore[return-value]


@pushforward("SimplifiedLayerNormalization")
def _simplified(op: Builder, n: NodeView, t: Any) -> dict[str, Var | None]:
    """RMSNormalization by the name it had before it was one, with the inverse root as a second result."""
    out = {"Y": rms(op, n, t)}
    if t.X is not None and len(n.node.outputs) > 1:
        inverse = n.inv_std_var
        x, tangent = op.cast_like(n.X, inverse), op.cast_like(t.X, inverse)
        axes = last_axes(op, x, n.axis)
        mean = op.ReduceMean(x * tangent, axes, keepdims=1)
        out["inv_std_var"] = -(inverse * inverse * inverse * mean)
    return out


@decompose("EmbedLayerNormalization", domain=DOMAIN)
def _embed(op: Builder, n: NodeView) -> dict[str, Var]:
    """The sum of the embeddings of a word, its place and its segment, normalized."""
    at = op.iota(op.extent(n.input_ids, 1)) if n.position_ids is None else n.position_ids
    x = op.Gather(n.word_embedding, n.input_ids, axis=0) + op.Gather(n.position_embedding, at, axis=0)
    if n.segment_embedding is not None and n.segment_ids is not None:
        x = x + op.Gather(n.segment_embedding, n.segment_ids, axis=0)
    y = op.LayerNormalization(x, n.gamma, n.beta, axis=-1, epsilon=n.epsilon)
    return {"output": y, "embedding_sum": x}


# --- quantized weights


def _widened(op: Builder, x: Var, zero_point: Var | None, like: Var) -> Var:
    """A quantized tensor as floating numbers, less its zero point."""
    wide = op.cast_like(x, like)
    return wide if zero_point is None else wide - op.cast_like(zero_point, like)


def _unpacked(op: Builder, x: Var, bits: int, like: Var) -> Var:
    """[rows, bytes] of packed numbers as [rows, numbers], the lowest bits of a byte first."""
    wide = op.cast_like(x, like)
    if bits == 8:
        return wide
    steps = op.const([float(1 << (bits * i)) for i in range(8 // bits)], like.dtype)
    shifted = op.Floor(op.Unsqueeze(wide, [2]) / steps)
    size = float(1 << bits)
    return op.Reshape(shifted - op.Floor(shifted * (1 / size)) * size, [0, -1])


@decompose("MatMulNBits", domain=DOMAIN)
def _nbits(op: Builder, n: NodeView) -> Var:
    """A times weights of a few bits each, in blocks that share a scale and a zero point."""
    blocks = -(-n.K // n.block_size)
    scales = op.Reshape(n.scales, [n.N, blocks])
    weight = _unpacked(op, op.Reshape(n.B, [n.N, -1]), n.bits, scales)
    if n.zero_points is None:
        shift = op.like(float(1 << (n.bits - 1)), scales)
    elif n.zero_points.dtype == n.scales.dtype:
        shift = op.Reshape(n.zero_points, [n.N, blocks])
    elif n.g_idx is not None:
        raise refuse(n, "with packed zero points beside g_idx, which not every kernel of the runtime heeds")
    else:
        packed = _unpacked(op, op.Reshape(n.zero_points, [n.N, -1]), n.bits, scales)
        shift = op.Slice(packed, [0], [blocks], [1])
    if n.g_idx is not None:  # which block each row of the weight belongs to
        weight = op.Slice(weight, [0], [n.K], [1])
        scales = op.Gather(scales, n.g_idx, axis=1)
        shift = shift if shift.rank == 0 else op.Gather(shift, n.g_idx, axis=1)
        weight = (weight - shift) * scales
    else:
        shift = shift if shift.rank == 0 else op.Unsqueeze(shift, [2])
        blocked = op.Reshape(weight, [n.N, blocks, n.block_size])
        weight = op.Reshape((blocked - shift) * op.Unsqueeze(scales, [2]), [n.N, -1])
        if blocks * n.block_size != n.K:
            weight = op.Slice(weight, [0], [n.K], [1])
    y = op.MatMul(n.A, op.Transpose(op.cast_like(weight, n.A), perm=[1, 0]))
    return y if n.bias is None else y + n.bias


@decompose("DequantizeLinear", domain=DOMAIN)
def _dequantize(op: Builder, n: NodeView) -> Var:
    return op.DequantizeLinear(n.x, n.x_scale, n.x_zero_point, **n.node.attributes)


@decompose("MatMulIntegerToFloat", domain=DOMAIN)
def _integer_to_float(op: Builder, n: NodeView) -> Var:
    product = op.MatMulInteger(n.A, n.B, n.a_zero_point, n.b_zero_point)
    y = op.cast_like(product, n.a_scale) * (n.a_scale * n.b_scale)
    return y if n.bias is None else y + n.bias


# --- quantized as they run


def _rounded(op: Builder, x: Var) -> Var:
    """`x` quantized to eight bits in the range it has, and back."""
    q, scale, zero_point = op.DynamicQuantizeLinear(x, outputs=3)
    return op.DequantizeLinear(q, scale, zero_point)


@decompose("DynamicQuantizeMatMul", domain=DOMAIN)
def _dynamic_matmul(op: Builder, n: NodeView) -> Var:
    weight = _widened(op, n.B, n.b_zero_point, n.b_scale) * n.b_scale
    y = op.MatMul(_rounded(op, n.A), weight)
    return y if n.bias is None else y + n.bias


def _lstm_ranks(n: NodeView) -> list[Choice]:
    """A scale for each direction, or for each column of the weights of one."""
    scales = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")
    return [dict(W="dig", R="dhg", **dict.fromkeys(scales, s)) for s in ("d", "dg")]


@decompose("DynamicQuantizeLSTM", domain=DOMAIN, ranks=_lstm_ranks)
def _dynamic_lstm(op: Builder, n: NodeView) -> tuple[Var, ...]:
    """An LSTM whose input is quantized once, and whose hidden state is at every step.

    Its weights are stored as [directions, inputs, gates], with a scale for each direction, or for each column of it.
    """

    def weight(q: Var, scale: Var, zero_point: Var) -> Var:
        def spread(v: Var) -> Var:
            return op.Unsqueeze(v, [1, 2] if v.rank == 1 else [1])

        return op.swap(_widened(op, q, spread(zero_point), scale) * spread(scale))

    w = weight(n.W, n.W_scale, n.W_zero_point)
    r = weight(n.R, n.R_scale, n.R_zero_point)
    operands = (_rounded(op, n.X), w, r, n.B, n.sequence_lens, n.initial_h, n.initial_c, n.P)
    inputs = [None if v is None else v.value for v in operands]
    plain = Node("LSTM", inputs, dict(n.node.attributes), ("",) * 3, name=n.node.name, graph=n.node.graph)
    results = recurrent(op, NodeView(op, plain, n.rules), entering=_rounded)
    plain.detach()
    return results
