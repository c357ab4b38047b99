"""Equal expressions are computed once, and only equal ones."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper
from small import model, ops, same
from support import session, steps

from onnxad_ir.proto import from_proto
from onnxad_ir.verify import verify
from onnxad_passes import run_pipeline
from onnxad_passes.cse import Cse

X = np.array([0.5, -1.5, 2.0], np.float32)
FEEDS = {"x": X, "p": np.array(True)}


def test_equal_chains():
    out = same(
        "g (float[3] x) => (float[3] y) { a = Exp(x) b = Neg(a) c = Exp(x) d = Neg(c) y = Mul(b, d) }",
        "cse",
        FEEDS,
    )
    assert ops(out) == ["Exp", "Neg", "Mul"]


def test_attributes_tell_expressions_apart():
    out = same(
        """g (float[3] x) => (float[3] y) {
          a = LeakyRelu<alpha = 0.5>(x) b = LeakyRelu<alpha = 0.25>(x) c = LeakyRelu<alpha = 0.5>(x)
          d = LeakyRelu<alpha = 0.0>(x) e = LeakyRelu<alpha = -0.0>(x) f = LeakyRelu(x)
          y = Sum(a, b, c, d, e, f) }""",
        "cse",
        FEEDS,
    )
    assert ops(out) == ["LeakyRelu"] * 5 + ["Sum"]


def test_operand_order_matters():
    out = same(
        "g (float[3] x) => (float[3] y) { e = Exp(x) a = Sub(x, e) b = Sub(e, x) y = Mul(a, b) }",
        "cse",
        FEEDS,
    )
    assert ops(out).count("Sub") == 2


def test_tensor_attributes_are_compared():
    out = same(
        """g (float[3] x) => (float[3] y) {
          s = Shape(x)
          a = ConstantOfShape<value = float[1] {2.0}>(s)
          b = ConstantOfShape<value = float[1] {2.0}>(s)
          c = ConstantOfShape<value = float[1] {3.0}>(s)
          y = Sum(a, b, c) }""",
        "cse",
        FEEDS,
    )
    assert ops(out) == ["Shape", "ConstantOfShape", "ConstantOfShape", "Sum"]


def test_constants():
    out = same(
        """g (float[3] x) => (float[1] y) <float[3] w = {1, 2, 3}, float[3] v = {1, 2, 3}> {
          i = Constant<value_ints = [0]>()  j = Constant<value_ints = [0]>()  k = Constant<value_int = 0>()
          a = ReduceSum(x, i)  b = ReduceSum(x, j)
          s = Add(w, v)  t = ReduceSum(s, j)  u = Gather(t, k)  u1 = Unsqueeze(u, i)
          y = Sum(a, b, u1) }""",
        "cse",
        FEEDS,
    )
    assert ops(out).count("ReduceSum") == 2
    names = {t.name for t in out.graph.initializer}
    assert {"w", "v", "i", "k"} <= names and "j" not in names  # weights stay: they may be asked for by name


def test_an_output_takes_its_name_along():
    out = same(
        "g (float[3] x) => (float[3] y, float[3] z) { a = Exp(x) b = Neg(a) y = Exp(x) z = Mul(y, b) }",
        "cse",
        FEEDS,
    )
    assert ops(out) == ["Exp", "Neg", "Mul"]


def test_two_equal_outputs_stay_two():
    same("g (float[3] x) => (float[3] y, float[3] z) { y = Exp(x) z = Exp(x) }", "cse", FEEDS)


def test_nodes_of_several_results():
    out = same(
        """g (float[3] x) => (float[1] y, float[1] z, int64[1] i) {
          k = Constant<value_ints = [1]>()
          a, ai = TopK(x, k)  b, bi = TopK(x, k)  z, i = TopK(x, k)
          c = Add(a, b)  d = Cast<to = 1>(bi)  y = Add(c, d) }""",
        "cse",
        FEEDS,
    )
    assert ops(out).count("TopK") == 1


def test_fewer_results_first():
    out = same(
        """g (float[1,1,4,4] q) => (float[1,1,3,3] y, int64[1,1,3,3] i) {
          a = MaxPool<kernel_shape = [2, 2]>(q)  b, i = MaxPool<kernel_shape = [2, 2]>(q)  y = Add(a, b) }""",
        "cse",
        {"q": np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)},
    )
    assert ops(out)[-1] == "Add"


def test_random_operators_and_unknown_ones():
    proto = model(
        """g (float[3] x) => (float[3] y) {
          a = RandomNormalLike(x) b = RandomNormalLike(x) c = Bernoulli(x) d = Bernoulli(x) y = Sum(a,
            b, c, d) }"""
    )
    assert len(run_pipeline(proto, "cse").graph.node) == 5
    proto = model("g (float[3] x) => (float[3] y) { a = com.acme.Noise(x) b = com.acme.Noise(x) y = Add(a, b) }")
    proto.opset_import.append(helper.make_opsetid("com.acme", 1))
    assert len(run_pipeline(proto, "cse").graph.node) == 3


BRANCHES = """g (float[3] x, bool p) => (float[3] y) {
  a = Exp(x)
  y = If (p) <
    then_branch = t () => (float[3] u) { b = Exp(x) c = Neg(x) d = Neg(x) e = Add(c, d) u = Mul(b, e) },
    else_branch = f () => (float[3] v) { v = Exp(x) } >
  __
}"""


def test_regions_use_what_is_outside_and_not_the_reverse():
    out = same(
        BRANCHES.replace("__", "k = Neg(x)").replace("=> (float[3] y)", "=> (float[3] y, float[3] k)"),
        "cse",
        FEEDS,
    )
    assert ops(out) == ["Exp", "If", "Neg"]
    then, other = (a.g for a in sorted(out.graph.node[1].attribute, key=lambda a: a.name, reverse=True))
    assert [n.op_type for n in then.node] == ["Neg", "Add", "Mul"]
    assert [n.op_type for n in other.node] in ([], ["Identity"])
    same(BRANCHES.replace("__", ""), "cse", {**FEEDS, "p": np.array(False)})


def test_use_lists_stay_right():
    m = from_proto(
        model("g (float[3] x) => (float[3] y) { a = Exp(x) b = Exp(x) c = Mul(a, b) d = Mul(b, a) y = Add(c, d) }")
    )
    assert Cse().run(m)
    verify(m)
    assert [n.op_type for n in m.graph.nodes] == ["Exp", "Mul", "Add"]
    assert not Cse().run(m)


def test_many_regions_take_linear_work():
    def build(n):
        nodes = [helper.make_node("Neg", [f"a{i - 1}" if i else "x"], [f"a{i}"]) for i in range(n)]
        f = onnx.TensorProto.FLOAT
        for i in range(n):
            bodies = {
                f"{k}_branch": helper.make_graph(
                    [helper.make_node("Exp", [f"a{i}"], [f"{k}{i}"])],
                    k,
                    [],
                    [helper.make_tensor_value_info(f"{k}{i}", f, [3])],
                )
                for k in ("then", "else")
            }
            nodes.append(helper.make_node("If", ["p"], [f"b{i}"], **bodies))
        graph = helper.make_graph(
            nodes,
            "g",
            [
                helper.make_tensor_value_info("x", f, [3]),
                helper.make_tensor_value_info("p", onnx.TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info(f"b{n - 1}", f, [3])],
        )
        return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))

    Cse().run(build(2))  # what is looked up once
    small, large = (steps(Cse().run, build(n)) for n in (200, 800))
    assert large < 4.2 * small


def test_initializers_of_equal_numbers_and_different_types():
    proto = model("g () => (int64[2] y, int32[2] z) { }")
    for name, t in (("y", np.int64), ("z", np.int32)):
        proto.graph.initializer.append(numpy_helper.from_array(np.array([3, 0], t), f"c{name}"))
        proto.graph.node.append(helper.make_node("Neg", [f"c{name}"], [name]))
    same(proto, "cse", {})


def test_what_a_scan_yields_keeps_its_rank():
    """Of two equal expressions the one in the body is declared: the one around it, of unknown rank, is none to yield."""
    given = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (double[3,2] x, int64[r] s) => (double w, double[3,2] y, double[3,2] z) <double zero = {0}> {
          e = Expand(zero, s) w = ReduceSum<keepdims = 0>(e)
          y, z = Scan<num_scan_inputs = 1, body = b (double[2] v) => (double[2] a, double[2] c) {
            a = Expand(zero, s) c = Sin(v) }>(x)
        }"""
    )
    out = run_pipeline(given, "cse")
    feeds = {"x": np.ones((3, 2)), "s": np.array([2])}
    for level in (0, 99):
        got, want = session(out, level).run(None, feeds), session(given, level).run(None, feeds)
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)
