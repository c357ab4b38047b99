"""The report of what a derivative goes through, on what it tells apart; see also test_errors."""

from __future__ import annotations

import pytest
from onnx import helper, parser
from small import model

from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto
from onnxad_passes import NotDifferentiable, reverse, run_pipeline
from onnxad_passes.manager import PassManager
from onnxad_passes.registry import lookup
from onnxad_passes.report import report_derivative
from onnxad_rules import default_rules
from onnxad_rules.kinds import declarations, linear
from onnxad_rules.straight_through import straight_through


def report(text, inputs=None, outputs=None, domains=(), rules=None):
    proto = model(text)
    proto.opset_import.extend(helper.make_opsetid(d, 1) for d in domains)
    return report_derivative(from_proto(run_pipeline(proto, "fold-shapes")), inputs, outputs, rules)


def told(entries):
    return [(e.operator, e.how, e.why, len(e.nodes)) for e in entries]


def test_what_is_missing_inside_regions_is_named_at_any_depth():
    found = report(
        """g (float[2] x, bool p, bool r) => (float[2] y) {
          y = If (p) < then_branch = t () => (float[2] u) {
                         u = If (r) < then_branch = tt () => (float[2] uu) { uu = com.acme.Warp(x) },
                                      else_branch = te () => (float[2] ue) { ue = Neg(x) } > },
                       else_branch = e () => (float[2] v) { w = com.acme.Weft(x) v = Neg(w) } > }""",
        domains=["com.acme"],
    )
    assert told(found.missing) == [
        ("com.acme.Warp", "", "no rule", 1),
        ("com.acme.Weft", "", "no rule (if a derivative goes through it)", 1),
    ]
    assert not found.differentiated


def test_what_no_derivative_goes_through_inside_a_region_is_no_gap():
    found = report(
        """g (float[2] x, bool p) => (float[2] y) {
          y = If (p) < then_branch = t () => (float[2] u) {
                         w = com.acme.Warp(p) c = Cast<to = 9>(w) n = Neg(x) u = Where(c, x, n) },
                       else_branch = e () => (float[2] v) { v = Neg(x) } > }""",
        domains=["com.acme"],
    )
    assert found.ok
    assert told(found.differentiated) == [("If", "control", "", 1)]


def test_an_operand_without_a_derivative_by_convention_is_no_gap():
    found = report("g (float[2] x, float t) => (float[2] y) { s = Cast<to = 1>(t) y = CastLike(x, s) }", ["x", "t"])
    assert found.ok
    assert told(found.zero) == [("CastLike", "", "operand 'target_type' has no derivative by convention", 1)]
    assert found.unreached == ("t",)


def test_an_operand_without_a_declared_derivative_says_why():
    with declarations() as rules:
        linear("Mix", domain="com.acme", input_0=lambda op, n, ct: ct, refuse={"input_1": "it is a knob"})
    found = report(
        "g (float[2] x, float[2] t) => (float[2] y) { a = com.acme.Mix(x, t) y = com.acme.Mix(a, x, t) }",
        domains=["com.acme"],
        rules=default_rules().merge(rules),
    )
    assert not found.ok
    why = ["operand 'input_1': it is a knob", "operand 'input_2': its derivative is not defined"]
    assert told(found.missing) == [("com.acme.Mix", "", why[0], 2), ("com.acme.Mix", "", why[1], 1)]
    assert told(found.differentiated) == [("com.acme.Mix", "linear", "", 2)]


REFUSED = {
    "Resize": """g (float[1,1,2,2] x, float[4] s) => (float[a,b,c,d] y) { y = Resize<mode = "linear">(x, , s) }""",
    "Dropout": """g (float[4] x) => (float[4] y) {
      r = Constant<value = float {0.5}>() t = Constant<value = bool {1}>() y = Dropout(x, r, t) }""",
}


@pytest.mark.parametrize("operator", REFUSED)
def test_what_a_rule_refuses_in_the_making_is_missing(operator):
    proto = model(REFUSED[operator])
    with pytest.raises(NotDifferentiable) as e:
        reverse(proto, layout="single")
    found = report(REFUSED[operator])
    assert not found.ok and not found.differentiated
    assert told(found.missing) == [(operator, "", str(e.value), 1)]


def test_derivatives_go_through_functions_that_are_kept():
    text = """<ir_version: 8, opset_import: ["": 18, "local": 1]>
    g (float[2] x) => (float[2] y) { a = local.f(x) y = Neg(a) }
    <domain: "local", opset_import: ["": 18]>
    f (u) => (v) { w = %s(u) v = Neg(w) }"""
    for inner, missing in (("Exp", []), ("Floor", []), ("com.acme.Warp", [("com.acme.Warp", "", "no rule", 1)])):
        proto = parser.parse_model(text % inner)
        proto.functions[0].opset_import.append(helper.make_opsetid("com.acme", 1))
        m = from_proto(proto)
        for _ in range(2):
            before = print_model(m)
            found = report_derivative(m)
            assert told(found.missing) == missing
            assert found.unreached == (("x",) if inner == "Floor" else ())
            assert print_model(m) == before
            PassManager([lookup("specialize-functions")()]).run(m)  # which a derivative of functions goes by


@pytest.mark.parametrize("count", [8, 11])
def test_of_many_nodes_the_first_few_are_named(count):
    steps = " ".join(f"x{i + 1} = com.acme.Warp(x{i})" for i in range(count))
    text = str(report(f"g (float[2] x0) => (float[2] x{count}) {{ {steps} }}", domains=["com.acme"]))
    assert f"missing: {count}" in text
    assert text.count("com.acme.Warp (") == 8
    assert ("... and 3 more" in text) == (count == 11)


@pytest.mark.parametrize(
    "text, operator",
    [
        ("a = Exp(x) b = Round(a) y = Mul(b, b)", "Round"),
        ("q = QuantizeLinear(x, s) b = DequantizeLinear(q, s) y = Sin(b)", "QuantizeLinear"),
        ("c = Greater(x, s) y = Where(c, s, x)", None),  # the condition costs no derivative of x
        ("c = Greater(x, s) m = Cast<to = 1>(c) y = Sin(m)", "Greater"),
        ("i = ArgMax(x) e = Gather(w, i) y = Sin(e)", "ArgMax"),
        ("n = Shape(x) c = Expand(s, n) y = Add(x, c)", None),  # a form is no step
    ],
)
def test_where_a_derivative_ends(text, operator):
    """Also where what follows would be differentiated, if it did not vary by steps only."""
    head = "g (float[3] x) => (float[N] y) <float s = {0.5}, float[3] w = {1, 2, 3}>"
    m = from_proto(model(head + " { " + text + " }"))
    PassManager([lookup("fold-shapes")()]).run(m)
    found = report_derivative(m)
    assert found.ok and [e.operator for e in found.zero] == ([operator] if operator else [])
    assert found.unreached == (("x",) if operator else ())


def test_the_rules_that_are_used_decide():
    m = from_proto(
        model("""g (float[3] x) => (float[3] y) <float s = {0.5}> {
          a = Round(x) q = QuantizeLinear(a, s) y = DequantizeLinear(q, s) }""")
    )
    PassManager([lookup("fold-shapes")()]).run(m)
    assert [e.operator for e in report_derivative(m).zero] == ["Round"]  # what follows varies by steps already
    found = report_derivative(m, rules=straight_through(["Round", "QuantizeLinear"]))
    assert not found.zero and not found.unreached and len(found.differentiated) == 3
