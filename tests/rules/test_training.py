"""Steps of optimizers against finite differences."""

import numpy as np
import pytest

from onnxad_rules.ruleset import NotDifferentiable
from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_reference

DOMAIN = "ai.onnx.preview.training"
R = np.random.default_rng(0)
r = R.standard_normal


def tensors(kinds, positive=()):
    """Two tensors of each kind; accumulated squares are positive."""
    out = []
    for kind in range(kinds):
        for dims in ((2,), (3, 2)):
            x = r(dims)
            out.append(np.abs(x) + 0.5 if kind in positive else x)
    return out


def check(op, inputs, attrs, rate=0.1, step=2, outputs=4):
    options = dict(domain=DOMAIN, opset=18, outputs=outputs, single=False)
    check_rule(op, [np.asarray(rate), np.asarray(step), *inputs], attrs, engine=run_in_reference, **options)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("mode", ["standard", "nesterov"])
def test_momentum(mode, step):
    attrs = dict(alpha=0.9, beta=0.7, norm_coefficient=0.1, mode=mode)
    check("Momentum", tensors(3), attrs, step=step)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("norm", [0.0, 0.2])
def test_adagrad(norm, step):
    attrs = dict(norm_coefficient=norm, epsilon=1e-3, decay_factor=0.1)
    check("Adagrad", tensors(3, positive=(2,)), attrs, step=step)


@pytest.mark.parametrize("step", [0, 3])
@pytest.mark.parametrize("norm", [0.0, 0.2])
def test_adam(norm, step):
    attrs = dict(alpha=0.8, beta=0.7, norm_coefficient=norm, norm_coefficient_post=norm / 2, epsilon=1e-3)
    check("Adam", tensors(4, positive=(3,))[1::2], attrs, step=step, outputs=3)


def test_adam_of_two_tensors_is_two_steps():
    """onnx's reference evaluator computes several tensors in single precision only."""
    both = [np.asarray(0.1, np.float32), np.asarray(2), *(x.astype(np.float32) for x in tensors(4, positive=(3,)))]
    t = [None if x.dtype == np.int64 else r(x.shape).astype(np.float32) for x in both]

    def forward(chosen):
        inputs = [both[i] for i in chosen]
        feeds = {f"x{k}": x for k, x in enumerate(inputs)}
        ys = run_in_reference(one_node("Adam", inputs, dict(epsilon=1e-3), (len(inputs) - 2) // 4 * 3, DOMAIN, 18))(
            feeds
        )
        p = one_node("Adam", inputs, dict(epsilon=1e-3), ys, DOMAIN, 18)
        feeds |= {f"fwd_x{k}": t[i] for k, i in enumerate(chosen) if t[i] is not None}
        return run_in_reference(differentiate(p, "forward"))(feeds)[len(ys) :]

    together, one, two = forward(range(10)), forward([0, 1, 2, 4, 6, 8]), forward([0, 1, 3, 5, 7, 9])
    for got, want in zip(together, [x for pair in zip(one, two, strict=True) for x in pair], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_step_that_starts_from_nothing_is_finite():
    x, zero = r((2,)), np.zeros(2)
    inputs = [np.asarray(0.1), np.asarray(0), x, zero, zero]
    p = one_node("Adagrad", inputs, dict(epsilon=0.5), [x, zero], DOMAIN, 18)
    feeds = {f"x{i}": v for i, v in enumerate(inputs)} | {"adj_y0": np.ones(2), "adj_y1": zero}
    got = run_in_reference(differentiate(p, "reverse"))(feeds)
    np.testing.assert_allclose(got[2 + 2], [-0.2, -0.2])  # rate / epsilon
    assert all(np.isfinite(g).all() for g in got)


def test_gradient_is_refused():
    p = one_node("Gradient", [r((2,))], dict(xs=["x0"], y="y"), [r((2,))], DOMAIN, 18)
    for mode in ("forward", "reverse"):
        with pytest.raises(NotDifferentiable, match="stands for a derivative"):
            differentiate(p, mode)
