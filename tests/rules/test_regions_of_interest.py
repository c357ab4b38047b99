"""RoiAlign against finite differences, MaxRoiPool against the places of the maxima."""

import numpy as np
import pytest

from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal
# one inside, one beyond each edge, one smaller than a pixel
BOXES = np.asarray([[0.317, 0.6, 4.43, 5.31], [-1.2, 1.1, 2.3, 2.9], [3.1, 2.2, 9.7, 4.9], [1.21, 1.32, 1.53, 1.64]])


@pytest.mark.parametrize("samples", [0, 2, 3])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode, transform, samples):
    attrs = dict(mode=mode, coordinate_transformation_mode=transform, sampling_ratio=samples, spatial_scale=0.9)
    attrs |= dict(output_height=3, output_width=2)
    images = np.asarray([1, 0, 1, 0])
    # newer opsets have no kernel in ONNX Runtime
    check_rule("RoiAlign", [r((2, 3, 6, 7)), BOXES, images], attrs, opset=18, h=1e-5, rtol=1e-5)


@pytest.mark.parametrize("samples", [0, 2])
def test_roi_align_of_one_image(samples):
    inputs = [r((1, 3, 6, 7)), BOXES[:2], np.zeros(2, np.int64)]
    check_rule("RoiAlign", inputs, dict(sampling_ratio=samples), opset=18, h=1e-5, rtol=1e-5)


def test_roi_align_without_regions():
    attrs = dict(sampling_ratio=2, output_height=3, output_width=2)
    inputs = [r((2, 3, 6, 7)), BOXES[:0], np.zeros(0, np.int64)]
    check_rule("RoiAlign", inputs, attrs, opset=18)


@pytest.mark.parametrize("attrs", [dict(pooled_shape=[3, 2]), dict(pooled_shape=[2, 3], spatial_scale=0.7)])
def test_max_roi_pool(attrs):
    """Single precision only, as in ONNX Runtime: all pixels differ, so a maximum tells its place."""
    x = (R.permutation(2 * 3 * 6 * 7).reshape(2, 3, 6, 7) * 0.1 + 1).astype(np.float32)
    boxes = np.asarray([[1, 0.3, 0.6, 4.4, 5.3], [0, 1, 1, 2.5, 2.9], [1, 3.1, 2.2, 9.7, 4.9]], np.float32)
    feeds = {"x0": x, "x1": boxes}
    y = run_in_ort(one_node("MaxRoiPool", [x, boxes], attrs, 1, "", 18))(feeds)[0]
    t, seed = r(x.shape).astype(np.float32), r(y.shape).astype(np.float32)
    jacobian = np.zeros((y.size, x.size), np.float32)
    for row, (place, value) in zip(jacobian, np.ndenumerate(y), strict=True):
        image = int(boxes[place[0], 0])
        hit = np.zeros(x.shape, bool)
        hit[image, place[1]] = x[image, place[1]] == value
        row[:] = hit.reshape(-1)
    assert (jacobian.sum(1) == (y.reshape(-1) != 0)).all()
    p = one_node("MaxRoiPool", [x, boxes], attrs, [y], "", 18)
    got = run_in_ort(differentiate(p, "forward", wrt=["x0"]))({**feeds, "fwd_x0": t})[1]
    np.testing.assert_allclose(got.reshape(-1), jacobian @ t.reshape(-1), rtol=1e-6)
    got = run_in_ort(differentiate(p, "reverse"))({**feeds, "adj_y0": seed})
    np.testing.assert_allclose(got[1].reshape(-1), seed.reshape(-1) @ jacobian, rtol=1e-5, atol=1e-6)
    assert not got[2].any()
