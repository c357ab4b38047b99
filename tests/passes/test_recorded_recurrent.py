"""Gradients of exported recurrent modules and control flow against those that PyTorch recorded.

The models and references are written by tests/recorded/record_recurrent.py; weights were not folded, so that the
gradient of every parameter is compared. Every way to differentiate a loop must give the same.
"""

import pathlib

import numpy as np
import onnx
import pytest
from support import evaluate, to_double

from onnxad_passes import run_pipeline

FOLDER = pathlib.Path(__file__).parent.parent / "recorded" / "recurrent"
MODELS = [p.stem for p in sorted(FOLDER.glob("*.onnx"))]
LOOPS = ["scan", "while"]


def load(stem):
    """The model, its inputs, cotangents and outputs by name, and the gradients of inputs and parameters."""
    model = onnx.load(FOLDER / f"{stem}.onnx")
    record = np.load(FOLDER / f"{stem}.npz")
    inputs = [i.name for i in model.graph.input]
    outputs = [o.name for o in model.graph.output]
    feeds = {n: record[f"in_{i}"] for i, n in enumerate(inputs)}
    cotangents = {n: record[f"cotangent_{i}"] for i, n in enumerate(outputs)}
    results = {n: record[f"out_{i}"] for i, n in enumerate(outputs)}
    gradients = {n: record[f"grad_in_{i}"] for i, n in enumerate(inputs) if f"grad_in_{i}" in record}
    for key in record.files:
        if key.startswith("grad_") and not key.startswith("grad_in_"):
            gradients[key[5:]] = record[key]
    return model, feeds, cotangents, results, gradients


def check(got, results, gradients):
    for name, want in results.items():
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5)
    for name, want in gradients.items():
        error = np.abs(got[f"adj_{name}"] - want).max() / (np.abs(want).max() + 1e-12)
        assert error < 1e-5, f"{name}: relative error {error:.2g}"


@pytest.mark.parametrize("level", [0, 1, 2, 99])
@pytest.mark.parametrize("stem", MODELS)
def test_gradients_are_those_of_autograd(stem, level):
    model, feeds, cotangents, results, gradients = load(stem)
    adjoint = run_pipeline(model, f"reverse{{inputs={','.join(gradients)}}}")
    onnx.checker.check_model(adjoint, full_check=True)
    check(evaluate(adjoint, {**feeds, **{f"adj_{n}": c for n, c in cotangents.items()}}, level), results, gradients)


@pytest.mark.parametrize("stem", [m for m in MODELS if not m.startswith("cond")])
def test_lowered_and_with_checkpoints(stem):
    model, feeds, cotangents, results, gradients = load(stem)
    every = "2" if stem in LOOPS else "auto"
    adjoint = run_pipeline(model, f"lower-rnn,reverse{{inputs={','.join(gradients)} checkpoint={every}}}")
    check(evaluate(adjoint, {**feeds, **{f"adj_{n}": c for n, c in cotangents.items()}}, 99), results, gradients)


@pytest.mark.parametrize("stem", MODELS)
def test_forward_mode_is_the_transpose(stem):
    """The tangent in a random direction, against the recorded gradients."""
    model, feeds, cotangents, _, gradients = load(stem)
    rng = np.random.default_rng(0)
    tangent = run_pipeline(model, f"forward{{inputs={','.join(gradients)}}}")
    directions = {n: rng.standard_normal(g.shape).astype(np.float32) for n, g in gradients.items()}
    got = evaluate(tangent, {**feeds, **{f"fwd_{n}": d for n, d in directions.items()}}, 99)
    left = sum(float((got[f"fwd_{n}"] * c).sum()) for n, c in cotangents.items())
    right = sum(float((gradients[n] * d).sum()) for n, d in directions.items())
    scale = sum(float(np.abs(gradients[n] * d).sum()) for n, d in directions.items())
    assert abs(left - right) < 1e-5 * scale


@pytest.mark.parametrize("stem", MODELS)
def test_order_two(stem):
    """Forward of reverse in double precision, against finite differences of reverse.

    Lowered first: no runtime has GRU and LSTM in double precision.
    """
    model, feeds, cotangents, _, gradients = load(stem)
    rng = np.random.default_rng(1)
    names = list(gradients)
    adjoint = to_double(run_pipeline(model, f"lower-rnn,reverse{{inputs={','.join(names)}}}"))
    second = run_pipeline(adjoint, f"forward{{inputs={','.join(names)} outputs={','.join('adj_' + n for n in names)}}}")
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in adjoint.graph.initializer}
    at = {**feeds, **{f"adj_{n}": c for n, c in cotangents.items()}}
    at = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in at.items()}
    at |= {n: weights[n] for n in names if n in weights}
    direction = {n: rng.standard_normal(at[n].shape) for n in names}
    got = evaluate(second, {**at, **{f"fwd_{n}": d for n, d in direction.items()}})
    h = 1e-5
    up, down = (evaluate(adjoint, {k: v + s * direction.get(k, 0) for k, v in at.items()}) for s in (h, -h))
    for n in names:
        want = (up[f"adj_{n}"] - down[f"adj_{n}"]) / (2 * h)
        error = np.abs(got[f"fwd_adj_{n}"] - want).max() / (np.abs(want).max() + 1e-6)
        assert error < 1e-6, f"{n}: relative error {error:.2g}"
