"""Derivatives of local functions that are kept: each is differentiated once, and its derivative is called.

A function has one derivative for every combination of operands that carry a derivative (and, in reverse mode, of
results that have a cotangent). Its body is typed (`specialize-functions`), so it is swept as a main graph is.

    forward     the call becomes a call of a copy that takes tangents as well and returns those of its results
    reverse     the function returns besides what its adjoint reads of it, so that nothing is computed twice; the
                adjoint is another function, of those values, of operands and of cotangents
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Function, FunctionKey, Graph, Model, Node, Value, clone_constant, clone_graph
from onnxad_ir.infer import Inference
from onnxad_ir.traverse import Captures
from onnxad_ir.types import can_vary
from onnxad_rules.activity import activity, reached
from onnxad_rules.context import facts_of
from onnxad_rules.derive import Cotangents, pull, total
from onnxad_rules.kinds import Pair, Rule
from onnxad_rules.node import NodeView
from onnxad_rules.regions import last, push_region
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.survey import Survey
from onnxad_rules.tangent_space import at_border, tangent_type

#: A constant of at most this many elements is repeated in the adjoint; a larger one that both read is handed to it.
_REPEATED = 64


def with_functions(rules: Ruleset, model: Model) -> Ruleset:
    """A rule set that also has a rule for every local function of a model. Its body goes before any other rule."""
    if not model.functions:
        return rules
    calls = _Calls(model)
    functions = list(model.functions.values())
    whole = {(f.domain, f.name) for f in functions} if rules.whole else set[tuple[str, str]]()
    effects: dict[FunctionKey, int] = {}
    flows: dict[FunctionKey, list[frozenset[int]]] = {}
    calls.rules = rules.merge((calls.rule(f) for f in functions), whole).with_calls(effects, flows)
    for f in callees_first(model):  # what is known of a function rests on what is known of those that it calls
        flows[f.key] = _flow(f, calls.rules)
        effects[f.key] = Survey(f.body.nodes, 0, effects).effects(f.body)
    return calls.rules


def callees_first(model: Model) -> list[Function]:
    """The functions of a model, each after those that it calls. Recursion is as deep as calls nest."""
    order: dict[FunctionKey, Function] = {}

    def visit(f: Function) -> None:
        for n in f.body.walk():
            called = model.called(n)
            if called is not None and called.key not in order:
                visit(called)
        order[f.key] = f

    for f in model.functions.values():
        if f.key not in order:
            visit(f)
    return list(order.values())


def _flow(f: Function, rules: Ruleset) -> list[frozenset[int]]:
    """Per result, the operands that it depends on differentiably."""
    operands = [i for i, v in enumerate(f.body.inputs) if can_vary(v.type) or rules.crosses(v.type)]
    found = reached(f.body.nodes, {f.body.inputs[i]: 1 << i for i in operands}, rules, Captures())[0]
    return [frozenset(i for i in operands if found.get(v, 0) >> i & 1) for v in f.body.outputs]


def complete_calls(model: Model) -> None:
    """Let every call list all results of its function: ONNX Runtime refuses one that leaves out the last ones."""
    for body in model.bodies():
        for n in body.walk() if model.functions else ():
            f = model.called(n)
            if f is not None:
                for v, formal in zip(n.outputs, f.body.outputs, strict=False):
                    if not v.name and not v.users:  # a result without a name is written as left out
                        v.name = formal.name or "unused"
                for formal in f.body.outputs[len(n.outputs) :]:
                    n.add_result(None, formal.name or "unused")


@dataclass
class _Forward:
    """The function with tangents, and where it returns the tangent of each result (None: there is none)."""

    function: Function
    tangents: list[int | None]


@dataclass
class _Reverse:
    """The adjoint: where each of its operands comes from, and which operand of the call each result is for."""

    function: Function
    operands: list[tuple[Literal["in", "out", "ct"], int]]
    targets: list[int]


class _Calls:
    """The derivatives of the functions of a model, made when a call asks for them first."""

    def __init__(self, model: Model):
        self.model = model
        self.rules = Ruleset()
        self.forwards: dict[tuple[object, ...], _Forward | None] = {}
        self.reverses: dict[tuple[object, ...], _Reverse | None] = {}

    def rule(self, f: Function) -> Rule:
        """The rule for calls of a function."""

        def named(n: NodeView) -> bool:
            return n.node.overload == f.overload

        def push(op: Builder, n: NodeView, ts: Sequence[Var | None]) -> list[Var | None]:
            return self.push(op, n, f, ts)

        def pull(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]) -> list[Var | None]:
            return self.pull(op, n, f, cts, wanted)

        return Pair(f.name, f.domain, None, when=named, forward=push, reverse=pull)

    # --- forward

    def push(self, op: Builder, n: NodeView, f: Function, ts: Sequence[Var | None]) -> list[Var | None]:
        """Turn a call into one that takes tangents and returns them."""
        node, facts = n.node, facts_of(op, n)
        at = (f.key, facts, tuple(t is not None for t in ts))
        if at not in self.forwards:
            self.forwards[at] = self.forward(f, facts, [i for i, t in enumerate(ts) if t is not None])
        made = self.forwards[at]
        if made is None:
            return []
        count = len(node.outputs)
        padding = (None,) * (len(f.body.inputs) - len(node.inputs))
        back = last(op, node)
        taken = [at_border(op, t, v).value for t, v in zip(ts, node.inputs, strict=True) if t and v is not None]
        back()
        node.set_inputs([*node.inputs, *padding, *taken])
        node.op_type, node.overload = made.function.name, made.function.overload
        _extend(op, node, made.function, len(made.function.body.outputs))
        return [None if i is None else op.var(node.outputs[i]) for i in made.tangents[:count]]

    def forward(self, f: Function, facts: int, active: list[int]) -> _Forward | None:
        """The function that returns tangents besides; None where no result has one."""
        body = clone_graph(f.body)
        op = self.builder(body, f, facts, "forward")
        seeds = {}
        for i in active:
            v = body.inputs[i]
            seeds[v] = op.var(body.add_input("", tangent_type(v.type)))
        inner, ts = push_region(op, body, seeds, self.rules)
        tangents: list[int | None] = []
        for t, v in zip(ts, list(body.outputs), strict=True):
            tangents.append(None if t is None else len(body.outputs))
            if t is not None:
                body.add_output(at_border(inner, t, v).value)
        return None if all(t is None for t in ts) else _Forward(self.add(f, "fwd", body), tangents)

    # --- reverse

    def pull(
        self, op: Builder, n: NodeView, f: Function, cts: Sequence[Var | None], wanted: Sequence[bool]
    ) -> list[Var | None]:
        """Call the adjoint of the function."""
        node, facts = n.node, facts_of(op, n)
        seeded, sources = [j for j, c in enumerate(cts) if c is not None], [i for i, w in enumerate(wanted) if w]
        at = (f.key, facts, tuple(seeded), tuple(sources))
        if at not in self.reverses:
            self.reverses[at] = self.reverse(f, facts, seeded, sources)
        made = self.reverses[at]
        out: list[Var | None] = [None] * len(node.inputs)
        if made is None:
            return out
        _extend(op, node, f, 1 + max((i for kind, i in made.operands if kind == "out"), default=-1))
        given = [None if c is None else at_border(op, c, v).value for c, v in zip(cts, node.outputs, strict=False)]
        sources_of = {"in": node.inputs, "out": node.outputs, "ct": given}
        operands = [sources_of[kind][i] for kind, i in made.operands]
        g = made.function
        call = Node(g.name, operands, {}, ("",) * len(made.targets), g.domain, op.label, g.overload)
        for i, v in zip(made.targets, op.place(call), strict=True):
            out[i] = op.var(v)
        return out

    def reverse(self, f: Function, facts: int, seeded: list[int], sources: list[int]) -> _Reverse | None:
        """The adjoint of a function, which returns from now on what that reads of it; None where nothing arrives.

        The sweep is written behind the nodes of the function, as that of a main graph is; then they are parted.
        """
        body = f.body
        primal = body.nodes[:]
        op = self.builder(body, f, facts, "reverse")
        op.scope.define_all(body)
        seeds = {j: Value(f"ct_{v.name}", tangent_type(v.type), body) for j in seeded for v in [body.outputs[j]]}
        cotangents: Cotangents = {}
        for j, seed in seeds.items():
            cotangents.setdefault(body.outputs[j], []).append(op.var(seed))
        active = activity(body, [body.inputs[i] for i in sources], cotangents, self.rules, op.captures)
        op.survey = Survey(primal, facts, self.rules.calls)
        for node in reversed(primal):
            if any(v in active and v in cotangents for v in node.outputs):
                op.label = f"reverse({node.name or node.op_type})"
                pull(op, node, cotangents, active.__contains__, self.rules)
        found = [(i, c.value) for i in sources if (c := total(op, cotangents, body.inputs[i])) is not None]
        found = [(i, at_border(op, op.var(c), body.inputs[i]).value) for i, c in found]
        if not found:
            _part(body, primal, [])
            return None
        adjoint, read = _part(body, primal, [v for _, v in found])
        operands: list[tuple[Literal["in", "out", "ct"], int]] = []
        positions = {v: i for i, v in enumerate(body.inputs)}
        cts = {v: j for j, v in seeds.items()}
        outputs = list(body.outputs)
        returned = {v: i for i, v in reversed(list(enumerate(outputs)))}
        for v in read:
            if v in positions:
                operands.append(("in", positions[v]))
            elif v in cts:
                operands.append(("ct", cts[v]))
            else:
                if v not in returned:
                    returned[v] = len(outputs)
                    outputs.append(v)
                operands.append(("out", returned[v]))
        body.set_outputs(outputs)
        return _Reverse(self.add(f, "adj", adjoint), operands, [i for i, _ in found])

    # --- both

    def builder(self, body: Graph, f: Function, facts: int, label: str) -> Builder:
        """A builder for the body of a function."""
        inference = Inference(self.model, f.opset)
        return Builder(self.model, body, inference=inference, label=label, survey=Survey((), facts, self.rules.calls))

    def add(self, f: Function, kind: str, body: Graph) -> Function:
        """A new function of the model, called after the one it is the derivative of."""
        name, i = f"{f.name}_{kind}", 1
        while (f.domain, name, "") in self.model.functions:
            i += 1
            name = f"{f.name}_{kind}{i}"
        body.name = name
        g = Function(f.domain, name, "", body, dict(f.opset))
        self.model.functions[g.key] = g
        if self.rules.whole:
            self.rules.whole |= {(g.domain, g.name)}
        return g


def _extend(op: Builder, node: Node, f: Function, count: int) -> None:
    """Let a call return results of its function up to a number of them."""
    old = len(node.outputs)
    for v in f.body.outputs[old:count]:
        node.add_result(None, v.name)
    op.inference.node(node)
    op.scope.define(*node.outputs[old:])


def _part(body: Graph, primal: Iterable[Node], results: list[Value]) -> tuple[Graph, list[Value]]:
    """Move what the sweep has added to the body of a function to a graph of its own, which returns `results`.

    Returns that graph and what it reads: its inputs are for these. What nodes of the function have come to read stays.
    """
    stay = set(primal)
    moved: list[Node] = []
    needed = set(results)
    for n in reversed(body.nodes):
        if n in stay:
            continue
        if any(_top(body, u) in stay or u is body for v in n.outputs for u in v.users):
            stay.add(n)
        elif any(v.users or v in needed for v in n.outputs):
            moved.append(n)
        else:
            n.detach()
    body.nodes[:] = [n for n in body.nodes if n in stay]
    adjoint = Graph()
    for n in reversed(moved):
        adjoint.append(n)
    adjoint.set_outputs(results)
    read: dict[Value, None] = {}
    for n in adjoint.walk():
        for v in n.inputs:
            if v is not None and v.graph is body:
                read[v] = None
    for g in adjoint.graphs():
        for v in g.outputs:
            if v.graph is body:
                read[v] = None
    handed: list[Value] = []
    for v in read:
        if v.const is not None and (v.const.size <= _REPEATED or all(_inside(adjoint, u) for u in v.users)):
            new = clone_constant(v, adjoint)
        else:
            new = adjoint.add_input(v.name, v.type)
            new.content = v.content
            handed.append(v)
        _reread(adjoint, v, new)
    body.constants[:] = [c for c in body.constants if c.users]
    return adjoint, handed


def _top(body: Graph, user: Node | Graph) -> Node | None:
    """The node of a body that a user is, or is inside of."""
    node = user.parent if isinstance(user, Graph) else user
    while node is not None and node.graph is not body:
        node = None if node.graph is None else node.graph.parent
    return node


def _inside(graph: Graph, user: Node | Graph) -> bool:
    g: Graph | None = user.graph if isinstance(user, Node) else user
    while g is not None and g is not graph:
        g = g.enclosing
    return g is graph


def _reread(graph: Graph, old: Value, new: Value) -> None:
    """Let everything inside of a graph read `new` in the place of `old`."""
    for user in list(old.users):
        if not _inside(graph, user):
            continue
        if isinstance(user, Node):
            user.set_inputs(new if v is old else v for v in user.inputs)
        else:
            user.set_outputs(new if v is old else v for v in user.outputs)
