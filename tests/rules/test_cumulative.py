import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxad_rules.testing import check_rule, differentiate, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
WAYS = [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}]


@pytest.mark.parametrize("attrs", WAYS)
@pytest.mark.parametrize("axis", [0, 1, -1, -3])
@pytest.mark.parametrize("constants", [[1], []])
def test_cumsum(attrs, axis, constants):
    check_rule(
        "CumSum",
        [r((2, 3, 2)), np.asarray(axis, np.int32 if axis == 1 else np.int64)],
        attrs,
        constants=constants,
    )


@pytest.mark.parametrize("attrs", WAYS)
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("constants", [[1], []])
def test_cumprod(attrs, axis, constants):  # ONNX Runtime has none
    check_rule(
        "CumProd",
        [r((2, 3, 2)) + 0.1, np.asarray(axis)],
        attrs,
        constants=constants,
        engine=run_in_reference,
        single=False,
    )


@pytest.mark.parametrize("attrs", WAYS)
@pytest.mark.parametrize("zeros", [[0], [1], [3], [0, 2], [1, 2, 3]])
def test_cumprod_with_zeros(attrs, zeros):
    """Jacobian and Hessian of the products themselves."""
    x, t, ct = np.array([0.5, -2, 3, 0.7]), np.array([1.0, 0.3, -2, 0.5]), np.array([1.5, -1, 0.5, 2])
    x[zeros] = 0
    info = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, [4]) for n in "xy"]
    axis = helper.make_tensor("a", TensorProto.INT64, [], [0])
    graph = helper.make_graph(
        [helper.make_node("CumProd", ["x", "a"], ["y"], **attrs)], "g", info[:1], info[1:], [axis]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 26)], ir_version=10)
    jac, hess = np.zeros((4, 4)), np.zeros((4, 4))
    for i in range(4):
        takes = range(i, 4) if attrs.get("reverse") else range(i + 1)
        takes = [k for k in takes if k != i or not attrs.get("exclusive")]
        for j in takes:
            jac[i, j] = np.prod([x[k] for k in takes if k != j])
        for j, k in itertools.permutations(takes, 2):
            hess[j, k] += ct[i] * np.prod([x[m] for m in takes if m not in (j, k)])
    reverse = differentiate(model, "reverse")
    feeds = {"x": x, "fwd_x": t, "adj_y": ct, "d_x": t, "d_adj_y": 0 * ct}
    forward = run_in_reference(differentiate(model, "forward"))(feeds)[1]
    np.testing.assert_allclose(forward, jac @ t, atol=1e-12)
    np.testing.assert_allclose(run_in_reference(reverse)(feeds)[1], ct @ jac, atol=1e-12)
    second = run_in_reference(differentiate(reverse, "forward", prefix="d_"))(feeds)[3]
    np.testing.assert_allclose(second, hess @ t, atol=1e-12)
