"""Rules written as onnxscript functions (or as FunctionProtos): for people who know ONNX and not this builder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Function, Value
from onnxad_ir.inline import inline_body
from onnxad_ir.proto import function_from_proto
from onnxad_rules.kinds import Decompose, Pushforward, Rule
from onnxad_rules.node import NodeView


def decomposition_from(function: Any, op: str = "", domain: str = "") -> Rule:
    """The operator in terms of others: a function from its operands to its results, with its attributes.

    `function`: an onnxscript function or a FunctionProto; the operator is (domain, op), by default the function's own
    domain and name. Merge the rule into a rule set: `default_rules().merge([rule])`.
    Raises TypeError for anything else.
    """
    f = _lift(function)

    def write(b: Builder, n: NodeView) -> tuple[Var | None, ...]:
        return _call(b, f, n.node.inputs, n.node.attributes)

    return Decompose(op or f.name, domain or (f.domain if not op else ""), None, fn=write)


def pushforward_from(op: str, partials: Mapping[str, Any], domain: str = "") -> Rule:
    """The tangent of an operator, per operand: functions from its operands and one tangent to its results' tangents.

    `partials`: by operand (its name in the schema; input_0, input_1, ... without one), an onnxscript function or a
    FunctionProto that is linear in its last parameter, the tangent of that operand. Reverse mode is derived from it.
    """
    formals: dict[str, Any] = {}
    for name, function in partials.items():
        formals[name] = _partial(_lift(function))
    return Pushforward(op, domain, formals)


def _partial(f: Function) -> Any:
    def tangent(b: Builder, n: NodeView, t: Var, *_: int) -> tuple[Var | None, ...]:
        return _call(b, f, (*n.node.inputs, t.value), n.node.attributes)

    return tangent


def _call(
    b: Builder, f: Function, operands: tuple[Value | None, ...], attributes: Mapping[str, Any]
) -> tuple[Var | None, ...]:
    results = inline_body(b, f.body, operands, {**f.defaults, **attributes}, simplify=True)
    return tuple(None if v is None else b.var(v) for v in results)


def _lift(function: Any) -> Function:
    if hasattr(function, "to_function_proto"):
        function = function.to_function_proto()
    if not isinstance(function, onnx.FunctionProto):
        raise TypeError(f"expected an onnxscript function or a FunctionProto, not {type(function).__name__}")
    return function_from_proto(function)
