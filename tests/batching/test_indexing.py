"""Operators that read and write at indices, batched in what they read and in where they read."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(0.2, 0.9, shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("indices", [np.array(1), np.array([2, 0]), np.array([[0, -1, 1]])])
def test_gather(axis, indices):
    check_node("Gather", [floats(3, 4, 5), indices], {"axis": axis})


@pytest.mark.parametrize("axis", [0, -1])
def test_gather_elements(axis):
    check_node("GatherElements", [floats(3, 4), RNG.integers(-3, 3, (2, 3))], {"axis": axis})


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_gather_nd(batch_dims):
    check_node("GatherND", [floats(2, 3, 4), np.array([[[1], [0]], [[1], [-1]]])], {"batch_dims": batch_dims})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max"])
def test_scatter_elements(reduction):
    indices = np.array([[0, 2, 1], [2, 1, 0]])
    operands = [floats(4, 3), indices, floats(2, 3)]
    check_node("ScatterElements", operands, {"axis": 1, "reduction": reduction})
    check_node("ScatterElements", operands, {"axis": -2, "reduction": reduction}, which=[[0], [2], [0, 1, 2]])


@pytest.mark.parametrize("reduction", ["none", "add", "min"])
def test_scatter_nd(reduction):
    check_node("ScatterND", [floats(4, 3), np.array([[2], [0]]), floats(2, 3)], {"reduction": reduction})
    operands = [floats(4, 3), np.array([[[2, 1], [0, -1]]]), floats(1, 2)]
    check_node("ScatterND", operands, {"reduction": reduction})


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode):
    operands = [floats(2, 1, 4, 3), floats(2, 1, 2, 3), np.array([1, 2], np.int64)]
    check_node("TensorScatter", operands, {"mode": mode}, opset=24, which=[[0], [1], [0, 1], [0, 2], [0, 1, 2]])
    check_node("TensorScatter", operands[:2], {"mode": mode, "axis": 2}, opset=24)


@pytest.mark.parametrize("attrs", [{}, {"batch_axis": 0, "time_axis": 1}])
def test_reverse_sequence(attrs):
    x = floats(3, 4, 2) if attrs else floats(4, 3, 2)
    check_node("ReverseSequence", [x, np.array([1, 4, 3], np.int64)], attrs)
