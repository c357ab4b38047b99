"""Loops written out; the graph without loops is also what the derivatives of loops are compared with."""

import numpy as np
import onnx
import pytest
from onnx import parser
from orders import close
from support import evaluate

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import UnrollTooLarge, forward, reverse, unroll

RNG = np.random.default_rng(2)


def model(text):
    return parser.parse_model('<ir_version: 8, opset_import: ["": 18]>\n' + text)


SCAN = """g (double[2] h, double[2,3] x, double[3,2] z, double[2,2] w) => (double[2] y, double[2,3] ys, double[3] q) {
  y, ys, q = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
      scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
      body = b (double[2] s, double[2] xi, double[2] zi) => (double[2] so, double[2] yo, double qo) {
    a = MatMul(s, w) c = Add(a, xi) so = Tanh(c) yo = Mul(so, zi) qo = ReduceSum<keepdims = 0>(zi) }>(h, x, z)
}"""
LOOP = """g (double[2] h, double[2,2] w) => (double[2] y, double[3,2] ys) {
  m = Constant<value = int64 {3}>()
  y, ys = Loop<body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] so, double[2] yo) {
    f = Cast<to = 11>(i) a = MatMul(s, w) d = Add(a, f) so = Tanh(d) yo = Mul(so, s) }>(m, , h)
}"""
NEST = """g (double[2] h, double[2] x, double[2,2] w) => (double[2] y) {
  m = Constant<value = int64 {3}>()
  y = Loop<body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] so) {
    t = Loop<body = b2 (int64 j, bool cj, double[2] s2) => (bool cj, double[2] so2) {
      a = MatMul(s2, w) e = Mul(a, x) so2 = Tanh(e) }>(i, , s)
    so = Add(t, s) }>(m, , h)
}"""


def feeds_of(m):
    return {i.name: RNG.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]) for i in m.graph.input}


@pytest.mark.parametrize("text", [SCAN, LOOP, NEST], ids=["scan", "loop", "nest"])
def test_same_values_and_derivatives(text):
    m = model(text)
    flat = unroll(m)
    onnx.checker.check_model(flat, full_check=True)
    assert not {"Loop", "Scan", "If"} & {n.op_type for n in flat.graph.node}
    feeds = feeds_of(m)
    want = evaluate(m, feeds, 0)
    for k, v in evaluate(flat, feeds, 0).items():
        close(v, want[k], 1e-13, k)
    seeds = {f"adj_{k}": RNG.standard_normal(v.shape) for k, v in want.items()}
    tangents = {f"fwd_{k}": RNG.standard_normal(v.shape) for k, v in feeds.items()}
    for mode in (forward, reverse):
        derivative = mode(m, layout="single")
        got = evaluate(derivative, {**feeds, **seeds, **tangents}, 99)
        oracle = evaluate(mode(flat, layout="single"), {**feeds, **seeds, **tangents}, 0)
        unrolled = evaluate(unroll(derivative), {**feeds, **seeds, **tangents}, 0)
        for k, v in oracle.items():
            close(got[k], v, 1e-12, (mode, k))
            close(unrolled[k], v, 1e-12, (mode, k))


def test_no_iterations():
    m = model(LOOP.replace("{3}", "{0}").replace("double[3,2] ys", "double[0,2] ys"))
    flat = unroll(m)
    assert "Loop" not in {n.op_type for n in flat.graph.node}
    feeds = feeds_of(m)
    got = evaluate(flat, feeds, 0)
    close(got["y"], feeds["h"], 0, "y")
    assert got["ys"].shape == (0, 2)


def test_a_loop_that_ends_on_a_condition_stays():
    text = """g (double[2] h) => (double[2] y) {
      m = Constant<value = int64 {3}>()
      t = Constant<value = bool {1}>()
      k = Constant<value = double {0.5}>()
      y = Loop<body = b (int64 i, bool ci, double[2] s) => (bool co, double[2] so) {
        so = Mul(s, k) n = ReduceSum<keepdims = 0>(so) co = Greater(n, k) }>(m, t, h)
    }"""
    m = unroll(model(text))
    assert "Loop" in {n.op_type for n in m.graph.node}
    feeds = {"h": np.array([1.0, 3.0])}
    close(evaluate(m, feeds)["y"], evaluate(model(text), feeds)["y"], 0, "y")


def test_limit():
    with pytest.raises(UnrollTooLarge, match=r"more than 10 nodes, at Loop \(%"):
        unroll(model(LOOP), limit=10)
    with pytest.raises(UnrollTooLarge, match="more than 10 nodes"):
        unroll(model(LOOP), max_nodes=10)
    unroll(model(LOOP), limit=40)
    with pytest.raises(UsageError, match="limit is a number of nodes, not 0"):
        unroll(model(LOOP), limit=0)
    text = "g (double[3] x) => (double[3] y) { a = Exp(x) b = Exp(a) y = Exp(b) }"
    assert len(unroll(model(text), limit=2).graph.node) == 3  # nothing is written out, so nothing is too large
