"""Results of If, Loop and Scan that nobody reads are dropped, one by one."""

from __future__ import annotations

import numpy as np
from onnx import parser
from small import HEAD, same

from onnxad_passes import run_pipeline
from tests.support import evaluate

FEEDS = {"x": np.array([0.5, -1.5, 2.0], np.float32), "p": np.array(True)}
XS = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def inside(proto):
    """The operators of the first node with a region, and that node."""
    (node,) = [n for n in proto.graph.node if n.attribute and any(a.HasField("g") for a in n.attribute)]
    return node, [n.op_type for a in node.attribute for n in a.g.node]


def test_if():
    out = same(
        """g (float[3] x, bool p) => (float[3] y) {
          a, y, b = If (p) < then_branch = t () => (float[3] u, float[3] v, float[3] w) {
              u = Tanh(x) v = Exp(x) w = Sin(u) },
            else_branch = e () => (float[3] r, float[3] s, float[3] q) { r = Neg(x) s = Mul(r, x) q = Cos(x) } > }""",
        "dce",
        FEEDS,
    )
    node, ops = inside(out)
    assert list(node.output) == ["y"] and sorted(ops) == ["Exp", "Mul", "Neg"]


SCAN = """a, y, z, s, t, u = Scan <num_scan_inputs = 3, scan_input_axes = [0, 1, 0], scan_input_directions = [0, 1, 1],
          scan_output_axes = [0, 1, 0], scan_output_directions = [1, 0, 0],
          body = step (float[3] a0, float[3] y0, float[3] z0, float[3] e, float[3] f, float[3] g) =>
                      (float[3] a1, float[3] y1, float[3] z1, float[3] s1, float[3] t1, float[3] u1) {
            a1 = Sin(a0) n = Mul(z0, f) z1 = Cos(n) y1 = Add(y0, z0) s1 = Exp(e) t1 = Mul(f, f) u1 = Neg(a1)
          }> (x, x, x, xs, xt, xs)"""


def scan(results):
    outs = ", ".join(f"float[{shape}] {n}" for n, shape in results.items())
    return same(
        f"g (float[3] x, float[4,3] xs, float[3,4] xt) => ({outs}) {{ {SCAN} }}",
        "dce",
        {"x": FEEDS["x"], "xs": XS, "xt": np.ascontiguousarray(XS.T)},
    )


def test_scan_keeps_states_that_feed_what_is_read():
    node, ops = inside(scan({"y": "3"}))
    assert list(node.output)[:1] == ["y"] and len(node.output) == 2 and sorted(ops) == ["Add", "Cos", "Mul"]
    assert {a.name: list(a.ints) or a.i for a in node.attribute if a.name != "body"} == {
        "num_scan_inputs": 1,
        "scan_input_axes": [1],
        "scan_input_directions": [1],
    }


def test_scan_keeps_stacked_results_and_their_attributes():
    node, ops = inside(scan({"t": "3,4"}))
    assert list(node.output) == ["t"] and ops == ["Mul"] and list(node.input) == ["xt"]
    assert [list(a.ints) for a in node.attribute if a.name == "scan_output_axes"] == [[1]]
    node, ops = inside(scan({"s": "4,3", "a": "3"}))
    assert sorted(ops) == ["Exp", "Sin"] and list(node.output) == ["a", "s"]
    assert [list(a.ints) for a in node.attribute if a.name == "scan_output_directions"] == [[1]]


def test_scan_keeps_one_scan_input():
    node, ops = inside(scan({"a": "3"}))
    assert ops == ["Sin"] and len(node.input) == 2


def test_loop():
    out = same(
        """g (float[3] x) => (float[3] y) {
          n = Constant <value_int = 4> () yes = Constant <value = bool {1}> ()
          a, y, b, s, t = Loop (n, yes, x, x, x) <body = step (int64 i, bool go, float[3] a0, float[3] y0, float[3] b0)
              => (bool more, float[3] a1, float[3] y1, float[3] b1, float[3] s1, float[3] t1) {
            a1 = Sin(a0) y1 = Cos(y0) b1 = Mul(b0, a1) s1 = Exp(y1) t1 = Tanh(b1)
            total = ReduceSum <keepdims = 0> (y1) zero = Constant <value_float = 0.9> () more = Less(total, zero)
          }> }""",
        "dce",
        {"x": FEEDS["x"]},
    )
    node, ops = inside(out)
    assert list(node.output) == ["y"] and len(node.input) == 3
    assert sorted(ops) == ["Cos", "Less", "ReduceSum"]


def test_nested():
    """A result of an inner loop that only a dead state of the outer one reads."""
    out = same(
        """g (float[3] x, float[4,3] xs) => (float[3] y) {
          y, z = Scan <num_scan_inputs = 1, body = outer (float[3] y0, float[3] z0, float[3] e) =>
              (float[3] y1, float[3] z1) {
            y1, k, l = Scan <num_scan_inputs = 1, body = inner (float[3] p0, float[3] q0, float[3] f) =>
                (float[3] p1, float[3] q1, float[3] r1) {
              p1 = Mul(p0, f) q1 = Mul(q0, e) r1 = Exp(q1)
            }> (y0, e, xs)
            z1 = Sub(z0, k)
          }> (x, x, xs) }""",
        "dce",
        {"x": FEEDS["x"], "xs": XS},
    )
    text = str(out.graph)
    assert text.count('op_type: "Mul"') == 1 and 'op_type: "Exp"' not in text


def test_derivatives_keep_what_they_read():
    """Named values of later passes stay, and so does everything a derivative needs."""
    primal = parser.parse_model(
        HEAD + f"g (float[3] x, float[4,3] xs, float[3,4] xt) => (float[3] y, float[3,4] t) {{ {SCAN} }}"
    )
    feeds = {"x": FEEDS["x"], "xs": XS, "xt": XS.T.copy(), "adj_y": FEEDS["x"], "adj_t": XS.T.copy()}
    want = evaluate(run_pipeline(primal, "reverse"), feeds, 0)
    got = evaluate(run_pipeline(primal, "dce,reverse,dce"), feeds, 0)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6)
