"""Functions for any floating element type: compiled for one that stands for it, and freed of that one afterwards.

A FunctionProto has no types, and one derivative has to do for float16, float and double. Where nothing tells the
element type of an operand (`onnxad_ir.element_types`), `assume` takes one that the function does not name itself. What
a pass then writes in that type, constants and casts, is what `release` brings to the type of an operand at run time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.element_types import ElementTypes, element_of, is_container, mentioned
from onnxad_ir.types import FLOATING, DataType, SequenceType, TensorType
from onnxad_rules.context import LARGEST, SMALLEST

#: What stands for an unknown type: the wider the better, since constants are rounded to it.
_CHOICES = (DataType.DOUBLE, DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16)
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


@dataclass
class Assumed:
    """What was taken for unknown element types.

    `floating` is what stands for the one that all operands of unknown floating type share. An operand that might as
    well hold integers or booleans has another one to itself, in `others`, while there are any. `several`: whether
    operands share a type that need not.
    """

    floating: DataType
    others: dict[DataType, Value]
    several: bool


def assume(model: Model, floating: Iterable[Value]) -> Assumed | None:
    """Give the operands of a graph, and results of unknown operators, element types; their shapes stay unknown.

    `floating` are values known to be differentiated. Where an operator takes several integer types, its operand is cast
    to int64. Returns None where all types are known.
    Raises UsageError where no type is left to stand for an unknown one, and where one of `floating` is not.
    """
    graph = model.graph
    types = ElementTypes(graph, model.opset)
    for v in floating:
        if not (types.of(v) or FLOATING) & FLOATING:
            raise UsageError(f"{v.name!r} is not a floating-point tensor: it has no derivative")
        types.restrict(v, FLOATING)
    untyped = [v for v in graph.inputs if v.type is None]
    strange = [v for n in graph.walk() if n.domain for v in n.outputs if v.type is None]
    classes = {types.representative(v): v for v in reversed(untyped + strange) if _is_open(types.of(v))}
    certain = [c for c in classes if (types.of(c) or FLOATING | {DataType.BOOL}) <= FLOATING]
    free = [d for d in _CHOICES if d not in mentioned(graph)]
    fitting = [d for d in free if all(d in (types.of(c) or ()) for c in certain)]
    if classes and not fitting:
        name = next(iter(classes.values())).name
        raise UsageError(
            f"the element type of {name!r} is unknown, and the nodes name all those that could stand for it: "
            "declare types in value_info"
        )
    chosen = dict.fromkeys(classes, fitting[0]) if classes else {}
    others: dict[DataType, Value] = {}
    for c, v in classes.items():
        more = [d for d in free if d != fitting[0] and d not in others and d in (types.of(c) or FLOATING)]
        if c not in certain and v.owner is graph and more:
            chosen[c] = more[0]
            others[more[0]] = v

    def element(v: Value) -> DataType:
        can_be = types.of(v)
        if (found := chosen.get(types.representative(v))) is not None or can_be is None:
            return found or fitting[0]
        return DataType.INT64 if DataType.INT64 in can_be else min(can_be)

    casts = []
    for v in untyped:
        d, can_be = element(v), types.of(v)
        if d == DataType.INT64 and can_be is not None and len(can_be) > 1:
            cast = Node("Cast", (), {"to": int(d)}, (f"{v.name}_int64",), graph=graph)
            cast.outputs[0].type = TensorType(d)
            v.replace_by(cast.outputs[0])
            cast.set_inputs((v,))
            casts.append(cast)
        else:
            v.type = SequenceType(TensorType(d)) if is_container(v, model.opset) else TensorType(d)
    graph.nodes[:0] = casts
    for v in strange:
        v.type = TensorType(element(v))
    return Assumed(fitting[0], others, len(certain) > 1) if classes else None


def _is_open(can_be: frozenset[DataType] | None) -> bool:
    """True where an element type may be floating, but is not known."""
    return can_be is None or (len(can_be) > 1 and bool(can_be & FLOATING))


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
    for n in body.walk():
        if n.op_type == "Scan" and not n.domain:
            _tell_ranks(n.attributes["body"], stand_in, body)
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


def _tell_ranks(scan: Graph, stand_in: DataType, body: Graph) -> None:
    """Write the results of a Scan's body so that whoever infers them finds their ranks: types, which said so, go.

    ONNX Runtime 1.32 runs no Scan of which it does not. It loses a rank at a Reshape whose target it does not know.
    """
    if all(n.op_type != "Reshape" or n.inputs[1] is None or n.inputs[1].is_const for n in scan.nodes):
        return
    outputs = []
    for v in scan.outputs:
        if v.rank and v.dtype == stand_in:
            axes = body.add_constant("", ir.Tensor(np.arange(v.rank)))
            shape = _append(scan.nodes, scan, "Gather", (_append(scan.nodes, scan, "Shape", (v,)), axes))
            v = _append(scan.nodes, scan, "Reshape", (v, shape))
            scan.nodes[-1].attributes["allowzero"] = 1
        outputs.append(v)
    scan.set_outputs(outputs)


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
