"""What every derivative pass does last: no dead, duplicate or identity node is left behind."""

from __future__ import annotations

from collections.abc import Container

from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_passes.cse import Cse, loses_rank
from onnxad_passes.dce import Dce
from onnxad_rules.functions import complete_calls


def tidy(model: Model) -> None:
    """Drop copies, share equal expressions and drop what nobody reads."""
    for body in model.bodies():
        drop_copies(body, model.variables)
    Cse().run(model)
    Dce().run(model)
    complete_calls(model)


def drop_copies(graph: Graph, keep: Container[Value] = ()) -> bool:
    """Let every reader of an Identity read its operand; True where one went.

    A model's output that copies an inner value gives that value its name; it stays a copy where the value is
    an input, a constant, an output itself, or in `keep`. Copies in `keep` stay.
    """
    kept: list[Node] = []
    changed = False
    for node in graph.nodes:
        for region in node.regions:
            changed |= drop_copies(region, keep)
        if node.op_type != "Identity" or node.domain or node.outputs[0] in keep or not _drop(graph, node, keep):
            kept.append(node)
    if len(kept) != len(graph.nodes):
        graph.nodes[:] = kept
        changed = True
    return changed


def _drop(graph: Graph, node: Node, keep: Container[Value]) -> bool:
    source, copy = node.inputs[0], node.outputs[0]
    if source is None:
        return False
    if graph in copy.users and not graph.is_region:
        if source.producer is None or source.graph is not graph or graph in source.users or source in keep:
            return False
        source.name = copy.name
        source.type = source.type if copy.type is None else copy.type
    elif loses_rank(graph, copy, source):
        return False
    if source.type is None:
        source.type = copy.type
    copy.replace_by(source)
    node.detach()
    return True
