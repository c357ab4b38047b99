"""A graph with some of its inputs batched, node after node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Model, Node, Value, clone_node
from onnxad_ir.diagnostics import describe
from onnxad_ir.inline import substitute
from onnxad_ir.printer import print_type
from onnxad_ir.traverse import crossings, is_control, loop_layout
from onnxad_ir.types import Dim, OptionalType, TensorType, Type, map_tensors
from onnxad_rules.batching.core import Batch, Same, Table, spread
from onnxad_rules.batching.ragged import RAGGED, Item, Part, Ragged, close
from onnxad_rules.batching.regions import BY_REGION
from onnxad_rules.derive import decomposition
from onnxad_rules.node import NodeView
from onnxad_rules.ranks import open_ranks
from onnxad_rules.regions import stacked
from onnxad_rules.ruleset import Ruleset, UnsupportedOperator

#: Operators whose result depends on the shape of their operand only.
FORM = frozenset({"Shape", "Size"})


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
        return map_tensors(t, lambda t: TensorType(t.dtype, None if t.shape is None else (self.dim, *t.shape)))

    def locate(self, op: Builder, twins: Sequence[Value]) -> None:
        """Let the number of entries be read off one of the first twins, where no shape tells it."""
        if isinstance(self.dim, int) or op.scope.dim(self.dim) is not None:
            return
        v = op.var(min(twins, key=lambda v: not isinstance(v.type, TensorType)))
        while not isinstance(v.type, TensorType):  # an element has it as well
            v = op.OptionalGetElement(v) if isinstance(v.type, OptionalType) else op.SequenceAt(v, op.const(0))
        op.scope.dims[self.dim] = (v.value, 0)

    def model(self, model: Model, inputs: Sequence[Value]) -> None:
        """Give inputs of the main graph a leading axis; outputs that depend on them get it too."""
        graph = model.graph
        op = Builder(model, graph)
        chosen = set(inputs)
        for i, v in enumerate(graph.inputs):
            if v in chosen:
                graph.inputs[i] = self.twins[v] = Value(v.name, self.twin_type(v.type), graph, i)
                graph.defaults.pop(v, None)
            op.scope.define(graph.inputs[i])
        names = [v.name for v in graph.outputs]
        nodes = graph.nodes[:]
        graph.nodes.clear()
        self.locate(op, list(self.twins.values()))
        self.nodes(op, nodes)
        outputs: list[Value] = []
        taken: set[Value] = set()
        for name, v in zip(names, graph.outputs, strict=True):
            twin = self.twins.get(v, v)
            if twin is not v and twin.name != name and (twin.producer is None or twin in taken):
                twin = op.place_identity(twin, name)
            twin.name = name
            outputs.append(twin)
            taken.add(twin)
        graph.set_outputs(outputs)

    def graph(self, op: Builder) -> None:
        """Rewrite the graph of a builder in place; the twins of its inputs are there."""
        old = op.graph.nodes[:]
        op.graph.nodes.clear()
        assert op.nodes is op.graph.nodes
        self.nodes(op, old)

    def nodes(self, op: Builder, nodes: Iterable[Node]) -> None:
        """Append nodes to the builder's, each with a twin or as it is."""
        items: list[Item] = list(nodes)
        done = 0
        while done < len(items):
            item = items[done]
            if isinstance(item, Part):
                self._part(op, item)
            elif not any(v in self.twins for v in op.captures.operands(item)):
                op.keep(item)
            else:
                try:
                    self.node(op, item)
                except Ragged as e:
                    if e.nodes != (item,) or not close(op, items, done, self._awaited):
                        raise
                    continue
            done += 1

    def node(self, op: Builder, node: Node) -> None:
        """Write the twins of a node's results."""
        label, op.label = op.label, node.name or op.label
        try:
            results = self._results(op, node)
        finally:
            op.label = label
        for v, r in zip(node.outputs, results, strict=False):
            if isinstance(r, Same):
                self._same[v] = r.var.value
                _take_place(op, v, r.var.value)
            elif r is not None:
                self._pair(op, v, r)
        node.detach()

    def _pair(self, op: Builder, v: Value, twin: Var) -> None:
        self.twins[v] = twin.value
        if twin.value.producer is not None and (twin.value.type is None or v.shape is not None):
            # with the symbols that the types around it have
            twin.value.type = self.twin_type(v.type)
        op.scope.define(twin.value)

    def _part(self, op: Builder, part: Part) -> None:
        """Write the twins of what a part results in."""
        label, op.label = op.label, part.nodes[0].name or op.label
        twins = self._in_turn(op, part.nodes, part.results) if part.results else []
        op.label = label
        for v, r in zip(part.results, twins, strict=True):
            self._pair(op, v, r)
        for n in part.nodes:
            n.detach()

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
        if composition.ranks is not None and open_ranks(op, n, composition.ranks(n)):
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
        """Any node, one entry at a time."""
        if node.op_type in RAGGED and not node.domain:
            names = RAGGED[node.op_type]
            n = NodeView(op, node, self.rules)
            places = range(len(node.inputs)) if names is None else [n.facts.inputs[k] for k in names]
            deciding = [node.inputs[i] for i in places if i < len(node.inputs)]
            if any(v in self.twins for v in deciding if v is not None):
                raise Ragged(node)
        for v in node.outputs:
            _check(node, v)
        used = [v for v in node.outputs if v.users or v in self._awaited]
        found = dict(zip(used, self._in_turn(op, [node], used), strict=True))
        return [found.get(v) for v in node.outputs]

    def _in_turn(self, op: Builder, nodes: Sequence[Node], used: Sequence[Value]) -> list[Var]:
        """The twins of results of nodes that run for each entry in turn: a Scan over the entries."""
        inner = op.region(nodes[0].op_type.lower())
        copies: dict[Value, Value] = {}
        for n in nodes:
            for v in op.captures.operands(n):
                if v in self.twins and v not in copies:
                    _check(n, v)
                    copies[v] = inner.graph.add_input("", v.type)
                    inner.scope.define(copies[v])
        operands = [self.twins[v] for v in copies]
        for n in nodes:
            copy = clone_node(n, copies)
            copies.update(zip(n.outputs, inner.place_typed(copy, [v.type for v in n.outputs]), strict=True))
        results = [inner.var(copies[v]) for v in used]
        bare = [i for i, y in enumerate(results) if y.rank is None]
        # a Scan has to know ranks: a result of unknown rank leaves it as a vector, beside its shape
        vectors = [inner.Reshape(y, [-1]) if y.rank is None else y for y in results]
        inner.graph.set_outputs([*(y.value for y in vectors), *(inner.Shape(results[i]).value for i in bare)])
        types = [stacked(y.type, self.dim, op) for y in map(inner.var, inner.graph.outputs)]
        attributes: dict[str, Any] = {"body": inner.graph, "num_scan_inputs": len(operands)}
        scan = Node("Scan", operands, attributes, ("",) * len(types), name=op.label)
        stacks = list(map(op.var, op.place_typed(scan, types)))
        found = stacks[: len(used)]
        for i, shapes in zip(bare, stacks[len(used) :], strict=True):
            shape = op.Concat(op.dim(self.dim), op.Gather(shapes, op.const(0), axis=0), axis=0)
            found[i] = op.Reshape(found[i], shape, allowzero=1)
        return found


def _check(node: Node, v: Value) -> None:
    """Raise UnsupportedOperator for a value that cannot go into a Scan or come out of it."""
    if isinstance(v.type, TensorType):
        return
    what = f"a value of type {print_type(v.type)} cannot be handed to a Scan"
    if v.type is None:
        what = f"a Scan has to know the type of {v}, which nothing tells (declare it in value_info)"
    raise UnsupportedOperator(
        f"{describe(node)} cannot be batched: there is no batching rule for it, and {what}", (node,)
    )


def _take_place(op: Builder, old: Value, new: Value) -> None:
    """Let a value stand for another, under its name, with its type, and for passes that were told of it."""
    if new.producer is not None and not new.name:
        new.name = old.name
    if new.producer is not None and new.rank is None and old.rank is not None:
        new.type = old.type  # what the author, or the node that was rebuilt, said of it
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
