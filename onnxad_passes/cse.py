"""Common-subexpression elimination."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx_ir as ir

from onnxad_ir import schema
from onnxad_ir.core import Attr, Graph, Model, Node, Value
from onnxad_ir.noise import is_random
from onnxad_ir.types import FLOATING
from onnxad_passes.manager import Pass

#: Constants and tensor attributes of more bytes than this are not compared.
_COMPARED = 128


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
    if any(graph in new.users for _, new in named):
        return False
    for old, new in named:
        new.name = old.name
        new.type = new.type if old.type is None else old.type
    for old, new in pairs:
        old.replace_by(new)
    node.detach()
    return True


def _key(node: Node) -> Any:
    """What equal expressions have in common, None for an expression that is not shared."""
    if node.regions or is_random(node) or node.overload:
        return None
    if node.domain and schema.latest(node.domain, node.op_type) is None:
        return None
    attributes: tuple[Any, ...] = ()
    if node.attributes:
        attributes = tuple(sorted((k, _attribute(a)) for k, a in node.attributes.items()))
    key = (node.op_type, node.domain, node.inputs, attributes)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _attribute(a: Attr) -> Any:
    if isinstance(a, int | str | tuple):  # most are, and to ask for a tensor takes long
        return a
    if isinstance(a, float):
        return repr(a)  # 0.0 and -0.0 are equal, and not the same
    if isinstance(a, ir.TensorProtocol) and a.nbytes <= _COMPARED and a.dtype != ir.DataType.STRING:
        return (a.dtype.name, tuple(a.shape), a.tobytes())
    return a


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
        if t.nbytes > _COMPARED:
            kept.append(v)
            continue
        key = (t.dtype, tuple(t.shape), t.tobytes())
        same = first.setdefault(key, v)
        if same is v:
            kept.append(v)
        else:
            v.replace_by(same)
            changed = True
    graph.constants[:] = kept
    return changed
