"""A function body written out where it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxad_ir.builder import Builder
from onnxad_ir.core import Attr, AttrRef, Graph, Node, Value, clone_node


def inline_body(
    op: Builder,
    body: Graph,
    operands: Sequence[Value | None],
    attributes: Mapping[str, Attr],
    simplify: bool = False,
) -> list[Value | None]:
    """Append the nodes of `body` on `operands` and return its outputs.

    `attributes` are those of the call, defaults included; a reference to one that is absent drops the attribute.
    An omitted operand stays omitted wherever the body uses it. With `simplify`, nodes go through the builder's
    identities and folding, and an If on a constant is replaced by the branch taken; else they are kept as written,
    without types.
    """
    env: dict[Value, Value | None] = {}
    for i, v in enumerate(body.inputs):
        env[v] = operands[i] if i < len(operands) else None
    _inline_nodes(op, body, env, attributes, simplify)
    return [env.get(v, v) for v in body.outputs]


def _inline_nodes(
    op: Builder, body: Graph, env: dict[Value, Value | None], attributes: Mapping[str, Attr], simplify: bool
) -> None:
    for c in body.constants:
        assert c.const is not None
        env[c] = op.const(c.const.numpy(), c.const.dtype).value if simplify else _copy_constant(op, c)
    for node in body.nodes:
        if simplify and node.op_type == "If" and not node.domain and _inline_branch(op, node, env, attributes):
            continue
        if node.regions:
            mapping = {k: v for k, v in env.items() if v is not None}
            copy = clone_node(node, mapping, attributes)
            copy.set_inputs(None if v is None else env.get(v, v) for v in node.inputs)
            copy.name = copy.name or op.label
            results = op.place(copy) if simplify else _put(op, copy)
        else:
            inputs = [None if v is None else env.get(v, v) for v in node.inputs]
            attrs = _resolve(node.attributes, attributes)
            if simplify:
                results = op.emit(node.op_type, inputs, attrs, len(node.outputs), node.domain)
            else:
                while inputs and inputs[-1] is None:
                    inputs.pop()
                names = [v.name for v in node.outputs]
                copy = Node(node.op_type, inputs, attrs, names, node.domain, node.name or op.label, node.overload)
                results = _put(op, copy)
        for old, new in zip(node.outputs, results, strict=True):
            env[old] = new


def substitute(graph: Graph, nodes: list[Node], old: Value, new: Value) -> None:
    """Let `new` stand for `old` everywhere; an output of `graph` keeps its name, by a copy where it must."""
    if new.type is None:
        new.type = old.type
    if graph in old.users:
        if new.producer is not None and new.graph is graph and graph not in new.users:
            new.name = old.name
        else:
            copy = Node("Identity", (new,), {}, (old.name,), graph=graph)
            new, copy.outputs[0].type = copy.outputs[0], new.type
            nodes.append(copy)
    old.replace_by(new)


def _put(op: Builder, node: Node) -> tuple[Value, ...]:
    node.graph = op.graph
    op.nodes.append(node)
    return node.outputs


def _inline_branch(op: Builder, node: Node, env: dict[Value, Value | None], attributes: Mapping[str, Attr]) -> bool:
    condition = node.inputs[0]
    condition = None if condition is None else env.get(condition, condition)
    if condition is None or condition.const is None:
        return False
    branch = node.attributes["then_branch" if bool(condition.const.numpy().reshape(())) else "else_branch"]
    _inline_nodes(op, branch, env, attributes, True)
    for old, new in zip(node.outputs, branch.outputs, strict=True):
        env[old] = env.get(new, new)
    return True


def _copy_constant(op: Builder, constant: Value) -> Value:
    assert constant.const is not None
    return op.root.add_constant("", constant.const)  # its name is another one's in the next call


def _resolve(attrs: Mapping[str, Attr], call: Mapping[str, Attr]) -> dict[str, Attr]:
    out: dict[str, Attr] = {}
    for k, a in attrs.items():
        if isinstance(a, AttrRef):
            if a.name in call:
                out[k] = call[a.name]
        else:
            out[k] = a
    return out
