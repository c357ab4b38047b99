"""The walk over a body: each node through its adapters, types following along."""

from __future__ import annotations

from onnxad_ir import schema
from onnxad_ir.builder import Builder, Scope, Var
from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.infer import Inference
from onnxad_passes.upgrade import elementwise, layout, legacy, normalization, recurrent, resample  # noqa: F401
from onnxad_passes.upgrade.registry import Adapt, Results, adapters_at

#: The opset that old models are brought to, and the first IR version that has it.
TARGET = 18
IR_VERSION = 8
#: No adapter for a model of this opset or later looks at types.
_TYPED_BEFORE = 13
#: How many offending nodes an error names.
_NAMED = 10


def upgrade_model(model: Model) -> bool:
    """Bring a model and its functions from opsets below 18 of the default domain to opset 18, in place.

    Names of inputs, outputs and initializers stay, and so do results. Bodies of opset 18 and later and bodies
    that do not import the default domain are left alone; True where one was changed. Linear in the model.

    Raises ModelError for operators that opset 18 has no equivalent of, and for attribute references in
    functions where the modern spelling needs the value.
    """
    changed = False
    if 0 < model.version < TARGET:
        upgrade_graph(model, model.graph, model.opset)
        model.opset[""] = TARGET
        changed = True
    for f in model.functions.values():
        if 0 < f.opset.get("", 0) < TARGET:
            upgrade_graph(model, f.body, f.opset)
            f.opset[""] = TARGET
            changed = True
    if changed:
        model.ir_version = max(model.ir_version, IR_VERSION)
    return changed


def upgrade_graph(model: Model, graph: Graph, opset: dict[str, int]) -> None:
    """Rewrite one body (a main graph or a function's) written in `opset` at opset 18; see `upgrade_model`."""
    version = opset.get("", 0)
    if not 0 < version < TARGET:
        return
    walk = _Walk(model, graph, opset)
    walk.check(graph)
    walk.graph(graph, Scope())


class _Walk:
    def __init__(self, model: Model, body: Graph, opset: dict[str, int]):
        self.model = model
        self.body = body
        self.version = version = opset[""]
        self.typed = version < _TYPED_BEFORE
        self.inference = Inference(model, {**opset, "": TARGET})
        self.adapters = adapters_at(version)

    def applies(self, n: Node) -> bool:
        """True for an operator of the default domain (a local function may stand under such a name)."""
        return not n.domain and self.model.called(n) is None

    def check(self, graph: Graph) -> None:
        """Raise ModelError for operators that neither opset 18 nor an adapter knows."""
        strange = [n for n in graph.walk() if n.op_type not in self.adapters and self.applies(n) and not _known(n)]
        if strange:
            kinds = ", ".join(sorted({n.op_type for n in strange}))
            places = "".join(f"\n  {describe(n)}" for n in strange[:_NAMED])
            more = f"\n  and {len(strange) - _NAMED} more" if len(strange) > _NAMED else ""
            raise ModelError(
                f"opset {TARGET} has no equivalent of {kinds}, which the model has at opset {self.version} "
                f"(experimental, removed or unknown operators):{places}{more}"
            )

    def graph(self, graph: Graph, scope: Scope) -> None:
        """Rewrite a graph; the recursion is as deep as regions are nested."""
        old, graph.nodes = graph.nodes, []
        scope.define(*graph.inputs)
        for n in old:
            for region in n.regions:
                self.graph(region, Scope(scope))
            adapters = self.adapters.get(n.op_type, ()) if self.applies(n) else ()
            if self.version < 7:  # a hint about memory that every operator could have
                n.attributes.pop("consumed_inputs", None)
            if adapters:
                self.adapt(graph, n, adapters, scope)
            else:
                graph.nodes.append(n)
            if self.typed:
                if not adapters:
                    self.inference.node(n)
                scope.define(*n.outputs)

    def adapt(self, graph: Graph, n: Node, adapters: tuple[Adapt, ...], scope: Scope) -> None:
        """Append `n` as its adapters leave it, or what they put in its place."""
        nodes = graph.nodes
        start = len(nodes)
        # A scope of its own: results change hands below, so that expressions must not be found again later.
        label = f"upgrade({n.name})" if n.name else ""
        op = Builder(self.model, graph, nodes, Scope(scope), self.inference, label, self.body)
        for adapt in adapters:
            results = adapt(op, n)
            if results is not None:
                self.replace(op, n, results, start)
                return
        nodes.append(n)
        if self.typed:
            self.inference.node(n)

    def replace(self, op: Builder, n: Node, results: Results, start: int) -> None:
        """Let the nodes made since `start` define the results of `n`, which keep their identity and names."""
        n.set_inputs(())
        fresh = {id(m) for m in op.nodes[start:]}
        last: Node | None = None
        for old, new in zip(n.outputs, (results,) if isinstance(results, Var) else results or (), strict=False):
            if new is None or not old.users:
                continue
            v = new.value
            p = v.producer
            if p is None or id(p) not in fresh or p.outputs[v.index] is not v:
                v = op.place_identity(v, old.name)
                p = v.producer
                assert p is not None
            _take_over(p, v, old)
            last = p
        if last is not None:
            last.name, last.doc, last.metadata = n.name, n.doc, n.metadata
        for m in op.nodes[start:]:
            if any(v in n.outputs for v in m.outputs):
                self.inference.node(m)  # against the declared type as well


def _take_over(p: Node, new: Value, old: Value) -> None:
    """Make `old` the result of `p` that `new` was."""
    new.replace_by(old)
    p.outputs = tuple(old if v is new else v for v in p.outputs)
    old.owner, old.index = p, new.index


def _known(n: Node) -> bool:
    f = schema.facts("", n.op_type, TARGET)
    return f is not None and not f.deprecated
