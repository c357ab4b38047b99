"""Derivatives of exported networks in several directions at once, against each direction alone."""

import numpy as np
import pytest
import test_recorded
import test_recorded_recurrent
from support import evaluate

from onnxad_passes import forward, reverse, vectorize

N = 3


def check(derivative, feeds, seeds, scans):
    """`seeds`: what is batched."""
    vectorized = vectorize(derivative, list(seeds), dim="directions")
    assert not scans
    each = [evaluate(derivative, {**feeds, **{k: v[i] for k, v in seeds.items()}}) for i in range(N)]
    for level in (0, 99):
        for k, got in evaluate(vectorized, {**feeds, **seeds}, level).items():
            want = np.stack([e[k] for e in each]) if got.ndim > each[0][k].ndim else each[0][k]
            np.testing.assert_allclose(got, want, 1e-4, 1e-5 * np.abs(want).max(), err_msg=k)


def directions(x):
    return np.random.default_rng(0).standard_normal((N, *x.shape)).astype(np.float32)


@pytest.mark.parametrize("stem", test_recorded.MODELS)
def test_networks(stem, scans):
    model, feeds, out, _, gradients = test_recorded.load(stem)
    y = model.graph.output[0].name
    names = dict.fromkeys([*list(gradients)[:3], *list(gradients)[-2:]])
    check(reverse(model, inputs=list(names), layout="single"), feeds, {f"adj_{y}": directions(out)}, scans)
    x = next(iter(gradients))
    seeds = {f"fwd_{x}": directions(gradients[x])}
    check(forward(model, inputs=[x], layout="single"), feeds, seeds, scans)


@pytest.mark.parametrize("stem", test_recorded_recurrent.MODELS)
def test_recurrent_networks(stem, scans):
    model, feeds, _, results, gradients = test_recorded_recurrent.load(stem)
    seeds = {f"adj_{y}": directions(v) for y, v in results.items() if v.dtype == np.float32}
    derivative = reverse(model, inputs=list(gradients), outputs=[s[4:] for s in seeds], layout="single")
    check(derivative, feeds, seeds, scans)
    x = list(gradients)[-1]
    derivative = forward(model, inputs=[x], outputs=[s[4:] for s in seeds], layout="single")
    check(derivative, feeds, {f"fwd_{x}": directions(gradients[x])}, scans)


@pytest.mark.parametrize("stem", ["mlp_23", "depthwise_23", "resnet_23", "unet_23", "bert_23", "gpt_18"])
def test_a_gradient_for_every_example(stem, scans):
    """Of the weights: what is batched is no longer linear, and products have two operands that are."""
    model, feeds, out, _, gradients = test_recorded.load(stem)
    y = model.graph.output[0].name
    weights = [k for k in gradients if k not in feeds]
    derivative = reverse(model, inputs=list(dict.fromkeys(weights[:3] + weights[-2:])), layout="single")
    rng = np.random.default_rng(0)
    examples = {k: np.stack([v, *(rng.permutation(v, axis=-1) for _ in range(N - 1))]) for k, v in feeds.items()}
    check(derivative, {}, {**examples, f"adj_{y}": directions(out)}, scans)
