"""Common-subexpression elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_passes.manager import Pass

#: Operators whose results differ from call to call.
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
)


@dataclass(frozen=True)
class Cse(Pass):
    """Compute equal expressions once. Random operators, and nodes with regions, are left alone."""

    name: ClassVar[str] = "cse"

    def run(self, model: Model) -> bool:
        return any([_share(body, {}) for body in model.bodies()])


def _share(graph: Graph, outer: dict[Any, Node]) -> bool:
    changed = False
    seen = dict(outer) if outer else {}
    pinned = set(graph.outputs)
    kept: list[Node] = []
    for node in graph.nodes:
        for region in node.regions:
            changed |= _share(region, seen)
        key = _key(node)
        first = None if key is None else seen.setdefault(key, node)
        if first is None or first is node or not _covers(first, node) or any(v in pinned for v in node.outputs):
            kept.append(node)
            continue
        for old, new in zip(node.outputs, first.outputs, strict=False):
            old.replace_by(new)
        node.detach()
        changed = True
    if changed:
        graph.nodes[:] = kept
    return changed


def _key(node: Node) -> Any:
    if node.regions or node.op_type in RANDOM:
        return None
    attributes = tuple(sorted(node.attributes.items(), key=lambda item: item[0])) if node.attributes else ()
    key = (node.op_type, node.domain, node.overload, node.inputs, attributes)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _covers(first: Node, node: Node) -> bool:
    """True where `first` has every result of `node` that is used."""
    extra: tuple[Value, ...] = node.outputs[len(first.outputs) :]
    return not any(v.users for v in extra)
