"""onnx_ir.Model to and from the IR. Tensor objects are shared, never copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir import serde

from onnxad_ir.core import (
    Attr,
    AttrRef,
    EmptyList,
    Function,
    Graph,
    Model,
    Node,
    Note,
    RawAttr,
    Tensor,
    Value,
)
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.names import Names, name_body
from onnxad_ir.schema import domain_of
from onnxad_ir.types import (
    DataType,
    Dim,
    OptionalType,
    SequenceType,
    Shape,
    SparseTensorType,
    TensorType,
    Type,
    is_anonymous,
)

_K = ir.AttributeType
#: Where onnx_ir keeps the parameters that a value is quantized with.
QUANTIZATION = "quant_parameter_tensor_names"
#: The forms of a Constant node that become a constant: element type (None: a tensor object).
_CONSTANTS: dict[str, DataType | None] = {
    "value": None,
    "value_float": DataType.FLOAT,
    "value_floats": DataType.FLOAT,
    "value_int": DataType.INT64,
    "value_ints": DataType.INT64,
    "value_string": DataType.STRING,
    "value_strings": DataType.STRING,
}


def from_onnx_ir(model: ir.Model, base_dir: str = "") -> Model:
    """The IR of an onnx_ir model, which is left as it is.

    Raises ModelError where nodes are not in execution order or a value is used that the model does not
    define.
    """
    reader = _Reader()
    out = Model(
        reader.graph(model.graph),
        {domain_of(k): v for k, v in model.graph.opset_imports.items()},
        ir_version=model.ir_version,
        producer_name=model.producer_name or "",
        producer_version=model.producer_version or "",
        domain=model.domain or "",
        model_version=model.model_version or 0,
        doc=model.doc_string or "",
        metadata=dict(model.metadata_props),
        base_dir=base_dir,
    )
    for f in model.functions.values():
        function = reader.function(f)
        out.functions[function.key] = function
    reader.quantization()
    out.symbols = reader.unknown
    return out


def to_onnx_ir(model: Model) -> ir.Model:
    """The onnx_ir model of a model. Names are made unique as in `to_proto`; training information is left out.

    Raises ModelError for map types and sparse tensors, which onnx_ir does not have.
    """
    names = name_body(model.graph, model.opset)
    writer = _Writer(names, initializers=model.ir_version >= 4)
    graph = writer.graph(model.graph, model.opset)
    return ir.Model(
        graph,
        ir_version=model.ir_version,
        producer_name=model.producer_name or None,
        producer_version=model.producer_version or None,
        domain=model.domain or None,
        model_version=model.model_version or None,
        doc_string=model.doc or None,
        functions=[_write_function(f) for f in model.functions.values()],
        metadata_props=dict(model.written_metadata()),
    )


class _Reader:
    def __init__(self) -> None:
        self.values: dict[ir.Value, Value] = {}
        self.unknown = 0
        #: What has quantization parameters, which are known by name only.
        self.quantized: list[tuple[Graph, Value, dict[str, str]]] = []

    def function(self, f: ir.Function) -> Function:
        body = self.graph(f.graph)
        body.name, body.doc, body.metadata = f.name, "", {}  # They are said of the function.
        attributes = f.attributes.values()
        return Function(
            domain_of(f.domain),
            f.name,
            f.overload,
            body,
            {domain_of(k): v for k, v in f.opset_imports.items()},
            parameters=tuple(a.name for a in attributes if a.value is None),
            defaults={a.name: self.attribute(a) for a in attributes if a.value is not None},
            doc=f.doc_string or "",
            metadata=dict(f.metadata_props),
        )

    def graph(self, source: ir.Graph) -> Graph:
        g = Graph(source.name or "")
        g.doc = source.doc_string or ""
        g.metadata = dict(source.metadata_props)
        values = self.values
        for v in source.inputs:
            values[v] = g.add_input(v.name or "", self.type(v.type, v.shape))
        for v in source.initializers.values():
            if v.const_value is None:
                raise ModelError(f'the initializer "{v.name}" has no tensor')
            if v in values:
                g.defaults[values[v]] = v.const_value
            else:
                values[v] = g.add_constant(v.name or "", v.const_value)
        for n in source:
            self.node(g, n)
        g.set_outputs([self.value(v, f'output of graph "{g.name}"') for v in source.outputs])
        self.notes(g, source)
        return g

    def node(self, g: Graph, n: ir.Node) -> None:
        domain = domain_of(n.domain)
        if n.op_type == "Constant" and not domain and self.constant(g, n):
            return
        title = f'operand of {n.op_type} "{n.name}"'
        operands = [None if v is None else self.value(v, title) for v in n.inputs]
        attributes = {a.name: self.attribute(a) for a in n.attributes.values()}
        names = [v.name or "" for v in n.outputs]
        node = g.append(Node(n.op_type, operands, attributes, names, domain, n.name or "", n.overload))
        node.doc = n.doc_string or ""
        node.metadata = dict(n.metadata_props) or None
        for old, new in zip(n.outputs, node.outputs, strict=True):
            new.type = self.type(old.type, old.shape)
            self.values[old] = new

    def value(self, v: ir.Value, what: str) -> Value:
        if v not in self.values:
            raise ModelError(f'"{v.name}", an {what}, is not defined before it (sort the graph if it is later)')
        return self.values[v]

    def constant(self, g: Graph, n: ir.Node) -> bool:
        if len(n.attributes) != 1 or len(n.outputs) != 1:
            return False
        a = next(iter(n.attributes.values()))
        if a.is_ref() or a.name not in _CONSTANTS:
            return False
        self.values[n.outputs[0]] = g.add_constant(n.outputs[0].name or "", _tensor(a))
        return True

    def notes(self, g: Graph, source: ir.Graph) -> None:
        ours = (*source.inputs, *source.initializers.values(), *(o for n in source for o in n.outputs))
        for v in dict.fromkeys(ours):
            quantization = v.meta.get(QUANTIZATION) or {}
            if v.doc_string or v.metadata_props or quantization:
                g.notes[self.values[v]] = Note(v.doc_string or "", tuple(v.metadata_props.items()))
            if quantization:
                self.quantized.append((g, self.values[v], quantization))

    def quantization(self) -> None:
        """Look the names of quantization parameters up, now that every graph around them is known."""
        named: dict[Graph, dict[str, Value]] = {}
        for g, v, quantization in self.quantized:
            parameters = []
            for role, name in quantization.items():
                around: Graph | None = g
                while around is not None:
                    if around not in named:
                        named[around] = _named(around)
                    if name in named[around]:
                        parameters.append((role, named[around][name]))
                        break
                    around = around.enclosing
            note = g.notes[v]
            g.notes[v] = Note(note.doc, note.metadata, tuple(parameters))

    def attribute(self, a: ir.Attr) -> Attr:
        if a.is_ref():
            return AttrRef(str(a.ref_attr_name), a.type)
        if a.type in (_K.INT, _K.FLOAT, _K.STRING, _K.TENSOR):
            return a.value
        if a.type == _K.GRAPH:
            return self.graph(a.value)
        if a.type == _K.GRAPHS:
            return tuple(map(self.graph, a.value)) or EmptyList(a.type)
        if a.type in (_K.INTS, _K.FLOATS, _K.STRINGS, _K.TENSORS):
            return tuple(a.value) or EmptyList(a.type)
        return RawAttr(serde.serialize_attribute(a))

    def type(self, t: Any, shape: ir.Shape | None) -> Type | None:
        if isinstance(t, ir.TensorType):
            return TensorType(t.dtype, self.shape(shape))
        if isinstance(t, ir.SparseTensorType):
            return SparseTensorType(t.dtype, self.shape(shape))
        if isinstance(t, ir.SequenceType):
            return SequenceType(self.type(t.elem_type, shape))
        if isinstance(t, ir.OptionalType):
            return OptionalType(self.type(t.elem_type, shape))
        return None

    def shape(self, shape: ir.Shape | None) -> Shape | None:
        if shape is None:
            return None
        dims: list[Dim] = []
        for d in shape:
            known = d if isinstance(d, int) else d.value
            if known is None or (isinstance(known, str) and (not known or known.startswith("?"))):
                self.unknown += 1
                known = f"?{self.unknown}"
            dims.append(known)
        return tuple(dims)


def _named(g: Graph) -> dict[str, Value]:
    return {v.name: v for v in (*g.inputs, *g.constants, *(o for n in g.nodes for o in n.outputs)) if v.name}


def _tensor(a: ir.Attr) -> Tensor:
    dtype = _CONSTANTS[a.name]
    if dtype is None:
        return a.value
    if dtype == DataType.STRING:
        several = a.name.endswith("s")
        strings = [s.encode() if isinstance(s, str) else s for s in (a.value if several else [a.value])]
        return ir.StringTensor(strings, shape=ir.Shape((len(strings),) if several else ()))
    return ir.Tensor(np.array(a.value, dtype.numpy()))


def _write_function(f: Function) -> ir.Function:
    writer = _Writer(name_body(f.body, f.opset, function=True), initializers=False)
    graph = writer.graph(f.body, f.opset)
    graph.name = None  # the function has one
    graph.doc_string = f.doc or None
    graph.metadata_props.update(f.metadata)
    attributes = [ir.Attr(p, _K.UNDEFINED, None) for p in f.parameters]
    attributes += [writer.attribute(k, a) for k, a in f.defaults.items()]
    return ir.Function(f.domain, f.name, f.overload, graph=graph, attributes=attributes)


class _Writer:
    def __init__(self, names: Names, initializers: bool):
        self.names = names.values
        self.copies = names.copies
        self.initializers = initializers
        self.values: dict[Value, ir.Value] = {}

    def graph(self, g: Graph, opset: dict[str, int] | None = None) -> ir.Graph:
        values = self.values
        for v in g.inputs:
            values[v] = self.value(v, g)
        inputs = [values[v] for v in g.inputs]
        initializers: list[ir.Value] = []
        nodes: list[ir.Node] = []
        for v, tensor in g.defaults.items():
            values[v].const_value = tensor
            initializers.append(values[v])
        for v in g.constants:
            values[v] = self.value(v, g)
            if self.initializers:
                values[v].const_value = v.const
                initializers.append(values[v])
            else:
                a = ir.Attr("value", _K.TENSOR, v.const)
                nodes.append(ir.Node("", "Constant", [], [a], outputs=[values[v]]))
        for n in g.nodes:
            nodes.append(self.node(n, g))
        outputs = [values[v] for v in g.outputs]
        for i, name in self.copies.get(g, {}).items():
            copy = ir.Value(name=name, type=outputs[i].type, shape=outputs[i].shape)
            nodes.append(ir.Node("", "Identity", [outputs[i]], outputs=[copy]))
            outputs[i] = copy
        return ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=g.doc or None,
            opset_imports=None if opset is None else dict(opset),
            name=g.name or None,
            metadata_props=dict(g.metadata),
        )

    def node(self, n: Node, g: Graph) -> ir.Node:
        values = self.values
        attributes = [self.attribute(k, a) for k, a in n.attributes.items()]
        for v in n.outputs:
            values[v] = self.value(v, g)
        return ir.Node(
            n.domain,
            n.op_type,
            [None if v is None else values[v] for v in n.inputs],
            attributes,
            overload=n.overload,
            outputs=[values[v] for v in n.outputs],
            name=n.name,  # None would be given a name
            doc_string=n.doc or None,
            metadata_props=dict(n.metadata) if n.metadata else None,
        )

    def value(self, v: Value, g: Graph) -> ir.Value:
        t, shape = _type(v.type)
        out = ir.Value(name=self.names.get(v, ""), type=t, shape=shape)
        note = g.notes.get(v)
        if note is not None:
            out.doc_string = note.doc or None
            out.metadata_props.update(note.metadata)
            found = {k: self.names[p] for k, p in note.quantization if p in self.names}
            if found:
                out.meta[QUANTIZATION] = found
        return out

    def attribute(self, name: str, a: Attr) -> ir.Attr:
        if isinstance(a, AttrRef):
            return ir.RefAttr(name, a.name, a.kind)
        if isinstance(a, EmptyList):
            return ir.Attr(name, a.kind, ())
        if isinstance(a, Graph):
            return ir.Attr(name, _K.GRAPH, self.graph(a))
        if isinstance(a, RawAttr):
            try:
                return serde.deserialize_attribute(a.proto)
            except (serde.SerdeError, NotImplementedError, ValueError) as e:
                raise ModelError(f'onnx_ir cannot hold the attribute "{name}": {e}') from None
        if isinstance(a, tuple):
            first = a[0]
            if isinstance(first, Graph):
                return ir.Attr(name, _K.GRAPHS, [self.graph(g) for g in a])
            if isinstance(first, ir.TensorProtocol):
                return ir.Attr(name, _K.TENSORS, a)
            if isinstance(first, str | bytes):
                return ir.Attr(name, _K.STRINGS, a)
            return ir.Attr(name, _K.FLOATS if any(isinstance(x, float) for x in a) else _K.INTS, a)
        if isinstance(a, ir.TensorProtocol):
            return ir.Attr(name, _K.TENSOR, a)
        if isinstance(a, str | bytes):
            return ir.Attr(name, _K.STRING, a)
        return ir.Attr(name, _K.INT if isinstance(a, int) else _K.FLOAT, a)


def _type(t: Type | None) -> tuple[Any, ir.Shape | None]:
    """The type and, beside it, the shape of the tensors in it."""
    if t is None:
        return None, None
    if isinstance(t, TensorType | SparseTensorType):
        shape = None if t.shape is None else ir.Shape([None if is_anonymous(d) else d for d in t.shape])
        return (ir.TensorType if isinstance(t, TensorType) else ir.SparseTensorType)(t.dtype), shape
    if isinstance(t, SequenceType | OptionalType):
        inner, shape = _type(t.elem)
        if inner is None:
            return None, None
        return (ir.SequenceType if isinstance(t, SequenceType) else ir.OptionalType)(inner), shape
    raise ModelError(f"onnx_ir has no type for {t}")
