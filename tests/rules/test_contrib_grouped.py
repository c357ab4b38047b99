"""GroupQueryAttention of ONNX Runtime."""

import numpy as np
import pytest
from contrib_models import check, r, softmax

HEADS, SHARED, SIZE = 4, 2, 16  # the kernel turns sizes that are multiples of 16
ANGLES = r((7, SIZE // 2))


def split(x, heads):
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def turn(x, at, cos, sin, interleaved):
    c, s = cos[at][:, None], sin[at][:, None]
    width = 2 * c.shape[-1]
    y, rest = x[..., :width], x[..., width:]
    a, b = (y[..., 0::2], y[..., 1::2]) if interleaved else np.split(y, 2, -1)
    both = [a * c - b * s, a * s + b * c]
    y = np.stack(both, -1).reshape(y.shape) if interleaved else np.concatenate(both, -1)
    return np.concatenate([y, rest], -1)


def grouped(
    q, k, v, past=(), before=None, cos=None, sin=None, at=None, bias=0.0, sink=None, causal=1, window=-1, cap=0.0,
    scale=None, interleaved=0, norms=None, lengths=None,
):  # fmt: skip
    """The results by a loop over examples; `before`: how many keys each example has in `past`."""
    q, k, v = split(q, HEADS), split(k, SHARED), split(v, SHARED)
    batch, steps = q.shape[0], q.shape[2]
    before = np.zeros(batch, int) if before is None else np.asarray(before)
    places = before[:, None] + np.arange(steps)
    if norms:
        q, k = (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w for x, w in zip((q, k), norms, strict=True))
    if cos is not None:
        q, k = (turn(x, places if at is None else at, cos, sin, interleaved) for x in (q, k))
    caches = [k, v]
    if past:
        total = max(past[0].shape[2], int((before + steps).max()))
        caches = []
        for old, new in zip(past, (k, v), strict=True):
            cache = np.zeros((batch, SHARED, total, k.shape[-1]))
            for i, n in enumerate(before):
                cache[i, :, :n] = old[i, :, :n]
                cache[i, :, n : n + steps] = new[i]
            caches.append(cache)
    keys, values = caches
    y = np.zeros(q.shape)
    j = np.arange(keys.shape[2])
    for i in range(batch):
        end = before[i] + steps if lengths is None else lengths[i]
        every = [x[i].repeat(HEADS // SHARED, 0) for x in (keys, values)]
        s = q[i] @ every[0].swapaxes(1, 2) * (scale or q.shape[-1] ** -0.5)
        s = cap * np.tanh(s / cap) if cap else s
        s = s + np.broadcast_to(bias, (batch, *s.shape))[i]
        own = places[i][:, None]
        seen = (j <= own) if causal else (j < end) & (own >= 0)
        s = np.where(seen & (j > own - window) if window >= 0 else seen, s, -np.inf)
        if sink is not None:
            s = np.concatenate([s, np.broadcast_to(sink[:, None, None], (HEADS, steps, 1))], 2)
        y[i] = softmax(s)[..., : len(j)] @ every[1]
    return [y.transpose(0, 2, 1, 3).reshape(batch, steps, -1), keys, values]


def operands(batch, steps, before=0, capacity=0, size=SIZE):
    q, k, v = (r((batch, steps, n * size)) for n in (HEADS, SHARED, SHARED))
    past = [r((batch, SHARED, capacity, size)) for _ in range(2)] if capacity else [None, None]
    total = np.asarray(before) + steps + np.zeros(batch, int)
    return [q, k, v, *past, np.asarray(total - 1, np.int32), np.array(total.max(), np.int32)]


ATTRS = {"num_heads": HEADS, "kv_num_heads": SHARED}


@pytest.mark.parametrize(
    "attrs, options",
    [
        ({}, {}),
        ({"scale": 0.7, "softcap": 2.0}, {"scale": 0.7, "cap": 2.0}),
        ({"local_window_size": 2}, {"window": 2}),
        ({"causal": 0}, {"causal": 0}),
        ({"smooth_softmax": 1}, {"sink": np.zeros(HEADS)}),
    ],
)
def test_without_a_cache(attrs, options):
    def f(q, k, v, p, o, n, t):
        return grouped(q, k, v, **options)

    check("GroupQueryAttention", f, operands(2, 3), {**ATTRS, **attrs}, second=False, elements=not attrs)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("size", [16, 32])
def test_rotary(interleaved, size):
    """The tables are for heads of 16, of which larger ones turn a part."""

    def f(q, k, v, p, o, n, t, cos, sin):
        return grouped(q, k, v, cos=cos, sin=sin, interleaved=interleaved)

    inputs = [*operands(1, 3, size=size), np.cos(ANGLES), np.sin(ANGLES)]
    attrs = {**ATTRS, "do_rotary": 1, "rotary_interleaved": interleaved}
    check("GroupQueryAttention", f, inputs, attrs, second=False, elements=False)


@pytest.mark.parametrize("steps, before, capacity", [(1, [4, 4], 4), (1, [3, 1], 6), (2, [4], 4), (3, [0, 0], 5)])
def test_with_a_cache(steps, before, capacity):
    """One more place, of examples of one length or of several, in a buffer or not; a first step into a buffer."""

    def f(q, k, v, p, o, n, t, cos, sin):
        return grouped(q, k, v, (p, o), before, cos, sin)

    inputs = [*operands(len(before), steps, before, capacity), np.cos(ANGLES), np.sin(ANGLES)]
    check("GroupQueryAttention", f, inputs, {**ATTRS, "do_rotary": 1}, second=False, elements=False)


def test_bias_places_and_sinks():
    at = np.array([[4], [4]])

    def f(q, k, v, p, o, n, t, cos, sin, at, bias, sink):
        return grouped(q, k, v, (p, o), [4, 4], cos, sin, at, bias, sink, window=3)

    inputs = [*operands(2, 1, 4, 4), np.cos(ANGLES), np.sin(ANGLES), at, r((2, 1, 1, 5)), r(HEADS)]
    check(
        "GroupQueryAttention",
        f,
        inputs,
        {**ATTRS, "do_rotary": 1, "local_window_size": 3},
        second=False,
        elements=False,
    )


def test_packed():
    q, k, v, *rest = operands(2, 3)

    def f(x, k, v, p, o, n, t):
        return grouped(*np.split(x, np.cumsum([HEADS * SIZE, SHARED * SIZE]), 2))

    check(
        "GroupQueryAttention", f, [np.concatenate([q, k, v], 2), None, None, *rest], ATTRS, second=False, elements=False
    )


def test_normalized_queries_and_keys():
    def f(q, k, v, p, o, n, t, *more):
        return grouped(q, k, v, norms=more[-2:])

    inputs = [*operands(2, 3), *[None] * 7, r(SIZE), r(SIZE)]
    check("GroupQueryAttention", f, inputs, ATTRS, second=False, kernel=False, elements=False)


def test_the_second_derivative_through_a_cache():
    def f(q, k, v, p, o, n, t):
        return grouped(q, k, v, (p, o), [3, 1])

    check("GroupQueryAttention", f, operands(2, 1, [3, 1], 4), ATTRS, symbolic=False, elements=False)
