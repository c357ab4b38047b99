"""What shape-like integer tensors hold: extents followed through the arithmetic that exporters write for shapes."""

from __future__ import annotations

from onnxad_ir import dims
from onnxad_ir.core import Node, Value
from onnxad_ir.infer import CONTENT_LIMIT, INTEGERS, Inference, infer_contents, known, known_ints
from onnxad_ir.types import DataType, Dim

Content = tuple[Dim, ...] | None


@infer_contents("Identity", "Unsqueeze", "Reshape", "Squeeze", "Flatten")
def _same(ctx: Inference, n: Node) -> Content:
    return known(n.inputs[0])


@infer_contents("Cast")
def _cast(ctx: Inference, n: Node) -> Content:
    v = n.inputs[0]
    return known(v) if v is not None and v.dtype in INTEGERS and n.attributes.get("to") == DataType.INT64 else None


@infer_contents("Shape")
def _shape(ctx: Inference, n: Node) -> Content:
    v = n.inputs[0]
    if v is None or v.shape is None:
        return None
    return v.shape[n.attributes.get("start", 0) : n.attributes.get("end")]


@infer_contents("Size")
def _size(ctx: Inference, n: Node) -> Content:
    v = n.inputs[0]
    return None if v is None or v.shape is None else (dims.product(v.shape),)


def _pairs(n: Node) -> list[tuple[Dim, Dim]] | None:
    a, b = known(n.inputs[0]), known(n.inputs[1])
    if a is None or b is None:
        return None
    if len(a) != len(b):
        a = a * len(b) if len(a) == 1 else a
        b = b * len(a) if len(b) == 1 else b
    return list(zip(a, b, strict=True)) if len(a) == len(b) else None


@infer_contents("Add")
def _add(ctx: Inference, n: Node) -> Content:
    p = _pairs(n)
    return None if p is None else tuple(dims.add(a, b) for a, b in p)


@infer_contents("Sub")
def _sub(ctx: Inference, n: Node) -> Content:
    p = _pairs(n)
    return None if p is None else tuple(dims.sub(a, b) for a, b in p)


@infer_contents("Mul")
def _mul(ctx: Inference, n: Node) -> Content:
    p = _pairs(n)
    return None if p is None else tuple(dims.mul(a, b) for a, b in p)


@infer_contents("Neg")
def _neg(ctx: Inference, n: Node) -> Content:
    c = known(n.inputs[0])
    return None if c is None else tuple(dims.neg(d) for d in c)


@infer_contents("Div")
def _div(ctx: Inference, n: Node) -> Content:
    """Integer division truncates; a symbolic quotient is told only where it is exact."""
    p = _pairs(n)
    if p is None:
        return None
    out: list[Dim] = []
    for a, b in p:
        if isinstance(a, int) and isinstance(b, int):
            q: Dim | None = None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        else:
            q = dims.floordiv(a, b)
        if q is None:
            return None
        out.append(q)
    return tuple(out)


@infer_contents("Max", "Min", "Mod")
def _numeric(ctx: Inference, n: Node) -> Content:
    if len(n.inputs) != 2 or n.attributes.get("fmod", 0):
        return None
    p = _pairs(n)
    if p is None:
        return None
    out: list[Dim] = []
    for a, b in p:
        if isinstance(a, int) and isinstance(b, int) and (n.op_type != "Mod" or b > 0):
            out.append(max(a, b) if n.op_type == "Max" else min(a, b) if n.op_type == "Min" else a % b)
        elif a == b and n.op_type != "Mod":
            out.append(a)
        else:
            return None
    return tuple(out)


@infer_contents("Concat")
def _concat(ctx: Inference, n: Node) -> Content:
    out: list[Dim] = []
    for v in n.inputs:
        c = known(v)
        if c is None:
            return None
        out.extend(c)
    return tuple(out)


@infer_contents("Gather")
def _gather(ctx: Inference, n: Node) -> Content:
    c, i = known(n.inputs[0]), known_ints(n.inputs[1])
    if c is None or i is None or n.inputs[0] is None or n.inputs[0].rank != 1:
        return None
    return tuple(c[k] for k in i) if all(-len(c) <= k < len(c) for k in i) else None


@infer_contents("Slice")
def _slice(ctx: Inference, n: Node) -> Content:
    c, start, end = known(n.inputs[0]), known_ints(n.inputs[1]), known_ints(n.inputs[2])
    step = known_ints(n.inputs[4]) if len(n.inputs) > 4 and n.inputs[4] is not None else (1,)
    if c is None or not (start and end and step) or len(start) != 1 or not step[0]:
        return None
    if step[0] < 0 and start[0] < -len(c):
        return None  # see slice_extent
    stop: int | None = end[0]
    if step[0] < 0 and end[0] < -len(c):
        stop = None
    return c[slice(start[0], stop, step[0])]


@infer_contents("Expand", "Tile", "ConstantOfShape")
def _repeat(ctx: Inference, n: Node) -> Content:
    out = n.outputs[0].shape
    if not out or not isinstance(out[0], int) or out[0] > CONTENT_LIMIT:
        return None
    if n.op_type == "ConstantOfShape":
        value = n.attributes.get("value")
        return None if value is None else (int(value.numpy().reshape(-1)[0]),) * out[0]
    c = known(n.inputs[0])
    return None if not c or out[0] % len(c) else c * (out[0] // len(c))


@infer_contents("Range")
def _range(ctx: Inference, n: Node) -> Content:
    lo, hi, step = (known_ints(v) for v in n.inputs[:3])
    if lo is None or hi is None or step is None or not step[0]:
        return None
    r = range(lo[0], hi[0], step[0])
    return tuple(r) if len(r) <= CONTENT_LIMIT else None


@infer_contents("ReduceProd", "ReduceSum")
def _reduce(ctx: Inference, n: Node) -> Content:
    c = known(n.inputs[0])
    if c is None or n.attributes.get("noop_with_empty_axes", 0) or n.inputs[0] is None or n.inputs[0].rank != 1:
        return None
    if n.op_type == "ReduceProd":
        return (dims.product(c),)
    return (dims.total(c),)


@infer_contents("Where")
def _where(ctx: Inference, n: Node) -> Content:
    cond: Value | None = n.inputs[0]
    x, y = known(n.inputs[1]), known(n.inputs[2])
    if cond is None or cond.const is None or x is None or y is None or cond.rank is None or cond.rank > 1:
        return None
    flags = cond.const.numpy().reshape(-1)
    size = max(len(flags), len(x), len(y))
    if any(len(s) not in (1, size) for s in (flags, x, y)):
        return None
    return tuple(
        (x[i if len(x) > 1 else 0] if flags[i if len(flags) > 1 else 0] else y[i if len(y) > 1 else 0])
        for i in range(size)
    )
