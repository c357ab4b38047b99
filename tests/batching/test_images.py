"""Operators on a batch of images, batched."""

import numpy as np
import pytest
from batched import check_batched, check_node, node_model

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.permutation(np.linspace(-1, 1, int(np.prod(shape)))).reshape(shape).astype(np.float32)


X = floats(2, 4, 6, 5)


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("AveragePool", {"kernel_shape": [2, 3], "pads": [1, 0, 0, 1], "count_include_pad": 1}),
        ("LpPool", {"kernel_shape": [2, 2], "p": 3}),
        ("GlobalAveragePool", {}),
        ("GlobalMaxPool", {}),
        ("LRN", {"size": 3}),
        ("DepthToSpace", {"blocksize": 2, "mode": "CRD"}),
        ("DepthToSpace", {"blocksize": 2}),
    ],
)
def test_image_by_image(op, attrs):
    check_node(op, [X], attrs, tolerance=1e-5)


def test_space_to_depth():
    check_node("SpaceToDepth", [floats(2, 1, 4, 6)], {"blocksize": 2})


@pytest.mark.parametrize("order", [0, 1])
def test_max_pool(order):
    attrs = {"kernel_shape": [2, 2], "strides": [2, 1], "storage_order": order}
    check_node("MaxPool", [X], {"kernel_shape": [3, 2]})
    check_node("MaxPool", [X], attrs, outputs=2)


def test_max_unpool():
    x = floats(2, 1, 2, 2)
    places = np.array([0, 3, 9, 14]).reshape(1, 1, 2, 2)
    indices = np.concatenate([places, places[..., ::-1] + 16])
    check_node("MaxUnpool", [x, indices], {"kernel_shape": [2, 2], "strides": [2, 2]})


def test_col2im():
    operands = [floats(2, 12, 6), np.array([4, 3], np.int64), np.array([2, 2], np.int64)]
    check_node("Col2Im", operands, which=[[0]], constants=(1, 2))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize(mode):
    attrs = {"mode": mode}
    scales = np.array([1, 1, 2, 1.5], np.float32)
    check_node("Resize", [X, None, scales], attrs, constants=(2,), tolerance=1e-5)
    sizes = np.array([2, 4, 9, 7], np.int64)
    model = node_model("Resize", [X, None, None, sizes], attrs, constants=(3,))
    check_batched(model, {"x0": X}, ["x0"], tolerance=1e-5)
    axes = {**attrs, "axes": [-1, 2]}
    check_node("Resize", [X, None, scales[2:]], axes, constants=(2,), tolerance=1e-5)
    check_node("Resize", [X, None, None, sizes[2:]], axes, constants=(3,), tolerance=1e-5)


def test_resize_by_scales_that_only_the_run_knows():
    scales = np.array([1, 1, 2, 1.5], np.float32)
    check_node("Resize", [X, None, scales], {"mode": "nearest"}, which=[[0]])
    check_node("Resize", [X, None, scales], {"mode": "linear"}, which=[[0]], scan=True, tolerance=1e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode):
    rois = np.array([[0, 0, 3, 2], [1, 1, 4, 4.5], [0.5, 0, 2, 3]], np.float32)
    operands = [floats(2, 3, 6, 5), rois, np.array([0, 1, 1], np.int64)]
    attrs = {"mode": mode, "output_height": 2, "output_width": 3, "sampling_ratio": 2}
    check_node("RoiAlign", operands, attrs, tolerance=1e-5)


def test_max_roi_pool():
    rois = np.array([[0, 0, 0, 3, 2], [1, 1, 1, 4, 4]], np.float32)
    operands = [floats(2, 3, 6, 5), rois]
    feeds = {"x1*": np.stack([rois, rois[::-1], rois])}
    check_node("MaxRoiPool", operands, {"pooled_shape": [2, 2]}, which=[[0]])
    check_node("MaxRoiPool", operands, {"pooled_shape": [2, 2]}, which=[[1]], feeds=feeds)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode):
    check_node("GridSample", [floats(2, 3, 4, 5), floats(2, 3, 2, 2)], {"mode": mode}, tolerance=1e-5)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(align):
    for theta, size in ((floats(2, 2, 3), (2, 3, 4, 5)), (floats(2, 3, 4), (2, 1, 3, 4, 2))):
        operands = [theta, np.array(size, np.int64)]
        check_node("AffineGrid", operands, {"align_corners": align}, which=[[0]], tolerance=1e-5)
        check_node("AffineGrid", operands, {"align_corners": align}, constants=(1,), tolerance=1e-5)
