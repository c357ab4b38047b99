"""Fast paths of type inference: the operators that models and derivatives are mostly made of."""

from __future__ import annotations

from onnxad_ir import dims
from onnxad_ir.core import Node, Value
from onnxad_ir.infer import (
    Inference,
    Mismatch,
    Types,
    broadcast,
    clash,
    infer_shapes,
    known,
    known_ints,
    onnx_dtype,
    operand_type,
    spelled,
)
from onnxad_ir.types import DataType, Dim, Shape, TensorType


@infer_shapes(
    *"""Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Clip Cos Cosh CumProd CumSum Elu Erf Exp Floor
    Gelu GroupNormalization Hardmax HardSigmoid HardSwish Identity InstanceNormalization LeakyRelu Log
    LogSoftmax LpNormalization LRN MeanVarianceNormalization Mish Neg Not Reciprocal Relu ReverseSequence
    RMSNormalization Round ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh Softmax Softplus
    Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu""".split()
)
def _same(ctx: Inference, n: Node) -> Types | None:
    v = n.inputs[0]
    return None if v is None or v.type is None else (v.type,)


@infer_shapes("Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift")
def _binary(ctx: Inference, n: Node) -> Types | None:
    a, b = operand_type(n, 0), operand_type(n, 1)
    if a is None or b is None:
        return None
    if a.shape == b.shape and a.shape is not None:
        return (a,)
    shape = broadcast(ctx, a.shape, b.shape)
    return (a,) if shape == a.shape else (TensorType(a.dtype, shape),)


@infer_shapes("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor")
def _compare(ctx: Inference, n: Node) -> Types | None:
    a, b = operand_type(n, 0), operand_type(n, 1)
    if a is None or b is None:
        return None
    return (TensorType(DataType.BOOL, broadcast(ctx, a.shape, b.shape)),)


@infer_shapes("IsNaN", "IsInf")
def _predicate(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    return None if a is None else (TensorType(DataType.BOOL, a.shape),)


@infer_shapes("Sum", "Max", "Min", "Mean")
def _variadic(ctx: Inference, n: Node) -> Types | None:
    ts = [operand_type(n, i) for i in range(len(n.inputs))]
    if not ts or ts[0] is None:
        return None
    shape = ts[0].shape
    for t in ts[1:]:
        if t is None:
            return None
        shape = broadcast(ctx, shape, t.shape)
    return (TensorType(ts[0].dtype, shape),)


@infer_shapes("Where")
def _where(ctx: Inference, n: Node) -> Types | None:
    c, x, y = (operand_type(n, i) for i in range(3))
    if c is None or x is None or y is None:
        return None
    return (TensorType(x.dtype, broadcast(ctx, broadcast(ctx, c.shape, x.shape), y.shape)),)


@infer_shapes("Cast")
def _cast(ctx: Inference, n: Node) -> Types | None:
    a, to = operand_type(n, 0), n.attributes.get("to")
    return (TensorType(onnx_dtype(to), None if a is None else a.shape),) if isinstance(to, int) else None


@infer_shapes("CastLike")
def _cast_like(ctx: Inference, n: Node) -> Types | None:
    a, b = operand_type(n, 0), operand_type(n, 1)
    return None if a is None or b is None else (TensorType(b.dtype, a.shape),)


@infer_shapes("Shape")
def _shape(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None or a.shape is None:
        return (TensorType(DataType.INT64, (ctx.fresh(),)),)
    start, end = n.attributes.get("start", 0), n.attributes.get("end", len(a.shape))
    if not (isinstance(start, int) and isinstance(end, int)):
        return None
    return (TensorType(DataType.INT64, (len(a.shape[start:end]),)),)


@infer_shapes("Size")
def _size(ctx: Inference, n: Node) -> Types | None:
    return (TensorType(DataType.INT64, ()),)


@infer_shapes("MatMul")
def _matmul(ctx: Inference, n: Node) -> Types | None:
    a, b = operand_type(n, 0), operand_type(n, 1)
    if a is None or b is None:
        return None
    if a.shape is None or b.shape is None:
        return (TensorType(a.dtype),)
    if not a.shape or not b.shape:
        return None
    x, y = a.shape, b.shape
    if clash(x[-1], y[-2:][0]):
        raise Mismatch(f"shapes {spelled(x)} and {spelled(y)} do not multiply")
    lead = broadcast(ctx, x[:-2], y[:-2])
    assert lead is not None
    rows = x[-2:-1] if len(x) > 1 else ()
    cols = y[-1:] if len(y) > 1 else ()
    return (TensorType(a.dtype, lead + rows + cols),)


@infer_shapes("Gemm")
def _gemm(ctx: Inference, n: Node) -> Types | None:
    a, b = operand_type(n, 0), operand_type(n, 1)
    ta, tb = n.attributes.get("transA", 0), n.attributes.get("transB", 0)
    if a is None or b is None or not (isinstance(ta, int) and isinstance(tb, int)):
        return None
    x, y = a.shape or (), b.shape or ()
    if len(x) == len(y) == 2 and clash(x[0 if ta else 1], y[1 if tb else 0]):
        raise Mismatch(f"shapes {spelled(x)} and {spelled(y)} do not multiply")
    m: Dim = ctx.fresh() if a.shape is None or len(a.shape) != 2 else a.shape[1 if ta else 0]
    k: Dim = ctx.fresh() if b.shape is None or len(b.shape) != 2 else b.shape[0 if tb else 1]
    return (TensorType(a.dtype, (m, k)),)


@infer_shapes("Transpose")
def _transpose(ctx: Inference, n: Node) -> Types | None:
    a, perm = operand_type(n, 0), n.attributes.get("perm")
    if a is None:
        return None
    if a.shape is None:
        return (TensorType(a.dtype, tuple(ctx.fresh() for _ in perm) if isinstance(perm, tuple) else None),)
    if perm is None:
        return (TensorType(a.dtype, a.shape[::-1]),)
    if not isinstance(perm, tuple) or len(perm) != len(a.shape):
        return None
    return (TensorType(a.dtype, tuple(a.shape[p] for p in perm)),)


@infer_shapes("Reshape")
def _reshape(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None:
        return None
    target = known(n.inputs[1])
    if target is None:
        s = operand_type(n, 1)
        count = s.shape[0] if s is not None and s.shape is not None and len(s.shape) == 1 else None
        return (TensorType(a.dtype, tuple(ctx.fresh() for _ in range(count)) if isinstance(count, int) else None),)
    out: list[Dim] = list(target)
    hole: int | None = None
    for i, d in enumerate(target):
        if d == 0 and not n.attributes.get("allowzero", 0):
            out[i] = a.shape[i] if a.shape is not None and i < len(a.shape) else ctx.fresh()
        elif d == -1:
            hole = i
    if hole is not None:
        rest = dims.product(d for i, d in enumerate(out) if i != hole)
        found = None if a.shape is None else dims.floordiv(dims.product(a.shape), rest)
        out[hole] = ctx.fresh() if found is None else found
    return (TensorType(a.dtype, tuple(out)),)


@infer_shapes("Flatten")
def _flatten(ctx: Inference, n: Node) -> Types | None:
    a, axis = operand_type(n, 0), n.attributes.get("axis", 1)
    if a is None or not isinstance(axis, int):
        return None
    if a.shape is None:
        return (TensorType(a.dtype, (ctx.fresh(), ctx.fresh())),)
    axis = axis + len(a.shape) if axis < 0 else axis
    return (TensorType(a.dtype, (dims.product(a.shape[:axis]), dims.product(a.shape[axis:]))),)


@infer_shapes("Expand")
def _expand(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None:
        return None
    return (TensorType(a.dtype, broadcast(ctx, a.shape, _as_shape(ctx, n.inputs[1]))),)


def _as_shape(ctx: Inference, v: Value | None) -> Shape | None:
    """The shape that the elements of `v` spell; anonymous extents where only their number is known."""
    c = known(v)
    if c is not None:
        return c
    if v is not None and v.shape is not None and len(v.shape) == 1 and isinstance(v.shape[0], int):
        return tuple(ctx.fresh() for _ in range(v.shape[0]))
    return None


@infer_shapes("ConstantOfShape")
def _constant_of_shape(ctx: Inference, n: Node) -> Types | None:
    value = n.attributes.get("value")
    dtype = DataType.FLOAT if value is None else getattr(value, "dtype", None)
    return None if dtype is None else (TensorType(dtype, _as_shape(ctx, n.inputs[0])),)


@infer_shapes("Unsqueeze")
def _unsqueeze(ctx: Inference, n: Node) -> Types | None:
    a, axes = operand_type(n, 0), known_ints(n.inputs[1]) if len(n.inputs) > 1 else None
    if a is None:
        return None
    if a.shape is None or axes is None:
        return (TensorType(a.dtype),)
    rank = len(a.shape) + len(axes)
    at = {x + rank if x < 0 else x for x in axes}
    left = iter(a.shape)
    return (TensorType(a.dtype, tuple(1 if i in at else next(left) for i in range(rank))),)


@infer_shapes("Squeeze")
def _squeeze(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None:
        return None
    given = len(n.inputs) > 1 and n.inputs[1] is not None
    axes = known_ints(n.inputs[1]) if given else None
    if a.shape is None or (given and axes is None):
        return (TensorType(a.dtype),)
    if not given:
        ok = all(isinstance(d, int) for d in a.shape)
        return (TensorType(a.dtype, tuple(d for d in a.shape if d != 1) if ok else None),)
    assert axes is not None
    at = {x + len(a.shape) if x < 0 else x for x in axes}
    return (TensorType(a.dtype, tuple(d for i, d in enumerate(a.shape) if i not in at)),)


@infer_shapes("Concat")
def _concat(ctx: Inference, n: Node) -> Types | None:
    ts = [operand_type(n, i) for i in range(len(n.inputs))]
    axis = n.attributes.get("axis")
    if not ts or ts[0] is None or not isinstance(axis, int):
        return None
    first = next((t.shape for t in ts if t is not None and t.shape is not None), None)
    if first is None:
        return (TensorType(ts[0].dtype),)
    axis = axis + len(first) if axis < 0 else axis
    if not 0 <= axis < len(first):
        raise IndexError(f"axis {axis} of rank {len(first)}")
    out = list(first)
    pieces: list[Dim] = []
    for t in ts:
        if t is None or t.shape is None or len(t.shape) != len(first):
            pieces.append(dims.TOO_LONG)
            continue
        pieces.append(t.shape[axis])
        for i, d in enumerate(t.shape):
            if isinstance(d, int) and i != axis:
                if clash(out[i], d):
                    raise Mismatch(
                        f"shapes {spelled(first)} and {spelled(t.shape)} differ in an axis other than {axis}"
                    )
                out[i] = d
    out[axis] = dims.total(pieces)
    return (TensorType(ts[0].dtype, tuple(out)),)


@infer_shapes("Split")
def _split(ctx: Inference, n: Node) -> Types | None:
    a, axis = operand_type(n, 0), n.attributes.get("axis", 0)
    if a is None or not isinstance(axis, int):
        return None
    if a.shape is None:
        return (TensorType(a.dtype),) * len(n.outputs)
    axis = axis + len(a.shape) if axis < 0 else axis
    count = len(n.outputs)
    given = len(n.inputs) > 1 and n.inputs[1] is not None
    sizes: tuple[Dim, ...] | None = known(n.inputs[1]) if given else None
    if not given:
        d = a.shape[axis]
        if isinstance(d, int):
            chunk = -(-d // count)
            sizes = tuple(max(0, min(chunk, d - i * chunk)) for i in range(count))
        else:
            even = dims.floordiv(d, count)
            sizes = (even,) * count if even is not None else None
    if sizes is None or len(sizes) != count:
        sizes = tuple(ctx.fresh() for _ in range(count))
    return tuple(TensorType(a.dtype, (*a.shape[:axis], s, *a.shape[axis + 1 :])) for s in sizes)


@infer_shapes("Slice")
def _slice(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None:
        return None
    if a.shape is None:
        return (TensorType(a.dtype),)
    starts, ends = known(n.inputs[1]), known(n.inputs[2])
    axes = _optional(n, 3, known_ints, None if starts is None else tuple(range(len(starts))))
    if axes is None:
        return (TensorType(a.dtype, tuple(ctx.fresh() for _ in a.shape)),)
    steps = _optional(n, 4, known_ints, (1,) * len(axes))
    out = list(a.shape)
    for i, axis in enumerate(axes):
        axis = axis + len(out) if axis < 0 else axis
        found = (
            slice_extent(out[axis], starts[i], ends[i], steps[i])
            if starts is not None and ends is not None and steps is not None
            else None
        )
        out[axis] = ctx.fresh() if found is None else found
    return (TensorType(a.dtype, tuple(out)),)


def _optional(n: Node, i: int, read, default):  # type: ignore[no-untyped-def]
    return read(n.inputs[i]) if i < len(n.inputs) and n.inputs[i] is not None else default


def slice_extent(d: Dim, start: Dim, end: Dim, step: int) -> Dim | None:
    """The extent of `x[start:end:step]` along an axis of extent `d`, None where it cannot be told."""
    if isinstance(d, int) and isinstance(start, int) and isinstance(end, int) and step:
        if step < 0 and start < -d:
            return None  # one element by the specification, none in onnx's reference evaluator
        return len(range(*slice(start, end if end > -d - 1 or step > 0 else None, step).indices(d)))
    if step != 1:
        return d if step == -1 and start == -1 and isinstance(end, int) and end < -(2**31) else None
    big = isinstance(end, int) and end >= 2**31 - 1
    if start == 0:
        return d if big or end == d else None
    return None


@infer_shapes("Gather")
def _gather(ctx: Inference, n: Node) -> Types | None:
    a, i, axis = operand_type(n, 0), operand_type(n, 1), n.attributes.get("axis", 0)
    if a is None or i is None or not isinstance(axis, int):
        return None
    if a.shape is None or i.shape is None or not a.shape:
        return (TensorType(a.dtype),)
    axis = axis + len(a.shape) if axis < 0 else axis
    return (TensorType(a.dtype, a.shape[:axis] + i.shape + a.shape[axis + 1 :]),)


@infer_shapes("GatherElements")
def _gather_elements(ctx: Inference, n: Node) -> Types | None:
    a, i = operand_type(n, 0), operand_type(n, 1)
    return None if a is None or i is None else (TensorType(a.dtype, i.shape),)


@infer_shapes(
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)
def _reduce(ctx: Inference, n: Node) -> Types | None:
    a, keep = operand_type(n, 0), n.attributes.get("keepdims", 1)
    if a is None or not isinstance(keep, int) or "axes" in n.attributes:
        return None
    given = len(n.inputs) > 1 and n.inputs[1] is not None
    axes = known_ints(n.inputs[1]) if given else ()
    if axes is None:
        if keep and a.shape is not None:
            return (TensorType(a.dtype, tuple(ctx.fresh() for _ in a.shape)),)
        return (TensorType(a.dtype),)
    if not axes and n.attributes.get("noop_with_empty_axes", 0):
        return (a,)
    if a.shape is None:
        return (TensorType(a.dtype, () if not axes and not keep else None),)
    rank = len(a.shape)
    at = {x + rank if x < 0 else x for x in axes} if axes else set(range(rank))
    if keep:
        return (TensorType(a.dtype, tuple(1 if i in at else d for i, d in enumerate(a.shape))),)
    return (TensorType(a.dtype, tuple(d for i, d in enumerate(a.shape) if i not in at)),)


@infer_shapes("ArgMax", "ArgMin")
def _arg(ctx: Inference, n: Node) -> Types | None:
    a, axis, keep = operand_type(n, 0), n.attributes.get("axis", 0), n.attributes.get("keepdims", 1)
    if a is None or a.shape is None or not isinstance(axis, int):
        return (TensorType(DataType.INT64),)
    axis = axis + len(a.shape) if axis < 0 else axis
    return (TensorType(DataType.INT64, a.shape[:axis] + ((1,) if keep else ()) + a.shape[axis + 1 :]),)


@infer_shapes("Tile")
def _tile(ctx: Inference, n: Node) -> Types | None:
    a, repeats = operand_type(n, 0), known(n.inputs[1])
    if a is None:
        return None
    if a.shape is None:
        return (TensorType(a.dtype),)
    if repeats is None or len(repeats) != len(a.shape):
        return (TensorType(a.dtype, tuple(ctx.fresh() for _ in a.shape)),)
    return (TensorType(a.dtype, tuple(dims.mul(d, r) for d, r in zip(a.shape, repeats, strict=True))),)


@infer_shapes("Pad")
def _pad(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None:
        return None
    if a.shape is None:
        return (TensorType(a.dtype),)
    pads = known(n.inputs[1])
    axes = _optional(n, 3, known_ints, tuple(range(len(a.shape))))
    if pads is None or axes is None or len(pads) != 2 * len(axes):
        return (TensorType(a.dtype, tuple(ctx.fresh() for _ in a.shape)),)
    out = list(a.shape)
    for i, axis in enumerate(axes):
        out[axis] = dims.add(out[axis], dims.add(pads[i], pads[i + len(axes)]))
    return (TensorType(a.dtype, tuple(out)),)


@infer_shapes("Range")
def _range(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None:
        return None
    lo, hi, step = (known(v) for v in n.inputs[:3])
    extent: Dim | None = None
    if lo is not None and hi is not None and step is not None:
        if isinstance(lo[0], int) and isinstance(hi[0], int) and isinstance(step[0], int) and step[0]:
            extent = max(0, -((lo[0] - hi[0]) // step[0]))
        elif lo == (0,) and step == (1,) and not isinstance(hi[0], dims.Expr):  # N - 1 may be negative
            extent = hi[0]
    return (TensorType(a.dtype, (ctx.fresh() if extent is None else extent,)),)


@infer_shapes("NonZero")
def _nonzero(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    rank: Dim = ctx.fresh() if a is None or a.shape is None else len(a.shape)
    return (TensorType(DataType.INT64, (rank, ctx.fresh())),)


@infer_shapes("Dropout")
def _dropout(ctx: Inference, n: Node) -> Types | None:
    a = operand_type(n, 0)
    if a is None:
        return None
    return (a, TensorType(DataType.BOOL, a.shape))[: len(n.outputs)]
