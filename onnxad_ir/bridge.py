"""Nodes as protobuf, and the inference functions of onnx's schemas."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
from onnx import shape_inference

from onnxad_ir.core import Node, Value
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.proto_types import read_type, write_type
from onnxad_ir.proto_write import write_attribute
from onnxad_ir.schema import Facts
from onnxad_ir.types import TensorType, Type

#: A constant operand is shown to onnx's inference up to this many elements.
DATA_LIMIT = 1024


def node_proto(node: Node, names: Callable[[Value], str]) -> onnx.NodeProto:
    """A NodeProto, its operands and results named by `names`. Raises TypeError for a node with regions."""
    p = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=node.name, overload=node.overload)
    p.input.extend("" if v is None else names(v) for v in node.inputs)
    p.output.extend(names(v) for v in node.outputs)
    for k, a in node.attributes.items():
        write_attribute(p.attribute.add(), k, a)
    return p


def infer_with_onnx(node: Node, f: Facts, opset: dict[str, int], fresh: Callable[[], str]) -> tuple[Type | None, ...]:
    """The result types that onnx's own inference gives; unknown ones are None, unknown extents fresh symbols."""
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
            write_type(t, v.type, anonymous=True)
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
    except onnx.checker.ValidationError as e:  # an operand of a type that the operator does not take
        raise ModelError(f"{describe(node)}: {e}") from None
    except (shape_inference.InferenceError, ValueError):  # ValueError: an operand of unknown type
        return (None,) * len(node.outputs)
    return tuple(read_type(found[n], fresh, anonymous=True) if (n := names[v]) in found else None for v in node.outputs)
