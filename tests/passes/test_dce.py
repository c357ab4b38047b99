"""What nobody reads goes, and nothing else."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, parser
from small import HEAD, model, ops, same

from onnxad_ir.proto import from_proto
from onnxad_ir.verify import verify
from onnxad_passes.dce import Dce

FEEDS = {"x": np.array([0.5, -1.5, 2.0], np.float32), "p": np.array(True)}


def test_dead_chains_and_constants():
    out = same(
        """g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}, float[3] v = {1, 2, 3}> {
          y = Exp(x) a = Mul(x, w) b = Neg(a) c = Add(b, v) }""",
        "dce",
        FEEDS,
    )
    assert ops(out) == ["Exp"] and not out.graph.initializer


def test_inputs_outputs_and_half_used_nodes_stay():
    out = same(
        """g (float[3] x, float[3] unused) => (float[1] y, float[3] x2) {
          k = Constant<value_ints = [1]>() y, i = TopK(x, k) x2 = Identity(x) }""",
        "dce",
        {**FEEDS, "unused": FEEDS["x"]},
    )
    assert ops(out) == ["TopK", "Identity"]


def test_what_only_a_region_reads_stays():
    out = same(
        """g (float[3] x, bool p) => (float[3] y) {
          a = Exp(x) b = Neg(x)
          y = If (p) < then_branch = t () => (float[3] u) { d = Neg(b) u = Tanh(a) },
                       else_branch = e () => (float[3] v) { v = Neg(x) } > }""",
        "dce",
        FEEDS,
    )
    assert ops(out) == ["Exp", "If"]  # b was read by a dead node of a branch only


def test_dead_nodes_with_regions():
    out = same(
        """g (float[3] x, bool p) => (float[3] y) {
          a = Exp(x)
          q = If (p) < then_branch = t () => (float[3] u) { u = Tanh(a) },
                       else_branch = e () => (float[3] v) { v = Neg(a) } >
          y = Neg(x) }""",
        "dce",
        FEEDS,
    )
    assert ops(out) == ["Neg"]


def test_functions():
    text = """g (float[3] x) => (float[3] y) { y = f.one(x) }
    <domain: "f", opset_import: ["" : 18, "f" : 1]> one (a) => (b) { b = f.two(a) dead = Exp(a) }
    <domain: "f", opset_import: ["" : 18]> two (a) => (b) { b = Neg(a) }
    <domain: "f", opset_import: ["" : 18, "f" : 1]> three (a) => (b) { b = f.four(a) }
    <domain: "f", opset_import: ["" : 18]> four (a) => (b) { b = Neg(a) }"""
    proto = parser.parse_model(HEAD.replace("]>", ', "f" : 1]>') + text)
    out = same(proto, "dce", FEEDS)
    assert [f.name for f in out.functions] == ["one", "two"]
    assert [n.op_type for n in out.functions[0].node] == ["two"]


def test_once_is_enough():
    m = from_proto(
        model(
            """g (float[3] x, bool p) => (float[3] y) {
              a = Exp(x) b = Neg(a) c = Neg(b)
              q = If (p) < then_branch = t () => (float[3] u) { k = Neg(c) u = Tanh(x) },
                           else_branch = e () => (float[3] v) { v = Neg(x) } >
              y = Neg(q) }"""
        )
    )
    assert Dce().run(m)
    verify(m)
    assert [n.op_type for n in m.graph.nodes] == ["If", "Neg"]
    assert not Dce().run(m)


def test_long_chains():
    n = 50_000
    nodes = [helper.make_node("Neg", [f"a{i - 1}" if i else "x"], [f"a{i}"]) for i in range(n)]
    nodes.append(helper.make_node("Exp", ["x"], ["y"]))
    f = onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(k, f, [3]) for k in "xy")
    m = from_proto(helper.make_model(helper.make_graph(nodes, "g", [x], [y])))
    assert Dce().run(m) and len(m.graph.nodes) == 1
