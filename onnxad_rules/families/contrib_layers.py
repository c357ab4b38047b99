"""Operators of ONNX Runtime of older models and of models for graphics processors, in terms of standard ones."""

from __future__ import annotations

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.shape_rules_contrib import DOMAIN
from onnxad_ir.types import DataType
from onnxad_rules.families.contrib_attention import refuse
from onnxad_rules.kinds import decompose, zero
from onnxad_rules.node import NodeView

zero("NhwcMaxPool", domain=DOMAIN, reason="the result is quantized")


def _rank(n: NodeView, x: Var) -> int:
    if x.rank is None:
        raise ModelError(f"the derivative of {describe(n.node)} needs the rank of its operand")
    return x.rank


def _int64(op: Builder, x: Var) -> Var:
    return op.Cast(x, to=int(DataType.INT64))


# --- for graphics processors: channels last


def _turned(op: Builder, n: NodeView, x: Var) -> Var:
    """Channels first, from channels last."""
    r = _rank(n, x)
    return op.Transpose(x, perm=[0, r - 1, *range(1, r - 1)])


def _turned_back(op: Builder, n: NodeView, x: Var) -> Var:
    r = _rank(n, x)
    return op.Transpose(x, perm=[0, *range(2, r), 1])


@decompose("NhwcConv", domain=DOMAIN)
def _nhwc_conv(op: Builder, n: NodeView) -> Var:
    """The weights have their usual layout."""
    return _turned_back(op, n, op.Conv(_turned(op, n, n.X), n.W, n.B, **n.node.attributes))


def _group_norm(op: Builder, n: NodeView, x: Var) -> Var:
    """Normalized over the channels of a group and all places, in single precision, and through SiLU if asked for."""
    wide = op.Cast(_turned(op, n, x) if n.channels_last else x, to=int(DataType.FLOAT))
    grouped = op.Reshape(wide, [0, n.groups, -1])
    centred = grouped - op.ReduceMean(grouped, [2], keepdims=1)
    variance = op.ReduceMean(centred * centred, [2], keepdims=1)
    y = op.reshape_like(centred / op.Sqrt(variance + op.like(n.epsilon, variance)), wide)
    inner = list(range(1, _rank(n, x) - 1))
    gamma, beta = (op.Unsqueeze(op.cast_like(v, y), inner) for v in (n.gamma, n.beta))
    y = y * gamma + beta
    y = op.cast_like(y * op.Sigmoid(y) if n.activation else y, x)
    return _turned_back(op, n, y) if n.channels_last else y


@decompose("GroupNorm", domain=DOMAIN)
def _plain_group_norm(op: Builder, n: NodeView) -> Var:
    return _group_norm(op, n, n.X)


@decompose("SkipGroupNorm", domain=DOMAIN)
def _skip_group_norm(op: Builder, n: NodeView) -> tuple[Var, Var]:
    """The operand that is added may be one row of channels per example."""
    inner = list(range(1, _rank(n, n.X) - 1))
    at = inner if n.channels_last else [i + 1 for i in inner]
    total = n.X + (op.Unsqueeze(n.skip, at) if n.skip.rank == 2 else n.skip)
    if n.bias is not None:
        total = total + (n.bias if n.channels_last else op.Unsqueeze(n.bias, inner))
    return _group_norm(op, n, total), total


@decompose("BiasAdd", domain=DOMAIN)
def _bias_add(op: Builder, n: NodeView) -> Var:
    return n.X + n.bias + n.skip


@decompose("BiasSplitGelu", domain=DOMAIN)
def _bias_split_gelu(op: Builder, n: NodeView) -> Var:
    left, right = op.Split(n.X + n.bias, num_outputs=2, axis=-1, outputs=2)
    half = op.like(0.5, right)
    return left * (right * half * (op.Erf(right * op.like(0.5**0.5, right)) + op.like(1, right)))


# --- from before they were standard


@decompose("ConvTransposeWithDynamicPads", domain=DOMAIN)
def _conv_transpose(op: Builder, n: NodeView) -> Var:
    """Without padding, and cut afterwards."""
    y = op.ConvTranspose(n.X, n.W, n.B, **n.node.attributes)
    axes = list(range(2, _rank(n, n.X)))
    starts, ends = op.Split(n.Pads, num_outputs=2, axis=0, outputs=2)
    return op.Slice(y, starts, op.Concat(*(op.extent(y, a) for a in axes), axis=0) - ends, axes)


@decompose("ExpandDims", domain=DOMAIN)
def _expand_dims(op: Builder, n: NodeView) -> Var:
    return op.Unsqueeze(n.X, op.Reshape(_int64(op, n.axis), [1]))


@decompose("Pad", domain=DOMAIN)
def _pad(op: Builder, n: NodeView) -> Var:
    value = None if n.value is None else op.scalar(n.value)
    return op.Pad(n.data, op.Reshape(n.pads, [-1]), value, mode=n.mode)


@decompose("GatherND", domain=DOMAIN)
def _gather(op: Builder, n: NodeView) -> Var:
    return op.GatherND(n.data, _int64(op, n.indices))


@decompose("Range", domain=DOMAIN)
def _range(op: Builder, n: NodeView) -> Var:
    delta = op.like(1, n.start) if n.delta is None else op.scalar(n.delta)
    return op.Range(op.scalar(n.start), op.scalar(n.limit), delta)


@decompose("Unique", domain=DOMAIN)
def _unique(op: Builder, n: NodeView) -> tuple[Var, ...]:
    y, _, places, counts = op.Unique(n.x, sorted=0, outputs=4)
    return y, places, counts


@decompose("CDist", domain=DOMAIN)
def _distances(op: Builder, n: NodeView) -> Var:
    """Between all rows of two matrices."""
    difference = op.Unsqueeze(n.A, [1]) - n.B
    if n.metric == "sqeuclidean":
        return op.ReduceSumSquare(difference, [2], keepdims=0)
    if n.metric == "euclidean":
        return op.ReduceL2(difference, [2], keepdims=0)
    raise ModelError(f"{describe(n.node)} has a metric that no runtime implements: {n.metric!r}")


# --- weights of four bits that are not integers

#: What the sixteen codes mean, by quant_type: FP4 and NF4 of bitsandbytes.
_POSITIVE = [0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4]
_CODES = (
    [*_POSITIVE, *(-v for v in _POSITIVE)],
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ],
)  # fmt: skip


@decompose("MatMulBnb4", domain=DOMAIN)
def _bnb4(op: Builder, n: NodeView) -> Var:
    """A times the transpose of a weight of [N, K] codes, row after row, in blocks that share a scale.

    A byte holds two codes, the first one in its upper bits.
    """
    if not n.transB:
        raise refuse(n, "with a weight that is not transposed, for which the runtime's results are undefined")
    pairs = op.Cast(n.B, to=int(DataType.INT32))
    upper = pairs / 16
    codes = op.Concat(op.Unsqueeze(upper, [1]), op.Unsqueeze(pairs - upper * 16, [1]), axis=1)
    values = op.Gather(op.const(np.asarray(_CODES[n.quant_type]), n.absmax.dtype), op.Reshape(codes, [-1]), axis=0)
    blocks = -(-n.N * n.K // n.block_size)
    room = blocks * n.block_size - (n.N * n.K + 1) // 2 * 2
    if room:
        values = op.Pad(values, op.const([0, room]))
    scaled = op.Reshape(values, [blocks, n.block_size]) * op.Unsqueeze(n.absmax, [1])
    weight = op.Reshape(op.Slice(op.Reshape(scaled, [-1]), [0], [n.N * n.K], [0]), [n.N, n.K])
    return op.MatMul(n.A, op.Transpose(weight, perm=[1, 0]))
