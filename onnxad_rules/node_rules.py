"""Rules that append NodeProtos to a FunctionProto, as onnx-light has them: reverse mode only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import onnx

from onnxad_ir.bridge import node_proto
from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Value
from onnxad_ir.diagnostics import describe
from onnxad_ir.inline import inline_body
from onnxad_ir.proto import function_from_proto
from onnxad_rules.kinds import Pair, Rule
from onnxad_rules.node import NodeView
from onnxad_rules.ruleset import UnsupportedOperator

#: (node, name of the gradient of its result, gradient names by operand, number of the call, function) -> done.
NodeRule: TypeAlias = Callable[[onnx.NodeProto, str, dict[str, str], int, onnx.FunctionProto], Any]


def rule_from_nodes(write: NodeRule, op: str, domain: str = "") -> Rule:
    """A rule from a function that writes the gradient of a node as NodeProtos.

    `write(node, output_grad, grad_accum, counter, func)` appends nodes to `func.node` and sets
    `grad_accum[operand] = name` for each operand that has a gradient, adding to what is there. The node's operands and
    results, and `output_grad`, the gradient of its first result that has one, may be read by name. `counter` is another
    number at every call. Where it returns False, the node is an UnsupportedOperator.
    """
    counter = count()

    def reverse(b: Builder, n: NodeView, cts: list[Var | None], wanted: list[bool]) -> list[Var | None]:
        names: dict[str, Value] = {}
        of: dict[Value, str] = {}

        def name(v: Value) -> str:
            if v not in of:
                base, i = v.name or "value", 0
                while (label := f"{base}_{i}" if i else base) in names:
                    i += 1
                of[v], names[label] = label, v
            return of[v]

        proto = node_proto(n.node, name)
        ct = next(c for c in cts if c is not None)
        seed = Value("output_grad", ct.type)
        seed_name = name(seed)
        names[seed_name] = ct.value
        accumulated: dict[str, str] = {}
        f = onnx.FunctionProto(name=op, domain="gradient")
        if write(proto, seed_name, accumulated, next(counter), f) is False:
            raise UnsupportedOperator(f"the rule given for it declined {describe(n.node)}", (n.node,))
        given = {k: g for k, g in accumulated.items() if g}
        f.input.extend(names)
        f.output.extend(dict.fromkeys(given.values()))
        f.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in b.inference.opset.items())
        body = function_from_proto(f).body
        results = inline_body(b, body, list(names.values()), {}, simplify=True)
        by_name = dict(zip(f.output, results, strict=True))
        out: list[Var | None] = []
        for v, w in zip(n.node.inputs, wanted, strict=True):
            made = by_name.get(given.pop(of[v], "")) if v is not None and w else None
            out.append(None if made is None else b.var(made))
        return out

    def forward(b: Builder, n: NodeView, ts: object) -> object:
        raise UnsupportedOperator(f"the rule of {describe(n.node)} is for reverse mode only", (n.node,))

    return Pair(op, domain, None, forward=forward, reverse=reverse)
