"""Gradients of exported networks against those that PyTorch recorded (tests/recorded/record.py), and order two.

The references: autograd's gradients of every floating input and every parameter in float32, and finite differences of
our own first derivative in float64 (a derivative that is itself proven against autograd).
"""

import pathlib

import numpy as np
import onnx
import pytest
from support import evaluate, to_double

from onnxad_passes import forward, reverse, run_pipeline

FOLDER = pathlib.Path(__file__).parent.parent / "recorded"
MODELS = [p.stem for p in sorted(FOLDER.glob("*.onnx"))]


def load(stem):
    model = onnx.load(FOLDER / f"{stem}.onnx")
    record = np.load(FOLDER / f"{stem.split('_')[0]}.npz")
    names = [i.name for i in model.graph.input]
    feeds = {n: record[f"in_{i}"] for i, n in enumerate(names)}
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    gradients = {}
    for key in record.files:
        if key.startswith("grad_in_"):
            gradients[names[int(key[8:])]] = record[key]
        elif key.startswith("grad_") and np.array_equal(weights.get(key[5:]), record[f"weight_{key[5:]}"]):
            # where it differs, the exporter's optimizer folded something into the weight
            gradients[key[5:]] = record[key]
    if stem.endswith("_18"):  # exported without folding weights
        assert len(gradients) == len([k for k in record.files if k.startswith("grad_")])
    return model, feeds, record["out"], record["cotangent"], gradients


@pytest.mark.parametrize("level", [0, 99])
@pytest.mark.parametrize("stem", MODELS)
def test_gradients_are_those_of_autograd(stem, level):
    model, feeds, out, cotangent, gradients = load(stem)
    y = model.graph.output[0].name
    adjoint = reverse(model, inputs=list(gradients), layout="single")
    onnx.checker.check_model(adjoint, full_check=True)
    got = evaluate(adjoint, {**feeds, f"adj_{y}": cotangent}, level)
    assert np.allclose(got[y], out, rtol=1e-4, atol=1e-5)
    for name, want in gradients.items():
        error = np.abs(got[f"adj_{name}"] - want).max() / (np.abs(want).max() + 1e-12)
        assert error < 1e-5, f"{name}: relative error {error:.2g}"


@pytest.mark.parametrize("stem", MODELS)
def test_order_two(stem):
    model, feeds, _, cotangent, gradients = load(stem)
    rng = np.random.default_rng(0)
    y = model.graph.output[0].name
    names = list(gradients)[:3] + list(gradients)[-1:]
    adjoint = to_double(reverse(model, inputs=list(dict.fromkeys(names)), layout="single"))
    seeded = [*names[:2], f"adj_{y}"]
    second = forward(adjoint, inputs=seeded, outputs=[f"adj_{n}" for n in dict.fromkeys(names)], layout="single")
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in adjoint.graph.initializer}
    at = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in feeds.items()}
    at[f"adj_{y}"] = cotangent.astype(np.float64)
    at |= {n: weights[n] for n in names[:2] if n in weights}
    direction = {n: rng.standard_normal(at[n].shape) for n in seeded}
    got = evaluate(second, {**at, **{f"fwd_{n}": d for n, d in direction.items()}})

    def adjoint_at(step):
        point = {k: v + step * direction[k] if k in direction else v for k, v in at.items()}
        return evaluate(adjoint, point)

    h = 1e-5
    up, down = adjoint_at(h), adjoint_at(-h)
    for n in names:
        want = (up[f"adj_{n}"] - down[f"adj_{n}"]) / (2 * h)
        error = np.abs(got[f"fwd_adj_{n}"] - want).max() / (np.abs(want).max() + 1e-9)
        assert error < 1e-6, f"{n}: relative error {error:.2g}"


@pytest.mark.parametrize("stem", MODELS)
def test_a_second_derivative_of_a_file_is_that_of_one_pipeline(stem):
    """What inference cannot tell again, and what numbers a rule made, goes with the model."""
    model = onnx.load(FOLDER / f"{stem}.onnx")
    w = next(t.name for t in model.graph.initializer if len(t.dims) > 1)
    adjoint = reverse(model, [w], layout="single")
    in_two = forward(adjoint, [w], [f"adj_{w}"], layout="single")
    in_one = run_pipeline(model, f"reverse{{inputs={w}}},forward{{inputs={w} outputs=adj_{w}}}")
    assert len(in_two.graph.node) <= 1.06 * len(in_one.graph.node)
    assert len(adjoint.graph.value_info) <= 2  # and no more than that
