import numpy as np
import pytest

from onnxad_rules.testing import check_rule

R = np.random.default_rng(0)
r = R.standard_normal
BIG = 2**63 - 1


def ints(*a):
    return np.asarray(a, np.int64)


def slices(x, starts, ends, axes=None, steps=None, dtype=np.int64):
    """With every bound known only at run time, with all constant, and with only the ends at run time."""
    xs = [x] + [None if v is None else np.asarray(v, dtype) for v in (starts, ends, axes, steps)]
    while xs[-1] is None:
        xs.pop()
    given = [i for i in range(1, len(xs)) if xs[i] is not None]
    check_rule("Slice", xs)
    check_rule("Slice", xs, constants=given)
    check_rule("Slice", xs, constants=[i for i in given if i != 2])


@pytest.mark.parametrize(
    "starts, ends, axes",
    [
        ([1], [4], [0]),
        ([0], [4], [0]),
        ([2], [BIG], [-1]),
        ([-3, 1], [-1, 99], [1, 0]),
        ([-99], [2], [1]),
        ([99], [100], [0]),
        ([4], [2], [1]),
        ([1, 0, 2], [3, 2, 3], None),
        ([0, 0], [99, BIG], None),
    ],
)
def test_slice(starts, ends, axes):
    slices(r((5, 4, 3)), starts, ends, axes)


@pytest.mark.parametrize(
    "starts, ends, axes, steps",
    [
        ([0], [BIG], [1], [2]),
        ([1, -1], [-1, -99], [0, 2], [3, -1]),
        ([-2], [-99], [1], [-2]),
        ([99, 1], [-99, 6], None, [-3, 2]),
        ([3], [1], [0], [2]),
        ([1], [3], [0], [1]),
        ([6], [1], [1], [-4]),
    ],
)
def test_slice_steps(starts, ends, axes, steps):
    slices(r((5, 7, 3)), starts, ends, axes, steps)


@pytest.mark.parametrize("shape, axis", [((2, 21), 1), ((21, 2), 0), ((21, 20), 0), ((3, 21, 4, 5), 1)])
@pytest.mark.parametrize("start, step", [(0, 2), (1, 3), (2, 8), (1, 9), (-2, -2), (-1, -10)])
def test_slice_steps_of_narrow_and_wide_runs(shape, axis, start, step):
    """The zeros between the elements come from Concat or Pad, by the number and width of the runs."""
    end = BIG if step > 0 else -BIG
    check_rule("Slice", [r(shape), *map(ints, (start, end, axis, step))], constants=[1, 2, 3, 4])


def test_slice_int32_and_empty():
    slices(r((5, 3)), [1], [-1], [0], [1], np.int32)
    slices(r((0, 3)), [1], [4], [0])
    slices(r((4, 0)), [1], [4], [0], [2])


def pads(x, values, mode="constant", constant=None, axes=None, **more):
    """With the pads known only at run time, and constant."""
    xs = [
        x,
        ints(*values),
        None if constant is None else np.asarray(constant),
        None if axes is None else ints(*axes),
    ]
    while xs[-1] is None:
        xs.pop()
    attrs = {} if mode == "constant" else {"mode": mode}
    check_rule("Pad", xs, attrs, **more)
    check_rule("Pad", xs, attrs, constants=[1], **more)
    if axes is not None:
        check_rule("Pad", xs, attrs, constants=[1, 3], **more)


@pytest.mark.parametrize(
    "values, axes",
    [
        ((1, 0, 0, 2), None),
        ((1, 2, 3, 0), None),
        ((0, 0, 0, 0), None),
        ((-1, 2, 1, -2), None),
        ((-1, 0, 0, -3), None),
        ((2, 1), (-1,)),
        ((2, -1, 1, 3), (1, 0)),
    ],
)
@pytest.mark.parametrize("constant", [None, 0.7])
def test_pad_constant(values, axes, constant):
    pads(r((3, 5)), values, constant=constant, axes=axes)


def test_pad_of_narrow_axes():
    """int32 axes beside int64 pads: the transpose is a Slice, whose bounds and axes are of one type."""
    check_rule("Pad", [r((3, 5)), ints(1, 2), None, np.asarray([1], np.int32)])
    check_rule("Pad", [r((3, 5)), ints(-1, 2), None, np.asarray([1], np.int32)], constants=[1])


def test_pad_constant_alone():
    check_rule("Pad", [r((2, 3)), ints(1, 0, 0, 2), np.asarray(0.3)], wrt=[2])
    check_rule("Pad", [r((2, 3)), ints(1, 0, 0, 2), np.asarray([0.3])], wrt=[0, 2])
    check_rule("Pad", [r((0, 3)), ints(1, 0, 0, 2), np.asarray(0.3)])


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(
    "values, axes",
    [
        ((1, 0, 0, 2), None),
        ((2, 3, 1, 2), None),
        ((0, 3, 0, 0), None),
        ((2, 1), (-1,)),
        ((-1, 2, 1, 0), (1, 0)),
        ((-1, 0, 0, -2), None),
    ],
)
def test_pad_repeating(mode, values, axes):
    pads(r((3, 5)), values, mode, axes=axes)


@pytest.mark.parametrize("mode", ["edge", "wrap"])
def test_pad_wider_than_the_data(mode):
    pads(r((2, 3)), (0, 4, 3, 5), mode)
    pads(r((1, 2)), (2, 1, 1, 1), mode)
