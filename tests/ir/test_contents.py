"""What shape-like tensors are said to hold is what a run gives."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small import run

from onnxad_passes import run_pipeline


def integer_model(nodes, constants):
    """A model with a floating input that returns "out" of integer nodes on constants."""
    graph = helper.make_graph(
        [*nodes, helper.make_node("Cast", ["out"], ["y"], to=TensorProto.DOUBLE)],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def node(op, *operands, **attributes):
    return helper.make_node(op, operands, ["out"], **attributes)


@pytest.mark.parametrize(
    "nodes, constants",
    [
        ([node("Mul", "a", "a")], {"a": np.array([2**20, 3], np.int32)}),  # wraps around
        ([node("Mul", "a", "a")], {"a": np.array([2**40, 3])}),
        ([node("Add", "a", "a")], {"a": np.array([2**62, -(2**63)])}),
        ([node("Mod", "a", "b", fmod=1)], {"a": np.array([-7, 7]), "b": np.array([3])}),
        ([node("Mod", "a", "b")], {"a": np.array([-7, 7]), "b": np.array([3])}),
        ([node("Div", "a", "b")], {"a": np.array([-7, 7, -(2**60) - 1]), "b": np.array([2, -2, 2])}),
        ([node("Max", "a", "b", "b")], {"a": np.array([1, 9]), "b": np.array([3, 3])}),
        ([node("Sub", "a", "b")], {"a": np.array(0, np.uint32), "b": np.array([1, 2], np.uint32)}),
        ([helper.make_node("Tile", ["a", "b"], ["t"]), node("Size", "t")], {"a": [1, 2, 3], "b": [10**6]}),
        ([helper.make_node("Expand", ["a", "b"], ["t"]), node("Size", "t")], {"a": [1], "b": [1000, 1000]}),
        (
            [
                helper.make_node("ConstantOfShape", ["b"], ["t"], value=numpy_helper.from_array(np.array([7]))),
                node("Size", "t"),
            ],
            {"b": [10**7]},
        ),
    ],
)
@pytest.mark.parametrize("pipeline", ["fold-shapes", "simplify"])
def test_same_numbers(nodes, constants, pipeline):
    model = integer_model(nodes, constants)
    (want,) = run(model, {})
    (got,) = run(run_pipeline(model, pipeline), {})
    np.testing.assert_array_equal(got, want)


def test_an_extent_less_one_may_be_negative():
    """Range(N - 5) is empty where N is 2, and not of extent N - 5."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[N] x) => (float[K] y) {
      zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() five = Constant<value = int64 {5}>()
      n = Size(x) k = Sub(n, five) r = Range(zero, k, one) s = Shape(r) f = Cast<to = 1>(r)
      empty = ConstantOfShape(s) z = Add(f, empty) y = Cast<to = 1>(s)
    }"""
    model = run_pipeline(onnx.parser.parse_model(text), "simplify,dce")
    (got,) = run(model, {"x": np.ones(2, np.float32)})
    assert got.tolist() == [0.0]
