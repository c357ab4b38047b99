"""The function bodies that the specification defines operators by."""

from __future__ import annotations

import onnx

from onnxad_ir import schema
from onnxad_ir.bridge import node_proto
from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.inline import inline_body
from onnxad_ir.proto import function_from_proto
from onnxad_ir.proto_types import write_type


def expand_body(op: Builder, node: Node) -> tuple[Var | None, ...]:
    """Write `node` by its specification's function body, on the builder, and return its results.

    A body that depends on the types of the operands is made for the node's own. Raises ModelError where the
    specification has none.
    """
    body = function_proto(node, op.inference.opset)
    if body is None:
        raise ModelError(f"the specification has no function body for {describe(node)}")
    # a body made for a node has no node for the results that this one leaves out, but lists them all the same
    defined = {*body.input, *(o for n in body.node for o in n.output)}
    listed = [o if o in defined else None for o in body.output][: len(node.outputs)]
    del body.output[:]
    body.output.extend(o for o in listed if o is not None)
    f = function_from_proto(body)
    facts = schema.facts(node.domain, node.op_type, op.inference.opset.get(node.domain, 0))
    defaults = {} if facts is None else {k: a for k, a in facts.attributes.items() if a is not None}
    call = {**defaults, **f.defaults, **node.attributes}
    results = iter(inline_body(op, f.body, node.inputs, call, simplify=True))
    found = [None if o is None else next(results) for o in listed]
    return tuple(None if v is None else op.var(v) for v in found)


def function_proto(node: Node, opset: dict[str, int]) -> onnx.FunctionProto | None:
    """The function body of a node at the model's opset, None where there is none."""
    version = opset.get(node.domain, 0)
    facts = schema.facts(node.domain, node.op_type, version)
    if facts is None or not facts.has_body:
        return None
    s = facts.schema
    if s.has_context_dependent_function:
        names: dict[Value, str] = {}
        proto = node_proto(node, lambda v: names.setdefault(v, f"v{len(names)}"))
        types = []
        for v in node.inputs:
            t = onnx.TypeProto()
            if v is not None and v.type is not None:
                write_type(t, v.type)
            types.append(t.SerializeToString())
        best = max(v for v in s.context_dependent_function_opset_versions if v <= version)
        data = s.get_context_dependent_function_with_opset_version(best, proto.SerializeToString(), types)
    else:
        versions = [v for v in s.function_opset_versions if v <= version]
        data = s.get_function_with_opset_version(max(versions)) if versions else b""
    if not data:
        return None
    body = onnx.FunctionProto()
    body.ParseFromString(data)
    return body
