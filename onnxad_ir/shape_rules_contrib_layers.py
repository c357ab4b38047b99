"""Operators of ONNX Runtime of older models and of models for graphics processors: names, attributes and results."""

from __future__ import annotations

from onnxad_ir.core import Node
from onnxad_ir.dims import floordiv
from onnxad_ir.infer import Inference, Types, infer_shapes, operand_type
from onnxad_ir.schema import declare
from onnxad_ir.shape_rules_contrib import DOMAIN
from onnxad_ir.types import DataType, TensorType

_WINDOW = {"auto_pad": "NOTSET", "dilations": None, "group": 1, "kernel_shape": None, "strides": None}

declare(DOMAIN, "BiasAdd", "X bias skip", "Y", 3)
declare(DOMAIN, "BiasSplitGelu", "X bias", "Y", 2)
declare(DOMAIN, "CDist", "A B", "C", 2, metric="sqeuclidean")
declare(DOMAIN, "ConvTransposeWithDynamicPads", "X W Pads B", "Y", 2, output_padding=None, **_WINDOW)
declare(DOMAIN, "ExpandDims", "X axis", "Y", 2)
declare(DOMAIN, "GatherND", "data indices", "output", 2)
declare(DOMAIN, "GroupNorm", "X gamma beta", "Y", 3, activation=0, channels_last=1, epsilon=1e-5, groups=None)
declare(DOMAIN, "MatMulBnb4", "A B absmax", "Y", 3, K=None, N=None, block_size=None, quant_type=None, transB=1)
declare(DOMAIN, "NhwcConv", "X W B", "Y", 2, pads=None, **_WINDOW)
declare(DOMAIN, "Pad", "data pads value", "output", 2, mode="constant")
declare(DOMAIN, "Range", "start limit delta", "Y", 2)
declare(
    DOMAIN,
    "SkipGroupNorm",
    "X gamma beta skip bias",
    "Y S",
    4,
    activation=0,
    channels_last=1,
    epsilon=1e-5,
    groups=None,
)
declare(DOMAIN, "Unique", "x", "y idx counts")


@infer_shapes(*(f"{DOMAIN}.{op}" for op in ("BiasAdd", "GroupNorm", "SkipGroupNorm")))
def _like_first(ctx: Inference, n: Node) -> Types:
    return (operand_type(n, 0),) * len(n.outputs)


@infer_shapes(f"{DOMAIN}.BiasSplitGelu")
def _halved(ctx: Inference, n: Node) -> Types:
    x = operand_type(n, 0)
    if x is None or not x.shape:
        return (x,)
    half = floordiv(x.shape[-1], 2)
    return (TensorType(x.dtype, (*x.shape[:-1], ctx.fresh() if half is None else half)),)


@infer_shapes(*(f"{DOMAIN}.{op}" for op in ("ConvTransposeWithDynamicPads", "NhwcConv", "Pad")))
def _same_rank(ctx: Inference, n: Node) -> Types:
    x = operand_type(n, 0)
    return (x and TensorType(x.dtype, None if x.shape is None else tuple(ctx.fresh() for _ in x.shape)),)


@infer_shapes(f"{DOMAIN}.ExpandDims")
def _expanded(ctx: Inference, n: Node) -> Types:
    x = operand_type(n, 0)
    return (x and TensorType(x.dtype, None if x.shape is None else tuple(ctx.fresh() for _ in (*x.shape, 0))),)


@infer_shapes(f"{DOMAIN}.GatherND")
def _gathered(ctx: Inference, n: Node) -> Types:
    x = operand_type(n, 0)
    return (x and TensorType(x.dtype),)


@infer_shapes(f"{DOMAIN}.CDist")
def _distances(ctx: Inference, n: Node) -> Types:
    rows = [v.shape[0] if v is not None and v.shape else ctx.fresh() for v in n.inputs]
    x = operand_type(n, 0)
    return (x and TensorType(x.dtype, tuple(rows)),)


@infer_shapes(f"{DOMAIN}.Range")
def _range(ctx: Inference, n: Node) -> Types:
    x = operand_type(n, 0)
    return (x and TensorType(x.dtype, (ctx.fresh(),)),)


@infer_shapes(f"{DOMAIN}.Unique")
def _unique(ctx: Inference, n: Node) -> Types:
    x, found = operand_type(n, 0), (ctx.fresh(),)
    if x is None:
        return (None,) * len(n.outputs)
    every = (TensorType(x.dtype, found), TensorType(DataType.INT64, x.shape), TensorType(DataType.INT64, found))
    return every[: len(n.outputs)]
