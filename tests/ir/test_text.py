"""The IR's text: what it looks like, that it reads back to itself, and what a bad text is told."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest
from onnx import helper, parser

from onnxad_ir.core import AttrRef, EmptyList, Function, Graph, Model, Node, RawAttr, Value
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.parser import parse_model
from onnxad_ir.printer import print_graph, print_model, print_type
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import DataType, MapType, OptionalType, SequenceType, SparseTensorType, TensorType
from onnxad_ir.verify import verify

F = TensorType(DataType.FLOAT, ("N", 2))

RNN = """\
model <ir = 10, opset = {"": 21}>
graph rnn(%h0 : float[2], %xs : float[T,2], %w : float[2]) {
  %one : float[] = dense 1.0
  %h, %ys : float[2], float[T,2] = Scan(%h0, %xs) <num_scan_inputs = 1> body(%hi : float[2], %xi : float[2]) {
    %s : float[2] = Mul(%hi, %w)
    %ho : float[2] = Tanh(%s) loc("cell/tanh")
    yield %ho : float[2], %ho : float[2]
  } loc("cell")
  return %h : float[2], %ys : float[T,2]
}
"""

EVERYTHING = """\
model <ir = 10, opset = {"": 21, "l": 1}, producer = "me \\"quoted\\"", producer_version = "2", \
domain = "d", version = 3, doc = "two\\nlines", metadata = {"k": "v"}>
graph "my graph"(%x : float[N,?1], %"odd name" : ?, %w : double[2] = double[2] dense [0.1, -0.0]) \
doc("g") meta({"a": "b"}) {
  %c : int64[2,2] = dense [[1, -2], [3, 4]]
  %s : string[2] = dense ["a\\"b", bytes "//4="]
  %e : float[0,3] = dense []
  %ext : float[100] = external "w.bin" offset 16 length 400
  %/a/b.0 : float["N*2",M] = l.f:fast(%x, _, %c) <alpha = 0.5, on = 1, mode = "x", axes = [1, 2], \
fs = [1.0, nan, -inf], none = [] : INTS, names = ["a", "b"], t = tensor "tn" int8[2] dense [1, -1], \
bits = bytes "/w==">
  %a, _, %b : seq(float[*]), ?, optional(float[]) = l."odd op"(%/a/b.0) loc("n") doc("d") meta({"k": "v"})
  %z : bool[] = If(%c) then_branch @"b 1"() {
    %t : bool[] = Not(%c)
    yield %t : bool[]
  } else_branch() {
    %t : bool[] = dense true
    yield %t : bool[]
  }
  note %x doc("an input") meta({"unit": "m"}) quantization("SCALE_TENSOR": %w)
  return %z : bool[], %x : float[N,?1]
}
func l.f:fast(%a : ?, %b : ?, %c : ?) opset {"": 21} params [alpha, "odd one"] \
defaults <beta = 1.5> doc("f") meta({"x": "y"}) {
  %d : ? = Elu(%a) <alpha = @alpha : FLOAT>
  return %d : ?
}
"""


@pytest.mark.parametrize("text", [RNN, EVERYTHING])
def test_a_text_reads_back_to_itself(text):
    assert print_model(parse_model(text)) == text


def test_the_example_means_what_it_says():
    m = parse_model(RNN)
    verify(m)
    onnx.checker.check_model(to_proto(m))
    body = m.graph.nodes[0].regions[0]
    assert body.nodes[0].inputs[1] is m.graph.inputs[2]  # A region reads outer values directly.
    assert body.nodes[1].name == "cell/tanh"
    assert body.outputs[0] is body.outputs[1] is body.nodes[1].outputs[0]


def test_everything_means_what_it_says():
    m = parse_model(EVERYTHING)
    g = m.graph
    assert (m.producer_name, m.doc, m.metadata, m.symbols) == ('me "quoted"', "two\nlines", {"k": "v"}, 1)
    assert g.inputs[1].name == "odd name" and g.inputs[1].type is None
    (default,) = g.defaults.values()
    assert default.numpy().tolist() == [0.1, 0.0] and np.signbit(default.numpy()[1])
    assert g.constants[1].numpy().tolist() == [b'a"b', b"\xff\xfe"]
    assert isinstance(g.constants[3].const, ir.ExternalTensor) and g.constants[3].const.offset == 16
    call = g.nodes[0]
    assert (call.domain, call.op_type, call.overload) == ("l", "f", "fast") and call.inputs[1] is None
    assert call.outputs[0].shape == ("N*2", "M")
    assert call.attributes["axes"] == (1, 2) and call.attributes["bits"] == b"\xff"
    assert isinstance(call.attributes["none"], EmptyList)
    f = m.functions["l", "f", "fast"]
    assert f.parameters == ("alpha", "odd one") and f.defaults == {"beta": 1.5}
    assert isinstance(f.body.nodes[0].attributes["alpha"], AttrRef)


def constant(array, dtype=None):
    g = Graph("g")
    g.add_constant("c", ir.Tensor(array, dtype=dtype))
    return Model(g, {"": 21})


FLOATS = [0.1, -0.0, 1e-45, 3.4e38, 16777217.0, np.inf, -np.inf, np.nan, 1 / 3]


@pytest.mark.parametrize(
    "array",
    [
        np.array(FLOATS, np.float32),
        np.array([*FLOATS, 5e-324, 1.7976931348623157e308]),
        np.array([0.1, -0.0, 6e-8, np.inf, np.nan], np.float16),
        np.array([0.1, -0.0, 1e-38, np.inf, np.nan], ml_dtypes.bfloat16),
        np.array([0.1, -0.0, 448], ml_dtypes.float8_e4m3fn),
        np.array([0.1, -0.0, np.inf], ml_dtypes.float8_e5m2),
        np.array([[-8, 7], [0, 1], [3, 2]], ml_dtypes.int4),
        np.array([15, 0, 1], ml_dtypes.uint4),
        np.array([1, -1, 1.5], ml_dtypes.float4_e2m1fn),
        np.array([True, False]),
        np.array([2**64 - 1, 0], np.uint64),
        np.array([-(2**63), 2**63 - 1]),
        np.array([1 + 2j, complex(np.nan, -0.0)], np.complex64),
        np.array(2.5),
        np.zeros((2, 0, 3)),
        np.array([0x7FC00001, 0xFFC00000, 0x7FC00000], np.uint32).view(np.float32),
        np.arange(1000.0).reshape(10, 100),
        (np.arange(101) % 7).astype(ml_dtypes.int4),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_numbers_are_exact(array):
    m = constant(array)
    text = print_model(m)
    parsed = parse_model(text)
    assert print_model(parsed) == text
    (c,) = parsed.graph.constants
    assert c.dtype == m.graph.constants[0].dtype and c.numpy().shape == array.shape
    assert c.const.tobytes() == m.graph.constants[0].const.tobytes()


def test_big_constants_are_resources_shared_by_those_who_share_them():
    g = Graph("g")
    big = ir.Tensor(np.arange(100, dtype=np.float32))
    strings = ir.StringTensor([b"s%d" % i for i in range(20)] + [b"\xff"], shape=ir.Shape([21]))
    for name, t in (("a", big), ("s", strings), ("b", big)):
        g.add_constant(name, t)
    m = Model(g, {"": 21})
    text = print_model(m)
    assert text.count("resource r0") == 2 and '  r1 = ["s0", ' in text
    parsed = parse_model(text)
    a, s, b = parsed.graph.constants
    assert a.const is b.const and (a.numpy() == big.numpy()).all()
    assert list(s.const.string_data()) == list(strings.string_data())
    assert print_model(parsed) == text
    elided = print_model(m, large="elide")
    assert "%a : float[100] = elided" in elided and "resources" not in elided
    with pytest.raises(ModelError, match="left out"):
        parse_model(elided)


def test_raw_attributes_and_training_information():
    node = helper.make_node("Optional", [], ["o"])
    t = helper.make_tensor_type_proto(1, [2])
    node.attribute.append(helper.make_attribute("type", t, attr_type=onnx.AttributeProto.TYPE_PROTO))
    proto = helper.make_model(helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="o")]))
    proto.training_info.add().algorithm.name = "sgd"
    m = from_proto(proto)
    parsed = parse_model(print_model(m))
    assert isinstance(parsed.graph.nodes[0].attributes["type"], RawAttr)
    assert to_proto(parsed) == to_proto(m)


@pytest.mark.parametrize(
    "t, text",
    [
        (None, "?"),
        (TensorType(DataType.FLOAT), "float[*]"),
        (TensorType(DataType.INT64, ()), "int64[]"),
        (
            TensorType(DataType.BFLOAT16, (1, "N", "?2", "a b", "?x y", "12", "inf")),
            'bfloat16[1,N,?2,"a b","?x y","12",inf]',
        ),
        (SequenceType(TensorType(DataType.STRING, (2,))), "seq(string[2])"),
        (OptionalType(SequenceType(None)), "optional(seq(?))"),
        (MapType(DataType.INT64, TensorType(DataType.FLOAT)), "map(int64, float[*])"),
        (SparseTensorType(DataType.DOUBLE, (3,)), "sparse(double[3])"),
    ],
)
def test_types(t, text):
    assert print_type(t) == text
    g = Graph("g")
    g.add_input("x", t)
    parsed = parse_model(print_model(Model(g, {"": 21})))
    assert parsed.graph.inputs[0].type == t


@pytest.mark.parametrize(
    "name",
    ["", "a b", 'q"uote', "::", "a::b", "x:0", "ü", "new\nline", "back\\slash", "_", "%", "a,b", "//", "1"],
)
def test_names_of_any_characters(name):
    g = Graph(name)
    x = g.add_input(name or "x", F)
    n = g.append(Node(name or "Op", [x], {name or "a": 1.5}, [name + "y"], domain=name, name=name, overload=name))
    g.set_outputs(n.outputs)
    m = Model(g, {"": 21, name: 1}, producer_name=name)
    body = Graph(name)
    body.set_outputs([body.add_input(name or "x")])
    f = Function(name, name, name, body, {"": 21}, (name,), {name: 1}, doc=name)
    m.functions[f.key] = f
    text = print_model(m)
    parsed = parse_model(text)
    assert print_model(parsed) == text
    assert (parsed.graph.name, parsed.graph.inputs[0].name) == (name, name or "x")
    got = parsed.graph.nodes[0]
    assert (got.domain, got.op_type, got.overload, got.name) == (name, name or "Op", name, name)
    assert list(parsed.functions) == [(name, name, name)]


def test_printing_makes_names_unique_as_writing_does():
    g = Graph("g")
    v = g.add_input("x", F)
    for op in ("Neg", "Abs", "Exp"):
        v = g.append(Node(op, [v], outputs=["h"])).outputs[0]
    g.set_outputs([v])
    m = Model(g, {"": 21})
    written = [n.output[0] for n in to_proto(m).graph.node]
    assert [n.outputs[0].name for n in parse_model(print_model(m)).graph.nodes] == written == ["h_1", "h_2", "h"]


def test_comments_and_blank_lines_are_ignored():
    commented = "// RUN: something\n" + RNN.replace("\n", "  // CHECK\n\n")
    assert print_model(parse_model(commented)) == RNN


def test_a_broken_model_can_be_looked_at():
    m = parse_model(RNN)
    m.graph.nodes[0].set_input(0, Value("ghost"))
    m.graph.set_outputs([Value("gone")])
    m.graph.constants[0].const = None
    text = print_model(m)
    assert 'Scan(%"ghost (undefined)", %xs)' in text and 'return %"gone (undefined)" : ?' in text
    with pytest.raises(ModelError):
        parse_model(text)


def test_a_graph_alone():
    text = print_graph(parse_model(RNN).graph)
    assert text == RNN.split("\n", 1)[1]


def test_a_long_graph_is_read_without_recursion():
    lines = [f"  %v{i + 1} : float[] = Neg(%v{i})" for i in range(20_000)]
    head = 'model <ir = 10, opset = {"": 21}>\ngraph g(%v0 : float[]) {'
    text = "\n".join([head, *lines, "  return %v20000 : float[]", "}", ""])
    assert print_model(parse_model(text)) == text


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("%hi, %w)", "%hi, %nowhere)", r"line 5.*not defined.*%nowhere"),
        ("%s : float[2] = Mul", "%hi : float[2] = Mul", "line 5.*defined twice"),
        ("%s : float[2] = Mul", "%s : floot[2] = Mul", "line 5.*type.*floot"),
        ("dense 1.0", "dense [1.0, 2.0]", "line 3.*2 elements"),
        ("dense 1.0", "resource r7", "line 3.*no such resource.*r7"),
        ("return %h : float[2]", "return %h : float[3]", r"line 9.*float\[2\] where it is defined"),
        ("%h, %ys : float[2], float[T,2] =", "%h, %ys : float[2] =", "line 4.*2 results have 1 types"),
        ("num_scan_inputs = 1", "num_scan_inputs = ", "line 4.*attribute"),
        ("  return %h : float[2], %ys : float[T,2]\n}\n", "", "end of the text"),
        ("model <", "modul <", "line 1.*expected model"),
        ("Tanh(%s)", "Tanh(%s) ;", "line 6.*unknown character"),
        ('{"": 21}', '{"": 2.5}', "line 1.*integer"),
    ],
)
def test_bad_texts_are_told_where(old, new, message):
    assert old in RNN
    with pytest.raises(ModelError, match=message):
        parse_model(RNN.replace(old, new, 1))


def test_the_text_of_a_real_model_runs_the_same():
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[N,2] x) => (float[N,2] y) <float[2] w = {0.1, 2}> {\n"
        "  h = Mul(x, w) y = Softmax<axis = -1>(h) }"
    )
    x = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
    expected = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})[0]
    again = to_proto(parse_model(print_model(from_proto(proto))))
    np.testing.assert_array_equal(onnx.reference.ReferenceEvaluator(again).run(None, {"x": x})[0], expected)
