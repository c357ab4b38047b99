"""Type inference of the whole model, and the folding of what shape arithmetic computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from onnxad_ir.builder import Builder
from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.fold import FOLD_LIMIT, evaluate
from onnxad_ir.infer import Inference, known_ints
from onnxad_ir.inline import substitute
from onnxad_ir.types import FLOATING, TensorType
from onnxad_passes.ceil_mode import POOLS, settle
from onnxad_passes.dce import drop_dead
from onnxad_passes.fold_sequences import SEQUENCE_STEPS, Sequences
from onnxad_passes.manager import Pass


@dataclass(frozen=True)
class FoldShapes(Pass):
    """Infer every type, put constants for integers and booleans that are known, and inline Ifs on a constant.

    Sequences whose elements are known one by one are resolved: parts of a tensor come from Split.
    Floating values are never folded: weights stay weights.
    """

    name: ClassVar[str] = "fold-shapes"
    requires: ClassVar[tuple[str, ...]] = ("inline-functions", "upgrade-opset")

    def run(self, model: Model) -> bool:
        changed = False
        for f in model.functions.values():
            changed |= _fold(model, f.body, f.opset)
        return _fold(model, model.graph, model.opset) or changed


def _fold(model: Model, body: Graph, opset: dict[str, int]) -> bool:
    folder = _Folder(model, body, opset)
    folder.graph(body)
    if folder.folded:
        drop_dead(body, model.variables)
    return folder.changed


class _Folder:
    def __init__(self, model: Model, root: Graph, opset: dict[str, int]):
        self.model = model
        self.inference = Inference(model, opset, region=self.graph)
        self.root = root
        self.sequences = Sequences()
        self.names = {v.name for v in (*root.inputs, *root.outputs, *root.constants)}
        self.folded = False  # something is left to be dropped
        self.changed = False

    def graph(self, graph: Graph) -> None:
        old, graph.nodes = graph.nodes, []
        for node in old:
            self.node(graph, node)

    def node(self, graph: Graph, node: Node) -> None:
        branch = _taken_branch(node)
        if branch is not None:
            self.inline(graph, node, branch)
            return
        if node.op_type in SEQUENCE_STEPS and self.resolve(graph, node):
            return
        graph.nodes.append(node)
        before = [v.type for v in node.outputs]
        if node.op_type in POOLS and not node.domain and self.inference.opset.get("", 0) < 22:
            self.changed |= settle(node)
        self.inference.node(node)
        self.changed |= any(v.type != t for v, t in zip(node.outputs, before, strict=True))
        v = node.outputs[0]
        pinned = graph in v.users or v in self.model.variables
        if len(node.outputs) == 1 and v.users and not pinned:
            if (same := _unchanged(node)) is not None:
                v.replace_by(same)
                self.folded = self.changed = True
                return
            value = _value(node)
            if value is not None:
                constant = self.root.add_constant(self.label(v), ir.Tensor(value))
                constant.content = v.content
                v.replace_by(constant)
                v.name = ""
                self.folded = self.changed = True

    def resolve(self, graph: Graph, node: Node) -> bool:
        """Put what a node on a known sequence computes in its place."""
        v = node.outputs[0]
        if v in self.model.variables:
            return False
        op = Builder(self.model, graph, inference=self.inference, label=node.name, root=self.root)
        there = len(graph.nodes)
        new = self.sequences.fold(op, node)
        self.folded |= len(graph.nodes) > there
        if new is None:
            return False
        if new.producer is not None and not new.users:
            new.name = v.name
        substitute(graph, graph.nodes, v, new)
        node.detach()
        self.folded = self.changed = True
        return True

    def label(self, v: Value) -> str:
        """The name of a value that becomes a constant of the model, "" where another one has it."""
        if v.name in self.names:
            return ""
        self.names.add(v.name)
        return v.name

    def inline(self, graph: Graph, node: Node, branch: Graph) -> None:
        """Put the nodes of a branch in the place of its If."""
        for c in branch.constants:
            c.owner = self.root
            c.name = self.label(c)
            self.root.constants.append(c)
        inner, branch.nodes = branch.nodes, []
        for n in inner:
            n.graph = graph
            self.node(graph, n)
        outputs = branch.outputs  # read only now: what they were may have been replaced
        branch.set_outputs(())
        for v, new in zip(node.outputs, outputs, strict=True):
            substitute(graph, graph.nodes, v, new)
        node.detach()
        self.folded = self.changed = True


def _taken_branch(node: Node) -> Graph | None:
    if node.op_type != "If" or node.domain or node.inputs[0] is None or node.inputs[0].const is None:
        return None
    flag = bool(np.asarray(node.inputs[0].const.numpy()).reshape(-1)[0])
    branch = node.attributes["then_branch" if flag else "else_branch"]
    return branch if isinstance(branch, Graph) else None


def _unchanged(node: Node) -> Value | None:
    """The constant that a cast leaves as it is."""
    v = node.inputs[0] if node.inputs and not node.domain and node.op_type in ("Cast", "CastLike", "Identity") else None
    return v if v is not None and v.const is not None and v.dtype == node.outputs[0].dtype else None


def _value(node: Node) -> np.ndarray[Any, Any] | None:
    """The integers or booleans a node computes, or casts to floating numbers, where they are known."""
    v = node.outputs[0]
    t = v.type
    if not isinstance(t, TensorType) or node.domain or node.regions:
        return None
    if t.dtype in FLOATING:
        return _from_integers(node, t)
    ints = known_ints(v) if v.content is not None else None
    if ints is not None and t.shape is not None and len(t.shape) <= 1:
        return np.asarray(ints, t.dtype.numpy()).reshape(() if not t.shape else (-1,))
    arrays: list[np.ndarray[Any, Any] | None] = []
    for x in node.inputs:
        if x is None:
            arrays.append(None)
            continue
        size = x.type.size if isinstance(x.type, TensorType) else None
        if x.const is None or size is None or size > FOLD_LIMIT or x.dtype in FLOATING:
            return None
        arrays.append(x.const.numpy())
    return evaluate(node.op_type, node.attributes, arrays)


def _from_integers(node: Node, t: TensorType) -> np.ndarray[Any, Any] | None:
    """Floating numbers that are cast from a constant of integers, which nobody can differentiate."""
    x = node.inputs[0] if node.inputs and node.op_type in ("Cast", "CastLike") else None
    if x is None or x.const is None or not isinstance(x.type, TensorType) or not x.type.dtype.is_integer():
        return None
    size = x.type.size
    return x.const.numpy().astype(t.dtype.numpy()) if size is not None and size <= FOLD_LIMIT else None
