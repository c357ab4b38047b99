"""Errors of passes: one message that says what, where, why and what to do."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from small import model

from onnxad_passes import NotDifferentiable, UnsupportedOperator, forward, gradient, reverse
from onnxad_passes.report import report_derivative

ACME = """g (float[2] x, float[2] z) => (float[2] y) {
  a = com.acme.Warp(x)
  b = com.acme.Weft(a)
  c = Neg(b)
  y = Add(c, z)
}"""


def acme(text=ACME, untyped=("a", "b"), shape=(2,)):
    proto = model(text)
    proto.opset_import.append(helper.make_opsetid("com.acme", 1))
    for name in untyped:
        proto.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    proto.graph.node[0].name = "first/one"
    return proto


@pytest.mark.parametrize("f", [forward, reverse])
def test_every_node_in_the_way_is_named_once(f):
    with pytest.raises(UnsupportedOperator) as e:
        f(acme(), layout="single")
    text = str(e.value)
    assert [n.op_type for n in e.value.nodes] == ["Warp", "Weft"]
    assert 'com.acme.Warp "first/one" (%a = com.acme.Warp(%x)) in graph "g"' in text
    assert text.count("Weft") == 2 and "rule" in text


@pytest.mark.parametrize("f", [forward, reverse])
def test_what_is_not_in_the_way_is_no_matter(f):
    f(acme(), ["z"], layout="single")
    f(
        acme(ACME.replace("=> (float[2] y)", "=> (float[2] b, float[2] y)").replace("Add(c, z)", "Exp(z)")),
        None,
        ["y"],
        layout="single",
    )


def test_inside_regions():
    text = """g (float[2] x, bool p) => (float[2] y) {
      q = Neg(x)
      y = If (p) < then_branch = t () => (float[2] u) { a = com.acme.Warp(q) u = Neg(a) },
                   else_branch = e () => (float[2] v) { v = Neg(q) } > }"""
    for f in (forward, reverse):
        with pytest.raises(UnsupportedOperator, match=r"com\.acme\.Warp"):
            f(acme(text, ()), layout="single")


def test_an_unknown_type_is_no_silent_zero():
    """What an unknown operator returns may be floating: nothing says that it is not."""
    with pytest.raises(UnsupportedOperator, match=r"com\.acme\.Warp"):
        reverse(acme(untyped=()), layout="single")


def test_gradients_through_gaps_raise_too():
    text = "g (float[2] x) => (float l) { a = com.acme.Warp(x) l = ReduceSum<keepdims = 0>(a) }"
    with pytest.raises(UnsupportedOperator):
        gradient(acme(text, ("a",)))


def test_operands_without_a_derivative_name_themselves():
    proto = model("""g (float[1,1,2,2] x, float[4] s) => (float[a,b,c,d] y) { y = Resize<mode = "linear">(x, , s) }""")
    with pytest.raises(NotDifferentiable, match="scales"):
        reverse(proto, ["s"], layout="single")


def test_the_report_does_not_raise():
    from onnxad_ir.proto import from_proto

    m = from_proto(acme())
    report = report_derivative(m)
    assert not report.ok
    assert [(e.operator, e.why, len(e.nodes)) for e in report.missing] == [
        ("com.acme.Warp", "no rule", 1),
        ("com.acme.Weft", "no rule", 1),
    ]
    assert {e.operator for e in report.differentiated} == {"Add", "Neg"}
    assert report_derivative(m, ["z"]).ok
    assert report_derivative(m, ["z"]).total == 4


def test_the_report_tells_zeros_from_refusals():
    from onnxad_ir.proto import from_proto
    from onnxad_passes import run_pipeline

    proto = model(
        """g (float[3] x, float[3] u, float[3] v) => (float[3] y) {
          a = Floor(x) c = Greater(u, x) w = Where(c, a, u) s = Shape(x) t = ConstantOfShape(s) y =
            Add(w, t) }"""
    )
    m = from_proto(run_pipeline(proto, "fold-shapes"))
    report = report_derivative(m)
    assert report.ok and report.unreached == ("x", "v")
    assert [e.operator for e in report.zero if "Floor" in e.operator] == ["Floor"]
    assert {e.operator for e in report.differentiated} == {"Add", "Where"}
    assert "identically zero, as no output depends on it differentiably: x, v" in str(report)
