"""Convolutions, batched in images, kernels and biases."""

import numpy as np
import pytest
from batched import check_batched, check_node, node_model

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


#: All choices of what is batched but both images and kernels.
APART = [[0], [1], [2], [0, 2], [1, 2]]


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 3, 5), (4, 3, 2), {"pads": [1, 0]}),
        ((2, 4, 5, 6), (6, 2, 3, 2), {"group": 2, "strides": [2, 1], "dilations": [1, 2]}),
        ((1, 3, 4, 4), (6, 1, 3, 3), {"group": 3, "auto_pad": "SAME_UPPER"}),
        ((2, 2, 3, 4, 3), (3, 2, 2, 1, 2), {}),
    ],
)
def test_conv(x, w, attrs):
    check_node("Conv", [floats(*x), floats(*w), floats(w[0])], attrs, which=APART, tolerance=1e-5)
    check_node("Conv", [floats(*x), floats(*w)], attrs, which=[[0], [1]], tolerance=1e-5)
    feeds = {"x0": floats(*x), "x1": floats(*w), "x2": floats(w[0])}
    check_batched(node_model("Conv", list(feeds.values()), attrs), feeds, ["x0", "x1", "x2"], tolerance=1e-5)
    hidden = node_model("Conv", list(feeds.values()), attrs, hide=("dims",))  # no kernel extents, no windows
    check_batched(hidden, feeds, ["x0", "x1"], tolerance=1e-5, scan=True)


def test_a_large_kernel_of_every_entry():
    check_node("Conv", [floats(1, 2, 6, 6), floats(2, 2, 5, 4)], which=[[0, 1]], tolerance=1e-5, scan=True)


@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 3, 5), (3, 4, 2), {"pads": [1, 0]}),
        ((2, 4, 3, 4), (4, 3, 2, 2), {"group": 2, "strides": [2, 1], "output_padding": [1, 0]}),
        ((1, 3, 4, 4), (3, 2, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    ],
)
def test_conv_transpose(x, w, attrs):
    channels = w[1] * attrs.get("group", 1)
    check_node("ConvTranspose", [floats(*x), floats(*w), floats(channels)], attrs, which=APART, tolerance=1e-5)
    check_node("ConvTranspose", [floats(*x), floats(*w)], attrs, which=[[0], [1]], tolerance=1e-5)
    check_node("ConvTranspose", [floats(*x), floats(*w)], attrs, which=[[0, 1]], tolerance=1e-5, scan=True)
