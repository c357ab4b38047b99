"""Atan of a quotient, on and off the axes."""

import numpy as np
import onnx
import pytest
from support import evaluate

from onnxad_passes import forward, reverse


def model(body, inputs="double[2,3] y, double[3] x", outputs="double[2,3] a"):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => ({outputs}) {{ {body} }}')


Y = np.array([[1.0, -2.0, 0.5], [3.0, 1.0, -1.0]])


@pytest.mark.parametrize("x", [[0.0, 1.5, -2.0], [0.7, -0.3, 2.0]])
def test_both_modes_with_broadcasting(x):
    x = np.array(x)
    m = model("q = Div(y, x) a = Atan(q)")
    ct = np.array([[0.3, -1.0, 2.0], [1.0, 0.5, -0.7]])
    square = x**2 + Y**2
    got = evaluate(reverse(m, layout="single"), {"x": x, "y": Y, "adj_a": ct})
    assert np.allclose(got["adj_y"], ct * x / square) and np.allclose(got["adj_x"], -(ct * Y / square).sum(0))
    ty, tx = ct + 1, np.array([0.2, -0.4, 1.0])
    tangent = evaluate(forward(m, layout="single"), {"x": x, "y": Y, "fwd_y": ty, "fwd_x": tx})["fwd_a"]
    assert np.allclose(tangent, (x * ty - Y * tx) / square)
    only = evaluate(forward(m, inputs=["x"], layout="single"), {"x": x, "y": Y, "fwd_x": tx})["fwd_a"]
    assert np.allclose(only, -Y * tx / square)


def test_order_two_on_the_axis():
    m = model("q = Div(y, x) a = Atan(q)")
    x = np.array([0.0, 1.5, -2.0])
    second = forward(reverse(m, layout="single"), inputs=["x"], outputs=["adj_y"], layout="single")
    tx = np.array([1.0, 2.0, -1.0])
    got = evaluate(second, {"x": x, "y": Y, "adj_a": np.ones((2, 3)), "fwd_x": tx})["fwd_adj_y"]
    assert np.allclose(got, tx * (Y**2 - x**2) / (x**2 + Y**2) ** 2)


@pytest.mark.parametrize(
    "body, outputs, inputs",
    [
        ("q = Div(y, x) a = Atan(q) b = Identity(q)", "double[2,3] a, double[2,3] b", ["y"]),
        ("q = Div(y, x) a = Atan(q)", "double[2,3] a, double[2,3] q", ["y"]),
        ("q = Div(y, x) a = Atan(q)", "double[2,3] a", ["q", "y"]),
    ],
    ids=["another reader", "an output", "differentiated"],
)
def test_a_quotient_with_another_use_is_a_quotient(body, outputs, inputs):
    m = model(body, outputs=outputs)
    x = np.array([0.7, 1.5, -2.0])
    adjoint = reverse(m, inputs=inputs, layout="single")
    ones = {f"adj_{o.name}": np.ones((2, 3)) for o in m.graph.output}
    got = evaluate(adjoint, {"x": x, "y": Y, **ones})
    q = Y / x
    want = 1 / (1 + q**2) + (1 if len(ones) > 1 else 0)
    assert np.allclose(got["adj_y"], want / x)
    if "q" in inputs:
        assert np.allclose(got["adj_q"], want)


@pytest.mark.parametrize("inputs", ["double[N,3] y, double[M] x", "double y, double x"], ids=["symbols", "no ranks"])
def test_a_derivative_that_reads_the_quotient_does_not_change_what_it_is(inputs):
    """Its shape, in forward mode; the quotient itself, which the derivative of a logarithm needs as well."""
    m = model("q = Div(y, x) a = Atan(q) l = Log(x) b = Mul(y, l)", inputs, "double[P,3] a, double[P,3] b")
    if "[" not in inputs:
        for i in m.graph.input:
            i.type.tensor_type.ClearField("shape")
    x, ct = np.array([0.7, 1.5, 2.0]), np.array([[0.3, -1.0, 2.0], [1.0, 0.5, -0.7]])
    ty, tx = ct + 1, np.array([0.2, -0.4, 1.0])
    square = x**2 + Y**2
    got = evaluate(forward(m, layout="single"), {"x": x, "y": Y, "fwd_y": ty, "fwd_x": tx})
    assert np.allclose(got["fwd_a"], (x * ty - Y * tx) / square)
    assert np.allclose(got["fwd_b"], ty * np.log(x) + Y / x * tx)
    got = evaluate(reverse(m, layout="single"), {"x": x, "y": Y, "adj_a": ct, "adj_b": ty})
    assert np.allclose(got["adj_y"], ct * x / square + ty * np.log(x))
    assert np.allclose(got["adj_x"], (ty * Y / x - ct * Y / square).sum(0))
