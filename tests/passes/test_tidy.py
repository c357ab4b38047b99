"""What derivative passes leave behind: no copy, no duplicate, nothing dead."""

from __future__ import annotations

import numpy as np
import onnx
from small import model, ops, run

from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.verify import verify
from onnxad_passes.tidy import drop_copies, tidy

X = np.array([0.5, -1.5, 2.0], np.float32)
FEEDS = {"x": X, "p": np.array(True)}


def tidied(text, f=tidy):
    proto = model(text)
    m = from_proto(proto)
    f(m)
    verify(m)
    out = to_proto(m)
    onnx.checker.check_model(out, full_check=True)
    assert [v.name for v in out.graph.output] == [v.name for v in proto.graph.output]
    assert [v.type for v in out.graph.output] == [v.type for v in proto.graph.output]
    for got, want in zip(run(out, FEEDS), run(proto, FEEDS), strict=True):
        np.testing.assert_array_equal(got, want)
    return out


def test_copies_inside():
    out = tidied(
        "g (float[3] x) => (float[3] y) { a = Identity(x) b = Identity(a) c = Exp(b) d = Identity(c) y = Neg(d) }"
    )
    assert ops(out) == ["Exp", "Neg"]


def test_a_copy_that_is_an_output():
    out = tidied("g (float[3] x) => (float[3] y, float[3] z) { a = Exp(x) y = Identity(a) z = Neg(a) }")
    assert ops(out) == ["Exp", "Neg"]


def test_copies_that_must_stay():
    text = """g (float[3] x) => (float[3] a, float[3] y, float[3] z, float[3] k, float[3] q) {
      a = Exp(x) y = Identity(a) z = Identity(x) k = Identity(w) b = Identity(a) q = Identity(b) }"""
    out = tidied(text.replace(" {", " <float[3] w = {1, 2, 3}> {", 1))
    assert ops(out) == ["Exp", "Identity", "Identity", "Identity", "Identity"]


def test_copies_in_regions():
    out = tidied(
        """g (float[3] x, bool p) => (float[3] y) {
          y = If (p) < then_branch = t () => (float[3] u) { a = Identity(x) b = Exp(a) u = Identity(b) },
                       else_branch = e () => (float[3] v) { v = Identity(x) } > }"""
    )
    then, other = (a.g for a in sorted(out.graph.node[0].attribute, key=lambda a: a.name, reverse=True))
    assert [n.op_type for n in then.node] == ["Exp"]
    assert [n.op_type for n in other.node] == ["Identity"]  # ONNX wants an output to be computed in its branch


def test_loop_bodies_that_pass_values_through():
    tidied(
        """g (float[3] x) => (float[3] y, float[3] z) {
          n = Constant<value_int = 3>() t = Constant<value = bool {1}>()
          y, z = Loop(n, t, x, x) < body = b (int64 i, bool c, float[3] s, float[3] r)
            => (bool c2, float[3] s2, float[3] r2) { c2 = Identity(c) s2 = Add(s, r) r2 = Identity(r) } > }"""
    )


def test_honest():
    m = from_proto(model("g (float[3] x) => (float[3] y) { a = Identity(x) y = Exp(a) }"))
    assert drop_copies(m.graph) and not drop_copies(m.graph)
