"""Both modes and order two of whole models against finite differences, in double precision."""

import numpy as np
import onnx
from onnx import TensorProto
from support import evaluate

from onnxad_passes import forward, reverse


def differences(model, feeds, direction, h=1e-4):
    """The derivative of every floating output along a direction: central differences, extrapolated once."""

    def central(step):
        up, down = (
            evaluate(model, {k: np.asarray(v + s * direction[k]) if k in direction else v for k, v in feeds.items()}, 0)
            for s in (step, -step)
        )
        return {k: (up[k] - down[k]) / (2 * step) for k in up if _floating(up[k])}

    wide, narrow = central(h), central(h / 2)
    return {k: (4 * narrow[k] - wide[k]) / 3 for k in wide}


def close(got, want, tolerance, what):
    """Assert equality relative to the largest value."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (what, got.shape, want.shape)
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    assert np.abs(got - want).max(initial=0) <= tolerance * scale, (what, got, want)


def check_model(model, feeds, order=2, tolerance=1e-7, levels=(0, 99), inputs=None, seed=0):
    """Assert that forward and reverse of a model in double precision are right, and with order=2 theirs too.

    Returns the forward and the reverse model.
    """
    rng = np.random.default_rng(seed)

    def random(x):
        return np.asarray(rng.standard_normal(np.shape(x)))

    onnx.checker.check_model(model, full_check=True)
    fwd = forward(model, inputs, layout="single", prefix="fwd_")
    adj = reverse(model, inputs, layout="single", prefix="adj_")
    for m in (fwd, adj):
        onnx.checker.check_model(m, full_check=True)
    base = evaluate(model, feeds, 0)
    own = {i.name for i in model.graph.input}
    xs = [i.name[4:] for i in fwd.graph.input if i.name not in own]
    ys = [i.name[4:] for i in adj.graph.input if i.name not in own]
    tangents, seeds = {x: random(feeds[x]) for x in xs}, {y: random(base[y]) for y in ys}
    want = differences(model, feeds, tangents)
    fwd_feeds = {**feeds, **{f"fwd_{k}": v for k, v in tangents.items()}}
    adj_feeds = {**feeds, **{f"adj_{k}": v for k, v in seeds.items()}}
    for level in levels:
        got_fwd, got_adj = evaluate(fwd, fwd_feeds, level), evaluate(adj, adj_feeds, level)
        for k, v in base.items():
            if isinstance(v, np.ndarray):
                close(got_fwd[k], v, 1e-12, ("primal in forward", level, k))
                close(got_adj[k], v, 1e-12, ("primal in reverse", level, k))
        for y in ys:
            close(got_fwd[f"fwd_{y}"], want[y], tolerance, ("forward", level, y))
        for x in xs:
            assert got_adj[f"adj_{x}"].shape == np.shape(feeds[x])
            for _ in range(2):
                d = {x: random(feeds[x])}
                along = differences(model, feeds, d)
                dot = sum((along[y] * seeds[y]).sum() for y in ys)
                close((got_adj[f"adj_{x}"] * d[x]).sum(), dot, 10 * tolerance, ("reverse", level, x))
    if order > 1:
        for name, m, f in (("forward", fwd, fwd_feeds), ("reverse", adj, adj_feeds)):
            _check_second(name, m, f, tolerance, levels, random)
    return fwd, adj


def _check_second(name, model, feeds, tolerance, levels, random):
    xs = [i.name for i in model.graph.input if i.type.tensor_type.elem_type == TensorProto.DOUBLE]
    d = {x: random(feeds[x]) for x in xs}
    want = differences(model, feeds, d)
    fwd = forward(model, xs, layout="single", prefix="d_")
    adj = reverse(model, xs, layout="single", prefix="a_")
    for m in (fwd, adj):
        onnx.checker.check_model(m, full_check=True)
    seeds = {y: random(v) for y, v in want.items()}
    for level in levels:
        got = evaluate(fwd, {**feeds, **{f"d_{k}": v for k, v in d.items()}}, level)
        for y, w in want.items():
            close(got[f"d_{y}"], w, 30 * tolerance, (f"forward of {name}", level, y))
        got = evaluate(adj, {**feeds, **{f"a_{k}": v for k, v in seeds.items()}}, level)
        left = sum((got[f"a_{x}"] * d[x]).sum() for x in xs)
        right = sum((want[y] * seeds[y]).sum() for y in want)
        close(left, right, 100 * tolerance, (f"reverse of {name}", level))


def _floating(v):
    return isinstance(v, np.ndarray) and v.dtype == np.float64
