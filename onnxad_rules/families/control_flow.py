"""If: it stays an If, and only the branch that is taken computes a derivative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.types import is_floating
from onnxad_rules.activity import activity
from onnxad_rules.kinds import control
from onnxad_rules.node import NodeView
from onnxad_rules.regions import Adjoint, add_result, dummy, last, push_region
from onnxad_rules.tangent_space import zeros


def _branches(node: Node) -> tuple[Graph, Graph]:
    return node.attributes["then_branch"], node.attributes["else_branch"]


def _push_if(op: Builder, n: NodeView, tangents: Mapping[Value, Var]) -> list[Var | None]:
    """The same If also yields the tangents of its results."""
    node, branches = n.node, _branches(n.node)
    back = last(op, node)
    pushed = [push_region(op, g, tangents, n.rules) for g in branches]
    results: list[Var | None] = [None] * len(node.outputs)
    for i, v in enumerate(node.outputs):
        if not is_floating(v.type) or all(ts[i] is None for _, ts in pushed):
            continue
        for g, (inner, ts) in zip(branches, pushed, strict=True):
            t = ts[i] or zeros(inner, g.outputs[i])
            g.set_outputs((*g.outputs, t.value))
        results[i] = op.var(add_result(node, v.type))
    op.captures.forget(node)
    back()
    return results


@control("If", forward=_push_if)
def _pull_if(
    op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Iterable[Value]
) -> list[tuple[Value, Var]]:
    """A second If on the same condition. What its branches read of the first comes as further results of the first."""
    node, branches = n.node, _branches(n.node)
    condition = node.inputs[0]
    adjoints = []
    for g in branches:
        a = Adjoint(op, g, n.rules)
        for v, ct in zip(g.outputs, cts, strict=False):
            if ct is not None:
                a.seed(v, ct)
        a.sweep(activity(g, wanted, a.cotangents, n.rules, op.captures))
        adjoints.append(a)
    received = [{v: c for v in wanted if (c := a.total(v)) is not None} for a in adjoints]
    targets = [v for v in wanted if any(v in r for r in received)]
    if not targets:
        return []
    for a, r in zip(adjoints, received, strict=True):
        a.graph.set_outputs((r.get(v) or zeros(a.op, v)).value for v in targets)
        a.prune()
    for a, g in zip(adjoints, branches, strict=True):
        _provide(op, node, g, a)
    then, other = (a.graph for a in adjoints)
    result = Node("If", (condition,), {"then_branch": then, "else_branch": other}, ("",) * len(targets), name=op.label)
    return list(zip(targets, map(op.var, op.place_typed(result, [v.type for v in targets])), strict=True))


def _provide(op: Builder, node: Node, branch: Graph, a: Adjoint) -> None:
    """Make the primal If yield what the adjoint of a branch reads."""
    a.move_shapes()
    yielded = {v: r for v, r in zip(reversed(branch.outputs), reversed(node.outputs), strict=False)}
    for v in a.residuals():
        if v not in yielded:
            for g in _branches(node):
                g.set_outputs((*g.outputs, v if g is branch else dummy(op.inside(g), v.type)))
            yielded[v] = add_result(node, v.type)
        a.retarget(v, yielded[v])
