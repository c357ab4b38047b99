"""Algebraic identities: an expression that equals a value that is already there.

Each entry looks at an operator about to be made and returns the value it equals, or None. All hold exactly for every
input, infinite and undefined ones included, but for the sign of a zero (-0.0 + 0.0 is 0.0) and the rounding where two
scalar factors that rules wrote become one; none looks further than the producers of the operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxad_ir.cancel import product, quotient
from onnxad_ir.core import Attr, Value
from onnxad_ir.infer import known
from onnxad_ir.types import FLOATING, DataType, Shape

if TYPE_CHECKING:
    from onnxad_ir.builder import Builder

Inputs: TypeAlias = "Sequence[Value | None]"
Rule: TypeAlias = "Callable[[Builder, Inputs, dict[str, Attr]], Value | None]"

RULES: dict[str, Rule] = {}

#: Neg does not take these.
_UNSIGNED = frozenset({DataType.UINT8, DataType.UINT16, DataType.UINT32, DataType.UINT64})

#: The numbers that are normal in every element type.
_NORMAL = (2.0**-14, 2.0**15)


def peephole(op: Builder, op_type: str, inputs: Inputs, attributes: dict[str, Attr]) -> Value | None:
    """The existing value that an operator applied to `inputs` equals, None where none is known."""
    rule = RULES.get(op_type)
    return None if rule is None else rule(op, inputs, attributes)


def rule(*ops: str) -> Callable[[Rule], Rule]:
    """Register the identities of operators."""

    def register(f: Rule) -> Rule:
        for o in ops:
            if RULES.setdefault(o, f) is not f:
                raise TypeError(f"operator {o} has identities already")
        return f

    return register


def is_number(op: Builder, v: Value | None, number: float) -> bool:
    """True where every element of a small constant, or of one that was cast and shaped, is `number`."""
    return v is not None and op.number(v, number) is not None


def absorbs(a: Shape | None, b: Shape | None) -> bool:
    """True where broadcasting something of shape `b` with `a` is sure to give shape `a`."""
    if a is None or b is None or len(b) > len(a):
        return False
    tail = a[len(a) - len(b) :] if b else ()
    return all(y == 1 or y == x for x, y in zip(tail, b, strict=True))


def same_shape(a: Value, b: Value) -> bool:
    """True where two values are sure to have the same shape."""
    return a.shape is not None and a.shape == b.shape


def _produced(v: Value | None, op_type: str) -> Any:
    p = v.producer if v is not None else None
    return p if p is not None and p.op_type == op_type and not p.domain else None


def _unexpanded(v: Value, other: Value, target: Shape | None) -> Value | None:
    """The operand of an Expand whose work the broadcast with `other` does anyway."""
    p = _produced(v, "Expand")
    if p is None or not absorbs(target, p.inputs[0].shape) or other.shape != target or target is None:
        return None
    return p.inputs[0]


def _negated(v: Value | None) -> Value | None:
    """What a value is the negative of, where nobody reads the negative yet: the sign is better applied later.

    There a sum, a constant factor or another sign takes it up, or it meets a smaller tensor.
    """
    p = None if v is None or v.users else _produced(v, "Neg")
    return None if p is None else p.inputs[0]


def _scalar(v: Value | None) -> float | None:
    """The number in a floating scalar constant without a name: one that a rule wrote, not the author's."""
    if v is None or v.const is None or v.name or v.shape != () or v.dtype not in FLOATING:
        return None
    return float(v.const.numpy())


def _scaled(op: Builder, v: Value | None, number: float) -> Value | None:
    """x (c number) for a `v` that is x c with a scalar constant c, None where it is none."""
    p = _produced(v, "Mul")
    if p is None:
        return None
    for x, c in (p.inputs, reversed(p.inputs)):
        inner = _scalar(c)
        if inner is not None and x is not None:
            product = inner * number
            if _NORMAL[0] <= abs(product) <= _NORMAL[1]:
                return op.emit("Mul", (x, op.const(product, x.dtype).value), {})[0]
    return None


@rule("Mul")
def _mul(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    a, b = inputs
    assert a is not None and b is not None
    if is_number(op, b, 1) and absorbs(a.shape, b.shape):
        return a
    if is_number(op, a, 1) and absorbs(b.shape, a.shape):
        return b
    if (x := _unexpanded(a, b, a.shape)) is not None:
        return op.emit("Mul", (x, b), {})[0]
    if (x := _unexpanded(b, a, b.shape)) is not None:
        return op.emit("Mul", (a, x), {})[0]
    for v, w in ((a, b), (b, a)):
        if (number := _scalar(w)) is not None and (x := _scaled(op, v, number)) is not None:
            return x
        if (x := _negated(v)) is not None and absorbs(x.shape, w.shape):
            return op.emit("Neg", op.emit("Mul", (x, w), {}), {})[0]
    return product(op, a, b) or product(op, b, a)


@rule("Div")
def _div(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    a, b = inputs
    assert a is not None and b is not None
    if is_number(op, b, 1) and absorbs(a.shape, b.shape):
        return a
    if (x := _unexpanded(a, b, a.shape)) is not None:
        return op.emit("Div", (x, b), {})[0]
    return quotient(op, a, b)


@rule("Add")
def _add(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    a, b = inputs
    assert a is not None and b is not None
    if is_number(op, b, 0) and absorbs(a.shape, b.shape):
        return a
    if is_number(op, a, 0) and absorbs(b.shape, a.shape):
        return b
    if (x := _unexpanded(a, b, a.shape)) is not None:
        return op.emit("Add", (x, b), {})[0]
    if (x := _unexpanded(b, a, b.shape)) is not None:
        return op.emit("Add", (a, x), {})[0]
    if (p := _produced(b, "Neg")) is not None:
        return op.emit("Sub", (a, p.inputs[0]), {})[0]
    if (p := _produced(a, "Neg")) is not None:
        return op.emit("Sub", (b, p.inputs[0]), {})[0]
    return None


@rule("Sub")
def _sub(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    a, b = inputs
    assert a is not None and b is not None
    if is_number(op, b, 0) and absorbs(a.shape, b.shape):
        return a
    if is_number(op, a, 0) and absorbs(b.shape, a.shape) and b.dtype not in _UNSIGNED:
        return op.emit("Neg", (b,), {})[0]
    if (p := _produced(b, "Neg")) is not None:
        return op.emit("Add", (a, p.inputs[0]), {})[0]
    if (x := _unexpanded(a, b, a.shape)) is not None:
        return op.emit("Sub", (x, b), {})[0]
    if (x := _unexpanded(b, a, b.shape)) is not None:
        return op.emit("Sub", (a, x), {})[0]
    return None


@rule("Neg")
def _neg(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    p = _produced(inputs[0], "Neg")
    return _scaled(op, inputs[0], -1.0) if p is None else p.inputs[0]


@rule("Identity")
def _identity(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    return inputs[0]


@rule("Not")
def _not(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    p = _produced(inputs[0], "Not")
    return None if p is None else p.inputs[0]


@rule("Cast")
def _cast(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    v = inputs[0]
    assert v is not None
    return v if v.dtype is not None and v.dtype == attrs.get("to") else None


@rule("CastLike")
def _cast_like(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    v, like = inputs
    assert v is not None and like is not None
    return v if v.dtype is not None and v.dtype == like.dtype else None


@rule("Transpose")
def _transpose(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    v, perm = inputs[0], attrs.get("perm")
    assert v is not None
    if v.rank is not None and v.rank < 2:
        return v
    if perm is None:
        return None
    if perm == tuple(range(len(perm))):
        return v
    p = _produced(v, "Transpose")
    if p is not None:
        inner = p.attributes.get("perm") or tuple(reversed(range(len(perm))))
        return op.emit("Transpose", (p.inputs[0],), {"perm": tuple(inner[i] for i in perm)})[0]
    return None


def _says_all(target: Shape, attrs: dict[str, Attr]) -> bool:
    """True where a Reshape takes no extent from its operand: no symbol is an extent that may be zero at run time."""
    return bool(attrs.get("allowzero")) or all(isinstance(d, int) for d in target)


@rule("Reshape")
def _reshape(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    v, shape = inputs
    assert v is not None and shape is not None
    target = known(shape)
    if target is not None and v.shape is not None and v.shape == target and 0 not in target:
        return v
    if target is not None and v.shape is not None and len(v.shape) == len(target):
        # one hole, every other extent as it is
        differ = [i for i, (d, t) in enumerate(zip(v.shape, target, strict=True)) if d != t]
        if len(differ) == 1 and target[differ[0]] == -1 and 0 not in target:
            return v
    p = _produced(v, "Reshape")
    if p is not None and p.attributes.get("allowzero"):
        return None  # it may be there to contradict a declared shape: see Adjoint.taken
    if p is not None and target is not None and 0 not in target and _says_all(target, attrs):
        return op.emit("Reshape", (p.inputs[0], shape), attrs)[0]
    return None


@rule("Expand")
def _expand(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    v, shape = inputs
    assert v is not None and shape is not None
    target = known(shape)
    return v if target is not None and absorbs(v.shape, target) else None


@rule("Squeeze", "Unsqueeze")
def _squeeze(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    return inputs[0] if len(inputs) > 1 and known(inputs[1]) == () else None


@rule("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def _reduce(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    v = inputs[0]
    assert v is not None
    if len(inputs) > 1 and known(inputs[1]) == () and attrs.get("noop_with_empty_axes"):
        return v
    return v if v.rank == 0 else None


@rule("ReduceSum")
def _reduce_sum(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    if (x := _negated(inputs[0])) is not None:
        return op.emit("Neg", op.emit("ReduceSum", (x, *inputs[1:]), attrs), {})[0]
    return _reduce(op, inputs, attrs)


@rule("Max", "Min", "Mean")
def _variadic(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    return inputs[0] if len(inputs) == 1 else None


@rule("Sum")
def _sum(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    """Terms that another one broadcasts anyway need no Expand."""
    if len(inputs) == 1:
        return inputs[0]
    whole = next((v for v in inputs if v is not None and not _produced(v, "Expand")), None)
    if whole is None:
        return None
    terms = [v if v is None else _unexpanded(v, whole, v.shape) or v for v in inputs]
    return None if terms == list(inputs) else op.emit("Sum", terms, {})[0]


@rule("Concat")
def _concat(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    if len(inputs) == 1:
        return inputs[0]
    # the pieces of one Split, all and in order
    first = inputs[0].producer if inputs[0] is not None else None
    if first is not None and first.op_type == "Split" and tuple(inputs) == first.outputs:
        source, axis = first.inputs[0], first.attributes.get("axis", 0)
        rank = source.rank if source is not None else None
        if rank is not None and axis % rank == attrs.get("axis", 0) % rank:
            return source
    return None


@rule("Where")
def _where(op: Builder, inputs: Inputs, attrs: dict[str, Attr]) -> Value | None:
    c, x, y = inputs
    assert c is not None and x is not None
    return x if x is y and absorbs(x.shape, c.shape) else None
