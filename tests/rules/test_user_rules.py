"""Rules of a user's own: in Python on values, and as onnxscript functions."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnxscript import FLOAT, script
from onnxscript import opset18 as op18
from onnxscript.values import Opset

from onnxad_passes import UnsupportedOperator, forward, reverse
from onnxad_rules.kinds import declarations, decompose, elementwise, pushforward, zero
from onnxad_rules.ruleset import default_rules
from onnxad_rules.scripted import decomposition_from, pushforward_from
from onnxad_rules.testing import check_rule

MINE = Opset("my.ops", 1)


class Cube(OpRun):
    op_domain = "my.ops"

    def _run(self, x, gain=None):
        return ((gain * x**3).astype(x.dtype),)


class Product(OpRun):
    op_domain = "my.ops"

    def _run(self, a, b):
        return (a * b + a,)


@script(MINE, default_opset=op18)
def cube(x: FLOAT[...], gain: float = 1.0) -> FLOAT[...]:
    g = op18.CastLike(op18.Constant(value_float=gain), x)
    return g * x * x * x


@script(MINE, default_opset=op18)
def product_in_a(a: FLOAT[...], b: FLOAT[...], t: FLOAT[...]) -> FLOAT[...]:
    return t * b + t


@script(MINE, default_opset=op18)
def product_in_b(a: FLOAT[...], b: FLOAT[...], t: FLOAT[...]) -> FLOAT[...]:
    return a * t


def model(body, inputs="double[3] x"):
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18, "my.ops" : 1]> g ({inputs}) => (double[3] y) {{ {body} }}'
    )


def run(m, **feeds):
    names = [o.name for o in m.graph.output]
    return dict(zip(names, ReferenceEvaluator(m, new_ops=[Cube, Product]).run(None, feeds), strict=True))


X, T = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.7, -1.1])


def python_rule():
    with declarations() as mine:
        elementwise(
            "Cube", domain="my.ops", input_0=lambda op, n: 3 * n.node.attributes["gain"] * (n.input_0 * n.input_0)
        )
    return mine


@pytest.mark.parametrize("rule", [python_rule, lambda: [decomposition_from(cube, "Cube", "my.ops")]])
def test_an_operator_of_ones_own(rule):
    m = model("a = my.ops.Cube <gain = 2.0> (x)  y = Neg(a)")
    rules = default_rules().merge(rule())
    got = run(reverse(m, rules=rules, layout="single"), x=X, adj_y=T)["adj_x"]
    assert np.allclose(got, -6 * X**2 * T)
    got = run(forward(m, rules=rules, layout="single"), x=X, fwd_x=T)["fwd_y"]
    assert np.allclose(got, -6 * X**2 * T)


def test_a_pushforward_as_onnxscript_functions_gives_both_modes():
    m = model("y = my.ops.Product (a, b)", "double[3] a, double[3] b")
    rule = pushforward_from("Product", {"input_0": product_in_a, "input_1": product_in_b}, "my.ops")
    rules = default_rules().merge([rule])
    adj = run(reverse(m, rules=rules, layout="single"), a=X, b=T, adj_y=np.ones(3))
    assert np.allclose(adj["adj_a"], T + 1) and np.allclose(adj["adj_b"], X)
    fwd = run(forward(m, inputs=["b"], rules=rules, layout="single"), a=X, b=T, fwd_b=T)
    assert np.allclose(fwd["fwd_y"], X * T)


def test_a_users_rule_goes_before_the_built_in_one():
    m = model("y = Tanh(x)")
    with declarations() as mine:
        zero("Tanh", reason="for the sake of the test")
    got = run(reverse(m, rules=default_rules().merge(mine), layout="single"), x=X, adj_y=T)["adj_x"]
    assert not got.any()
    assert run(reverse(m, layout="single"), x=X, adj_y=T)["adj_x"].all()


def test_without_a_rule_the_error_names_the_node():
    with pytest.raises(UnsupportedOperator, match=r"my\.ops\.Cube"):
        reverse(model("y = my.ops.Cube <gain = 2.0> (x)"), layout="single")


def test_a_rule_is_declared_inside_a_block_and_by_the_schemas_names():
    with pytest.raises(TypeError, match="declarations"):
        elementwise("Cube", domain="my.ops", input_0=1)
    with declarations(), pytest.raises(TypeError, match="no operand or result"):
        elementwise("Tanh", X=1)
    with pytest.raises(TypeError, match="onnxscript"):
        decomposition_from(lambda x: x)


@pytest.mark.parametrize(
    "tangent, reader",
    [
        (lambda op, n, t: t.input * t.input, "Mul"),
        (lambda op, n, t: op.Sin(t.input) * n.output, "Cos"),
        (lambda op, n, t: n.output / t.input, "Div|Mul|Neg"),
        (lambda op, n, t: op.Where(op.Greater(t.input, n.input), t.input, n.output), "Cast"),
    ],
)
def test_a_pushforward_that_is_not_linear_has_no_transpose(tangent, reader):
    with declarations() as mine:
        pushforward("Exp")(tangent)
    with pytest.raises(
        UnsupportedOperator, match=rf"given for Exp .* is not linear in the tangent.*\(({reader}) reads it"
    ):
        reverse(model("y = Exp(x)"), rules=default_rules().merge(mine), layout="single")


def test_a_pushforward_may_ask_for_the_form_of_its_tangent():
    with declarations() as mine:

        @pushforward("Exp")
        def _(op, n, t):
            size = op.CastLike(op.Size(t.input), t.input)
            return n.output * (size / size) * t.input

    m = model("h = Relu(x) y = Exp(h)", "double[N] x")
    rules = default_rules().merge(mine)
    x = np.array([0.5, 1.0, 2.0])
    got = run(reverse(m, rules=rules, layout="single"), x=x, adj_y=np.ones(3))["adj_x"]
    np.testing.assert_allclose(got, np.exp(x), rtol=1e-12)


def test_a_composition_that_returns_nothing_is_no_zero():
    with declarations() as mine:

        @decompose("Cube", domain="my.ops")
        def _(op, n):
            op.Mul(n.input_0, n.input_0)  # and no return

    for derivative in (forward, reverse):
        with pytest.raises(UnsupportedOperator, match=r"the composition given for my\.ops\.Cube .* returns nothing"):
            derivative(model("y = my.ops.Cube(x)"), rules=default_rules().merge(mine), layout="single")


@pytest.mark.parametrize(
    "op, operands, error, message",
    [
        ("Exp", np.ones(3), TypeError, "inputs are a list of arrays"),
        ("Exp", [[1.0, 2.0]], TypeError, "inputs are a list of arrays"),
        ("Exp", [np.ones(3, np.float32)], ValueError, "no operand is in float64.*float32"),
        ("Expp", [np.ones(3)], ValueError, "no operator 'Expp' in opset .*; did you mean 'Exp'"),
    ],
)
def test_what_check_rule_cannot_check(op, operands, error, message):
    with pytest.raises(error, match=message):
        check_rule(op, operands)
