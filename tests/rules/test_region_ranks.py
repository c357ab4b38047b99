"""Loops and branches around tensors whose rank or shape only the run tells."""

import numpy as np
import pytest
from onnx import parser
from orders import check_model
from support import evaluate

from onnxad_passes import reverse, run_pipeline
from onnxad_rules.ruleset import UnsupportedOperator

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
RNG = np.random.default_rng(5)


def model(text):
    return parser.parse_model(HEAD + text)


def feeds(**shapes):
    return {k: RNG.uniform(-1, 1, s) for k, s in shapes.items()}


#: x is x0 reshaped to a shape of which not even the length is known.
HIDDEN = "double[24] x0, int64[k] s0"
SHAPE = np.array([2, 3, 4])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("back", [0, 1])
def test_scanned_operand_of_unknown_rank(axis, back):
    m = model(
        f"""g ({HIDDEN}, double h) => (double y, double[t] z) {{
          x = Reshape(x0, s0)
          y, z = Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], scan_input_directions = [{back}],
                 body = b (double s, double e) => (double so, double zo) {{
              p = Softmax<axis = 0>(e) q = Mul(p, e) r = ReduceSum<keepdims = 0>(q) t = Mul(r, s) so = Sin(t) zo = Cos(t)
            }}>(h, x)
        }}"""
    )
    del m.graph.node[1].attribute[-1].g.input[1].type.tensor_type.shape.dim[:]
    m.graph.node[1].attribute[-1].g.input[1].type.tensor_type.ClearField("shape")
    check_model(m, {**feeds(x0=24, h=()), "s0": SHAPE})


@pytest.mark.parametrize("kind", ["Scan", "Loop"])
def test_captured_value_of_unknown_rank(kind):
    body = "p = Mul(x, s) q = Softmax<axis = 0>(p) r = ReduceSum<keepdims = 0>(q)"
    body += " u = Mul(q, x) v = ReduceSum<keepdims = 0>(u)"
    if kind == "Scan":
        loop = f"""y, z = Scan<num_scan_inputs = 1, body = b (double s, double e) => (double so, double zo) {{
          {body} w = Mul(v, e) so = Sin(w) zo = Mul(r, v) }}>(h, w3)"""
    else:
        loop = f"""y, z = Loop<body = b (int64 i, bool c, double s) => (bool co, double so, double zo) {{
          co = Identity(c) {body} so = Sin(v) zo = Mul(r, v) }}>(n, yes, h)"""
    m = model(
        f"""g ({HIDDEN}, double h, double[3] w3) => (double y, double[t] z)
        <int64 n = {{3}}, bool yes = {{1}}> {{ x = Reshape(x0, s0) {loop} }}"""
    )
    check_model(m, {**feeds(x0=24, h=(), w3=3), "s0": SHAPE}, inputs=["x0", "h"])


def test_body_that_yields_what_it_reads():
    """The value has a declared rank, what it copies has none."""
    m = model(
        """g (double[3] x0, int64[k] s0, double[2] h) => (double[3] y, double[2,3] z) {
          x = Reshape(x0, s0)
          y, z = Scan<num_scan_inputs = 1, body = b (double[3] s, double e) => (double[3] so, double[3] zo) {
            so = Identity(x) zo = Transpose<perm = [0]>(x) }>(x0, h)
        }"""
    )
    check_model(m, {**feeds(x0=3, h=2), "s0": np.array([3])}, inputs=["x0"])


def test_state_of_unknown_rank_whose_next_one_is_declared():
    m = model(
        """g (double[6] x0, int64[k] s0, double[2] h) => (double[2,3] y) {
          x = Reshape(x0, s0)
          y = Scan<num_scan_inputs = 1, body = b (double[2,3] s, double e) => (double[2,3] so) {
            p = Softmax<axis = 1>(s) q = Mul(p, e) so = Add(q, s) }>(x, h)
        }"""
    )
    m.graph.node[1].attribute[-1].g.input[0].type.tensor_type.ClearField("shape")
    check_model(m, {**feeds(x0=6, h=2), "s0": np.array([2, 3])})


@pytest.mark.parametrize("taken", [0, 1])
def test_branches_in_a_loop_keep_values_of_symbolic_shapes(taken):
    """What one branch keeps has a counterpart in the other, whose shape is read off what is there already."""
    m = model(
        f"""g (double[n] x, double[m,1] w, int64 k) => (double[n] y) 
        <bool yes = {{1}}, int64 t = {{{taken}}}, int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] far = {{99}}> {{
          y = Loop<body = b (int64 i, bool c, double[n] s) => (bool co, double[n] so) {{
            co = Identity(c)
            d = Equal(i, t)
            r = If(d) <then_branch = a () => (double u) {{ p = Mul(s, w) o = Softmax<axis = 0>(p) q = Mul(o, w)
                         f = Softmax<axis = 1>(q) u = ReduceSum<keepdims = 0>(f) }},
                       else_branch = e () => (double v) {{ l = Cos(s) v = ReduceSum<keepdims = 0>(l) }}>
            h = Slice(x, one, far, zero)
            l2 = Mul(h, r)
            z = ReduceSum<keepdims = 0>(l2)
            so = Mul(z, s)
          }}>(k, yes, x)
        }}"""
    )
    check_model(m, {**feeds(x=4, w=(3, 1)), "k": np.array(2)}, order=1)


def test_sequence_in_a_loop_next_to_an_outer_adjoint():
    """What the inner adjoint computes of the outer one cannot be moved into the primal."""
    m = model(
        """g (double[n,k] x, double[2,2] h) => (double[n,k] y)
        <int64 t = {2}, int64 last = {-1}, double[3,1] one = {1, 1, 1}> {
          y = Scan<num_scan_inputs = 1, body = b (double[n,k] s, double[2] e) => (double[n,k] so) {
            v = Scan<num_scan_inputs = 1, body = d (double[n,k] p, double f) => (double[n,k] po) {
              q = SequenceConstruct(x)
              r = Loop<body = l (int64 i, bool c, seq(double[a,b]) z) => (bool co, seq(double[a,b]) zo) {
                co = Identity(c) j = Mul(x, f) zo = SequenceInsert(z, j) }>(t, , q)
              w = SequenceAt(r, last)
              g = ReduceSum<keepdims = 0>(w)
              o = Sin(g)
              u = Add(o, one)
              uu = Add(u, p)
              po = Tanh(uu)
            }>(x, e)
            m = ReduceSum<keepdims = 0>(v)
            mm = Sin(m)
            so = Add(mm, s)
          }>(x, h)
        }"""
    )
    check_model(m, feeds(x=(3, 1), h=(2, 2)), order=1)


@pytest.mark.parametrize("every", [1, 2, "auto"])
def test_checkpoints_in_a_loop_that_carries_a_sequence(every):
    m = model(
        """g (double[2,3] x, int64 k) => (double[n,3] y) <bool yes = {1}, int64 last = {-1}> {
          q = SequenceConstruct(x)
          r = Loop<body = l (int64 j, bool d, seq(double[f,g]) z) => (bool do, seq(double[f,g]) zo) {
            do = Identity(d) a = SequenceAt(z, last) w = Sin(a) b = Mul(w, x) zo = SequenceInsert(z, b) }>(k, yes, q)
          y = ConcatFromSequence<axis = 0>(r)
        }"""
    )
    given = {**feeds(x=(2, 3)), "k": np.array(4)}
    adj_y = RNG.standard_normal((10, 3))
    adjs = [reverse(m, layout="single", prefix="adj_", checkpoint=c) for c in (None, every)]
    one, other = (evaluate(a, {**given, "adj_y": adj_y}, 0)["adj_x"] for a in adjs)
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_several_directions_of_a_state_that_grows():
    """The cotangent of the initial state has its shape, not that of the final one."""
    m = model(
        """g (double[6] x0, int64[r] s0, int64 k) => (double[m,2] y) <bool yes = {1}> {
          x1 = Reshape(x0, s0)
          x = Log(x1)
          y = Loop<body = b (int64 i, bool c, double[a,2] s) => (bool co, double[e,2] so) {
            co = Identity(c) so = Concat<axis = 0>(s, s) }>(k, yes, x)
        }"""
    )
    given = {"x0": RNG.uniform(1, 2, 6), "s0": np.array([3, 2]), "k": np.array(1)}
    ct = RNG.standard_normal((2, 6, 2))
    adj = reverse(m, layout="leading", prefix="adj_")
    for level in (0, 99):
        got = evaluate(adj, {**given, "adj_y": ct}, level)["adj_x0"]
        np.testing.assert_allclose(got, (ct[:, :3] + ct[:, 3:]).reshape(2, 6) / given["x0"], rtol=1e-12)


def test_checkpoints_need_the_ranks_of_all_that_is_scanned():
    m = model(
        f"""g ({HIDDEN}, double[4] h, double u) => (double y) {{
          x = Reshape(x0, s0)
          y = Scan<num_scan_inputs = 2, body = b (double s, double e, double[t] f) => (double so) {{
            z = ReduceSum<keepdims = 0>(f) a = Mul(z, e) v = Add(a, s) so = Sin(v) }}>(u, h, x)
        }}"""
    )
    with pytest.raises(UnsupportedOperator, match=r"rank of .* is unknown"):
        reverse(m, layout="single", checkpoint=2)


def test_scan_around_a_shape_that_changes():
    """A Scan cannot stack it: it is computed again."""
    m = model(
        """g (double[n] x, double s, int64[3,1] ends) => (double y) <int64[1] zero = {0}> {
          y = Scan<num_scan_inputs = 1, body = b (double t, int64[1] e) => (double to) {
            p = Slice(x, zero, e, zero) a = Mul(p, t) q = Softmax<axis = 0>(a) r = Mul(q, p)
            u = ReduceSum<keepdims = 0>(r) to = Sin(u) }>(s, ends)
        }"""
    )
    check_model(m, {**feeds(x=4, s=()), "ends": np.array([[2], [4], [3]])}, inputs=["x", "s"])


def test_what_has_one_shape_that_nobody_tells_is_kept():
    m = model(
        """g (double[n,2] x, double[m,2] w, double[3,k,2] xs) => (double[n,2] y) {
          y = Scan<num_scan_inputs = 1, body = b (double[n,2] s, double[k,2] e) => (double[n,2] so) {
            a = Mul(w, e) q = Softmax<axis = 0>(a) r = Mul(q, q) u = ReduceSum<keepdims = 0>(r) so = Mul(s, u) }>(x, xs)
        }"""
    )
    _, adj = check_model(m, feeds(x=(4, 2), w=(3, 2), xs=(3, 1, 2)), order=1)
    loops = [n for n in adj.graph.node if n.op_type == "Scan"]
    bodies = [[n.op_type for n in next(a.g for a in s.attribute if a.name == "body").node] for s in loops]
    assert len(loops) == 2 and [b.count("Softmax") for b in bodies] == [1, 0]


NOISE = """g (double[n] x, int64 k, bool c) => (double y) <bool yes = {1}, double one = {1}, int64[1] zero = {0}> {
  y = Loop<body = b (int64 i, bool g, double s) => (bool go, double so) {
    go = Identity(g)
    r = If(c) <then_branch = t () => (double a) { j = Unsqueeze(i, zero) p = Slice(x, j, far, zero) d = DROP
                 e = Mul(d, d) f = Softmax<axis = 0>(e) h = Mul(f, d) a = ReduceSum<keepdims = 0>(h) },
               else_branch = v () => (double o) { o = ReduceSum<keepdims = 0>(x) }>
    so = Add(s, r)
  }>(k, yes, one)
}""".replace("double one", "int64[1] far = {99}, double half = {0.5}, double one")


def test_random_numbers_that_would_have_to_be_drawn_again():
    with pytest.raises(UnsupportedOperator, match="gives other numbers when it runs again"):
        m = run_pipeline(model(NOISE.replace("DROP", "Dropout(p, half, yes)")), "decompose{ops=Dropout}")
        reverse(m, ["x"], layout="single")


@pytest.mark.parametrize("every", [None, 2])
def test_dropout_that_drops_nothing_may_run_again(every):
    m, plain = (model(NOISE.replace("DROP", d)) for d in ("Dropout(p)", "Identity(p)"))
    given = {**feeds(x=4), "k": np.array(3), "c": np.array(True), "adj_y": np.array(1.5)}
    one, other = (evaluate(reverse(a, ["x"], layout="single", checkpoint=every), given, 0) for a in (m, plain))
    np.testing.assert_allclose(one["adj_x"], other["adj_x"], rtol=1e-13)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("back", [0, 1])
def test_scan_that_reads_a_sequence_from_outside(axis, back):
    """The sum of its cotangents is a sequence, which no Scan can carry: a Loop sweeps back."""
    m = model(
        f"""g (double[2,3] x, double[3] w, double h) => (double y, double[t] z) <int64 one = {{1}}> {{
          v = Sin(x) q = SequenceConstruct(w, v)
          y, z = Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], scan_input_directions = [{back}],
                 body = b (double s, double[k] e) => (double so, double zo) {{
              a = SequenceAt(q, one) p = Mul(a, s) r = ReduceSumSquare<keepdims = 0>(p) f = Sin(e)
              u = ReduceSum<keepdims = 0>(f) c = Mul(r, u) so = Cos(c) zo = Mul(u, s) }}>(h, x)
        }}"""
    )
    check_model(m, feeds(x=(2, 3), w=3, h=()), order=1)
