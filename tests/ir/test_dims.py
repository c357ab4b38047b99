"""Arithmetic on extents."""

import pytest

from onnxad_ir import dims


def test_sums_and_products_are_canonical():
    assert dims.add("N", 2) == dims.add(2, "N") != dims.add("N", 3)
    assert dims.mul(dims.add("N", 1), "M") == dims.add(dims.mul("M", "N"), "M")
    assert dims.sub(dims.add("N", "M"), "M") == "N"
    assert dims.total(["N", 1, "M", 2, "N"]) == dims.add(dims.mul(2, "N"), dims.add("M", 3))


@pytest.mark.parametrize("build", [dims.total, lambda xs: __import__("functools").reduce(dims.add, xs)])
def test_long_sums_have_no_name_and_equal_nothing(build):
    long = build([f"N{i}" for i in range(1000)])
    assert long == dims.TOO_LONG
    assert dims.add(long, 1) == dims.mul(long, 2) == dims.TOO_LONG
    assert dims.mul(long, 0) == 0
    assert dims.broadcast_dim(long, long) is None
    assert dims.floordiv(long, long) is dims.floordiv(dims.mul("N", long), "N") is None


def test_long_products():
    square = dims.product([dims.add(f"A{i}", f"B{i}") for i in range(12)])
    assert square == dims.TOO_LONG
    power: dims.Dim = "N"
    for _ in range(12):
        power = dims.mul(power, power)
    assert power == dims.TOO_LONG
