"""If: it stays an If, and only the branch that is taken computes a derivative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.types import TensorType, Type, is_floating
from onnxad_rules.activity import activity
from onnxad_rules.kinds import control
from onnxad_rules.node import NodeView
from onnxad_rules.recompute import producers, replay
from onnxad_rules.regions import Adjoint, add_result, contradict, dummy, last, push_region
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
            g.add_output(t.value)
        results[i] = op.var(add_result(node, v.type))
    op.captures.forget(node)
    back()
    return results


@control("If", forward=_push_if)
def _pull_if(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Iterable[Value]) -> list[tuple[Value, Var]]:
    """A second If on the same condition. What its branches read of the first comes as further results of the first."""
    node, branches = n.node, _branches(n.node)
    condition = node.inputs[0]
    adjoints = []
    for g in branches:
        a = Adjoint(op, g, n.rules)
        for v, ct in zip(g.outputs, cts, strict=False):
            if ct is not None:
                a.seed(v, a.taken(v, ct))
        a.sweep(activity(g, wanted, a.cotangents, n.rules, op.captures))
        adjoints.append(a)
    received = [{v: c for v in wanted if (c := a.total(v)) is not None} for a in adjoints]
    targets = [v for v in wanted if any(v in r for r in received)]
    if not targets:
        for a in adjoints:
            a.graph.detach()
        return []
    for a, r in zip(adjoints, received, strict=True):
        a.graph.set_outputs((r.get(v) or zeros(a.op, v)).value for v in targets)
        a.prune()
    _provide(op, node, adjoints)
    then, other = (a.graph for a in adjoints)
    result = Node("If", (condition,), {"then_branch": then, "else_branch": other}, ("",) * len(targets), name=op.label)
    return list(zip(targets, map(op.var, op.place_typed(result, [v.type for v in targets])), strict=True))


def _provide(op: Builder, node: Node, adjoints: Sequence[Adjoint]) -> None:
    """Make the primal If yield what the adjoints of its branches read.

    A result that one branch has no use for is empty there. Inside of a loop, which stacks it, it has to have the same
    shape in both branches; a value whose shape only its own branch knows is computed again instead.
    """
    repeats = _repeats(op, node)
    needed: list[list[Value]] = []
    for a in adjoints:
        a.move_shapes()
        _read_results(a, node)
        if repeats:
            hidden = {v for v in a.residuals() if not _known_outside(op, node, v)}
            replay(a, producers(a.region, hidden, set(), op.captures))
            _read_results(a, node)
        needed.append(a.residuals())
    partners: dict[Type | None, list[Value]] = {}
    for w in reversed(needed[1]):
        partners.setdefault(w.type, []).append(w)
    for v in needed[0]:
        same = partners.get(v.type)
        _yield(op, node, adjoints, (v, same.pop() if same else None), repeats)
    for left in partners.values():
        for w in reversed(left):
            _yield(op, node, adjoints, (None, w), repeats)


def _read_results(a: Adjoint, node: Node) -> None:
    """Let an adjoint read what the primal If returns anyway."""
    for v, r in dict(zip(a.region.outputs, node.outputs, strict=False)).items():
        if not contradict(r.shape, v.shape):
            a.retarget(v, r)


def _yield(op: Builder, node: Node, adjoints: Sequence[Adjoint], values: Sequence[Value | None], exact: bool) -> None:
    """One more result of an If: a value of each branch, or an unused one of that type."""
    t = next(v.type for v in values if v is not None)
    result = add_result(node, t)
    if None in values and not exact and isinstance(t, TensorType) and t.shape is not None:
        result.type = TensorType(t.dtype, tuple(op.model.fresh_dim() for _ in t.shape))
    for a, v in zip(adjoints, values, strict=True):
        if v is None:
            a.region.add_output(dummy(op.inside(a.region), t, exact))
        else:
            a.region.add_output(v)
            a.retarget(v, result)


def _repeats(op: Builder, node: Node) -> bool:
    """True where a node may stand inside of a loop."""
    g = node.graph
    while g is not op.root:
        if g is None or g.parent is None or g.parent.op_type != "If":
            return True
        g = g.parent.graph
    return False


def _known_outside(op: Builder, node: Node, v: Value) -> bool:
    """True where the shape of a value inside of a branch can be read off values around the If."""
    if not isinstance(v.type, TensorType):
        return True
    if v.shape is None:
        return False
    places = [op.scope.dim(d) for d in v.shape if isinstance(d, str)]
    around = set()
    g = node.graph
    while g is not None:
        around.add(g)
        g = g.enclosing
    return all(p is not None and p[0].graph in around for p in places)
