import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxad_rules.testing import check_rule, differentiate, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
OPS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]
AXES = [None, np.array([1]), np.array([-1, 0]), np.array([2, 1, 0]), np.zeros(0, np.int64)]


def operand(op, shape=(2, 3, 2)):
    """Distinct, away from zero, positive for the logarithm."""
    x = R.permutation(np.linspace(0.5, 2.5, int(np.prod(shape)))).reshape(shape)
    return x if op == "ReduceLogSum" else x * np.where(r(shape) > 0, 1, -1)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes(op, axes, keepdims):
    check_rule(op, [operand(op), axes], {"keepdims": keepdims}, constants=[] if axes is None else [1])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axes", AXES[1:], ids=str)
@pytest.mark.parametrize("keepdims, noop", [(0, 0), (1, 0), (1, 1)])
def test_axes_known_at_run_time(op, axes, keepdims, noop):
    attrs = {"keepdims": keepdims, "noop_with_empty_axes": noop}
    check_rule(
        op,
        [operand(op), axes],
        attrs,
        order=2 if axes.size == 1 else 1,
        engine=run_in_reference,
        single=False,
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_noop(op, keepdims):
    """Without axes nothing is summed, but what is done to each element still is."""
    attrs = {"keepdims": keepdims, "noop_with_empty_axes": 1}
    check_rule(op, [operand(op)], attrs, engine=run_in_reference, single=False)
    check_rule(op, [operand(op), AXES[-1]], attrs, constants=[1], engine=run_in_reference, single=False)


@pytest.mark.parametrize("op", OPS)
def test_rank_zero(op):
    check_rule(op, [np.asarray(1.7)], {"keepdims": 0})


def model_of(op, shape, result, axes=None, kind=TensorProto.DOUBLE, **attrs):
    info = [helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("y", kind, result)]
    init = [] if axes is None else [helper.make_tensor("a", TensorProto.INT64, [len(axes)], axes)]
    node = helper.make_node(op, ["x"] + ["a"] * len(init), ["y"], **attrs)
    graph = helper.make_graph([node], "g", info[:1], info[1:], init)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def derivatives(model, x, t, ct):
    """Forward, reverse, and forward of reverse in the same direction, at x."""
    reverse = differentiate(model, "reverse")
    second = differentiate(reverse, "forward", prefix="d_")
    feeds = {"x": x, "fwd_x": t, "adj_y": ct, "d_x": t, "d_adj_y": np.zeros_like(ct)}
    forward = run_in_reference(differentiate(model, "forward"))(feeds)[1]
    return forward, run_in_reference(reverse)(feeds)[1], run_in_reference(second)(feeds)[3]


@pytest.mark.parametrize("zeros", [[], [1], [0, 2], [0, 1, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("axes", [[0], None])
def test_product_with_zeros(zeros, axes):
    """The polynomial's own derivatives, whatever factors are zero."""
    x = np.array([0.5, -2, 3, 0.7])
    x[zeros] = 0
    t = np.array([1.0, 0.3, -2, 0.5])
    got = derivatives(model_of("ReduceProd", [4], [], axes, keepdims=0), x, t, np.asarray(1.5))
    grad = np.array([np.prod(np.delete(x, i)) for i in range(4)])
    hess = np.zeros((4, 4))
    for i, j in itertools.permutations(range(4), 2):
        hess[i, j] = np.prod(np.delete(x, [i, j]))
    np.testing.assert_allclose(got[0], grad @ t, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got[1], 1.5 * grad, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got[2], 1.5 * hess @ t, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("level", [0, 99])
def test_product_with_zeros_of_rows(level):
    x = np.array([[0, 2, 3], [4, 0, 0], [1, 2, 3]], np.float32)
    model = model_of("ReduceProd", ["n", 3], ["n", 1], [1], TensorProto.FLOAT)
    got = run_in_ort(differentiate(model, "reverse"), level)({"x": x, "adj_y": np.ones((3, 1), np.float32)})[1]
    np.testing.assert_array_equal(got, [[6, 0, 0], [0, 0, 0], [6, 3, 2]])


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_ties_share(op):
    """PyTorch 2.13: amax([1, 1, 0]) has derivative [0.5, 0.5, 0]."""
    x = np.array([[1.0, 1, 0], [2, 0, 1]]) * (1 if op == "ReduceMax" else -1)
    t = np.array([[1.0, 4, 7], [2, 3, 5]])
    forward, reverse, _ = derivatives(model_of(op, [2, 3], [2, 1], [1]), x, t, np.array([[2.0], [3]]))
    np.testing.assert_array_equal(forward, [[2.5], [2]])
    np.testing.assert_array_equal(reverse, [[1, 1, 0], [3, 0, 0]])


def test_norms_at_zero():
    """PyTorch: the 1-norm and the 2-norm have derivative 0 at 0."""
    x = np.array([[0.0, 0], [3, -4], [0, 5]])
    t = np.ones((3, 2))
    ct = np.ones((3, 1))
    forward, reverse, second = derivatives(model_of("ReduceL2", [3, 2], [3, 1], [1]), x, t, ct)
    np.testing.assert_allclose(reverse, [[0, 0], [0.6, -0.8], [0, 1]], rtol=1e-12)
    np.testing.assert_allclose(forward, [[0], [-0.2], [1]], rtol=1e-12)
    assert np.isfinite(second).all()
    forward, reverse, _ = derivatives(model_of("ReduceL1", [3, 2], [3, 1], [1]), x, t, ct)
    np.testing.assert_array_equal(reverse, [[0, 0], [1, -1], [0, 1]])
    np.testing.assert_array_equal(forward, [[0], [0], [1]])


def test_square_of_the_norm_at_zero():
    info = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in (("x", [2]), ("y", [1]))]
    nodes = [helper.make_node("ReduceL2", ["x"], ["a"]), helper.make_node("Mul", ["a", "a"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", info[:1], info[1:]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    forward, reverse, _ = derivatives(model, np.zeros(2), np.ones(2), np.ones(1))
    np.testing.assert_array_equal(forward, [0])
    np.testing.assert_array_equal(reverse, [0, 0])


def test_log_sum_exp_of_minus_infinity():
    inf = np.inf
    x = np.array([[-inf, -inf], [-inf, 1], [0, 0]])
    forward, reverse, _ = derivatives(
        model_of("ReduceLogSumExp", [3, 2], [3, 1], [1]), x, np.ones((3, 2)), np.ones((3, 1))
    )
    np.testing.assert_allclose(forward, [[0], [1], [1]], rtol=1e-12)
    np.testing.assert_allclose(reverse, [[0, 0], [0, 1], [0.5, 0.5]], rtol=1e-12)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1])
def test_empty(op, axis):
    """Reducing nothing to a constant, and reducing to nothing."""
    result = [1, "d1"] if axis == 0 else ["d0", 1]
    x, y = np.zeros((0, 3), np.float32), np.zeros((1, 3) if axis == 0 else (0, 1), np.float32)
    feeds = {"x": x, "fwd_x": x, "adj_y": y}
    for shape in ([0, 3], ["d0", "d1"]):
        model = model_of(op, shape, result if shape[0] else list(y.shape), [axis], TensorProto.FLOAT)
        for run in (run_in_ort, run_in_reference):
            if axis == 0 and op == "ReduceMean":
                continue  # the mean of nothing is not a number
            if axis == 0 and run is run_in_ort and op in ("ReduceMax", "ReduceMin", "ReduceLogSumExp"):
                continue  # it refuses to reduce nothing
            np.testing.assert_array_equal(run(differentiate(model, "forward"))(feeds)[1], y)
            assert run(differentiate(model, "reverse"))(feeds)[1].shape == (0, 3)
