"""onnxad_rules: what an operator's derivative is.

Rules of your own: `kinds` has the verbs, `scripted` takes onnxscript functions, `default_rules().merge(...)` adds them,
`testing.check_rule` proves them.
"""

from onnxad_rules.ruleset import NotDifferentiable, Ruleset, UnsupportedOperator, default_rules

__all__ = ["NotDifferentiable", "Ruleset", "UnsupportedOperator", "default_rules"]
