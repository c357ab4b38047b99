"""Folding: what numpy does otherwise than ONNX, and what would be too large."""

import numpy as np
import pytest

from onnxad_ir.fold import evaluate
from onnxad_ir.types import DataType

ROW = np.arange(1, 4)


def test_max_of_three_leaves_its_operands_alone():
    operands = [np.array([1, 2, 3]), np.array([2, 1, 5]), np.array([0, 9, 0])]
    assert evaluate("Max", {}, operands).tolist() == [2, 9, 5]
    assert evaluate("Min", {}, operands).tolist() == [0, 1, 0]
    assert operands[2].tolist() == [0, 9, 0]


@pytest.mark.parametrize(
    "op, operands",
    [
        ("Tile", [ROW, np.array([10**9])]),
        ("Expand", [ROW[:1], np.array([2**32, 2**32])]),  # the product is 0 modulo 2**64
        ("ConstantOfShape", [np.array([2**32, 2**32])]),
        ("Range", [np.array(0), np.array(10**9), np.array(1)]),
    ],
)
def test_what_would_be_large_is_not_made(op, operands):
    assert evaluate(op, {}, operands) is None


@pytest.mark.parametrize("to", [DataType.STRING, DataType.FLOAT8E4M3FN, DataType.INT4])
def test_casts_that_numpy_does_otherwise(to):
    assert evaluate("Cast", {"to": int(to)}, [np.array([1, 500, -2])]) is None


def test_a_start_before_a_backward_slice():
    """ONNX clamps it to the first element, numpy (and onnx's reference evaluator) takes nothing."""
    assert evaluate("Slice", {}, [ROW, *(np.array([v]) for v in (-100, -200, 0, -1))]) is None
    assert evaluate("Slice", {}, [ROW, *(np.array([v]) for v in (-1, -200, 0, -1))]).tolist() == [3, 2, 1]


def test_flatten_and_gathers():
    x = np.arange(24).reshape(2, 3, 4)
    assert evaluate("Flatten", {"axis": -1}, [x]).shape == (6, 4)
    assert evaluate("Flatten", {"axis": 0}, [x[:0]]).shape == (1, 0)
    assert evaluate("GatherND", {}, [x, np.array([[1, -1], [0, 2]])]).tolist() == x[[1, 0], [-1, 2]].tolist()
    i = np.array([[[-1, 0, 3, 2]]])
    assert evaluate("GatherElements", {"axis": 2}, [x, i]).tolist() == [[[3, 0, 3, 2]]]
    assert evaluate("GatherND", {"batch_dims": 1}, [x, np.array([[1], [0]])]) is None


def test_a_range_between_vectors_of_one_element():
    """Operands of Range as function bodies of the specification have them."""
    assert evaluate("Range", {}, [np.array(0), np.array([3]), np.array(1)]).tolist() == [0, 1, 2]
    assert evaluate("Range", {}, [np.array(0), np.array([3, 4]), np.array(1)]) is None
