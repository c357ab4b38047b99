"""Local functions written out where they are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxad_ir import schema
from onnxad_ir.builder import Builder
from onnxad_ir.core import Function, Graph, Model, Node
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.inline import inline_body, substitute
from onnxad_passes.manager import Pass

Key = tuple[str, str, str]


@dataclass(frozen=True)
class InlineFunctions(Pass):
    """Replace every call of a local function by its body: attribute references, overloads, nested calls, regions."""

    name: ClassVar[str] = "inline-functions"

    def run(self, model: Model) -> bool:
        if not model.functions:
            return False
        for f in model.functions.values():
            _merge_opsets(model, f)
        _inline(model, model.graph, ())
        model.functions.clear()
        return True


def _merge_opsets(model: Model, f: Function) -> None:
    """Import what a function imports; a body means the same where its operators have not changed in between."""
    for domain, version in f.opset.items():
        mine = model.opset.setdefault(domain, version)
        if mine == version:
            continue
        for n in f.body.walk():
            if n.domain != domain or (n.domain, n.op_type, n.overload) in model.functions:
                continue
            a, b = schema.facts(domain, n.op_type, version), schema.facts(domain, n.op_type, mine)
            if a is not None and b is not None and a.since != b.since:
                raise ModelError(
                    f"function {f.domain}.{f.name} imports opset {version} of domain {domain!r} and the model imports "
                    f"{mine}, between which {n.op_type} has changed; bring both to one opset first"
                )


def _inline(model: Model, graph: Graph, stack: tuple[Key, ...]) -> None:
    op = Builder(model, graph, [])
    old, graph.nodes = graph.nodes, op.nodes
    for node in old:
        _inline_node(model, op, node, stack)


def _inline_node(model: Model, op: Builder, node: Node, stack: tuple[Key, ...]) -> None:
    for region in node.regions:
        _inline(model, region, stack)
    key = (node.domain, node.op_type, node.overload)
    f = model.functions.get(key)
    if f is None:
        op.nodes.append(node)
        return
    if key in stack:
        raise ModelError(f"function {f.domain}.{f.name} calls itself, at {describe(node)}; ONNX has no recursion")
    body = Builder(model, op.graph, [], label=node.name, root=op.root)
    results = inline_body(body, f.body, node.inputs, {**f.defaults, **node.attributes})
    for inner in body.nodes:
        _inline_node(model, op, inner, (*stack, key))
    for old, new in zip(node.outputs, results, strict=False):
        if new is not None:
            # the call of a nested function has been replaced by now: read what stands for it
            substitute(op.graph, op.nodes, old, new)
        elif old.users:
            raise ModelError(f"{describe(node)} is read for a result that its function leaves out")
    node.detach()
