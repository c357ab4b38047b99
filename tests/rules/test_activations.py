import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxad_rules.testing import check_rule, differentiate, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
X = r((3, 5)) * 2  # no kink within the step of the finite differences


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("Relu", {}),
        ("LeakyRelu", {}),
        ("LeakyRelu", {"alpha": 0.3}),
        ("LeakyRelu", {"alpha": 1.5}),
        ("LeakyRelu", {"alpha": -0.5}),
        ("Elu", {}),
        ("Elu", {"alpha": 0.5}),
        ("Elu", {"alpha": 2.0}),
        ("Selu", {}),
        ("Selu", {"alpha": 1.2, "gamma": 0.7}),
        ("Celu", {}),
        ("Celu", {"alpha": 0.5}),
        ("Celu", {"alpha": -1.5}),
        ("ThresholdedRelu", {}),
        ("ThresholdedRelu", {"alpha": -0.4}),
        ("Softplus", {}),
        ("Softsign", {}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("HardSigmoid", {}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("HardSwish", {}),
        ("Mish", {}),
        ("Gelu", {"approximate": "tanh"}),
    ],
)
def test_activation(op, attrs):
    check_rule(op, [X], attrs)


@pytest.mark.parametrize("attrs", [{}, {"lambd": 0.7, "bias": 0.2}, {"lambd": -0.5, "bias": 0.1}])
def test_shrink(attrs):  # ONNX Runtime computes it in single precision
    check_rule("Shrink", [X], attrs, engine=run_in_reference)


class Erf(OpRun):
    """In double precision, which neither ONNX Runtime nor onnx.reference offers."""

    def _run(self, x):
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    def _run(self, x, approximate=None):
        return (x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),)


def exact(proto):
    evaluator = ReferenceEvaluator(proto, new_ops=[Erf, Gelu])
    return lambda feeds: evaluator.run(None, {i.name: feeds[i.name] for i in proto.graph.input})


def test_gelu():
    check_rule("Gelu", [X], engine=exact)


@pytest.mark.parametrize("attrs", [{}, {"alpha": 1.7}])
def test_swish(attrs):  # ONNX Runtime has none
    check_rule("Swish", [X], attrs, single=False)
    check_rule("SwiGLU", [X, r((3, 5))], attrs, single=False)


@pytest.mark.parametrize("slope", [(5,), (3, 1), (1,), (), (3, 5)])
def test_prelu(slope):
    check_rule("PRelu", [X, r(slope)])


def slopes(op, at, attrs=None, dtype=np.float64):
    """The derivative at points, forward and reverse agreeing."""
    x = np.asarray(at, dtype)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    info = [helper.make_tensor_value_info(name, kind, list(x.shape)) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **(attrs or {}))], "g", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)], ir_version=10)
    out = []
    for mode, seed in (("forward", "fwd_x"), ("reverse", "adj_y")):
        d = differentiate(model, mode)
        onnx.checker.check_model(d, full_check=True)
        out.append(run_in_reference(d)({"x": x, seed: np.ones_like(x)})[1])
    np.testing.assert_array_equal(out[0], out[1])
    return out[0]


@pytest.mark.parametrize(
    "op, attrs, at, expected",  # recorded from PyTorch 2.13
    [
        ("Relu", {}, [0.0], [0]),
        ("LeakyRelu", {"alpha": 0.125}, [0.0], [0.125]),
        ("Elu", {"alpha": 0.5}, [0.0], [0.5]),
        ("Elu", {}, [0.0], [1]),
        ("Selu", {"alpha": 1.5, "gamma": 1.25}, [0.0], [1.875]),
        ("Celu", {"alpha": 0.5}, [0.0], [1]),
        ("Shrink", {"lambd": 0.5}, [-0.5, 0.5], [0, 0]),
        ("Shrink", {"lambd": 0.5, "bias": 0.5}, [-0.5, 0.5], [0, 0]),
        ("ThresholdedRelu", {"alpha": 1.0}, [1.0], [0]),
        ("HardSwish", {}, [-3, 3, -3.1, 3.1], [0, 1, 0, 1]),
        ("HardSigmoid", {"alpha": 0.25, "beta": 0.5}, [-2, 2, 0], [0, 0, 0.25]),
        ("Softsign", {}, [0.0], [1]),
    ],
)
def test_kinks(op, attrs, at, expected):
    np.testing.assert_array_equal(slopes(op, at, attrs), expected)


@pytest.mark.parametrize(
    "op", ["Sigmoid", "Softplus", "Gelu", "Mish", "Tanh", "Elu", "Celu", "Selu", "Softsign", "HardSwish"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_out(op, dtype):
    """At large arguments the derivative is its limit."""
    far = slopes(op, [-1e4, 1e4], dtype=dtype)
    top = {"Sigmoid": 0, "Tanh": 0, "Softsign": 0, "Selu": 1.0507009873554805}.get(op, 1)
    low = {"HardSwish": 0}.get(op, 0)
    np.testing.assert_allclose(far, [low, top], atol=1e-7)


@pytest.mark.parametrize("op", ["Relu", "Gelu", "Elu", "Swish"])
def test_half_precision(op):
    for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
        info = [helper.make_tensor_value_info(name, kind, [4]) for name in "xy"]
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", info[:1], info[1:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
        for mode in ("forward", "reverse"):
            onnx.checker.check_model(differentiate(model, mode), full_check=True)


def chain(nodes, x, constants=()):
    """The gradient of the sum of y along a chain of nodes from x, in both modes and evaluators."""
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(x.shape)) for name in "xy"]
    init = [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], init)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    feeds = {"x": x, "fwd_x": np.ones_like(x), "adj_y": np.ones_like(x)}
    out = []
    for mode in ("forward", "reverse"):
        d = differentiate(model, mode)
        out += [run_in_reference(d)(feeds)[1], run_in_ort(d)(feeds)[1], run_in_ort(d, 99)(feeds)[1]]
    return out


@pytest.mark.parametrize("steep", ["Sqrt", "Log"])
def test_infinite_slope_behind_a_cut(steep):
    """f(max(x, 0)) is constant below zero, however steep f is at zero."""
    x = np.float32([-1, -2, 4])
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Mul", ["a", "two"], ["b"]),
        helper.make_node(steep, ["b"], ["y"]),
    ]
    want = {"Sqrt": 0.35355339, "Log": 0.25}[steep]
    for got in chain(nodes, x, {"two": np.float32(2)}):
        np.testing.assert_allclose(got, [0, 0, want], rtol=1e-5)
