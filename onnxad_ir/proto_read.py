"""ModelProto and FunctionProto to IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
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
from onnxad_ir.proto_order import sort_nodes, title_of
from onnxad_ir.proto_types import DTYPES, read_dtype, read_type
from onnxad_ir.schema import domain_of
from onnxad_ir.types import TensorType, Type

_KINDS: dict[int, ir.AttributeType] = {int(k): k for k in ir.AttributeType}
_A = onnx.AttributeProto
#: Attribute kinds of a Constant node that become a constant.
_CONSTANT_KINDS = frozenset({_A.TENSOR, _A.FLOAT, _A.FLOATS, _A.INT, _A.INTS, _A.STRING, _A.STRINGS})


def from_proto(proto: onnx.ModelProto, base_dir: str = "") -> Model:
    """The IR of a model. Tensors are wrapped, not read; relative external data is looked up in `base_dir`.

    Nodes that are not in execution order are sorted. Constant nodes and initializers become constants;
    initializers that are also inputs become defaults. Device placements are not kept.

    Raises ModelError for undefined or doubly defined names, cyclic graphs, a missing import of the default
    domain and contradicting imports.
    """
    opset = _read_opset(proto.opset_import, "the model")
    if not opset and proto.ir_version < 3:
        opset[""] = 1  # Before IR version 3 there were no imports.
    reader = _Reader(base_dir)
    graph = reader.graph(proto.graph)
    reader.check_default_domain(opset, "the model")
    model = Model(
        graph,
        opset,
        ir_version=proto.ir_version,
        producer_name=proto.producer_name,
        producer_version=proto.producer_version,
        domain=proto.domain,
        model_version=proto.model_version,
        doc=proto.doc_string,
        metadata=read_pairs(proto.metadata_props),
        base_dir=base_dir,
    )
    for p in proto.functions:
        f = reader.function(p)
        if f.key in model.functions:
            raise ModelError(f"function {f.domain}.{f.name}{':' + f.overload if f.overload else ''} is defined twice")
        model.functions[f.key] = f
    model.symbols = reader.unknown
    model.told.update(reader.declared)  # until inference has found the same
    model.training = tuple(proto.training_info)
    return model


def function_from_proto(proto: onnx.FunctionProto, base_dir: str = "") -> Function:
    """The IR of a local function. Raises ModelError as `from_proto` does."""
    return _Reader(base_dir).function(proto)


def read_pairs(pairs: Iterable[onnx.StringStringEntryProto]) -> dict[str, str]:
    """StringStringEntryProtos as a dict."""
    return {p.key: p.value for p in pairs}


def wrap_tensor(proto: onnx.TensorProto, base_dir: str = "") -> Tensor:
    """A tensor object over a TensorProto; nothing is copied or read. Raises ModelError for unknown types."""
    if proto.data_type not in DTYPES or not proto.data_type:
        raise ModelError(f'tensor "{proto.name}" has the unknown element type {proto.data_type}')
    if proto.data_location != onnx.TensorProto.EXTERNAL and proto.data_type != onnx.TensorProto.STRING:
        return serde.TensorProtoTensor(proto)
    if proto.data_location == onnx.TensorProto.EXTERNAL and not any(e.key == "location" for e in proto.external_data):
        raise ModelError(f'tensor "{proto.name}" has external data but no location')
    return serde.deserialize_tensor(proto, base_dir)


class _Undefined(Exception):
    """A name that is not defined where it is used."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name


class _Reader:
    def __init__(self, base_dir: str):
        self.base_dir = base_dir
        self.unknown = 0  # How many extents nobody named.
        self.scopes: list[dict[str, Value]] = []
        self.declared: list[Value] = []  # Results of nodes whose types the author wrote.
        self.default_domain_user = ""  # A node of the default domain, if there was one.

    # Bodies

    def function(self, proto: onnx.FunctionProto) -> Function:
        self.default_domain_user = ""
        body = Graph(proto.name)
        where = f"function {proto.domain}.{proto.name}"
        scope: dict[str, Value] = {}
        self.scopes.append(scope)
        try:
            for name in proto.input:
                _define(scope, body.add_input(name), where)
            self.body(body, proto, scope, proto.output, {})
        except _Undefined as e:
            raise ModelError(str(e)) from None
        finally:
            self.scopes.pop()
        opset = _read_opset(proto.opset_import, where)
        self.check_default_domain(opset, where)
        return Function(
            domain_of(proto.domain),
            proto.name,
            proto.overload,
            body,
            opset,
            parameters=tuple(proto.attribute),
            defaults={a.name: self.attribute(a) for a in proto.attribute_proto},
            doc=proto.doc_string,
            metadata=read_pairs(proto.metadata_props),
        )

    def graph(self, proto: onnx.GraphProto) -> Graph:
        g = Graph(proto.name)
        where = f'graph "{proto.name}"'
        g.doc = proto.doc_string
        if proto.metadata_props:
            g.metadata = read_pairs(proto.metadata_props)
        scope: dict[str, Value] = {}
        self.scopes.append(scope)
        try:
            for info in proto.input:
                _define(scope, g.add_input(info.name, self.value_type(info)), where)
            for t in proto.initializer:
                self.initializer(g, t, scope, where)
            for s in proto.sparse_initializer:
                self.sparse_initializer(g, s, scope, where)
            declared = {info.name: info for info in proto.output}
            self.body(g, proto, scope, [info.name for info in proto.output], declared)
            for info in (*proto.input, *proto.output, *proto.value_info):
                if info.doc_string or info.metadata_props:
                    note = Note(info.doc_string, tuple((e.key, e.value) for e in info.metadata_props))
                    if info.name in scope:
                        g.notes[scope[info.name]] = note
            self.quantization(g, proto, scope)
        except _Undefined as e:
            if len(self.scopes) > 1:
                g.detach()
                raise
            raise ModelError(str(e)) from None
        finally:
            self.scopes.pop()
        return g

    def body(
        self,
        g: Graph,
        proto: Any,
        scope: dict[str, Value],
        outputs: Sequence[str],
        declared: dict[str, onnx.ValueInfoProto],
    ) -> None:
        """Nodes, value types and outputs of a graph or function whose inputs stand in `scope`."""
        infos = {info.name: info for info in proto.value_info}
        infos.update(declared)
        before, constants, declared_before = dict(scope), len(g.constants), len(self.declared)
        try:
            self.nodes(g, proto.node, scope, infos)
        except _Undefined as e:
            nodes = proto.node
            if not any(e.name in p.output for p in nodes):
                raise
            # Not in execution order: forget what was read and start over with sorted nodes.
            for n in g.nodes:
                n.detach()
            g.nodes.clear()
            del g.constants[constants:]
            del self.declared[declared_before:]
            scope.clear()
            scope.update(before)
            self.nodes(g, sort_nodes(nodes, g.name), scope, infos)
        g.set_outputs(
            self.lookup(name, lambda n: f'output "{n}" of graph "{g.name}" is not defined') for name in outputs
        )

    def nodes(
        self,
        g: Graph,
        protos: Iterable[onnx.NodeProto],
        scope: dict[str, Value],
        infos: dict[str, onnx.ValueInfoProto],
    ) -> None:
        append = g.nodes.append
        get = scope.get
        for p in protos:
            op_type, domain = p.op_type, domain_of(p.domain)
            if not domain:
                if op_type == "Constant" and self.constant(g, p, scope):
                    continue
                self.default_domain_user = self.default_domain_user or op_type
            ins: list[Value | None] = []
            for name in p.input:
                v = get(name)
                if v is None and name:
                    v = self.lookup(name, lambda n, p=p: _undefined_operand(n, p, g))  # type: ignore[misc]
                ins.append(v)
            attributes = self.attributes(p) if p.attribute else {}
            node = Node(op_type, ins, attributes, p.output, domain, p.name, p.overload, g)
            append(node)
            if p.doc_string:
                node.doc = p.doc_string
            if p.metadata_props:
                node.metadata = read_pairs(p.metadata_props)
            for v in node.outputs:
                name = v.name
                if name:
                    if name in scope:
                        raise ModelError(f'"{name}", a result of {title_of(p)} in graph "{g.name}", is defined twice')
                    scope[name] = v
                    if infos and name in infos:
                        v.type = self.value_type(infos[name])
                        self.declared.append(v)

    def visible(self, name: str) -> Value | None:
        """The value of that name in the innermost scope that has one."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None) if name else None

    def lookup(self, name: str, message: Callable[[str], str]) -> Value:
        """The value of that name; _Undefined where there is none."""
        if (v := self.visible(name)) is not None:
            return v
        raise _Undefined(name, message(name))

    # Constants

    def initializer(self, g: Graph, t: onnx.TensorProto, scope: dict[str, Value], where: str) -> None:
        if t.name in scope and scope[t.name].const is None and scope[t.name] not in g.defaults:
            g.defaults[scope[t.name]] = wrap_tensor(t, self.base_dir)
        else:
            self.add_constant(g, t.name, wrap_tensor(t, self.base_dir), t.dims, scope, where)

    def add_constant(
        self, g: Graph, name: str, tensor: Tensor, dims: Iterable[int], scope: dict[str, Value], where: str
    ) -> None:
        v = Value(name, TensorType(tensor.dtype, tuple(dims)), g)
        v.const = tensor
        _define(scope, v, where)
        g.constants.append(v)

    def constant(self, g: Graph, p: onnx.NodeProto, scope: dict[str, Value]) -> bool:
        """Make a Constant node a constant; False where it has to stay a node."""
        if len(p.attribute) != 1 or len(p.output) != 1 or not p.output[0]:
            return False
        a = p.attribute[0]
        if a.ref_attr_name or a.type not in _CONSTANT_KINDS:
            return False
        if a.type == _A.TENSOR:
            tensor, dims = wrap_tensor(a.t, self.base_dir), tuple(a.t.dims)
        else:
            tensor = _inline_tensor(a)
            dims = (len(_LISTS[a.type](a)),) if a.type in _LISTS else ()
        self.add_constant(g, p.output[0], tensor, dims, scope, f'graph "{g.name}"')
        return True

    def sparse_initializer(self, g: Graph, s: onnx.SparseTensorProto, scope: dict[str, Value], where: str) -> None:
        name = s.values.name
        if name in scope:
            raise ModelError(f'the sparse initializer "{name}" of {where} is also an input or initializer')
        a = _A(name="sparse_value", type=_A.SPARSE_TENSOR, sparse_tensor=s)
        node = g.append(Node("Constant", (), {"sparse_value": RawAttr(a)}, (name,)))
        node.outputs[0].type = TensorType(read_dtype(s.values.data_type), tuple(s.dims))
        _define(scope, node.outputs[0], where)

    def quantization(self, g: Graph, proto: onnx.GraphProto, scope: dict[str, Value]) -> None:
        for q in proto.quantization_annotation:
            v = scope.get(q.tensor_name)
            if v is not None:
                named = ((e.key, self.visible(e.value)) for e in q.quant_parameter_tensor_names)
                parameters = tuple((key, p) for key, p in named if p is not None)
                old = g.notes.get(v, Note())
                g.notes[v] = Note(old.doc, old.metadata, parameters)

    # Types

    def value_type(self, info: onnx.ValueInfoProto) -> Type | None:
        return self.type(info.type)

    def type(self, t: onnx.TypeProto) -> Type | None:
        return read_type(t, self.fresh)

    def fresh(self) -> str:
        self.unknown += 1
        return f"?{self.unknown}"

    # Attributes

    def attributes(self, p: onnx.NodeProto) -> dict[str, Attr]:
        out: dict[str, Attr] = {}
        try:
            for a in p.attribute:
                out[a.name] = self.attribute(a)
        except _Undefined:
            Node(p.op_type, (), out).detach()  # The regions read so far are given up.
            raise
        return out

    def attribute(self, a: onnx.AttributeProto) -> Attr:
        """The value of an attribute. Raises ModelError where it has no known kind."""
        kind = a.type
        if a.ref_attr_name:
            return AttrRef(a.ref_attr_name, _KINDS[kind])
        if kind in _SCALARS:
            return _SCALARS[kind](a)
        if kind in _LISTS:
            return _LISTS[kind](a) or EmptyList(_KINDS[kind])
        if kind == _A.TENSOR:
            return wrap_tensor(a.t, self.base_dir)
        if kind == _A.GRAPH:
            return self.graph(a.g)
        if kind == _A.TENSORS:
            return tuple(wrap_tensor(t, self.base_dir) for t in a.tensors) or EmptyList(_KINDS[kind])
        if kind == _A.GRAPHS:
            return tuple(self.graph(g) for g in a.graphs) or EmptyList(_KINDS[kind])
        if kind:
            return RawAttr(a)
        return self.attribute(_with_kind(a))

    def check_default_domain(self, opset: dict[str, int], where: str) -> None:
        if self.default_domain_user and "" not in opset:
            raise ModelError(
                f"{where} uses {self.default_domain_user} of the default domain "
                "but imports no opset of that domain: "
                'add opset_import {domain: "", version: ...}'
            )


def _text(b: bytes) -> str | bytes:
    try:
        return b.decode()
    except UnicodeDecodeError:
        return b


def _texts(a: onnx.AttributeProto) -> tuple[str, ...] | tuple[bytes, ...]:
    strings = tuple(a.strings)
    try:
        return tuple(b.decode() for b in strings)
    except UnicodeDecodeError:
        return strings


_SCALARS: dict[int, Callable[[onnx.AttributeProto], Any]] = {
    _A.INT: lambda a: a.i,
    _A.FLOAT: lambda a: a.f,
    _A.STRING: lambda a: _text(a.s),
}
_LISTS: dict[int, Callable[[onnx.AttributeProto], tuple[Any, ...]]] = {
    _A.INTS: lambda a: tuple(a.ints),
    _A.FLOATS: lambda a: tuple(a.floats),
    _A.STRINGS: _texts,
}


def _with_kind(a: onnx.AttributeProto) -> onnx.AttributeProto:
    """A copy of an attribute of early IR versions, which had no kind: the field that is set tells it."""
    fields = {
        "f": _A.FLOAT,
        "i": _A.INT,
        "s": _A.STRING,
        "t": _A.TENSOR,
        "g": _A.GRAPH,
        "floats": _A.FLOATS,
        "ints": _A.INTS,
        "strings": _A.STRINGS,
        "tensors": _A.TENSORS,
        "graphs": _A.GRAPHS,
    }
    found = [fields[f.name] for f, _ in a.ListFields() if f.name in fields]
    if len(found) != 1:
        raise ModelError(f'the attribute "{a.name}" has no kind')
    out = _A()
    out.CopyFrom(a)
    out.type = found[0]
    return out


def _inline_tensor(a: onnx.AttributeProto) -> Tensor:
    """The tensor of a Constant's value_float(s), value_int(s) or value_string(s)."""
    if a.type in (_A.STRING, _A.STRINGS):
        strings = [a.s] if a.type == _A.STRING else list(a.strings)
        return ir.StringTensor(strings, shape=ir.Shape(() if a.type == _A.STRING else (len(strings),)))
    dtype = np.float32 if a.type in (_A.FLOAT, _A.FLOATS) else np.int64
    return ir.Tensor(np.array((_SCALARS.get(a.type) or _LISTS[a.type])(a), dtype))


def _read_opset(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> dict[str, int]:
    opset: dict[str, int] = {}
    for o in imports:
        domain = domain_of(o.domain)
        if opset.setdefault(domain, o.version) != o.version:
            raise ModelError(f'{where} imports domain "{domain}" twice, with versions {opset[domain]} and {o.version}')
    return opset


def _define(scope: dict[str, Value], v: Value, where: str) -> None:
    if not v.name:
        raise ModelError(f"an input or initializer of {where} has no name")
    if v.name in scope:
        raise ModelError(f'"{v.name}" is defined twice in {where}')
    scope[v.name] = v


def _undefined_operand(name: str, p: onnx.NodeProto, g: Graph) -> str:
    return f'operand {list(p.input).index(name)} ("{name}") of {title_of(p)} in graph "{g.name}" is not defined'
