import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxad_rules.testing import check_rule, differentiate, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 3)), ((2, 3), (4, 1, 3))]


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("a, b", SHAPES)
def test_binary(op, a, b):
    check_rule(op, [r(a), r(b) + 3])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("constant", [0, 1])
def test_binary_with_a_constant(op, constant):
    check_rule(op, [r((2, 3)) + 3, r((3,)) + 3], constants=[constant])
    check_rule(op, [r((2, 3)) + 3, r((1, 2, 1)) + 3], constants=[constant])


@pytest.mark.parametrize("op", ["Neg", "Reciprocal", "Sqrt"])
def test_unary(op):
    check_rule(op, [r((2, 3)) ** 2 + 1])
    check_rule(op, [np.asarray(r() ** 2 + 1)])


# onnx.reference accumulates in place, into its first operand, which must be of the largest shape
@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_variadic(op):
    check_rule(op, [r((4, 2, 3)), r((3,)), r((4, 1, 1))])
    check_rule(op, [r((2, 3)), r((3,))], constants=[0])
    check_rule(op, [r((2, 3))])


@pytest.mark.parametrize("a, b", [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2, 3))])
@pytest.mark.parametrize("sign", [1, -1])
def test_mod(a, b, sign):
    check_rule("Mod", [r(a) * 5, sign * R.uniform(1.5, 3, b)], {"fmod": 1})


def test_mod_of_floats_with_the_sign_of_the_divisor():  # since opset 28
    check_rule("Mod", [r((2, 3)) * 5, R.uniform(1.5, 3, (3,))], {"fmod": 0}, engine=run_in_reference, single=False)


def recorded(model, feeds):
    return run_in_reference(differentiate(model, "reverse"))(feeds)[1:]


def test_mod_as_pytorch():
    """fmod (7, -7, 6) by 3: PyTorch 2.13 gives 1 and -2, 2, -2, also at the jump; remainder -2, 3, -2."""
    for fmod, db in ((1, [-2, 2, -2]), (0, [-2, 3, -2])):
        info = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, [3]) for n in "aby"]
        node = helper.make_node("Mod", ["a", "b"], ["y"], fmod=fmod)
        model = helper.make_model(
            helper.make_graph([node], "g", info[:2], info[2:]),
            opset_imports=[helper.make_opsetid("", 28)],
            ir_version=10,
        )
        feeds = {"a": np.array([7.0, -7, 6]), "b": np.full(3, 3.0), "adj_y": np.ones(3)}
        da, got = recorded(model, feeds)
        np.testing.assert_array_equal(da, [1, 1, 1])
        np.testing.assert_array_equal(got, db)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Sum", "Mean"])
def test_empty(op):
    """Nothing broadcast with something: zeros for the something."""
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("a", ["n", 3]), ("b", [1, 3]), ("y", ["n", 3]))
    ]
    model = helper.make_model(
        helper.make_graph([helper.make_node(op, ["a", "b"], ["y"])], "g", info[:2], info[2:]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    none = np.zeros((0, 3), np.float32)
    feeds = {"a": none, "b": np.ones((1, 3), np.float32), "adj_y": none}
    for level in (0, 99):
        _, da, db = run_in_ort(differentiate(model, "reverse"), level)(feeds)
        assert da.shape == (0, 3)
        np.testing.assert_array_equal(db, np.zeros((1, 3)))
