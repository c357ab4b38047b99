"""Samplers of images and Col2Im against finite differences."""

import numpy as np
import pytest

from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal
NEAR = dict(h=1e-5, rtol=1e-5)  # piecewise smooth: small steps stay on a piece


def shape(*dims):
    return np.asarray(dims, np.int64)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode, padding, align):
    attrs = dict(mode=mode, padding_mode=padding, align_corners=align)
    x, grid = r((2, 3, 4, 5)), R.uniform(-1.4, 1.4, (2, 3, 2, 2))
    check_rule("GridSample", [x, grid], attrs, **NEAR)
    if mode != "cubic":  # ONNX Runtime has no cubic kernel for volumes
        x, grid = r((1, 2, 3, 4, 5)), R.uniform(-1.4, 1.4, (1, 2, 3, 1, 3))
        check_rule("GridSample", [x, grid], attrs, **NEAR)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_grid_sample_of_opset_16(mode):
    grid = R.uniform(-1.4, 1.4, (2, 3, 2, 2))
    p = one_node("GridSample", [r((2, 3, 4, 5)), grid], {"mode": mode}, 1, "", 18)
    assert differentiate(p, "reverse").graph.node


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_a_grid_at_or_beyond_the_border_has_no_derivative(padding):
    """PyTorch's convention: zero where a coordinate is cut off, also exactly at the first and the last pixel."""
    x = np.arange(12.0).reshape(1, 1, 3, 4)
    at = np.asarray([[-1, 0.1], [1, 0.1], [-1.0, -1.0], [0.2, 1]]).reshape(1, 4, 1, 2)
    attrs = dict(padding_mode=padding, align_corners=1)
    p = one_node("GridSample", [x, at], attrs, [np.zeros((1, 1, 4, 1))], "", 20)
    got = run_in_ort(differentiate(p, "reverse"))({"x0": x, "x1": at, "adj_y0": np.ones((1, 1, 4, 1))})[2]
    np.testing.assert_allclose(got.reshape(4, 2), [[0, 4], [0, 4], [0, 0], [1.5, 0]])


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("dims", [(0, 2, 3, 4), (1, 0, 3, 4)])
def test_grid_sample_of_nothing(mode, dims):
    x, grid = r(dims), r((dims[0], 2, 3, 2))
    y = np.zeros((*dims[:2], 2, 3))
    for shapes in ("static", "symbolic"):
        p = one_node("GridSample", [x, grid], {"mode": mode}, [y], "", 20, shapes)
        got = run_in_ort(differentiate(p, "reverse"))({"x0": x, "x1": grid, "adj_y0": y})
        assert got[1].shape == x.shape and got[2].shape == grid.shape
        assert not np.asarray(got[2]).any()


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_an_undefined_grid_leaves_the_other_places_alone(mode, padding):
    x, grid, seed = r((1, 2, 3, 4)), R.uniform(-1, 1, (1, 2, 2, 2)), r((1, 2, 2, 2))
    p = one_node("GridSample", [x, grid], dict(mode=mode, padding_mode=padding), [seed], "", 20)
    run = run_in_ort(differentiate(p, "reverse"))
    clean = run({"x0": x, "x1": grid, "adj_y0": seed})[2]
    grid[0, 1, 1, 0] = np.nan
    broken = run({"x0": x, "x1": grid, "adj_y0": seed})[2]
    np.testing.assert_array_equal(broken.reshape(4, 2)[:3], clean.reshape(4, 2)[:3])


@pytest.mark.parametrize("constants", [(), (1,)])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(align, constants):
    check_rule("AffineGrid", [r((2, 2, 3)), shape(2, 3, 4, 5)], dict(align_corners=align), constants=constants)
    check_rule("AffineGrid", [r((2, 3, 4)), shape(2, 1, 3, 4, 5)], dict(align_corners=align), constants=constants)


@pytest.mark.parametrize("constants", [(), (1, 2)])
@pytest.mark.parametrize(
    "dims, image, block, attrs",
    [
        ((2, 18, 9), (4, 5), (2, 3), {}),
        ((2, 6, 8), (5, 5), (2, 3), dict(strides=[2, 1], dilations=[2, 1], pads=[0, 1, 1, 0])),
        ((1, 8, 8), (3, 3, 3), (2, 2, 2), {}),
        ((1, 8, 2), (4, 3, 5), (2, 2, 2), dict(strides=[2, 1, 2], pads=[1, 0, 0, 0, 0, 0], dilations=[3, 2, 2])),
    ],
)
def test_col2im(dims, image, block, attrs, constants):
    single = len(image) == 2 or not attrs  # ONNX Runtime is wrong in three dimensions with these strides
    inputs = [r(dims), shape(*image), shape(*block)]
    check_rule("Col2Im", inputs, attrs, constants=constants, single=single)


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize(
    "attrs, grid",
    [({}, (4, 4)), (dict(group=2, offset_group=2, strides=[2, 1], dilations=[1, 2], pads=[1, 0, 2, 1]), (4, 3))],
)
def test_deform_conv(attrs, grid, optional):
    shifts = attrs.get("offset_group", 1)
    x, w = r((2, 4, 5, 6)), r((6, 4 // attrs.get("group", 1), 2, 3))
    offset = R.uniform(-1.2, 1.2, (2, shifts * 12, *grid))
    inputs = [x, w, offset] + ([r((6,)), r((2, shifts * 6, *grid))] if optional else [])
    check_rule("DeformConv", inputs, attrs, **NEAR)


def test_deform_conv_with_a_mask_alone():
    inputs = [r((1, 1, 4, 3)), r((2, 1, 2, 2)), R.uniform(-1, 1, (1, 8, 3, 2)), None, r((1, 4, 3, 2))]
    check_rule("DeformConv", inputs, {}, **NEAR)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_grid_sample_at_special_places_is_pytorch_s(mode, padding, align):
    """At pixels, halfway between them, at borders and beyond: where a derivative is a convention."""
    torch = pytest.importorskip("torch")
    x = r((2, 3, 4, 5))

    def special(side):
        pixel = np.asarray([*range(-1, side + 1), -0.5, side - 0.5, 0.3, side - 1.2, -2.3, side + 1.7])
        return pixel / (side - 1) * 2 - 1 if align else (2 * pixel + 1) / side - 1

    grid = np.stack([R.choice(special(side), (2, 60, 1)) for side in (5, 4)], -1)
    attrs, seed = dict(mode=mode, padding_mode=padding, align_corners=align), r((2, 3, 60, 1))
    p = one_node("GridSample", [x, grid], attrs, [seed], "", 20)
    got = run_in_ort(differentiate(p, "reverse"))({"x0": x, "x1": grid, "adj_y0": seed})[1:]
    leaves = [torch.tensor(v, requires_grad=True) for v in (x, grid)]
    options = dict(mode=f"bi{mode}", padding_mode=padding, align_corners=bool(align))
    torch.nn.functional.grid_sample(*leaves, **options).backward(torch.tensor(seed))
    for g, leaf in zip(got, leaves, strict=True):
        np.testing.assert_allclose(g, leaf.grad.numpy(), rtol=1e-10, atol=1e-12)
