"""A zero that selects nothing meets an infinite slope: however far apart they are, and in every direction."""

import numpy as np
import onnx
import pytest
from support import evaluate

from onnxad_passes import forward, reverse

FAR = 40


def model(body, inputs="float[4] x"):
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => (float[4] y) {{ {body} }}'
    )


def jacobian_diagonal(m, x):
    ones = np.ones_like(x)
    got = evaluate(reverse(m, layout="single"), {"x": x, "adj_y": ones}, 99)["adj_x"]
    tangent = evaluate(forward(m, layout="single"), {"x": x, "fwd_x": ones}, 99)["fwd_y"]
    return got, tangent


@pytest.mark.parametrize("singular", ["Log(x)", "Sqrt(x)", "Reciprocal(x)"])
@pytest.mark.parametrize("distance", [0, FAR])
def test_a_singular_place_that_is_selected_away(singular, distance):
    steps = "".join(f"s{i + 1} = Neg(s{i}) " for i in range(distance))
    m = model(
        f"zero = Constant<value = float[1] {{0.0}}>() c = Greater(x, zero) s0 = {singular} {steps} y = Where(c, s{distance}, x)"
    )
    x = np.array([0.0, 4.0, 0.0, 0.25], np.float32)
    slope = {"Log(x)": 1 / x, "Sqrt(x)": 0.5 / np.sqrt(x), "Reciprocal(x)": -1 / x**2}[singular]
    want = np.where(x > 0, slope * (-1) ** distance, 1)
    for got in jacobian_diagonal(m, x):
        assert np.allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("distance", [1, FAR])
def test_an_infinite_slope_behind_a_gate(distance):
    steps = "".join(f"s{i + 1} = Abs(s{i}) " for i in range(distance))
    m = model(f"s0 = Relu(x) {steps} y = Sqrt(s{distance})")
    x = np.array([-1.0, 4.0, -2.0, 0.25], np.float32)
    for got in jacobian_diagonal(m, x):
        assert np.allclose(got, np.where(x > 0, 0.5 / np.sqrt(np.abs(x)), 0), rtol=1e-5)


def test_an_ordinary_network_keeps_the_fast_gate():
    m = model("a = Relu(x) b = Tanh(a) y = Relu(b)")
    assert "Where" not in {n.op_type for n in reverse(m, layout="single").graph.node}
