import math

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxad_rules.testing import check_rule, differentiate, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
X = r((2, 3)) + 0.05
UNIT = R.uniform(-0.8, 0.8, (2, 3))


@pytest.mark.parametrize(
    "op, x",
    [
        ("Exp", X),
        ("Log", np.abs(X) + 0.5),
        ("Abs", X),
        ("Sin", X),
        ("Cos", X),
        ("Tan", UNIT),
        ("Sinh", X),
        ("Cosh", X),
        ("Tanh", X),
        ("Atan", X),
        ("Asin", UNIT),
        ("Acos", UNIT),
        ("Asinh", X),
        ("Acosh", np.abs(X) + 1.3),
        ("Atanh", UNIT),
    ],
)
def test_function(op, x):
    check_rule(op, [x])


class Erf(OpRun):
    """In double precision, which neither ONNX Runtime nor onnx.reference offers."""

    def _run(self, x):
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


def exact(proto):
    evaluator = ReferenceEvaluator(proto, new_ops=[Erf])
    return lambda feeds: evaluator.run(None, {i.name: feeds[i.name] for i in proto.graph.input})


def test_erf():
    check_rule("Erf", [X], engine=exact)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((3,), (2, 1)), ((2, 3), ()), ((), (2,))])
def test_pow(shapes):
    a, b = (R.uniform(0.5, 2, s) for s in shapes)
    check_rule("Pow", [a, b])
    check_rule("Pow", [a, b - 1.2], constants=[1])


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, 4, 1.5, 2.5, 0.3, -0.5, -1, -2, -3])
@pytest.mark.parametrize("constants", [[1], []])
def test_pow_by_a_number(p, constants):
    whole = p == int(p) and constants
    x = X + np.sign(X) if whole else np.abs(X) + 0.3
    check_rule("Pow", [x, np.float64(p)], constants=constants, wrt=[0])
    check_rule("Pow", [x, np.full((1, 1, 1), p)], constants=constants, wrt=[0], single=False)


@pytest.mark.parametrize("constants", [[1], []])
def test_pow_by_integers(constants):
    """The exponent's element type may be another one."""
    for p in (np.int64(3), np.array([2, 0, -1]), np.array([[1], [5]], np.int32)):
        check_rule("Pow", [X + np.sign(X), p], constants=constants)


def slopes(x, p, constant):
    """The derivative of x ** p in x and in p, element by element, and the second one in x."""
    x, p = np.asarray(x, np.float64), np.asarray(p, np.float64)
    info = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, list(x.shape)) for n in ("x", "p", "y")]
    init = [helper.make_tensor("p", TensorProto.DOUBLE, p.shape, p.reshape(-1))] if constant else []
    graph = helper.make_graph(
        [helper.make_node("Pow", ["x", "p"], ["y"])], "g", info[:1] if constant else info[:2], info[2:], init
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    feeds = {"x": x, "p": p, "adj_y": np.ones_like(x), "fwd_x": np.ones_like(x), "fwd_p": np.zeros_like(x)}
    feeds |= {
        "d_x": np.ones_like(x),
        "d_p": np.zeros_like(x),
        "d_adj_y": np.zeros_like(x),
        "e_x": np.ones_like(x),
    }
    reverse = differentiate(model, "reverse")
    got = run_in_reference(reverse)(feeds)
    forward = run_in_reference(differentiate(model, "forward"))(feeds)[1]
    if constant or not np.any(x < 0):  # a negative base has no derivative in the exponent
        np.testing.assert_array_equal(got[1], forward)
    second = run_in_reference(differentiate(reverse, "forward", prefix="d_"))(feeds)[len(got) + 1]
    return got[1], None if constant else got[2], second


@pytest.mark.parametrize("constant", [True, False])
def test_pow_at_zero(constant):
    """x ** p at x = 0, where log x and x ** -1 are not to be met."""
    for p, first, second in [(0, 0, 0), (1, 1, 0), (2, 0, 2), (3, 0, 0), (4, 0, 0), (2.5, 0, 0)]:
        dx, dp, dxx = slopes([0.0, 0.0], [p, p], constant)
        np.testing.assert_array_equal(dx, [first] * 2, str(p))
        np.testing.assert_array_equal(dxx, [second] * 2, str(p))
        if dp is not None:
            np.testing.assert_array_equal(dp, [0, 0])


def test_negative_base():
    for p, x, first, second in [
        (2, -3, -6, 2),
        (3, -2, 12, -12),
        (-1, -2, -0.25, -0.25),
        (1, -2, 1, 0),
        (0, -2, 0, 0),
    ]:
        for constant in (True, False):
            dx, dp, dxx = slopes([x], [p], constant)
            np.testing.assert_allclose(dx, [first], rtol=1e-12)
            if constant:
                np.testing.assert_allclose(dxx, [second], rtol=1e-12)
            else:
                assert np.isnan(dp)


def test_pow_is_steep_at_zero():
    for p in (0.5, 0.3):
        assert slopes([0.0], [p], True)[0] > 1e15


def model_of(text, dtype="double"):
    from onnx import parser

    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}'.replace("double", dtype))


@pytest.mark.parametrize(
    "inner, slope",
    [
        ("Log(x)", lambda x: 1 / x),
        ("Sqrt(x)", lambda x: 0.5 / np.sqrt(x)),
        ("Reciprocal(x)", lambda x: -1 / x**2),
        ("Div(one, x)", lambda x: -1 / x**2),
        ("Pow(x, minus)", lambda x: -1 / x**2),
        ("Div(x, x)", lambda x: 0 * x),
    ],
)
@pytest.mark.parametrize("dtype", ["double", "float"])
def test_branch_not_taken(inner, slope, dtype):
    """Where(x > 0, f(x), 0) has derivative zero where the other branch is taken, whatever f does there."""
    text = f"""g (double[4] x) => (double[4] y)
      <double zero = {{0}}, double one = {{1}}, double minus = {{-1}}>
      {{ c = Greater(x, zero)  v = {inner}  w = Mul(v, one)  y = Where(c, w, zero) }}"""
    model = model_of(text, dtype)
    x = np.array([0.0, 2, 0, 0.5], np.float64 if dtype == "double" else np.float32)
    feeds = {"x": x, "adj_y": np.array([1, 1, 3, 1], x.dtype), "fwd_x": np.array([1, 1, 3, 1], x.dtype)}
    want = np.where(x > 0, slope(np.where(x > 0, x, 1)), 0)
    for mode in ("forward", "reverse"):
        d = differentiate(model, mode)
        runs = [run_in_reference(d)] + ([run_in_ort(d), run_in_ort(d, 99)] if dtype == "float" else [])
        for run in runs:
            np.testing.assert_allclose(run(feeds)[1], want, rtol=1e-6, err_msg=mode)


@pytest.mark.parametrize(
    "inner, slope",
    [
        ("Log(x)", lambda x: 1 / x),
        ("Sqrt(x)", lambda x: 0.5 / np.sqrt(x)),
        ("Pow(x, half)", lambda x: 0.5 / np.sqrt(x)),
        ("Pow(x, more)", lambda x: 1.5 * np.sqrt(x)),
        ("Acosh(x1)", lambda x: 1 / np.sqrt((x + 1) ** 2 - 1)),
        ("Exp(r)", lambda x: -np.exp(1 / x) / x**2),
        ("Mul(x, l)", lambda x: np.log(x) + 1),
    ],
)
@pytest.mark.parametrize("zero", [0.0, -1.0])
def test_branch_outside_its_domain(inner, slope, zero):
    """The same where the branch not taken is undefined, or a factor of it is infinite."""
    model = model_of(f"""g (double[3] x) => (double[3] y)
      <double zero = {{0}}, double one = {{1}}, double half = {{0.5}}, double more = {{1.5}}>
      {{ c = Greater(x, zero)  x1 = Add(x, one)  r = Reciprocal(x)  l = Log(x)
         v = {inner}  y = Where(c, v, zero) }}""")
    x = np.array([zero, 0.25, 1])
    feeds = {"x": x, "adj_y": np.array([3.0, 1, 2])}
    want = feeds["adj_y"] * np.where(x > 0, slope(np.where(x > 0, x, 1)), 0)
    got = run_in_reference(differentiate(model, "reverse"))(feeds)[1]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_zero_times_a_steep_root():
    """0 * sqrt(x) at x = 0."""
    model = model_of("g (double[2] x) => (double[2] y) <double[2] c = {0, 1}> { s = Sqrt(x)  y = Mul(s, c) }")
    feeds = {"x": np.array([0.0, 4]), "adj_y": np.ones(2), "fwd_x": np.ones(2)}
    got = run_in_reference(differentiate(model, "reverse"))(feeds)[1]
    np.testing.assert_allclose(got, [0, 0.25])
