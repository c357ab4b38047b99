"""Operators of ONNX Runtime that are not about attention."""

import numpy as np
import onnx
import pytest
from contrib_models import MS, R, check, model, r, sigmoid, softmax

from onnxad_passes import reverse, run_pipeline
from onnxad_rules.full_precision import erf
from onnxad_rules.ruleset import UnsupportedOperator


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def fast_gelu(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def test_gelus():
    x, b = r((2, 3)), r(3)
    check("Gelu", lambda x: [gelu(x)], [x])
    check("BiasGelu", lambda a, b: [gelu(a + b)], [x, b])
    check("FastGelu", lambda x: [fast_gelu(x)], [x])
    check("FastGelu", lambda x, b: [fast_gelu(x + b)], [x, b])
    check("QuickGelu", lambda x: [x * sigmoid(1.5 * x)], [x], {"alpha": 1.5})


@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("tb", [0, 1])
def test_fused_matmul(ta, tb):
    a, b = r((2, 4, 3) if ta else (2, 3, 4)), r((5, 4) if tb else (4, 5))

    def f(a, b):
        return [0.5 * (a.swapaxes(-1, -2) if ta else a) @ (b.T if tb else b)]

    check("FusedMatMul", f, [a, b], {"alpha": 0.5, "transA": ta, "transB": tb})


@pytest.mark.parametrize("ta", [0, 1])
def test_fused_matmul_rows_before_batch(ta):
    a, b = r((4, 2, 3) if ta else (3, 2, 4)), r((2, 4, 5))

    def f(a, b):
        a = a.transpose(1, 0, 2)
        return [(a.swapaxes(1, 2) if ta else a) @ b]

    check("FusedMatMul", f, [a, b], {"transA": ta, "transBatchA": 1})


def test_fused_gemm_and_conv():
    a, b, c = r((2, 3)), r((4, 3)), r(4)
    attrs = {"transB": 1, "alpha": 0.5, "beta": 2.0}
    leaky = {"activation": "LeakyRelu", "activation_alpha": 0.25}
    check(
        "FusedGemm",
        lambda a, b, c: [np.where((y := 0.5 * a @ b.T + 2 * c) > 0, y, 0.25 * y)],
        [a, b, c],
        {**attrs, **leaky},
    )
    x, w, z = r((2, 2, 5)), r((3, 2, 1)), r((2, 3, 5))

    def conv(x, w, b, z=0.0):
        return [np.maximum(np.einsum("ncl,oc->nol", x, w[..., 0]) + b[:, None] + z, 0)]

    check("FusedConv", conv, [x, w, r(3)], {"activation": "Relu", "kernel_shape": [1]})
    image = [x[:, :, None], w[:, :, None], r(3), z[:, :, None]]

    def with_sum(x, w, b, z):
        return [conv(x[:, :, 0], w[:, :, 0], b, z[:, :, 0])[0][:, :, None]]

    check("FusedConv", with_sum, image, {"activation": "Relu", "kernel_shape": [1, 1]})


def test_bias_softmax():
    x, b = r((2, 3, 4)), r((1, 1, 4))
    attrs = {"axis": 2, "is_inner_broadcast": 0}
    check("BiasSoftmax", lambda x, b: [softmax(x + b)], [x, b], attrs, kernel=False)
    check(
        "BiasSoftmax",
        lambda x, b: [softmax((x + b).reshape(2, 12)).reshape(2, 3, 4)],
        [x, r((1, 3, 4))],
        {"axis": 1, "is_inner_broadcast": 0},
        kernel=False,
    )


def normalized(x, gamma, beta=0.0, epsilon=1e-2):
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + epsilon) * gamma + beta


def test_skip_normalizations():
    x, skip, gamma, beta, bias = r((2, 3, 4)), r((2, 3, 4)), r(4), r(4), r(4)
    check(
        "SkipLayerNormalization",
        lambda x, s, g, b, c: [normalized(x + s + c, g, b)],
        [x, skip, gamma, beta, bias],
        {"epsilon": 1e-2},
    )
    check("SkipLayerNormalization", lambda x, s, g: [normalized(x + s, g)], [x, skip, gamma], {"epsilon": 1e-2})

    def root(x):
        return 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-2)

    check(
        "SkipSimplifiedLayerNormalization",
        lambda x, s, g: [(x + s) * root(x + s) * g],
        [x, skip, gamma],
        {"epsilon": 1e-2},
    )
    check(
        "SimplifiedLayerNormalization",
        lambda x, g: [x * root(x) * g, root(x)],
        [x, gamma],
        {"epsilon": 1e-2, "axis": -1},
        domain="",
    )


def test_embed():
    ids = np.array([[1, 0, 1], [2, 2, 0]], np.int32)
    segments = np.array([[0, 1, 1], [0, 0, 1]], np.int32)

    def f(ids, segments, w, p, s, g, b):
        return [normalized(w[ids] + p[: ids.shape[1]] + s[segments], g, b)]

    tables = [r((3, 4)), r((5, 4)), r((2, 4)), r(4), r(4)]
    check("EmbedLayerNormalization", f, [ids, segments, *tables], {"epsilon": 1e-2}, unused=("mask",), symbolic=False)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
def test_nbits(bits, zero_points):
    rows, inner, block = 3, 20, 16
    blocks = 2
    q = R.integers(0, 1 << bits, (rows, blocks, block)).astype(np.uint8)
    packed = q if bits == 8 else (q[..., 0::2] | (q[..., 1::2] << 4)).astype(np.uint8)
    zeros = R.integers(0, 1 << bits, (rows, blocks)).astype(np.uint8)
    stored = zeros if bits == 8 else (zeros[:, 0:1] | (zeros[:, 1:2] << 4)).astype(np.uint8)

    def f(a, b, scales, z=None):
        shift = zeros[..., None].astype(float) if zero_points else 1 << (bits - 1)
        w = ((q.astype(float) - shift) * scales.reshape(rows, blocks, 1)).reshape(rows, -1)[:, :inner]
        return [a @ w.T]

    inputs = [r((2, inner)), packed, 0.1 + R.random((rows, blocks)) * 0.1, *([stored] if zero_points else [])]
    attrs = {"K": inner, "N": rows, "bits": bits, "block_size": block}
    check("MatMulNBits", f, inputs, attrs, second=False)


@pytest.mark.parametrize("zero_points", [False, True])
def test_nbits_in_an_order_of_its_own(zero_points):
    """g_idx tells which block each column belongs to."""
    rng = np.random.default_rng(0)  # (other tests go on with the numbers they have)
    rows, inner, block, blocks = 3, 32, 16, 2
    q = rng.integers(0, 16, (rows, inner)).astype(np.uint8)
    packed = (q[:, 0::2] | (q[:, 1::2] << 4)).astype(np.uint8).reshape(rows, blocks, block // 2)
    order = rng.permutation(np.repeat(np.arange(blocks), block)).astype(np.int32)

    def f(a, b, scales, z, order):
        shift = 8 if z is None else z.reshape(rows, blocks)[:, order]
        return [a @ ((q.astype(float) - shift) * scales.reshape(rows, blocks)[:, order]).T]

    zeros = rng.random(rows * blocks) * 15 if zero_points else None
    inputs = [rng.standard_normal((2, inner)), packed, 0.1 + rng.random(rows * blocks) * 0.1, zeros, order]
    attrs = {"K": inner, "N": rows, "bits": 4, "block_size": block}
    check("MatMulNBits", f, inputs, attrs, wrt=[0, 2], second=False)
    proto = model("MatMulNBits", [*inputs[:3], np.zeros(rows, np.uint8), order], attrs, 1, MS, symbolic=False)
    with pytest.raises(UnsupportedOperator, match="packed zero points beside g_idx"):
        reverse(proto, ["x0"], layout="single")


def test_integer_to_float():
    a, b = R.integers(0, 256, (2, 3)).astype(np.uint8), R.integers(0, 256, (3, 4)).astype(np.uint8)
    za, zb = np.array(7, np.uint8), np.array(9, np.uint8)

    def f(a, b, sa, sb, za, zb, bias):
        return [(a.astype(float) - za) @ (b.astype(float) - zb) * (sa * sb) + bias]

    check("MatMulIntegerToFloat", f, [a, b, np.array(0.02), np.array(0.01), za, zb, r(4)], second=False)


def test_dynamic_quantization_passes_the_scale_on():
    """Rounding has no derivative; the range of the operand, its largest and smallest element, does."""
    a, b = np.array([[1.0, -0.503, 0.251]]), R.integers(0, 256, (3, 4)).astype(np.uint8)

    def f(a, b, scale, zero_point, bias):
        step = (max(a.max(), 0) - min(a.min(), 0)) / 255
        shift = np.rint(-min(a.min(), 0) / step)
        kept = (np.rint(a / step + shift) - shift) * step
        return [kept @ ((b.astype(float) - zero_point) * scale) + bias]

    inputs = [a, b, np.array(0.01), np.array(3, np.uint8), r(4)]
    check("DynamicQuantizeMatMul", f, inputs, second=False)


def test_others():
    x = r((2, 3, 3)) + 3 * np.eye(3)
    check("Inverse", lambda x: [np.linalg.inv(x)], [x])
    check("Trilu", lambda x, k: [np.tril(x, int(k))], [x, np.array(1)], {"upper": 0}, symbolic=False)


def quantized_lstm(hidden, inputs):
    def quantized(w):
        scale = (w.max() - w.min()) / 255
        zero = np.rint(-w.min() / scale)
        return np.clip(np.rint(w / scale) + zero, 0, 255).astype(np.uint8)[None], scale, np.uint8(zero)

    w, ws, wz = quantized(r((inputs, 4 * hidden)))
    q, qs, qz = quantized(r((hidden, 4 * hidden)))
    bias = r((1, 8 * hidden))
    scales = np.array([ws]), np.array([wz]), np.array([qs]), np.array([qz])
    return w, q, bias, *scales


def test_dynamic_lstm():
    hidden, width = 2, 3
    w, q, bias, ws, wz, qs, qz = quantized_lstm(hidden, width)

    def rounded(x):
        low, high = min(x.min(), 0), max(x.max(), 0)
        step = (high - low) / 255 or 1 / 255
        shift = np.rint(-low / step)
        return (np.clip(np.rint(x / step) + shift, 0, 255) - shift) * step

    def f(x, w, q, bias, _s, h, c, _p, ws, wz, qs, qz):
        a, b = (w[0] - wz.astype(float)) * ws, (q[0] - qz.astype(float)) * qs
        x, h, c = rounded(x), h[0], c[0]
        ys = []
        for step in x:
            z = step @ a + rounded(h) @ b + bias[0, : 4 * hidden] + bias[0, 4 * hidden :]
            i, o, g, n = np.split(z, 4, 1)
            c = sigmoid(g) * c + sigmoid(i) * np.tanh(n)
            h = sigmoid(o) * np.tanh(c)
            ys.append(h[None])
        return [np.stack(ys), h[None], c[None]]

    operands = [r((4, 1, width)), w, q, bias, None, r((1, 1, hidden)), r((1, 1, hidden)), None, ws, wz, qs, qz]
    # the range of the weights is constant in files
    check("DynamicQuantizeLSTM", f, operands, {"hidden_size": hidden}, wrt=[0, 3, 5, 6], second=False, symbolic=False)


def test_they_are_taken_apart_by_name():
    m = model("BiasGelu", [r((2, 3)), r(3)], {}, 1, MS, False)
    out = run_pipeline(m, "decompose{ops=com.microsoft.BiasGelu}")
    assert [n.op_type for n in out.graph.node] == ["Add", "Gelu"]
    onnx.checker.check_model(out)
