"""Operators that rearrange their operand, batched."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(0.2, 0.9, shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


@pytest.mark.parametrize("attrs", [{}, {"perm": [2, 0, 1]}])
def test_transpose(attrs):
    check_node("Transpose", [floats(2, 3, 4)], attrs)


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize(
    ("shape", "target", "attrs"),
    [
        ((2, 3, 4), (4, 6), {}),
        ((2, 3, 4), (0, -1), {}),
        ((2, 3, 4), (-1, 0, 2), {}),
        ((2, 3, 4), (24,), {}),
        ((1, 1), (), {}),
        ((), (1, 1), {}),
        ((0, 3), (3, 0, 2), {"allowzero": 1}),
        ((2, 6), (3, 4), {"allowzero": 1}),
    ],
)
def test_reshape(shape, target, attrs, constants):
    check_node("Reshape", [floats(*shape), ints(*target)], attrs, which=[[0]], constants=constants)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -3])
def test_flatten(axis):
    check_node("Flatten", [floats(2, 3, 4)], {"axis": axis})


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("axes", [(1,), (-1, 1), (1, 3)])
def test_squeeze_and_unsqueeze(axes, constants):
    check_node("Squeeze", [floats(2, 1, 3, 1), ints(*axes)], which=[[0]], constants=constants)
    check_node("Unsqueeze", [floats(2, 3), ints(*axes)], which=[[0]], constants=constants)


def test_squeeze_of_every_axis_of_extent_1():
    check_node("Squeeze", [floats(2, 1, 3, 1)])
    check_node("Squeeze", [floats(1, 1)])
    check_node("Squeeze", [floats(2, 3)])


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize(("shape", "target"), [((3, 1), (2, 3, 4)), ((2, 3, 1), (1, 4)), ((), (2, 3)), ((2,), (1,))])
def test_expand(shape, target, constants):
    check_node("Expand", [floats(*shape), ints(*target)], which=[[0]], constants=constants)


def test_expand_to_a_shape_of_every_entry_needs_a_scan():
    check_node("Expand", [floats(3, 1), ints(3, 1)], which=[[1]], scan=True)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_concat(axis):
    check_node("Concat", [floats(2, 3), floats(2, 3), floats(2, 3)], {"axis": axis})


@pytest.mark.parametrize("axis", [1, -2])
def test_split(axis):
    check_node("Split", [floats(2, 6, 3)], {"axis": axis, "num_outputs": 3}, outputs=3)
    check_node("Split", [floats(2, 6, 3), ints(1, 5)], {"axis": axis}, outputs=2, which=[[0]])


def test_tile():
    check_node("Tile", [floats(2, 3), ints(2, 1)], which=[[0]])
    check_node("Tile", [floats(2, 3), ints(2, 3)], constants=(1,))


@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(upper):
    check_node("Trilu", [floats(2, 3, 4)], {"upper": upper})
    check_node("Trilu", [floats(3, 4), np.array(-1, np.int64)], {"upper": upper}, which=[[0]])


def test_eye_like_is_the_same_for_every_entry():
    check_node("EyeLike", [floats(3, 4)], {"k": 1})


@pytest.mark.parametrize("axis", [0, -1, 1])
def test_one_hot(axis):
    operands = [np.array([[0, 2, -1], [3, 1, 9]]), np.array(4, np.int64), np.array([0.5, 2], np.float32)]
    check_node("OneHot", operands, {"axis": axis}, which=[[0], [2], [0, 2]])


def test_center_crop_pad():
    check_node("CenterCropPad", [floats(5, 3, 4), ints(3, 4)], {"axes": [0, -2]}, which=[[0]])
    check_node("CenterCropPad", [floats(5, 3), ints(3, 4)], which=[[0]], constants=(1,))
