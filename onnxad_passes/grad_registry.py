"""The rules that `gradient_of_nodes` goes by: the caller's own, and onnx-light's spelling of a table of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from onnxad_rules.kinds import Rule
from onnxad_rules.node_rules import rule_from_nodes
from onnxad_rules.ruleset import Ruleset, default_rules

#: A rule in our own verbs, or a function that appends NodeProtos (`onnxad_rules.node_rules`).
AnyRule: TypeAlias = Rule | Callable[..., Any]


class GradRegistry:
    """A table of rules by domain and operator that takes the place of the built-in one. Empty, or `default()`."""

    def __init__(self) -> None:
        self.rules = Ruleset()

    @classmethod
    def default(cls) -> GradRegistry:
        """A copy of the built-in table; what is registered in it stays in it."""
        out = cls()
        out.rules = default_rules()
        return out

    def register(self, domain: str, op_type: str, rule: AnyRule) -> None:
        """Put a rule before those of an operator."""
        self.rules = self.rules.merge([_rule(domain, op_type, rule)])

    def op_types(self, domain: str = "") -> list[str]:
        """The operators of a domain that have a rule, in order."""
        known = self.rules.keys()
        return [op for d, op in known if d == domain]


def register_gradient_function(domain: str, op_type: str, fn: AnyRule, registry: GradRegistry) -> None:
    """Put a rule before those that a registry has for an operator."""
    registry.register(domain, op_type, fn)


#: Rules by (domain, operator) or in a list, which go before the built-in ones; or a whole table.
Registry: TypeAlias = Mapping[tuple[str, str], AnyRule] | Iterable[Rule] | GradRegistry | Ruleset


def rules_of(registry: Registry | None) -> Ruleset:
    """The rule set that a `registry` argument stands for."""
    if registry is None:
        return default_rules()
    if isinstance(registry, GradRegistry):
        return registry.rules
    if isinstance(registry, Ruleset):
        return registry
    if isinstance(registry, Mapping):
        for key in registry:
            if not isinstance(key, tuple) or len(key) != 2:
                raise TypeError(f"a registry has rules by (domain, operator), not by {key!r}")
        return default_rules().merge([_rule(domain, op, rule) for (domain, op), rule in registry.items()])
    return default_rules().merge(registry)


def _rule(domain: str, op_type: str, rule: AnyRule) -> Rule:
    if isinstance(rule, Rule):
        return rule if rule.key == (domain, op_type) else replace(rule, op=op_type, domain=domain)
    if not callable(rule):
        raise TypeError(f"the rule of {(domain, op_type)} is neither a rule nor a function: {rule!r}")
    return rule_from_nodes(rule, op_type, domain)
