"""Weights and inner values that are differentiated are still there when their turn comes."""

import numpy as np
import pytest
from small import model, run

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import forward, gradient, reverse, run_pipeline

X = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)
ONE = np.ones((2, 3), np.float32)

#: `dead`, `unused` and the constant of shape arithmetic lead nowhere; fold-shapes has something to drop.
DEAD = model("""g (float[2,3] x) => (float[2,3] y) <float[2,3] unused = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {
    s = Shape(x) r = Reshape(x, s) dead = Sin(r) y = Exp(r)
}""")


@pytest.mark.parametrize("name", ["dead", "unused"])
@pytest.mark.parametrize("before", ["", "dce,", "fold-shapes,dce,simplify,cse,"])
def test_what_leads_nowhere_has_a_zero_derivative(name, before):
    out = run_pipeline(DEAD, f"{before}reverse{{inputs=x,{name}}}")
    y, adj_x, zero = run(out, {"x": X, "adj_y": ONE})
    np.testing.assert_allclose(adj_x, y, rtol=1e-6)
    assert zero.shape == X.shape and not zero.any()
    assert "Sin" not in [n.op_type for n in out.graph.node]


@pytest.mark.parametrize("name", ["dead", "unused"])
def test_in_forward_mode(name):
    out = forward(DEAD, [name], layout="single")
    _, tangent = run(out, {"x": X, f"fwd_{name}": ONE})
    assert not tangent.any()


def test_an_inner_value_may_be_seeded():
    out = reverse(DEAD, ["x"], ["dead"], layout="single")
    _, adj = run(out, {"x": X, "adj_dead": ONE})
    np.testing.assert_allclose(adj, np.cos(X), rtol=1e-6)


def test_gradient_of_an_inner_value():
    text = "g (float[2,3] x) => (float[2,3] y) { a = Sin(x) l = ReduceSum<keepdims = 0>(a) y = Exp(x) }"
    out = gradient(model(text), "l", ["x"])
    np.testing.assert_allclose(run(out, {"x": X})[-1], np.cos(X), rtol=1e-6)


@pytest.mark.parametrize("before", ["cse,", "simplify,", "fold-shapes,cse,simplify,dce,"])
def test_equal_expressions_stay_two_where_one_is_differentiated(before):
    """With respect to b alone the derivative of a * b is a, not 2 a."""
    text = "g (float[2,3] x) => (float[2,3] y) { a = Sin(x) b = Sin(x) y = Mul(a, b) }"
    out = run_pipeline(model(text), f"{before}reverse{{inputs=b}}")
    np.testing.assert_allclose(run(out, {"x": X, "adj_y": ONE})[-1], np.sin(X), rtol=1e-6)


def test_a_copy_stays_where_it_is_differentiated():
    text = "g (float[2,3] x) => (float[2,3] y) { a = Sin(x) b = Identity(a) y = Mul(a, b) }"
    out = run_pipeline(model(text), "forward{inputs=x},simplify,cse,reverse{inputs=b outputs=y}")
    feeds = {"x": X, "fwd_x": ONE, "adj_y": ONE}
    np.testing.assert_allclose(run(out, feeds)[-1], np.sin(X), rtol=1e-6)


def test_twice_in_one_pipeline():
    text = "g (float[2,3] x) => (float[2,3] y) <float w = {1.0}> { y = Mul(x, w) }"
    out = run_pipeline(model(text), "reverse{inputs=w},forward{inputs=w outputs=y},dce")
    _, adj, fwd = run(out, {"x": X, "adj_y": ONE, "fwd_w": np.array(2, np.float32)})
    np.testing.assert_allclose(adj, X.sum(), rtol=1e-6)
    np.testing.assert_allclose(fwd, 2 * X, rtol=1e-6)


CAST = """g (float[2,3] x, double[n] z) => (float[2,3] y) <double w = {2.0}, int64[2] s = {2, 3}, int64[1] one = {1}> {
  a = CastLike(w, x) b = Reshape(a, one) c = Unsqueeze(b, one) d = Expand(c, s) y = Pow(x, d) }"""


def test_the_number_of_a_constant_that_is_cast_and_shaped():
    out = reverse(model(CAST), ["x"], layout="single")
    got = dict(
        zip([o.name for o in out.graph.output], run(out, {"x": X + 2, "z": np.ones(1), "adj_y": ONE}), strict=True)
    )
    np.testing.assert_allclose(got["adj_x"], 2 * (X + 2), rtol=1e-6)
    assert [n.op_type for n in out.graph.node].count("Pow") == 1
    with pytest.raises(UsageError, match="w"):  # the 2 has been used
        reverse(out, ["w"], ["adj_x"], layout="single")


@pytest.mark.parametrize("name", ["w", "a", "b", "c", "d"])
def test_a_constant_has_no_number_where_its_copy_is_differentiated(name):
    out = reverse(model(CAST), [name], layout="single")
    got = dict(
        zip([o.name for o in out.graph.output], run(out, {"x": X + 2, "z": np.ones(1), "adj_y": ONE}), strict=True)
    )
    want = (X + 2) ** 2 * np.log(X + 2)
    np.testing.assert_allclose(got[f"adj_{name}"], want if name == "d" else want.sum(), rtol=1e-5)
