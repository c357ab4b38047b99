"""Reductions, cumulations and what works along an axis, batched."""

import numpy as np
import pytest
from batched import check_batched, check_node, node_model

RNG = np.random.default_rng(0)
OPERATORS = [
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
]  # fmt: skip


def floats(*shape):
    return RNG.uniform(0.2, 0.9, shape).astype(np.float32)


@pytest.mark.parametrize("op", OPERATORS)
def test_a_scalar_is_reduced_too(op):
    check_node(op, [np.float32(0.7)], tolerance=1e-5)


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceLogSumExp", "ReduceL2"])
def test_reductions(op, constants):
    for attrs in ({}, {"keepdims": 0}):
        check_node(op, [floats(2, 3, 4)], attrs, tolerance=1e-5)
        for axes in ((0,), (-1, 0), (1,)):
            operands = [floats(2, 3, 4), np.array(axes, np.int64)]
            check_node(op, operands, attrs, which=[[0]], constants=constants, tolerance=1e-5)


@pytest.mark.parametrize("attrs", [{}, {"noop_with_empty_axes": 1}, {"keepdims": 0}])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax"])
def test_no_axes(op, attrs):
    for constants in ((), (1,)):
        check_node(op, [floats(2, 3), np.zeros(0, np.int64)], attrs, which=[[0]], constants=constants)
    check_node(op, [floats(2, 3)], attrs)


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd", "ReduceMean"])
def test_axes_and_ranks_that_only_the_run_knows(op):
    for axes in ((), (1,), (-2, -1)):
        for attrs in ({}, {"keepdims": 0}, {"noop_with_empty_axes": 1}):
            feeds = {"x0": floats(2, 3, 4), "x1": np.array(axes, np.int64)}
            model = node_model(op, list(feeds.values()), attrs, hide=("rank",))
            check_batched(model, feeds, ["x0"], tolerance=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin", "Softmax", "LogSoftmax", "Hardmax", "LpNormalization"])
def test_along_an_axis(op, axis):
    check_node(op, [floats(3, 4)], {"axis": axis}, tolerance=1e-5)


@pytest.mark.parametrize("axis", [0, -1])
def test_cumulations(axis):
    for attrs in ({}, {"reverse": 1}, {"exclusive": 1}):
        check_node("CumSum", [floats(3, 4), np.array(axis, np.int32)], attrs, which=[[0]], tolerance=1e-5)
        check_node("CumSum", [floats(3, 4), np.array(axis, np.int64)], attrs, constants=(1,), tolerance=1e-5)
