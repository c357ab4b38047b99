"""Atan(y / x), as exporters write angles: differentiable where x is 0 and the quotient is infinite.

The quotient and its arc tangent are differentiated as one, at the quotient: d angle = (x dy - y dx) / (x^2 + y^2). What
is passed between the two nodes is then the tangent (cotangent) of the angle, not of the quotient, so the quotient must
be for the arc tangent only.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_rules.families import arithmetic, mathematics  # noqa: F401  (their rules are declared first, tried last)
from onnxad_rules.kinds import elementwise, pair
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import default_rules
from onnxad_rules.survey import Survey


def _is_angle(n: NodeView) -> bool:
    """True for a quotient that nothing but an arc tangent reads, and that one, both with the rules of this package.

    The survey says so, and says the same at both nodes, whatever the derivative has come to read in between.
    """
    survey = n.op.survey
    other = survey.angle(n.node) if isinstance(survey, Survey) else None
    if other is None:
        return False
    q = n.node.outputs[0] if n.node.op_type == "Div" else n.node.inputs[0]
    return q not in n.op.model.variables and all(
        n.rules.candidates(p) == default_rules().candidates(p) for p in (n.node, other)
    )


elementwise("Atan", input=1, when=_is_angle)


def _push(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> list[Var | None]:
    y, x = n.A, n.B
    dy, dx = ts
    terms = [None if dy is None else x * dy, None if dx is None else -(y * dx)]
    total = op.add_n([None if t is None else op.expand_to(t, n.C) for t in terms])
    return [None if total is None else total / (x * x + y * y)]


@pair("Div", when=_is_angle, forward=_push)
def _pull(op: Builder, n: NodeView, cts: Sequence[Var], wanted: Sequence[bool]) -> list[Var | None]:
    """By hand, because both modes know what the next node is."""
    y, x = n.A, n.B
    share = cts[0] / (x * x + y * y)
    return [
        op.sum_to(share * x, y) if wanted[0] else None,
        -op.sum_to(share * y, x) if wanted[1] else None,
    ]
