"""What the element types of values can be, where nobody has declared them: found by unification.

A FunctionProto has no types. But its constants do, operators admit some types only, and an operator's schema says
which operands and results share one. `ElementTypes(graph, opset).of(value)` is what is left for a value.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from onnxad_ir import schema
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.infer import onnx_dtype
from onnxad_ir.traverse import crossings, is_control
from onnxad_ir.types import DataType, TensorType, Type, held

#: Operators whose result has the element type that an attribute names.
_NAMED = {
    **dict.fromkeys(("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"), "dtype"),
    **dict.fromkeys(("EyeLike", "Bernoulli", "Multinomial", "SequenceEmpty"), "dtype"),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"), "output_datatype"),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), "output_dtype"),
    **dict.fromkeys(("Cast", "BitCast"), "to"),
}
#: Operators on sequences and optionals: their type parameters for a container (S, O, V) and for what is in it (T) are
#: one element type.
_CONTAINERS = frozenset(
    """SequenceAt SequenceConstruct SequenceErase SequenceInsert SplitToSequence ConcatFromSequence Optional
    OptionalGetElement""".split()
)
#: The types of names in schemas: "tensor(float)" and the like.
_NAMES = {
    "float": DataType.FLOAT,
    "double": DataType.DOUBLE,
    **{d.name.lower(): d for d in DataType if d not in (DataType.FLOAT, DataType.DOUBLE)},
}


class ElementTypes:
    """The element types that each value of a graph, and of the regions inside, can have.

    The result of an operator without a schema has, where nothing else tells, the type of its first operand.
    """

    def __init__(self, graph: Graph, opset: dict[str, int]):
        self.opset = opset
        self.parent: dict[Value, Value] = {}
        #: By representative; values that are missing can have any type.
        self.allowed: dict[Value, frozenset[DataType]] = {}
        strange: list[Node] = []
        for g in graph.graphs():
            for v in (*g.inputs, *g.constants):
                self._declared(v)
        for n in graph.walk():
            for v in n.outputs:
                self._declared(v)
            if is_control(n):
                for a, b in crossings(n):
                    self._same(a, b)
                self._control(n)
            elif not self._node(n):
                strange.append(n)
        for n in strange:
            first = next((v for v in n.inputs if v is not None), None)
            for v in n.outputs:
                if first is not None and self.of(v) is None:
                    self._same(v, first)

    def of(self, value: Value) -> frozenset[DataType] | None:
        """What the element type can be; None where nothing is known, or where it is a contradiction."""
        return self.allowed.get(self.representative(value)) or None

    def restrict(self, value: Value, types: Iterable[DataType]) -> None:
        """Let a value, and what has its type, have some types only."""
        v, found = self.representative(value), frozenset(types)
        self.allowed[v] = self.allowed.get(v, found) & found

    def representative(self, v: Value) -> Value:
        """One of the values that have the same element type as `v`, the same for all of them."""
        path = []
        while (up := self.parent.get(v, v)) is not v:
            path.append(v)
            v = up
        for x in path:
            self.parent[x] = v
        return v

    def _same(self, a: Value, b: Value) -> None:
        a, b = self.representative(a), self.representative(b)
        if a is not b:
            self.parent[b] = a
            if (other := self.allowed.pop(b, None)) is not None:
                self.restrict(a, other)

    def _declared(self, v: Value) -> None:
        d = element_of(v.type)
        if d is not None:
            self.restrict(v, (d,))

    def _control(self, n: Node) -> None:
        if n.op_type == "Loop":
            body: Graph = n.attributes["body"]
            counts = [v for v in (n.inputs[0], body.inputs[0]) if v is not None]
            flags = [v for v in (n.inputs[1], body.inputs[1], body.outputs[0]) if v is not None]
            for v in counts:
                self.restrict(v, (DataType.INT64,))
            for v in flags:
                self.restrict(v, (DataType.BOOL,))
        elif n.op_type == "If" and n.inputs[0] is not None:
            self.restrict(n.inputs[0], (DataType.BOOL,))

    def _node(self, n: Node) -> bool:
        """Take in what the schema of a node says; False where it has none."""
        formals = _formals(n.domain, n.op_type, self.opset.get(n.domain, 0))
        if formals is None:
            return False
        bound: dict[str, Value] = {}
        for values, along in ((n.inputs, formals[0]), (n.outputs, formals[1])):
            for i, v in enumerate(values):
                if v is None or not along:
                    continue
                formal = along[min(i, len(along) - 1)]
                if formal.types:
                    self.restrict(v, formal.types)
                if formal.variable:
                    self._same(bound.setdefault(formal.variable, v), v)
        self._attributes(n)
        return True

    def _attributes(self, n: Node) -> None:
        number = n.attributes.get(_NAMED.get(n.op_type, "")) if not n.domain else None
        if number:
            self.restrict(n.outputs[0], (onnx_dtype(number),))
        elif n.op_type == "ConstantOfShape":
            value = n.attributes.get("value")
            self.restrict(n.outputs[0], (DataType.FLOAT if value is None else value.dtype,))


@dataclass(frozen=True)
class _Formal:
    """A formal operand or result: its type variable ("" where it shares its type with no other), what it can be."""

    variable: str
    types: frozenset[DataType]
    container: bool


@cache
def _formals(domain: str, op_type: str, version: int) -> tuple[list[_Formal], list[_Formal]] | None:
    f = schema.facts(domain, op_type, version)
    if f is None or f.schema is None:
        return None
    constraints = {c.type_param_str: c.allowed_type_strs for c in f.schema.type_constraints}

    def read(formal: Any) -> _Formal:
        name = formal.type_str
        types = constraints.get(name, [name])
        variable = name if name in constraints and formal.is_homogeneous else ""
        if op_type in _CONTAINERS and name in ("S", "T", "O", "V"):
            variable = "element"
        return _Formal(variable, _parsed(types), not any(t.startswith("tensor(") for t in types))

    return [read(x) for x in f.schema.inputs], [read(x) for x in f.schema.outputs]


def is_container(value: Value, opset: dict[str, int]) -> bool:
    """True where an operator that reads the value takes a sequence or an optional there, and no tensor."""
    for n in value.users:
        formals = _formals(n.domain, n.op_type, opset.get(n.domain, 0)) if isinstance(n, Node) else None
        if formals is not None and isinstance(n, Node):
            for i, v in enumerate(n.inputs):
                if v is value and formals[0] and formals[0][min(i, len(formals[0]) - 1)].container:
                    return True
    return False


def mentioned(graph: Graph) -> set[DataType]:
    """Every element type that a graph names: of constants, declared values and in attributes."""
    found: set[DataType] = set()
    for g in graph.graphs():
        found.update(d for v in (*g.inputs, *g.constants) if (d := element_of(v.type)) is not None)
    for n in graph.walk():
        found.update(d for v in n.outputs if (d := element_of(v.type)) is not None)
        for k, a in n.attributes.items():
            if isinstance(a, int) and k in ("to", "dtype", "output_datatype", "stash_type", "softmax_precision"):
                found.add(onnx_dtype(a))
            elif isinstance(d := getattr(a, "dtype", None), DataType):
                found.add(d)
    return found


def element_of(t: Type | None) -> DataType | None:
    """The element type of a tensor, or of the tensors in a sequence or optional; None where it is unknown."""
    t = held(t)
    return t.dtype if isinstance(t, TensorType) else None


def _parsed(names: Iterable[str]) -> frozenset[DataType]:
    """The element types in "tensor(float)", "seq(tensor(double))", ...; empty where some are of maps."""
    if any("map(" in name for name in names):
        return frozenset()
    inner = (name[name.rfind("(") + 1 :].rstrip(")") for name in names)
    return frozenset(_NAMES[x] for x in inner if x in _NAMES)
