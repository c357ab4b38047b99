import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxad_rules.testing import differentiate, run_in_ort

R = np.random.default_rng(0)


def model_of_slices(bounds, width=6):
    """y = the sum over slices x[:, a:b] of sum(i * tanh(slice)), i = 1, 2, ..."""
    nodes, constants = [], {"axis": np.array([1]), "all": np.array([0, 1])}
    for i, (a, b) in enumerate(bounds, 1):
        constants |= {f"a{i}": np.array([a]), f"b{i}": np.array([b]), f"k{i}": np.float64(i)}
        nodes += [
            helper.make_node("Slice", ["x", f"a{i}", f"b{i}", "axis"], [f"s{i}"]),
            helper.make_node("Tanh", [f"s{i}"], [f"t{i}"]),
            helper.make_node("Mul", [f"t{i}", f"k{i}"], [f"m{i}"]),
            helper.make_node("ReduceSum", [f"m{i}", "all"], [f"r{i}"], keepdims=0),
        ]
    nodes.append(helper.make_node("Sum", [f"r{i + 1}" for i in range(len(bounds))], ["y"]))
    graph = helper.make_graph(
        nodes,
        "slices",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3, width])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.mark.parametrize(
    "bounds, joined",
    [
        ([(0, 2), (2, 6)], True),
        ([(3, 6), (0, 1), (1, 3)], True),
        ([(1, 2), (2, 4)], True),
        ([(0, 2), (3, 6)], False),
        ([(0, 4), (2, 6)], False),
        ([(0, 3), (0, 6), (3, 6)], True),
    ],
)
def test_slices_send_back_a_concatenation(bounds, joined):
    model = differentiate(model_of_slices(bounds), "reverse")
    x = R.standard_normal((3, 6))
    (_, got) = run_in_ort(model)({"x": x, "adj_y": np.array(1.0)})
    want = np.zeros_like(x)
    for i, (a, b) in enumerate(bounds, 1):
        want[:, a:b] += i * (1 - np.tanh(x[:, a:b]) ** 2)
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert joined == any(n.op_type == "Concat" for n in model.graph.node)
