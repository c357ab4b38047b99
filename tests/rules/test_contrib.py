"""Operators of ONNX Runtime against the same functions written in numpy, in double precision.

Each function is checked against ONNX Runtime's kernel, and its finite differences are the reference for both modes, with
static and with symbolic shapes, and for order two.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxad_passes import forward, reverse, run_pipeline
from onnxad_rules.full_precision import erf
from onnxad_rules.testing import run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal
MS = "com.microsoft"


def model(op, inputs, attrs, results, domain, symbolic, unused=()):
    names = [None if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(
        op, [n or "" for n in names], [*(f"y{i}" for i in range(results)), *unused], domain=domain, **attrs
    )
    infos = []
    for name, x in zip(names, inputs, strict=True):
        if x is not None:
            dtype = TensorProto.FLOAT if x.dtype == np.float64 else helper.np_dtype_to_tensor_dtype(x.dtype)
            shape = [f"{name}_{k}" for k in range(x.ndim)] if symbolic else x.shape
            infos.append(helper.make_tensor_value_info(name, dtype, shape))
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(results)]
    graph = helper.make_graph([node], "g", infos, outputs)
    return helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(MS, 1)]
    )


def single(x):
    return np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else x


def central(f, at, ts, h):
    up, down = (f(*(x if t is None else x + s * h * t for x, t in zip(at, ts, strict=True))) for s in (1, -1))
    return [(a - b) / (2 * h) for a, b in zip(up, down, strict=True)]


def check(op, f, inputs, attrs=None, wrt=None, domain=MS, second=True, symbolic=True, tol=3e-3, unused=(), kernel=True):
    """`f` maps the inputs to a list of results; `wrt` are positions (default: every floating input).

    `unused`: results behind those of `f`. `kernel=False`: there is none here, so that the operator is taken apart first.
    """
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    floats = [i for i, x in enumerate(inputs) if x is not None and x.dtype == np.float64]
    wrt = floats if wrt is None else wrt
    names = [f"x{i}" for i in wrt]
    ts = [r(x.shape) if i in wrt else None for i, x in enumerate(inputs)]
    us = [r(x.shape) if i in wrt else None for i, x in enumerate(inputs)]
    values = f(*inputs)
    feeds = {f"x{i}": single(x) for i, x in enumerate(inputs) if x is not None}
    pushed = {f"fwd_x{i}": single(ts[i]) for i in wrt}
    seeds = [r(v.shape) for v in values]
    pulled = {f"adj_y{i}": single(s) for i, s in enumerate(seeds)}
    want = central(f, inputs, ts, 1e-5)
    gradients = []
    for i in wrt:
        g = np.zeros(inputs[i].size)
        for k in range(g.size):
            e = np.zeros(g.size)
            e[k] = 1
            one = [e.reshape(x.shape) if j == i else None for j, x in enumerate(inputs)]
            g[k] = sum((d * s).sum() for d, s in zip(central(f, inputs, one, 1e-5), seeds, strict=True))
        gradients.append(g.reshape(inputs[i].shape))
    for shapes in (False, True) if symbolic else (False,):
        primal = model(op, inputs, attrs or {}, len(values), domain, shapes, unused)
        if not kernel:
            primal = run_pipeline(primal, f"decompose{{ops={domain}.{op}}}")
        tangent = forward(primal, inputs=names, layout="single")
        adjoint = reverse(primal, inputs=names, layout="single")
        got = run_in_ort(tangent)({**feeds, **pushed})
        for g, w in zip(got, [*values, *want], strict=True):
            np.testing.assert_allclose(g, w, rtol=tol, atol=tol)
        back = run_in_ort(adjoint)({**feeds, **pulled})[len(values) :]
        for i, g, w in zip(wrt, back, gradients, strict=True):
            assert g.shape == inputs[i].shape
            np.testing.assert_allclose(g, w, rtol=tol, atol=tol * max(1, np.abs(w).max()))
        if second:
            twice = forward(tangent, inputs=names, outputs=[f"fwd_y{i}" for i in range(len(values))], layout="single")
            moved = {f"fwd2_x{i}": single(us[i]) for i in wrt}
            got = run_in_ort(twice)({**feeds, **pushed, **moved})[2 * len(values) :]
            ends = [
                central(f, [x if u is None else x + s * 1e-3 * u for x, u in zip(inputs, us, strict=True)], ts, 1e-4)
                for s in (1, -1)
            ]
            for g, a, b in zip(got, *ends, strict=True):
                w = (a - b) / 2e-3
                np.testing.assert_allclose(g, w, rtol=20 * tol, atol=20 * tol * max(1, np.abs(w).max()))


def gelu(x):
    return x * (1 + erf(x / np.sqrt(2))) / 2


def fast_gelu(x):
    return x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


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


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotary(interleaved, rank):
    heads, size = 2, 4
    angle = r((6, size // 2))
    cos, sin = np.cos(angle), np.sin(angle)

    def f(x, at, cos, sin):
        y = x.reshape(2, 3, heads, size).transpose(0, 2, 1, 3) if rank == 3 else x
        at = at[:, None] if at.ndim == 2 else at + np.arange(3)
        c, s = cos[at], sin[at]
        a, b = (y[..., 0::2], y[..., 1::2]) if interleaved else (y[..., :2], y[..., 2:])
        both = [a * c - b * s, a * s + b * c]
        y = np.stack(both, -1).reshape(y.shape) if interleaved else np.concatenate(both, -1)
        return [y.transpose(0, 2, 1, 3).reshape(x.shape) if rank == 3 else y]

    x = r((2, 3, heads * size) if rank == 3 else (2, heads, 3, size))
    check("RotaryEmbedding", f, [x, np.array([[0, 2, 1], [3, 4, 5]]), cos, sin], {"interleaved": interleaved})
    check("RotaryEmbedding", f, [x, np.array([2]), cos, sin], {"interleaved": interleaved}, second=False)


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


def attended(q, k, v, heads, bias=0.0, scale=None):
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) for x in (q, k, v))
    p = softmax(q @ k.swapaxes(2, 3) * (scale or q.shape[3] ** -0.5) + bias)
    y = (p @ v).transpose(0, 2, 1, 3)
    return y.reshape(*y.shape[:2], -1)


def test_multi_head_attention():
    q, k, v = r((2, 3, 4)), r((2, 5, 4)), r((2, 5, 6))
    bias, extra = r(14), r((1, 2, 3, 5))
    check("MultiHeadAttention", lambda q, k, v: [attended(q, k, v, 2)], [q, k, v], {"num_heads": 2})
    # the kernel wants the sizes of the bias to be known
    check(
        "MultiHeadAttention",
        lambda q, k, v, b, _, e: [attended(q + b[:4], k + b[4:8], v + b[8:], 2, e, 0.7)],
        [q, k, v, bias, None, extra],
        {"num_heads": 2, "scale": 0.7},
        second=False,
    )
    mask = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int32)

    def masked(q, k, v, _, m):
        return [attended(q, k, v, 2, np.where(m, 0, -10000.0)[:, None, None])]

    check("MultiHeadAttention", masked, [q, k, v, None, mask], {"num_heads": 2}, second=False)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention(causal):
    x, w, b = r((2, 3, 5)), r((5, 12)), r(12)
    lengths = np.array([2, 3], np.int32)

    def f(x, w, b, n=None):
        q, k, v = np.split(x @ w + b, 3, 2)
        bias = np.where(np.tri(3) == 1, 0, -10000.0) if causal else np.zeros((3, 3))
        if n is not None:
            bias = bias + np.where(np.arange(3) < n[:, None], 0, -10000.0)[:, None, None]
        return [attended(q, k, v, 2, bias)]

    check("Attention", f, [x, w, b], {"num_heads": 2, "unidirectional": causal})
    check("Attention", f, [x, w, b, lengths], {"num_heads": 2, "unidirectional": causal}, second=False)


def test_they_are_taken_apart_by_name():
    m = model("BiasGelu", [r((2, 3)), r(3)], {}, 1, MS, False)
    out = run_pipeline(m, "decompose{ops=com.microsoft.BiasGelu}")
    assert [n.op_type for n in out.graph.node] == ["Add", "Gelu"]
    onnx.checker.check_model(out)
