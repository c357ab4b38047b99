"""Type inference of If, Loop, Scan and SequenceMap."""

import onnx
import pytest
from onnx import parser
from support import steps

from onnxad_ir.core import Graph
from onnxad_ir.infer import Inference
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import OptionalType, SequenceType, TensorType, is_anonymous
from onnxad_passes import run_pipeline


def infer(text):
    model = from_proto(parser.parse_model('<ir_version: 8, opset_import: ["": 18]>\n' + text))
    for g in (g for b in model.bodies() for g in b.graphs()):
        for n in g.nodes:
            for v in n.outputs:
                v.type = None
    Inference(model).graph(model.graph)
    return model


def shapes(model):
    return [v.shape for v in model.graph.outputs]


def test_state_that_keeps_its_shape():
    m = infer("""g (int64 m, float[N,3] x) => (float[a,b] y, float[c,d,e] ys) {
      c = Constant<value = bool {1}>()
      y, ys = Loop<body = b (int64 i, bool ci, float[p,q] s) => (bool ci, float[r,t] so, float[u,v] yo) {
        so = Tanh(s) yo = Exp(s) }>(m, c, x)
    }""")
    y, ys = shapes(m)
    assert y == ("N", 3)
    assert ys[1:] == ("N", 3)
    assert is_anonymous(ys[0])


def test_number_of_iterations_is_followed():
    m = infer("""g (float[N,3] x, float[2] h) => (float[T,2] ys) {
      z = Constant<value = int64 {0}>()
      sh = Shape(x)
      n = Gather(sh, z)
      y, ys = Loop<body = b (int64 i, bool ci, float[2] s) => (bool co, float[2] so, float[2] yo) {
        co = Identity(ci) so = Tanh(s) yo = Exp(s) }>(n, , h)
    }""")
    assert shapes(m) == [("N", 2)]


def test_state_that_grows_is_widened_where_it_grows_only():
    m = infer("""g (int64 m, float[2,3] x) => (float[a,b] y, float[c,d,e] ys) {
      c = Constant<value = bool {1}>()
      y, ys = Loop<body = b (int64 i, bool ci, float[p,q] s) => (bool ci, float[r,t] so, float yo) {
        so = Concat<axis = 0>(s, x) yo = ReduceSum<keepdims = 0>(s) }>(m, c, x)
    }""")
    y, ys = shapes(m)
    assert is_anonymous(y[0]) and y[1] == 3
    body = m.graph.nodes[-1].attributes["body"]
    assert body.inputs[2].shape[1] == 3
    inside = {d for v in body.inputs for d in v.shape or ()} | {d for n in body.nodes for d in n.outputs[0].shape}
    assert y[0] not in inside  # what changes from iteration to iteration has no name outside
    assert len(ys) == 1


def test_state_that_changes_rank():
    m = infer("""g (int64 m, float[2] x) => (float y) {
      c = Constant<value = bool {1}>()
      z = Constant<value = int64[1] {0}>()
      y = Loop<body = b (int64 i, bool ci, float[p] s) => (bool ci, float[r,t] so) { so = Unsqueeze(s, z) }>(m, c, x)
    }""")
    assert shapes(m) == [None]


def test_the_counter_is_not_a_number():
    """It starts at a known one: taking it for that would fold the loop away."""
    text = """g (float[4] x) => (float[4] y) {
      m = Constant<value = int64 {3}>()
      k = Constant<value = int64 {0}>()
      n, y = Loop<body = b (int64 i, bool ci, int64 k0, float[4] s) => (bool ci, int64 k1, float[4] so) {
        one = Constant<value = int64 {1}>() k1 = Add(k0, one) z = Constant<value = int64[1] {0}>()
        e = Unsqueeze(k1, z) u = Unsqueeze(i, z) p = Slice(s, u, e) so = Add(s, p) }>(m, , k, x)
    }"""
    m = infer(text)
    body: Graph = m.graph.nodes[-1].attributes["body"]
    assert all(v.content is None for v in body.inputs)
    sliced = next(n for n in body.nodes if n.op_type == "Slice")
    assert is_anonymous(sliced.outputs[0].shape[0])
    proto = run_pipeline(parser.parse_model('<ir_version: 8, opset_import: ["": 18]>\n' + text), "fold-shapes")
    loop = next(n for n in proto.graph.node if n.op_type == "Loop")
    assert "Slice" in {n.op_type for n in loop.attribute[0].g.node}


def test_if_merges_its_branches():
    m = infer("""g (bool c, float[N,3] x, float[2] one) => (float[a,b] y, float[d] z, float w) {
      y, z, w = If(c) <
        then_branch = t() => (float[e,f] p, float[g] q, float r) { p = Tanh(x) q = Exp(one) r = Identity(x) },
        else_branch = u() => (float[h,i] s, float[j] t2, float v) { s = Exp(x) t2 = Concat<axis = 0>(one, one) v = Tanh(one) }>
    }""")
    y, z, w = shapes(m)
    assert y == ("N", 3)
    assert is_anonymous(z[0])
    assert w is None


def test_scan_axes():
    m = infer("""g (float[2] h, float[2,T] x, float[T,3] z) => (float[a] y, float[b,c] ys, float[d] q) {
      y, ys, q = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0], scan_output_axes = [-1, 0],
          body = b (float[e] s, float[f] xi, float[g] zi) => (float[h2] so, float[i] yo, float qo) {
        so = Add(s, xi) yo = Concat<axis = 0>(xi, zi) qo = ReduceSum<keepdims = 0>(zi) }>(h, x, z)
    }""")
    assert shapes(m) == [(2,), (5, "T"), ("T",)]


def test_what_a_body_declares_does_not_leak():
    """A symbol the author wrote inside of a body is another extent in every iteration."""
    m = infer("""g (int64 m, float[N] x) => (float[a] y, float[b,c] ys) {
      c = Constant<value = bool {1}>()
      y, ys = Loop<body = b (int64 i, bool ci, float[N] s) => (bool ci, float[N] so, float[N] yo) {
        so = Concat<axis = 0>(s, s) yo = Identity(s) }>(m, c, x)
    }""")
    y, ys = shapes(m)
    assert y != ("N",) and ys[1] != "N"


def test_elements_of_a_sequence_have_extents_of_their_own():
    m = infer("""g (float[2,3] a, float[5,3] b) => (float[p,q] y) {
      s = SequenceConstruct(a, b)
      u = SequenceMap<body = f (float[n,m] e) => (float[k,l] o) { o = Tanh(e) }>(s)
      i = Constant<value = int64 {0}>()
      j = Constant<value = int64 {1}>()
      v = SequenceAt(u, i)
      w = SequenceAt(u, j)
      y = Concat<axis = 0>(v, w)
    }""")
    v, w = (n.outputs[0].shape for n in m.graph.nodes if n.op_type == "SequenceAt")
    assert v[1] == w[1] == 3
    assert v[0] != w[0]
    assert any(isinstance(n.outputs[0].type, SequenceType) for n in m.graph.nodes)


def nest(depth):
    """Loops inside of each other, each of whose states changes shape."""
    inner = "o0 = Concat<axis = 0>(s0, s0)"
    for i in range(depth):
        inner = (
            f"p{i} = Loop<body = b{i} (int64 i{i}, bool c{i}, float[n{i}] s{i}) => (bool c{i}, float[k{i}] o{i}) "
            f"{{ {inner} }}>(m, c, {'x' if i == depth - 1 else f's{i + 1}'}) "
            f"o{i + 1} = Concat<axis = 0>(p{i}, p{i})"
        )
    return f"g (int64 m, float[2] x) => (float[n] o{depth}) {{ c = Constant<value = bool {{1}}>() {inner} }}"


def test_nests_do_not_take_exponential_time():
    infer(nest(2))  # what is looked up once
    assert steps(infer, nest(16)) < 20 * steps(infer, nest(4))


def test_rank_that_changes_is_unknown_inside_too():
    m = infer("""g (int64 m, float[2] x) => (float y) {
      c = Constant<value = bool {1}>()
      z = Constant<value = int64[1] {0}>()
      y = Loop<body = b (int64 i, bool ci, float[2] s) => (bool ci, float[r,t] so) { so = Unsqueeze(s, z) }>(m, c, x)
    }""")
    assert m.graph.nodes[-1].attributes["body"].inputs[2].shape is None


def test_what_is_declared_of_a_slice_stands_where_the_operand_has_no_rank():
    m = infer("""g (float[2] h, float[6] x0, int64[k] s0) => (float[a] y) {
      x = Reshape(x0, s0)
      y = Scan<num_scan_inputs = 1, body = b (float[e] s, float[2] xi) => (float[h2] so) { so = Add(s, xi) }>(h, x)
    }""")
    assert shapes(m) == [(2,)]


OPTIONAL_STATES = """g (int64 n, bool yes, {a} s) => ({b} y) {{
  y = Loop <body = l (int64 i, bool g, {a} before) => (bool g1, {b} after) {{
    g1 = Identity(g)
    {body}
  }}>(n, yes, s) }}"""


@pytest.mark.parametrize(
    "a, b, body",
    [
        ("optional(seq(float))", "seq(float)", "after = OptionalGetElement(before)"),
        ("seq(float)", "optional(seq(float))", "h = OptionalGetElement(before) after = Optional(h)"),
        ("optional(seq(float))", "optional(seq(float))", "h = OptionalGetElement(before) after = Optional(h)"),
    ],
)
def test_the_final_state_of_a_loop_is_optional_where_its_body_yields_an_optional(a, b, body):
    proto = parser.parse_model('<ir_version: 8, opset_import: ["" : 18]>' + OPTIONAL_STATES.format(a=a, b=b, body=body))
    onnx.checker.check_model(proto, full_check=True)
    m = from_proto(proto)
    Inference(m).graph(m.graph)
    optional = b.startswith("optional")
    (y,), (inner,) = m.graph.outputs, m.graph.nodes[0].attributes["body"].inputs[2:]
    assert isinstance(y.type, OptionalType) == optional
    assert isinstance(inner.type, OptionalType) == a.startswith("optional")
    out = to_proto(m)
    onnx.checker.check_model(out, full_check=True)
    assert str(out.graph.output[0].type).startswith("optional_type") == optional


def test_what_an_optional_state_holds_is_widened():
    """The extent of what the body hands on is another one in every iteration."""
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (int64 n, bool yes, optional(float[2]) s) => (float[K] y) {
      y = Loop <body = l (int64 i, bool g, optional(float[2]) before) => (bool g1, float[M] after) {
        g1 = Identity(g) h = OptionalGetElement(before) after = Concat<axis = 0>(h, h) }>(n, yes, s) }""")
    m = from_proto(proto)
    Inference(m).graph(m.graph)
    (y,) = m.graph.outputs
    assert isinstance(y.type, TensorType) and y.rank == 1 and not isinstance(y.shape[0], int)
