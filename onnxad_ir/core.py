"""The SSA IR: Model, Function, Graph, Node, Value.

A `Value` has one definition (a node's result, a graph input, or a constant), a type and a use list. A `Node`
applies an operator to values and may own regions, graphs that read outer values directly. Names are labels: two
values may share one; they are made unique when a model is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxad_ir.diagnostics import ModelError
from onnxad_ir.types import DataType, Dim, Shape, TensorType, Type

Tensor: TypeAlias = ir.TensorProtocol


@dataclass(frozen=True, slots=True)
class AttrRef:
    """An attribute of the enclosing function, by name; `kind` is its ONNX attribute type."""

    name: str
    kind: ir.AttributeType


@dataclass(frozen=True, slots=True)
class RawAttr:
    """An attribute form the IR has no value for (type protos, sparse tensors, ...): its AttributeProto, kept as is."""

    proto: Any


@dataclass(frozen=True, slots=True)
class EmptyList:
    """An empty list attribute, whose kind no element tells."""

    kind: ir.AttributeType


#: int, float, str and bytes are scalars; a tuple of one of them is a list; a Graph is a region.
Attr: TypeAlias = Any

#: (domain, name, overload) of a local function.
FunctionKey: TypeAlias = tuple[str, str, str]

#: The metadata entry that carries `Model.frozen` from file to file.
FROZEN = "onnxad.frozen"
#: What floating constants that no author named are called when they are written, so that a later run knows them for
#: what they are: numbers that may be shared and folded.
MADE = "onnxad.v"


class Value:
    """An SSA value. `owner` is the Node that produces it, or the Graph whose input or constant it is."""

    __slots__ = ("const", "content", "index", "name", "owner", "type", "users")

    def __init__(self, name: str, type: Type | None = None, owner: Node | Graph | None = None, index: int = 0):
        self.name = name
        self.type = type
        self.owner = owner
        self.index = index
        #: The tensor of a constant, else None.
        self.const: Tensor | None = None
        #: What an integer tensor of rank 0 or 1 is known to hold, as extents (a tuple for both ranks), else None.
        self.content: tuple[Dim, ...] | None = None
        #: Each user (a node, or a graph that yields the value) and how often it uses it, in order of first use.
        self.users: dict[Node | Graph, int] = {}

    @property
    def producer(self) -> Node | None:
        """The node that computes this value, None for inputs and constants."""
        return self.owner if isinstance(self.owner, Node) else None

    @property
    def graph(self) -> Graph | None:
        """The graph in which this value is defined."""
        return self.owner.graph if isinstance(self.owner, Node) else self.owner

    @property
    def is_const(self) -> bool:
        """True for a constant: an initializer that no caller can override, or an inline constant."""
        return self.const is not None

    @property
    def dtype(self) -> DataType | None:
        """The element type of a tensor, None where it is unknown or the value is no tensor."""
        return self.type.dtype if isinstance(self.type, TensorType) else None

    @property
    def shape(self) -> Shape | None:
        """The shape of a tensor, None where its rank is unknown or the value is no tensor."""
        return self.type.shape if isinstance(self.type, TensorType) else None

    @property
    def rank(self) -> int | None:
        """The rank of a tensor, None where it is unknown."""
        s = self.shape
        return None if s is None else len(s)

    def numpy(self) -> np.ndarray[Any, Any] | None:
        """The numbers of a constant, None for anything else."""
        return None if self.const is None else self.const.numpy()

    def replace_by(self, other: Value, users: Iterable[Node | Graph] | None = None) -> None:
        """Make every user of this value, or only those of `users`, use `other` instead."""
        if other is self:
            return
        for user in list(self.users) if users is None else users:
            if isinstance(user, Node):
                user.inputs = tuple(other if v is self else v for v in user.inputs)
            else:
                user.outputs = tuple(other if v is self else v for v in user.outputs)
            other.users[user] = other.users.get(user, 0) + self.users.pop(user)

    def __repr__(self) -> str:
        return f"%{self.name}"


class Node:
    """An operator applied to values. `inputs` may hold None for an omitted optional operand.

    `outputs` always holds values; an output nobody named has the name "" and is written as omitted while unused.
    `name` is the author's label, or forward(...) / reverse(...) of one.
    """

    __slots__ = (
        "attributes",
        "doc",
        "domain",
        "graph",
        "inputs",
        "metadata",
        "name",
        "op_type",
        "outputs",
        "overload",
        "regions",
    )

    def __init__(
        self,
        op_type: str,
        inputs: Iterable[Value | None],
        attributes: dict[str, Attr] | None = None,
        outputs: Iterable[str] = ("",),
        domain: str = "",
        name: str = "",
        overload: str = "",
        graph: Graph | None = None,
    ):
        self.op_type = op_type
        self.domain = domain
        self.overload = overload
        self.name = name
        self.doc = ""
        self.metadata: dict[str, str] | None = None
        self.graph = graph
        self.inputs: tuple[Value | None, ...] = tuple(inputs)
        for v in self.inputs:
            if v is not None:
                _add_use(v, self)
        self.outputs: tuple[Value, ...] = tuple(Value(n, None, self, i) for i, n in enumerate(outputs))
        self.attributes: dict[str, Attr] = attributes if attributes is not None else {}
        self.regions: tuple[Graph, ...] = ()
        if self.attributes:
            self.adopt_regions()

    def adopt_regions(self) -> None:
        """Recompute `regions` from the attributes and make this node their parent."""
        found: list[Graph] = []
        for a in self.attributes.values():
            found += graphs_of(a)
        for g in found:
            g.parent = self
        self.regions = tuple(found)

    @property
    def key(self) -> tuple[str, str]:
        """(domain, op_type)."""
        return (self.domain, self.op_type)

    @property
    def callee(self) -> FunctionKey:
        """(domain, op_type, overload): the key in `Model.functions`, where the node is a call."""
        return (self.domain, self.op_type, self.overload)

    @property
    def operator(self) -> str:
        """The operator and its domain as one text: "Add", "com.microsoft.Gelu"."""
        return f"{self.domain}.{self.op_type}" if self.domain else self.op_type

    def set_input(self, index: int, value: Value | None) -> None:
        """Replace one operand, keeping use lists right."""
        old = self.inputs[index]
        if old is value:
            return
        if old is not None:
            _drop_use(old, self)
        if value is not None:
            _add_use(value, self)
        self.inputs = (*self.inputs[:index], value, *self.inputs[index + 1 :])

    def set_inputs(self, inputs: Iterable[Value | None]) -> None:
        """Replace all operands, keeping use lists right."""
        for v in self.inputs:
            if v is not None:
                _drop_use(v, self)
        self.inputs = tuple(inputs)
        for v in self.inputs:
            if v is not None:
                _add_use(v, self)

    def set_results(self, results: Iterable[Value]) -> None:
        """Replace the results by these, in this order."""
        self.outputs = tuple(results)
        for i, v in enumerate(self.outputs):
            v.index = i

    def add_result(self, t: Type | None, name: str = "") -> Value:
        """One more result, at the end."""
        v = Value(name, t, self, len(self.outputs))
        self.outputs = (*self.outputs, v)
        return v

    def detach(self) -> None:
        """Drop this node's uses of its operands, and those of everything in its regions (before it is discarded)."""
        self.set_inputs(())
        for region in self.regions:
            region.detach()

    def __repr__(self) -> str:
        res = ", ".join(map(repr, self.outputs))
        args = ", ".join("_" if v is None else repr(v) for v in self.inputs)
        dom = f"{self.domain}." if self.domain else ""
        return f"{res} = {dom}{self.op_type}({args})"


@dataclass(frozen=True, slots=True)
class Note:
    """What an author wrote about a value: carried along, never interpreted.

    `quantization` names the values that hold its quantization parameters, by role (SCALE_TENSOR, ...).
    """

    doc: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    quantization: tuple[tuple[str, Value], ...] = ()


class Graph:
    """A list of nodes in execution order with inputs, constants and outputs; a main graph, a body or a region.

    `defaults` holds the tensors of initializers that are also inputs: a caller may override them, so they are not
    constants. `parent` is the node that owns a region, None for the main graph and function bodies.
    `notes` keeps what an author wrote about values.
    """

    __slots__ = (
        "constants",
        "defaults",
        "doc",
        "inputs",
        "metadata",
        "name",
        "nodes",
        "notes",
        "outputs",
        "parent",
    )

    def __init__(self, name: str = ""):
        self.name = name
        self.inputs: list[Value] = []
        self.constants: list[Value] = []
        self.nodes: list[Node] = []
        self.outputs: tuple[Value, ...] = ()
        self.defaults: dict[Value, Tensor] = {}
        self.notes: dict[Value, Note] = {}
        self.parent: Node | None = None
        self.doc = ""
        self.metadata: dict[str, str] = {}

    def add_input(self, name: str, type: Type | None = None) -> Value:
        """Append an input."""
        v = Value(name, type, self, len(self.inputs))
        self.inputs.append(v)
        return v

    def add_constant(self, name: str, tensor: Tensor) -> Value:
        """Append a constant; the tensor is kept, not read."""
        v = Value(name, TensorType(tensor.dtype, tuple(int(d) for d in tensor.shape)), self)
        v.const = tensor
        self.constants.append(v)
        return v

    def append(self, node: Node) -> Node:
        """Append a node."""
        node.graph = self
        self.nodes.append(node)
        return node

    def set_inputs(self, inputs: Iterable[Value]) -> None:
        """Replace the inputs by these, in this order."""
        self.inputs[:] = inputs
        for i, v in enumerate(self.inputs):
            v.index = i

    def set_outputs(self, outputs: Iterable[Value]) -> None:
        """Replace the outputs, keeping use lists right."""
        for v in self.outputs:
            _drop_use(v, self)
        self.outputs = tuple(outputs)
        for v in self.outputs:
            _add_use(v, self)

    def add_output(self, v: Value) -> None:
        """Append an output."""
        self.outputs = (*self.outputs, v)
        _add_use(v, self)

    def detach(self) -> None:
        """Drop every use this graph and its nodes make of values."""
        self.set_outputs(())
        for n in self.nodes:
            n.detach()

    @property
    def is_region(self) -> bool:
        """True for a graph inside a node."""
        return self.parent is not None

    @property
    def enclosing(self) -> Graph | None:
        """The graph around a region, None for an outermost graph."""
        return None if self.parent is None else self.parent.graph

    def walk(self) -> Iterator[Node]:
        """Every node of this graph and of the regions inside, outer before inner, in order."""
        stack: list[Iterator[Node]] = [iter(self.nodes)]
        while stack:
            for n in stack[-1]:
                yield n
                if n.regions:
                    stack.extend(iter(g.nodes) for g in reversed(n.regions))
                    break
            else:
                stack.pop()

    def graphs(self) -> Iterator[Graph]:
        """This graph and every region inside."""
        yield self
        for n in self.walk():
            yield from n.regions

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {len(self.nodes)} nodes>"


@dataclass(eq=False)
class Function:
    """A local function: a body, whose attributes may refer to the function's own (`AttrRef`)."""

    domain: str
    name: str
    overload: str
    body: Graph
    opset: dict[str, int]
    #: Attribute names without a default.
    parameters: tuple[str, ...] = ()
    #: Attributes with their defaults.
    defaults: dict[str, Attr] = field(default_factory=dict)
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> FunctionKey:
        """What a call names."""
        return (self.domain, self.name, self.overload)


@dataclass(eq=False)
class Model:
    """A main graph, local functions, and the opsets they are written in."""

    graph: Graph
    opset: dict[str, int]
    functions: dict[FunctionKey, Function] = field(default_factory=dict)
    ir_version: int = 10
    producer_name: str = ""
    producer_version: str = ""
    domain: str = ""
    model_version: int = 0
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    #: TrainingInfoProtos, kept as they are.
    training: tuple[Any, ...] = ()
    #: Folder against which relative external data is resolved, as the tensors of this model were read.
    base_dir: str = ""
    #: How many anonymous symbols ("?1", "?2", ...) are in use.
    symbols: int = 0

    #: Constants and inner values that passes still to come were told of by name, and by how many: none may be dropped
    #: or shared, and no number of such a constant be used.
    variables: dict[Value, int] = field(default_factory=dict)

    #: Names of floating constants whose numbers shaped this model; it has no derivative with respect to them.
    frozen: set[str] = field(default_factory=set)

    #: Values whose type says more than can be inferred: the author's word, or a rule's. It is written with the model.
    told: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Take the frozen names out of the metadata of a model that was read, and made up names off its constants."""
        self.metadata = dict(self.metadata)
        text = self.metadata.pop(FROZEN, None)
        if text is not None:
            try:
                self.frozen.update(map(str, json.loads(text)))
            except (ValueError, TypeError):
                raise ModelError(f'the metadata entry "{FROZEN}" is not a list of names: {text!r}') from None
        for v in self.graph.constants:
            if v.name.startswith(MADE):
                v.name = ""

    def freeze(self, name: str) -> None:
        """Note that the number of the author's constant `name` was used to simplify the model."""
        self.frozen.add(name)

    def written_metadata(self) -> dict[str, str]:
        """The metadata with the frozen names, as it is written."""
        return {**self.metadata, FROZEN: json.dumps(sorted(self.frozen))} if self.frozen else self.metadata

    def fresh_dim(self) -> str:
        """A new anonymous symbol."""
        self.symbols += 1
        return f"?{self.symbols}"

    @property
    def version(self) -> int:
        """The opset of the default domain (0 where none is imported)."""
        return self.opset.get("", 0)

    def called(self, node: Node) -> Function | None:
        """The local function that a node calls; None for an operator."""
        return self.functions.get(node.callee) if self.functions else None

    def bodies(self) -> Iterator[Graph]:
        """The main graph and the body of every function."""
        yield self.graph
        for f in self.functions.values():
            yield f.body


def _add_use(value: Value, user: Node | Graph) -> None:
    value.users[user] = value.users.get(user, 0) + 1


def _drop_use(value: Value, user: Node | Graph) -> None:
    left = value.users[user] - 1
    if left:
        value.users[user] = left
    else:
        del value.users[user]


def clone_model(model: Model) -> Model:
    """A deep copy of a model that shares its tensors."""
    mapping: dict[Value, Value] = {}
    out = copy(model)
    out.graph = clone_graph(model.graph, mapping)
    out.functions = {}
    for key, f in model.functions.items():
        g = copy(f)
        g.body, g.opset = clone_graph(f.body), dict(f.opset)
        out.functions[key] = g
    out.opset, out.metadata = dict(model.opset), dict(model.metadata)
    out.frozen = set(model.frozen)
    out.told = {mapping[v] for v in model.told if v in mapping}
    out.variables = {mapping[v]: n for v, n in model.variables.items() if v in mapping}
    return out


def clone_graph(
    graph: Graph, mapping: dict[Value, Value] | None = None, attributes: Mapping[str, Attr] | None = None
) -> Graph:
    """A deep copy of `graph`. Values not defined inside are mapped through `mapping` or kept (captured).

    With `attributes`, every AttrRef is replaced by the attribute of that name, or dropped where there is none.
    Tensors are shared. `mapping` is extended by every value inside.
    """
    m: dict[Value, Value] = {} if mapping is None else mapping
    out = Graph(graph.name)
    out.doc, out.metadata = graph.doc, dict(graph.metadata)
    for v in graph.inputs:
        m[v] = out.add_input(v.name, v.type)
        m[v].content = v.content
        if v in graph.defaults:
            out.defaults[m[v]] = graph.defaults[v]
    for v in graph.constants:
        m[v] = clone_constant(v, out)
    for n in graph.nodes:
        out.append(clone_node(n, m, attributes))
    out.set_outputs(m.get(v, v) for v in graph.outputs)
    for v, note in graph.notes.items():
        parameters = tuple((k, m.get(p, p)) for k, p in note.quantization)
        out.notes[m.get(v, v)] = Note(note.doc, note.metadata, parameters)
    return out


def clone_constant(value: Value, into: Graph) -> Value:
    """A copy of a constant in another graph, sharing its tensor."""
    c = Value(value.name, value.type, into)
    c.const, c.content = value.const, value.content
    into.constants.append(c)
    return c


def graphs_of(a: Attr) -> tuple[Graph, ...]:
    """The regions that an attribute holds."""
    if isinstance(a, Graph):
        return (a,)
    return a if isinstance(a, tuple) and a and isinstance(a[0], Graph) else ()


def clone_node(node: Node, mapping: dict[Value, Value], attributes: Mapping[str, Attr] | None = None) -> Node:
    """A copy of `node` (not placed in a graph) on mapped operands; `mapping` is extended by its results."""
    attrs: dict[str, Attr] = {}
    for k, a in node.attributes.items():
        if isinstance(a, Graph):
            attrs[k] = clone_graph(a, mapping, attributes)
        elif several := graphs_of(a):
            attrs[k] = tuple(clone_graph(g, mapping, attributes) for g in several)
        elif attributes is not None and isinstance(a, AttrRef):
            if a.name in attributes:
                attrs[k] = attributes[a.name]
        else:
            attrs[k] = a
    copy = Node(
        node.op_type,
        [None if v is None else mapping.get(v, v) for v in node.inputs],
        attrs,
        [v.name for v in node.outputs],
        node.domain,
        node.name,
        node.overload,
    )
    copy.doc, copy.metadata = node.doc, node.metadata
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.type, new.content = old.type, old.content
        mapping[old] = new
    return copy
