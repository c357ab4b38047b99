"""If, Scan and Loop: both modes, every composition of them, against finite differences."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser
from orders import check_model, close
from support import evaluate, steps

from onnxad_passes import forward, reverse

RNG = np.random.default_rng(7)
HEAD = '<ir_version: 8, opset_import: ["": 18]>\n'


def normal(*shape):
    return RNG.standard_normal(shape)


def model(text):
    return parser.parse_model(HEAD + text)


def all_nodes(graph):
    for n in graph.node:
        yield n
        for a in n.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                yield from all_nodes(a.g)


BRANCHES = """g (bool c, double[2] h, double[3,2] w) => (double[2] y, double[2] u) {
  ax = Constant<value = int64[1] {0}>()
  y0 = If(c) <
    then_branch = t() => (double[2] a) { a0 = Tanh(h) a1 = Mul(a0, h) a = Mul(a1, a0) },
    else_branch = e() => (double[2] b) { b0 = ReduceSum<keepdims = 0>(w, ax) b = Mul(b0, h) }>
  y = Mul(y0, h)
  u = Tanh(y)
}"""


@pytest.mark.parametrize("condition", [True, False])
def test_if(condition):
    check_model(model(BRANCHES), {"c": np.array(condition), "h": normal(2), "w": normal(3, 2)})


def test_only_the_taken_branch_computes_a_derivative():
    _, adj = check_model(model(BRANCHES), {"c": np.array(True), "h": normal(2), "w": normal(3, 2)}, order=1)
    outside = [n.op_type for n in adj.graph.node]
    assert outside.count("If") == 2
    assert "Expand" not in outside  # the adjoint of the sum belongs to its branch


@pytest.mark.parametrize("condition", [True, False])
def test_if_whose_other_branch_is_constant_or_passes_a_value_on(condition):
    m = model("""g (bool c, double[2] x, double[2] k) => (double[2] y, double[2] z) {
      y, z = If(c) <
        then_branch = t() => (double[2] a, double[2] b) { a = Identity(x) b = Mul(x, x) },
        else_branch = e() => (double[2] d, double[2] f) { d = Identity(k) f = Constant<value = double[2] {1., 2.}>() }>
    }""")
    check_model(m, {"c": np.array(condition), "x": normal(2), "k": normal(2)})
    fwd = forward(m, ["x"], layout="single")
    got = evaluate(fwd, {"c": np.array(False), "x": normal(2), "k": normal(2), "fwd_x": normal(2)})
    close(got["fwd_y"], np.zeros(2), 0, "a branch without x")


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_nested_if_with_branches_of_different_shape(first, second):
    m = model("""g (bool c, bool d, double[3] x) => (double[N] y) {
      lo = Constant<value = int64[1] {0}>()
      hi = Constant<value = int64[1] {2}>()
      y = If(c) <
        then_branch = t() => (double[P] a) {
          s = If(d) <then_branch = tt() => (double[Q] p) { p0 = Slice(x, lo, hi) p = Mul(p0, p0) },
                     else_branch = te() => (double[R] q) { q = Tanh(x) }>
          a = Mul(s, s)
        },
        else_branch = e() => (double[1] b) { b = ReduceSumSquare<keepdims = 1>(x) }>
    }""")
    check_model(m, {"c": np.array(first), "d": np.array(second), "x": normal(3)})


SCAN = """g (double[2] h, double[T,2] x, double[2,2] w) => (double[2] y, double[T,2] ys) {
  y, ys = Scan<num_scan_inputs = 1, body = b (double[2] s, double[2] xi) => (double[2] so, double[2] yo) {
    a = MatMul(s, w) c = Add(a, xi) so = Tanh(c) yo = Mul(so, xi) }>(h, x)
}"""


def test_scan():
    check_model(model(SCAN), {"h": normal(2), "x": normal(3, 2), "w": normal(2, 2)}, levels=(0, 1, 2, 99))


def test_scan_with_axes_directions_and_several_states():
    m = model("""g (double[2] h, double[1] g0, double[2,T] x, double[T,3] z, double[2,2] w)
        => (double[2] y, double[1] gy, double[2,T] ys, double[T] q) {
      y, gy, ys, q = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
          scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
          body = b (double[2] s, double[1] u, double[2] xi, double[3] zi)
            => (double[2] so, double[1] uo, double[2] yo, double qo) {
        a = MatMul(s, w) c = Add(a, xi) so = Tanh(c) yo = Mul(so, xi)
        uo = Mul(u, u) e = Mul(zi, u) qo = ReduceSum<keepdims = 0>(e) }>(h, g0, x, z)
    }""")
    feeds = {"h": normal(2), "g0": np.array([0.9]), "x": normal(2, 3), "z": normal(3, 3), "w": normal(2, 2)}
    check_model(m, feeds)


def test_scan_whose_states_change_places():
    m = model("""g (double[2] a0, double[2] b0, double[T,2] x) => (double[2] a, double[2] b) {
      a, b = Scan<num_scan_inputs = 1, body = f (double[2] s, double[2] t, double[2] xi) => (double[2] t1, double[2] s1) {
        t1 = Mul(t, xi) s1 = Identity(s) }>(a0, b0, x)
    }""")
    check_model(m, {"a0": normal(2), "b0": normal(2), "x": normal(4, 2)})


def test_map_without_a_state():
    m = model("""g (double[T,2] x, double[2] k) => (double[T,2] y) {
      y = Scan<num_scan_inputs = 1, body = f (double[2] xi) => (double[2] yi) { e = Exp(xi) yi = Mul(e, k) }>(x)
    }""")
    check_model(m, {"x": normal(4, 2), "k": normal(2)})


def test_linear_body_keeps_nothing():
    m = model("""g (double[2] h, double[T,2] x, double[2,2] w) => (double[2] y) {
      y = Scan<num_scan_inputs = 1, body = b (double[2] s, double[2] xi) => (double[2] so) {
        a = MatMul(s, w) so = Add(a, xi) }>(h, x)
    }""")
    check_model(m, {"h": normal(2), "x": normal(3, 2), "w": normal(2, 2)})
    adj = reverse(m, ["h", "x"], layout="single")
    primal = next(n for n in adj.graph.node if n.op_type == "Scan")
    assert len(primal.output) == 1


def test_cheap_values_are_computed_again():
    m = model("""g (double[2] h, double[T,2] x) => (double[2] y) {
      y = Scan<num_scan_inputs = 1, body = b (double[2] s, double[2] xi) => (double[2] so) {
        e = Exp(xi) f = Tanh(e) so = Mul(s, f) }>(h, x)
    }""")
    check_model(m, {"h": normal(2), "x": normal(3, 2)})
    primal = next(n for n in reverse(m, layout="single").graph.node if n.op_type == "Scan")
    assert len(primal.output) == 2  # the result, and the states


LOOP = """g (int64 m, double[2] h, double[2,2] w) => (double[2] y, double[T,2] ys) {
  c = Constant<value = bool {1}>()
  y, ys = Loop<body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] so, double[2] yo) {
    f = Cast<to = 11>(i) a = MatMul(s, w) d = Add(a, f) so = Tanh(d) yo = Mul(so, s) }>(m, c, h)
}"""


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_loop(trips):
    check_model(model(LOOP), {"m": np.array(trips), "h": normal(2), "w": normal(2, 2)}, levels=(0, 1, 2, 99))


def test_loop_that_ends_on_a_condition():
    m = model("""g (double[2] h, double[2,2] w) => (double[2] y, double[T,2] ys) {
      c = Constant<value = bool {1}>()
      least = Constant<value = double {0.05}>()
      y, ys = Loop<body = b (int64 i, bool ci, double[2] s) => (bool co, double[2] so, double[2] yo) {
        a = MatMul(s, w) so = Tanh(a) n = ReduceSumSquare<keepdims = 0>(so) co = Greater(n, least) yo = Mul(so, s) }>(, c, h)
    }""")
    feeds = {"h": np.array([1.0, -0.5]), "w": np.array([[0.6, 0.3], [-0.2, 0.5]])}
    assert len(evaluate(m, feeds)["ys"]) > 2
    check_model(m, feeds)
    # not even once
    text = onnx.printer.to_text(m).replace("bool {1}", "bool {0}")
    m0 = parser.parse_model(text)
    assert len(evaluate(m0, feeds)["ys"]) == 0
    check_model(m0, feeds)


def test_constant_initial_state_comes_to_depend_on_what_is_differentiated():
    m = model("""g (int64 m, double[2] x) => (double[2] y) {
      c = Constant<value = bool {1}>()
      z = Constant<value = double[2] {0., 0.}>()
      a, y = Loop<body = b (int64 i, bool ci, double[2] s, double[2] t) => (bool ci, double[2] so, double[2] to) {
        so = Add(s, x) to0 = Mul(s, s) to = Add(t, to0) }>(m, c, z, z)
    }""")
    check_model(m, {"m": np.array(3), "x": normal(2)})


NEST = """g (int64 m, double[2] h, double[T,2] x, double[2,2] w) => (double[2] y, double[R,T,2] ys) {
  c = Constant<value = bool {1}>()
  two = Constant<value = int64 {2}>()
  y, ys = Loop<body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] so, double[T,2] yo) {
    r = Mod(i, two) f = Cast<to = 9>(r)
    s1, yo = Scan<num_scan_inputs = 1, body = b2 (double[2] s2, double[2] xi) => (double[2] so2, double[2] yo2) {
      a = MatMul(s2, w) d = Mul(a, s) e = Add(d, xi) so2 = Tanh(e) yo2 = Mul(so2, s) }>(s, x)
    so = If(f) <
      then_branch = t() => (double[2] p) { p = Mul(s1, s) },
      else_branch = e() => (double[2] q) { q0 = MatMul(s1, w) q = Tanh(q0) }>
  }>(m, c, h)
}"""


def test_if_and_scan_in_a_loop():
    check_model(model(NEST), {"m": np.array(3), "h": normal(2), "x": normal(4, 2), "w": normal(2, 2)})


def test_loop_and_if_around_each_other():
    m = model("""g (bool c, int64 m, double[2] x) => (double[2] y) {
      t = Constant<value = bool {1}>()
      y = If(c) <
        then_branch = tb() => (double[2] a) {
          a = Loop<body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] so) {
            so = Scan<num_scan_inputs = 1, body = d (double[2] u, double v) => (double[2] uo) {
              e = Mul(u, v) f = Add(e, x) uo = Tanh(f) }>(s, s) }>(m, t, x)
        },
        else_branch = eb() => (double[2] n) { n = Neg(x) }>
    }""")
    for c in (True, False):
        check_model(m, {"c": np.array(c), "m": np.array(2), "x": normal(2)})


def test_inner_loop_whose_length_changes():
    m = model("""g (int64 m, double[2] h, double[2] w) => (double[2] y) {
      y = Loop<body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] so) {
        t = Loop<body = b2 (int64 j, bool cj, double[2] s2) => (bool cj, double[2] so2) {
          v = Mul(s2, s) z = MatMul(v, w) so2 = Mul(v, z) }>(i, , s)
        so = Sin(t) }>(m, , h)
    }""")
    check_model(m, {"m": np.array(4), "h": normal(2), "w": normal(2)})


def test_loop_around_an_if_around_a_loop():
    m = model("""g (bool c, int64 m, double[2] h, double[2] w) => (double[2] y) {
      y = Loop<body = b (int64 i, bool ci, double[2] s) => (bool ci, double[2] so) {
        u = Mul(s, w)
        so = If(c) <
          then_branch = t() => (double[2] p) {
            p = Loop<body = b2 (int64 j, bool cj, double[2] s2) => (bool cj, double[2] so2) {
              v = Mul(s2, u) z = Mul(v, w) so2 = Tanh(z) }>(m, , s)
          },
          else_branch = e() => (double[2] q) { q = Tanh(u) }>
      }>(m, , h)
    }""")
    for c in (True, False):
        check_model(m, {"c": np.array(c), "m": np.array(2), "h": normal(2), "w": normal(2)})


def test_one_operand_scanned_twice_and_captured():
    m = model("""g (double[3,3] x) => (double[3] y, double[3,3] z) {
      k = Constant<value = double[3] {1., 2., 3.}>()
      y, z = Scan<num_scan_inputs = 2, scan_input_axes = [0, 1], body = b (double[3] s, double[3] a, double[3] c)
          => (double[3] so, double[3] zo) {
        p = Mul(a, c) q = Mul(p, s) e = MatMul(x, q) so = Tanh(e) zo = Identity(so) }>(k, x, x)
    }""")
    check_model(m, {"x": normal(3, 3)})


def test_loop_without_a_state():
    m = model("""g (int64 m, double[2] w) => (double[T,2] ys) {
      t = Constant<value = bool {1}>()
      ys = Loop<body = b (int64 i, bool ci) => (bool ci, double[2] yo) {
        f = Cast<to = 11>(i) a = Mul(w, f) yo = Tanh(a) }>(m, t)
    }""")
    check_model(m, {"m": np.array(3), "w": normal(2)})


def test_unknown_shapes():
    m = model("""g (int64 m, int64[k] shape, double[6] x, double[2,2] w) => (double[p,q] y, double[t,u,v] ys) {
      c = Constant<value = bool {1}>()
      h = Reshape(x, shape)
      y, ys = Loop<body = b (int64 i, bool ci, double[d,e] s) => (bool ci, double[f,g2] so, double[j,l] yo) {
        a = MatMul(s, w) so = Tanh(a) yo = Mul(so, s) }>(m, c, h)
    }""")
    for trips in (1, 2):
        feeds = {"m": np.array(trips), "shape": np.array([3, 2]), "x": normal(6), "w": normal(2, 2)}
        check_model(m, feeds, order=1)


def test_constants_inside_bodies_and_several_results_unused():
    m = model("""g (double[2] h, double[3,2] x) => (double[2] y) {
      y, a, b = Scan<num_scan_inputs = 1, body = f (double[2] s, double[2] xi) => (double[2] so, double[2] p, double[2] q) {
        k = Constant<value = double[2] {0.5, -2.}>() p = Mul(xi, k) so = Mul(s, p) q = Exp(s) }>(h, x)
    }""")
    check_model(m, {"h": normal(2), "x": normal(3, 2)})


def test_names_that_clash():
    m = model("""g (bool c, double[2] adj_x, double[2] if) => (double[2] y) {
      scan = Mul(adj_x, if)
      y = If(c) <
        then_branch = t() => (double[2] mul) { mul = Mul(scan, if) },
        else_branch = e() => (double[2] mul_1) { mul_1 = Tanh(scan) }>
    }""")
    check_model(m, {"c": np.array(True), "adj_x": normal(2), "if": normal(2)})


# --- building is linear


def _vi(name, kind=TensorProto.DOUBLE, shape=(2,)):
    return helper.make_tensor_value_info(name, kind, shape)


def _wrap(nodes, out):
    inputs = [_vi("c", TensorProto.BOOL, ()), _vi("x"), _vi("m", TensorProto.INT64, ())]
    graph = helper.make_graph(nodes, "g", inputs, [_vi(out)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def successive(n):
    nodes, x = [], "x"
    for i in range(n):
        then = helper.make_graph([helper.make_node("Tanh", [x], [f"t{i}"])], f"a{i}", [], [_vi(f"t{i}")])
        other = helper.make_graph([helper.make_node("Mul", [x, x], [f"e{i}"])], f"b{i}", [], [_vi(f"e{i}")])
        nodes.append(helper.make_node("If", ["c"], [f"y{i}"], then_branch=then, else_branch=other))
        x = f"y{i}"
    return _wrap(nodes, x)


def nested(n):
    """Ifs inside of each other; written outside in, since protobuf refuses to copy what is nested so deeply."""
    m = _wrap([], f"y{n - 1}")
    g = m.graph
    for i in reversed(range(n)):
        node = g.node.add(op_type="If", input=["c"], output=[f"i{i}"])
        other = node.attribute.add(name="else_branch", type=onnx.AttributeProto.GRAPH)
        leaf = helper.make_graph([helper.make_node("Mul", ["x", "x"], [f"e{i}"])], f"b{i}", [], [_vi(f"e{i}")])
        other.g.CopyFrom(leaf)
        g.node.add().CopyFrom(helper.make_node("Mul", [f"i{i}", "x"], [f"y{i}"]))
        g = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
        g.name = f"a{i}"
        g.output.add().CopyFrom(_vi(f"y{i - 1}" if i else "t"))
    g.node.add().CopyFrom(helper.make_node("Tanh", ["x"], ["t"]))
    return m


def loops(depth):
    inner, out = [helper.make_node("Tanh", ["s0"], ["o0"])], "o0"
    for i in range(depth):
        body = helper.make_graph(
            inner,
            f"b{i}",
            [_vi(f"i{i}", TensorProto.INT64, ()), _vi(f"c{i}", TensorProto.BOOL, ()), _vi(f"s{i}")],
            [_vi(f"c{i}", TensorProto.BOOL, ()), _vi(out)],
        )
        start = "x" if i == depth - 1 else f"s{i + 1}"
        inner = [helper.make_node("Loop", ["m", "c", start], [f"p{i}"], body=body)]
        inner.append(helper.make_node("Mul", [f"p{i}", "x"], [f"o{i + 1}"]))
        out = f"o{i + 1}"
    return _wrap(inner, out)


def test_loop_nest_five_deep():
    check_model(loops(5), {"c": np.array(True), "x": 0.3 * normal(2), "m": np.array(2)}, order=1)


@pytest.mark.parametrize(("make", "small", "large"), [(successive, 40, 120), (nested, 20, 60)])
def test_work_grows_with_the_model(make, small, large):
    def build(n):
        m = make(n)
        return steps(lambda: (reverse(m, layout="single"), forward(m, layout="single")))

    build(2)  # what is looked up once
    assert build(large) < 1.6 * large / small * build(small)


def test_three_hundred_nested_ifs_can_be_differentiated():
    adj = reverse(nested(300), layout="single")
    assert [o.name for o in adj.graph.output] == ["y299", "adj_x"]


def body_of_many_nodes(n):
    nodes, x = [], "s"
    for i in range(n):
        nodes += [helper.make_node("Mul", [x, "w"], [f"m{i}"]), helper.make_node("Sin", [f"m{i}"], [f"y{i}"])]
        x = f"y{i}"
    body = helper.make_graph(nodes, "b", [_vi("s"), _vi("xi")], [_vi(x)])
    scan = helper.make_node("Scan", ["x", "xs"], ["y"], body=body, num_scan_inputs=1)
    graph = helper.make_graph([scan], "g", [_vi("x"), _vi("xs", shape=(3, 2)), _vi("w")], [_vi("y")])
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return steps(lambda: reverse(m, layout="single"))


def test_large_bodies():
    body_of_many_nodes(5)  # what is looked up once
    assert body_of_many_nodes(300) < 3.2 * body_of_many_nodes(100)
