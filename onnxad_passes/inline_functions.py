"""Local functions written out where they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir import schema
from onnxad_ir.builder import Builder
from onnxad_ir.core import Function, FunctionKey, Graph, Model, Node, Value
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.inline import inline_body, substitute
from onnxad_passes.manager import Pass

#: The opset from which on operators keep their spelling, but for these.
_MODERN = 18
_RESPELLED = frozenset({"DFT", "GridSample", "GroupNormalization"})


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace every call of a local function by its body, nested calls included."""

    name: ClassVar[str] = "inline-functions"
    undoes: ClassVar[tuple[str, ...]] = ("fold-shapes",)  # a body that is written out has no types yet

    def run(self, model: Model) -> bool:
        if not model.functions:
            return False
        merge_opsets(model, list(called_functions(model)))
        _Inliner(model).graph(model.graph, ())
        model.functions.clear()
        return True


def called_functions(model: Model) -> Iterator[Function]:
    """The functions that the main graph calls, directly or not."""
    seen: set[FunctionKey] = set()
    bodies = [model.graph]
    while bodies:
        for n in bodies.pop().walk():
            f = model.called(n)
            if f is not None and f.key not in seen:
                seen.add(f.key)
                bodies.append(f.body)
                yield f


def merge_opsets(model: Model, functions: list[Function]) -> None:
    """Bring the main graph and the functions it calls to one opset of each domain.

    Old spellings are upgraded where they differ; of opsets that spell what is used alike, the newest is
    taken.
    """
    if any(_respelled(model, functions, "")):
        from onnxad_passes.upgrade import upgrade_model

        upgrade_model(model)
    for domain in {d: None for f in functions for d in f.opset}:
        for n, old, new in _respelled(model, functions, domain):
            raise ModelError(
                f"the model and its functions import opsets {old} and {new} of domain {domain!r}, between "
                f"which {n.op_type} has changed, at {describe(n)}; bring them to one opset first"
            )
        opsets = (model.opset, *(f.opset for f in functions))
        model.opset[domain] = max(opset[domain] for opset in opsets if domain in opset)


def _respelled(model: Model, functions: Iterable[Function], domain: str) -> Iterator[tuple[Node, int, int]]:
    """Nodes that mean something else at the newest opset of a domain that is imported, and both opsets."""
    bodies = [(model.graph, model.opset), *((f.body, f.opset) for f in functions)]
    versions = {opset[domain] for _, opset in bodies if domain in opset}
    newest = max(versions, default=0)
    for body, opset in bodies if len(versions) > 1 else ():
        old = opset.get(domain, newest)
        for n in body.walk() if old != newest else ():
            if n.domain != domain or model.called(n) is not None:
                continue
            a, b = schema.facts(domain, n.op_type, old), schema.facts(domain, n.op_type, newest)
            if a is None or b is None or a.since == b.since:
                continue
            if domain or old < _MODERN or n.op_type in _RESPELLED:
                yield n, old, newest


class _Inliner:
    def __init__(self, model: Model):
        self.model = model
        #: What stands for the results of a call that has been replaced.
        self.results: dict[Value, Value] = {}

    def graph(self, graph: Graph, stack: tuple[FunctionKey, ...]) -> None:
        op = Builder(self.model, graph, [])
        old, graph.nodes = graph.nodes, op.nodes
        for node in old:
            self.node(op, node, stack)

    def node(self, op: Builder, node: Node, stack: tuple[FunctionKey, ...]) -> None:
        """Append a node or, for a call, the function's body. Recursion is as deep as calls nest."""
        for region in node.regions:
            self.graph(region, stack)
        f = self.model.called(node)
        if f is None:
            op.nodes.append(node)
            return
        if f.key in stack:
            where = f"function {f.domain}.{f.name} calls itself, at {describe(node)}"
            raise ModelError(f"{where}; ONNX has no recursion")
        body = Builder(self.model, op.graph, [], label=node.name, root=op.root)
        results = inline_body(body, f.body, node.inputs, {**f.defaults, **node.attributes})
        for inner in body.nodes:
            self.node(op, inner, (*stack, f.key))
        for old, new in zip(node.outputs, results, strict=False):
            while new in self.results:  # a nested call, which has been replaced by now
                new = self.results[new]
            if new is not None:
                self.results[old] = new
                substitute(op.graph, op.nodes, old, new)
            elif old.users:
                raise ModelError(f"{describe(node)} is read for a result that its function leaves out")
        if any(v.users for v in node.outputs[len(results) :]):
            raise ModelError(f"{describe(node)} is read for more results than its function has")
        node.detach()
