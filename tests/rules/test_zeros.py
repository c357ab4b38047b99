import numpy as np
import pytest

from onnxad_ir.schema import latest
from onnxad_rules.ruleset import default_rules
from onnxad_rules.testing import check_rule, run_in_reference

X = np.array([[0.3, -1.7, 2.6], [1.2, 0.4, -0.6]])


@pytest.mark.parametrize("op", ["Sign", "Floor", "Ceil", "Round", "Hardmax"])
def test_piecewise_constant(op):
    check_rule(op, [X], order=1)


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparisons(op):
    check_rule(op, [X, X[::-1].copy()], order=1)


@pytest.mark.parametrize("op", ["IsNaN", "IsInf", "Shape", "Size", "ArgMax", "ArgMin"])
def test_of_no_floating_result(op):
    check_rule(op, [X], order=1)


def test_of_as_many_results_as_there_are():
    check_rule("NonZero", [X], order=1, ragged="every entry has its own number of elements that are not zero")


def test_of_form_only():
    check_rule("EyeLike", [X], {"k": 1}, order=1)
    check_rule("RandomNormalLike", [X], {"seed": 1.0}, order=1, single=False, engine=run_in_reference)


def test_reasons_are_given():
    for rule in default_rules().all():
        if rule.kind == "zero":
            assert rule.reason, rule.op


def test_no_derivative_is_lost():
    """Operators with floating operands and results that are smooth somewhere are not among the zeros."""
    smooth = {
        "Det",
        "OneHot",
        "Pad",
        "DequantizeLinear",
        "Unique",
        "Compress",
        "TopK",
        "Mod",
        "Clip",
        "Cast",
        "Where",
    }
    zeros = {r.op for r in default_rules().all() if r.kind == "zero" and not r.domain}
    assert not smooth & zeros
    for op in zeros:
        assert latest("", op) is not None
