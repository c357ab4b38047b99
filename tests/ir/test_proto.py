"""ModelProto to IR and back: names, constants, regions, functions, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper, parser

from onnxad_ir.core import AttrRef, EmptyList, Graph, Model, Node, RawAttr, clone_model
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.infer import Inference
from onnxad_ir.onnx_ir import from_onnx_ir, to_onnx_ir
from onnxad_ir.parser import parse_model
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto, function_from_proto, function_to_proto, to_proto
from onnxad_ir.types import DataType, TensorType
from onnxad_ir.verify import verify

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model(text: str, head: str = HEAD) -> onnx.ModelProto:
    proto = parser.parse_model(head + text)
    del proto.graph.value_info[:]  # The parser lists every value, without a type, ...
    for n in (*proto.graph.node, *(n for f in proto.functions for n in f.node)):
        if not n.domain:
            n.ClearField("domain")  # ... and sets fields to their defaults, which no one else does.
    return proto


def run(proto: onnx.ModelProto, **inputs):
    onnx.checker.check_model(proto)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def lifted(proto: onnx.ModelProto) -> Model:
    m = from_proto(proto)
    verify(m)
    return m


X = np.array([1.0, -2.0], np.float32)
XS = np.array([[3.0, 4.0], [5.0, 7.0], [-1.0, 0.5]], np.float32)


# Round trips


def test_a_plain_model_comes_back_as_the_same_bytes():
    proto = model("g (float[N,2] x) => (float[N,2] y) <float[2] w = {1, 2}> { h = Mul(x, w) y = Tanh(h) }")
    proto.producer_name, proto.doc_string = "someone", "a model"
    helper.set_model_props(proto, {"author": "me"})
    proto.graph.doc_string = "a graph"
    proto.graph.node[0].doc_string = "a node"
    proto.graph.node[0].metadata_props.add(key="k", value="v")
    proto.graph.input[0].doc_string = "an input"
    proto.graph.output[0].metadata_props.add(key="unit", value="m")
    assert to_proto(lifted(proto)).SerializeToString() == proto.SerializeToString()


def test_tensors_are_wrapped_not_copied():
    proto = model("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Mul(x, w) }")
    (w,) = lifted(proto).graph.constants
    assert w.const.raw is proto.graph.initializer[0] or w.const.raw == proto.graph.initializer[0]
    proto.graph.initializer[0].doc_string = "seen through the wrapper"
    assert w.const.doc_string == "seen through the wrapper"


def test_unknown_extents_are_distinct_and_deterministic():
    proto = model("g (float[N,M,N] x) => (float[N] y) { y = ReduceSum(x) }")
    for d, text in zip(proto.graph.input[0].type.tensor_type.shape.dim, ["?", "", "N"], strict=True):
        d.dim_param = text
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    m = from_proto(proto)
    assert m.graph.inputs[0].shape == ("?1", "?2", "N")
    assert m.graph.outputs[0].shape == ("?3",)
    dims = to_proto(m).graph.input[0].type.tensor_type.shape.dim
    assert [d.WhichOneof("value") for d in dims] == [None, None, "dim_param"]


def test_value_info_types_intermediate_values_and_is_kept_for_custom_operators():
    text = "g (float[2] x) => (float[2] y) { h = my.Op(x) k = Neg(h) y = Abs(k) }"
    proto = model(text, '<ir_version: 8, opset_import: ["" : 17, "my" : 1]>\n')
    for name in "hk":
        proto.graph.value_info.append(helper.make_tensor_value_info(name, 1, [2]))
    m = lifted(proto)
    assert m.graph.nodes[1].outputs[0].type == TensorType(DataType.FLOAT, (2,))
    assert [i.name for i in to_proto(m).graph.value_info] == ["h", "k"]  # nobody has looked at what the author wrote
    Inference(m).graph(m.graph)
    assert [i.name for i in to_proto(m).graph.value_info] == ["h"]
    assert [i.name for i in to_proto(m, value_info=True).graph.value_info] == ["h", "k"]


def test_a_type_that_says_more_than_inference_survives_being_read_and_written():
    proto = model("g (float[N] x, int64[2] s) => (float[A,B] y) { h = Reshape(x, s) k = Neg(h) y = Abs(k) }")
    for name in "kh":
        proto.graph.value_info.append(helper.make_tensor_value_info(name, 1, [2, "M"]))
    m = from_proto(proto)
    Inference(m).graph(m.graph)
    once = to_proto(m)  # the type of k follows from that of h
    assert [i.name for i in once.graph.value_info] == ["h"]
    assert to_proto(from_proto(once)) == once


@pytest.mark.parametrize(
    "attribute, expected",
    [
        ("value_float = 2.5", np.float32(2.5)),
        ("value_int = 7", np.int64(7)),
        ("value_floats = [1.0, 2.0]", np.array([1, 2], np.float32)),
        ("value_ints = [1, 2, 3]", np.array([1, 2, 3])),
        ('value_string = "ab"', np.array(b"ab")),
        ('value_strings = ["a", "b"]', np.array([b"a", b"b"])),
        ("value = double[2] {1, 2}", np.array([1.0, 2.0])),
    ],
)
def test_constant_nodes_become_constants(attribute, expected):
    proto = model(f"g (float[2] x) => (float[2] y) {{ c = Constant<{attribute}>() y = Neg(x) }}")
    m = lifted(proto)
    (c,) = m.graph.constants
    assert c.shape == np.shape(expected)
    assert (c.numpy() == expected).all()
    assert c.numpy().dtype == np.asarray(expected).dtype
    out = to_proto(m)
    assert [t.name for t in out.graph.initializer] == ["c"] and len(out.graph.node) == 1
    onnx.checker.check_model(out)


def test_ir_version_3_has_constant_nodes_instead_of_initializers():
    proto = model("g (float[2] x) => (float[2] y) { c = Constant<value_float = 2.0>() y = Mul(x, c) }")
    proto.ir_version = 3
    out = to_proto(lifted(proto))
    assert not out.graph.initializer
    np.testing.assert_array_equal(run(out, x=X)[0], 2 * X)


def test_sparse_initializers_stay_sparse():
    proto = model("g (float[3] x) => (float[3] y) { y = Add(x, s) }")
    values = helper.make_tensor("s", 1, [1], [5.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("i", 7, [1], [1]), [3])
    proto.graph.sparse_initializer.append(sparse)
    m = lifted(proto)
    assert isinstance(m.graph.nodes[0].attributes["sparse_value"], RawAttr)
    out = to_proto(m)
    onnx.checker.check_model(out)
    assert out.graph.node[0].attribute[0].sparse_tensor == sparse


def test_defaults_may_be_overridden():
    proto = model("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {3, 4}> { y = Mul(x, w) }")
    m = lifted(proto)
    assert not m.graph.constants and [v.name for v in m.graph.defaults] == ["w"]
    out = to_proto(m)
    np.testing.assert_array_equal(run(out, x=X)[0], X * [3, 4])
    np.testing.assert_array_equal(run(out, x=X, w=X)[0], X * X)


def test_attributes_of_every_kind():
    attributes = {
        "i": 3,
        "f": 0.1,
        "s": "text",
        "b": b"\xff\xfe",
        "is": [1, 2],
        "fs": [1.5, 2.5],
        "ss": ["a", "b"],
        "t": numpy_helper.from_array(XS, "t"),
        "ts": [numpy_helper.from_array(X, "a"), numpy_helper.from_array(XS, "b")],
    }
    node = helper.make_node("Op", ["x"], ["y"], domain="my", **attributes)
    node.attribute.append(helper.make_attribute("e", [], attr_type=onnx.AttributeProto.FLOATS))
    node.attribute.append(
        helper.make_attribute("tp", helper.make_tensor_type_proto(1, [2]), attr_type=onnx.AttributeProto.TYPE_PROTO)
    )
    inner = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "inner", [], [onnx.ValueInfoProto(name="z")])
    node.attribute.append(helper.make_attribute("gs", [inner, inner]))
    x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("y", 1, [2])
    proto = helper.make_model(
        helper.make_graph([node], "g", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)],
    )
    m = lifted(proto)
    a = m.graph.nodes[0].attributes
    assert a["b"] == b"\xff\xfe" and a["ss"] == ("a", "b") and a["e"] == EmptyList(a["e"].kind)
    assert len(m.graph.nodes[0].regions) == 2
    assert to_proto(m).graph.node[0] == proto.graph.node[0]
    copy, read = clone_model(m), parse_model(print_model(m))
    for other in (copy, read):
        verify(other)
        assert len(other.graph.nodes[0].regions) == 2
        assert not set(other.graph.nodes[0].regions) & set(m.graph.nodes[0].regions)
        assert to_proto(other).graph.node[0] == proto.graph.node[0]
    del node.attribute[list(attributes).index("b")]  # (onnx_ir wants text)
    proto.graph.node[0].CopyFrom(node)
    back = from_onnx_ir(to_onnx_ir(lifted(proto)))
    verify(back)
    assert to_proto(back).graph.node[0] == node


def test_attributes_of_early_versions_have_no_kind():
    proto = parser.parse_model("""<ir_version: 1, opset_import: ["" : 8]>
      g (float[2,3] x) => (float[3,2] y) { a = LeakyRelu<alpha = 0.3>(x) y = Transpose<perm = [1, 0]>(a) }""")
    wanted = [a.SerializeToString() for n in proto.graph.node for a in n.attribute]
    for n in proto.graph.node:
        n.attribute[0].ClearField("type")
    out = to_proto(from_proto(proto))
    assert [a.SerializeToString() for n in out.graph.node for a in n.attribute] == wanted
    proto.graph.node[0].attribute[0].ClearField("f")
    with pytest.raises(ModelError, match='the attribute "alpha" has no kind'):
        from_proto(proto)


# Names


def test_names_are_unique_and_those_of_the_interface_stay():
    g = Graph("g")
    f = TensorType(DataType.FLOAT, (2,))
    x = g.add_input("x", f)
    one = g.append(Node("Neg", [x], outputs=["y"])).outputs[0]
    two = g.append(Node("Abs", [one], outputs=["x"])).outputs[0]
    three = g.append(Node("Exp", [two], outputs=[""])).outputs[0]
    four = g.append(Node("Tanh", [three], outputs=["y_1"])).outputs[0]
    five = g.append(Node("Tanh", [four], outputs=["y"])).outputs[0]
    five.type = f
    g.set_outputs([five])
    out = to_proto(Model(g, {"": 17}, ir_version=8))
    assert [n.output[0] for n in out.graph.node] == ["y_2", "x_1", "exp", "y_1", "y"]
    np.testing.assert_allclose(run(out, x=X)[0], np.tanh(np.tanh(np.exp(np.abs(-X)))), rtol=1e-5)


def test_node_names_are_made_unique_because_runtimes_refuse_duplicates():
    g = Graph("g")
    v = g.add_input("x", TensorType(DataType.FLOAT, (2,)))
    for name in ["a", "a", "reverse(a)", "reverse(a)"]:
        v = g.append(Node("Neg", [v], outputs=[""], name=name)).outputs[0]
    g.set_outputs([v])
    names = [n.name for n in to_proto(Model(g, {"": 17})).graph.node]
    assert names == ["a", "a_1", "reverse(a)", "reverse(a)_1"]


def test_two_outputs_of_one_name_are_refused():
    g = Graph("g")
    x = g.add_input("x", TensorType(DataType.FLOAT, (2,)))
    g.set_outputs([g.append(Node(op, [x], outputs=["y"])).outputs[0] for op in ("Neg", "Abs")])
    m = Model(g, {"": 17})
    with pytest.raises(ModelError, match='"y"'):
        to_proto(m)
    with pytest.raises(ModelError, match='called "y"'):
        verify(m)


def test_odd_names_survive():
    odd = ['a b"c', "x:0", "ünï→", "a\\n", "%x", "?", "y,z"]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in zip(["x", *odd], [*odd, "out"], strict=True)]
    x, y = helper.make_tensor_value_info("x", 1, [2]), helper.make_tensor_value_info("out", 1, [2])
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)])
    assert to_proto(lifted(proto)).SerializeToString() == proto.SerializeToString()


def test_unused_optional_results_are_omitted_and_required_ones_named():
    proto = model("g (float[4] x, int64[1] k) => (float[1] y) { y, i = TopK(x, k) q, m = Dropout(x) }")
    proto.graph.node[0].output[1] = ""
    proto.graph.node[1].output[1] = ""
    out = to_proto(from_proto(proto))
    assert list(out.graph.node[0].output) == ["y", "topk"]
    assert list(out.graph.node[1].output) == ["q"]
    x = np.array([1, 9, 3, 4], np.float32)
    np.testing.assert_array_equal(run(out, x=x, k=np.array([1]))[0], [9])


def test_a_region_never_shadows_a_name_around_it():
    text = """g (float[2] x, bool b) => (float[2] y) { y = If(b) <
      then_branch = t () => (float[2] u) { u = Neg(x) },
      else_branch = e () => (float[2] u) { u = Abs(x) }> }"""
    m = lifted(model(text))
    # Siblings may share a name ...
    assert [g.node[0].output[0] for g in (a.g for a in to_proto(m).graph.node[0].attribute)] == ["u", "u"]
    # ... but a value that comes into being around them takes it.
    m.graph.append(Node("Exp", [m.graph.inputs[0]], outputs=["u"]))
    out = to_proto(m)
    assert [g.node[0].output[0] for g in (a.g for a in out.graph.node[0].attribute)] == ["u_1", "u_2"]
    np.testing.assert_array_equal(run(out, x=X, b=np.array(False))[0], np.abs(X))


# Outputs that are inputs, constants, outer values or the same value twice


@pytest.mark.parametrize(
    "text, expected",
    [
        ("g (float[2] x) => (float[2] x) { }", [X]),
        ("g (float[2] x) => (float[1] c, float[2] y) <float[1] c = {5}> { y = Neg(x) }", [[5], -X]),
        ("g (float[2] x) => (float[2] y, float[2] y) { y = Neg(x) }", [-X, -X]),
        ("g (float[2] x) => (float c, float[2] y) { c = Constant<value_float = 2.0>() y = Neg(x) }", [2, -X]),
    ],
)
def test_outputs_of_the_main_graph(text, expected):
    for got, want in zip(run(to_proto(lifted(model(text))), x=X), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def branch(yields: str):
    """An If whose then-branch yields a value as it is, put there behind the checker's back."""
    text = """g (float[2] x, bool b) => (float[2] y, float[2] z) <float[2] w = {7, 8}> {
      h = Neg(x)
      y, z = If(b) <
      then_branch = t () => (float[2] p, float[2] q) <float[2] k = {3, 4}> { p = Exp(x) q = Exp(h) },
      else_branch = e () => (float[2] r, float[2] s) { r = Abs(h) s = Abs(w) }> }"""
    m = lifted(model(text))
    then = m.graph.nodes[1].regions[0]
    named = {v.name: v for v in (*m.graph.inputs, *m.graph.constants, m.graph.nodes[0].outputs[0], *then.constants)}
    named["p"] = then.nodes[0].outputs[0]
    then.set_outputs([named[n] for n in yields.split()])
    verify(m)
    return m


@pytest.mark.parametrize("yields", ["x h", "w k", "k k", "h h", "p p", "p w"])
def test_outputs_of_a_branch(yields):
    values = {"x": X, "h": -X, "w": [7, 8], "k": [3, 4], "p": np.exp(X)}
    m = branch(yields)
    got = run(to_proto(m), x=X, b=np.array(True))
    for g, name in zip(got, yields.split(), strict=True):
        np.testing.assert_allclose(g, values[name], rtol=1e-6)


@pytest.mark.parametrize("yields", ["h xi", "xi h", "h h", "z z", "x z", "k z", "z k", "xi xi"])
def test_outputs_of_a_scan(yields):
    text = """g (float[2] x, float[3,2] xs) => (float[2] y, float[3,2] s) { y, s = Scan <num_scan_inputs = 1,
      body = b (float[2] h, float[2] xi) => (float[2] z, float[2] q) <float[2] k = {5, 6}> {
        z = Add(h, xi) q = Neg(z) }
    > (x, xs) }"""
    m = lifted(model(text))
    body = m.graph.nodes[0].regions[0]
    named = {v.name: v for v in (*m.graph.inputs, *body.inputs, *body.constants)} | {"z": body.nodes[0].outputs[0]}
    body.set_outputs([named[n] for n in yields.split()])
    verify(m)
    state, stacked = X, []
    for row in XS:
        values = {"h": state, "xi": row, "z": state + row, "x": X, "k": np.array([5, 6], np.float32)}
        state, out = (values[n] for n in yields.split())
        stacked.append(out)
    y, s = run(to_proto(m), x=X, xs=XS)
    np.testing.assert_allclose(y, state)
    np.testing.assert_allclose(s, stacked)


@pytest.mark.parametrize("yields", ["b b", "b a", "a a", "c c", "c b"])
def test_outputs_of_a_function(yields):
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (float[2] x) => (float[2] y, float[2] z) { y, z = l.f(x) }
    <domain: "l", opset_import: ["" : 17]> f (a) => (b, n) {
      c = Constant<value_floats = [7.0, 8.0]>() b = Neg(a) n = Exp(a) }"""
    m = lifted(parser.parse_model(text))
    body = m.functions["l", "f", ""].body
    named = {"a": body.inputs[0], "b": body.nodes[0].outputs[0], "c": body.constants[0]}
    body.set_outputs([named[n] for n in yields.split()])
    verify(m)
    values = {"a": X, "b": -X, "c": [7, 8]}
    for got, name in zip(run(to_proto(m), x=X), yields.split(), strict=True):
        np.testing.assert_allclose(got, values[name])


# Functions and annotations


def test_functions_come_back_as_they_were():
    text = """<ir_version: 10, opset_import: ["" : 21, "l" : 1]>
    g (float[2] x) => (float[2] y) { y = l.f<alpha = 2.0>(x) }
    <domain: "l", opset_import: ["" : 21], overload: "fast"> f <alpha, beta: float = 0.5> (a) => (b) {
      c = Constant<value_float: float = @alpha>() h = Mul(a, c) b = Elu<alpha: float = @beta>(h) }"""
    proto = model(text, "")
    del proto.functions[0].value_info[:]
    proto.graph.node[0].overload = "fast"
    m = lifted(proto)
    f = m.functions["l", "f", "fast"]
    assert f.parameters == ("alpha",) and f.defaults == {"beta": 0.5}
    # A constant that depends on an attribute stays a node.
    assert isinstance(f.body.nodes[0].attributes["value_float"], AttrRef) and not f.body.constants
    assert to_proto(m).SerializeToString() == proto.SerializeToString()
    assert function_to_proto(function_from_proto(proto.functions[0])) == proto.functions[0]


def test_quantization_and_training_information_is_carried():
    proto = model("g (float[2] x) => (float[2] y) <float[1] s = {1}> { h = Neg(x) y = Abs(h) }")
    q = proto.graph.quantization_annotation.add(tensor_name="h")
    q.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    proto.training_info.add().algorithm.name = "sgd"
    assert to_proto(lifted(proto)) == proto


# Order


def test_nodes_out_of_order_are_sorted_stably():
    proto = model("""g (float[2] x, bool c) => (float[2] y) { a = Neg(x) b = Abs(x) d = Exp(b) i = If(c) <
        then_branch = t () => (float[2] p) { p = Mul(d, x) },
        else_branch = e () => (float[2] q) { q = Add(a, x) }> y = Tanh(i) }""")
    nodes = list(proto.graph.node)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(proto)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes[i] for i in (4, 3, 2, 1, 0))
    m = lifted(shuffled)
    assert [n.op_type for n in m.graph.nodes] == ["Abs", "Exp", "Neg", "If", "Tanh"]
    for c in (True, False):
        np.testing.assert_array_equal(run(to_proto(m), x=X, c=np.array(c))[0], run(proto, x=X, c=np.array(c))[0])


def test_sorting_leaves_no_trace_of_the_first_try():
    proto = model("""g (float[2] x, bool c) => (float[2] y) { y = If(c) <
        then_branch = t () => (float[2] p) { r = Neg(x) p = Add(r, x) },
        else_branch = e () => (float[2] q) { q = Add(x, late) }> late = Exp(x) }""")
    m = from_proto(proto)
    verify(m)  # The use list of x holds nothing of the nodes that were given up.
    assert [n.op_type for n in m.graph.nodes] == ["Exp", "If"]


def test_a_cycle_is_refused_and_named():
    proto = model("g (float[2] x) => (float[2] y) { a = Add(x, c) b = Neg(a) c = Abs(b) y = Exp(c) z = Exp(x) }")
    with pytest.raises(ModelError, match="cycle") as e:
        from_proto(proto)
    assert all(name in str(e.value) for name in ('Add "a"', 'Neg "b"', 'Abs "c"'))
    assert "Exp" not in str(e.value)


def test_a_long_chain_needs_no_recursion():
    n = 20_000
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(n)]
    info = [helper.make_tensor_value_info(name, 1, [2]) for name in ("v0", f"v{n}")]
    graph = helper.make_graph(nodes[::-1], "g", info[:1], info[1:])
    m = lifted(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    assert list(to_proto(m).graph.node) == nodes


# Refusals


@pytest.mark.parametrize(
    "text, message",
    [
        ("g (float[2] x) => (float[2] y) { y = Add(x, nowhere) }", r'operand 1 \("nowhere"\) of Add "y"'),
        ("g (float[2] x) => (float[2] y) { z = Neg(x) }", 'output "y"'),
        ("g (float[2] x) => (float[2] y) { y = Neg(x) y = Abs(x) }", '"y".*twice'),
        ("g (float[2] x, float[2] x) => (float[2] y) { y = Neg(x) }", '"x".*twice'),
        ("g (float[2] x) => (float[2] y) { x = Neg(x) y = Abs(x) }", '"x".*twice'),
    ],
)
def test_broken_names(text, message):
    with pytest.raises(ModelError, match=message):
        from_proto(model(text))


def test_a_missing_default_domain_is_one_clear_error():
    proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }", '<ir_version: 8, opset_import: ["my" : 1]>\n')
    with pytest.raises(ModelError, match="default domain"):
        from_proto(proto)


def test_imports_listed_twice():
    proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    proto.opset_import.add(domain="ai.onnx", version=17)
    assert from_proto(proto).opset == {"": 17}
    proto.opset_import.add(domain="", version=18)
    with pytest.raises(ModelError, match="17 and 18"):
        from_proto(proto)


def test_the_long_name_of_the_default_domain():
    proto = model("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    proto.graph.node[0].domain = "ai.onnx"
    assert lifted(proto).graph.nodes[0].key == ("", "Neg")
