"""The operators that ONNX Runtime's optimizer and quantizer leave in files, which onnx has no schemas of.

Their operands and attributes by name, and what their results are. (Domain com.microsoft; one of them stands in the
default domain.)
"""

from __future__ import annotations

from onnxad_ir.core import Node
from onnxad_ir.dims import add, floordiv, mul
from onnxad_ir.infer import SHAPES, Inference, Types, broadcast, infer_shapes, operand_type
from onnxad_ir.schema import declare
from onnxad_ir.types import DataType, Dim, Shape, TensorType

DOMAIN = "com.microsoft"

_MATMUL = {"alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0}
_ACTIVATION = {"activation": None, "activation_alpha": None, "activation_beta": None, "activation_gamma": None}
_WINDOW = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "pads": None, "strides": None}

declare(DOMAIN, "FusedMatMul", "A B", "Y", 2, **_MATMUL)
declare(DOMAIN, "TransposeMatMul", "A B", "Y", 2, alpha=1.0, transA=0, transB=0)
declare(DOMAIN, "FusedMatMulActivation", "A B", "Y", 2, activation_axis=None, **_MATMUL, **_ACTIVATION)
declare(DOMAIN, "FusedGemm", "A B C", "Y", 2, alpha=1.0, beta=1.0, transA=0, transB=0, **_ACTIVATION)
declare(DOMAIN, "FusedConv", "X W B Z", "Y", 2, activation=None, activation_params=None, **_WINDOW)
declare(DOMAIN, "Gelu", "X", "Y")
declare(DOMAIN, "FastGelu", "X bias", "Y")
declare(DOMAIN, "QuickGelu", "X", "Y", alpha=1.702)
declare(DOMAIN, "BiasGelu", "A B", "C", 2)
declare(DOMAIN, "BiasSoftmax", "data bias", "output", 2, axis=1, is_inner_broadcast=None)
declare(DOMAIN, "Inverse", "X", "Y")
declare(DOMAIN, "Trilu", "X k", "Y", upper=1)
declare("", "SimplifiedLayerNormalization", "X scale", "Y inv_std_var", 2, axis=-1, epsilon=1e-5, stash_type=1)
declare(
    DOMAIN,
    "SkipLayerNormalization",
    "input skip gamma beta bias",
    "output mean inv_std_var input_skip_bias_sum",
    3,
    epsilon=1e-12,
)
declare(
    DOMAIN,
    "SkipSimplifiedLayerNormalization",
    "input skip gamma bias",
    "output mean inv_std_var input_skip_bias_sum",
    3,
    epsilon=1e-12,
)
declare(
    DOMAIN,
    "EmbedLayerNormalization",
    "input_ids segment_ids word_embedding position_embedding segment_embedding gamma beta mask position_ids",
    "output mask_index embedding_sum",
    7,
    epsilon=1e-12,
    mask_index_type=None,
)
declare(
    DOMAIN,
    "RotaryEmbedding",
    "input position_ids cos_cache sin_cache",
    "output",
    4,
    interleaved=0,
    is_packed_batching=0,
    num_heads=0,
    rotary_embedding_dim=0,
    scale=1.0,
)
declare(
    DOMAIN,
    "MatMulNBits",
    "A B scales zero_points g_idx bias",
    "Y",
    3,
    K=None,
    N=None,
    accuracy_level=0,
    bits=4,
    block_size=None,
    weight_prepacked=0,
)
declare(DOMAIN, "DynamicQuantizeMatMul", "A B b_scale b_zero_point bias", "Y", 3)
declare(DOMAIN, "MatMulIntegerToFloat", "A B a_scale b_scale a_zero_point b_zero_point bias", "Y", 4)
declare(
    DOMAIN,
    "DynamicQuantizeLSTM",
    "X W R B sequence_lens initial_h initial_c P W_scale W_zero_point R_scale R_zero_point",
    "Y Y_h Y_c",
    12,
    activation_alpha=None,
    activation_beta=None,
    activations=None,
    clip=None,
    direction="forward",
    hidden_size=None,
    input_forget=0,
)
declare(
    DOMAIN,
    "MultiHeadAttention",
    "query key value bias key_padding_mask attention_bias past_key past_value past_sequence_length cache_indirection",
    "output present_key present_value qk",
    mask_filter_value=None,
    num_heads=None,
    scale=None,
    unidirectional=0,
)
declare(
    DOMAIN,
    "Attention",
    "input weights bias mask_index past attention_bias past_sequence_length",
    "output present",
    2,
    do_rotary=0,
    mask_filter_value=None,
    num_heads=None,
    past_present_share_buffer=0,
    qkv_hidden_sizes=None,
    rotary_embedding_dim=0,
    scale=None,
    unidirectional=0,
)
declare(
    DOMAIN,
    "GroupQueryAttention",
    "query key value past_key past_value seqlens_k total_sequence_length cos_cache sin_cache position_ids "
    "attention_bias head_sink k_scale v_scale q_norm_weight k_norm_weight query_seqlens",
    "output present_key present_value output_qk",
    7,
    causal=1,
    do_rotary=0,
    k_norm_epsilon=None,
    k_quant_type="NONE",
    kv_cache_bit_width=0,
    kv_num_heads=None,
    local_window_size=-1,
    num_heads=None,
    q_norm_epsilon=None,
    qk_norm_epsilon=1e-6,
    qk_output=0,
    rotary_interleaved=0,
    scale=None,
    sliding_window_cache=0,
    smooth_softmax=0,
    softcap=0.0,
    v_quant_type="NONE",
)
declare(DOMAIN, "DequantizeLinear", "x x_scale x_zero_point", "y", 2, axis=None)
declare(DOMAIN, "QuantizeLinear", "x y_scale y_zero_point", "y", 2, axis=None)


@infer_shapes(*(f"{DOMAIN}.{op}" for op in ("Gelu", "FastGelu", "QuickGelu", "BiasSoftmax", "Inverse", "Trilu")))
@infer_shapes(f"{DOMAIN}.RotaryEmbedding")
def _like_first(ctx: Inference, n: Node) -> Types:
    return (operand_type(n, 0),)


@infer_shapes(f"{DOMAIN}.BiasGelu")
def _bias_gelu(ctx: Inference, n: Node) -> Types:
    a, b = operand_type(n, 0), operand_type(n, 1)
    return (None if a is None or b is None else TensorType(a.dtype, broadcast(ctx, a.shape, b.shape)),)


def _product(ctx: Inference, a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of a MatMul."""
    if not a or not b:
        return None
    lead = broadcast(ctx, a[:-2], b[:-2])
    return None if lead is None else lead + a[-2:-1] + (b[-1:] if len(b) > 1 else ())


def batch_first(rank: int) -> tuple[int, ...]:
    """The permutation that brings [rows, batch..., columns] to [batch..., rows, columns]."""
    return (*range(1, rank - 1), 0, rank - 1)


def _operand(s: Shape | None, transpose: object, batch: object) -> Shape | None:
    if s is None or len(s) < 2:
        return s
    if batch:
        s = tuple(s[i] for i in batch_first(len(s)))
    return (*s[:-2], s[-1], s[-2]) if transpose else s


@infer_shapes(*(f"{DOMAIN}.{op}" for op in ("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation")))
def _fused_matmul(ctx: Inference, n: Node) -> Types:
    a, b = operand_type(n, 0), operand_type(n, 1)
    if a is None or b is None:
        return (None,)
    get = n.attributes.get
    x = _operand(a.shape, get("transA"), get("transBatchA"))
    y = _operand(b.shape, get("transB"), get("transBatchB"))
    return (TensorType(a.dtype, _product(ctx, x, y)),)


@infer_shapes(f"{DOMAIN}.FusedGemm")
def _fused_gemm(ctx: Inference, n: Node) -> Types | None:
    return SHAPES["Gemm"](ctx, n)


@infer_shapes(f"{DOMAIN}.FusedConv")
def _fused_conv(ctx: Inference, n: Node) -> Types | None:
    return SHAPES["Conv"](ctx, n)


def _statistics(x: TensorType | None, axis: int = -1) -> TensorType | None:
    """What is known of a mean over the axes from `axis` on, which stay with extent 1; it is in single precision."""
    if x is None:
        return None
    if x.shape is None:
        return TensorType(DataType.FLOAT)
    axis %= len(x.shape)
    return TensorType(DataType.FLOAT, x.shape[:axis] + (1,) * (len(x.shape) - axis))


@infer_shapes(f"{DOMAIN}.SkipLayerNormalization", f"{DOMAIN}.SkipSimplifiedLayerNormalization")
def _skip_normalization(ctx: Inference, n: Node) -> Types:
    x = operand_type(n, 0)
    return (x, _statistics(x), _statistics(x), x)[: len(n.outputs)]


@infer_shapes("SimplifiedLayerNormalization")
def _simplified(ctx: Inference, n: Node) -> Types:
    x, scale, axis = operand_type(n, 0), operand_type(n, 1), n.attributes.get("axis", -1)
    if x is None or scale is None or not isinstance(axis, int):
        return (None,) * len(n.outputs)
    return (TensorType(scale.dtype, x.shape), _statistics(x, axis))[: len(n.outputs)]


@infer_shapes(f"{DOMAIN}.EmbedLayerNormalization")
def _embed(ctx: Inference, n: Node) -> Types:
    ids, words = operand_type(n, 0), operand_type(n, 2)
    if words is None:
        return (None,) * len(n.outputs)
    if ids is None or ids.shape is None or words.shape is None:
        out, mask = TensorType(words.dtype), TensorType(DataType.INT32)
    else:
        out, mask = TensorType(words.dtype, (*ids.shape, words.shape[-1])), TensorType(DataType.INT32, ids.shape[:1])
    return (out, mask, out)[: len(n.outputs)]


@infer_shapes(f"{DOMAIN}.MatMulNBits", f"{DOMAIN}.MatMulBnb4")
def _nbits(ctx: Inference, n: Node) -> Types:
    a, cols = operand_type(n, 0), n.attributes.get("N")
    if a is None:
        return (None,)
    return (TensorType(a.dtype, (*a.shape[:-1], cols) if a.shape and isinstance(cols, int) else None),)


@infer_shapes(f"{DOMAIN}.DynamicQuantizeMatMul", f"{DOMAIN}.MatMulIntegerToFloat")
def _quantized_matmul(ctx: Inference, n: Node) -> Types:
    a, b, scale = operand_type(n, 0), operand_type(n, 1), operand_type(n, 2)
    if a is None or b is None or scale is None:
        return (None,)
    return (TensorType(scale.dtype, _product(ctx, a.shape, b.shape)),)


@infer_shapes(f"{DOMAIN}.DynamicQuantizeLSTM")
def _quantized_lstm(ctx: Inference, n: Node) -> Types:
    x, hidden = operand_type(n, 0), n.attributes.get("hidden_size")
    if x is None:
        return (None,) * len(n.outputs)
    steps, batch = (ctx.fresh(), ctx.fresh()) if x.shape is None else x.shape[:2]
    units: Dim = hidden if isinstance(hidden, int) else ctx.fresh()
    count = 2 if n.attributes.get("direction") == "bidirectional" else 1
    state = TensorType(x.dtype, (count, batch, units))
    return (TensorType(x.dtype, (steps, count, batch, units)), state, state)[: len(n.outputs)]


def _number(n: Node, name: str) -> int | None:
    a = n.attributes.get(name)
    return a if isinstance(a, int) else None


def _part(ctx: Inference, d: Dim, count: int | None) -> Dim:
    """An extent divided by a number."""
    found = floordiv(d, count) if count else None
    return ctx.fresh() if found is None else found


@infer_shapes(f"{DOMAIN}.MultiHeadAttention")
def _multi_head(ctx: Inference, n: Node) -> Types:
    """The caches are [batch, heads, sequence, size]; keys that are already split like that are used as they are."""
    q, k, v, past, heads = (
        operand_type(n, 0),
        operand_type(n, 1),
        operand_type(n, 2),
        operand_type(n, 6),
        _number(n, "num_heads"),
    )
    if q is None or q.shape is None or len(q.shape) != 3 or heads is None:
        return (None if q is None else TensorType(q.dtype),) * len(n.outputs)
    batch, steps = q.shape[:2]

    def cache(x: TensorType | None) -> Shape | None:
        if x is None or x.shape is None or len(x.shape) == 4:
            return None if x is None else x.shape
        before = 0 if past is None else ctx.fresh() if past.shape is None else past.shape[2]
        return (batch, heads, add(before, x.shape[1]), _part(ctx, x.shape[2], heads))

    values = cache(v)
    out = None if values is None or len(values) != 4 else (batch, steps, mul(heads, values[3]))
    if v is not None and v.shape is not None and len(v.shape) == 3:
        out = (batch, steps, v.shape[2])
    return tuple(TensorType(q.dtype, s) for s in (out, cache(k), values, None))[: len(n.outputs)]


@infer_shapes(f"{DOMAIN}.Attention")
def _attention(ctx: Inference, n: Node) -> Types:
    """The width is that of the values, by default a third of the projection's; caches are stacked in front."""
    x, w, past, sizes = operand_type(n, 0), operand_type(n, 1), operand_type(n, 4), n.attributes.get("qkv_hidden_sizes")
    if x is None or x.shape is None or len(x.shape) != 3:
        return (None if x is None else TensorType(x.dtype),) * len(n.outputs)
    total = w.shape[1] if w is not None and w.shape is not None and len(w.shape) == 2 else ctx.fresh()
    width: Dim = sizes[2] if isinstance(sizes, tuple) and sizes else _part(ctx, total, 3)
    heads = _number(n, "num_heads")
    before = 0 if past is None else ctx.fresh() if past.shape is None else past.shape[3]
    present = (2, x.shape[0], heads or ctx.fresh(), add(before, x.shape[1]), _part(ctx, width, heads))
    return (TensorType(x.dtype, (*x.shape[:2], width)), TensorType(x.dtype, present))[: len(n.outputs)]


@infer_shapes(f"{DOMAIN}.GroupQueryAttention")
def _grouped(ctx: Inference, n: Node) -> Types:
    """A cache that is given may be longer or shorter than what is returned, which the run knows."""
    q, k, past = operand_type(n, 0), operand_type(n, 1), operand_type(n, 3)
    heads, pairs = _number(n, "num_heads"), _number(n, "kv_num_heads")
    if q is None or q.shape is None or len(q.shape) != 3 or heads is None or pairs is None:
        return (None if q is None else TensorType(q.dtype),) * len(n.outputs)
    size = _part(ctx, q.shape[2], heads if k is not None else heads + 2 * pairs)
    cache = (q.shape[0], pairs, q.shape[1] if past is None else ctx.fresh(), size)
    out = (*q.shape[:2], mul(heads, size))
    return tuple(TensorType(q.dtype, s) for s in (out, cache, cache, None))[: len(n.outputs)]


@infer_shapes(f"{DOMAIN}.DequantizeLinear")
def _dequantize(ctx: Inference, n: Node) -> Types:
    x, scale = operand_type(n, 0), operand_type(n, 1)
    return (None if x is None or scale is None else TensorType(scale.dtype, x.shape),)


@infer_shapes(f"{DOMAIN}.QuantizeLinear")
def _quantize(ctx: Inference, n: Node) -> Types:
    x, zero = operand_type(n, 0), operand_type(n, 2)
    return (None if x is None else TensorType(DataType.UINT8 if zero is None else zero.dtype, x.shape),)
