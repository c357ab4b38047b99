"""What an adapter is, which ones apply at an opset, and how adapters read attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import AttrRef, EmptyList, Node
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.types import DataType

#: None: the node was changed in place. Else what takes the place of its results (None: nobody reads it).
Results: TypeAlias = "Var | Sequence[Var | None] | None"
Adapt: TypeAlias = "Callable[[Builder, Node], Results]"


@dataclass(frozen=True)
class Adapter:
    """Rewrites an operator as opsets `since` to `before` - 1 of the default domain spelled it."""

    op_type: str
    since: int
    before: int
    adapt: Adapt


_ADAPTERS: list[Adapter] = []


def adapter(*op_types: str, before: int, since: int = 1) -> Callable[[Adapt], Adapt]:
    """Register an adapter for the opsets from `since` up to, not including, `before`.

    Several may apply to one operator; they run in increasing order of `before`, each on the result of the
    last, until one gives new results, which are in the modern spelling.
    """

    def register(f: Adapt) -> Adapt:
        _ADAPTERS.extend(Adapter(op, since, before, f) for op in op_types)
        return f

    return register


@cache
def adapters_at(version: int) -> dict[str, tuple[Adapt, ...]]:
    """The adapters of each operator that a body of this opset needs."""
    out: dict[str, tuple[Adapt, ...]] = {}
    for a in sorted(_ADAPTERS, key=lambda a: a.before):
        if a.since <= version < a.before:
            out[a.op_type] = (*out.get(a.op_type, ()), a.adapt)
    return out


def take(n: Node, name: str, default: Any = None) -> Any:
    """Remove an attribute and return its value. Raises ModelError where it refers to one of a function."""
    a = n.attributes.pop(name, default)
    if isinstance(a, AttrRef):
        raise ModelError(
            f"{describe(n)}: the modern spelling needs the value of {name}, which is the attribute {a.name} "
            "of the function around it; inline the functions of the model first (inline-functions)"
        )
    return a


def take_ints(n: Node, name: str) -> list[int] | None:
    """Remove a list attribute and return it, None where it is absent."""
    a = take(n, name)
    return a if a is None else [] if isinstance(a, EmptyList) else [int(x) for x in a]


def operand(op: Builder, n: Node, index: int) -> Var | None:
    """An operand, None where it is omitted."""
    v = n.inputs[index] if index < len(n.inputs) else None
    return None if v is None else op.var(v)


def required(op: Builder, n: Node, index: int) -> Var:
    """An operand that must be there. Raises ModelError where it is omitted."""
    x = operand(op, n, index)
    if x is None:
        raise ModelError(f"{describe(n)}: operand {index} is missing")
    return x


def set_operand(n: Node, index: int, x: Var) -> None:
    """Replace or append an operand, with omitted ones in between."""
    old = n.inputs + (None,) * (index + 1 - len(n.inputs))
    n.set_inputs((*old[:index], x.value, *old[index + 1 :]))


def number(op: Builder, value: float, like: Var) -> Var:
    """A scalar of the element type of `like`, also where that is known only at run time."""
    dtype = like.value.dtype
    if dtype is None:
        return op.CastLike(op.const(value, DataType.FLOAT), like)
    with np.errstate(over="ignore"):
        return op.const(value, dtype)
