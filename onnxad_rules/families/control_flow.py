"""If: it stays an If, and only the branch that is taken computes a derivative."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.types import DataType, TensorType, Type
from onnxad_rules.activity import activity
from onnxad_rules.kinds import control
from onnxad_rules.node import NodeView
from onnxad_rules.recompute import cheap_producers, producers, replay
from onnxad_rules.regions import Adjoint, contradict, dummy, last, push_region
from onnxad_rules.tangent_space import at_border, tangent_type, zeros

#: In a branch of so many Ifs, one around another, what is cheap is computed again and not returned by all of them.
_DEEP = 4


def _branches(node: Node) -> tuple[Graph, Graph]:
    return node.attributes["then_branch"], node.attributes["else_branch"]


def _push_if(op: Builder, n: NodeView, tangents: Mapping[Value, Var]) -> list[Var | None]:
    """The same If also yields the tangents of its results."""
    node, branches = n.node, _branches(n.node)
    back = last(op, node)
    pushed = [push_region(op, g, tangents, n.rules) for g in branches]
    results: list[Var | None] = [None] * len(node.outputs)
    for i, v in enumerate(node.outputs):
        if not n.rules.crosses(v.type) or all(ts[i] is None for _, ts in pushed):
            continue
        for g, (inner, ts) in zip(branches, pushed, strict=True):
            t = at_border(inner, ts[i] or zeros(inner, g.outputs[i]), v)
            g.add_output(t.value)
        results[i] = op.var(node.add_result(tangent_type(v.type)))
    op.captures.forget(node)
    back()
    return results


@control("If", forward=_push_if)
def _pull_if(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Iterable[Value]) -> list[tuple[Value, Var]]:
    """A second If on the same condition. What its branches read of the first comes as further results of the first."""
    node, branches = n.node, _branches(n.node)
    condition = node.inputs[0]
    adjoints = []
    alike = [v.shape is not None and v.shape == w.shape for v, w in zip(*(g.outputs for g in branches), strict=True)]
    for g in branches:
        a = Adjoint(op, g, n.rules)
        for v, ct, same in zip(g.outputs, cts, alike, strict=False):
            if ct is not None:
                a.seed(v, a.taken(v, ct, same))
        a.sweep(activity(g, wanted, a.cotangents, n.rules, op.captures))
        adjoints.append(a)
    received = [{v: c for v in wanted if (c := a.total(v)) is not None} for a in adjoints]
    targets = [v for v in wanted if any(v in r for r in received)]
    if not targets:
        for a in adjoints:
            a.graph.detach()
        return []
    for a, r in zip(adjoints, received, strict=True):
        a.graph.set_outputs(at_border(a.op, r.get(v) or zeros(a.op, v), v).value for v in targets)
        a.prune()
    _provide(op, node, adjoints)
    then, other = (a.graph for a in adjoints)
    result = Node("If", (condition,), {"then_branch": then, "else_branch": other}, ("",) * len(targets), name=op.label)
    return list(zip(targets, map(op.var, op.place_typed(result, [tangent_type(v.type) for v in targets])), strict=True))


def _provide(op: Builder, node: Node, adjoints: Sequence[Adjoint]) -> None:
    """Make the primal If yield what the adjoints of its branches read.

    A result that one branch has no use for is empty there. Inside of a loop, which stacks it, it has to have the same
    shape in both branches; a value whose shape only its own branch knows is computed again instead. What is read deep
    in a nest of Ifs would be one more result of each of them; what is cheap is rather computed again there.
    """
    assert node.graph is not None
    around = op.nesting.branches(node.graph, op.root)  # None: it may be inside of a loop
    needed: list[list[Value]] = []
    for a in adjoints:
        a.move_shapes()
        _read_results(a, node)
        residuals, again = a.residuals(), list[Node]()
        if around is None:
            hidden = set(residuals) - _known_around(op, node, residuals)
            again = producers(a.region, hidden, set(), op.captures)
        elif around >= _DEEP:
            again = cheap_producers(a.region, residuals, op.root)
        if again:
            replay(a, again)
            _read_results(a, node)
            residuals = a.residuals()
        needed.append(residuals)
    _yield(op, node, adjoints, _pairs(*needed), exact=around is None)


def _pairs(then: Sequence[Value], other: Sequence[Value]) -> list[tuple[Value | None, Value | None]]:
    """Values of the one and the other branch that can share a result, as they have the same type."""
    partners: dict[Type | None, list[Value]] = {}
    for w in reversed(other):
        partners.setdefault(w.type, []).append(w)
    pairs: list[tuple[Value | None, Value | None]] = []
    for v in then:
        same = partners.get(v.type)
        pairs.append((v, same.pop() if same else None))
    return pairs + [(None, w) for left in partners.values() for w in reversed(left)]


def _read_results(a: Adjoint, node: Node) -> None:
    """Let an adjoint read what the primal If returns anyway."""
    for v, r in dict(zip(a.region.outputs, node.outputs, strict=False)).items():
        if not contradict(r.shape, v.shape):
            a.retarget(v, r)


def _yield(
    op: Builder,
    node: Node,
    adjoints: Sequence[Adjoint],
    pairs: Sequence[tuple[Value | None, Value | None]],
    exact: bool,
) -> None:
    """Further results of an If: a value of each branch, or for None an unused one of that type."""
    results = list(node.outputs)
    yields = [list(a.region.outputs) for a in adjoints]
    # what is put into the primal must not read what the adjoint, which is written after it, has of the same kind
    builders = [op.apart(a.region) for a in adjoints]
    empty: dict[tuple[DataType, int], Value] = {}
    for pair in pairs:
        t = next(v.type for v in pair if v is not None)
        result = Value("", t, node, len(results))
        results.append(result)
        shared = None
        if None in pair and not exact and isinstance(t, TensorType) and t.shape is not None:
            result.type = TensorType(t.dtype, tuple(op.model.fresh_dim() for _ in t.shape))
            shared = t.dtype, len(t.shape)
        for a, v, yielded, inner in zip(adjoints, pair, yields, builders, strict=True):
            if v is not None:
                yielded.append(v)
                a.retarget(v, result)
                continue
            for d in (t.shape or ()) if exact and isinstance(t, TensorType) else ():
                if isinstance(d, str) and (place := op.scope.dim(d)) is not None:
                    inner.scope.dims[d] = place
            filler = empty.get(shared) if shared else None
            if filler is None:
                filler = dummy(inner, t, exact)
                if shared:
                    empty[shared] = filler
            yielded.append(filler)
    node.outputs = tuple(results)
    for a, yielded in zip(adjoints, yields, strict=True):
        a.region.set_outputs(yielded)


def _known_around(op: Builder, node: Node, values: Sequence[Value]) -> set[Value]:
    """Those of the values inside of a branch whose shapes can be read off values around the If."""
    around = set()
    g = node.graph
    while g is not None:
        around.add(g)
        g = g.enclosing

    def known(v: Value) -> bool:
        if not isinstance(v.type, TensorType):
            return True
        places = [op.scope.dim(d) for d in v.shape or () if isinstance(d, str)]
        return v.shape is not None and all(p is not None and p[0].graph in around for p in places)

    return {v for v in values if known(v)}
