"""Function inlining: the model computes the same without its functions."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from onnxad_ir.diagnostics import ModelError
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.verify import verify
from onnxad_passes import reverse, run_pipeline
from onnxad_passes.inline_functions import InlineFunctions

X = np.array([0.5, -1.5, 2.0], np.float32)
HEAD = '<ir_version: 10, opset_import: ["" : 18, "f" : 1]>\n'


def run(proto, feeds=None):
    feeds = {"x": X} if feeds is None else feeds
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def inline(text):
    """Inline a model given as text or proto; checks names, validity and (in ONNX Runtime) the results."""
    proto = parser.parse_model(text) if isinstance(text, str) else text
    out = run_pipeline(proto, [InlineFunctions()])
    assert not out.functions
    assert [v.name for v in out.graph.output] == [v.name for v in proto.graph.output]
    assert [v.name for v in out.graph.input] == [v.name for v in proto.graph.input]
    onnx.checker.check_model(out, full_check=True)
    for got, want in zip(run(out), run(proto), strict=True):
        np.testing.assert_array_equal(got, want)
    return out


def ops(proto):
    return [n.op_type for n in proto.graph.node]


def test_nested_calls_in_result_position():
    out = inline(
        HEAD
        + """g (float[3] x) => (float[3] y) { y = f.outer(x) }
        <domain: "f", opset_import: ["" : 18, "f" : 1]> outer (a) => (b) { b = f.middle(a) }
        <domain: "f", opset_import: ["" : 18, "f" : 1]> middle (a) => (b) { b = f.inner(a) }
        <domain: "f", opset_import: ["" : 18]> inner (a) => (b) { b = Exp(a) }"""
    )
    assert ops(out) == ["Exp"]


def test_several_calls_share_no_names():
    out = inline(
        HEAD
        + """g (float[3] x) => (float[3] y) { t = f.scale(x) u = f.scale(t) y = f.scale(u) }
        <domain: "f", opset_import: ["" : 18]> scale (a) => (b) {
          two = Constant<value = float {2.0}>()
          t = Mul(a, two)
          b = Tanh(t)
        }"""
    )
    assert ops(out) == ["Mul", "Tanh"] * 3


def test_results_that_are_operands_constants_or_the_same():
    inline(
        HEAD
        + """g (float[3] x) => (float[3] y, float[3] z, float[3] t, float[1] k, float[3] u, float[1] l) {
          y, z, t, k = f.many(x)
          u, w, v, l = f.many(t)
        }
        <domain: "f", opset_import: ["" : 18]> many (a) => (b, c, d, k) {
          b = Exp(a) c = Identity(a) d = Identity(b) k = Constant<value = float[1] {3.0}>()
        }"""
    )


def test_one_result_twice():
    proto = parser.parse_model(
        HEAD
        + """g (float[3] x) => (float[3] y, float[3] z) { y, z = f.twin(x) }
        <domain: "f", opset_import: ["" : 18]> twin (a) => (b, c) { b = Exp(a) c = Neg(b) }"""
    )
    model = from_proto(proto)
    (f,) = model.functions.values()
    f.body.set_outputs([f.body.outputs[0]] * 2)
    InlineFunctions().run(model)
    verify(model)
    y, z = run(to_proto(model))
    np.testing.assert_array_equal(y, z)
    np.testing.assert_allclose(y, np.exp(X), rtol=1e-6)


def test_attribute_references_and_defaults():
    out = inline(
        HEAD
        + """g (float[3] x) => (float[3] y, float[3] z) { y = f.leak<slope = 0.25>(x) z = f.leak(x) }
        <domain: "f", opset_import: ["" : 18]> leak <slope: float = 0.5> (a) => (b) {
          b = LeakyRelu<alpha: float = @slope>(a)
        }"""
    )
    assert [n.attribute[0].f for n in out.graph.node] == [0.25, 0.5]


def test_attribute_without_a_value_is_dropped():
    out = inline(
        HEAD
        + """g (float[3] x) => (float[3] y) { y = f.leak(x) }
        <domain: "f", opset_import: ["" : 18]> leak <slope> (a) => (b) {
          b = LeakyRelu<alpha: float = @slope>(a)
        }"""
    )
    assert not out.graph.node[0].attribute


def test_attribute_references_through_nested_calls_and_regions():
    out = inline(
        HEAD
        + """g (float[3] x) => (float[3] y) { y = f.outer<s = 0.125>(x) }
        <domain: "f", opset_import: ["" : 18, "f" : 1]> outer <s> (a) => (b) {
          zero = Constant<value_int = 0>()
          c = Gather(a, zero)
          d = Constant<value_float = 0.0>()
          p = Greater(c, d)
          b = If (p) <
            then_branch = t () => (u) { u = f.inner<q: float = @s>(a) },
            else_branch = e () => (v) { v = LeakyRelu<alpha: float = @s>(a) }
          >
        }
        <domain: "f", opset_import: ["" : 18]> inner <q> (a) => (b) { b = LeakyRelu<alpha: float = @q>(a) }"""
    )
    alphas = [
        a.f
        for n in out.graph.node
        if n.op_type == "If"
        for g in n.attribute
        for m in g.g.node
        if m.op_type == "LeakyRelu"
        for a in m.attribute
    ]
    assert alphas == [0.125, 0.125]


def test_calls_inside_regions_capture_outer_values():
    inline(
        HEAD
        + """g (float[3] x) => (float[3] y) {
          w = Exp(x)
          s = ReduceSum<keepdims = 0>(x)
          z = Constant<value_float = 0.0>()
          p = Greater(s, z)
          y = If (p) <
            then_branch = t () => (float[3] u) { k = f.add(x, w) u = f.add(k, w) },
            else_branch = e () => (float[3] v) { v = f.add(w, w) }
          >
        }
        <domain: "f", opset_import: ["" : 18]> add (a, b) => (c) {
          half = Constant<value = float {0.5}>()
          t = Mul(a, half)
          c = Add(t, b)
        }"""
    )


def test_function_with_a_loop():
    inline(
        HEAD
        + """g (float[3] x) => (float[3] y) { y = f.power<n = 3>(x) }
        <domain: "f", opset_import: ["" : 18]> power <n> (a) => (b) {
          trips = Constant<value_int: int = @n>()
          true = Constant<value = bool {1}>()
          b = Loop (trips, true, a) <
            body = step (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) { c2 = Identity(c) s2 =
              Mul(s, a) }
          >
        }"""
    )


def test_omitted_operands_stay_omitted():
    out = inline(
        HEAD
        + """g (float[3] x) => (float[3] y, float[3] z) {
          hi = Constant<value = float {1.0}>()
          y = f.clamp(x, , hi)
          z = f.clamp(x)
        }
        <domain: "f", opset_import: ["" : 18]> clamp (a, lo, hi) => (b) { b = Clip(a, lo, hi) }"""
    )
    assert [list(n.input)[1:2] for n in out.graph.node if n.op_type == "Clip"] == [[""], []]


def test_overloads():
    f = TensorProto.FLOAT
    fns = [
        helper.make_function(
            "f", "act", ["a"], ["b"], [helper.make_node(op, ["a"], ["b"])], [helper.make_opsetid("", 18)]
        )
        for op in ("Exp", "Neg")
    ]
    fns[1].overload = "neg"
    nodes = [
        helper.make_node("act", ["x"], ["t"], domain="f"),
        helper.make_node("act", ["t"], ["y"], domain="f"),
    ]
    nodes[1].overload = "neg"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", f, [3])], [helper.make_tensor_value_info("y", f, [3])]
    )
    model = helper.make_model(
        graph,
        functions=fns,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("f", 1)],
        ir_version=10,
    )
    out = run_pipeline(model, [InlineFunctions()])
    assert ops(out) == ["Exp", "Neg"]


def test_functions_that_nobody_calls_are_dropped():
    out = inline(
        HEAD
        + """g (float[3] x) => (float[3] y) { y = Neg(x) }
        <domain: "f", opset_import: ["" : 7]> idle (a) => (b) { b = Upsample<scales = [2.0]>(a) }"""
    )
    assert ops(out) == ["Neg"]


def test_a_function_of_an_older_opset_is_upgraded():
    proto = parser.parse_model(
        HEAD
        + """g (float[3] x) => (float[3] y, float[1] s) { t = f.old(x) y = Mul(t, x) s = ReduceSum(y) }
        <domain: "f", opset_import: ["" : 11]> old (a) => (b) {
          m = ReduceSum<axes = [0], keepdims = 1>(a)
          b = Sub(a, m)
        }"""
    )
    out = run_pipeline(proto, [InlineFunctions()])
    onnx.checker.check_model(out, full_check=True)
    y, s = run(out)
    np.testing.assert_allclose(y, (X - X.sum()) * X, rtol=1e-6)
    np.testing.assert_allclose(s, [((X - X.sum()) * X).sum()], rtol=1e-6)


def test_a_model_of_an_older_opset_is_upgraded_with_its_function():
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 12, "f" : 1]>\n'
        """g (float[3] x) => (float[1] y) { t = f.new(x) y = ReduceSum<axes = [0]>(t) }
        <domain: "f", opset_import: ["" : 18]> new (a) => (b) {
          axes = Constant<value_ints = [0]>()
          m = ReduceMax(a, axes)
          b = Sub(a, m)
        }"""
    )
    out = run_pipeline(proto, [InlineFunctions()])
    onnx.checker.check_model(out, full_check=True)
    np.testing.assert_allclose(run(out)[0], [(X - X.max()).sum()], rtol=1e-6)


def test_the_newest_of_modern_opsets_is_taken():
    out = run_pipeline(  # ONNX Runtime does not take the model as it is
        parser.parse_model(
            HEAD
            + """g (float[3] x) => (float[3] y) { t = f.new(x) y = Neg(t) }
            <domain: "f", opset_import: ["" : 20]> new (a) => (b) { b = Gelu(a) }"""
        ),
        [InlineFunctions()],
    )
    want = [-v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in X.tolist()]
    np.testing.assert_allclose(run(out)[0], want, rtol=1e-5)
    assert [o.version for o in out.opset_import if o.domain == ""] == [20]


def test_a_domain_that_only_a_function_imports():
    text = (
        HEAD
        + """g (float[3] x) => (float[3] y) { t = f.act(x) y = f.act(t) }
        <domain: "f", opset_import: ["" : 18, "com.microsoft" : 1]> act (a) => (b) { b = com.microsoft.QuickGelu(a) }"""
    )
    proto = parser.parse_model(text)
    out = run_pipeline(proto, [InlineFunctions()])
    assert {o.domain: o.version for o in out.opset_import} == {"": 18, "f": 1, "com.microsoft": 1}
    np.testing.assert_array_equal(run(out)[0], run(proto)[0])
    kept = reverse(proto, layout="single", functions="keep")
    got = run(kept, {"x": X, "adj_y": np.ones(3, np.float32)})[1]
    want = run(reverse(proto, layout="single"), {"x": X, "adj_y": np.ones(3, np.float32)})[1]
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_modern_opsets_between_which_an_operator_has_changed():
    proto = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>\n'
        """g (float[1,4,1] x) => (float[1,4,2] y) { y = f.fourier(x) }
        <domain: "f", opset_import: ["" : 18]> fourier (a) => (b) { b = DFT<axis = 1>(a) }"""
    )
    with pytest.raises(ModelError, match="DFT has changed"):
        run_pipeline(proto, [InlineFunctions()])


def test_recursion():
    proto = parser.parse_model(
        HEAD
        + """g (float[3] x) => (float[3] y) { y = f.a(x) }
        <domain: "f", opset_import: ["" : 18, "f" : 1]> a (x) => (y) { y = f.b(x) }
        <domain: "f", opset_import: ["" : 18, "f" : 1]> b (x) => (y) { y = f.a(x) }"""
    )
    with pytest.raises(ModelError, match=r"f\.a calls itself"):
        run_pipeline(proto, [InlineFunctions()])


def test_a_result_that_nobody_reads():
    inline(
        HEAD
        + """g (float[3] x) => (float[3] y) { , y = f.two(x) }
        <domain: "f", opset_import: ["" : 18]> two (a) => (b, c) { b = Exp(a) c = Neg(a) }""".replace("{ , y", "{ q, y")
    )


def test_values_keep_their_labels():
    proto = parser.parse_model(
        HEAD
        + """g (float[3] x) => (float[3] y) { y = f.two(x) }
        <domain: "f", opset_import: ["" : 18]> two (a) => (c) { b = Exp(a) c = Neg(b) }"""
    )
    proto.graph.node[0].name = "block/7"
    out = inline(proto)
    assert [n.name for n in out.graph.node] == ["block/7", "block/7_1"]


def test_deep_call_chains_are_linear():
    """A function calls the one before twice in a row: 2 ** 10 nodes, each built once."""
    text = HEAD + "g (float[3] x) => (float[3] y) { y = f.f10(x) }\n"
    for i in range(1, 11):
        text += (
            f'<domain: "f", opset_import: ["" : 18, "f" : 1]> f{i} (a) => (c) '
            f"{{ b = f.f{i - 1}(a) c = f.f{i - 1}(b) }}\n"
        )
    text += '<domain: "f", opset_import: ["" : 18]> f0 (a) => (b) { b = Neg(a) }'
    out = run_pipeline(parser.parse_model(text), [InlineFunctions()])
    assert ops(out) == ["Neg"] * 2**10
