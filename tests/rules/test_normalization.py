"""Normalizations against finite differences."""

import numpy as np
import pytest

from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal


def positive(*shape):
    return R.random(shape) + 0.5


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 2, 4), (2, 1, 2, 3, 2)])
def test_batch_normalization(shape):
    c = shape[1]
    check_rule("BatchNormalization", [r(shape), r(c), r(c), r(c), positive(c)], dict(epsilon=0.1))


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 2, 4)])
def test_batch_normalization_in_training(shape):
    c = shape[1]
    attrs = dict(epsilon=0.1, momentum=0.7, training_mode=1)
    inputs = [r(shape), r(c), r(c), r(c), positive(c)]
    # ONNX Runtime moves the running variance by something else than the specification says
    check_rule("BatchNormalization", inputs, attrs, outputs=3, single=False, engine=run_in_reference)


@pytest.mark.parametrize("shape, axis", [((3, 4), -1), ((2, 3, 4), 1), ((2, 3, 2, 3), -2), ((5,), 0)])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(shape, axis, bias):
    tail = shape[axis:]
    inputs = [r(shape), r(tail)] + ([r(tail)] if bias else [])
    check_rule("LayerNormalization", inputs, dict(axis=axis, epsilon=0.1))


def test_layer_normalization_with_broadcast_scale():
    check_rule("LayerNormalization", [r((2, 3, 4)), r((1,)), r((3, 4))], dict(axis=1, epsilon=0.1), single=False)


def check_in_single(op, inputs, attrs, compute, outputs=1, opset=22):
    """Derivatives in single precision against finite differences of `compute`, the operator in numpy, in double."""
    narrow = [v.astype(np.float32) for v in inputs]
    ts = [r(v.shape) for v in inputs]
    feeds = {f"x{i}": v for i, v in enumerate(narrow)} | {f"fwd_x{i}": t.astype(np.float32) for i, t in enumerate(ts)}
    model = one_node(op, narrow, attrs, outputs, "", opset)
    got = run_in_ort(differentiate(model, "forward"))(feeds)
    h = 1e-5
    up, down = (compute(*(v + s * t for v, t in zip(inputs, ts, strict=True))) for s in (h, -h))
    tangents = [(a - b) / (2 * h) for a, b in zip(up, down, strict=True)]
    for a, b in zip(got[outputs:], tangents, strict=True):
        assert np.allclose(a, b, atol=1e-4)
    cts = [r(y.shape) for y in up]
    feeds |= {f"adj_y{i}": c.astype(np.float32) for i, c in enumerate(cts)}
    back = run_in_ort(differentiate(model, "reverse"))(feeds)[outputs:]
    want = sum((c * t).sum() for c, t in zip(cts, tangents, strict=True))
    assert np.isclose(sum((b * t).sum() for b, t in zip(back, ts, strict=True)), want, atol=1e-3)


@pytest.mark.parametrize("outputs", [2, 3])
@pytest.mark.parametrize("axis", [-1, 1])
def test_layer_normalization_with_statistics(axis, outputs):
    # the statistics of double-precision data are in single precision: they have no finite differences
    x = r((2, 3, 4))

    def compute(x, scale, bias):
        axes = tuple(range(axis % 3, 3))
        mean = x.mean(axes, keepdims=True)
        inverse = 1 / np.sqrt(x.var(axes, keepdims=True) + 0.1)
        return ((x - mean) * inverse * scale + bias, mean, inverse)[:outputs]

    inputs = [x, r(x.shape[axis:]), r(x.shape[axis:])]
    check_in_single("LayerNormalization", inputs, dict(axis=axis, epsilon=0.1), compute, outputs)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 2, 4), (1, 2, 2, 3, 2)])
def test_instance_normalization(shape):
    check_rule("InstanceNormalization", [r(shape), r(shape[1]), r(shape[1])], dict(epsilon=0.1))


GROUPS = [((2, 4, 3), 2), ((2, 6, 2, 3), 3), ((2, 4, 3), 1), ((2, 3, 4), 3)]


@pytest.mark.parametrize("shape, groups", GROUPS)
def test_group_normalization(shape, groups):
    attrs = dict(num_groups=groups, epsilon=0.1, stash_type=11)
    check_rule("GroupNormalization", [r(shape), r(shape[1]), r(shape[1])], attrs)


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("shape, groups", GROUPS)
def test_group_normalization_in_single(shape, groups, opset, monkeypatch):
    # opset 18 has one scale a group; onnx calls it deprecated
    monkeypatch.setattr("onnxad_rules.testing.verify", lambda model: None)

    def compute(x, scale, bias):
        flat = x.reshape(x.shape[0], groups, -1)
        flat = (flat - flat.mean(2, keepdims=True)) / np.sqrt(flat.var(2, keepdims=True) + 0.1)
        if opset == 18:
            return [(flat * scale[:, None] + bias[:, None]).reshape(x.shape)]
        ones = (-1,) + (1,) * (x.ndim - 2)
        return [flat.reshape(x.shape) * scale.reshape(ones) + bias.reshape(ones)]

    c = groups if opset == 18 else shape[1]
    attrs = dict(num_groups=groups, epsilon=0.1)
    check_in_single("GroupNormalization", [r(shape), r(c), r(c)], attrs, compute, opset=opset)


@pytest.mark.parametrize("shape, axis", [((3, 4), -1), ((2, 3, 4), 1), ((2, 3, 2, 3), -2)])
def test_rms_normalization(shape, axis):
    check_rule("RMSNormalization", [r(shape), r(shape[axis:])], dict(axis=axis, epsilon=0.1))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("shape, axis", [((3, 4), -1), ((2, 3, 4), 0), ((2, 3, 4), 1)])
def test_lp_normalization(shape, axis, p):
    x = r(shape)
    check_rule("LpNormalization", [x + 0.3 * np.sign(x)], dict(axis=axis, p=p))


def test_lp_normalization_of_zeros_has_derivative_zero():
    x = np.array([[0, 0, 0], [3, 0, 4]], np.float32)
    for p in (1, 2):
        model = one_node("LpNormalization", [x], dict(p=p), 1, "", 22)
        for mode, seed in (("forward", "fwd_x0"), ("reverse", "adj_y0")):
            got = run_in_ort(differentiate(model, mode))({"x0": x, seed: np.ones_like(x)})[1]
            assert np.isfinite(got).all() and (got[0] == 0).all() and (got[1] != 0).any()


@pytest.mark.parametrize("axes", [None, [0, 2], [1, 3]])
def test_mean_variance_normalization(axes):
    # in double precision the function body that the specification has for it does not type
    over = (0, 2, 3) if axes is None else tuple(axes)

    def compute(x):
        return [(x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + 1e-9)]

    attrs = {} if axes is None else dict(axes=axes)
    check_in_single("MeanVarianceNormalization", [r((2, 3, 2, 4))], attrs, compute)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_lrn(size):
    attrs = dict(size=size, alpha=0.7, beta=0.6, bias=1.5)
    check_rule("LRN", [r((2, 4, 2, 3))], attrs, single=size % 2 == 1)  # ONNX Runtime has odd sizes only
