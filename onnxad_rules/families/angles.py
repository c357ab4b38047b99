"""Atan(y / x), as exporters write angles: differentiable where x is 0 and the quotient is infinite.

The quotient and its arc tangent are differentiated as one, at the quotient: d angle = (x dy - y dx) / (x^2 + y^2). What
is passed between the two nodes is then the tangent (cotangent) of the angle, not of the quotient, so the quotient must
be for the arc tangent only.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_rules.families import arithmetic, mathematics  # noqa: F401  (their rules are declared first, tried last)
from onnxad_rules.kinds import elementwise, pair
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import default_rules


def _is_angle(n: NodeView, quotient: Node | None) -> bool:
    """True for a quotient that nothing but an arc tangent reads, both with the rules of this package."""
    if quotient is None or quotient.op_type != "Div" or quotient.domain:
        return False
    (q,) = quotient.outputs
    if q in n.op.model.variables or sum(q.users.values()) != 1:
        return False
    (user,) = q.users
    return (
        isinstance(user, Node)
        and user.key == ("", "Atan")
        and user.graph is quotient.graph
        and all(n.rules.candidates(p) == default_rules().candidates(p) for p in (user, quotient))
    )


elementwise("Atan", input=1, when=lambda n: _is_angle(n, n.input.value.producer))


def _push(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> list[Var | None]:
    y, x = n.A, n.B
    dy, dx = ts
    terms = [None if dy is None else x * dy, None if dx is None else -(y * dx)]
    total = op.add_n([None if t is None else op.expand_to(t, n.C) for t in terms])
    return [None if total is None else total / (x * x + y * y)]


@pair("Div", when=lambda n: _is_angle(n, n.node), forward=_push)
def _pull(op: Builder, n: NodeView, cts: Sequence[Var], wanted: Sequence[bool]) -> list[Var | None]:
    """By hand, because both modes know what the next node is."""
    y, x = n.A, n.B
    share = cts[0] / (x * x + y * y)
    return [
        op.sum_to(share * x, y) if wanted[0] else None,
        -op.sum_to(share * y, x) if wanted[1] else None,
    ]
