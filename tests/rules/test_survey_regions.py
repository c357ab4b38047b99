"""Singular places whose guard is on the other side of the border of an If, Scan or Loop: finite and right.

Every idiom is two stages, from {a} (and {b}, the input) to {o}: the first is singular or a gate, the second its guard or
an infinite slope. Each stage stands in the graph or in a region.
"""

import numpy as np
import onnx
import pytest
from support import evaluate, steps

from onnxad_ir.proto import from_proto
from onnxad_passes import forward, reverse
from onnxad_rules.survey import DROPPED, STEEP, WILD, Survey

X = np.array([0.0, 4.0, -1.0, 0.25])
ABOVE = X > 0
SAFE = np.where(ABOVE, X, 1)
GUARD = "{o}c = Greater({b}, zero) {o} = Where({o}c, {a}, {b})"
LOG = np.where(ABOVE, 1 / SAFE, 1), np.where(ABOVE, -1 / SAFE**2, 0)
ROOT = 0.5 * SAFE**-0.5, np.where(ABOVE, -0.25 * SAFE**-1.5, 0)

#: Two stages, and the first and second derivative of what they compute.
IDIOMS = {
    "log": ("{o} = Log({a})", GUARD, *LOG),
    "sqrt": ("{o} = Sqrt({a})", GUARD, np.where(ABOVE, ROOT[0], 1), ROOT[1]),
    "reciprocal": (
        "{o} = Reciprocal({a})",
        GUARD,
        np.where(ABOVE, -1 / SAFE**2, 1),
        np.where(ABOVE, 2 / SAFE**3, 0),
    ),
    "undefined": (
        "{o} = Log({a})",
        "{o}n = IsNaN({a}) {o}i = IsInf({a}) {o}c = Or({o}n, {o}i) {o} = Where({o}c, {b}, {a})",
        *LOG,
    ),
    "sign": (
        "{o}m = Abs({a}) {o} = Div({a}, {o}m)",
        "{o}m = Abs({b}) {o}c = Equal({o}m, zero) {o}w = Where({o}c, zero, {a}) {o} = Mul({o}w, {b})",
        np.sign(X),
        0 * X,
    ),
    "overflow": (
        "{o}k = Mul({a}, big) {o} = Exp({o}k)",
        "{o}c = Greater({b}, zero) {o}s = Sin({b}) {o} = Where({o}c, {o}s, {a})",
        np.where(ABOVE, np.cos(X), np.where(X == 0, 1e4, 0)),
        np.where(ABOVE, -np.sin(X), np.where(X == 0, 1e8, 0)),
    ),
    "gate": ("{o} = Relu({a})", "{o} = Sqrt({a})", np.where(ABOVE, ROOT[0], 0), ROOT[1]),
}

V = "double[4]"


def plain(i, stage, a, b):
    return stage.format(a=a, b=b, o=f"r{i}")


def branch(i, stage, a, b):
    inner = stage.format(a=a, b=b, o="o")
    return (
        f"r{i} = If(p) <then_branch = t () => ({V} o) {{ {inner} }}, else_branch = e () => ({V} n) {{ n = Neg({b}) }}>"
    )


def scan_slices(i, stage, a, b):
    inner = stage.format(a="a", b="b", o="o")
    return f"r{i} = Scan<num_scan_inputs = 2, body = f (double a, double b) => (double o) {{ {inner} }}>({a}, {b})"


def scan_states(i, stage, a, b):
    inner = stage.format(a="a", b="b", o="o")
    return f"""r{i}, q{i} = Scan<num_scan_inputs = 1, body = f ({V} a, {V} b, double u) => ({V} o, {V} b1) {{
        {inner} b1 = Identity(b) }}>({a}, {b}, zero)"""


def scan_captures(i, stage, a, b):
    inner = stage.format(a=a, b=b, o="o")
    return f"""s{i} = Scan<num_scan_inputs = 1, body = f (double u) => ({V} o) {{ {inner} }}>(zero)
        r{i} = Reshape(s{i}, flat)"""


def loop_state(i, stage, a, b):
    inner = stage.format(a="a", b=b, o="o")
    return f"""r{i} = Loop<body = f (int64 t, bool g, {V} a) => (bool g1, {V} o) {{ g1 = Identity(g) {inner} }}>
        (one, yes, {a})"""


def loop_stack(i, stage, a, b):
    inner = stage.format(a=a, b=b, o="o")
    return f"""s{i} = Loop<body = f (int64 t, bool g) => (bool g1, {V} o) {{ g1 = Identity(g) {inner} }}>(one, yes)
        r{i} = Reshape(s{i}, flat)"""


def nested(i, stage, a, b):
    """A branch in a Loop in a Scan that hand a state on."""
    inner = stage.format(a="a", b=b, o="o")
    inner = f"v = If(p) <then_branch = t () => ({V} o) {{ {inner} }}, else_branch = e () => ({V} n) {{ n = Neg(a) }}>"
    inner = f"""l = Loop<body = f (int64 t, bool g, {V} a) => (bool g1, {V} v) {{ g1 = Identity(g) {inner} }}>
        (one, yes, a0)"""
    return f"r{i} = Scan<num_scan_inputs = 1, body = s ({V} a0, double u) => ({V} l) {{ {inner} }}>({a}, zero)"


PLACES = [branch, scan_slices, scan_states, scan_captures, loop_state, loop_stack, nested]
APART = [*((p, plain) for p in PLACES), *((plain, p) for p in PLACES), (nested, branch), (loop_state, scan_slices)]


def model(idiom, first, second):
    one, two = IDIOMS[idiom][:2]
    body = first(1, one, "x", "x") + " " + second(2, two, "r1", "x") + " y = Identity(r2)"
    consts = "double[1] zero = {0.0}, double big = {1e4}, int64 one = {1}, bool yes = {1}, int64[1] flat = {4}"
    if scan_slices in (first, second):
        consts = consts.replace("double[1] zero", "double zero")
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> m ({V} x, bool p) => ({V} y) <{consts}> {{ {body} }}'
    )


@pytest.mark.parametrize("idiom", IDIOMS)
@pytest.mark.parametrize("places", APART, ids=lambda p: "-".join(f.__name__ for f in p))
def test_a_guard_across_a_border(idiom, places):
    m = model(idiom, *places)
    slope = IDIOMS[idiom][2]
    ones, feeds = np.ones_like(X), {"x": X, "p": np.array(True)}
    adj, fwd = (d(m, ["x"], layout="single") for d in (reverse, forward))
    for level in (0, 99):
        np.testing.assert_allclose(evaluate(adj, {**feeds, "adj_y": ones}, level)["adj_x"], slope, 1e-9)
        np.testing.assert_allclose(evaluate(fwd, {**feeds, "fwd_x": ones}, level)["fwd_y"], slope, 1e-9)


@pytest.mark.parametrize("idiom", IDIOMS)
@pytest.mark.parametrize("places", [(loop_state, plain), (plain, branch)], ids=["loop", "branch"])
def test_order_two(idiom, places):
    m = model(idiom, *places)
    ones, feeds = np.ones_like(X), {"x": X, "p": np.array(True)}
    feeds |= {"adj_y": ones, "fwd_x": ones}
    adj = reverse(m, ["x"], layout="single")
    fwd = forward(m, ["x"], ["y"], layout="single")
    for first, result in ((adj, "adj_x"), (fwd, "fwd_y")):
        seeds = {"t_x": ones, f"a_{result}": ones}
        second = forward(first, ["x"], [result], prefix="t_", layout="single")
        np.testing.assert_allclose(evaluate(second, {**feeds, **seeds}, 99)[f"t_{result}"], IDIOMS[idiom][3], 1e-9)
        second = reverse(first, ["x"], [result], prefix="a_", layout="single")
        np.testing.assert_allclose(evaluate(second, {**feeds, **seeds}, 99)["a_x"], IDIOMS[idiom][3], 1e-9)


def facts(text):
    """What is known of the nodes of a graph and its regions, by operator."""
    m = from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]> {text}'))
    survey = Survey(m.graph.nodes)
    return {n.op_type: survey.of(n) for n in m.graph.walk()}


LATER = """m (double[4] x, double[4] k) => (double[4] y) <int64 n = {{3}}, bool yes = {{1}}> {{
  s, t = Loop<body = f (int64 i, bool g, double[4] a, double[4] b) => (bool g1, double[4] a1, double[4] b1) {{
    g1 = Identity(g) {first} {second} }}>(n, yes, x, k)
  y = Tanh(s) }}"""


def test_from_iteration_to_iteration():
    """A root that the selection of the next iteration drops."""
    found = facts(LATER.format(first="b1 = Sqrt(a)", second="c = Greater(k, x) a1 = Where(c, b, k)"))
    assert found["Sqrt"] & DROPPED and found["Where"] & WILD
    found = facts(LATER.format(first="b1 = Relu(a)", second="a1 = Sqrt(b)"))
    assert found["Relu"] & STEEP
    found = facts(LATER.format(first="b1 = Relu(a)", second="e = Tanh(b) q = Sqrt(e) a1 = Tanh(q)"))
    assert not found["Relu"] & STEEP


def test_what_a_border_does_not_cross():
    """Facts belong to the values that they are about, not to everything in a loop."""
    found = facts(LATER.format(first="b1 = Softmax(b)", second="e = Exp(a) h = Sin(e) a1 = Tanh(h)"))
    assert not found["Exp"] & DROPPED and not found["Tanh"] & DROPPED and not found["Softmax"] & WILD


def test_what_a_branch_reads_may_be_dropped():
    found = facts("""m (double[4] x, bool p) => (double[4] y) {
      s = Sqrt(x) t = Log(x)
      z = If(p) <then_branch = t () => (double[4] o) { o = Sin(s) }, else_branch = e () => (double[4] n) { n = Neg(x) }>
      y = Mul(t, z) }""")
    assert found["Sqrt"] & DROPPED and not found["Log"] & DROPPED
    found = facts("""m (double[4] x, bool p) => (double[4] y) {
      s = Sqrt(x)
      y = If(p) <then_branch = t () => (double[4] o) { o = Sin(s) }, else_branch = e () => (double[4] s) {}> }""")
    assert not found["Sqrt"] & DROPPED  # both branches read it


def test_work_is_linear_in_nested_loops():
    """A chain of states through loops three deep: every value is reached once for every fact."""

    def nest(n):
        states = [f"a{i}" for i in range(n)]
        text = "\n".join(f"c{i} = Sqrt(a{(i + 1) % n})" for i in range(n))
        results = [f"c{i}" for i in range(n)]
        for depth in range(3):
            ins, outs = (", ".join(f"double[4] {v}" for v in names) for names in (states, results))
            args = [f"v{depth}_{i}" for i in range(n)] if depth < 2 else ["x"] * n
            results = [f"w{depth}_{i}" for i in range(n)]
            text = (
                f"{', '.join(results)} = Loop<body = f (int64 i{depth}, bool g{depth}, {ins}) => (bool h{depth}, {outs}) {{ "
                f"h{depth} = Identity(g{depth}) {text} }}>(n, yes, {', '.join(args)})"
            )
            states = args
        text += " y = Softmax(" + results[0] + ")"
        m = from_proto(
            onnx.parser.parse_model(
                f'<ir_version: 10, opset_import: ["" : 18]> m (double[4] x) => (double[4] y) '
                f"<int64 n = {{3}}, bool yes = {{1}}> {{ {text} }}"
            )
        )

        def facts():
            survey = Survey(m.graph.nodes)
            assert all(survey.of(node) & DROPPED for node in m.graph.walk() if node.op_type == "Sqrt")

        return steps(facts) / n

    small, large = nest(50), nest(400)
    assert large < 1.1 * small
