"""The kinds of rule: the verbs in which an operator's derivative is declared.

Every verb makes a `Rule` and adds it to the `declarations()` it stands in; `derive` turns it into both modes.

    elementwise("Exp", input=lambda op, n: n.output)              a partial per operand
    linear("Reshape", data=lambda op, n, ct: ...)                 jointly linear operands: the transpose of each
    multilinear("MatMul", A=lambda op, n, ct: ..., B=...)         linear in each operand alone
    pushforward("LayerNormalization", X=lambda op, n, t: ...)     the tangent of each operand's share
    @pushforward("Softmax") def f(op, n, t): ...                  the same, all at once
    @decompose("LRN") def f(op, n): ...                           in terms of other operators
    @pair("X", forward=...) def f(op, n, ct, wanted): ...         both modes by hand, for speed
    @control("If", forward=...) def f(op, n, cts, wanted): ...    the same, for an operator with regions
    zero("Shape"); zero("Sign", reason=...)

A formal that a declaration does not name is not differentiable: an error says so where it is active, unless it is
listed in `zeros`. A function for a variadic formal is called with the position as one more argument, `i`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from onnxad_ir import schema

Fn: TypeAlias = "Callable[..., Any]"


@dataclass(frozen=True, eq=False)
class Rule:
    """What the derivative of an operator is.

    `formals`: the function (or number) per differentiable operand; None means every floating operand.
    `zeros`: operands and results whose derivative is zero by definition. `reason`: why, for an operator all of whose
    derivatives are. `refuse`: operands that have a derivative which is not offered, each with what an error says.
    `when`: a predicate on the node view; where it is False the next rule is tried. `ranks`: what the ranks of the
    operands may be, for a rule that has to know them; see `onnxad_rules.ranks`.
    """

    op: str
    domain: str = ""
    formals: Mapping[str, Any] | None = None
    zeros: frozenset[str] = frozenset()
    reason: str = ""
    refuse: Mapping[str, str] = field(default_factory=dict)
    when: Fn | None = None
    ranks: Fn | None = None
    kind = "rule"

    @property
    def key(self) -> tuple[str, str]:
        """(domain, op_type)."""
        return (self.domain, self.op)


@dataclass(frozen=True, eq=False)
class Elementwise(Rule):
    """A partial per operand: a number, (op, n) -> Var that broadcasts against the result, or `times` of a function."""

    kind = "elementwise"


@dataclass(frozen=True, eq=False)
class Times:
    """A partial given by what it does to a tangent or cotangent, (op, n, x) -> x * d: where cheaper or safer."""

    fn: Fn


def times(fn: Fn) -> Times:
    """For `elementwise`: the partial as (op, n, x) -> x * d, e.g. `times(lambda op, n, x: x / n.B)`.

    The function must be linear in x and broadcast x against the result.
    """
    return Times(fn)


@dataclass(frozen=True, eq=False)
class Linear(Rule):
    """Jointly linear in `formals`; each has its transpose (op, n, ct) -> contribution."""

    kind = "linear"


@dataclass(frozen=True, eq=False)
class Multilinear(Rule):
    """Linear in each of `formals` alone; each has its transpose.

    `additive` operands are added on top: they drop out of the tangent of the others, and their own tangent is
    (op, n, t) -> Var.
    """

    additive: Mapping[str, Fn] = field(default_factory=dict)
    kind = "multilinear"


@dataclass(frozen=True, eq=False)
class Zero(Rule):
    """No derivative passes."""

    kind = "zero"


@dataclass(frozen=True, eq=False)
class Pushforward(Rule):
    """The tangent: `formals` per operand, (op, n, t) -> tangent of the results; or `whole`, all operands at once."""

    whole: Fn | None = None
    kind = "pushforward"


@dataclass(frozen=True, eq=False)
class Decompose(Rule):
    """The operator in terms of others, (op, n) -> results; `fn` None means the specification's function body."""

    fn: Fn | None = None
    kind = "decompose"


@dataclass(frozen=True, eq=False)
class Pair(Rule):
    """Both modes by hand: forward (op, n, tangents) -> tangents, reverse (op, n, cts, wanted) -> contributions.

    All are lists by position; None is zero.
    """

    forward: Fn = field(default=lambda *_: ())
    reverse: Fn = field(default=lambda *_: ())
    kind = "pair"


@dataclass(frozen=True, eq=False)
class Control(Rule):
    """Both modes by hand for an operator with regions, whose captured values are operands like any other.

    forward (op, n, tangents by value) -> tangents of the results by position; reverse (op, n, cotangents of the
    results by position, wanted values) -> (value, contribution) pairs. The node is the last of `op.nodes` in forward
    mode and may be extended in place, in both.
    """

    forward: Fn = field(default=lambda *_: ())
    reverse: Fn = field(default=lambda *_: ())
    kind = "control"


#: What the innermost `declarations()` collects.
_OPEN: ContextVar[list[Rule] | None] = ContextVar("declarations", default=None)


@contextmanager
def declarations() -> Iterator[list[Rule]]:
    """Collects what is declared inside the block, in order: the families of this package, or rules of your own.

        with declarations() as mine:
            elementwise("Cube", domain="my.ops", input_0=lambda op, n: 3 * n.input_0 * n.input_0)
        reverse(model, rules=default_rules().merge(mine), layout="single")

    Operands of an operator that onnx has no schema for are called input_0, input_1, ..., its results output_0, ...
    """
    rules: list[Rule] = []
    outer = _OPEN.set(rules)
    try:
        yield rules
    finally:
        _OPEN.reset(outer)


def _declare(rule: Rule) -> Rule:
    f = schema.latest(rule.domain, rule.op)
    if f is not None:
        known = f.inputs.keys() | f.outputs.keys()
        names = set(rule.formals or ()) | rule.zeros | set(rule.refuse)
        if unknown := names - known:
            raise TypeError(f"{rule.op} has no operand or result {sorted(unknown)}; it has {sorted(known)}")
    elif rule.domain == "":
        raise TypeError(f"onnx has no operator {rule.op}")
    rules = _OPEN.get()
    if rules is None:
        raise TypeError(f"a rule for {rule.op} is declared outside of `with declarations() as rules:`")
    rules.append(rule)
    return rule


def elementwise(
    op: str, *, domain: str = "", zeros: tuple[str, ...] = (), when: Fn | None = None, **partials: Any
) -> Rule:
    """The result at a place depends on the operands at that place only: give the partial of each operand."""
    return _declare(Elementwise(op, domain, partials, frozenset(zeros), when=when))


def linear(
    op: str,
    *,
    domain: str = "",
    zeros: tuple[str, ...] = (),
    refuse: Mapping[str, str] | None = None,
    when: Fn | None = None,
    ranks: Fn | None = None,
    **transposes: Fn,
) -> Rule:
    """Jointly linear in the named operands: give the transpose of each."""
    return _declare(Linear(op, domain, transposes, frozenset(zeros), refuse=refuse or {}, when=when, ranks=ranks))


def multilinear(
    op: str,
    *,
    domain: str = "",
    additive: Mapping[str, Fn] | None = None,
    zeros: tuple[str, ...] = (),
    when: Fn | None = None,
    ranks: Fn | None = None,
    **transposes: Fn,
) -> Rule:
    """Linear in each named operand alone: give the transpose of each. See `Multilinear` for `additive`."""
    return _declare(
        Multilinear(op, domain, transposes, frozenset(zeros), when=when, ranks=ranks, additive=additive or {})
    )


def zero(*ops: str, domain: str = "", reason: str = "") -> None:
    """The derivative is zero by definition; `reason` says why."""
    for op in ops:
        _declare(Zero(op, domain, {}, reason=reason))


def pushforward(
    op: str,
    *,
    domain: str = "",
    zeros: tuple[str, ...] = (),
    refuse: Mapping[str, str] | None = None,
    when: Fn | None = None,
    **partials: Fn,
) -> Callable[[Fn], Fn]:
    """The tangent, linear in t: per operand as keywords, or all at once as a decorator."""
    if partials:
        _declare(Pushforward(op, domain, partials, frozenset(zeros), refuse=refuse or {}, when=when))

    def decorate(f: Fn) -> Fn:
        _declare(Pushforward(op, domain, None, frozenset(zeros), refuse=refuse or {}, when=when, whole=f))
        return f

    return decorate


def decompose(
    op: str,
    *,
    domain: str = "",
    zeros: tuple[str, ...] = (),
    refuse: Mapping[str, str] | None = None,
    when: Fn | None = None,
    ranks: Fn | None = None,
) -> Callable[[Fn], Fn]:
    """A decorator: the operator in terms of others."""

    def decorate(f: Fn) -> Fn:
        _declare(Decompose(op, domain, None, frozenset(zeros), refuse=refuse or {}, when=when, ranks=ranks, fn=f))
        return f

    return decorate


def specification(
    *ops: str, domain: str = "", zeros: tuple[str, ...] = (), when: Fn | None = None, ranks: Fn | None = None
) -> None:
    """Operators that are differentiated through the function body the specification gives them."""
    for op in ops:
        _declare(Decompose(op, domain, None, frozenset(zeros), when=when, ranks=ranks))


def pair(
    op: str,
    *,
    forward: Fn,
    domain: str = "",
    zeros: tuple[str, ...] = (),
    when: Fn | None = None,
    ranks: Fn | None = None,
) -> Callable[[Fn], Fn]:
    """A decorator on the reverse function: both modes by hand, for speed or for control flow."""

    def decorate(f: Fn) -> Fn:
        _declare(Pair(op, domain, None, frozenset(zeros), when=when, ranks=ranks, forward=forward, reverse=f))
        return f

    return decorate


def control(op: str, *, forward: Fn, domain: str = "") -> Callable[[Fn], Fn]:
    """A decorator on the reverse function of an operator with regions; see `Control`."""

    def decorate(f: Fn) -> Fn:
        _declare(Control(op, domain, None, forward=forward, reverse=f))
        return f

    return decorate
