"""x times a gate of x: the fused partial, in both modes and at order two, and when there must be none."""

import math

import numpy as np
import onnx
import pytest

from onnxad_passes import forward, reverse
from onnxad_rules.families import RULES
from onnxad_rules.kinds import declarations, elementwise
from onnxad_rules.ruleset import Ruleset
from onnxad_rules.testing import run_in_reference

X = np.array([[-3.0, -0.7, 0.0], [0.4, 1.3, 5.0]], np.float32)
CT = np.array([[1.0, -2.0, 0.5], [3.0, 0.7, -1.1]], np.float32)
erf = np.vectorize(math.erf)

SILU = "s = Sigmoid(x) y = Mul({0})"
GELU = "r = Constant<value = float {{1.4142135}}>() h = Constant<value = float {{0.5}}>() one = Constant<value = float "
GELU += "{{1.0}}>() u = Div(x, r) e = Erf(u) d = Add(e, one) s = Mul(h, d) y = Mul({0})"
LATE = (
    "c = Constant<value = float {{0.70710677}}>() h = Constant<value = float {{0.5}}>() one = Constant<value = float "
)
LATE += "{{1.0}}>() u = Mul(c, x) e = Erf(u) d = Add(one, e) v = Mul({0}) y = Mul(v, h)"


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x, order):
    s = sigmoid(x)
    first = s + x * s * (1 - s)
    return first if order == 1 else s * (1 - s) * (2 + x * (1 - 2 * s))


def gelu(x, order):
    bell = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return (1 + erf(x / math.sqrt(2))) / 2 + x * bell if order == 1 else bell * (2 - x * x)


def model(body, inputs="float[2,3] x"):
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => (float[2,3] y) {{ {body} }}'
    )


def evaluate(m, feeds, output):
    names = [o.name for o in m.graph.output]
    return run_in_reference(m)({i.name: feeds[i.name] for i in m.graph.input})[names.index(output)]


@pytest.mark.parametrize(
    "body, exact",
    [
        (SILU.format("x, s"), silu),
        (SILU.format("s, x"), silu),
        (GELU.format("x, s"), gelu),
        (GELU.format("s, x"), gelu),
        (LATE.format("x, d"), gelu),
    ],
)
def test_gate(body, exact):
    primal = model(body)
    first = reverse(primal, layout="single")
    feeds = {"x": X, "adj_y": CT, "fwd_x": CT, "adj_adj_x": np.ones_like(X), "adj2_adj_x": np.ones_like(X)}
    x = X.astype(np.float64)
    np.testing.assert_allclose(evaluate(first, feeds, "adj_x"), CT * exact(x, 1), rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(
        evaluate(forward(primal, layout="single"), feeds, "fwd_y"), CT * exact(x, 1), rtol=2e-6, atol=1e-6
    )
    second = reverse(first, inputs=["x"], outputs=["adj_x"], prefix="adj2_", layout="single")
    np.testing.assert_allclose(evaluate(second, feeds, "adj2_x"), CT * exact(x, 2), rtol=5e-6, atol=2e-6)
    # one partial: no product with x alone and with the gate alone
    added = [n.op_type for n in first.graph.node[len(primal.graph.node) - body.count("Constant") :]]
    assert len(added) <= 7, added


def test_a_gate_that_is_differentiated_itself():
    d = reverse(model(SILU.format("x, s")), inputs=["x", "s"], layout="single")
    feeds = {"x": X, "adj_y": CT}
    s = sigmoid(X.astype(np.float64))
    np.testing.assert_allclose(evaluate(d, feeds, "adj_s"), CT * X, rtol=1e-6)
    np.testing.assert_allclose(evaluate(d, feeds, "adj_x"), CT * (s + X * s * (1 - s)), rtol=2e-6, atol=1e-6)


def test_a_constant_of_the_gate_that_is_differentiated():
    """y = x h (erf(u) + 1) in h."""
    primal = model("one = Constant<value = float {1.0}>() e = Erf(x) d = Add(e, one) s = Mul(h, d) y = Mul(x, s)",
                   "float[2,3] x, float h")  # fmt: skip
    d = reverse(primal, inputs=["h"], layout="single")
    want = (CT * X * (erf(X) + 1)).sum()
    np.testing.assert_allclose(evaluate(d, {"x": X, "h": np.float32(0.5), "adj_y": CT}, "adj_h"), want, rtol=2e-6)


def test_a_rule_of_a_users_own_for_the_gate():
    with declarations() as mine:
        elementwise("Sigmoid", X=lambda op, n: op.like(2, n.X))
    d = reverse(model(SILU.format("x, s")), layout="single", rules=Ruleset(RULES).merge(mine))
    want = CT * (sigmoid(X) + 2 * X)
    np.testing.assert_allclose(evaluate(d, {"x": X, "adj_y": CT}, "adj_x"), want, rtol=2e-6, atol=1e-6)
