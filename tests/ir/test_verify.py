"""The verifier accepts what is right and names what is broken."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import DataType, MapType, SequenceType, TensorType, Type
from onnxad_ir.verify import verify

TEXT = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
g (float[2] x, bool b, int64 n) => (float[2] y) <float[2] w = {1, 2}> {
  h = Mul(x, w)
  c = If(b) <
    then_branch = t () => (float[2] p) { p = Neg(h) },
    else_branch = e () => (float[2] q) { q = Abs(h) }>
  l = Loop(n, b, c) <body = d (int64 i, bool ci, float[2] s) => (bool co, float[2] so) {
    co = Not(ci) so = Add(s, h) }>
  y = Softmax<axis = -1>(l)
}"""


def good() -> Model:
    m = from_proto(parser.parse_model(TEXT))
    verify(m)
    return m


def broken(m: Model, *words: str) -> None:
    with pytest.raises(ModelError) as e:
        verify(m)
    for w in words:
        assert w in str(e.value)


def test_operand_used_before_its_definition():
    m = good()
    m.graph.nodes[0], m.graph.nodes[1] = m.graph.nodes[1], m.graph.nodes[0]
    broken(m, "%h", "not defined before it", 'graph "t"')


def test_operand_defined_nowhere():
    m = good()
    m.graph.nodes[3].set_input(0, Value("ghost", TensorType(DataType.FLOAT, (2,))))
    broken(m, "%ghost", "Softmax")


def test_operand_from_inside_a_region():
    m = good()
    m.graph.nodes[3].set_input(0, m.graph.nodes[1].regions[0].nodes[0].outputs[0])
    broken(m, "%p", "not defined before it", "Softmax")


def test_operand_from_a_sibling_region():
    m = good()
    then, other = m.graph.nodes[1].regions
    other.nodes[0].set_input(0, then.nodes[0].outputs[0])
    broken(m, "%p", "not defined before it", "Abs")


def test_output_defined_nowhere():
    m = good()
    m.graph.set_outputs([Value("ghost")])
    broken(m, "output %ghost")


def test_operands_changed_behind_the_use_lists():
    m = good()
    softmax = m.graph.nodes[3]
    softmax.inputs = (m.graph.inputs[0],)
    broken(m, "the use list of %x lacks Softmax")


def test_a_use_that_is_not():
    m = good()
    m.graph.inputs[0].users[m.graph.nodes[3]] = 1
    broken(m, "the use list of %x holds", "Softmax")


def test_a_user_that_was_thrown_away():
    m = good()
    Node("Neg", [m.graph.inputs[0]])
    broken(m, "the use list of %x holds", "Neg", "in no graph")


def test_a_wrong_count_of_uses():
    m = good()
    m.graph.inputs[0].users[m.graph.nodes[0]] = 2
    broken(m, "%x has 2 uses by Mul")


def test_outputs_changed_behind_the_use_lists():
    m = good()
    m.graph.outputs = (*m.graph.outputs, m.graph.inputs[0])
    broken(m, "use list of %x lacks output")


def test_a_node_in_two_places():
    m = good()
    m.graph.nodes.append(m.graph.nodes[0])
    broken(m, "%h", "defined twice")


def test_a_node_that_thinks_it_is_elsewhere():
    m = good()
    m.graph.nodes[0].graph = Graph("other")
    broken(m, "belongs to <Graph 'other'")


def test_a_result_that_belongs_to_another():
    m = good()
    m.graph.nodes[0].outputs[0].index = 1
    broken(m, "result 0 of Mul")


def test_a_region_with_another_parent():
    m = good()
    m.graph.nodes[1].regions[0].parent = m.graph.nodes[0]
    broken(m, 'region "t"', "another parent")


def test_regions_that_are_not_the_attributes():
    m = good()
    m.graph.nodes[1].regions = ()
    broken(m, "the regions of If")


@pytest.mark.parametrize(
    "op, operands, attributes, results, words",
    [
        ("Nonsense", "x", {}, 1, 'domain "" has no such operator in opset 17'),
        ("Sofmax", "x", {}, 1, "no such operator in opset 17; did you mean 'Softmax'"),
        ("Gelu", "x", {}, 1, "no such operator in opset 17: it came with opset 20"),
        ("Upsample", "xx", {}, 1, "deprecated"),
        ("Mul", "x", {}, 1, "1 operands, where 2 are expected"),
        ("Mul", "xxx", {}, 1, "3 operands, where 2 are expected"),
        ("Mul", "x_", {}, 1, "operand B is required"),
        ("Neg", "x", {}, 2, "2 results, where 1 is expected"),
        ("Cast", "x", {}, 1, "attribute to is required"),
        ("Clip", "xxxx", {}, 1, "4 operands, where 1 to 3 are expected"),
        ("Sum", "", {}, 1, "0 operands, where 1 or more are expected"),
        ("Neg", "x", {"axis": 1}, 1, "no attribute axis (known: none)"),
        ("Softmax", "x", {"axis": 1.0}, 1, "attribute axis is FLOAT, where INT"),
        ("Softmax", "x", {"axis": (1, 2)}, 1, "attribute axis is INTS, where INT"),
        ("Mul", "xn", {}, 1, "operand B is a tensor(int64), where T is already tensor(float)"),
        (
            "Exp",
            "n",
            {},
            1,
            "operand input is a tensor(int64), which is not among its types (tensor(bfloat16), tensor(double), ",
        ),
    ],
)
def test_nodes_against_the_schema(op, operands, attributes, results, words):
    m = good()
    named = {v.name: v for v in m.graph.inputs} | {"_": None}
    m.graph.append(Node(op, [named[c] for c in operands], attributes, [""] * results))
    broken(m, op, words)


def test_an_opset_that_is_not_known_yet():
    m = good()
    m.opset[""] = 99
    broken(m, "is written in opset 99, of which the installed onnx", "use a newer onnx, or an older opset")


def test_a_result_of_a_wrong_type():
    m = good()
    m.graph.nodes[0].outputs[0].type = TensorType(DataType.DOUBLE, (2,))
    broken(m, "Mul", "result C is a tensor(double)")


MAPS = {
    "DictVectorizer": [
        "string, int64",
        "int64, string",
        "int64, float",
        "int64, double",
        "string, float",
        "string, double",
    ],
    "CastMap": ["int64, string", "int64, float"],
    "ZipMap": ["string, float", "int64, float"],
}


@pytest.mark.parametrize(("op", "entries"), [(op, e) for op in MAPS for e in MAPS[op]])
def test_maps_are_spelled_as_schemas_spell_them(op, entries):
    """Every map that an operator takes or gives is fine, on its way through a file as well; another one is not."""
    key, value = entries.split(", ")
    some = ("a", "b") if key == "string" else (1, 2)
    attributes = {
        "DictVectorizer": {f"{key}_vocabulary": some},
        "CastMap": {},
        "ZipMap": {f"classlabels_{key}s": some},
    }
    t: Type = MapType(DataType[key.upper()], TensorType(DataType[value.upper()], ()))
    rows = TensorType(DataType.FLOAT if op != "DictVectorizer" else DataType[value.upper()], ("N", 2))
    g = Graph("g")
    x = g.add_input("x", rows if op == "ZipMap" else t)
    y = g.append(Node(op, [x], attributes[op], ("y",), "ai.onnx.ml")).outputs[0]
    y.type = SequenceType(t) if op == "ZipMap" else rows
    g.set_outputs([y])
    m = Model(g, {"": 17, "ai.onnx.ml": 1})
    verify(m)
    back = from_proto(to_proto(m))
    assert (back.graph.inputs[0].type, back.graph.outputs[0].type) == (x.type, y.type)
    (y if op == "ZipMap" else x).type = MapType(DataType.INT8, TensorType(DataType.FLOAT, ()))
    broken(m, "is a map(int8, float), which is not among its types")


def test_unknown_domains_are_taken_as_they_are_but_must_be_imported():
    m = good()
    m.graph.append(Node("Anything", [m.graph.inputs[0]], {"a": 1}, domain="my"))
    verify(m)
    m.graph.append(Node("Anything", [m.graph.inputs[0]], {"a": 1}, domain="yours"))
    broken(m, '"yours" is imported')


def test_too_few_values_yielded():
    m = good()
    region = m.graph.nodes[1].regions[1]
    region.set_outputs([])
    broken(m, 'branch "e" yields 0 values for 1 results')


def test_a_loop_body_with_too_many_inputs():
    m = good()
    m.graph.nodes[2].regions[0].add_input("more")
    broken(m, "the body takes 4 values for 3 operands")


def test_clashing_names_of_the_interface():
    m = good()
    m.graph.constants[0].name = "x"
    broken(m, '"x"')


def test_a_constant_whose_type_is_not_its_tensors():
    m = good()
    m.graph.constants[0].const = ir.Tensor(np.zeros(3, np.float32))
    broken(m, "constant %w")


def test_functions_are_checked_with_their_own_opset():
    text = """<ir_version: 8, opset_import: ["" : 17, "l" : 1]>
    g (float[2] x) => (float[2] y) { y = l.f(x) }
    <domain: "l", opset_import: ["" : 9]> f (a) => (b) { b = Upsample<mode = "nearest">(a, a) }"""
    m = from_proto(parser.parse_model(text))
    verify(m)  # Upsample is alive in opset 9.
    m.functions["l", "f", ""].opset[""] = 10
    broken(m, "Upsample", "deprecated")


def test_every_problem_is_listed():
    m = good()
    for _ in range(3):
        m.graph.append(Node("Nonsense", [m.graph.inputs[0]]))
    with pytest.raises(ModelError) as e:
        verify(m)
    assert str(e.value).count("no such operator") == 3
