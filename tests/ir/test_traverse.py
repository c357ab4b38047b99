"""Walking a graph."""

from __future__ import annotations

import networkx as nx
from onnx import parser

from onnxad_ir.proto import from_proto
from onnxad_ir.traverse import to_networkx


def test_the_networkx_view_has_an_edge_for_each_operand_and_capture():
    model = from_proto(
        parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
        g (float[2] x, bool p) => (float[2] y) {
          a = Neg(x)
          b = Exp(x)
          c = If (p) < then_branch = t () => (float[2] u) { n = Neg(a) u = Add(n, x) },
                       else_branch = e () => (float[2] v) { v = Identity(a) } >
          y = Add(c, b) }""")
    )
    g = to_networkx(model.graph)
    assert set(g) == set(model.graph.nodes)
    edges = {(s.op_type, t.op_type, v.name) for s, t, v in g.edges(data="value")}
    assert edges == {("Neg", "If", "a"), ("If", "Add", "c"), ("Exp", "Add", "b")}
    neg, exp, branch, add = model.graph.nodes
    assert nx.ancestors(g, add) == {neg, exp, branch}
    assert {g.nodes[n]["op_type"] for n in g} == {"Neg", "Exp", "If", "Add"}
