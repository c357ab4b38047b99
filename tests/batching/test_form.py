"""Operators that look at the form of their operand only: their results are the same for every entry."""

import numpy as np
import pytest
from batched import check_node

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize("attrs", [{}, {"start": 1}, {"start": -2, "end": -1}, {"start": 1, "end": 5}])
def test_shape(attrs):
    check_node("Shape", [X], attrs)


def test_size():
    check_node("Size", [X])
    check_node("Size", [np.float32(2)])
