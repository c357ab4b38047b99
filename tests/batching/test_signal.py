"""Transforms of signals, batched."""

import numpy as np
import pytest
from batched import check_node

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("axis", [None, 1, -2, 0])
def test_dft(axis):
    operands = [floats(2, 5, 1), *([] if axis is None else [None, np.array(axis, np.int64)])]
    check_node("DFT", operands, which=[[0]], tolerance=1e-4)
    check_node("DFT", operands, which=[[0]], constants=(2,), tolerance=1e-4)


def test_dft_of_old():
    check_node("DFT", [floats(2, 5, 2)], opset=18, tolerance=1e-4)
    check_node("DFT", [floats(2, 5, 2)], {"axis": 0, "inverse": 1}, opset=18, tolerance=1e-4)


def test_stft():
    operands = [floats(2, 12, 1), np.array(3, np.int64), floats(4)]
    check_node("STFT", operands, which=[[0]], tolerance=1e-4)
    check_node("STFT", operands, which=[[2], [0, 2]], tolerance=1e-4)
