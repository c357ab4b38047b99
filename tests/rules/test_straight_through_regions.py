"""Straight-through derivatives whose quantized tensors cross the borders of regions and local functions."""

import numpy as np
import onnx
import onnx.parser
import pytest
from support import evaluate

from onnxad_passes import forward, reverse

R = np.random.default_rng(4)
X = np.asarray(R.uniform(-3, 3, (3, 4)), np.float32)
CT = np.asarray(R.standard_normal((3, 4)), np.float32)
OPS = ("Round", "QuantizeLinear")
SCALE, ZERO = np.float32(0.02), 1
LEVEL = np.round(X / SCALE) + ZERO
INSIDE = (LEVEL >= -128) & (LEVEL <= 127)
Y = (np.clip(LEVEL, -128, 127) - ZERO) * SCALE

Q, DQ = "{o} = QuantizeLinear({a}, s, z)", "{o} = DequantizeLinear({a}, s, z)"
KIND = {Q: ("float", "int8"), DQ: ("int8", "float")}


def plain(i, stage, a):
    return stage.format(a=a, o=f"r{i}")


def branch(i, stage, a):
    out, other = KIND[stage][1], "n = QuantizeLinear(other, s, z)" if stage is Q else "n = Neg(other)"
    return f"""r{i} = If(p) <then_branch = t () => ({out}[3,4] o) {{ {stage.format(a=a, o="o")} }},
      else_branch = e () => ({out}[3,4] n) {{ {other} }}>"""


def scan_slices(i, stage, a):
    ins, out = KIND[stage]
    inner = stage.format(a="a", o="o")
    return f"r{i} = Scan<num_scan_inputs = 1, body = f ({ins}[4] a) => ({out}[4] o) {{ {inner} }}>({a})"


def loop_captures(i, stage, a):
    out = KIND[stage][1]
    return f"""s{i} = Loop<body = f (int64 t, bool g) => (bool h, {out}[3,4] o) {{ h = Identity(g) {stage.format(a=a, o="o")} }}>
      (one, yes) r{i} = Reshape(s{i}, shape)"""


def loop_states(i, stage, a):
    """The value goes into the state in one iteration; states of the other type are empty before."""
    ins, out = KIND[stage]
    inner = stage.format(a="a", o="o")
    empty = f"e{i} = QuantizeLinear(other, s, z)" if out == "int8" else f"e{i} = Identity(other)"
    return f"""{empty} k{i}, r{i} = Loop<body = f (int64 t, bool g, {ins}[3,4] a, {out}[3,4] b) =>
      (bool h, {ins}[3,4] a1, {out}[3,4] o) {{ h = Identity(g) a1 = Identity(a) {inner} }}>(one, yes, {a}, e{i})"""


def scan_states(i, stage, a):
    ins, out = KIND[stage]
    inner = stage.format(a="a", o="o")
    return f"""k{i}, s{i} = Scan<num_scan_inputs = 1, body = f ({ins}[3,4] a, float u) => ({ins}[3,4] a1, {out}[3,4] o) {{
      a1 = Identity(a) {inner} }}>({a}, once) r{i} = Reshape(s{i}, shape)"""


def function(i, stage, a):
    return f"r{i} = local.{'quantize' if stage is Q else 'dequantize'}({a})"


FUNCTIONS = """
<domain: "local", opset_import: ["" : 21]> quantize (a) => (o) {
  s = Constant<value = float {0.02}>() z = Constant<value = int8 {1}>() o = QuantizeLinear(a, s, z) }
<domain: "local", opset_import: ["" : 21]> dequantize (a) => (o) {
  s = Constant<value = float {0.02}>() z = Constant<value = int8 {1}>() o = DequantizeLinear(a, s, z) }"""
PLACES = [branch, scan_slices, loop_captures, loop_states, scan_states, function]
PAIRS = [*((p, plain) for p in PLACES), *((plain, p) for p in PLACES), (branch, loop_states), (loop_captures, function)]


def model(first, second, square=False):
    body = first(1, Q, "x") + " " + second(2, DQ, "r1") + (" y = Mul(r2, r2)" if square else " y = Identity(r2)")
    consts = (
        "float s = {0.02}, int8 z = {1}, int64 one = {1}, bool yes = {1}, int64[2] shape = {3, 4}, float[1] once = {0}"
    )
    text = f"""<ir_version: 10, opset_import: ["" : 21, "local" : 1]> m (float[3,4] x, float[3,4] other, bool p)
      => (float[3,4] y) <{consts}> {{ {body} }} {FUNCTIONS if function in (first, second) else ""}"""
    m = onnx.parser.parse_model(text)
    onnx.checker.check_model(m, full_check=True)
    return m


def derivatives(m, **options):
    for d in (forward, reverse):
        made = d(m, ["x"], layout="single", straight_through=OPS, **options)
        onnx.checker.check_model(made, full_check=True)
        yield made


FEEDS = {"x": X, "other": CT, "p": np.array(True)}


CASES = [(p, "inline") for p in PAIRS] + [(p, "keep") for p in PAIRS if function in p]


@pytest.mark.parametrize(
    "places, functions", CASES, ids=lambda p: p if isinstance(p, str) else "-".join(f.__name__ for f in p)
)
def test_a_quantized_tensor_crosses_a_border(places, functions):
    fwd, adj = derivatives(model(*places), functions=functions)
    assert 0 < INSIDE.mean() < 1
    for level in (0, 99):
        got = evaluate(fwd, {**FEEDS, "fwd_x": CT}, level)
        np.testing.assert_allclose(got["y"], Y, 1e-5, 1e-6)
        np.testing.assert_allclose(got["fwd_y"], CT * INSIDE, 1e-5)
        np.testing.assert_allclose(evaluate(adj, {**FEEDS, "adj_y": CT}, level)["adj_x"], CT * INSIDE, 1e-5)


@pytest.mark.parametrize("places", [(loop_states, plain), (plain, branch)], ids=["loop", "branch"])
def test_order_two(places):
    for first, result in zip(derivatives(model(*places, square=True)), ("fwd_y", "adj_x"), strict=True):
        second = forward(first, ["x"], [result], prefix="d_", layout="single", straight_through=OPS)
        onnx.checker.check_model(second, full_check=True)
        got = evaluate(second, {**FEEDS, "fwd_x": CT, "adj_y": CT, "d_x": X}, 99)[f"d_{result}"]
        np.testing.assert_allclose(got, 2 * CT * X * INSIDE, 1e-4, 1e-5)


def test_a_state_is_quantized_again_and_again():
    """x + Q(state) three times: the quantized state carries a derivative from iteration to iteration."""
    m = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> m (float[3,4] x, float[3,4] other, bool p)
      => (float[3,4] y) <float s = {0.5}, int64 n = {3}, bool yes = {1}> {
        q0 = QuantizeLinear<output_dtype = 3>(x, s)
        q = Loop<body = f (int64 t, bool g, int8[3,4] a) => (bool h, int8[3,4] b) {
          h = Identity(g) d = DequantizeLinear(a, s) e = Add(d, x) r = Round(e) b = QuantizeLinear<output_dtype = 3>(r, s) }>
          (n, yes, q0)
        y = DequantizeLinear(q, s) }""")
    fwd, adj = derivatives(m)
    np.testing.assert_allclose(evaluate(fwd, {**FEEDS, "fwd_x": CT}, 99)["fwd_y"], 4 * CT, 1e-5)
    np.testing.assert_allclose(evaluate(adj, {**FEEDS, "adj_y": CT}, 99)["adj_x"], 4 * CT, 1e-5)


@pytest.mark.parametrize("place", PLACES[:-1], ids=lambda p: p.__name__)
def test_without_the_option_it_is_zero(place):
    adj = reverse(model(place, plain), ["x"], layout="single")
    assert not evaluate(adj, {**FEEDS, "adj_y": CT}, 99)["adj_x"].any()
