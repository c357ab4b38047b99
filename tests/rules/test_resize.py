"""Resize in every mode against finite differences."""

import numpy as np
import pytest

from onnxad_rules.ruleset import NotDifferentiable
from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal
TRANSFORMS = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


def check(x, attrs, scales=None, sizes=None, roi=None, **options):
    inputs = [x, roi, scales if scales is None else np.asarray(scales, np.float32)]
    inputs += [] if sizes is None else [np.asarray(sizes, np.int64)]
    constants = [i for i in (1, 2, 3) if i < len(inputs) and inputs[i] is not None]
    options = dict(wrt=(0,)) | options
    check_rule("Resize", inputs, attrs, constants=constants, **options)


# ONNX Runtime and the reference evaluator place corners differently where an extent is rounded, and ONNX Runtime
# has no half_pixel_symmetric for every mode: single precision is compared where they agree
WHOLE = [(1, 1, 2, 3), (1, 1, 0.5, 2)]
BROKEN = [(1, 1, 0.6, 0.7), (1, 1, 1.7, 1)]


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("scales", WHOLE + BROKEN)
def test_linear(transform, scales):
    single = scales in WHOLE or transform != "align_corners"
    check(r((1, 2, 4, 5)), dict(mode="linear", coordinate_transformation_mode=transform), scales, single=single)


@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("scales", WHOLE + BROKEN)
def test_nearest(transform, rounding, scales):
    attrs = dict(mode="nearest", coordinate_transformation_mode=transform, nearest_mode=rounding)
    check(r((1, 2, 4, 5)), attrs, scales, single=False)
    if transform in ("half_pixel", "asymmetric") and scales in WHOLE:
        check(r((1, 2, 4, 5)), attrs, scales, order=1)


@pytest.mark.parametrize("attrs", [dict(), dict(exclude_outside=1), dict(cubic_coeff_a=-0.5), dict(antialias=1)])
@pytest.mark.parametrize("scales", [(1, 1, 2, 1.5), (1, 1, 0.6, 0.75)])
def test_cubic(attrs, scales):
    check(r((1, 2, 5, 4)), dict(mode="cubic", **attrs), scales, single=not attrs.get("antialias"))


def test_antialias_linear():
    check(r((1, 2, 6, 8)), dict(mode="linear", antialias=1), (1, 1, 0.5, 0.75))


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes(policy, mode):
    attrs = dict(mode=mode, axes=[2, 3], keep_aspect_ratio_policy=policy)
    check(r((1, 2, 3, 4)), attrs, sizes=(7, 8))
    check(r((1, 2, 4, 6)), {**attrs, "axes": [3, 2]}, sizes=(4, 3))


@pytest.mark.parametrize("outside", [0.0, 2.5])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crop(mode, outside):
    attrs = dict(mode=mode, coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=outside)
    roi = np.array([0, 0, 0.3, -0.2, 1, 1, 0.8, 1.3])
    check(r((1, 2, 4, 5)), attrs, sizes=(1, 2, 3, 6), roi=roi, single=False)
    check(r((1, 2, 4, 5)), {**attrs, "axes": [3]}, sizes=(4,), roi=np.array([0.1, 0.9]), single=False)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_that_keeps_its_aspect(mode, policy):
    attrs = dict(mode=mode, coordinate_transformation_mode="tf_crop_and_resize", keep_aspect_ratio_policy=policy)
    roi = np.array([0.32, -0.23, 0.81, 1.31])
    check(r((1, 2, 4, 5)), {**attrs, "axes": [2, 3]}, sizes=(3, 7), roi=roi, single=False)
    # ONNX Runtime has other coordinates here: the transpose is that of its own operator
    x, sizes = r((4, 5)).astype(np.float32), np.array([3, 7], np.int64)
    model = one_node("Resize", [x, roi.astype(np.float32), None, sizes], attrs, 1, "", 22, constants=(1, 3))
    y = run_in_ort(model)({"x0": x})[0]
    ct = r(y.shape).astype(np.float32)
    dx = run_in_ort(differentiate(model, "reverse"))({"x0": x, "adj_y0": ct})[1]
    assert np.isclose((dx * x).sum(), (ct * y).sum(), rtol=1e-4)


@pytest.mark.parametrize(
    "shape, scales", [((1, 2, 5), (1, 1, 2)), ((1, 2, 2, 3, 2), (1, 1, 2, 2, 1.5)), ((3, 4), (2, 1.5))]
)
def test_ranks(shape, scales):
    check(r(shape), dict(mode="linear"), scales)
    check(r(shape), dict(mode="nearest"), scales)


def test_operands_at_run_time():
    x = r((1, 2, 4, 5))
    for attrs in (dict(mode="linear"), dict(mode="nearest")):
        inputs = [x, None, np.array([1, 1, 2, 0.7], np.float32)]
        check_rule("Resize", inputs, attrs, wrt=(0,), order=1)
        inputs = [x, None, None, np.array([1, 2, 3, 7], np.int64)]
        check_rule("Resize", inputs, attrs, wrt=(0,), order=1)


@pytest.mark.parametrize(
    "shape, sizes", [((1, 2, 4, 5), (1, 2, 3, 6)), ((1, 1, 3, 4), (1, 1, 1, 3)), ((1, 1, 1, 4), (1, 1, 2, 3))]
)
def test_region_of_interest(shape, sizes):
    attrs = dict(mode="linear", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=0.5)
    # outside the image by more than a finite difference, or well inside
    roi = np.array([0, 0, 0.31, -0.21, 1, 1, 0.83, 1.34])[[2, 3, 6, 7]]
    inputs = [r(shape), roi, None, np.array(sizes[2:], np.int64)]
    check_rule("Resize", inputs, {**attrs, "axes": [2, 3]}, constants=(3,), single=False)


def test_scales_are_refused():
    inputs = [r((1, 1, 2, 2)).astype(np.float32), None, np.array([1, 1, 2, 2], np.float32)]
    with pytest.raises(NotDifferentiable, match="scales"):
        differentiate(one_node("Resize", inputs, dict(mode="linear"), 1, "", 22), "reverse", wrt=["x2"])


def test_repeats_are_one_pool():
    x = r((1, 2, 3, 4)).astype(np.float32)
    model = one_node("Resize", [x, None, np.array([1, 1, 2, 3], np.float32)], {}, 1, "", 22, constants=(2,))
    reverse = differentiate(model, "reverse")
    assert "AveragePool" in {n.op_type for n in reverse.graph.node}
    ct = r((1, 2, 6, 12)).astype(np.float32)
    got = run_in_ort(reverse)({"x0": x, "adj_y0": ct})[1]
    assert np.allclose(got, ct.reshape(1, 2, 3, 2, 4, 3).sum((3, 5)), atol=1e-5)
