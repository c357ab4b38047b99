"""Gates: x times a function of x, as exporters write SiLU and GELU.

    x Sigmoid(x)        x a (Erf(c x) + 1), for GELU with a = 1/2 and c = 1 / sqrt(2)

One partial in x, which reuses the gate and the product, stands for what both operands of the Mul would pass on: fewer
passes over memory, and fewer nodes. A gate with an inner value that is differentiated, or with an operator that has a
rule of a user's own, is a product like any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_rules.context import may_be_dropped
from onnxad_rules.families import arithmetic  # noqa: F401  (its rule for Mul is declared first, and tried after this one)
from onnxad_rules.kinds import pair
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import default_rules


@dataclass(frozen=True)
class Gate:
    """A gate of the operand at position `at`: a sigmoid, or a (Erf(u) + 1) with u = c x; `constants` are a and c."""

    at: int
    value: Value
    u: Value | None = None
    slope: float = 0.0  # a c
    constants: tuple[Value, ...] = ()


def _find(n: NodeView) -> Gate | None:
    a, b = n.node.inputs
    for at, x, g in ((0, a, b), (1, b, a)):
        if x is None or g is None or x is g:
            continue
        p = _made(n, g, "Sigmoid")
        gate = Gate(at, g) if p is not None and p.inputs[0] is x else _normal(n, at, x, g)
        if gate is not None:
            return None if may_be_dropped(n.op, n) else gate
    return None


def _normal(n: NodeView, at: int, x: Value, g: Value) -> Gate | None:
    half = _apart(n, g, "Mul")
    shifted = _apart(n, g if half is None else half[0], "Add")
    erf = None if shifted is None else _made(n, shifted[0], "Erf")
    u = None if erf is None else erf.inputs[0]
    if shifted is None or u is None:
        return None
    times, over = _apart(n, u, "Mul"), _apart(n, u, "Div")
    scaled = times or over
    if scaled is None or scaled[0] is not x:
        return None
    c = _number(scaled[1])
    slope = (c if times else 1 / c if c else 0.0) * (1.0 if half is None else _number(half[1]))
    constants = (scaled[1],) if half is None else (scaled[1], half[1])
    return Gate(at, g, u, slope, constants) if slope > 0 else None


def _number(c: Value) -> float:
    assert c.const is not None
    return float(c.const.numpy())


def _made(n: NodeView, v: Value, op_type: str) -> Node | None:
    """The node that made a value, if of that operator, with the rules of this package, and not differentiated."""
    p = v.producer
    if p is None or p.op_type != op_type or p.domain or v in n.op.model.variables:
        return None
    return p if n.rules.candidates(p) == default_rules().candidates(p) else None


def _apart(n: NodeView, v: Value, op_type: str) -> tuple[Value, Value] | None:
    """The operand and the scalar constant that a value is the product (sum, quotient) of."""
    p = _made(n, v, op_type)
    x, c = (None, None) if p is None else p.inputs
    if op_type != "Div" and x is not None and x.const is not None:
        x, c = c, x
    if x is None or c is None or c.const is None or c.shape != () or c in n.op.model.variables:
        return None
    return x, c


def _slope(op: Builder, n: NodeView, gate: Gate) -> Var:
    """s + y (1 - s), or g + x a c 2/sqrt(pi) exp(-u^2) with the constants in the exponent."""
    g = op.var(gate.value)
    if gate.u is None:
        return g + n.C * (1 - g)
    for c in gate.constants:
        op.number(c)  # it is used, and cannot be differentiated later
    u = op.var(gate.u)
    bell = op.Exp(op.like(math.log(gate.slope * 2 / math.sqrt(math.pi)), u) - u * u)
    return g + n.operand(gate.at) * bell


def _push(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> list[Var | None]:
    gate = _find(n)
    assert gate is not None
    t = ts[gate.at]
    return [None if t is None else t * _slope(op, n, gate)]


@pair("Mul", when=lambda n: _find(n) is not None, forward=_push)
def _pull(op: Builder, n: NodeView, cts: Sequence[Var], wanted: Sequence[bool]) -> list[Var | None]:
    gate = _find(n)
    assert gate is not None
    out: list[Var | None] = [None, None]
    if wanted[gate.at]:
        out[gate.at] = cts[0] * _slope(op, n, gate)
    return out
