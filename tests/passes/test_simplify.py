"""Identities: the model computes the same with fewer nodes."""

from __future__ import annotations

import numpy as np
import pytest
from small import model, ops, same

from onnxad_passes import run_pipeline

X = np.linspace(-1, 2, 6, dtype=np.float32).reshape(2, 3)
FEEDS = {"x": X, "p": np.array(True)}


@pytest.mark.parametrize(
    "body, left",
    [
        ("zero = Constant<value = float {0.0}>() a = Add(x, zero) y = Exp(a)", ["Exp"]),
        ("one = Constant<value = float {1.0}>() a = Mul(one, x) b = Div(a, one) y = Exp(b)", ["Exp"]),
        ("a = Neg(x) b = Neg(a) y = Exp(b)", ["Exp"]),
        ("a = Identity(x) b = Identity(a) y = Exp(b)", ["Exp"]),
        ("a = Transpose<perm = [1, 0]>(x) b = Transpose<perm = [1, 0]>(a) y = Exp(b)", ["Exp"]),
        ("a = Cast<to = 1>(x) y = Exp(a)", ["Exp"]),
        ("s = Shape(x) a = Reshape(x, s) b = Expand(a, s) y = Exp(b)", ["Exp"]),
        ("a = Sum(x) b = Concat<axis = 1>(a) y = Exp(b)", ["Exp"]),
    ],
)
def test_identities(body, left):
    out = same(f"g (float[2,3] x) => (float[2,3] y) {{ {body} }}", "simplify", FEEDS)
    assert ops(out) == left


@pytest.mark.parametrize(
    "body",
    [
        # broadcasting makes the result larger than the operand
        "zero = Constant<value = float[2,1] {0.0, 0.0}>() r = Constant<value_ints = [0]>() h = "
        "ReduceSum(x, r) "
        "a = Add(h, zero) y = Exp(a)",
        "one = Constant<value = float[2,3] {1.0, 1.0, 1.0, 1.0, 1.0, 1.0}>() r = Constant<value_ints = "
        "[0]>() "
        "h = ReduceSum(x, r) a = Mul(one, h) y = Exp(a)",
        # not the same number everywhere
        "n = Constant<value = float[3] {1.0, 1.0, 2.0}>() a = Mul(x, n) y = Exp(a)",
        "a = Transpose<perm = [1, 0]>(x) b = Transpose<perm = [0, 1]>(a) c = Transpose(b) y = Exp(c)",
        # a round trip through integers loses digits
        "a = Cast<to = 7>(x) b = Cast<to = 1>(a) y = Exp(b)",
    ],
)
def test_what_only_looks_like_an_identity(body):
    same(f"g (float[2,3] x) => (float[2,3] y) {{ {body} }}", "simplify", FEEDS)


def test_zero_times_something_is_not_zero():
    out = same(
        """g (float[2,3] x) => (float[2,3] y) {
          zero = Constant<value = float {0.0}>() h = Reciprocal(zero) a = Mul(x, zero) b = Mul(a, h) y
            = Neg(b) }""",
        "simplify",
        FEEDS,
    )
    assert "Mul" in ops(out)


def test_inside_regions():
    out = same(
        """g (float[2,3] x, bool p) => (float[2,3] y) {
          y = If (p) < then_branch = t () => (float[2,3] u) { a = Neg(x) b = Neg(a) u = Exp(b) },
                       else_branch = e () => (float[2,3] v) { v = Neg(x) } > }""",
        "simplify",
        FEEDS,
    )
    then = next(a.g for a in out.graph.node[0].attribute if a.name == "then_branch")
    assert [n.op_type for n in then.node] == ["Exp"]


def test_a_number_that_is_differentiated_is_not_used():
    """x + w with w = 0 is not x where the derivative with respect to w is asked for."""
    proto = model("g (float[2,3] x) => (float[2,3] y) <float w = {0.0}> { a = Add(x, w) y = Exp(a) }")
    out = run_pipeline(proto, "simplify,reverse{inputs=w}")
    assert "adj_w" in [v.name for v in out.graph.output]
    from onnxad_ir.diagnostics import UsageError

    used = run_pipeline(proto, "simplify")
    with pytest.raises(UsageError, match="earlier pass used its number"):
        run_pipeline(used, "reverse{inputs=w}")


def test_no_negation_of_unsigned_integers():
    """0 - u is no Neg(u): Neg takes no unsigned integers."""
    text = "g (uint32[2] u) => (uint32[2] y) { z = Constant<value = uint32 {0}>() a = Sub(z, u) y = BitwiseNot(a) }"
    out = same(text, "simplify", {"u": np.array([1, 2], np.uint32)})
    assert ops(out)[-2:] == ["Sub", "BitwiseNot"]


def test_a_reshape_takes_zero_extents_from_its_own_operand():
    """Without allowzero a zero at run time means "as the operand": of two Reshapes the first cannot be left out."""
    text = """g (float[4,N] x, float[N,4] like) => (float[A,B] y) {
        first = Constant<value_ints = [-1, 2]>()
        b = Reshape(x, first) t = Shape(like) c = Reshape(b, t) y = Exp(c)
    }"""
    for n in (0, 3):
        feeds = {"x": np.ones((4, n), np.float32), "like": np.ones((n, 4), np.float32)}
        same(text, "simplify", feeds)
