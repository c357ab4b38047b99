"""Calling gradient functions from a model, and what they are compared with: differences of the primal."""

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import session

from onnxad_passes import gradient_of_nodes

node = helper.make_node


def rng(seed):
    return np.random.default_rng(seed)


def normal(seed, *shape):
    return np.asarray(rng(seed).standard_normal(shape))


def away(seed, *shape):
    """Values of both signs, away from zero and from ties."""
    return np.asarray(rng(seed).uniform(0.4, 1.6, shape) * rng(seed + 500).choice([-1.0, 1.0], shape))


def as_type(v, dtype):
    return v.astype(dtype) if v.dtype.kind == "f" else v


# --- running a function, and the primal


def calling(f, feeds):
    """A model that calls a function once."""
    opset = {o.domain: o.version for o in f.opset_import} | {f.domain: 1}
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()
    ]
    g = helper.make_graph(
        [node(f.name, list(f.input), list(f.output), domain=f.domain)],
        "calling",
        inputs,
        [ValueInfoProto(name=o) for o in f.output],
    )
    imports = [helper.make_opsetid(d, v) for d, v in opset.items()]
    return helper.make_model(g, functions=[f], opset_imports=imports, ir_version=10)


def run(f, feeds, level=99):
    """The results of a function in ONNX Runtime, optimized, after the checker has seen it."""
    closed(f)
    model = calling(f, feeds)
    declared = onnx.ModelProto()
    declared.CopyFrom(model)
    for o in declared.graph.output:  # of which it wants to see some type
        o.type.tensor_type.elem_type = TensorProto.FLOAT
        o.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(declared)
    return session(model, level).run(None, feeds)


def run_in_reference(f, feeds):
    return ReferenceEvaluator(calling(f, feeds)).run(None, feeds)


def closed(f):
    """Every name is defined once and before it is read, in regions as well; every domain is imported."""

    def walk(nodes, known):
        known = set(known)
        for n in nodes:
            assert all(i in known for i in n.input if i), f"{n.op_type} reads {set(n.input) - known}"
            assert n.domain in {o.domain for o in f.opset_import}
            for a in n.attribute:
                for g in [*a.graphs, *([a.g] if a.HasField("g") else [])]:
                    names = [v.name for v in (*g.input, *g.initializer)]
                    assert not known & set(names)
                    inner = walk(g.node, known | set(names))
                    assert all(o.name in inner for o in g.output)
            for o in n.output:
                assert not o or o not in known, f"{o} is defined twice"
                known.add(o)
        return known

    assert len(set(f.input)) == len(f.input) and len({*f.input, *f.output}) == len(f.input) + len(f.output)
    assert set(f.output) <= walk(f.node, f.input)


def primal(nodes, inits, y, opset=21):
    """y from arrays by name, in the reference evaluator in double precision."""
    inputs = {i for n in nodes for i in n.input if i} - {o for n in nodes for o in n.output} - inits.keys()
    for n in nodes:
        for a in n.attribute:
            for g in [*a.graphs, *([a.g] if a.HasField("g") else [])]:
                own = {v.name for v in (*g.input, *g.initializer)} | {o for m in g.node for o in m.output}
                inputs |= {i for m in g.node for i in m.input if i} - own
    inputs -= {o for n in nodes for o in n.output}
    graph = helper.make_graph(
        nodes,
        "primal",
        [ValueInfoProto(name=i) for i in sorted(inputs)],
        [ValueInfoProto(name=y)],
        [numpy_helper.from_array(v, k) for k, v in inits.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    evaluator = ReferenceEvaluator(model)
    return lambda feeds: evaluator.run(None, {k: v for k, v in feeds.items() if k in inputs})[0]


def differences(f, feeds, x, weight, h=1e-5):
    """Central differences of sum(f * weight) with respect to one array."""
    feeds = {k: np.array(v) for k, v in feeds.items()}
    flat, out = feeds[x].reshape(-1), np.zeros(feeds[x].size)
    for i in range(flat.size):
        keep, sides = flat[i], []
        for step in (h, -h):
            flat[i] = keep + step
            sides.append(float(np.sum(f(feeds) * weight)))
        flat[i] = keep
        out[i] = (sides[0] - sides[1]) / (2 * h)
    return out.reshape(feeds[x].shape)


def close(got, wanted, tolerance):
    assert got.shape == wanted.shape
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    assert np.all(np.abs(got - wanted) <= tolerance * scale), np.abs(got - wanted).max() / scale


# --- the table


class Case:
    """Nodes with the result y, and lists of arrays to feed; `xs` are differentiated, all else that is fed is in zs."""

    def __init__(self, nodes, feeds, xs, inits=None, oracle=None, double=True, tolerance=1e-7, second=False, opset=21):
        self.nodes = nodes if isinstance(nodes, list) else [nodes]
        self.feeds = feeds if isinstance(feeds, list) else [feeds]
        self.xs, self.inits, self.oracle, self.opset = xs.split(), inits or {}, oracle, opset
        self.zs = [k for k in self.feeds[0] if k not in self.xs]
        self.double, self.tolerance, self.second = double, tolerance, second

    def gradient(self):
        inits = [numpy_helper.from_array(v, k) for k, v in self.inits.items()]
        f = gradient_of_nodes(self.nodes, [*self.xs, *self.zs], inits, self.xs, "y", self.zs)
        assert list(f.input) == [*self.xs, *self.zs, "dy"]
        assert list(f.output) == [f"grad_{x}" for x in self.xs]
        return f


def grads(f, **feeds):
    return run(f, {k: np.asarray(v) for k, v in feeds.items()})
