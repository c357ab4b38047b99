"""What has another shape for every entry runs for each in turn, up to where it has one shape again."""

import numpy as np
import onnx
import pytest
from batched import check_batched
from support import evaluate, steps

from onnxad_passes import UnsupportedOperator, gradient, vectorize

RNG = np.random.default_rng(0)
#: Each row has another number of positive elements.
ROWS = np.array([[1, -2, 3, -4], [-1, -2, -3, -4], [1, 2, 3, 4]], np.float32)


def parse(body, inputs="float[4] x", outputs="float y"):
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => ({outputs}) {{'
        f" zero = Constant<value = float {{0}}>() {body} }}"
    )


def check(model, want, rows=ROWS, **feeds):
    vectorized = vectorize(model, ["x"], dim="entries")
    onnx.checker.check_model(vectorized, full_check=True)
    for level in (0, 99):
        got = evaluate(vectorized, {"x": rows, **feeds}, level)["y"]
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    return [n.op_type for n in vectorized.graph.node]


def test_a_sum_over_what_was_found():
    kinds = check(
        parse("up = Greater(x, zero) some = Compress<axis = 0>(x, up) y = ReduceSumSquare<keepdims = 0>(some)"),
        [(r[r > 0] ** 2).sum() for r in ROWS],
    )
    assert kinds.count("Scan") == 1 and "Greater" in kinds and "Compress" not in kinds


def test_what_comes_between_is_not_in_the_scan():
    kinds = check(
        parse("""up = Greater(x, zero) some = Compress<axis = 0>(x, up) e = Exp(x) n = ReduceSum<keepdims = 0>(some)
                 m = Tanh(n) s = Sigmoid(e) t = Mul(s, m) y = ReduceSum<keepdims = 0>(t)"""),
        [(1 / (1 + np.exp(-np.exp(r))) * np.tanh(r[r > 0].sum())).sum() for r in ROWS],
    )
    assert kinds.count("Scan") == 1 and {"Exp", "Sigmoid", "Tanh"} <= set(kinds)


def test_what_is_led_to_and_read_again_is_in_the_scan():
    kinds = check(
        parse("""up = Greater(x, zero) some = Compress<axis = 0>(x, up) n = ReduceSum<keepdims = 0>(some)
                 half = Tanh(n) scaled = Mul(some, half) y = ReduceSum<keepdims = 0>(scaled)"""),
        [r[r > 0].sum() * np.tanh(r[r > 0].sum()) for r in ROWS],
    )
    assert kinds == ["Greater", "Scan"]


def test_two_that_do_not_meet():
    kinds = check(
        parse("""up = Greater(x, zero) down = Less(x, zero) some = Compress<axis = 0>(x, up)
                 rest = Compress<axis = 0>(x, down) a = ReduceSum<keepdims = 0>(some)
                 b = ReduceL1<keepdims = 0>(rest) y = Sub(a, b)"""),
        [r[r > 0].sum() - np.abs(r[r < 0]).sum() for r in ROWS],
    )
    assert kinds.count("Scan") == 2


def test_two_that_meet():
    kinds = check(
        parse("""up = Greater(x, zero) down = Less(x, zero) some = Compress<axis = 0>(x, up)
                 rest = Compress<axis = 0>(x, down) both = Concat<axis = 0>(some, rest)
                 y = ReduceSum<keepdims = 0>(both)"""),
        ROWS.sum(1),
    )
    assert kinds.count("Scan") == 1


def test_inside_of_a_branch():
    model = parse(
        """y = If(c) <then_branch = t () => (float a) {
             up = Greater(x, zero) some = Compress<axis = 0>(x, up) a = ReduceSum<keepdims = 0>(some) },
           else_branch = e () => (float b) { b = ReduceMin<keepdims = 0>(x) }>""",
        "float[4] x, bool c",
    )
    check(model, [r[r > 0].sum() for r in ROWS], c=np.array(True))
    check(model, ROWS.min(1), c=np.array(False))


def test_a_branch_that_reads_what_was_found():
    model = parse(
        """up = Greater(x, zero) some = Compress<axis = 0>(x, up)
           y = If(c) <then_branch = t () => (float a) { a = ReduceSum<keepdims = 0>(some) },
                      else_branch = e () => (float b) { b = ReduceSumSquare<keepdims = 0>(some) }>""",
        "float[4] x, bool c",
    )
    check(model, [r[r > 0].sum() for r in ROWS], c=np.array(True))
    check(model, [(r[r > 0] ** 2).sum() for r in ROWS], c=np.array(False))


@pytest.mark.parametrize("op", ["ReduceProd", "CumProd"])
def test_gradients_of_products_with_zeros(op):
    """Which have a row for each zero, of which every entry has its own number."""
    rows = np.array([[1, 0, 3], [0, 0, 2], [4, -5, 6]], np.float32)
    if op == "ReduceProd":
        model, want = parse("y = ReduceProd<keepdims = 0>(x)", "float[3] x"), []
        want = [[r[1] * r[2], r[0] * r[2], r[0] * r[1]] for r in rows]
    else:
        model = parse(
            "a = Constant<value = int64 {0}>() p = CumProd(x, a) y = ReduceSum<keepdims = 0>(p)", "float[3] x"
        )
        model.opset_import[0].version = 26
        want = [[1 + r[1] + r[1] * r[2], r[0] + r[0] * r[2], r[0] * r[1]] for r in rows]
    per_entry = vectorize(gradient(model), ["x"], dim="entries")
    got = evaluate(per_entry, {"x": rows})["grad_x"]
    np.testing.assert_allclose(got, want, 1e-6)


@pytest.mark.parametrize("hide", ["N", None])
def test_extents_and_ranks_that_only_the_run_tells(hide):
    """What was found is summed, so that one shape comes back, whatever is known of the operand."""
    body = "up = Greater(x, zero) some = Compress<axis = 0>(x, up) n = ReduceSum<keepdims = 0>(some) y = Mul(x, n)"
    model = parse(body, f"float[{hide}] x" if hide else "float[] x", f"float[{hide}] y" if hide else "float[] y")
    if hide is None:
        for v in (model.graph.input[0], model.graph.output[0]):
            v.type.tensor_type.ClearField("shape")
    check_batched(model, {"x": ROWS[0], "x*": ROWS}, ["x"], scan=True, tolerance=1e-5)


@pytest.mark.parametrize(
    "body",
    [
        "up = Greater(x, zero) y = Compress<axis = 0>(x, up)",
        "up = Greater(x, zero) z = Compress<axis = 0>(x, up) y = Exp(z)",
        """c = Constant<value = bool {1}>() y = If(c) <then_branch = t () => (a) {
             up = Greater(x, zero) a = Compress<axis = 0>(x, up) }, else_branch = e () => (b) { b = Neg(x) }>""",
    ],
)
def test_what_stays_of_another_shape_for_every_entry(body):
    with pytest.raises(UnsupportedOperator, match=r"Compress .* has a result of another shape for every entry"):
        vectorize(parse(body, outputs="float[N] y"), ["x"])


def test_work_is_linear():
    def chain(length):
        body = "x0 = Identity(x)" + "".join(
            f""" u{i} = Greater(x{i}, zero) s{i} = Compress<axis = 0>(x{i}, u{i})
                 n{i} = ReduceSum<keepdims = 0>(s{i}) x{i + 1} = Sub(x{i}, n{i})"""
            for i in range(length)
        )
        return parse(f"{body} y = ReduceSum<keepdims = 0>(x{length})")

    few, many = chain(20), chain(80)
    assert steps(vectorize, many, ["x"]) < 5 * steps(vectorize, few, ["x"])
