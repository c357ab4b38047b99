"""Names, seeds and results: models called whatever they like, values in every role."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser
from small import model, run

from onnxad_ir.diagnostics import UsageError
from onnxad_ir.proto import from_proto
from onnxad_passes import forward, gradient, reverse, run_pipeline
from onnxad_passes.check import check_derivatives
from onnxad_passes.seeds import next_prefix

F = onnx.TensorProto.FLOAT
X = np.array([0.5, -1.5, 2.0], np.float32)
SEED = np.array([1.0, 10.0, 100.0], np.float32)


def adjoint(proto, inputs=None, outputs=None, **feeds):
    """Results of the adjoint model by name; checked against finite differences on the way."""
    adj = reverse(proto, inputs, outputs, layout="single")
    onnx.checker.check_model(adj, full_check=True)
    assert [v.name for v in adj.graph.input[: len(proto.graph.input)]] == [v.name for v in proto.graph.input]
    assert [v.name for v in adj.graph.output[: len(proto.graph.output)]] == [v.name for v in proto.graph.output]
    report = check_derivatives(proto, adj, mode="reverse")
    assert report.ok, str(report)
    fwd = forward(proto, inputs, outputs, layout="single")
    onnx.checker.check_model(fwd, full_check=True)
    report = check_derivatives(proto, fwd, mode="forward")
    assert report.ok, str(report)
    names = [v.name for v in adj.graph.output]
    return dict(zip(names, run(adj, {"x": X, **feeds}), strict=True)) if feeds else names


def test_signature():
    proto = model("g (float[3] x, int64[1] i, float[3] z) => (float[3] y, int64[1] n) { y = Mul(x, z) n = Neg(i) }")
    adj, fwd = (f(proto, layout="single") for f in (reverse, forward))
    assert [v.name for v in adj.graph.input] == ["x", "i", "z", "adj_y"]
    assert [v.name for v in adj.graph.output] == ["y", "n", "adj_x", "adj_z"]
    assert [v.name for v in fwd.graph.input] == ["x", "i", "z", "fwd_x", "fwd_z"]
    assert [v.name for v in fwd.graph.output] == ["y", "n", "fwd_y"]


@pytest.mark.parametrize(
    "names, kind, prefix",
    [
        ([], "adj", "adj_"),
        (["x", "adjacent", "my_adj_x"], "adj", "adj_"),
        (["adj_y"], "adj", "adj2_"),
        (["adj1_y"], "adj", "adj2_"),
        (["adj_y", "adj2_x", "adj7_q"], "adj", "adj8_"),
        (["fwd3_a"], "fwd", "fwd4_"),
        (["adjx_y", "adj2"], "adj", "adj_"),
        (["adj\u0663_y"], "adj", "adj_"),
    ],
)
def test_prefixes_count_up(names, kind, prefix):
    from onnxad_ir.core import Graph

    g = Graph()
    for n in names:
        g.add_input(n)
    assert next_prefix(kind, g) == prefix


def test_prefixes_of_higher_orders():
    proto = model("g (float[3] x) => (float[3] y) { y = Exp(x) }")
    for _ in range(3):
        proto = reverse(proto, layout="single")
    assert [v.name for v in proto.graph.input] == ["x", "adj_y", "adj2_y", "adj2_adj_x", *_third()]


def _third():
    return ["adj3_y", "adj3_adj_x", "adj3_adj2_x", "adj3_adj2_adj_y"]


def test_an_input_called_like_a_seed():
    got = adjoint(model("g (float[3] x, float[3] adj_y) => (float[3] y) { y = Mul(x, adj_y) }"), adj_y=SEED, adj2_y=X)
    np.testing.assert_allclose(got["adj2_x"], SEED * X)
    np.testing.assert_allclose(got["adj2_adj_y"], X * X)


def test_inner_values_called_like_ours():
    text = """g (float[3] x) => (float[3] y) {
      adj_y = Exp(x) adj_x = Mul(adj_y, x) fwd_x = Tanh(adj_x) fwd_y = Exp(fwd_x) mul = Mul(fwd_y, x) y
        = Neg(mul) }"""
    adjoint(model(text))


def test_initializers_called_like_ours():
    proto = model(
        "g (float[3] x) => (float[3] y) <float[3] adj_y = {1, 2, 3}, float[3] fwd_x = {3, 2, 1}> {"
        " a = Mul(x, adj_y) y = Mul(a, fwd_x) }"
    )
    adj = reverse(proto, layout="single")
    assert adj.graph.input[-1].name == "adj2_y" and adj.graph.output[-1].name == "adj2_x"
    assert "adj_y" in [t.name for t in adj.graph.initializer]
    assert check_derivatives(proto, adj).ok
    assert forward(proto, layout="single").graph.input[-1].name == "fwd2_x"


def test_a_prefix_of_ones_own_may_not_clash():
    proto = model(
        "g (float[3] x, float[3] dy) => (float[3] y) <float[3] cx = {1, 2, 3}> { a = Mul(x, cx) y = Mul(a, dy) }"
    )
    with pytest.raises(UsageError, match="'dy' would clash"):
        reverse(proto, prefix="d", layout="single")
    with pytest.raises(UsageError, match="'cx' would clash"):
        forward(proto, prefix="c", layout="single")
    with pytest.raises(UsageError, match="'y' would clash"):
        reverse(proto, prefix="", layout="single")


@pytest.mark.parametrize(
    "x",
    ["a b", "a/b:0", "x\u00e9\u4e2d", '"quoted"', "back\\slash", "{", "%x", "1", "adj_", "?", "x,y", "tab\t"],
)
def test_any_characters(x):
    node = helper.make_node("Exp", [x], [f"{x} out"])
    info = [helper.make_tensor_value_info(n, F, [3]) for n in (x, f"{x} out")]
    proto = helper.make_model(
        helper.make_graph([node], x, info[:1], info[1:]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=8,
    )
    adj = reverse(proto, [x], [f"{x} out"], layout="single", prefix="adj_")
    onnx.checker.check_model(adj, full_check=True)
    _, dx = run(adj, {x: X, f"adj_{x} out": SEED})
    np.testing.assert_allclose(dx, SEED * np.exp(X), rtol=1e-5)
    assert adj.graph.output[-1].name == f"adj_{x}"


def test_an_initializer_that_is_an_input():
    proto = model("g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> { a = Mul(x, w) y = Exp(a) }")
    adj = reverse(proto, layout="single")
    assert [v.name for v in adj.graph.output] == ["y", "adj_x"]  # a default is no question of the caller's
    for w in (np.array([1, 2, 3], np.float32), np.array([-1, 0.5, 0.25], np.float32)):
        got = run(adj, {"x": X, "w": w, "adj_y": SEED})[1]
        np.testing.assert_allclose(got, SEED * w * np.exp(X * w), rtol=1e-5)
    got = run(adj, {"x": X, "adj_y": SEED})[1]
    np.testing.assert_allclose(got, SEED * [1, 2, 3] * np.exp(X * [1, 2, 3]), rtol=1e-5)
    assert "adj_w" in adjoint(proto, ["x", "w"])


def test_an_overridable_number_is_not_used():
    proto = model("g (float[3] x, float w) => (float[3] y) <float w = {1}> { a = Mul(x, w) y = Exp(a) }")
    adj = reverse(proto, layout="single")
    got = run(adj, {"x": X, "w": np.array(0.5, np.float32), "adj_y": SEED})[1]
    np.testing.assert_allclose(got, SEED * 0.5 * np.exp(X * 0.5), rtol=1e-5)


def test_outputs_that_are_inputs_or_initializers():
    proto = model(
        """g (float[3] x, float[3] u) => (float[3] x, float[3] w, float[3] y) <float[3] w = {1, 2, 3}> {
          y = Mul(x, w) }"""
    )
    adj = reverse(proto, ["x", "u", "w"], layout="single")
    assert [v.name for v in adj.graph.input] == ["x", "u", "adj_x", "adj_w", "adj_y"]
    # the seeds of outputs x and w have the names that the results for inputs x and w would have
    assert [v.name for v in adj.graph.output] == ["x", "w", "y", "adj_x_1", "adj_u", "adj_w_1"]
    got = run(adj, {"x": X, "u": X, "adj_x": SEED, "adj_w": 2 * SEED, "adj_y": X})
    np.testing.assert_allclose(got[3], SEED + X * [1, 2, 3])
    np.testing.assert_allclose(got[4], [0, 0, 0])
    np.testing.assert_allclose(got[5], 2 * SEED + X * X)
    assert check_derivatives(proto, adj).ok
    fwd = forward(proto, layout="single")
    assert [v.name for v in fwd.graph.output] == ["x", "w", "y", "fwd_x_1", "fwd_w", "fwd_y"]
    assert check_derivatives(proto, fwd).ok


def test_unused_inputs_have_zero_derivatives():
    got = adjoint(
        model("g (float[3] x, float[2] u) => (float[3] y) { y = Exp(x) }"),
        u=np.ones(2, np.float32),
        adj_y=SEED,
    )
    np.testing.assert_array_equal(got["adj_u"], np.zeros(2, np.float32))


def test_unused_inputs_of_symbolic_shape():
    proto = model("g (float[N] x, float[N,M] u) => (float[N] y) { y = Exp(x) }")
    got = adjoint(proto, u=np.ones((3, 2), np.float32), adj_y=SEED)
    assert got["adj_u"].shape == (3, 2) and not got["adj_u"].any()


def test_repeated_operands_and_one_value_in_several_places():
    got = adjoint(
        model("g (float[3] x) => (float[3] y) { a = Mul(x, x) b = Mul(a, x) c = Add(b, b) y = Concat<axis = 0>(c) }"),
        adj_y=SEED,
    )
    np.testing.assert_allclose(got["adj_x"], SEED * 6 * X**2, rtol=1e-5)
    adjoint(model("g (float[2,2] x) => (float[2,2] y, float[4,2] z) { y = MatMul(x, x) z = Concat<axis = 0>(y, y) }"))


def test_several_outputs_one_of_them_read_on():
    got = adjoint(
        model("g (float[3] x) => (float[3] a, float[3] b) { a = Exp(x) b = Mul(a, x) }"),
        adj_a=SEED,
        adj_b=SEED,
    )
    np.testing.assert_allclose(got["adj_x"], SEED * np.exp(X) * (2 + X), rtol=1e-5)


def test_an_output_listed_twice():
    proto = model("g (float[3] x) => (float[3] y) { y = Exp(x) }")
    m = from_proto(proto)
    m.graph.set_outputs([m.graph.outputs[0]] * 2)
    adj = run_pipeline(m, "reverse")
    assert [v.name for v in adj.graph.inputs] == ["x", "adj_y"] and len(adj.graph.outputs) == 3


def test_integer_outputs_take_no_seed():
    got = adjoint(
        model("g (float[3] x) => (int64[1] i, float[1] v) { k = Constant<value_ints = [1]>() v, i = TopK(x, k) }"),
        adj_v=np.ones(1, np.float32),
    )
    np.testing.assert_array_equal(got["adj_x"], [0, 0, 1])


def test_chosen_outputs():
    proto = model("g (float[3] x) => (float[3] a, float[3] b) { a = Exp(x) b = Neg(x) }")
    assert adjoint(proto, None, ["b"]) == ["a", "b", "adj_x"]
    adj = reverse(proto, outputs=["b"], layout="single")
    assert [v.name for v in adj.graph.input] == ["x", "adj_b"]


def test_inner_values_and_initializers_as_inputs():
    proto = model(
        """g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}> {
          h = Tanh(x) m = MatMul(h, w) s = Add(m, b) y = Sigmoid(s) }"""
    )
    x = np.array([[0.1, 0.2, -0.3], [0.4, -0.5, 0.6]], np.float32)
    seed = np.array([[1, -2], [0.5, 3]], np.float32)
    w, b = (numpy_helper.to_array(t) for t in proto.graph.initializer)
    adj = reverse(proto, ["w", "h", "b", "x", "s"], layout="single")
    names = [v.name for v in adj.graph.output]
    assert names == ["y", "adj_w", "adj_h", "adj_b", "adj_x", "adj_s"]
    got = dict(zip(names, run(adj, {"x": x, "adj_y": seed}), strict=True))
    h = np.tanh(x)
    y = 1 / (1 + np.exp(-(h @ w + b)))
    ds = seed * y * (1 - y)
    for name, want in {
        "adj_s": ds,
        "adj_b": ds.sum(0),
        "adj_w": h.T @ ds,
        "adj_h": ds @ w.T,
        "adj_x": ds @ w.T * (1 - h * h),
    }.items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-6, err_msg=name)
    assert adjoint(proto, ["w", "h", "b", "x", "s"]) == names


def test_an_output_as_input_and_an_inner_value_as_output():
    proto = model("g (float[3] x) => (float[3] y) { h = Exp(x) y = Mul(h, x) }")
    adjoint(proto, ["x", "h"], ["h", "y"])
    adjoint(proto, ["y"], ["y"])


def test_an_input_that_is_named_and_not_reached():
    proto = model("g (float[3] x, float[3] z) => (float[3] y) { h = Exp(z) k = Neg(h) y = Mul(x, x) }")
    assert adjoint(proto, ["z", "x"]) == ["y", "adj_z", "adj_x"]


def test_gradient():
    proto = model(
        """g (float[3] x) => (float[3] y, float l) <float[3] w = {1, 2, 3}> {
          y = Mul(x, w) q = Mul(y, y) l = ReduceSum<keepdims = 0>(q) }"""
    )
    grad = gradient(proto, "l", ["w", "x"])
    assert [v.name for v in grad.graph.output] == ["y", "l", "grad_w", "grad_x"]
    assert [v.name for v in grad.graph.input] == ["x"]
    got = run(grad, {"x": X})
    w = np.array([1, 2, 3], np.float32)
    np.testing.assert_allclose(got[2], 2 * X * X * w, rtol=1e-5)
    np.testing.assert_allclose(got[3], 2 * X * w * w, rtol=1e-5)
    with pytest.raises(UsageError, match=r"2 floating outputs \(y, l\); name"):
        gradient(proto)
    assert check_derivatives(proto, grad, outputs=["l"]).ok


def test_one_name_as_a_string():
    proto = model("g (float[3] x, float[3] ab) => (float[3] y) { y = Mul(x, ab) }")
    assert [v.name for v in reverse(proto, "ab", "y", layout="single").graph.output] == ["y", "adj_ab"]


def test_ir_version_3():
    proto = parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 8]>\n'
        "g (float[2,3] x, float[3,2] w, float[2] b) => (float[2,2] y)"
        " <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, 1}> { h = MatMul(x, w) s = Add(h, b) y = "
        "Tanh(s) }"
    )
    adj = reverse(proto, layout="single")
    onnx.checker.check_model(adj, full_check=True)
    assert [v.name for v in adj.graph.input] == ["x", "w", "b", "adj_y"]
    assert [v.name for v in adj.graph.output] == ["y", "adj_x"]
    assert check_derivatives(proto, adj).ok
    assert check_derivatives(proto, reverse(proto, ["w", "b"], layout="single")).ok


def test_an_empty_batch():
    proto = model(
        "g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> { h = MatMul(x, w) y = Tanh(h) }"
    )
    adj = reverse(proto, ["x", "w"], layout="single")
    y, dx, dw = run(adj, {"x": np.zeros((0, 3), np.float32), "adj_y": np.zeros((0, 2), np.float32)})
    assert y.shape == (0, 2) and dx.shape == (0, 3)
    np.testing.assert_array_equal(dw, np.zeros((3, 2), np.float32))


WEIGHTS = model("""g (float[2] x, int64[2] k_weight) => (float y)
    <float[2] a_weight = {1.0, 2.0}, float[2] b_weight = {3.0, 4.0}, float[2] b_bias = {5.0, 6.0}> {
      c = Mul(x, a_weight) d = Mul(c, b_weight) e = Add(d, b_bias) y = ReduceSum<keepdims = 0>(e) }""")


@pytest.mark.parametrize(
    "inputs, found",
    [
        ("*_weight", ["a_weight", "b_weight"]),
        ("b_*,x", ["b_weight", "b_bias", "x"]),
        ("*", ["x", "a_weight", "b_weight", "b_bias"]),
        ("x,*i*,b_bias", ["x", "a_weight", "b_weight", "b_bias"]),
    ],
)
def test_names_with_a_star(inputs, found):
    """Any text: of floating inputs and constants, each of them once."""
    out = run_pipeline(WEIGHTS, f"gradient{{inputs={inputs}}}")
    assert [o.name for o in out.graph.output] == ["y", *(f"grad_{x}" for x in found)]
    again = run_pipeline(WEIGHTS, f"fold-shapes,simplify,cse,reverse{{inputs={inputs}}},forward{{inputs={inputs}}}")
    assert [i.name for i in again.graph.input[2:]] == ["adj_y", *(f"fwd_{x}" for x in found)]


def test_a_star_that_matches_nothing_and_one_in_a_name():
    with pytest.raises(UsageError, match=r"no floating-point input or constant whose name matches '\*.wait'"):
        gradient(WEIGHTS, "y", ["x", "*.wait"])
    starred = onnx.ModelProto()
    starred.CopyFrom(WEIGHTS)
    for named in (*starred.graph.initializer, *starred.graph.node):
        if named.name == "a_weight":
            named.name = "*_weight"
    starred.graph.node[0].input[1] = "*_weight"
    out = gradient(starred, "y", ["*_weight"])
    assert [o.name for o in out.graph.output] == ["y", "grad_*_weight"]
