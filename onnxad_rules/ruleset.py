"""Which rule an operator has: an open table from (domain, op_type) to rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, TypeAlias

from onnxad_ir.core import FunctionKey, Node, Value
from onnxad_ir.diagnostics import OnnxadError
from onnxad_ir.schema import latest
from onnxad_ir.types import QUANTIZED, TensorType, Type, can_vary, is_floating
from onnxad_rules.kinds import Decompose, Rule, Zero

if TYPE_CHECKING:
    from onnxad_rules.batching.core import BatchRule
    from onnxad_rules.node import NodeView

#: Per result of a call of a local function, the operands that it depends on differentiably.
Flows: TypeAlias = Mapping[FunctionKey, Sequence[frozenset[int]]]


class Ruleset:
    """An immutable table of rules. For one operator the rule added last is tried first.

    `whole`: operators (domain, op_type) through which a derivative also passes in and out by quantized tensors, whose
    tangents are floating.
    """

    def __init__(self, rules: Iterable[Rule] = (), whole: Iterable[tuple[str, str]] = ()):
        self.whole = frozenset(whole)
        #: What calls of local functions are to the nodes around them (`survey.Survey`).
        self.calls: Mapping[FunctionKey, int] = {}
        self.flows: Flows = {}
        #: Batching rules by (domain, op_type), besides those that are built in.
        self.batching: Mapping[tuple[str, str], BatchRule] = {}
        self._table: dict[tuple[str, str], tuple[Rule, ...]] = {}
        for r in rules:
            self._table[r.key] = (r, *self._table.get(r.key, ()))

    def merge(self, rules: Iterable[Rule], whole: Iterable[tuple[str, str]] = ()) -> Ruleset:
        """This table with more rules, which go before those that are there, and more of `whole`."""
        out = Ruleset((), self.whole.union(whole))
        out.batching = self.batching
        out._table = dict(self._table)
        for r in rules:
            out._table[r.key] = (r, *out._table.get(r.key, ()))
        return out

    def with_batching(self, rules: Mapping[tuple[str, str], BatchRule]) -> Ruleset:
        """This table with batching rules (`onnxad_rules.batching`), each in place of one that an operator has."""
        out = self.merge(())
        out.batching = {**self.batching, **rules}
        return out

    def with_calls(self, calls: Mapping[FunctionKey, int], flows: Flows) -> Ruleset:
        """This table with what is known of the local functions of a model."""
        out = self.merge(())
        out.batching, out.calls, out.flows = self.batching, calls, flows
        return out

    def candidates(self, node: Node) -> tuple[Rule, ...]:
        """The rules of a node's operator, first to last."""
        return self._table.get((node.domain, node.op_type), ())

    def compositions(self, op_type: str, domain: str = "") -> list[Decompose]:
        """The rules that give an operator in terms of others."""
        return [r for r in self._table.get((domain, op_type), ()) if isinstance(r, Decompose)]

    def composition(self, n: NodeView, asked: bool) -> Decompose | None:
        """The composition of a node: the rule it is differentiated by, or, where it is asked for, any there is."""
        if asked:
            facts = n.facts
            ours = [r for r in self.compositions(n.node.op_type, n.node.domain) if r.when is None or r.when(n)]
            if ours:
                return ours[0]
            return Decompose(n.node.op_type, n.node.domain) if facts.schema is not None and facts.has_body else None
        for r in self.candidates(n.node):
            if r.when is None or r.when(n):
                return r if isinstance(r, Decompose) else None
        return None

    def keys(self) -> list[tuple[str, str]]:
        """Every (domain, op_type) with a rule."""
        return sorted(self._table)

    def all(self) -> list[Rule]:
        """Every rule, by operator, first to last."""
        return [r for k in self.keys() for r in self._table[k]]

    def carries(self, node: Node, v: Value) -> bool:
        """True where an operand or result of a node can have a derivative, by its type."""
        return can_vary(v.type) or (bool(self.whole) and node.key in self.whole and v.dtype in QUANTIZED)

    def crosses(self, t: Type | None) -> bool:
        """True where what a region yields or is handed can have a derivative, by its type."""
        quantized = bool(self.whole) and isinstance(t, TensorType) and t.dtype in QUANTIZED
        return quantized or is_floating(t)

    def differentiable(self, node: Node) -> tuple[bool, ...]:
        """Which operands a derivative may come in through. An operator without a rule lets every floating one in."""
        rules = self.candidates(node)
        if not rules:
            return tuple(v is not None and self.carries(node, v) for v in node.inputs)
        if isinstance(rules[0], Zero):
            return (False,) * len(node.inputs)
        return tuple(
            v is not None and self.carries(node, v) and name not in rules[0].zeros
            for v, name in zip(node.inputs, _formals(rules[0], node, "inputs"), strict=False)
        )

    def flow(self, node: Node) -> Sequence[frozenset[int]] | None:
        """Per result of a call of a local function, the operands that it depends on; None for any other node."""
        return self.flows.get(node.callee) if self.flows else None

    def outputs(self, node: Node) -> list[Value]:
        """The results that carry a derivative."""
        rules = self.candidates(node)
        if not rules:
            return [v for v in node.outputs if self.carries(node, v)]
        names = _formals(rules[0], node, "outputs")
        return [
            v
            for v, name in zip(node.outputs, names, strict=False)
            if self.carries(node, v) and name not in rules[0].zeros
        ]


def _formals(rule: Rule, node: Node, which: str) -> Iterable[str]:
    """The schema's names of the operands or results of a node, where its rule tells them apart at all."""
    f = latest(node.domain, node.op_type) if rule.zeros else None
    if f is None:
        return repeat("")
    names = list(f.inputs if which == "inputs" else f.outputs)
    return chain(names, repeat(names[-1] if names else ""))


class UnsupportedOperator(OnnxadError, NotImplementedError):
    """Operators stand in the way of a derivative that have no rule; `nodes` holds them."""

    def __init__(self, message: str, nodes: Iterable[Node] = ()):
        super().__init__(message)
        self.nodes = tuple(nodes)


class NotDifferentiable(UnsupportedOperator):
    """A derivative was asked for through an operand that has none."""


@cache
def default_rules() -> Ruleset:
    """The built-in table."""
    from onnxad_rules.families import RULES

    return Ruleset(RULES)
