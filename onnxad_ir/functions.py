"""Calls of local functions: what a call returns, where the body of its function has types.

The body of a function is typed once, for the operands of its calls (the pass `specialize-functions` makes one function
of every distinct list of operand types). A call then has the types of the body's outputs, in the caller's symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from onnxad_ir import dims
from onnxad_ir.core import Function, Node, Value
from onnxad_ir.types import Dim, OptionalType, SequenceType, TensorType, Type, map_tensors

if TYPE_CHECKING:
    from onnxad_ir.infer import Inference


def call_types(ctx: Inference, node: Node, f: Function) -> tuple[Type | None, ...]:
    """The types of a call's results; contents of integer results are set as well.

    A symbol of the body is what the caller calls that extent of an operand (or of a result that is typed already);
    one that nothing tells is a fresh symbol.
    """
    env: dict[str, Dim] = {}
    for formal, operand in zip(f.body.inputs, node.inputs, strict=False):
        if operand is not None:
            _match(formal.type, operand.type, env)
    for formal, result in zip(f.body.outputs, node.outputs, strict=False):
        _match(formal.type, result.type, env)
    types: list[Type | None] = []
    for formal, result in zip(f.body.outputs, node.outputs, strict=False):
        types.append(_renamed(ctx, formal.type, env))
        if formal.content is not None:
            result.content = _substitute(ctx, formal.content, env)
    return tuple(types) + (None,) * (len(node.outputs) - len(types))


def specific(v: Value) -> tuple[Dim, ...] | None:
    """The contents of an operand that a function is specialized for: those of shapes, axes and the like.

    Not those of scalars, which often number the calls (the index of a layer).
    """
    return v.content if v.rank == 1 else None


def signature(operands: Iterable[Value | None]) -> tuple[object, ...]:
    """What a function is specialized for: types and contents of operands, the same however symbols are called."""
    seen: dict[str, int] = {}
    return tuple(
        None if v is None else (_canonical(v.type, seen), _canonical_dims(specific(v), seen)) for v in operands
    )


def _match(formal: Type | None, actual: Type | None, env: dict[str, Dim]) -> None:
    if isinstance(formal, TensorType) and isinstance(actual, TensorType):
        if formal.shape is not None and actual.shape is not None and len(formal.shape) == len(actual.shape):
            for a, b in zip(formal.shape, actual.shape, strict=True):
                if isinstance(a, str) and not isinstance(a, dims.Expr):
                    env.setdefault(a, b)
    elif isinstance(formal, SequenceType | OptionalType) and isinstance(actual, SequenceType | OptionalType):
        _match(formal.elem, actual.elem, env)


def _renamed(ctx: Inference, t: Type | None, env: dict[str, Dim]) -> Type | None:
    return map_tensors(t, lambda t: TensorType(t.dtype, None if t.shape is None else _substitute(ctx, t.shape, env)))


def _substitute(ctx: Inference, shape: tuple[Dim, ...], env: dict[str, Dim]) -> tuple[Dim, ...]:
    for d in shape:
        for atom in _atoms(d):
            if atom not in env:
                env[atom] = ctx.fresh()
    found = dims.substitute(shape, env)
    assert found is not None
    return found


def _atoms(d: Dim) -> Iterator[str]:
    if isinstance(d, str):
        for monomial in dims.terms(d):
            yield from monomial


def _canonical(t: Type | None, seen: dict[str, int]) -> object:
    if isinstance(t, TensorType):
        return ("tensor", t.dtype, _canonical_dims(t.shape, seen))
    if isinstance(t, SequenceType | OptionalType):
        return (type(t).__name__, _canonical(t.elem, seen))
    return t


def _canonical_dims(shape: tuple[Dim, ...] | None, seen: dict[str, int]) -> object:
    if shape is None:
        return None
    out: list[object] = []
    for d in shape:
        if isinstance(d, int):
            out.append(d)
        else:
            poly = {tuple(sorted(seen.setdefault(a, len(seen)) for a in m)): c for m, c in dims.terms(d).items()}
            out.append(frozenset(poly.items()))
    return tuple(out)
