"""onnx_ir.Model to IR and back."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from onnx import helper, parser

from onnxad_ir.core import Graph, Model, Node
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.onnx_ir import from_onnx_ir, to_onnx_ir
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto
from onnxad_ir.types import DataType, MapType, TensorType
from onnxad_ir.verify import verify

TEXT = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
g (float[N,2] x, bool b, float[2] w) => (float[N,2] y) <float[2] w = {3, 4}, float[2] k = {1, 2}> {
  c = Constant<value_float = 2.0>()
  h = l.f<alpha = 2.0>(x)
  i = If(b) <
    then_branch = t () => (float[N,2] p) { p = Mul(h, w) },
    else_branch = e () => (float[N,2] q) { q = Mul(h, k) }>
  j = Add(i, c)
  y = ReduceSum<keepdims = 1, noop_with_empty_axes = 1>(j)
}
<domain: "l", opset_import: ["" : 21]> f <alpha, beta: float = 0.5> (a) => (b) {
  d = Constant<value_floats = [1.0, 5.0]>() e = Elu<alpha: float = @alpha>(a) b = Mul(e, d) }"""
X = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 4.0]], np.float32)


def run(proto, **inputs):
    onnx.checker.check_model(proto)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def test_both_ways():
    proto = parser.parse_model(TEXT)
    source = onnx_ir.from_proto(proto)
    m = from_onnx_ir(source)
    verify(m)
    assert [v.name for v in m.graph.defaults] == ["w"] and [v.name for v in m.graph.constants] == ["k", "c"]
    assert m.functions["l", "f", ""].defaults == {"beta": 0.5}
    back = onnx_ir.to_proto(to_onnx_ir(m))
    for b in (True, False):
        inputs = {"x": X, "b": np.array(b)}
        np.testing.assert_array_equal(run(back, **inputs), run(proto, **inputs))
    again = from_onnx_ir(onnx_ir.from_proto(back))
    for n in (*m.graph.walk(), *again.graph.walk()):
        n.name = ""  # onnx_ir names nodes that had no name.
    for model in (m, again):
        for n in model.functions["l", "f", ""].body.nodes:
            n.name = ""
    assert print_model(again) == print_model(m)


def test_tensors_are_shared():
    source = onnx_ir.from_proto(parser.parse_model(TEXT))
    m = from_onnx_ir(source)
    k = source.graph.initializers["k"].const_value
    assert m.graph.constants[0].const is k
    assert to_onnx_ir(m).graph.initializers["k"].const_value is k


def test_the_source_is_left_as_it_was():
    source = onnx_ir.from_proto(parser.parse_model(TEXT))
    before = onnx_ir.to_proto(source).SerializeToString()
    from_onnx_ir(source)
    assert onnx_ir.to_proto(source).SerializeToString() == before


def test_notes_and_quantization():
    proto = parser.parse_model(TEXT)
    proto.graph.input[0].doc_string = "an input"
    q = proto.graph.quantization_annotation.add(tensor_name="h")
    q.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="k")
    m = from_onnx_ir(onnx_ir.from_proto(proto))
    assert print_model(m).count("note") == 2 and 'quantization("SCALE_TENSOR": %k)' in print_model(m)
    assert onnx_ir.to_proto(to_onnx_ir(m)).graph.quantization_annotation == proto.graph.quantization_annotation


def test_outer_values_yielded_by_a_branch_are_copied():
    m = from_proto(parser.parse_model(TEXT))
    m.graph.nodes[1].regions[0].set_outputs([m.graph.nodes[0].outputs[0]])
    proto = onnx_ir.to_proto(to_onnx_ir(m))
    h = np.where(X > 0, X, 2 * (np.exp(X) - 1)) * [1, 5]
    np.testing.assert_allclose(run(proto, x=X, b=np.array(True)), h + 2, rtol=1e-6)


def test_nodes_out_of_order_are_refused():
    nodes = [helper.make_node("Neg", ["h"], ["y"]), helper.make_node("Abs", ["x"], ["h"])]
    infos = [helper.make_tensor_value_info(n, 1, [2]) for n in "xy"]
    source = onnx_ir.from_proto(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:])))
    with pytest.raises(ModelError, match=r'"h".*not defined'):
        from_onnx_ir(source)


def test_types_that_onnx_ir_lacks_are_refused():
    g = Graph("g")
    t = MapType(DataType.INT64, TensorType(DataType.FLOAT))
    node = g.append(Node("Op", [g.add_input("x", t)], outputs=["y"], domain="my"))
    g.set_outputs(node.outputs)
    with pytest.raises(ModelError, match="no type"):
        to_onnx_ir(Model(g, {"my": 1}))
