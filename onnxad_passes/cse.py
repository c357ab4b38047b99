"""Common-subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.expressions import COMPARED, expression_key, tensor_key
from onnxad_ir.types import FLOATING
from onnxad_passes.manager import Pass


@dataclass(frozen=True)
class Cse(Pass):
    """Compute equal expressions once, and keep equal small integer constants once.

    Random operators, operators that onnx does not define, and nodes with regions are left alone.
    """

    name: ClassVar[str] = "cse"

    def run(self, model: Model) -> bool:
        changed = False
        for body in model.bodies():
            changed |= _share_constants(body)
            changed |= _share(body, {}, model.variables)
        return changed


def _share(graph: Graph, seen: dict[Any, Node], keep: Mapping[Value, int]) -> bool:
    """Share what `seen`, the expressions of the graphs around by their keys, has, or an earlier node of `graph`."""
    changed = False
    added: list[Any] = []
    kept: list[Node] = []
    for node in graph.nodes:
        for region in node.regions:
            changed |= _share(region, seen, keep)
        key = None if keep and any(v in keep for v in node.outputs) else _key(node)
        first = node if key is None else seen.setdefault(key, node)
        if first is node and key is not None:
            added.append(key)
        if first is node or not _replace(graph, node, first):
            kept.append(node)
        else:
            changed = True
    for key in added:  # a region is done: nobody else sees what it computes
        del seen[key]
    if len(kept) != len(graph.nodes):
        graph.nodes[:] = kept
    return changed


def _replace(graph: Graph, node: Node, first: Node) -> bool:
    """Let the results of `first` stand for those of `node`; False where they cannot.

    Where a result of `node` is an output of the model, the equal one takes its name; two outputs stay two.
    """
    if any(v.users for v in node.outputs[len(first.outputs) :]):
        return False
    pairs = list(zip(node.outputs, first.outputs, strict=False))
    named = [] if graph.is_region else [(old, new) for old, new in pairs if graph in old.users]
    if any(graph in new.users for _, new in named) or any(loses_rank(graph, old, new) for old, new in pairs):
        return False
    for old, new in named:
        new.name = old.name
        new.type = new.type if old.type is None else old.type
    for old, new in pairs:
        old.replace_by(new)
    node.detach()
    return True


def loses_rank(graph: Graph, old: Value, new: Value) -> bool:
    """True where a graph would yield another value whose rank is not known: a Scan has to know it."""
    is_scanned = graph.parent is not None and graph.parent.op_type == "Scan"
    return is_scanned and graph in old.users and old.rank is not None and new.rank is None


def _key(node: Node) -> Hashable | None:
    """What equal expressions have in common, None for an expression that is not shared."""
    return None if node.overload else expression_key(node.op_type, node.domain, node.inputs, node.attributes)


def _share_constants(graph: Graph) -> bool:
    """Keep equal small constants once: integers, which nobody differentiates, and numbers without a name."""
    first: dict[Any, Value] = {}
    changed = False
    kept = []
    for v in graph.constants:
        t = v.const
        if t is None or (v.name and v.dtype in FLOATING) or v.dtype == ir.DataType.STRING or graph in v.users:
            kept.append(v)
            continue
        if t.nbytes > COMPARED:
            kept.append(v)
            continue
        same = first.setdefault(tensor_key(t), v)
        if same is v:
            kept.append(v)
        else:
            v.replace_by(same)
            changed = True
    graph.constants[:] = kept
    return changed
