"""What the rules of If, Loop and Scan have in common: sweeps over a region, and what an adjoint region needs of it.

The adjoint of a region is written as if it stood inside: its nodes read the values of the primal region freely. When
it is complete, `residuals` lists what it reads; the rule then provides each of them (an extra result of the primal
node, a slice that is scanned again, a recomputation) and `retarget` makes the adjoint read that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.diagnostics import describe
from onnxad_ir.dims import terms
from onnxad_ir.types import Dim, SequenceType, Shape, TensorType, Type, map_tensors
from onnxad_rules.activity import activity
from onnxad_rules.context import survey_of_region
from onnxad_rules.derive import Cotangents, pull, push, total
from onnxad_rules.ruleset import Ruleset, UnsupportedOperator

#: Operators so cheap that their result is computed again rather than kept for the way back.
CHEAP = frozenset(
    """Abs Add And Cast CastLike Ceil Clip Concat Constant ConstantOfShape Cos Div Equal Exp Expand Floor Gather
    Greater GreaterOrEqual HardSigmoid Identity LeakyRelu Less LessOrEqual Log Max Min Mod Mul Neg Not Or Range
    Reciprocal Relu Reshape Round Shape Sigmoid Sign Sin Size Slice Softplus Split Sqrt Squeeze Sub Sum Tanh
    Transpose Unsqueeze Where Xor""".split()
)


# --- forward


def push_region(
    op: Builder, region: Graph, tangents: Mapping[Value, Var], rules: Ruleset
) -> tuple[Builder, list[Var | None]]:
    """Interleave tangents with the nodes of a region; return its builder and the tangents of its outputs.

    `tangents` holds those of the region's own inputs and of what it captures.
    """
    inner = op.inside(region)
    sinks = [v for v in region.outputs if rules.crosses(v.type)]
    active = activity(region, tangents, sinks, rules, op.captures)
    inside = {v: inner.var(t) for v, t in tangents.items()}
    inner.scope.define(*region.inputs)
    primal = list(region.nodes)
    inner.survey = survey_of_region(op, region, primal)
    region.nodes.clear()
    for node in primal:
        region.nodes.append(node)
        if any(v in active for v in node.outputs):
            inner.label = _derived("forward", op.label, node)
            push(inner, node, inside, rules)
        inner.scope.define(*node.outputs)
    inner.label = op.label
    return inner, [inside.get(v) for v in region.outputs]


def _derived(mode: str, label: str, node: Node) -> str:
    return f"{mode}({node.name or node.op_type})" if label else ""


def last(op: Builder, node: Node) -> Callable[[], None]:
    """Take the last node out of `op.nodes`, so that operands can be made for it; the result puts it back."""
    if not op.nodes or op.nodes[-1] is not node:
        raise AssertionError(f"{describe(node)} is not the last node: tangents must be interleaved with the primal")
    op.nodes.pop()

    def back() -> None:
        op.nodes.append(node)

    return back


# --- reverse


class Adjoint:
    """The adjoint of a region, under construction.

    `region` is the primal region, `graph` the adjoint one, `op` its builder; `cotangents` what values received.
    """

    def __init__(self, op: Builder, region: Graph, rules: Ruleset, label: str = ""):
        self.outer = op
        self.region = region
        self.rules = rules
        lift_constants(op, region)
        self.graph = Graph(label)
        self.op = op.inside(self.graph)
        self.cotangents: Cotangents = {}

    def seed(self, value: Value, ct: Var) -> None:
        """Give an output of the region a cotangent."""
        self.cotangents.setdefault(value, []).append(self.op.var(ct))

    def taken(self, value: Value, ct: Var, alike: bool) -> Var:
        """The cotangent of the result of an If as that of an output of the branch: what is known of it holds of both.

        A branch of another shape than the one that is taken must load all the same, whatever a runtime knows of the
        shape of the cotangent: that is hidden, unless all branches are `alike`.
        """
        ct = self.op.var(ct)
        if isinstance(value.type, TensorType) and (not alike or contradict(ct.shape, value.shape)):
            return self.op.Reshape(ct, self.op.shape(self.op.var(value)), allowzero=1)
        if ct.shape == value.shape:
            return ct
        same = Node("Identity", (ct.value,), {}, name=self.op.label)  # for its type; copies are dropped at the end
        t = TensorType(ct.dtype, value.shape) if isinstance(value.type, TensorType) else value.type
        return self.op.var(self.op.place_typed(same, [t])[0])

    def input(self, t: Type | None) -> Value:
        """A new input of the adjoint."""
        v = self.graph.add_input("", t)
        self.op.scope.define(v)
        return v

    def sweep(self, active: set[Value]) -> None:
        """Append the adjoint of the region's nodes; what is not in `active` receives nothing."""
        op, label = self.op, self.op.label
        op.scope.define_all(self.region)  # after the adjoint's own inputs: a symbol is rather read off those
        primal = self.region.nodes[:]
        op.survey = survey_of_region(self.outer, self.region, primal)
        for node in reversed(primal):
            if any(v in active and v in self.cotangents for v in node.outputs):
                op.label = _derived("reverse", label, node)
                pull(op, node, self.cotangents, active.__contains__, self.rules)
        op.label = label

    def total(self, value: Value) -> Var | None:
        """What a value received."""
        return total(self.op, self.cotangents, value)

    def hoist(self) -> None:
        """Move what does not change from iteration to iteration out of the adjoint."""
        kept: list[Node] = []
        for n in self.graph.nodes:
            reads = self._reads(n)
            if not reads or any(self._varies(v) for v in reads):
                kept.append(n)
            else:
                n.graph = self.outer.graph
                self.outer.nodes.append(n)
        self.graph.nodes[:] = kept

    def _reads(self, n: Node) -> list[Value]:
        found = [v for v in n.inputs if v is not None]
        if n.regions:
            found += self.op.captures[n]
        return found

    def _varies(self, v: Value) -> bool:
        return v.graph is self.graph or v.graph is self.region

    def prune(self) -> None:
        """Drop nodes of the adjoint whose results nobody reads."""
        kept = []
        for n in reversed(self.graph.nodes):
            if any(v.users for v in n.outputs):
                kept.append(n)
            else:
                n.detach()
        self.graph.nodes[:] = reversed(kept)

    def move_shapes(self) -> None:
        """Where the adjoint reads no more of a primal value than its shape, let the primal region compute that."""
        moved: dict[Graph, dict[Node, None]] = {}
        for v in self._primal_values():
            users = self._users(v)
            if all(isinstance(u, Node) and u.op_type == "Shape" and not u.domain for u in users):
                for u in users:
                    assert isinstance(u, Node) and u.graph is not None
                    moved.setdefault(u.graph, {})[u] = None
        for g, nodes in moved.items():
            g.nodes[:] = [n for n in g.nodes if n not in nodes]
            for u in nodes:
                self.region.append(u)

    def move_sequences(self) -> None:
        """Let the primal region compute what the adjoint computes from its sequences alone.

        A sequence cannot be kept for every iteration of a loop; what is taken out of it can.
        """
        if not any(isinstance(v.type, SequenceType) for v in self.residuals()):
            return
        loop = self.region.parent
        assert loop is not None
        # of values from outside, what the loop reads anyway: others may come from the adjoint, which is written later
        outside = set(self.outer.captures.operands(loop))
        kept: list[Node] = []
        for n in self.graph.nodes:
            reads = self._reads(n)
            if reads and all(v.graph is self.region or v.is_const or v in outside for v in reads):
                self.region.append(n)
            else:
                kept.append(n)
        self.graph.nodes[:] = kept
        self.outer.nesting.forget()

    def residuals(self) -> list[Value]:
        """The values of the primal region that the adjoint reads, in order of definition."""
        return [v for v in self._primal_values() if self._users(v)]

    def retarget(self, value: Value, other: Value) -> None:
        """Let the adjoint read `other` where it reads the primal region's `value`."""
        if other is value:
            return
        for user in self._users(value):
            if isinstance(user, Node):
                user.set_inputs(other if v is value else v for v in user.inputs)
            else:
                user.set_outputs(other if v is value else v for v in user.outputs)

    def _primal_values(self) -> Iterable[Value]:
        yield from self.region.inputs
        for n in list(self.region.nodes):
            yield from n.outputs

    def _users(self, value: Value) -> list[Node | Graph]:
        return [u for u in value.users if self._inside(u)]

    def _inside(self, user: Node | Graph) -> bool:
        g = user.graph if isinstance(user, Node) else user
        return g is not None and self.outer.nesting.outermost(g) is self.graph


def lift_constants(op: Builder, region: Graph) -> None:
    """Make the constants of a region constants of the whole model, so that every region can read them."""
    for c in region.constants:
        c.owner = op.root
        op.root.constants.append(c)
    region.constants.clear()


def contradict(result: Shape | None, yielded: Shape | None) -> bool:
    """True where what a branch yields cannot have the shape of the result of its If, or only the run tells."""
    a, b = result, yielded
    if a is None or b is None:
        return a is not None
    return len(a) != len(b) or any(
        isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b, strict=True)
    )


def outside(op: Builder, t: Type | None) -> Type | None:
    """`t` as `op` sees it: an extent that cannot be read off anything there is a fresh symbol."""

    def seen_as(t: TensorType) -> TensorType:
        shape = t.shape and tuple(d if seen(op, d) else op.model.fresh_dim() for d in t.shape)
        return TensorType(t.dtype, shape)

    return map_tensors(t, seen_as)


def seen(op: Builder, d: Dim) -> bool:
    """True where an extent is a number, or a symbol that values of the builder's scope have."""
    if isinstance(d, int) or op.scope.dim(d) is not None:
        return True
    atoms = {a for m in terms(d) for a in m}
    return atoms != {d} and all(op.scope.dim(a) is not None for a in atoms)


def stacked(t: Type | None, length: Dim, op: Builder) -> Type | None:
    """The type of one value per iteration, stacked along a new first axis, as `op` sees it."""
    if not isinstance(t, TensorType):
        raise UnsupportedOperator(f"a value of type {t} cannot be kept for every iteration of a loop")
    outer = outside(op, t)
    assert isinstance(outer, TensorType)
    return TensorType(t.dtype, None if outer.shape is None else (length, *outer.shape))


def dummy(op: Builder, t: Type | None, exact: bool = False) -> Value:
    """A value of the element type and rank of `t` that nobody reads: an empty one, or with `exact` one of its shape."""
    if isinstance(t, TensorType):
        if exact and t.shape is not None:
            v: Var = op.Expand(op.const(0, t.dtype), op.shape_of(t.shape))
            return v.value
        return op.const(np.zeros((0,) * (t.rank or 0)), t.dtype).value
    if isinstance(t, SequenceType) and isinstance(t.elem, TensorType):
        return op.SequenceEmpty(dtype=int(t.elem.dtype)).value
    raise UnsupportedOperator(f"a value of type {t} cannot be carried from a branch to its derivative")
