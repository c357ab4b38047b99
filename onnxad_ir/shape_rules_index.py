"""Fast paths of type inference: indexing, blocks, determinants and Einsum, with symbolic extents."""

from __future__ import annotations

from onnxad_ir import dims
from onnxad_ir.core import Node
from onnxad_ir.infer import Inference, Types, broadcast, infer_shapes, known, onnx_dtype, operand_type
from onnxad_ir.types import DataType, Dim, Shape, TensorType


@infer_shapes("DepthToSpace", "SpaceToDepth")
def _blocks(ctx: Inference, n: Node) -> Types | None:
    a, b = operand_type(n, 0), n.attributes.get("blocksize")
    if a is None or not isinstance(b, int) or b < 1:
        return None
    if a.shape is None or len(a.shape) != 4:
        return (TensorType(a.dtype, tuple(ctx.fresh() for _ in range(4))),)
    batch, channels, height, width = a.shape
    out: tuple[Dim | None, ...]
    if n.op_type == "DepthToSpace":
        out = (batch, dims.floordiv(channels, b * b), dims.mul(height, b), dims.mul(width, b))
    else:
        out = (batch, dims.mul(channels, b * b), dims.floordiv(height, b), dims.floordiv(width, b))
    return (TensorType(a.dtype, tuple(ctx.fresh() if d is None else d for d in out)),)


@infer_shapes("CenterCropPad")
def _center_crop_pad(ctx: Inference, n: Node) -> Types | None:
    a, axes = operand_type(n, 0), n.attributes.get("axes")
    if a is None:
        return None
    if a.shape is None:
        return (TensorType(a.dtype),)
    target = known(n.inputs[1])
    at = axes if isinstance(axes, tuple) else tuple(range(len(a.shape)))
    out = list(a.shape)
    for i, axis in enumerate(at):
        out[axis] = ctx.fresh() if target is None or i >= len(target) else target[i]
    return (TensorType(a.dtype, tuple(out)),)


@infer_shapes("GatherND")
def _gather_nd(ctx: Inference, n: Node) -> Types | None:
    a, i, batch = operand_type(n, 0), operand_type(n, 1), n.attributes.get("batch_dims", 0)
    if a is None or i is None or not isinstance(batch, int):
        return None
    if a.shape is None or not i.shape or not isinstance(k := i.shape[-1], int):
        return (TensorType(a.dtype),)
    return (TensorType(a.dtype, i.shape[:-1] + a.shape[batch + k :]),)


@infer_shapes("TensorScatter")
def _tensor_scatter(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    return None if a is None else (a,)


@infer_shapes("Compress")
def _compress(ctx: Inference, n: Node) -> Types | None:
    a, axis = operand_type(n, 0), n.attributes.get("axis")
    if a is None:
        return None
    if axis is None:
        return (TensorType(a.dtype, (ctx.fresh(),)),)
    if a.shape is None or not isinstance(axis, int):
        return (TensorType(a.dtype),)
    axis = axis + len(a.shape) if axis < 0 else axis
    return (TensorType(a.dtype, (*a.shape[:axis], ctx.fresh(), *a.shape[axis + 1 :])),)


@infer_shapes("OneHot")
def _one_hot(ctx: Inference, n: Node) -> Types | None:
    i, values, axis = operand_type(n, 0), operand_type(n, 2), n.attributes.get("axis", -1)
    if i is None or values is None or not isinstance(axis, int):
        return None
    if i.shape is None:
        return (TensorType(values.dtype),)
    axis = axis + len(i.shape) + 1 if axis < 0 else axis
    depth = known(n.inputs[1])
    d = depth[0] if depth else ctx.fresh()
    return (TensorType(values.dtype, (*i.shape[:axis], d, *i.shape[axis:])),)


@infer_shapes("Unique")
def _unique(ctx: Inference, n: Node) -> Types | None:
    a, axis = operand_type(n, 0), n.attributes.get("axis")
    if a is None:
        return None
    count: Dim = ctx.fresh()
    total: Dim = ctx.fresh()
    shape: Shape | None = (count,)
    if a.shape is not None:
        total = dims.product(a.shape) if axis is None else a.shape[axis] if isinstance(axis, int) else total
    if isinstance(axis, int):
        shape = None
        if a.shape is not None:
            axis = axis + len(a.shape) if axis < 0 else axis
            shape = (*a.shape[:axis], count, *a.shape[axis + 1 :])
    lengths: tuple[Dim, ...] = (count, total, count)
    indices = tuple(TensorType(DataType.INT64, (d,)) for d in lengths)
    return (TensorType(a.dtype, shape), *indices)[: len(n.outputs)]


@infer_shapes("Det")
def _det(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    return None if a is None else (TensorType(a.dtype, None if a.shape is None else a.shape[:-2]),)


@infer_shapes("EyeLike")
def _eye_like(ctx: Inference, n: Node) -> Types | None:
    a, to = operand_type(n, 0), n.attributes.get("dtype")
    if a is None:
        return None
    return (TensorType(onnx_dtype(to) if isinstance(to, int) else a.dtype, a.shape),)


@infer_shapes("Einsum")
def _einsum(ctx: Inference, n: Node) -> Types | None:
    """An extent per label; an ellipsis has the extents of all its occurrences broadcast together."""
    equation, first = n.attributes.get("equation"), operand_type(n, 0)
    if not isinstance(equation, str) or first is None:
        return None
    left, arrow, right = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = left.split(",")
    if len(terms) != len(n.inputs):
        return None
    if not arrow:
        once = sorted(c for c in set(left) if c not in ".," and left.count(c) == 1)
        right = ("." if "." in left else "") + "".join(once)
    extents: dict[str, Dim] = {}
    batch: Shape | None = ()
    for i, term in enumerate(terms):
        t = operand_type(n, i)
        if t is None or t.shape is None:
            batch = None if "." in term else batch
            continue
        before, dot, after = term.partition(".")
        width = len(t.shape) - len(before) - len(after)
        if width < 0 or (width and not dot):
            return None
        if dot:
            batch = broadcast(ctx, batch, t.shape[len(before) : len(before) + width])
        rest = t.shape[: len(before)] + t.shape[len(before) + width :]
        for label, d in zip(before + after, rest, strict=True):
            if label not in extents or extents[label] == 1 or (isinstance(d, int) and d != 1):
                extents[label] = d
    if "." in right and batch is None:
        return (TensorType(first.dtype),)
    out: list[Dim] = []
    for label in right:
        if label == ".":
            out.extend(batch or ())
        else:
            out.append(extents[label] if label in extents else ctx.fresh())
    return (TensorType(first.dtype, tuple(out)),)
