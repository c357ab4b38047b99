"""A derivative that exists is a finite number: orders one to three at singular points, against mixed differences.

The functions are smooth where they are tested, so that differences of the values tell every derivative; it is the
formulas of the derivatives that divide by zero.
"""

from itertools import product

import numpy as np
import onnx.parser
import pytest
from support import evaluate

from onnxad_ir.schema import latest_opset
from onnxad_passes import forward, reverse


def model(body, n, opset=23):
    """A model of a vector of length n with a result of one element."""
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : {opset}]> m (double[{n}] x) => (double[M] y) {{ {body} }}'
    )


def mixed(f, x, directions):
    """The mixed derivative of f along directions: central differences, extrapolated once."""

    def central(h):
        total = 0.0
        for signs in product((1, -1), repeat=len(directions)):
            step = sum(s * d for s, d in zip(signs, directions, strict=True))
            total += np.prod(signs) * float(f(x + h * step).sum())
        return total / (2 * h) ** len(directions)

    wide, narrow = central(2e-2), central(1e-2)
    return (4 * narrow - wide) / 3


def derivative(m, x, directions, modes):
    """The mixed derivative by derivative models of derivative models: "f" forward, "r" reverse, first to last."""
    feeds, result = {"x": x}, "y"
    ones = np.ones_like(evaluate(m, feeds)["y"])
    for k, (mode, d) in enumerate(zip(modes, directions, strict=True)):
        if mode == "f":
            m = forward(m, ["x"], [result], prefix=f"t{k}_", layout="single")
            feeds[f"t{k}_x"], result = d, f"t{k}_{result}"
        else:  # a gradient, to be multiplied by the direction; that of a gradient is of the product with its direction
            m = reverse(m, ["x"], [result], prefix=f"a{k}_", layout="single")
            feeds[f"a{k}_{result}"] = ones if result == "y" or result.endswith("_y") else directions[k - 1]
            result = f"a{k}_x"
    onnx.checker.check_model(m, full_check=True)
    found = evaluate(m, feeds)[result]
    last = max((k for k, mode in enumerate(modes) if mode == "r"), default=None)
    return float((found * (1.0 if last is None else directions[last])).sum())


def check(body, x, order=3, tolerance=1e-6, opset=23):
    """Every mix of modes, up to an order."""
    x = np.asarray(x, np.float64)
    m = model(body, len(x), opset)
    rng = np.random.default_rng(len(body))
    for k in range(1, order + 1):
        directions = [rng.standard_normal(len(x)) for _ in range(k)]
        want = mixed(lambda at: evaluate(m, {"x": at})["y"], x, directions)
        for modes in {"f" * k, "r" + "f" * (k - 1), "f" * (k - 1) + "r", "rr"[:k] + "f" * (k - 2)}:
            got = derivative(m, x, directions, modes)
            assert abs(got - want) <= tolerance * max(1.0, abs(want)), (body, x, modes, got, want)


@pytest.mark.parametrize("x", [[2, 0, 3], [0, 2, 0], [0, 0, 0], [0, -1, 0, 2, 0], [1, 2, 3]])
@pytest.mark.parametrize("body", ["y = ReduceProd<keepdims = 1>(x)"])
def test_products_with_zeros(body, x):
    check(body, x)


@pytest.mark.skipif(latest_opset() < 26, reason="CumProd came with opset 26")
@pytest.mark.parametrize("x", [[2, 0, 3], [0, 2, 0, 1], [0, 0, 0], [3, 0, 0]])
@pytest.mark.parametrize("attributes", ["", "<exclusive = 1>", "<reverse = 1>"])
def test_cumulative_products_with_zeros(x, attributes):
    product = f"a = Constant<value = int64 {{0}}>() c = CumProd{attributes}(x, a)"
    check(f"{product} y = ReduceSum<keepdims = 1>(c)", x, opset=26)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("known", [True, False])
def test_powers_of_zero(power, known):
    p = f"k = Constant<value = double {{{power}}}>() "
    # read off the sign of an element: not a constant, and no function of x nearby
    p += "p = Identity(k)" if known else "t = Abs(x) s = ReduceSum<keepdims = 0>(t) g = Sign(s) p = Mul(k, g)"
    check(f"{p} q = Pow(x, p) y = ReduceSum<keepdims = 1>(q)", [0, 2, 0, -1], tolerance=1e-5)


def test_a_power_by_a_whole_number_of_another_type():
    check("k = Constant<value = int64 {3}>() q = Pow(x, k) y = ReduceSum<keepdims = 1>(q)", [0, -2, 1])


@pytest.mark.parametrize(
    "square",
    ["y = Mul(n, n)", "k = Constant<value = double {2.0}>() y = Pow(n, k)", "y = ReduceSumSquare<keepdims = 1>(n)"],
)
@pytest.mark.parametrize("norm", ["n = ReduceL2<keepdims = 1>(x)", "s = ReduceSumSquare<keepdims = 1>(x) n = Sqrt(s)"])
def test_squared_norms_of_zero(norm, square):
    check(f"{norm} {square}", [0, 0, 0], order=2)
    check(f"{norm} {square}", [1, -2, 0.5], order=3, tolerance=1e-5)


def test_a_squared_norm_that_is_the_square():
    check("y = ReduceSumSquare<keepdims = 1>(x)", [0, 0, 0])


MASK = "b = Constant<value = double[4] {0.0, -inf, 0.0, -inf}>() m = Add(x, b) "


@pytest.mark.parametrize(
    "body",
    [
        "s = Softmax<axis = 0>(m) q = Mul(s, s) y = ReduceSum<keepdims = 1>(q)",
        "y = ReduceLogSumExp<keepdims = 1>(m)",
        "l = LogSoftmax<axis = 0>(m) e = Exp(l) q = Mul(e, x) y = ReduceSum<keepdims = 1>(q)",
    ],
)
def test_masked_rows(body):
    check(MASK + body, [1, 2, -1, 0.5], tolerance=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        # a row that is masked throughout is thrown away
        """n = Constant<value = double {-inf}>() o = Add(x, n) s = Softmax<axis = 0>(o) i = IsNaN(s)
        z = Constant<value = double {0.0}>() w = Where(i, z, s) t = Sum(w, x) q = Mul(t, t) y = ReduceSum<keepdims = 1>(q)""",
        # the other branch overflows, is infinite, is undefined
        """z = Constant<value = double {0.0}>() k = Constant<value = double {1e3}>() c = Greater(x, z) b = Mul(x, k)
        p = Exp(b) e = Exp(p) f = Sin(x) w = Where(c, f, e) v = Where(c, f, x) y = ReduceSum<keepdims = 1>(v)""",
        """z = Constant<value = double {0.0}>() l = Log(x) i = IsNaN(l) w = Where(i, x, l) a = Mul(w, w)
        j = IsInf(a) v = Where(j, x, a) y = ReduceSum<keepdims = 1>(v)""",
        """z = Constant<value = double {0.0}>() c = LessOrEqual(x, z) s = Sqrt(x) w = Where(c, x, s) y = ReduceSum<keepdims = 1>(w)""",
    ],
)
def test_a_branch_that_is_not_taken(body):
    check(body, [2, -1, -3, 1.5], tolerance=1e-5)


@pytest.mark.parametrize(
    "body, order",
    [
        # (x / |x|) x^3, with 0 for the sign of 0
        (
            """z = Constant<value = double {0.0}>() a = Abs(x) c = Equal(a, z) d = Div(x, a) w = Where(c, z, d)
            q = Mul(x, x) p = Mul(q, x) v = Mul(w, p) y = ReduceSum<keepdims = 1>(v)""",
            1,
        ),
        # x / max(|x|, 1) and x / max(||x||, 1000)
        (
            """e = Constant<value = double {1.0}>() a = Abs(x) b = Max(a, e) d = Div(x, b) q = Mul(d, x)
            y = ReduceSum<keepdims = 1>(q)""",
            3,
        ),
        (
            """e = Constant<value = double {1e3}>() n = ReduceL2<keepdims = 1>(x) b = Max(n, e) d = Div(x, b) q = Mul(d, d)
            y = ReduceSum<keepdims = 1>(q)""",
            3,
        ),
    ],
)
def test_guards(body, order):
    check(body, [0, 0, 2] if order == 1 else [0, 0, 0], order)


def test_a_root_of_zero_behind_a_dead_path():
    body = "z = Constant<value = double {0.0}>() r = Relu(x) s = Sqrt(r) q = Mul(s, z) t = Mul(x, x) u = Add(q, t) y = ReduceSum<keepdims = 1>(u)"
    check(body, [-1, -2, -3])
