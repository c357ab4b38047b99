"""Functions for any floating element type: compiled for one that stands for it, and freed of that one afterwards.

A FunctionProto has no types, and one derivative has to do for float16, float and double. Where nothing tells the
element type of an operand (`onnxad_ir.element_types`), `assume` takes one that the function does not name itself. What
a pass then writes in that type, constants and casts, is what `release` brings to the type of an operand at run time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.element_types import ElementTypes, element_of, is_container, mentioned
from onnxad_ir.types import FLOATING, DataType, SequenceType, TensorType
from onnxad_rules.context import LARGEST, SMALLEST

#: What stands for an unknown type: the wider the better, since constants are rounded to it.
_CHOICES = (DataType.DOUBLE, DataType.FLOAT, DataType.FLOAT16)
#: Numbers that rules take from the element type, by type.
_TABLES = {
    "smallest": SMALLEST,
    "normal": {
        DataType.FLOAT: 2.0**-126,
        DataType.DOUBLE: 2.0**-1022,
        DataType.FLOAT16: 2.0**-14,
        DataType.BFLOAT16: 2.0**-126,
    },
    "largest": LARGEST,
}


def assume(model: Model) -> DataType | None:
    """Give the operands of a graph, and results of unknown operators, element types; their shapes stay unknown.

    Returns the type that stands for the unknown one, None where all are known. All operands of unknown floating type
    are taken to share it. Where an operator takes several integer types, the operand is cast to int64.
    Raises UsageError where no type is left to stand for the unknown one.
    """
    graph = model.graph
    types = ElementTypes(graph, model.opset)
    named = mentioned(graph)
    stand_in = next((d for d in _CHOICES if d not in named), None)
    used = False

    def choose(v: Value) -> DataType:
        nonlocal used
        can_be = types.of(v)
        if can_be is not None and len(can_be) == 1:
            return next(iter(can_be))
        if can_be is None or can_be & FLOATING:
            if stand_in is None:
                names = ", ".join(d.name.lower() for d in _CHOICES)
                raise UsageError(
                    f"the element type of {v.name!r} is unknown, and the function works in {names}: declare its type "
                    "in the function's value_info"
                )
            used = True
            return stand_in
        return DataType.INT64 if DataType.INT64 in can_be else min(can_be)

    first: list[Node] = []
    for v in graph.inputs:
        if v.type is None:
            d = choose(v)
            if d == DataType.INT64 and types.of(v) != frozenset((d,)):
                cast = Node("Cast", (), {"to": int(d)}, (f"{v.name}_int64",), graph=graph)
                cast.outputs[0].type = TensorType(d)
                v.replace_by(cast.outputs[0])
                cast.set_inputs((v,))
                first.append(cast)
            else:
                v.type = SequenceType(TensorType(d)) if is_container(v, model.opset) else TensorType(d)
    graph.nodes[:0] = first
    for n in graph.walk():
        if n.domain or n.op_type == "CastLike":
            for v in n.outputs:
                if v.type is None:
                    v.type = TensorType(choose(v))
    return stand_in if used else None


def release(body: Graph, stand_in: DataType, like: Value) -> None:
    """Make what is of the type `stand_in` in a graph, and its regions, of the element type of the operand `like`."""
    limits = _Limits(body, stand_in, like)
    for g in list(body.graphs()):
        nodes: list[Node] = []
        for c in [c for c in g.constants if c.dtype == stand_in]:
            readers = Value("")
            c.replace_by(readers)
            readers.replace_by(limits.of(c) or _append(nodes, g, "CastLike", (c, like), name=c.name))
        for n in g.nodes:
            _release(n, stand_in, like, nodes)
        g.nodes[:] = nodes
    body.nodes[:0] = limits.nodes
    body.constants[:] = [c for c in body.constants if c.users]
    for g in body.graphs():
        for v in (*g.inputs, *(v for n in g.nodes for v in n.outputs)):
            if element_of(v.type) == stand_in:
                v.type = None


def _append(nodes: list[Node], graph: Graph, op_type: str, operands: Iterable[Value], name: str = "") -> Value:
    nodes.append(Node(op_type, operands, {}, (name,), graph=graph))
    return nodes[-1].outputs[0]


def _release(n: Node, stand_in: DataType, like: Value, nodes: list[Node]) -> None:
    """Append a node, and what brings a result of it that an attribute makes of the type to that of `like`."""
    assert n.graph is not None
    wanted = int(stand_in)
    if n.op_type == "Cast" and n.attributes.get("to") == wanted:
        n.op_type = "CastLike"
        del n.attributes["to"]
        n.set_inputs((*n.inputs, like))
    elif n.op_type == "SequenceEmpty" and n.attributes.get("dtype") == wanted:
        n.op_type, n.attributes = "SequenceErase", {}
        n.set_inputs((_append(nodes, n.graph, "SequenceConstruct", (like,)),))
    value = n.attributes.get("value") if n.op_type in ("ConstantOfShape", "Constant") else None
    nodes.append(n)
    if n.attributes.get("dtype") == wanted or getattr(value, "dtype", None) == stand_in:
        readers = Value("")
        n.outputs[0].replace_by(readers)
        readers.replace_by(_append(nodes, n.graph, "CastLike", (n.outputs[0], like)))


class _Limits:
    """The smallest and the largest number of the type at run time, in the place of those of the type it stood for."""

    def __init__(self, body: Graph, stand_in: DataType, like: Value):
        self.body, self.like = body, like
        self.nodes: list[Node] = []
        self.found: dict[str, Value] = {}
        self.kinds = {sign * table[stand_in]: (sign, kind) for kind, table in _TABLES.items() for sign in (1, -1)}

    def of(self, c: Value) -> Value | None:
        """What stands for a constant that is such a number, None for any other."""
        known = self.kinds.get(float(c.const.numpy())) if c.const is not None and c.shape == () else None
        if known is None:
            return None
        sign, kind = known
        if kind not in self.found:
            self.found[kind] = self.number(kind)
        return self.found[kind] if sign == 1 else self.node("Neg", self.found[kind])

    def number(self, kind: str) -> Value:
        """Of the limits of all types, those beyond the range of the type become 0 or infinite: the next one is its."""
        c = self.cast(list(_TABLES[kind].values()))
        if kind == "largest":
            return self.node("ReduceMax", self.node("Where", self.node("Less", c, self.cast(np.inf)), c, self.cast(0)))
        return self.node("ReduceMin", self.node("Where", self.node("Greater", c, self.cast(0)), c, self.cast(1)))

    def cast(self, data: Any) -> Value:
        constant = self.body.add_constant("", ir.Tensor(np.asarray(data, np.float64)))
        return self.node("CastLike", constant, self.like)

    def node(self, op_type: str, *operands: Value) -> Value:
        attributes = {"keepdims": 0} if op_type.startswith("Reduce") else {}
        self.nodes.append(Node(op_type, operands, attributes, graph=self.body))
        return self.nodes[-1].outputs[0]
