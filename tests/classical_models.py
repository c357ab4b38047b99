"""Models of classical machine learning, and how their derivatives are checked.

The operators compute in single precision, so finite differences of them tell little; the models of the tests are
written once more in numpy, checked against ONNX Runtime, and differentiated by finite differences there.
"""

from statistics import NormalDist

import numpy as np
import onnx
import pytest

from onnxad_rules.testing import differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal
X = r((3, 4))
DOMAIN = "ai.onnx.ml"


def central(f, x, t, h=1e-5):
    return (f(x + h * t) - f(x - h * t)) / (2 * h)


def check(op, f, inputs, attrs, results=1, result=0, dtype=np.float32, atol=2e-4):
    """Both modes and forward of forward of `op` against finite differences of `f`, a function of every input."""
    single = [x.astype(dtype) for x in inputs]
    feeds = {f"x{i}": x for i, x in enumerate(single)}
    plain = {k: v for k, v in attrs.items() if v is not None}
    ys = run_in_ort(one_node(op, single, plain, results, DOMAIN, 18))(feeds)
    np.testing.assert_allclose(ys[result], f(*inputs), rtol=2e-3, atol=atol)
    p = one_node(op, single, plain, ys, DOMAIN, 18)
    ts, us = ([r(x.shape) for x in inputs] for _ in range(2))

    def derivative(*at):
        return sum(central(lambda x, i=i: f(*at[:i], x, *at[i + 1 :]), at[i], t) for i, t in enumerate(ts))

    want = derivative(*inputs)
    seeds = {f"fwd_x{i}": t.astype(dtype) for i, t in enumerate(ts)}
    forward = differentiate(p, "forward")
    onnx.checker.check_model(forward, full_check=True)
    got = run_in_ort(forward)({**feeds, **seeds})[len(ys)]
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
    seed = r(ys[result].shape)
    gradients = run_in_ort(differentiate(p, "reverse"))({**feeds, f"adj_y{result}": seed.astype(np.float32)})[len(ys) :]
    for x, g in zip(single, gradients, strict=True):
        assert g.dtype == x.dtype and g.shape == x.shape
    pairing = sum(float((g * t).sum()) for g, t in zip(gradients, ts, strict=True))
    assert pairing == pytest.approx(float((seed * want).sum()), rel=5e-3, abs=5e-3)

    second = differentiate(forward, "forward", prefix="d_")
    more = {f"d_x{i}": u.astype(dtype) for i, u in enumerate(us)}
    more |= {f"d_fwd_x{i}": np.zeros_like(x) for i, x in enumerate(single)}
    got = run_in_ort(second)({**feeds, **seeds, **more})[-1]
    h = 1e-3
    up, down = (derivative(*(x + s * h * u for x, u in zip(inputs, us, strict=True))) for s in (1, -1))
    np.testing.assert_allclose(got, (up - down) / (2 * h), rtol=2e-2, atol=2e-2)


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


probit = np.vectorize(NormalDist().inv_cdf)
TRANSFORMS = {
    "NONE": lambda s: s,
    "LOGISTIC": sigmoid,
    "SOFTMAX": softmax,
    "SOFTMAX_ZERO": softmax,  # but for scores of zero
    "PROBIT": probit,  # of scores between 0 and 1
}
