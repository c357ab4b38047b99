"""Types to and from protobuf, and the inference functions of onnx's schemas."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnx import shape_inference

from onnxad_ir.core import AttrRef, EmptyList, Graph, Node, RawAttr, Value
from onnxad_ir.schema import Facts
from onnxad_ir.types import (
    DataType,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    SparseTensorType,
    TensorType,
    Type,
)

#: A constant operand is shown to onnx's inference up to this many elements.
DATA_LIMIT = 1024


def type_from_proto(proto: onnx.TypeProto, fresh: Callable[[], str], anonymous: bool = False) -> Type | None:
    """A Type from a TypeProto; every extent without value or name becomes a fresh symbol.

    With `anonymous`, a name that starts with "?" is one of our own symbols, else it is unknown.
    """
    which = proto.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        t = getattr(proto, which)
        shape: Shape | None = None
        if t.HasField("shape"):
            shape = tuple(
                d.dim_value
                if d.HasField("dim_value") and d.dim_value >= 0
                else (d.dim_param if d.dim_param and (anonymous or not d.dim_param.startswith("?")) else fresh())
                for d in t.shape.dim
            )
        if t.elem_type == 0:
            return None
        kind = TensorType if which == "tensor_type" else SparseTensorType
        return kind(DataType(t.elem_type), shape)
    if which == "sequence_type":
        return SequenceType(type_from_proto(proto.sequence_type.elem_type, fresh, anonymous))
    if which == "optional_type":
        return OptionalType(type_from_proto(proto.optional_type.elem_type, fresh, anonymous))
    if which == "map_type":
        return MapType(DataType(proto.map_type.key_type), type_from_proto(proto.map_type.value_type, fresh, anonymous))
    return None


def type_to_proto(t: Type | None, proto: onnx.TypeProto, anonymous: bool = False) -> None:
    """Write a Type into a TypeProto; anonymous symbols are written as unknown extents unless `anonymous`."""
    if isinstance(t, TensorType | SparseTensorType):
        p = proto.tensor_type if isinstance(t, TensorType) else proto.sparse_tensor_type
        p.elem_type = int(t.dtype)
        if t.shape is not None:
            p.shape.SetInParent()
            for d in t.shape:
                dim = p.shape.dim.add()
                if isinstance(d, int):
                    dim.dim_value = d
                elif anonymous or not d.startswith("?"):
                    dim.dim_param = d
    elif isinstance(t, SequenceType):
        proto.sequence_type.elem_type.SetInParent()
        type_to_proto(t.elem, proto.sequence_type.elem_type, anonymous)
    elif isinstance(t, OptionalType):
        proto.optional_type.elem_type.SetInParent()
        type_to_proto(t.elem, proto.optional_type.elem_type, anonymous)
    elif isinstance(t, MapType):
        proto.map_type.key_type = int(t.key)
        type_to_proto(t.value, proto.map_type.value_type, anonymous)


def node_proto(node: Node, names: Callable[[Value], str]) -> onnx.NodeProto:
    """A NodeProto without regions, its operands and results named by `names`."""
    import onnx_ir as ir

    p = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name, overload=node.overload)
    p.input.extend("" if v is None else names(v) for v in node.inputs)
    p.output.extend(names(v) for v in node.outputs)
    for k, a in node.attributes.items():
        attr = p.attribute.add(name=k)
        if isinstance(a, bool | int):
            attr.type, attr.i = onnx.AttributeProto.INT, int(a)
        elif isinstance(a, float):
            attr.type, attr.f = onnx.AttributeProto.FLOAT, a
        elif isinstance(a, str):
            attr.type, attr.s = onnx.AttributeProto.STRING, a.encode()
        elif isinstance(a, bytes):
            attr.type, attr.s = onnx.AttributeProto.STRING, a
        elif isinstance(a, tuple) and a and isinstance(a[0], int):
            attr.type = onnx.AttributeProto.INTS
            attr.ints.extend(a)
        elif isinstance(a, tuple) and a and isinstance(a[0], float):
            attr.type = onnx.AttributeProto.FLOATS
            attr.floats.extend(a)
        elif isinstance(a, tuple) and a and isinstance(a[0], str | bytes):
            attr.type = onnx.AttributeProto.STRINGS
            attr.strings.extend(s.encode() if isinstance(s, str) else s for s in a)
        elif isinstance(a, EmptyList):
            attr.type = int(a.kind)
        elif isinstance(a, RawAttr):
            attr.CopyFrom(a.proto)
        elif isinstance(a, AttrRef):
            attr.type, attr.ref_attr_name = int(a.kind), a.name
        elif isinstance(a, Graph | tuple):
            raise TypeError(f"attribute {k!r} of {node!r} holds a graph")
        else:
            attr.type = onnx.AttributeProto.TENSOR
            attr.t.CopyFrom(ir.serde.serialize_tensor(a))
    return p


def infer_with_onnx(node: Node, f: Facts, opset: dict[str, int], fresh: Callable[[], str]) -> tuple[Type | None, ...]:
    """The result types that onnx's own inference gives; unknown ones are None, unknown extents fresh symbols."""
    import onnx_ir as ir

    names: dict[Value, str] = {}

    def name(v: Value) -> str:
        return names.setdefault(v, f"v{len(names)}")

    proto = node_proto(node, name)
    types: dict[str, onnx.TypeProto] = {}
    data: dict[str, onnx.TensorProto] = {}
    for v in node.inputs:
        if v is None:
            continue
        t = onnx.TypeProto()
        if v.type is not None:
            type_to_proto(v.type, t, anonymous=True)
        types[names[v]] = t
        if isinstance(v.type, TensorType):
            size = v.type.size
            if v.const is not None and size is not None and size <= DATA_LIMIT:
                data[names[v]] = ir.serde.serialize_tensor(v.const)
            elif v.content is not None and all(isinstance(x, int) for x in v.content):
                shape = [len(v.content)] if v.type.shape else []
                data[names[v]] = onnx.helper.make_tensor("", int(v.type.dtype), shape, v.content)
    try:
        found = shape_inference.infer_node_outputs(
            f.schema,
            proto,
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid(d, n) for d, n in opset.items()],
        )
    except (shape_inference.InferenceError, ValueError):  # ValueError: an operand of unknown type
        return (None,) * len(node.outputs)
    return tuple(
        type_from_proto(found[n], fresh, anonymous=True) if (n := names[v]) in found else None for v in node.outputs
    )
