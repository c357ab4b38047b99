"""A node by the names of its schema: operands, results and attributes as the specification calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnxad_ir import schema
from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_ir.diagnostics import ModelError, describe

if TYPE_CHECKING:
    from onnxad_rules.ruleset import Ruleset


class NodeView:
    """`n.A`, `n.output`, `n.axis`: an operand or result is a Var (None where omitted), an attribute its value.

    An attribute that is not set has the specification's default (None where there is none). A variadic operand or
    result is a list of Vars. `node` is the node itself, `rules` the rule set in use.
    """

    __slots__ = ("facts", "node", "op", "rules")

    def __init__(self, op: Builder, node: Node, rules: Ruleset):
        self.op = op
        self.node = node
        self.rules = rules
        f = schema.facts(node.domain, node.op_type, op.inference.opset.get(node.domain, 0))
        if f is None:
            f = _unknown(node)
        self.facts = f

    def __getattr__(self, name: str) -> Any:
        f, node = self.facts, self.node
        i = f.inputs.get(name)
        if i is not None:
            if name == f.variadic_input:
                return [None if v is None else Var(self.op, v) for v in node.inputs[i:]]
            v = node.inputs[i] if i < len(node.inputs) else None
            return None if v is None else Var(self.op, v)
        i = f.outputs.get(name)
        if i is not None:
            if name == f.variadic_output:
                return [Var(self.op, v) for v in node.outputs[i:]]
            return Var(self.op, node.outputs[i]) if i < len(node.outputs) else None
        if name in node.attributes:
            return node.attributes[name]
        try:
            return f.attributes[name]
        except KeyError:
            raise AttributeError(f"{node.op_type} has no operand, result or attribute {name!r}") from None

    def operand(self, index: int) -> Var:
        """The operand at a position; a ModelError where it is omitted."""
        v = self.node.inputs[index] if index < len(self.node.inputs) else None
        if v is None:
            raise ModelError(f"operand {index} is missing at {describe(self.node)}")
        return Var(self.op, v)

    def result(self, index: int) -> Var:
        """The result at a position."""
        return Var(self.op, self.node.outputs[index])

    def extend_results(self, name: str) -> None:
        """Make the node return an optional result, up to the one of that name, where it does not yet."""
        missing = self.facts.outputs[name] + 1 - len(self.node.outputs)
        if missing > 0:
            start = len(self.node.outputs)
            more = tuple(Value("", None, self.node, start + i) for i in range(missing))
            self.node.outputs = (*self.node.outputs, *more)
            self.op.inference.node(self.node)
            self.op.scope.define(*more)

    def formal(self, index: int) -> str:
        """The specification's name of the operand at a position."""
        names = list(self.facts.inputs)
        return names[index] if index < len(names) else names[-1]


def _unknown(node: Node) -> schema.Facts:
    """Facts of an operator without a schema: operands and results are called input_0, output_0, ..."""
    n_in, n_out = len(node.inputs), len(node.outputs)
    return schema.Facts(
        domain=node.domain,
        op_type=node.op_type,
        since=1,
        inputs={f"input_{i}": i for i in range(n_in)},
        outputs={f"output_{i}": i for i in range(n_out)},
        attributes={},
        required_attributes=frozenset(),
        kinds={},
        variadic_input=None,
        variadic_output=None,
        min_inputs=0,
        max_inputs=n_in,
        min_outputs=0,
        max_outputs=n_out,
        deprecated=False,
        schema=None,
    )
