"""Fast paths of type inference: convolutions, pools, normalizations and Resize, with symbolic extents."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir import dims
from onnxad_ir.core import Node
from onnxad_ir.infer import Inference, Mismatch, Types, clash, infer_shapes, known, operand_type, spelled
from onnxad_ir.types import DataType, Dim, Shape, TensorType


def _rank(n: Node, *shapes: Shape | None) -> int | None:
    """The number of spatial axes, by shapes and attributes."""
    for s in shapes:
        if s is not None:
            return len(s) - 2
    for name in ("kernel_shape", "strides", "dilations", "output_padding", "output_shape"):
        if isinstance(a := n.attributes.get(name), tuple) and a:
            return len(a)
    pads = n.attributes.get("pads")
    return len(pads) // 2 if isinstance(pads, tuple) else None


def _ints(n: Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    a = n.attributes.get(name)
    return a if isinstance(a, tuple) and a else tuple(default)


def window_extent(d: Dim, kernel: Dim, stride: int, dilation: int, pads: int, ceil: bool, begin: int) -> Dim | None:
    """How many windows fit on an axis, None where it cannot be told.

    With `ceil`, a last window that starts behind the image and its begin pad is dropped.
    """
    if not isinstance(kernel, int):
        return None
    room = dims.add(d, pads - ((kernel - 1) * dilation + 1))
    if isinstance(room, int) and isinstance(d, int):
        out = (-(-room // stride) if ceil else room // stride) + 1
        return out - 1 if ceil and (out - 1) * stride >= d + begin else out
    if stride == 1:
        return dims.add(room, 1)
    whole = dims.floordiv(room, stride)
    return None if whole is None else dims.add(whole, 1)


def _windows(ctx: Inference, n: Node, spatial: Shape, kernel: Sequence[Dim]) -> Shape:
    """The spatial extents of a convolution or a pool over an image."""
    r = len(spatial)
    strides, dilations = _ints(n, "strides", (1,) * r), _ints(n, "dilations", (1,) * r)
    pads = _ints(n, "pads", (0,) * (2 * r))
    auto = n.attributes.get("auto_pad", "NOTSET")
    ceil = n.attributes.get("ceil_mode", 0) == 1
    out: list[Dim] = []
    for i, d in enumerate(spatial):
        found: Dim | None
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            found = -(-d // strides[i]) if isinstance(d, int) else d if strides[i] == 1 else None
        else:
            begin, end = (0, 0) if auto == "VALID" else (pads[i], pads[r + i])
            found = window_extent(d, kernel[i], strides[i], dilations[i], begin + end, ceil, begin)
        out.append(ctx.fresh() if found is None else found)
    return tuple(out)


@infer_shapes("Conv")
def _conv(ctx: Inference, n: Node) -> Types | None:
    x, w = operand_type(n, 0), operand_type(n, 1)
    if x is None or w is None:
        return None
    r = _rank(n, x.shape, w.shape)
    if r is None:
        return (TensorType(x.dtype),)
    kernel: Sequence[Dim] = n.attributes.get("kernel_shape") or (w.shape[2:] if w.shape is not None else ())
    group = n.attributes.get("group", 1)
    if x.shape is not None and w.shape is not None and isinstance(group, int):
        fit = len(x.shape) == len(w.shape) and r > 0 and not clash(x.shape[1], dims.mul(w.shape[1], group))
        if not fit:
            groups = f" in {group} groups" if group != 1 else ""
            raise Mismatch(f"an image {spelled(x.shape)} does not fit a kernel {spelled(w.shape)}{groups}")
    out = ctx.fresh() if w.shape is None else w.shape[0]
    if x.shape is None or len(kernel) != r:
        first = ctx.fresh() if x.shape is None else x.shape[0]
        return (TensorType(x.dtype, (first, out, *(ctx.fresh() for _ in range(r)))),)
    return (TensorType(x.dtype, (x.shape[0], out, *_windows(ctx, n, x.shape[2:], kernel))),)


@infer_shapes("ConvTranspose")
def _conv_transpose(ctx: Inference, n: Node) -> Types | None:
    x, w = operand_type(n, 0), operand_type(n, 1)
    if x is None or w is None:
        return None
    r = _rank(n, x.shape, w.shape)
    if r is None:
        return (TensorType(x.dtype),)
    if x.shape is not None and w.shape is not None and (len(x.shape) != len(w.shape) or clash(x.shape[1], w.shape[0])):
        raise Mismatch(f"an image {spelled(x.shape)} does not fit a kernel {spelled(w.shape)}")
    first = ctx.fresh() if x.shape is None else x.shape[0]
    group = n.attributes.get("group", 1)
    channels = ctx.fresh() if w.shape is None or not isinstance(group, int) else dims.mul(w.shape[1], group)
    fixed = n.attributes.get("output_shape")
    kernel: Sequence[Dim] = n.attributes.get("kernel_shape") or (w.shape[2:] if w.shape is not None else ())
    if fixed:
        spatial: Shape = tuple(fixed[-r:])
    elif x.shape is None or len(kernel) != r:
        spatial = tuple(ctx.fresh() for _ in range(r))
    else:
        strides, dilations = _ints(n, "strides", (1,) * r), _ints(n, "dilations", (1,) * r)
        pads, extra = _ints(n, "pads", (0,) * (2 * r)), _ints(n, "output_padding", (0,) * r)
        auto = n.attributes.get("auto_pad", "NOTSET")
        ext: list[Dim] = []
        for i, d in enumerate(x.shape[2:]):
            # (d - 1) * stride + the extent of the dilated kernel, which is (k - 1) * dilation + 1
            span = dims.add(dims.mul(kernel[i], dilations[i]), 1 - dilations[i])
            full = dims.add(dims.mul(dims.add(d, -1), strides[i]), dims.add(span, extra[i]))
            if auto in ("SAME_UPPER", "SAME_LOWER"):
                same = dims.mul(d, strides[i])
                more = dims.sub(full, same)
                ext.append(
                    same if isinstance(more, int) and more >= 0 else full if isinstance(more, int) else ctx.fresh()
                )
            else:
                ext.append(full if auto == "VALID" else dims.add(full, -pads[i] - pads[r + i]))
        spatial = tuple(ext)
    return (TensorType(x.dtype, (first, channels, *spatial)),)


@infer_shapes("MaxPool", "AveragePool", "LpPool")
def _pool(ctx: Inference, n: Node) -> Types | None:
    x, kernel = operand_type(n, 0), n.attributes.get("kernel_shape")
    if x is None or not isinstance(kernel, tuple):
        return None
    if x.shape is None:
        shape: Shape = tuple(ctx.fresh() for _ in range(len(kernel) + 2))
    else:
        shape = (*x.shape[:2], *_windows(ctx, n, x.shape[2:], kernel))
    return (TensorType(x.dtype, shape), TensorType(DataType.INT64, shape))[: len(n.outputs)]


@infer_shapes("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(ctx: Inference, n: Node) -> Types | None:
    x = operand_type(n, 0)
    if x is None:
        return None
    return (TensorType(x.dtype, None if x.shape is None else (*x.shape[:2], *(1,) * (len(x.shape) - 2))),)


@infer_shapes("BatchNormalization")
def _batch_normalization(ctx: Inference, n: Node) -> Types | None:
    x, mean = operand_type(n, 0), operand_type(n, 3)
    if x is None or (mean is None and len(n.outputs) > 1):
        return None
    return (x, mean, mean)[: len(n.outputs)]


@infer_shapes("LayerNormalization")
def _layer_normalization(ctx: Inference, n: Node) -> Types | None:
    x, axis = operand_type(n, 0), n.attributes.get("axis", -1)
    if x is None or not isinstance(axis, int):
        return None
    stash = DataType(n.attributes.get("stash_type", 1))
    shape = x.shape
    if shape is not None:
        axis = axis % len(shape)
        shape = (*shape[:axis], *(1,) * (len(shape) - axis))
    stats = TensorType(stash, shape)
    return (x, stats, stats)[: len(n.outputs)]


@infer_shapes("Resize")
def _resize(ctx: Inference, n: Node) -> Types | None:
    x = operand_type(n, 0)
    if x is None or x.shape is None:
        return None if x is None else (TensorType(x.dtype),)
    rank = len(x.shape)
    axes = n.attributes.get("axes") or tuple(range(rank))
    sizes = known(n.inputs[3]) if len(n.inputs) > 3 else None
    scales = n.inputs[2] if len(n.inputs) > 2 else None
    factors = None if scales is None or scales.const is None else scales.const.numpy().reshape(-1)
    out: list[Dim] = list(x.shape)
    stretch = n.attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    for i, a in enumerate(axes):
        d = x.shape[a]
        found: Dim | None = None
        if sizes is not None and stretch and len(sizes) == len(axes):
            found = sizes[i]
        elif factors is not None and len(factors) == len(axes):
            f = float(factors[i])
            if isinstance(d, int):
                return None  # the rounding is onnx's business
            found = dims.mul(d, int(f)) if f.is_integer() else None
        elif sizes is not None:
            return None
        out[a] = ctx.fresh() if found is None else found
    return (TensorType(x.dtype, tuple(out)),)


@infer_shapes("Attention")
def _attention(ctx: Inference, n: Node) -> Types | None:
    """Not left to onnx, which (in 1.23) takes an unknown extent for 0 and a result of unknown rank for a scalar."""
    q, k, v = (operand_type(n, i) for i in range(3))
    if q is None or k is None or v is None:
        return None
    kinds = (q.dtype, k.dtype, v.dtype, q.dtype)[: len(n.outputs)]
    if q.shape is None or k.shape is None or v.shape is None:
        return tuple(map(TensorType, kinds))
    batch, queries = q.shape[0], q.shape[-2]
    heads, groups = n.attributes.get("q_num_heads", 0), n.attributes.get("kv_num_heads", 0)
    size: Dim | None
    width: Dim | None
    if len(q.shape) == 4:
        heads, groups, size, width = q.shape[1], k.shape[1], k.shape[3], v.shape[3]
        y: Shape = (batch, heads, queries, width)
    else:
        hidden = v.shape[2] if heads == groups else dims.floordiv(dims.mul(v.shape[2], heads), groups)
        y = (batch, queries, ctx.fresh() if hidden is None else hidden)
        size, width = dims.floordiv(k.shape[2], groups), dims.floordiv(v.shape[2], groups)
    keys, past = k.shape[-2], operand_type(n, 4)
    if len(n.inputs) > 4 and n.inputs[4] is not None:
        before = None if past is None or past.shape is None else past.shape[2]
        keys = ctx.fresh() if before is None else dims.add(before, keys)
    size, width = (ctx.fresh() if d is None else d for d in (size, width))
    shapes: list[Shape] = [y, (batch, groups, keys, size), (batch, groups, keys, width), (batch, heads, queries, keys)]
    return tuple(map(TensorType, kinds, shapes))
