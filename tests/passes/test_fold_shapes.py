"""Inference and folding: shape arithmetic, constant Ifs; results do not change."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser
from support import steps

from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.verify import verify
from onnxad_passes import reverse, run_pipeline
from onnxad_passes.fold_shapes import FoldShapes

X = np.linspace(-1, 2, 24, dtype=np.float32).reshape(2, 3, 4)
HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'


def run(proto, feeds):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    known = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    return session.run(None, {k: v for k, v in feeds.items() if k in known})


def fold(text, **feeds):
    """Fold a model; checks validity, names and results."""
    proto = parser.parse_model(HEAD + text) if isinstance(text, str) else text
    out = run_pipeline(proto, [FoldShapes()])
    onnx.checker.check_model(out, full_check=True)
    assert [v.name for v in out.graph.output] == [v.name for v in proto.graph.output]
    feeds = {"x": X, **feeds}
    for got, want in zip(run(out, feeds), run(proto, feeds), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_array_equal(got, want)
    assert run_pipeline(out, [FoldShapes()]) == out  # nothing is left to do
    return out


def ops(proto):
    return [n.op_type for n in proto.graph.node]


def constants(proto):
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


FLATTEN_AS_EXPORTED = """g (float[B,3,4] x) => (float[B,12] y) {
    s = Shape(x)
    zero = Constant<value_int = 0>()
    b = Gather(s, zero)
    axes = Constant<value_ints = [0]>()
    b1 = Unsqueeze(b, axes)
    m = Constant<value_ints = [-1]>()
    target = Concat<axis = 0>(b1, m)
    y = Reshape(x, target)
}"""


def test_arithmetic_on_known_extents_is_folded():
    out = fold(FLATTEN_AS_EXPORTED.replace("B,", "2,"))
    assert ops(out) == ["Reshape"]
    (target,) = constants(out).values()
    assert target.tolist() == [2, -1] and target.dtype == np.int64


def test_arithmetic_on_symbols_stays_and_types_are_known():
    out = fold(FLATTEN_AS_EXPORTED)
    assert "Reshape" in ops(out)
    model = from_proto(parser.parse_model(HEAD + FLATTEN_AS_EXPORTED))
    FoldShapes().run(model)
    assert model.graph.outputs[0].shape == ("B", 12)


def test_partly_known_extents():
    out = fold(
        """g (float[B,3,4] x) => (float[B,3,2] y, int64[1] n) {
          s = Shape<start = 1>(x)
          one = Constant<value_ints = [1]>()
          w = Gather(s, one)
          two = Constant<value_ints = [2]>()
          h = Div(w, two)
          zero = Constant<value_ints = [0]>()
          y = Slice(x, zero, h, two)
          n = Identity(h)
        }"""
    )
    assert ops(out).count("Slice") == 1 and "Div" not in ops(out) and "Shape" not in ops(out)
    assert [2] in [c.tolist() for c in constants(out).values()]


def test_casts_comparisons_and_where():
    out = fold(
        """g (float[2,3,4] x) => (float[1,2,3,4] y) {
          s = Shape(x)
          minus = Constant<value_ints = [1, -1, 3, -1]>()
          one = Constant<value_ints = [1]>()
          s4 = Concat<axis = 0>(one, s)
          m = Constant<value_int = -1>()
          p = Equal(minus, m)
          t = Where(p, s4, minus)
          i32 = Cast<to = 6>(t)
          i64 = Cast<to = 7>(i32)
          full = Constant<value_ints = [1, 2, 3, 4]>()
          q = Max(i64, full)
          y = Reshape(x, q)
        }"""
    )
    assert ops(out) == ["Reshape"]


def test_weights_are_never_folded():
    out = fold(
        """g (float[2,3,4] x) => (float[2,3,4] y) <float[4] w = {1, 2, 3, 4}> {
          a = Exp(w)
          two = Constant<value = float {2.0}>()
          b = Mul(a, two)
          y = Mul(x, b)
        }"""
    )
    assert ops(out) == ["Exp", "Mul", "Mul"]


def test_large_integers_are_not_multiplied():
    out = fold(
        """g (float[2,3,4] x) => (int64[100,100] y, float[2,3,4] z) {
          n = Constant<value_ints = [100, 100]>()
          one = ConstantOfShape<value = int64[1] {7}>(n)
          y = Neg(one)
          z = Neg(x)
        }"""
    )
    assert "ConstantOfShape" in ops(out)  # 10,000 elements would only make the model larger


def test_random_integers_stay():
    out = fold(
        """g (float[2,3,4] x) => (float[2,3,4] y, int64[3] s) {
          n = Constant<value_ints = [3]>()
          r = RandomUniform<shape = [3], low = 0.0, high = 9.0, seed = 1.0>()
          i = Cast<to = 7>(r)
          z = Sub(i, i)
          s = Add(z, n)
          y = Neg(x)
        }"""
    )
    assert "RandomUniform" in ops(out)


def test_outputs_keep_their_names():
    fold(
        """g (float[2,3,4] x) => (int64[3] s, int64[1] n, int64[3] t) {
          s = Shape(x)
          zero = Constant<value_ints = [0]>()
          n = Gather(s, zero)
          t = Add(s, n)
        }"""
    )


def test_an_overridable_initializer_is_no_constant():
    proto = parser.parse_model(
        HEAD
        + """g (float[2,3,4] x, int64[2] target) => (float[p,q] y) <int64[2] target = {6, 4}> {
          one = Constant<value_ints = [1]>() t = Mul(target, one) y = Reshape(x, t) }"""
    )
    out = run_pipeline(proto, [FoldShapes()])
    for target in ([6, 4], [3, 8]):
        feeds = {"x": X, "target": np.array(target)}
        assert run(out, feeds)[0].shape == tuple(target)
    assert run(out, {"x": X})[0].shape == (6, 4)


# If on a constant


def branches(condition, then, other, signature="(float[2,3,4] x) => (float[2,3,4] y)", result="y", before="", after=""):
    return f"""g {signature} {{
      c = Constant<value = bool {{{condition}}}>()
      {before}
      {result} = If (c) < then_branch = t () => {then}, else_branch = e () => {other} >
      {after}
    }}"""


@pytest.mark.parametrize("condition, op", [(1, "Exp"), (0, "Neg")])
def test_a_constant_if_is_replaced_by_its_branch(condition, op):
    out = fold(branches(condition, "(float[2,3,4] u) { u = Exp(x) }", "(float[2,3,4] v) { v = Neg(x) }"))
    assert ops(out) == [op]


def test_an_if_whose_condition_is_shape_arithmetic():
    out = fold(
        """g (float[2,3,4] x) => (float[k,3,4] y) {
          s = Shape(x)  zero = Constant<value_int = 0>()  n = Gather(s, zero)
          two = Constant<value_int = 2>()  c = Equal(n, two)
          y = If (c) < then_branch = t () => (float[2,3,4] u) { u = Exp(x) },
                       else_branch = e () => (float[k,3,4] v) { v = Neg(x) } >
        }"""
    )
    assert ops(out) == ["Exp"]


def test_branches_that_yield_outer_values_constants_and_duplicates():
    signature = "(float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z, float[2,3,4] w, float[1] k, float[2,3,4] r)"
    then = """(float[2,3,4] a, float[2,3,4] b, float[2,3,4] d, float[1] f) {
      a = Identity(x)  b = Exp(x)  d = Identity(b)  f = Constant<value = float[1] {3.0}>() }"""
    out = fold(branches(1, then, then, signature, "y, z, w, k", after="r = Add(z, w)"))
    assert "If" not in ops(out)


def test_values_yielded_directly():
    """A branch may yield an outer value, an input of the model or one value twice; the IR allows what
    text does not."""
    model = from_proto(
        parser.parse_model(
            HEAD
            + branches(
                1,
                "(float[2,3,4] a, float[2,3,4] b, float[2,3,4] d) { a = Exp(x) b = Neg(x) d = Neg(x) }",
                "(float[2,3,4] a2, float[2,3,4] b2, float[2,3,4] d2) { a2 = Exp(x) b2 = Neg(x) d2 = Neg(x) }",
                "(float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z, float[2,3,4] w, float[2,3,4] o)",
                "y, z, w",
                before="o = Tanh(x)",
            )
        )
    )
    node = model.graph.nodes[-1]
    region = node.attributes["then_branch"]
    region.set_outputs([model.graph.inputs[0], model.graph.nodes[0].outputs[0], region.nodes[0].outputs[0]])
    FoldShapes().run(model)
    verify(model)
    y, z, w, o = run(to_proto(model), {"x": X})
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(z, o)
    np.testing.assert_allclose(w, np.exp(X), rtol=1e-6)


def test_nested_constant_ifs_with_clashing_names():
    inner = """(float[2,3,4] u{n}) {{
      k = Constant<value = float {{{k}.0}}>()
      p = Constant<value = bool {{{p}}}>()
      m = Mul(x, k)
      u{n} = If (p) < then_branch = tt () => (float[2,3,4] q) {{ h = Constant<value = float {{0.5}}>()
        q = Mul(m, h) }},
                      else_branch = ee () => (float[2,3,4] r) {{ h = Constant<value = float {{0.25}}>()
                        r = Sub(m, h) }} >
    }}"""
    text = """g (float[2,3,4] x) => (float[2,3,4] y, float[2,3,4] z) {
      c = Constant<value = bool {1}>()
      d = Constant<value = bool {0}>()
      y = If (c) < then_branch = a () => %s, else_branch = b () => %s >
      z = If (d) < then_branch = a2 () => %s, else_branch = b2 () => %s >
    }"""
    forms = [inner.format(n=n, k=k, p=p) for n, k, p in ((1, 2, 1), (2, 3, 0), (3, 4, 1), (4, 5, 0))]
    out = fold(text % tuple(forms))
    assert ops(out) == ["Mul", "Mul", "Mul", "Sub"]


def test_ifs_inside_the_regions_of_other_nodes():
    out = fold(
        """g (float[2,3,4] x, bool p) => (float[2,3,4] y) {
          y = If (p) <
            then_branch = t () => (float[2,3,4] u) {
              c = Constant<value = bool {1}>()
              s = Shape(x)
              u = If (c) < then_branch = tt () => (float[2,3,4] q) { q = Reshape(x, s) },
                           else_branch = ee () => (float[2,3,4] r) { r = Neg(x) } >
            },
            else_branch = e () => (float[2,3,4] v) {
              s2 = Shape(x)
              v = Expand(x, s2)
            } >
        }""",
        p=np.array(True),
    )
    assert ops(out) == ["If"]
    then, other = (a.g for a in sorted(out.graph.node[0].attribute, key=lambda a: a.name, reverse=True))
    assert [n.op_type for n in then.node] == ["Reshape"] and [n.op_type for n in other.node] == ["Expand"]


def test_folded_constants_of_two_regions_do_not_clash():
    """Values of equal names in two branches become constants of the main graph."""
    branch = "(float[2,3,4] {o}) {{ s = Shape(x) t = Neg(s) u = Neg(t) {o} = Reshape(x, u) }}"
    out = fold(
        "g (float[2,3,4] x, bool p) => (float[2,3,4] y) { y = If (p) < then_branch = t () => "
        + branch.format(o="a")
        + ", else_branch = e () => "
        + branch.format(o="b")
        + "> }",
        p=np.array(False),
    )
    assert "If" in ops(out)


def test_a_condition_of_one_element():
    proto = parser.parse_model(HEAD + branches(1, "(float[2,3,4] u) { u = Exp(x) }", "(float[2,3,4] v) { v = Neg(x) }"))
    proto.graph.node[0].attribute[0].t.CopyFrom(numpy_helper.from_array(np.array([True])))
    assert ops(fold(proto)) == ["Exp"]


def test_an_if_without_results_in_use_and_sequences():
    out = fold(
        """g (float[2,3,4] x) => (float[2,3,4] y) {
          c = Constant<value = bool {1}>()
          q = If (c) < then_branch = t () => (seq(float[2,3,4]) u) { u = SequenceConstruct(x, x) },
                       else_branch = e () => (seq(float[2,3,4]) v) { v = SequenceConstruct(x) } >
          one = Constant<value_int = 1>()
          y = SequenceAt(q, one)
        }"""
    )
    assert "If" not in ops(out)


def test_work_is_linear():
    small, large = (folded_chain(n) for n in (200, 1000))
    assert large < 5.1 * small


def folded_chain(n):
    """What it takes to fold a chain of so many nodes on shapes."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Neg", [f"s{i}"], [f"s{i + 1}"]) for i in range(n)]
    nodes.append(helper.make_node("Reshape", ["x", f"s{n}"], ["y"]))
    f = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", f, [2, 3, 4])],
        [helper.make_tensor_value_info("y", f, [2, 3, 4])],
    )
    model = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))
    count = steps(FoldShapes().run, model)
    assert len(model.graph.nodes) == 1
    return count


def test_casts_of_constants():
    """Exporters cast every number to the type of its neighbour: what changes nothing goes, integers become floating."""
    out = fold(
        """g (float[2,3,4] x) => (float[2,3,4] y, double d) <float two = {2}, int64 three = {3}, double four = {4}> {
             a = CastLike(two, x) b = Identity(a) c = Mul(x, b) three_cast = Cast<to = 1>(three) e = Add(c, three_cast)
             f = CastLike(four, x) y = Div(e, f) d = Identity(four) }"""
    )
    assert ops(out) == ["Mul", "Add", "CastLike", "Div", "Identity"]
    assert [list(n.input) for n in out.graph.node[:2]] == [["x", "two"], ["c", "three_cast"]]
    assert constants(out)["three_cast"].dtype == np.float32


def test_a_constant_that_is_cast_can_be_differentiated():
    model = parser.parse_model(
        HEAD + "g (float[3] x) => (float[3] y) <float two = {2}> { a = CastLike(two, x) b = Mul(x, a) y = Mul(b, a) }"
    )
    d = reverse(model, ["two", "a"], layout="single")
    x = np.array([1, 2, 4], np.float32)
    got = dict(zip([o.name for o in d.graph.output], run(d, {"x": x, "adj_y": np.ones(3, np.float32)}), strict=True))
    assert got["adj_two"] == got["adj_a"] == 28
    np.testing.assert_array_equal(got["y"], 4 * x)
