"""Attention and rotary embedding as ONNX Runtime spells them."""

import numpy as np
import pytest
from contrib_models import MS, check, model, r, softmax

from onnxad_passes import reverse
from onnxad_rules.ruleset import UnsupportedOperator


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


def apart(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def together(x):
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention_with_a_cache(causal):
    q, k, v, pk, pv = r((2, 3, 4)), r((2, 3, 4)), r((2, 3, 4)), r((2, 2, 2, 2)), r((2, 2, 2, 2))

    def f(q, k, v, b, m, e, pk, pv):
        ks, vs = np.concatenate([pk, apart(k, 2)], 2), np.concatenate([pv, apart(v, 2)], 2)
        bias = np.where(np.tri(3, 5, 2) == 1, 0, -10000.0) if causal else 0.0
        return [attended(q, together(ks), together(vs), 2, bias), ks, vs]

    attrs = {"num_heads": 2, "unidirectional": causal}
    check("MultiHeadAttention", f, [q, k, v, None, None, None, pk, pv], attrs, second=not causal)


def test_multi_head_attention_to_keys_computed_before():
    q, k, v = r((2, 3, 4)), r((2, 2, 5, 2)), r((2, 2, 5, 2))
    check("MultiHeadAttention", lambda q, k, v: [attended(q, together(k), together(v), 2)], [q, k, v], {"num_heads": 2})

    def biased(q, k, v, b):  # what was computed before has its bias already
        return [attended(q + b[:4], together(k), together(v), 2)]

    check("MultiHeadAttention", biased, [q, k, v, r(12)], {"num_heads": 2}, second=False, symbolic=False)


def test_multi_head_attention_with_a_mask_of_pairs():
    q, k, v = r((2, 3, 4)), r((2, 5, 4)), r((2, 5, 4))
    mask = np.where(np.tri(3, 5, 2), 1, 0)[None].repeat(2, 0).astype(np.int32)
    mask[1, 0, 0] = 0

    def f(q, k, v, b, m):
        return [attended(q, k, v, 2, np.where(m, 0, -10000.0)[:, None])]

    check("MultiHeadAttention", f, [q, k, v, None, mask], {"num_heads": 2}, second=False)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_with_a_cache(causal):
    x, w, b, past = r((2, 3, 5)), r((5, 12)), r(12), r((2, 2, 2, 2, 2))

    def f(x, w, b, m, past):
        q, k, v = np.split(x @ w + b, 3, 2)
        k, v = np.concatenate([past[0], apart(k, 2)], 2), np.concatenate([past[1], apart(v, 2)], 2)
        bias = np.where(np.tri(3, 5, 2) == 1, 0, -10000.0) if causal else 0.0
        return [attended(q, together(k), together(v), 2, bias), np.stack([k, v])]

    attrs = {"num_heads": 2, "unidirectional": causal}
    check("Attention", f, [x, w, b, None, past], attrs, second=not causal)


def test_forms_that_are_refused():
    packed = model("MultiHeadAttention", [r((2, 3, 2, 3, 4))], {"num_heads": 2}, 1, MS, False)
    with pytest.raises(UnsupportedOperator, match="packed"):
        reverse(packed, layout="single")
    q = r((2, 3, 4))
    starts = np.array([3, 3, 0, 0], np.int32)
    masked = model("MultiHeadAttention", [q, q, q, None, starts], {"num_heads": 2}, 1, MS, False)
    with pytest.raises(UnsupportedOperator, match="starts and ends"):
        reverse(masked, layout="single")


def test_the_layout_of_one_processor_is_said_to_be_that():
    m = model("Conv", [r((1, 8, 3, 3)), r((8, 8, 1, 1))], {}, 1, "com.microsoft.nchwc", False)
    m.opset_import[1].domain = "com.microsoft.nchwc"
    with pytest.raises(UnsupportedOperator, match="ORT_ENABLE_EXTENDED"):
        reverse(m, layout="single")
