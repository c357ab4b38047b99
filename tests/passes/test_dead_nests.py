"""States that circulate through nested loops and that nothing alive reads: gone at every level, and in derivatives."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser
from small import HEAD, same
from support import evaluate, steps

from onnxad_ir.proto import from_proto
from onnxad_ir.verify import verify
from onnxad_passes import forward, reverse
from onnxad_passes.dce import Dce

X = np.array([0.5, -1.5], np.float32)
W = np.array([0.9, -0.4], np.float32)
XS = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
FEEDS = {"x": X, "w": W, "xs": XS, "p": np.array(True)}


def nodes(graph):
    """Every node, at any depth."""
    for n in graph.node:
        yield n
        for a in n.attribute:
            if a.HasField("g"):
                yield from nodes(a.g)


def loop(results, args, states, yields, inside, i):
    ins, outs = (", ".join(f"float[2] {v}" for v in vs.split(", ")) for vs in (states, yields))
    return f"""{results} = Loop <body = l{i} (int64 t{i}, bool g{i}, {ins}) => (bool h{i}, {outs}) {{
      h{i} = Identity(g{i}) {inside} }}>(n, yes, {args})"""


def scan(results, args, states, yields, inside, i):
    ins, outs = (", ".join(f"float[2] {v}" for v in vs.split(", ")) for vs in (states, yields))
    return f"""{results} = Scan <num_scan_inputs = 1, body = s{i} ({ins}, float[2] e{i}) => ({outs}) {{ {inside} }}>
      ({args}, xs)"""


def choice(results, args, states, yields, inside, i):
    outs = ", ".join(f"float[2] {v}" for v in yields.split(", "))
    copies = " ".join(f"{s} = Identity({a})" for s, a in zip(states.split(", "), args.split(", "), strict=True))
    others = " ".join(f"{y}n = Neg({a})" for y, a in zip(yields.split(", "), args.split(", "), strict=True))
    return f"""{results} = If(p) <then_branch = t{i} () => ({outs}) {{ {copies} {inside} }},
      else_branch = f{i} () => ({outs.replace(",", "n,") + "n"}) {{ {others} }}>"""


def nest(*kinds, k="r = Mul(k, c) k1 = Sin(r)", c="m = Mul(c, w) c1 = Tanh(m)"):
    """A nest, outermost first, around a step of a state c, and of a state k that c does not read."""
    text, yields = f"{c} {k}", "c1, k1"
    for i, kind in reversed(list(enumerate(kinds))):
        states = "c, k" if i == len(kinds) - 1 else f"c{i}x, k{i}x"
        args = "x, w" if i == 0 else f"c{i - 1}x, k{i - 1}x"
        results = "y, z" if i == 0 else f"c{i}y, k{i}y"
        text, yields = kind(results, args, states, yields, text, i), results
    return text


def graph(text, outputs="float[2] y"):
    consts = "int64 n = {2}, bool yes = {1}"
    return f"g (float[2] x, float[2] w, float[3,2] xs, bool p) => ({outputs}) <{consts}> {{ {text} }}"


NESTS = [
    (loop, loop),
    (scan, scan),
    (loop, scan),
    (scan, loop),
    (loop, choice),
    (loop, loop, loop),
    (scan, loop, loop),
    (loop, scan, scan),
    (scan, choice, loop),
    (choice, scan, loop),
]


@pytest.mark.parametrize("kinds", NESTS, ids=lambda kinds: "-".join(f.__name__ for f in kinds))
def test_a_dead_state_that_circulates(kinds):
    text = graph(nest(*kinds))
    out = same(text, "dce", FEEDS)
    found = [n.op_type for n in nodes(out.graph)]
    assert "Sin" not in found and found.count("Mul") == 1
    for n in nodes(out.graph):
        wanted = {"Loop": 3, "Scan": 2, "If": 1}.get(n.op_type)
        assert wanted is None or (len(n.input) == wanted and len(n.output) == 1)
    kept = same(graph(nest(*kinds), "float[2] y, float[2] z"), "dce", FEEDS)
    assert "Sin" in [n.op_type for n in nodes(kept.graph)]


@pytest.mark.parametrize("kinds", NESTS[:8], ids=lambda kinds: "-".join(f.__name__ for f in kinds))
@pytest.mark.parametrize("d", [forward, reverse])
def test_a_dead_state_has_no_derivative(d, kinds):
    """The derivative model is that of the model without the state."""
    with_state = parser.parse_model(HEAD + graph(nest(*kinds)))
    one = graph(nest(*kinds, k="k1 = Identity(k)"))  # nothing depends on k
    without = parser.parse_model(HEAD + one)
    a, b = (d(m, ["x", "w"], layout="single") for m in (with_state, without))
    count = [len([n for n in nodes(m.graph) if n.op_type != "Constant"]) for m in (a, b)]
    assert count[0] == count[1]
    seeds = {"fwd_x": W, "fwd_w": X, "adj_y": X}
    wanted = evaluate(b, {**FEEDS, **seeds}, 0)
    for name, value in evaluate(a, {**FEEDS, **seeds}, 0).items():
        np.testing.assert_array_equal(value, wanted[name])


def test_states_that_feed_each_other_in_turn():
    text = """y, a, b = Scan <num_scan_inputs = 1, body = s (float[2] c, float[2] a0, float[2] b0, float[2] e) =>
        (float[2] c9, float[2] b1, float[2] a1) { c9 = Add(c, e)
      a1, b1 = Loop <body = l (int64 t, bool g, float[2] u, float[2] v) => (bool h, float[2] v1, float[2] u1) {
        h = Identity(g) v1 = Exp(v) u1 = Cos(u) }>(n, yes, a0, b0) }>(x, x, w, xs)"""
    found = [n.op_type for n in nodes(same(graph(text), "dce", FEEDS).graph)]
    assert sorted(found) == ["Add", "Scan"]


def test_what_a_condition_reads_is_alive():
    """An inner state that the condition of its loop reads, handed round by an outer one."""
    text = """y, z = Loop <body = l (int64 t, bool g, float[2] a, float[2] b) => (bool g1, float[2] a2, float[2] b2) {
      g1 = Identity(g)
      a2, b2 = Loop <body = m (int64 s, bool h, float[2] c, float[2] d) => (bool h1, float[2] c1, float[2] d1) {
        c1 = Tanh(c) d1 = Sin(d) q = ReduceMax<keepdims = 0>(d) h1 = Less(q, one) }>(n, yes, a, b) }>(n, yes, x, w)"""
    text = f"one = Constant<value_float = 0.5>() {text}"
    out = same(graph(text), "dce", FEEDS)
    assert [len(n.input) for n in nodes(out.graph) if n.op_type == "Loop"] == [4, 4]


def test_scan_inputs_results_and_captures_go_at_every_level():
    text = """big = Exp(w)
    y, q, s = Scan <num_scan_inputs = 3, scan_input_directions = [1, 0, 0], scan_output_directions = [0, 1],
        body = s (float[2] c, float[2] e, float[2] f, float[2] g) => (float[2] c1, float[2] q1, float[2] s1) {
      c1, u, v = Scan <num_scan_inputs = 2, body = t (float[2] d, float k, float l) => (float[2] d1, float u1, float v1) {
        d1 = Mul(d, d) u1 = Exp(k) v1 = Cos(l) }>(c, e, f)
      q1 = Mul(u, big) s1 = Add(v, g) }>(x, xs, xs, xs)"""
    out = same(graph(text, "float[2] y, float[3,2] s"), "dce", FEEDS)
    found = [n.op_type for n in nodes(out.graph)]
    assert "Exp" not in found and sorted(len(n.input) for n in nodes(out.graph) if n.op_type == "Scan") == [2, 3]


def test_once_is_enough_and_linear():
    """A chain of dead states through three loops: the outermost feeds the next by way of the innermost."""

    def took(n):
        states, inner = [f"k{i}" for i in range(n)], [f"s{i} = Sin(k{(i + 1) % n})" for i in range(n)]
        text, yields = " ".join(inner), [f"s{i}" for i in range(n)]
        for depth in range(3):
            args = [f"a{depth}_{i}" for i in range(n)] if depth < 2 else ["w"] * n
            results = [f"r{depth}_{i}" for i in range(n)]
            before, after = ("x", f"y{depth}") if depth == 2 else (f"c{depth + 1}", f"y{depth}")
            yielded = "cs" if depth == 0 else f"y{depth - 1}"
            step = "cs = Tanh(c0) " if depth == 0 else ""
            text = loop(
                ", ".join([after, *results]), ", ".join([before, *args]), ", ".join([f"c{depth}", *states]),
                ", ".join([yielded, *yields]), step + text, depth,
            )  # fmt: skip
            states, yields = args, results
        m = from_proto(parser.parse_model(HEAD + graph(text + " y = Neg(y2)")))
        spent = steps(Dce().run, m)
        verify(m)
        assert sum(1 for _ in m.graph.walk()) == 8 and not Dce().run(m)
        return spent / n

    small, large = (took(n) for n in (30, 240))
    assert large < 1.1 * small


def test_the_derivative_of_a_nest_is_checked():
    m = parser.parse_model(HEAD + graph(nest(scan, loop, loop)))
    onnx.checker.check_model(reverse(m, layout="single"), full_check=True)
