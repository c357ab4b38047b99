"""Random nests of If, Loop and Scan: both modes, order two, checkpoints, layouts and what is unrolled."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from random_regions import DeepNest, Nest, depth
from support import session

from onnxad_passes import forward, reverse, run_pipeline, unroll
from onnxad_rules.ruleset import UnsupportedOperator

PER_TEST = 10
#: Seeds of nests that are deep and have few nodes.
DEEP = (714, 516, 696, 510, 93, 760)


class Engine:
    """A model in ONNX Runtime at a level."""

    def __init__(self, model, level=0):
        self.outputs = [o.name for o in model.graph.output]
        self.inputs = {i.name for i in model.graph.input}
        self.session = session(model, level)

    def __call__(self, feeds):
        results = self.session.run(None, {k: np.asarray(v) for k, v in feeds.items() if k in self.inputs})
        return dict(zip(self.outputs, results, strict=True))


def differences(run, feeds, direction, h=2e-4):
    """Central differences, extrapolated once; None for an output where the two steps disagree."""

    def central(step):
        up, down = (
            run({k: v + s * direction.get(k, 0) if k in direction else v for k, v in feeds.items()})
            for s in (step, -step)
        )
        return {k: (up[k] - down[k]) / (2 * step) if up[k].shape == down[k].shape else None for k in up}

    wide, narrow = central(h), central(h / 2)
    out = {}
    for k, a in wide.items():
        b = narrow[k]
        rough = (
            a is None
            or b is None
            or a.shape != b.shape
            or np.abs(a - b).max(initial=0) > 1e-3 * max(1, np.abs(a).max(initial=0))
        )
        out[k] = None if rough else (4 * b - a) / 3
    return out


def close(got, want, tolerance, what):
    if want is None:
        return
    if not got.size and not want.size:
        return  # what a loop of no iterations stacks has any shape
    assert got.shape == want.shape, (what, got.shape, want.shape)
    scale = max(1.0, np.abs(want).max(initial=0))
    assert np.abs(got - want).max(initial=0) <= tolerance * scale, (what, got, want)


def usable(model, feeds):
    """A runner of the model, where ONNX Runtime runs it and its numbers are tame; else None."""
    run = Engine(model)
    base = run(feeds)
    fine = all(np.isfinite(v).all() and np.abs(v).max(initial=0) < 100 for v in base.values())
    return (run, base) if fine else None


def valid(model):
    if all(v.type.tensor_type.HasField("shape") for v in (*model.graph.input, *model.graph.output)):
        onnx.checker.check_model(model, full_check=True)


def check(seed, size=None, kind=Nest):
    program = kind(seed, size)
    model = program.model()
    feeds, xs = dict(program.feeds), program.active
    found = usable(model, feeds)
    if found is None:
        return False
    run, base = found
    valid(model)
    ys = list(base)
    rng = np.random.default_rng(seed + 1_000_000)
    fwd, adj = forward(model, xs, layout="single", prefix="fwd_"), reverse(model, xs, layout="single", prefix="adj_")
    for m in (fwd, adj):
        valid(m)
    t = {x: np.asarray(rng.standard_normal(feeds[x].shape)) for x in xs}
    ct = {y: np.asarray(rng.standard_normal(v.shape)) for y, v in base.items()}
    fwd_feeds = {**feeds, **{f"fwd_{x}": v for x, v in t.items()}}
    adj_feeds = {**feeds, **{f"adj_{y}": v for y, v in ct.items()}}
    run_fwd, run_adj = Engine(fwd), Engine(adj)
    fwds, adjs = run_fwd(fwd_feeds), run_adj(adj_feeds)
    want = differences(run, feeds, t)
    for y in ys:
        for got in (fwds, adjs):
            close(got[y], base[y], 1e-11, ("primal", y))
        close(fwds[f"fwd_{y}"], want[y], 1e-5, ("forward", y))
    for x in xs:
        assert adjs[f"adj_{x}"].shape == t[x].shape, ("shape", x)
        alone = run_fwd({**fwd_feeds, **{f"fwd_{z}": v * (z == x) for z, v in t.items()}})
        products = np.concatenate([(ct[y] * alone[f"fwd_{y}"]).reshape(-1) for y in ys])
        error = abs(products.sum() - (adjs[f"adj_{x}"] * t[x]).sum())
        assert error <= 1e-9 * max(1, np.abs(products).sum()), ("dot test", x)
    same_as(Engine(fwd, 99), fwd_feeds, fwds, "optimized forward")
    same_as(Engine(adj, 99), adj_feeds, adjs, "optimized reverse")
    return model, program, (fwd, fwd_feeds, fwds), (adj, adj_feeds, adjs), rng


def same_as(run, feeds, want, what, tolerance=1e-9):
    got = run(feeds)
    for k, v in want.items():
        close(got[k], v, tolerance, (what, k))


def check_more(seed, size=None, kind=Nest):
    """Order two, other ways to the same numbers."""
    found = check(seed, size, kind)
    if not found:
        return False
    model, program, (_fwd, fwd_feeds, fwds), (adj, adj_feeds, adjs), rng = found
    xs = program.active
    floats = [i.name for i in adj.graph.input if i.type.tensor_type.elem_type == TensorProto.DOUBLE]
    d = {k: np.asarray(rng.standard_normal(np.shape(adj_feeds[k]))) for k in floats}
    second = forward(adj, floats, layout="single", prefix="d_")
    valid(second)
    second_feeds = {**adj_feeds, **{f"d_{k}": v for k, v in d.items()}}
    run_adj = Engine(adj)
    got = Engine(second)(second_feeds)
    want = differences(run_adj, adj_feeds, d, 1e-4)
    for k, v in want.items():
        close(got[f"d_{k}"], v, 2e-4, ("forward of reverse", k))
    same_as(Engine(second, 99), second_feeds, got, "optimized forward of reverse", 1e-8)

    twice = reverse(adj, floats, layout="single", prefix="a_")
    valid(twice)
    seeds = {k: np.asarray(rng.standard_normal(v.shape)) for k, v in adjs.items()}
    twice_feeds = {**adj_feeds, **{f"a_{k}": v for k, v in seeds.items()}}
    back = Engine(twice)(twice_feeds)
    left = sum((seeds[k] * got[f"d_{k}"]).sum() for k in adjs)
    right = sum((back[f"a_{k}"] * d[k]).sum() for k in floats)
    size_ = sum(np.abs(seeds[k] * got[f"d_{k}"]).sum() for k in adjs)
    assert abs(left - right) <= 1e-8 * max(1, size_), ("reverse of reverse", left, right)
    same_as(Engine(twice, 99), twice_feeds, back, "optimized reverse of reverse", 1e-8)

    out = unroll(model)
    same_as(Engine(reverse(out, xs, layout="single", prefix="adj_")), adj_feeds, adjs, "unrolled")
    for every in (1, 2, "auto"):
        try:
            m = reverse(model, xs, layout="single", prefix="adj_", checkpoint=every)
        except UnsupportedOperator as e:
            assert "checkpoint" in str(e)
            continue
        same_as(Engine(m), adj_feeds, adjs, f"checkpoint={every}")
    m = run_pipeline(model, f"reverse{{inputs={','.join(xs)} layout=single prefix=adj_}},fold-shapes,simplify,cse,dce")
    same_as(Engine(m), adj_feeds, adjs, "tidied")
    for name, derive, prefix, feeds, single in (
        ("forward", forward, "fwd_", fwd_feeds, fwds),
        ("reverse", reverse, "adj_", adj_feeds, adjs),
    ):
        many = derive(model, xs, layout="leading", prefix=prefix)
        packed = {k: np.stack([v, 2 * v, 0 * v]) if k.startswith(prefix) else v for k, v in feeds.items()}
        wanted = {k: np.stack([v, 2 * v, 0 * v]) if k.startswith(prefix) else v for k, v in single.items()}
        same_as(Engine(many), packed, wanted, f"several directions, {name}")
    return True


@pytest.mark.parametrize("start", range(0, 30, PER_TEST))
def test_random_programs(start):
    for seed in range(start, start + PER_TEST):
        try:
            check_more(seed, 2)
        except Exception as e:
            raise AssertionError(f"seed {seed}: {type(e).__name__}: {e}") from e


@pytest.mark.parametrize("seed", DEEP)
def test_deep_nests(seed):
    assert depth(DeepNest(seed, 2).nodes) > 4
    assert check_more(seed, 2, DeepNest)
