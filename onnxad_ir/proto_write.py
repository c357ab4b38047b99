"""IR to ModelProto and FunctionProto."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde

from onnxad_ir.core import Attr, AttrRef, EmptyList, Function, Graph, Model, RawAttr, Tensor, Value
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.names import Namer, Names, name_body
from onnxad_ir.proto_types import write_type

_A = onnx.AttributeProto
#: Domains whose result types ONNX itself can infer.
_INFERABLE = frozenset({"", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview"})


#: Gives the tensor to write in place of another.
Place = Callable[[Tensor], Tensor]


def to_proto(model: Model, value_info: bool = False, external: Place | None = None) -> onnx.ModelProto:
    """The ModelProto of a model.

    Names are made unique; those of inputs, outputs and constants of the main graph do not change (ModelError
    where two of them clash). Types of intermediate values are written for results that no inference could
    type in full (`Model.told`, custom operators) and, with `value_info`, for all. External tensors are written
    as references. `external` may give another tensor to write in place of each, for instance one that says
    where the data has gone.
    """
    out = onnx.ModelProto(ir_version=model.ir_version)
    header = {
        "producer_name": model.producer_name,
        "producer_version": model.producer_version,
        "domain": model.domain,
        "model_version": model.model_version,
        "doc_string": model.doc,
    }
    for field, value in header.items():
        if value:
            setattr(out, field, value)
    write_pairs(out.metadata_props, model.written_metadata())
    _write_opset(out.opset_import, model.opset)
    known = _INFERABLE | {f.domain for f in model.functions.values()}
    names = name_body(model.graph, model.opset)
    _check_interface(model.graph, names)
    # Before IR version 4 an initializer had to be an input as well, so constants stay nodes.
    writer = _Writer(names, known, value_info, model.ir_version >= 4, external, model.told)
    writer.graph(out.graph, model.graph)
    for f in model.functions.values():
        _write_function(out.functions.add(), f, known, value_info, external)
    out.training_info.extend(model.training)
    return out


def function_to_proto(function: Function, value_info: bool = False) -> onnx.FunctionProto:
    """The FunctionProto of a local function; its constants become Constant nodes."""
    out = onnx.FunctionProto()
    _write_function(out, function, _INFERABLE | {function.domain}, value_info, None)
    return out


def write_tensor(out: onnx.TensorProto, tensor: Tensor, name: str) -> None:
    """Write a tensor under a name. External data is referred to, not read."""
    if isinstance(tensor, serde.TensorProtoTensor):
        out.CopyFrom(tensor.raw)
    else:
        serde.serialize_tensor_into(out, tensor)
    if name:
        out.name = name
    else:
        out.ClearField("name")


def _no_graph(out: onnx.GraphProto, g: Graph) -> None:
    raise TypeError(f"an attribute holds the graph {g.name!r}")


def write_attribute(
    out: onnx.AttributeProto,
    name: str,
    a: Attr,
    graph: Callable[[onnx.GraphProto, Graph], None] = _no_graph,
    tensor: Callable[[onnx.TensorProto, Tensor, str], None] = write_tensor,
) -> None:
    """Write an attribute of any form the IR has; `graph` and `tensor` write a region and a tensor."""
    if isinstance(a, RawAttr):
        out.CopyFrom(a.proto)
        out.name = name
        return
    out.name = name
    if isinstance(a, int):
        out.type, out.i = _A.INT, a
    elif isinstance(a, float):
        out.type, out.f = _A.FLOAT, a
    elif isinstance(a, str):
        out.type, out.s = _A.STRING, a.encode()
    elif isinstance(a, tuple):
        _write_elements(out, a, graph, tensor)
    elif isinstance(a, Graph):
        out.type = _A.GRAPH
        graph(out.g, a)
    elif isinstance(a, AttrRef):
        out.ref_attr_name = a.name
        out.type = int(a.kind)
    elif isinstance(a, EmptyList):
        out.type = int(a.kind)
    elif isinstance(a, bytes):
        out.type, out.s = _A.STRING, a
    elif isinstance(a, ir.TensorProtocol):
        out.type = _A.TENSOR
        tensor(out.t, a, a.name or "")
    else:
        raise TypeError(f"attribute {name} = {a!r} is nothing that ONNX can hold")


def _write_elements(
    out: onnx.AttributeProto,
    a: tuple[Any, ...],
    graph: Callable[[onnx.GraphProto, Graph], None],
    tensor: Callable[[onnx.TensorProto, Tensor, str], None],
) -> None:
    first = a[0] if a else None
    if isinstance(first, int) and all(isinstance(x, int) for x in a):
        out.type = _A.INTS
        out.ints.extend(a)
    elif isinstance(first, int | float):
        out.type = _A.FLOATS
        out.floats.extend(a)
    elif isinstance(first, str):
        out.type = _A.STRINGS
        out.strings.extend([s.encode() for s in a])
    elif isinstance(first, bytes):
        out.type = _A.STRINGS
        out.strings.extend(a)
    elif isinstance(first, Graph):
        out.type = _A.GRAPHS
        for g in a:
            graph(out.graphs.add(), g)
    elif isinstance(first, ir.TensorProtocol):
        out.type = _A.TENSORS
        for t in a:
            tensor(out.tensors.add(), t, t.name or "")
    else:
        raise TypeError(f"{a!r} is no list that ONNX can hold (an empty list is an EmptyList)")


def write_pairs(out: Any, pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
    """Append StringStringEntryProtos."""
    for k, v in pairs.items() if isinstance(pairs, Mapping) else pairs:
        out.add(key=k, value=v)


def _write_opset(out: Any, opset: dict[str, int]) -> None:
    for domain, version in opset.items():
        out.add(domain=domain, version=version)


def _write_function(
    out: onnx.FunctionProto, f: Function, known: frozenset[str], value_info: bool, external: Place | None
) -> None:
    names = name_body(f.body, f.opset, function=True)
    out.name = f.name
    out.domain = f.domain
    if f.overload:
        out.overload = f.overload
    if f.doc:
        out.doc_string = f.doc
    out.attribute.extend(f.parameters)
    writer = _Writer(names, known, value_info, False, external)
    for k, a in f.defaults.items():
        writer.attribute(out.attribute_proto.add(), k, a)
    _write_opset(out.opset_import, f.opset)
    write_pairs(out.metadata_props, f.metadata)
    out.input.extend(names.values[v] for v in f.body.inputs)
    out.output.extend(writer.body(out, f.body))


def _check_interface(graph: Graph, names: Names) -> None:
    for v in (*graph.inputs, *graph.outputs):
        name = names.values.get(v)
        if v.name and name is not None and name != v.name:
            raise ModelError(f'two inputs or outputs of the model share the name "{v.name}"')


class _Writer:
    """Writes the graphs of one body."""

    def __init__(
        self,
        names: Names,
        known: frozenset[str],
        value_info: bool,
        initializers: bool,
        external: Place | None,
        told: Container[Value] = (),
    ):
        self.names = names.values
        self.copies = names.copies
        self.known = known
        self.value_info = value_info
        self.initializers = initializers
        self.external = external
        self.told = told
        self.labels = Namer()

    def graph(self, out: onnx.GraphProto, g: Graph) -> None:
        names = self.names
        out.name = g.name or "graph"
        if g.doc:
            out.doc_string = g.doc
        write_pairs(out.metadata_props, g.metadata)
        for v in g.inputs:
            self.info(out.input.add(), names[v], v, g)
        for v, tensor in g.defaults.items():
            self.tensor(out.initializer.add(), tensor, names[v])
        outputs = self.body(out, g)
        for name, v in zip(outputs, g.outputs, strict=True):
            self.info(out.output.add(), name, v, g)
        for v, note in g.notes.items():
            parameters = [(k, names[p]) for k, p in note.quantization if p in names]
            if parameters and v in names:
                write_pairs(
                    out.quantization_annotation.add(tensor_name=names[v]).quant_parameter_tensor_names,
                    parameters,
                )

    def body(self, out: Any, g: Graph) -> list[str]:
        """Write constants, nodes and value types; return what the outputs are called."""
        names = self.names
        for v in g.constants:
            assert v.const is not None
            if self.initializers:
                self.tensor(out.initializer.add(), v.const, names[v])
            else:
                p = out.node.add(op_type="Constant", output=(names[v],))
                self.tensor(p.attribute.add(name="value", type=_A.TENSOR).t, v.const, "")
        add = out.node.add
        outputs = set(g.outputs)
        for n in g.nodes:
            p = add()
            p.op_type = n.op_type
            if n.domain:
                p.domain = n.domain
            try:
                p.input.extend(["" if v is None else names[v] for v in n.inputs])
            except KeyError:
                raise ModelError(f"an operand of {describe(n)} is defined nowhere in the model") from None
            p.output.extend(_trimmed([names.get(v, "") for v in n.outputs]))
            if n.name:
                p.name = self.labels.fresh(n.name)  # runtimes refuse nodes of one name
            if n.overload:
                p.overload = n.overload
            for k, a in n.attributes.items():
                self.attribute(p.attribute.add(), k, a)
            if n.doc:
                p.doc_string = n.doc
            if n.metadata:
                write_pairs(p.metadata_props, n.metadata)
            every = self.value_info or n.domain not in self.known or (g.notes and any(v in g.notes for v in n.outputs))
            for v in n.outputs:
                if (every or v in self.told) and v.type is not None and v in names and v not in outputs:
                    self.info(out.value_info.add(), names[v], v, g)
        lost = [v for v in g.outputs if v not in names]
        if lost:
            raise ModelError(f'output {lost[0]!r} of graph "{g.name}" is defined nowhere in the model')
        copies = self.copies.get(g, {})
        for i, name in copies.items():
            out.node.add(op_type="Identity", input=(names[g.outputs[i]],), output=(name,))
        return [copies.get(i) or names[v] for i, v in enumerate(g.outputs)]

    def tensor(self, out: onnx.TensorProto, t: Tensor, name: str) -> None:
        write_tensor(out, t if self.external is None else self.external(t), name)

    def info(self, out: onnx.ValueInfoProto, name: str, v: Value, g: Graph) -> None:
        out.name = name
        if v.type is not None:
            write_type(out.type, v.type)
        note = g.notes.get(v)
        if note is not None:
            if note.doc:
                out.doc_string = note.doc
            write_pairs(out.metadata_props, note.metadata)

    def attribute(self, out: onnx.AttributeProto, name: str, a: Attr) -> None:
        write_attribute(out, name, a, self.graph, self.tensor)


def _trimmed(outputs: list[str]) -> list[str]:
    """Results without the omitted ones at the end."""
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    return outputs
