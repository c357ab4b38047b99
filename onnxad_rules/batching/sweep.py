"""A graph with some of its inputs batched, node after node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value, clone_node
from onnxad_ir.diagnostics import describe
from onnxad_ir.inline import substitute
from onnxad_ir.printer import print_type
from onnxad_ir.traverse import crossings, is_control, loop_layout
from onnxad_ir.types import Dim, OptionalType, SequenceType, TensorType, Type
from onnxad_rules.batching.core import Batch, Same, Table, spread
from onnxad_rules.batching.regions import BY_REGION
from onnxad_rules.derive import decomposition
from onnxad_rules.node import NodeView
from onnxad_rules.regions import stacked
from onnxad_rules.ruleset import Ruleset, UnsupportedOperator

#: Operators whose result depends on the shape of their operand only.
FORM = frozenset({"Shape", "Size"})
#: Operators whose results have another extent for every entry: which operands decide it (None: all).
RAGGED: dict[str, tuple[str, ...] | None] = {
    "NonZero": None,
    "Unique": None,
    "Compress": ("condition",),
    "NonMaxSuppression": None,
    "Range": None,
    "Resize": ("scales", "sizes"),
    "StringSplit": None,
}


class Sweep:
    """Batches the nodes of graphs. `twins`: of each batched value, the value with a leading axis."""

    def __init__(self, dim: Dim, table: Table, rules: Ruleset):
        self.dim = dim
        self.table = {**table, **rules.batching}
        self.rules = rules
        self.twins: dict[Value, Value] = {}
        #: Results of compositions, which nothing reads yet; and what stands for those that every entry shares.
        self._awaited: set[Value] = set()
        self._same: dict[Value, Value] = {}

    def twin_type(self, t: Type | None) -> Type | None:
        """The type of the twin of a value of a type: every tensor has one more axis in front."""
        if isinstance(t, TensorType):
            return TensorType(t.dtype, None if t.shape is None else (self.dim, *t.shape))
        if isinstance(t, SequenceType | OptionalType):
            return type(t)(self.twin_type(t.elem))
        return t

    def locate(self, op: Builder, twins: Sequence[Value]) -> None:
        """Let the number of entries be read off one of the first twins, where no shape tells it."""
        if isinstance(self.dim, int) or op.scope.dim(self.dim) is not None:
            return
        v = op.var(min(twins, key=lambda v: not isinstance(v.type, TensorType)))
        while not isinstance(v.type, TensorType):  # an element has it as well
            v = op.OptionalGetElement(v) if isinstance(v.type, OptionalType) else op.SequenceAt(v, op.const(0))
        op.scope.dims[self.dim] = (v.value, 0)

    def graph(self, op: Builder) -> None:
        """Rewrite the graph of a builder in place; the twins of its inputs are there."""
        old = op.graph.nodes[:]
        op.graph.nodes.clear()
        assert op.nodes is op.graph.nodes
        self.nodes(op, old)

    def nodes(self, op: Builder, nodes: Iterable[Node]) -> None:
        """Append nodes to the builder's, each with a twin or as it is."""
        for node in nodes:
            if any(v in self.twins for v in op.captures.operands(node)):
                self.node(op, node)
                continue
            op.nodes.append(node)
            for v in node.outputs:
                op.scope.define(v)

    def node(self, op: Builder, node: Node) -> None:
        """Write the twins of a node's results."""
        label, op.label = op.label, node.name or op.label
        results = self._results(op, node)
        for v, r in zip(node.outputs, results, strict=False):
            if isinstance(r, Same):
                self._same[v] = r.var.value
                _take_place(op, v, r.var.value)
            elif r is not None:
                self.twins[v] = r.value
                if r.value.producer is not None and (r.value.type is None or v.shape is not None):
                    # with the symbols that the types around it have
                    r.value.type = self.twin_type(v.type)
                op.scope.define(r.value)
        node.detach()
        op.label = label

    def _results(self, op: Builder, node: Node) -> Sequence[Any]:
        if node.regions and not node.domain and node.op_type in BY_REGION:
            found = BY_REGION[node.op_type](self, op, node)
            return self.one_by_one(op, node) if found is None else found
        n = NodeView(op, node, self.rules)
        rule = self.table.get(node.key)
        ranks_known = all(v.rank is not None for v in node.inputs if v in self.twins and v is not None)
        if rule is not None and not node.regions and (rule.any_rank or ranks_known):
            answer = rule.fn(op, n, Batch(op, n, self.twins, self.dim))
            if answer is not NotImplemented:
                return answer if isinstance(answer, tuple | list) else [answer]
        composition = self.rules.composition(n, asked=True)
        if composition is None or any(v in self.twins for v in op.captures[node]):
            return self.one_by_one(op, node)
        return self._composed(op, node, composition)

    def _composed(self, op: Builder, node: Node, rule: Any) -> Sequence[Var | Same | None]:
        """By way of the operator's composition, written for one entry on placeholders for what is batched."""
        scratch, operands = op.scratch(), node.inputs
        holes = {v: Value("", v.type, op.graph) for v in operands if v is not None and v in self.twins}
        node.inputs = for_one = tuple(None if v is None else holes.get(v, v) for v in operands)
        try:
            results = decomposition(scratch, rule, NodeView(scratch, node, self.rules))
        finally:
            node.inputs = operands
        own = set(node.outputs)
        # (nothing is won where the composition reads results of the very node, or has the node itself in it)
        itself = any(m.key == node.key and tuple(m.inputs) == for_one for m in scratch.nodes)
        if itself or any(v in own for m in scratch.nodes for v in op.captures.operands(m)):
            for m in reversed(scratch.nodes):
                m.detach()
            return self.one_by_one(op, node)
        for v, hole in holes.items():
            self.twins[hole] = self.twins[v]
        self._awaited.update(r.value for r in results if r is not None)
        self.nodes(op, scratch.nodes)
        found: list[Var | Same | None] = []
        for r in results:
            if r is None:
                found.append(None)
            elif (twin := self.twins.get(r.value)) is not None:
                found.append(op.var(twin))
            else:
                found.append(Same(op.var(self._same.get(r.value, r.value))))
        return found

    def full(self, op: Builder, v: Value) -> Var:
        """The twin of a value; one that is the same for every entry is repeated."""
        twin = self.twins.get(v)
        return spread(op, op.var(v), self.dim) if twin is None else op.var(twin)

    def one_by_one(self, op: Builder, node: Node) -> list[Var | None]:
        """Any node, one entry at a time: a Scan over the entries, whose body is the node."""
        self._check(op, node)
        inner = op.region(node.op_type.lower())
        entries: dict[Value, Value] = {}
        for v in dict.fromkeys(op.captures.operands(node)):
            if v in self.twins:
                entries[v] = inner.graph.add_input("", v.type)
                inner.scope.define(entries[v])
        body_node = clone_node(node, dict(entries))
        inner.place_typed(body_node, [v.type for v in node.outputs])
        used = [i for i, v in enumerate(node.outputs) if v.users or v in self._awaited]
        bare = [i for i in used if node.outputs[i].rank is None]
        results = [inner.var(body_node.outputs[i]) for i in used]
        # a Scan has to know ranks: a result of unknown rank leaves it as a vector, beside its shape
        vectors = [inner.Reshape(y, [-1]) if y.rank is None else y for y in results]
        inner.graph.set_outputs(
            [*(y.value for y in vectors), *(inner.Shape(y).value for y in results if y.rank is None)]
        )
        types = [stacked(y.type, self.dim, op) for y in map(inner.var, inner.graph.outputs)]
        operands = [self.twins[v] for v in entries]
        attributes: dict[str, Any] = {"body": inner.graph, "num_scan_inputs": len(entries)}
        scan = Node("Scan", operands, attributes, ("",) * len(types), name=op.label)
        stacks = list(map(op.var, op.place_typed(scan, types)))
        found = dict(zip(used, stacks, strict=False))
        for i, shapes in zip(bare, stacks[len(used) :], strict=True):
            shape = op.Concat(op.dim(self.dim), op.Gather(shapes, op.const(0), axis=0), axis=0)
            found[i] = op.Reshape(found[i], shape, allowzero=1)
        return [found.get(i) for i in range(len(node.outputs))]

    def _check(self, op: Builder, node: Node) -> None:
        if node.op_type in RAGGED and not node.domain:
            names = RAGGED[node.op_type]
            n = NodeView(op, node, self.rules)
            places = range(len(node.inputs)) if names is None else [n.facts.inputs[k] for k in names]
            deciding = [node.inputs[i] for i in places if i < len(node.inputs)]
            if any(v in self.twins for v in deciding if v is not None):
                raise UnsupportedOperator(
                    f"{describe(node)} has a result of another shape for every entry: it cannot be batched", (node,)
                )
        for v in (*op.captures.operands(node), *node.outputs):
            if not isinstance(v.type, TensorType) and (v in self.twins or v in node.outputs):
                raise UnsupportedOperator(
                    f"{describe(node)} cannot be batched: there is no batching rule for it, and a value of type "
                    f"{print_type(v.type)} cannot be handed to a Scan",
                    (node,),
                )


def _take_place(op: Builder, old: Value, new: Value) -> None:
    """Let a value stand for another, under its name, and for passes that were told of it."""
    if new.producer is not None and not new.name:
        new.name = old.name
    if old in op.model.variables:
        op.model.variables[new] = op.model.variables.pop(old)
    substitute(op.graph, op.nodes, old, new)


def depends(graph: Graph, starts: Iterable[Value], twins: Mapping[Value, Value], op: Builder) -> set[Value]:
    """The values of a graph, and of regions inside, that are batched when `starts` are, besides those that have twins.

    If, Loop and Scan are seen result by result, however they are nested: what a result has to do with is followed.
    """
    found = set(starts)
    while _follow(graph, found, twins, op):
        pass
    return found.union(v for v in graph.outputs if v in twins)


def _follow(graph: Graph, found: set[Value], twins: Mapping[Value, Value], op: Builder) -> bool:
    """Add what depends on `found`, in one pass; True where an iteration of a loop has to be followed again."""
    again = False
    for node in graph.nodes:
        if node.op_type in FORM and not node.domain:
            continue
        if not any(v in found or v in twins for v in op.captures.operands(node)):
            continue
        head = 1 if node.op_type == "If" else loop_layout(node)[0] if is_control(node) else len(node.inputs)
        if not is_control(node) or any(v in found or v in twins for v in node.inputs[:head]):
            found.update(node.outputs)
            continue
        pairs = list(crossings(node))
        found.update(target for source, target in pairs if source in found or source in twins)
        for region in node.regions:
            again |= _follow(region, found, twins, op)
        if node.op_type == "Loop" and node.regions[0].outputs[0] in found:  # entries end at different times
            found.update(node.outputs)
        reached = [target for source, target in pairs if (source in found or source in twins) and target not in found]
        again |= any(target.producer is None for target in reached)
        found.update(reached)
    return again
