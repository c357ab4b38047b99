"""How a kind becomes two modes. The only file that knows; a rule never sees accumulation, zeros or activity.

`push` and `pull` do one node. The sweeps of the passes, the transposition of a pushforward and the differentiation of
a decomposition are all loops over these two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

from onnxad_ir.builder import Builder, Var, key_of
from onnxad_ir.core import Graph, Node, Value, clone_graph
from onnxad_ir.diagnostics import describe
from onnxad_ir.peephole import same_shape
from onnxad_ir.types import TensorType, is_floating
from onnxad_rules.activity import varying
from onnxad_rules.context import survey_inside
from onnxad_rules.kinds import Decompose, Multilinear, Pair, Pushforward, Rule, Times
from onnxad_rules.node import NodeView
from onnxad_rules.ranks import pull_by_rank, push_by_rank, ranked, unsettled
from onnxad_rules.ruleset import NotDifferentiable, Ruleset, UnsupportedOperator
from onnxad_rules.specification import expand_body
from onnxad_rules.tangent_space import add, zeros

Tangents = Sequence[Var | None]
#: Cotangent contributions collected per value; their sum is its cotangent.
Cotangents = dict[Value, list[Var]]

#: Operators, and the positions of operands, that read the shape or type of a tensor only.
_READ_THE_FORM = frozenset({("Shape", 0), ("Size", 0), ("CastLike", 1)})


class Tangent:
    """The tangents of a node's operands by the names of its schema; None where an operand is inactive."""

    __slots__ = ("_n", "_t")

    def __init__(self, n: NodeView, t: Tangents):
        self._n = n
        self._t = t

    def __getattr__(self, name: str) -> Any:
        f = self._n.facts
        i = f.inputs.get(name)
        if i is None:
            raise AttributeError(f"{self._n.node.op_type} has no operand {name!r}")
        if name == f.variadic_input:
            return list(self._t[i:])
        return self._t[i] if i < len(self._t) else None


def find(rules: Ruleset, n: NodeView) -> Rule:
    """The rule that applies to a node; UnsupportedOperator where there is none."""
    for rule in rules.candidates(n.node):
        if rule.when is None or rule.when(n):
            return rule
    raise UnsupportedOperator(f"no derivative rule for {describe(n.node)}", (n.node,))


def push(op: Builder, node: Node, tangents: dict[Value, Var], rules: Ruleset) -> None:
    """Emit the tangents of a node's results from those of its operands, and record them in `tangents`."""
    allowed = rules.differentiable(node)
    ts = [tangents.get(v) if v is not None and ok else None for v, ok in zip(node.inputs, allowed, strict=True)]
    captured = {v: tangents[v] for v in op.captures[node] if v in tangents} if node.regions else {}
    if not captured and all(t is None for t in ts):
        return
    if not node.regions:  # what is written into a region, or made for one, cannot read what the node returns
        op.scope.define(*node.outputs)
    n = NodeView(op, node, rules)
    rule = find(rules, n)
    if rule.ranks is not None and rule.kind == "decompose":
        if choices := unsettled(op, n, rule.ranks(n)):
            push_by_rank(op, n, choices, tangents, push)
            return
        ts = ranked(op, ts, node.inputs)
    if rule.kind in _PUSH_BY_VALUE:
        own = {v: t for v, t in zip(node.inputs, ts, strict=True) if v is not None and t is not None}
        results = _PUSH_BY_VALUE[rule.kind](op, rule, n, {**captured, **own})
    elif captured:
        raise _blind(n)
    else:
        results = _PUSH[rule.kind](op, rule, n, ts)
    for v, t in zip(node.outputs, results, strict=False):
        if t is not None and rules.carries(node, v):
            t = op.expand_to(t, op.var(v)) if _may_be_smaller(t.value, v) else t
            tangents[v] = op.fit_type(t, op.var(v))


def pull(op: Builder, node: Node, cotangents: Cotangents, active: Callable[[Value], bool], rules: Ruleset) -> None:
    """Emit what the operands of a node receive from the cotangents of its results, and add it to `cotangents`."""
    if not any(v in cotangents for v in node.outputs):
        return
    allowed = rules.differentiable(node)
    wanted = [v is not None and ok and active(v) for v, ok in zip(node.inputs, allowed, strict=True)]
    captured = [v for v in op.captures[node] if active(v) and rules.carries(node, v)] if node.regions else []
    if not captured and not any(wanted):
        return
    n = NodeView(op, node, rules)
    rule = find(rules, n)
    cts = [total(op, cotangents, v) for v in node.outputs]
    if rule.ranks is not None:
        if choices := unsettled(op, n, rule.ranks(n)):
            targets = _targets(node, wanted, captured)
            pull_by_rank(op, n, choices, cts, targets, cotangents, pull)
            return
        cts = ranked(op, cts, node.outputs)
    if rule.kind in _PULL_BY_VALUE:
        targets = _targets(node, wanted, captured)
        for target, ct in _PULL_BY_VALUE[rule.kind](op, rule, n, cts, targets):
            cotangents.setdefault(target, []).append(op.fit_type(ct, op.var(target)))
        return
    if captured:
        raise _blind(n)
    for v, c, w in zip(node.inputs, _PULL[rule.kind](op, rule, n, cts, wanted), wanted, strict=False):
        if c is not None and w and v is not None:
            cotangents.setdefault(v, []).append(op.fit_type(c, op.var(v)))


def _targets(node: Node, wanted: Sequence[bool], captured: Iterable[Value]) -> dict[Value, None]:
    """What a node has contributions for, operands first."""
    own = (v for v, w in zip(node.inputs, wanted, strict=True) if w and v is not None)
    return dict.fromkeys([*own, *captured])


def _blind(n: NodeView) -> UnsupportedOperator:
    return UnsupportedOperator(
        f"the rule of {describe(n.node)} knows its operands only, but its regions read values that are differentiated; "
        "declare it with `control`",
        (n.node,),
    )


def total(op: Builder, cotangents: Cotangents, value: Value) -> Var | None:
    """The cotangent of a value: the sum of what it received, None where it received nothing."""
    terms = cotangents.get(value)
    if not terms:
        return None
    if len(terms) > 1:
        s = op.add_n(terms) if isinstance(value.type, TensorType) else reduce(partial(add, op), terms)
        assert s is not None
        cotangents[value] = terms = [s]
    return terms[0]


def _may_be_smaller(t: Value, v: Value) -> bool:
    """True where a tangent may still have to be broadcast to the shape of its value."""
    if same_shape(t, v):
        return False
    a, b = t.shape, v.shape
    if a is None or b is None:
        return False  # rules answer for their own shapes where ranks are unknown
    return len(a) < len(b) or any(x == 1 and y != 1 for x, y in zip(a, b, strict=True))


# --- looking a declaration up


def _declared(rule: Rule, n: NodeView, index: int) -> tuple[Any, tuple[int, ...]]:
    """What `rule` declares for the operand at a position, and the extra argument of a variadic one."""
    name = n.formal(index)
    formals = rule.formals or {}
    if name not in formals:
        why = rule.refuse.get(name) or "its derivative is not defined by the operator's rule"
        raise NotDifferentiable(
            f"operand {name!r} of {describe(n.node)} is differentiated, but {why}; "
            "leave it out of the inputs to differentiate, or make it a constant",
            (n.node,),
        )
    return formals[name], (index - n.facts.inputs[name],) if name == n.facts.variadic_input else ()


def _scaled(op: Builder, n: NodeView, x: Var, d: Any, extra: tuple[int, ...]) -> Var | None:
    """x times the partial `d` of an elementwise rule."""
    if isinstance(d, Times):
        return d.fn(op, n, x, *extra)
    if not isinstance(d, int | float):
        d = d(op, n, *extra)
    if d is None:
        return None
    if isinstance(d, int | float):
        return x if d == 1 else op.Neg(x) if d == -1 else x * op.like(d, x)
    return op.Mul(x, d)


# --- forward


def _push_elementwise(op: Builder, rule: Rule, n: NodeView, ts: Tangents) -> Tangents:
    out = n.result(0)
    terms: list[Var | None] = []
    for i, t in enumerate(ts):
        if t is not None:
            d, extra = _declared(rule, n, i)
            scaled = _scaled(op, n, t, d, extra)
            terms.append(None if scaled is None else op.expand_to(scaled, out))
    return (op.add_n(terms),)


def _again(op: Builder, n: NodeView, inputs: list[Value | None]) -> Tangents:
    """The operator itself on other operands."""
    node = n.node
    attributes = {k: clone_graph(a) if isinstance(a, Graph) else a for k, a in node.attributes.items()}
    results = op.emit(node.op_type, inputs, attributes, len(node.outputs), node.domain)
    return tuple(map(op.var, results))


def _push_linear(op: Builder, rule: Rule, n: NodeView, ts: Tangents) -> Tangents:
    inputs = list(n.node.inputs)
    names = rule.formals or {}
    for i, v in enumerate(inputs):
        t = ts[i]
        if t is not None:
            _declared(rule, n, i)
            inputs[i] = t.value
        elif v is not None and n.formal(i) in names and is_floating(v.type):
            inputs[i] = zeros(op, v).value
    return _again(op, n, inputs)


def _push_multilinear(op: Builder, rule: Rule, n: NodeView, ts: Tangents) -> Tangents:
    assert isinstance(rule, Multilinear)
    terms: list[Var | None] = []
    for i, t in enumerate(ts):
        if t is None:
            continue
        _declared(rule, n, i)
        if (add := rule.additive.get(n.formal(i))) is not None:
            terms.append(add(op, n, t))
            continue
        inputs = [None if n.formal(k) in rule.additive else v for k, v in enumerate(n.node.inputs)]
        inputs[i] = t.value
        (again,) = _again(op, n, inputs)
        assert again is not None
        terms.append(op.expand_to(again, n.result(0)))
    return (op.add_n(terms),)


def _tangent_of(op: Builder, rule: Pushforward, n: NodeView, ts: Tangents) -> list[Var | None]:
    """The tangents of the results that a pushforward declares."""
    if rule.whole is not None:
        for i, t in enumerate(ts):
            if t is not None and n.formal(i) in rule.refuse:
                _declared(rule, n, i)
        return _as_list(n, rule.whole(op, n, Tangent(n, ts)))
    sums: list[list[Var | None]] = [[] for _ in n.node.outputs]
    for i, t in enumerate(ts):
        if t is not None:
            f, extra = _declared(rule, n, i)
            for terms, term in zip(sums, _as_list(n, f(op, n, t, *extra)), strict=True):
                terms.append(term)
    return [op.add_n(terms) for terms in sums]


def _as_list(n: NodeView, result: Any) -> list[Var | None]:
    """A rule's answer, one Var, a tuple, or a dict by result name, as a list by position."""
    count = len(n.node.outputs)
    if isinstance(result, dict):
        out: list[Var | None] = [None] * count
        for name, v in result.items():
            if (i := n.facts.outputs[name]) < count:
                out[i] = v
        return out
    found = list(result) if isinstance(result, tuple | list) else [result]
    return (found + [None] * count)[:count]


def _push_pushforward(op: Builder, rule: Rule, n: NodeView, ts: Tangents) -> Tangents:
    assert isinstance(rule, Pushforward)
    return _tangent_of(op, rule, n, ts)


def _push_decompose(op: Builder, rule: Rule, n: NodeView, ts: Mapping[Value, Var]) -> Tangents:
    scratch, results, holes = _decomposition(op, rule, n, ts)
    tangents = {holes.get(v, v): scratch.var(t) for v, t in ts.items()}
    body = list(scratch.nodes)
    scratch.survey = survey_inside(op, n.node, body)
    scratch.nodes.clear()
    for node in body:
        scratch.nodes.append(node)
        push(scratch, node, tangents, n.rules)
    out = [None if r is None else tangents.get(r.value) for r in results]
    _reuse(results, n, body)
    _fill(holes)
    _commit(op, scratch, [t.value for t in out if t is not None])
    return [None if t is None else op.var(t) for t in out]


def push_composition(op: Builder, n: NodeView, ts: Tangents) -> Tangents:
    """The tangents of the results of a node by way of its composition: for a `pair` that is by hand in reverse only."""
    rule = n.rules.composition(n, asked=True)
    if rule is None:
        raise UnsupportedOperator(f"there is no composition for {describe(n.node)}", (n.node,))
    own = {v: t for v, t in zip(n.node.inputs, ts, strict=True) if v is not None and t is not None}
    return _push_decompose(op, rule, n, own)


def _push_pair(op: Builder, rule: Rule, n: NodeView, ts: Tangents) -> Tangents:
    assert isinstance(rule, Pair)
    return _as_list(n, rule.forward(op, n, ts))


# --- reverse


def _pull_elementwise(op: Builder, rule: Rule, n: NodeView, cts: Tangents, wanted: Sequence[bool]) -> Tangents:
    ct = cts[0]
    assert ct is not None
    alone = len(n.node.inputs) == 1  # has the shape of the result, also where nobody knows either
    out: list[Var | None] = []
    for i, w in enumerate(wanted):
        if not w:
            out.append(None)
            continue
        d, extra = _declared(rule, n, i)
        if isinstance(d, int | float):  # a number is cheaper to apply after the sum
            out.append(_scaled(op, n, ct if alone else op.sum_to(ct, n.operand(i)), d, extra))
            continue
        scaled = _scaled(op, n, ct, d, extra)
        out.append(scaled if scaled is None or alone else op.sum_to(scaled, n.operand(i)))
    return out


def _pull_linear(op: Builder, rule: Rule, n: NodeView, cts: Tangents, wanted: Sequence[bool]) -> Tangents:
    # an operator with several results gets all their cotangents, None for those that have none
    ct = cts[0] if len(n.node.outputs) == 1 else list(cts)
    out: list[Var | None] = []
    for i, w in enumerate(wanted):
        if w:
            f, extra = _declared(rule, n, i)
            out.append(f(op, n, ct, *extra))
        else:
            out.append(None)
    return out


def _pull_pushforward(op: Builder, rule: Rule, n: NodeView, cts: Tangents, wanted: Sequence[bool]) -> Tangents:
    """Transpose the linear program that the pushforward writes.

    It is written on placeholders for the tangents. What does not depend on them stays; what does is swept backwards by
    the rules of its (linear) operators. Where one of those asks for the shape of something it swept over, and only
    the run tells it, the program is kept with the operands themselves for tangents: they have the same shapes.
    """
    assert isinstance(rule, Pushforward)
    scratch = op.scratch()
    holes: list[Value | None] = []
    for v, w in zip(n.node.inputs, wanted, strict=True):
        holes.append(Value("", v.type, op.graph) if w and v is not None else None)
    ts = [None if h is None else scratch.var(h) for h in holes]
    results = _tangent_of(scratch, rule, NodeView(scratch, n.node, n.rules), ts)
    body = list(scratch.nodes)
    depends = {h for h in holes if h is not None}
    program: list[Node] = []
    for node in body:
        if any(v in depends for v in node.inputs):
            depends.update(node.outputs)
            program.append(node)
    cotangents: Cotangents = {}
    for r, ct, v in zip(results, cts, n.node.outputs, strict=False):
        if r is not None and ct is not None:
            smaller = _may_be_smaller(r.value, v)
            ct = scratch.var(ct)
            cotangents.setdefault(r.value, []).append(scratch.sum_to(ct, r) if smaller else ct)
    for node in reversed(program):
        pull(scratch, node, cotangents, depends.__contains__, n.rules)
    out = [None if h is None else total(scratch, cotangents, h) for h in holes]
    _check_linear(
        n, scratch.nodes, program, {h for h in holes if h is not None}, [c.value for c in out if c is not None]
    )
    for h, v in zip(holes, n.node.inputs, strict=True):
        if h is not None and v is not None:
            h.replace_by(v)
    _commit(op, scratch, [c.value for c in out if c is not None])
    return [None if c is None else op.var(c) for c in out]


def _check_linear(n: NodeView, nodes: list[Node], program: list[Node], holes: set[Value], results: list[Value]) -> None:
    """Raise where the transpose of a program reads the numbers of what it swept over: then that was not linear."""
    numbers = holes.copy()
    for node in program:
        if _reads(node, numbers):
            numbers.update(node.outputs)
    needed, own = set(results), set(program)
    for node in reversed(nodes):
        if node in own or needed.isdisjoint(node.outputs):
            continue
        if _reads(node, numbers):
            raise UnsupportedOperator(
                f"the pushforward given for {describe(n.node)} is not linear in the tangent, so that there is no "
                f"transpose: the derivative of what it writes depends on the tangent ({node.op_type} reads it)",
                (n.node,),
            )
        needed.update(v for v in node.inputs if v is not None)


def _reads(node: Node, numbers: set[Value]) -> bool:
    """True where an operator reads the numbers of one of some values, not its form only."""
    return any(v in numbers and (node.op_type, i) not in _READ_THE_FORM for i, v in enumerate(node.inputs))


def _pull_decompose(
    op: Builder, rule: Rule, n: NodeView, cts: Tangents, wanted: Iterable[Value]
) -> list[tuple[Value, Var]]:
    wanted = list(wanted)
    scratch, results, holes = _decomposition(op, rule, n, wanted)
    body = list(scratch.nodes)
    scratch.survey = survey_inside(op, n.node, body)
    active = varying(body, [holes.get(v, v) for v in wanted], n.rules, op.captures)[0]
    cotangents: Cotangents = {}
    for r, ct in zip(results, cts, strict=False):
        if r is not None and ct is not None:
            cotangents.setdefault(r.value, []).append(scratch.var(ct))
    for node in reversed(body):
        pull(scratch, node, cotangents, active.__contains__, n.rules)
    out = [(v, c) for v in wanted if (c := total(scratch, cotangents, holes.get(v, v))) is not None]
    _reuse(results, n, body)
    _fill(holes)
    _commit(op, scratch, [c.value for _, c in out])
    return [(v, op.var(c)) for v, c in out]


def _pull_pair(op: Builder, rule: Rule, n: NodeView, cts: Tangents, wanted: Sequence[bool]) -> Tangents:
    assert isinstance(rule, Pair)
    result = rule.reverse(op, n, cts, wanted)
    return result if isinstance(result, list | tuple) else [result]


# --- programs written on the side


def _decomposition(
    op: Builder, rule: Rule, n: NodeView, varied: Iterable[Value]
) -> tuple[Builder, list[Var | None], dict[Value, Value]]:
    """The operator in terms of others, written by a scratch builder, and its results by position.

    It is written on placeholders for what is in `varied`, of its operands and of what its regions read, which `_fill`
    replaces. On the values themselves, an expression could turn out to be there already, or to be known from what
    computes one: nothing of what is written would then lead from it to there, and its derivative would be lost.
    """
    scratch, node = op.scratch(), n.node
    operands, attributes = node.inputs, node.attributes
    read = {*operands, *op.captures[node]}
    holes = {v: Value("", v.type, op.graph) for v in varied if v in read}
    node.inputs = tuple(None if v is None else holes.get(v, v) for v in operands)
    if node.regions:
        node.attributes = {k: clone_graph(a, dict(holes)) if isinstance(a, Graph) else a for k, a in attributes.items()}
    try:
        return scratch, decomposition(scratch, rule, n), holes
    finally:
        for a in node.attributes.values() if node.regions else ():
            if isinstance(a, Graph) and a.parent is None:  # no node of what was written has adopted it
                a.detach()
        node.inputs, node.attributes = operands, attributes


def _fill(holes: Mapping[Value, Value]) -> None:
    for v, hole in holes.items():
        hole.replace_by(v)


def decomposition(op: Builder, rule: Rule, n: NodeView) -> list[Var | None]:
    """Write an operator in terms of others, by a `decompose` rule, and return its results by position."""
    assert isinstance(rule, Decompose)
    results = _as_list(n, expand_body(op, n.node) if rule.fn is None else rule.fn(op, NodeView(op, n.node, n.rules)))
    if all(r is None for r in results):
        raise UnsupportedOperator(f"the composition given for {describe(n.node)} returns nothing", (n.node,))
    return results


def _reuse(results: list[Var | None], n: NodeView, body: list[Node]) -> None:
    """Let everything that reads a result of the decomposition read the node's own result, which is there already."""
    inside = {v for node in body for v in node.outputs}
    for r, v in zip(results, n.node.outputs, strict=False):
        if r is not None and r.value in inside and same_type(r.value, v):
            r.value.replace_by(v)


def same_type(a: Value, b: Value) -> bool:
    """True where two values have the same element type and are not known to differ in shape."""
    return isinstance(a.type, TensorType) and isinstance(b.type, TensorType) and a.type.dtype == b.type.dtype


def _commit(op: Builder, scratch: Builder, results: list[Value]) -> None:
    """Move what `results` need from a scratch builder to `op`, drop the rest, and share what was moved."""
    needed = set(results)
    kept: list[Node] = []
    for node in reversed(scratch.nodes):
        if any(v.users or v in needed for v in node.outputs):
            kept.append(node)
        else:
            node.detach()
    for node in reversed(kept):
        key = key_of(node)
        found = None if key is None else op.scope.expression(key)
        if found is not None and needed.isdisjoint(node.outputs):
            for old, new in zip(node.outputs, found, strict=True):
                old.replace_by(new)
            node.detach()
            continue
        op.nodes.append(node)
        if key is not None and found is None:
            op.scope.remember(key, node.outputs)
        op.scope.define(*node.outputs)


_PUSH: dict[str, Callable[[Builder, Any, NodeView, Tangents], Tangents]] = {
    "elementwise": _push_elementwise,
    "linear": _push_linear,
    "multilinear": _push_multilinear,
    "pushforward": _push_pushforward,
    "pair": _push_pair,
    "zero": lambda op, rule, n, ts: (),
}
_PUSH_BY_VALUE: dict[str, Callable[[Builder, Any, NodeView, Mapping[Value, Var]], Tangents]] = {
    "decompose": _push_decompose,
    "control": lambda op, rule, n, ts: rule.forward(op, n, ts),
}
_PULL_BY_VALUE: dict[str, Callable[[Builder, Any, NodeView, Tangents, Iterable[Value]], list[tuple[Value, Var]]]] = {
    "decompose": _pull_decompose,
    "control": lambda op, rule, n, cts, wanted: rule.reverse(op, n, cts, wanted),
}
_PULL: dict[str, Callable[[Builder, Any, NodeView, Tangents, Sequence[bool]], Tangents]] = {
    "elementwise": _pull_elementwise,
    "linear": _pull_linear,
    "multilinear": _pull_linear,
    "pushforward": _pull_pushforward,
    "pair": _pull_pair,
    "zero": lambda op, rule, n, cts, wanted: (),
}
