"""Random graphs: both modes and order two against finite differences, and the shape of what is emitted."""

import collections

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator
from random_models import Drawn
from support import session

from onnxad_passes import run_pipeline
from onnxad_passes.forward import Forward
from onnxad_passes.reverse import Reverse

PER_TEST = 20


class Engine:
    """A model in ONNX Runtime at a level; in onnx's reference evaluator where it has not all the kernels."""

    def __init__(self, model, level=0):
        self.outputs = [o.name for o in model.graph.output]
        self.inputs = {i.name for i in model.graph.input}
        try:
            self.run = session(model, level).run
        except Exception as e:
            if not any(text in str(e) for text in ("Could not find an implementation", "is invalid")):
                raise
            self.run = ReferenceEvaluator(model).run

    def __call__(self, feeds):
        results = self.run(None, {k: np.asarray(v) for k, v in feeds.items() if k in self.inputs})
        return dict(zip(self.outputs, map(np.asarray, results), strict=True))


def varied(model, names, drawn):
    """The model with everything in `names` as an input, and the feeds: weights, and shifts of inner values."""
    out, feeds = onnx.ModelProto(), {}
    out.CopyFrom(model)
    for k in names:
        if k in drawn.inputs:
            feeds[k] = drawn.inputs[k]
        elif k in drawn.weights:
            out.graph.input.append(helper.make_tensor_value_info(k, TensorProto.DOUBLE, None))
            feeds[k] = drawn.weights[k]
        else:
            shift = np.zeros(drawn.values[k].shape)
            out.graph.input.append(helper.make_tensor_value_info(f"shift of {k}", TensorProto.DOUBLE, shift.shape))
            feeds[f"shift of {k}"] = shift
            i, node = next((i, n) for i, n in enumerate(out.graph.node) if k in n.output)
            node.output[list(node.output).index(k)] = f"plain {k}"
            out.graph.node.insert(i + 1, helper.make_node("Add", [f"plain {k}", f"shift of {k}"], [k]))
    return out, {**drawn.inputs, **feeds}


def differences(run, feeds, direction, h=2e-4):
    """Central differences, extrapolated once; None for an output where the two steps disagree."""

    def central(step):
        up, down = (run({k: v + s * direction.get(k, 0) for k, v in feeds.items()}) for s in (step, -step))
        return {k: (up[k] - down[k]) / (2 * step) for k in up}

    wide, narrow = central(h), central(h / 2)
    out = {}
    for k, a in wide.items():
        rough = np.abs(a - narrow[k]).max(initial=0) > 1e-3 * max(1, np.abs(a).max(initial=0))
        out[k] = None if rough else (4 * narrow[k] - a) / 3
    return out


def close(got, want, tolerance, what):
    if want is None:
        return
    assert got.shape == want.shape, (what, got.shape, want.shape)
    scale = max(1.0, np.abs(want).max(initial=0))
    assert np.abs(got - want).max(initial=0) <= tolerance * scale, (what, got, want)


def regions(node):
    return [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]


def everything(graph):
    """Every node, those in regions included, and the names of all initializers."""
    nodes, constants = list(graph.node), {t.name for t in graph.initializer}
    for n in graph.node:
        for g in regions(n):
            inner, names = everything(g)
            nodes += inner
            constants |= names
    return nodes, constants


def read(node):
    """What a node and its regions read and yield."""
    yield from node.input
    for g in regions(node):
        for n in g.node:
            yield from read(n)
        yield from (o.name for o in g.output)


def check_structure(primal, model):
    """Names as they were; no node that is dead, a needless copy, there twice, or of our own constants only."""
    for old, new in ((primal.graph.input, model.graph.input), (primal.graph.output, model.graph.output)):
        assert [v.name for v in old] == [v.name for v in new[: len(old)]]
    outputs = {o.name for o in model.graph.output}
    given = {v.name for v in (*model.graph.input, *model.graph.initializer)}
    nodes, constants = everything(primal.graph)
    authored = constants.union(*(n.output for n in nodes))
    ours = {t.name for t in model.graph.initializer} - authored

    def check(graph, seen):
        reads = collections.Counter(x for n in graph.node for x in read(n))
        reads.update(o.name for o in graph.output)
        for n in graph.node:
            assert any(reads[o] for o in n.output), ("dead", n)
            if n.op_type == "Identity" and graph is model.graph:
                assert n.output[0] in outputs and (n.input[0] in given or n.input[0] in outputs), ("copy", n)
            if regions(n):
                for g in regions(n):
                    check(g, dict(seen))
            elif n.op_type != "Identity":
                key = (n.op_type, n.domain, *n.input, *sorted(a.SerializeToString() for a in n.attribute))
                first = seen.setdefault(key, n)
                both = any(o in outputs for o in n.output) and any(o in outputs for o in first.output)
                assert first is n or both, ("twice", n)
                assert not n.input or not all(x in ours for x in n.input if x), ("constant", n)

    check(model.graph, {})


def differentiate(model, p):
    """The derivative, verified pass by pass, twice: the bytes are the same."""
    out = run_pipeline(model, [p])
    assert out.SerializeToString(deterministic=True) == run_pipeline(model, [p]).SerializeToString(deterministic=True)
    check_structure(model, out)
    return out


def check(seed):
    drawn = Drawn(seed)
    model, names, outputs = drawn.model()
    rng = np.random.default_rng(seed + 1_000_000)
    chosen = None if names is None else tuple(names)
    xs = names or list(drawn.inputs)
    fwd, adj = differentiate(model, Forward(chosen)), differentiate(model, Reverse(chosen))
    if names is None and all(v.type.tensor_type.HasField("shape") for v in (*model.graph.input, *model.graph.output)):
        for m in (fwd, adj):
            onnx.checker.check_model(m, full_check=True)

    plain, feeds = varied(model, xs, drawn)
    run = Engine(plain)
    base = run(feeds)
    at = {x: x if x in feeds else f"shift of {x}" for x in xs}
    t = {x: rng.standard_normal(feeds[at[x]].shape) for x in xs}
    ct = {y: rng.standard_normal(base[y].shape) for y in outputs}
    fwd_of = {y: f"fwd_{y}" + "_1" * (y in xs) for y in outputs}
    adj_of = {x: f"adj_{x}" + "_1" * (x in outputs) for x in xs}
    fwd_feeds = {**drawn.inputs, **{f"fwd_{x}": v for x, v in t.items()}}
    adj_feeds = {**drawn.inputs, **{f"adj_{y}": v for y, v in ct.items()}}
    run_fwd, run_adj = Engine(fwd), Engine(adj)
    fwds, adjs = run_fwd(fwd_feeds), run_adj(adj_feeds)
    same = all(np.allclose(v, base[y], 1e-11, 1e-11) for y, v in Engine(plain, 99)(feeds).items())
    # ONNX Runtime 1.32 optimizes some programs wrongly (a Tile before a Transpose and a MatMul)
    optimized = [(Engine(fwd, 99)(fwd_feeds), Engine(adj, 99)(adj_feeds))] * same
    want = differences(run, feeds, {at[x]: v for x, v in t.items()})
    for y in outputs:
        for got in (fwds, adjs, *(m for ms in optimized for m in ms)):
            close(got[y], base[y], 1e-11, ("primal", y))
        close(fwds[fwd_of[y]], want[y], 1e-6, ("forward", y))
        for fast, _ in optimized:
            close(fast[fwd_of[y]], fwds[fwd_of[y]], 1e-10, ("optimized forward", y))
    for x in xs:
        assert adjs[adj_of[x]].shape == t[x].shape, ("shape", x)
        for _, fast in optimized:
            close(fast[adj_of[x]], adjs[adj_of[x]], 1e-10, ("optimized reverse", x))
        alone = run_fwd({**fwd_feeds, **{f"fwd_{z}": v * (z == x) for z, v in t.items()}})
        products = np.concatenate([(ct[y] * alone[fwd_of[y]]).reshape(-1) for y in outputs])
        error = abs(products.sum() - (adjs[adj_of[x]] * t[x]).sum())
        assert error <= 1e-9 * max(1, np.abs(products).sum()), ("dot test", x)

    second = differentiate(adj, Forward(prefix="d_"))
    directions = {k: rng.standard_normal(np.shape(v)) for k, v in adj_feeds.items()}
    got = Engine(second)({**adj_feeds, **{f"d_{k}": v for k, v in directions.items()}})
    for k, v in differences(run_adj, adj_feeds, directions, 1e-4).items():
        close(got[f"d_{k}" + "_1" * (k in directions)], v, 2e-5, ("second order", k))


@pytest.mark.parametrize("start", range(0, 400, PER_TEST))
def test_random_graphs(start):
    for seed in range(start, start + PER_TEST):
        try:
            check(seed)
        except Exception as e:
            raise AssertionError(f"seed {seed}: {type(e).__name__}: {e}") from e
