"""Derivatives do not need shapes: the recorded networks with symbolic, anonymous and missing shapes, and an empty batch."""

import pathlib

import numpy as np
import onnx
import pytest
from support import evaluate

from onnxad_passes import forward, reverse

FOLDER = pathlib.Path(__file__).parent.parent / "recorded"
NAMES = ["mlp", "resnet", "depthwise", "unet", "gpt", "bert"]


def load(name, opset=18):
    model = onnx.load(FOLDER / f"{name}_{opset}.onnx")
    record = np.load(FOLDER / f"{name}.npz")
    feeds = {i.name: record[f"in_{k}"] for k, i in enumerate(model.graph.input)}
    weights = [t.name for t in model.graph.initializer if f"grad_{t.name}" in record.files]
    wrt = [k for k, v in feeds.items() if v.dtype == np.float32] + weights
    return model, feeds, record["cotangent"], wrt


def reshaped(model, how):
    """The model with other declared shapes: every extent a symbol, every extent unknown, or no shape at all."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.value_info[:]
    for info in (*out.graph.input, *out.graph.output):
        tensor = info.type.tensor_type
        if how == "missing":
            tensor.ClearField("shape")
            continue
        for k, d in enumerate(tensor.shape.dim):
            d.Clear()
            if how == "symbolic":
                d.dim_param = f"{info.name}_{k}"
    return out


@pytest.mark.parametrize("how", ["symbolic", "unknown", "missing"])
@pytest.mark.parametrize("name", NAMES)
def test_any_declared_shape(name, how):
    model, feeds, cotangent, wrt = load(name)
    rng = np.random.default_rng(0)
    y = model.graph.output[0].name
    seeds = {f"adj_{y}": cotangent}
    want = evaluate(reverse(model, inputs=wrt, layout="single"), {**feeds, **seeds}, 99)
    blind = reshaped(model, how)
    got = evaluate(reverse(blind, inputs=wrt, layout="single"), {**feeds, **seeds}, 99)
    assert list(got) == list(want)
    for key, w in want.items():
        assert np.allclose(got[key], w, rtol=1e-4, atol=1e-5 * np.abs(w).max()), key

    weights = {t.name: t for t in model.graph.initializer}
    directions = {
        f"fwd_{n}": rng.standard_normal(feeds[n].shape if n in feeds else tuple(weights[n].dims)).astype(np.float32)
        for n in wrt
    }
    tangent = evaluate(forward(blind, inputs=wrt, layout="single"), {**feeds, **directions}, 99)[f"fwd_{y}"]
    # <cotangent, J t> = <J^T cotangent, t>, and the right-hand side is proven against autograd
    dot = sum(float((want[f"adj_{n}"].astype(np.float64) * directions[f"fwd_{n}"]).sum()) for n in wrt)
    assert abs(float((tangent.astype(np.float64) * cotangent).sum()) - dot) < 1e-4 * max(1, abs(dot))


@pytest.mark.parametrize("name", ["mlp", "resnet", "unet", "gpt", "bert"])
def test_empty_batch(name):
    model, feeds, cotangent, wrt = load(name)
    y = model.graph.output[0].name
    none = {k: v[:0] for k, v in feeds.items()}
    adjoint = reverse(model, inputs=wrt, layout="single")
    got = evaluate(adjoint, {**none, f"adj_{y}": cotangent[:0]}, 0)
    for n in wrt:
        g = got[f"adj_{n}"]
        assert g.shape == (none[n].shape if n in none else tuple(_weight(model, n).dims))
        assert not g.any()


def _weight(model, name):
    return next(t for t in model.graph.initializer if t.name == name)
