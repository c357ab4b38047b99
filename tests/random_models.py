"""Random graphs of some fifty operators, in double precision, with values that stay away from kinks and poles.

Every node is evaluated as soon as it is drawn, by onnx's reference evaluator; one that is not finite, too large or
next to a place without a derivative is drawn again. So is what ONNX Runtime computes in single precision only (Erf,
Gelu): finite differences would not tell.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from random_draws import Again, Draws

OPSET = 21
KINKED = {"Relu": 0, "LeakyRelu": 0, "Abs": 0, "Elu": 0, "Selu": 0, "Sign": 0}
SMOOTH = ["Sin", "Cos", "Tanh", "Sigmoid", "Exp", "Neg", "Softplus", "Softsign", "Atan", "Asinh", "Sinh", "Cosh"]
SMOOTH += ["Identity", "Mish", "Floor"]
POSITIVE = ["Log", "Sqrt", "Reciprocal"]
REDUCE = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"]
REDUCE += ["ReduceLogSumExp", "ReduceLogSum"]


class Drawn(Draws):
    """A random model: its `nodes`, its `inputs` and `weights` by name, and what every floating value is (`values`)."""

    def __init__(self, seed, size=None):
        self.rng = np.random.default_rng(seed)
        self.values, self.inputs, self.weights = {}, {}, {}
        self.count = 0
        self.nodes = []
        for i in range(self.pick([1, 2, 3])):
            self.inputs[f"x{i}"] = self.values[f"x{i}"] = self.draw(self.shape())
        for i in range(self.pick([0, 1, 2])):
            self.weights[f"w{i}"] = self.values[f"w{i}"] = self.draw(self.shape())
        self.grow(size or int(self.rng.integers(3, 14)), depth=0)

    # --- the model

    def model(self):
        """The model, what to differentiate with respect to (None: every input) and the names of its outputs.

        Some outputs are inputs, weights or inner values that others use; shapes are declared, half declared or not.
        """
        top = [k for k in self.values if any(k in n.output for n in self.nodes)]
        used = {k for n in self.nodes for k in n.input}
        leaves = [k for k in top if k not in used] or top[-1:] or list(self.inputs)
        floats = [k for k, a in self.weights.items() if a.dtype == np.float64]
        outputs = [k for k in leaves if self.chance(0.7)][-3:] or leaves[-1:]
        outputs += [next(iter(self.inputs))] * self.chance(0.15) + floats[:1] * self.chance(0.1)
        outputs = list(dict.fromkeys(outputs + [k for k in top if k not in outputs][:1] * self.chance(0.2)))
        values = {**self.values, **self.weights}
        graph = helper.make_graph(
            self.nodes,
            "g",
            [self.declared(k, a) for k, a in self.inputs.items()],
            [self.declared(k, values[k]) for k in outputs],
            [numpy_helper.from_array(a, k) for k, a in self.weights.items()],
            value_info=[self.declared(k, values[k]) for k in top if k not in outputs and self.chance(0.3)],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        if self.chance(0.5):
            return model, None, outputs
        names = list(self.inputs)[: 1 + int(self.rng.integers(len(self.inputs)))]
        names += [k for k in floats if self.chance(0.5)] + [k for k in top if self.chance(0.1)]
        return model, list(dict.fromkeys(names)), outputs

    def declared(self, name, a):
        """A value with its type: extents are numbers, symbols (equal ones where extents are) or nothing; or no rank."""
        if self.chance(0.35):
            shape = list(a.shape)
        elif self.chance(0.7):
            symbols = [(f"S{d}", f"{name}_{i}", None) for i, d in enumerate(a.shape)]
            shape = [d if self.chance(0.4) else self.pick(s) for d, s in zip(a.shape, symbols, strict=True)]
        else:
            shape = None
        return helper.make_tensor_value_info(name, TensorProto.DOUBLE, shape)

    # --- choices

    def shape(self, rank=None):
        rank = self.pick([0, 1, 1, 2, 2, 2, 3]) if rank is None else rank
        return tuple(self.pick([1, 2, 3, 4]) for _ in range(rank))

    def name(self, stem="v"):
        self.count += 1
        return f"{stem}{self.count}"

    def value(self, rank=None, fits=lambda a: True):
        """The name of a value; later ones are likelier."""
        names = [k for k, a in self.values.items() if (rank is None or a.ndim >= rank) and fits(a)]
        if not names:
            raise Again
        k = len(names)
        return names[k - 1 - int(k * self.rng.random() ** 1.7)]

    def constant(self, array):
        """A constant operand: an initializer, or a Constant node."""
        array = np.asarray(array)
        name = self.name("k")
        if self.chance(0.7):
            self.pending_weights[name] = array
        else:
            self.pending.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        self.scratch[name] = array
        return name

    def emit(self, op, operands, outputs=1, hidden=False, **attributes):
        """A node, evaluated; the names of its results."""
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(op, operands, names, **attributes)
        feeds = {k: self.lookup(k) for k in operands if k}
        proto = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for k, a in feeds.items()
            ],
            [helper.make_empty_tensor_value_info(n) for n in names],
        )
        model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(model).run(None, feeds)
        except Exception:
            raise Again from None
        for k, a in zip(names, results, strict=True):
            self.scratch[k] = np.asarray(a)
        self.pending.append(node)
        return names[0] if outputs == 1 else names

    def lookup(self, name):
        return self.scratch[name] if name in self.scratch else self.values[name]

    # --- growth

    def grow(self, size, depth):
        """Append about `size` nodes."""
        done = 0
        for _ in range(20 * size):
            if done == size:
                return
            self.pending, self.pending_weights, self.scratch = [], {}, {}
            try:
                f = self.pick(OPERATORS)
                if f is branch:
                    if depth < 2:
                        done += f(self, depth)
                    continue
                results = f(self)
                results = results if isinstance(results, list) else [results]
                for r in results:
                    a = self.scratch[r]
                    if (
                        a.dtype != np.float64
                        or not np.isfinite(a).all()
                        or np.abs(a).max(initial=0) > 30
                        or a.size > 300
                    ):
                        raise Again
            except Again:
                continue
            self.nodes += self.pending
            self.weights.update(self.pending_weights)
            for r in results:
                self.values[r] = self.scratch[r]
            done += 1


def apart(a, points=(0,), margin=0.02):
    """Draw again where something is near one of the points."""
    if any(np.abs(a - p).min(initial=1) < margin for p in points):
        raise Again


def unary(g):
    op = g.pick([*SMOOTH, *KINKED])
    x = g.value()
    if op in KINKED:
        apart(g.values[x])
    if op == "Floor":
        apart(g.values[x] - np.round(g.values[x]))
    return g.emit(op, [x])


def positive(g):
    x = g.value()
    a = g.values[x]
    op = g.pick(POSITIVE)
    if a.min(initial=1) > 0.15:
        return g.emit(op, [x])
    square = g.emit("Mul", [x, x])
    return g.emit(op, [g.emit("Add", [square, g.constant(0.5)])])


def binary(g):
    op = g.pick(["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min"])
    x = g.value()
    y = x if g.chance(0.1) else g.constant(g.draw(g.shape())) if g.chance(0.2) else g.value()
    a, b = g.lookup(x), g.lookup(y)
    if op == "Div" and np.abs(b).min(initial=1) < 0.2:
        raise Again
    if op == "Pow" and a.min(initial=1) < 0.2:
        raise Again
    if op in ("Max", "Min") and x != y:
        try:
            apart(a - b)
        except ValueError:
            raise Again from None
    return g.emit(op, [x, y])


def variadic(g):
    op = g.pick(["Sum", "Mean", "Sum", "Mean", "Max", "Min"])
    xs = [g.value() for _ in range(g.pick([1, 2, 3, 4]))]
    if op in ("Max", "Min"):
        for i, x in enumerate(xs):
            for y in xs[:i]:
                try:
                    if x != y:
                        apart(g.values[x] - g.values[y])
                except ValueError:
                    raise Again from None
    return g.emit(op, xs)


def where(g):
    x, y, p = g.value(), g.value(), g.value()
    apart(g.values[p], (0.1,))
    c = g.emit(g.pick(["Less", "Greater"]), [p, g.constant(0.1)])
    return g.emit("Where", [c, x, y])


def clip(g):
    x = g.value()
    apart(g.values[x], (-0.6, 0.7))
    lo = g.constant(-0.6) if g.chance(0.8) else ""
    hi = g.constant(0.7) if g.chance(0.8) else ""
    return g.emit("Clip", [x, lo, hi] if hi else [x, lo] if lo else [x])


def axes_of(g, rank):
    axes = [a for a in range(rank) if g.chance(0.5)] or [0]
    return [a - rank if g.chance(0.3) else a for a in axes]


def reduce(g):
    op = g.pick(REDUCE)
    x = g.value()
    a = g.values[x]
    if op == "ReduceLogSum" and a.min(initial=1) < 0.2:
        raise Again
    if op in ("ReduceL1", "ReduceL2"):
        apart(a)
    if op in ("ReduceMax", "ReduceMin") and a.size > 1 and np.diff(np.sort(a.reshape(-1))).min() < 0.01:
        raise Again
    keep = {"keepdims": g.pick([0, 1])} if g.chance(0.8) else {}
    if a.ndim and g.chance(0.7):
        return g.emit(op, [x, g.constant(np.array(axes_of(g, a.ndim), np.int64))], **keep)
    return g.emit(op, [x], **({**keep, "noop_with_empty_axes": 1} if g.chance(0.1) else keep))


def reshape(g):
    x = g.value()
    a = g.values[x]
    if g.chance(0.3):
        return g.emit("Reshape", [x, g.emit("Shape", [g.value(fits=lambda b: b.size == a.size)])])
    shape = [int(d) for d in a.shape]
    g.rng.shuffle(shape)
    if len(shape) > 1 and g.chance(0.5):
        k = int(g.rng.integers(len(shape) - 1))
        shape[k : k + 2] = [shape[k] * shape[k + 1]]
    if g.chance(0.3):
        shape.insert(int(g.rng.integers(len(shape) + 1)), 1)
    if shape and g.chance(0.5):
        shape[int(g.rng.integers(len(shape)))] = -1
    return g.emit("Reshape", [x, g.constant(np.array(shape, np.int64))])


def computed_reshape(g):
    """Shape arithmetic as exporters write it: keep the first extent, merge the others."""
    x = g.value(rank=1)
    first = g.emit("Gather", [g.emit("Shape", [x]), g.constant(np.array(0))], axis=0)
    column = g.emit("Unsqueeze", [first, g.constant(np.array([0]))])
    return g.emit("Reshape", [x, g.emit("Concat", [column, g.constant(np.array([-1]))], axis=0)])


def transpose(g):
    x = g.value()
    perm = list(range(g.values[x].ndim))
    g.rng.shuffle(perm)
    return g.emit("Transpose", [x], **({"perm": [int(p) for p in perm]} if perm and g.chance(0.8) else {}))


def ranks(g):
    x = g.value()
    r = g.values[x].ndim
    op = g.pick(["Unsqueeze", "Squeeze", "Flatten"])
    if op == "Unsqueeze":
        if r > 3:
            raise Again
        return g.emit(op, [x, g.constant(np.array(sorted({int(g.rng.integers(r + 1)), 0})[:1], np.int64))])
    if op == "Flatten":
        return g.emit(op, [x], axis=int(g.rng.integers(-r, r + 1)))
    ones = [i for i, d in enumerate(g.values[x].shape) if d == 1]
    if ones and g.chance(0.6):
        return g.emit(op, [x, g.constant(np.array(ones[:1], np.int64))])
    return g.emit(op, [x])


def expand(g):
    x = g.value()
    if g.chance(0.4):
        return g.emit("Expand", [x, g.emit("Shape", [g.value()])])
    shape = [d if g.chance(0.5) else 1 for d in g.values[x].shape]
    shape = [g.pick([1, 2, 3]) if d == 1 and e == 1 else d for d, e in zip(shape, g.values[x].shape, strict=True)]
    return g.emit("Expand", [x, g.constant(np.array([2] * g.chance(0.3) + shape, np.int64))])


def concat(g):
    x = g.value(rank=1)
    shape = g.values[x].shape
    axis = int(g.rng.integers(len(shape)))
    others = [
        g.value(
            fits=lambda a: (
                a.ndim == len(shape) and a.shape[:axis] == shape[:axis] and a.shape[axis + 1 :] == shape[axis + 1 :]
            )
        )
        for _ in range(g.pick([0, 1, 2]))
    ]
    return g.emit("Concat", [x, *others], axis=axis - len(shape) if g.chance(0.3) else axis)


def split(g):
    x = g.value(fits=lambda a: any(d > 1 for d in a.shape))
    shape = g.values[x].shape
    axis = g.pick([i for i, d in enumerate(shape) if d > 1])
    d = shape[axis]
    if g.chance(0.5):
        return g.emit("Split", [x], outputs=2, axis=axis, num_outputs=2)
    k = int(g.rng.integers(0, d + 1))
    return g.emit("Split", [x, g.constant(np.array([k, d - k], np.int64))], outputs=2, axis=axis - len(shape))


def slice_(g):
    x = g.value(rank=1)
    shape = g.values[x].shape
    axis = int(g.rng.integers(len(shape)))
    d = shape[axis]
    start, end, step = g.pick([(0, d - 1, 1), (1, 2**40, 1), (-1, -(2**40), -1), (0, d, 2), (d, 0, -2), (-2, 100, 1)])
    rest = [np.array([v], np.int64) for v in (start, end, axis, step)]
    return g.emit("Slice", [x, *(g.constant(r) for r in rest)])


def pad(g):
    x = g.value(rank=1)
    shape = g.values[x].shape
    mode = g.pick(["constant", "edge", "reflect", "constant"])
    pads = [min(g.pick([0, 1, 2]), d - 1 if mode == "reflect" else 9) for d in shape * 2]
    if mode == "constant" and g.chance(0.5):
        value = g.value(fits=lambda a: a.ndim == 0) if g.chance(0.5) else g.constant(0.3)
        return g.emit("Pad", [x, g.constant(np.array(pads, np.int64)), value])
    return g.emit("Pad", [x, g.constant(np.array(pads, np.int64))], mode=mode)


def tile(g):
    x = g.value(rank=1)
    return g.emit("Tile", [x, g.constant(np.array([g.pick([1, 2]) for _ in g.values[x].shape], np.int64))])


def trilu(g):
    return g.emit("Trilu", [g.value(rank=2)], upper=g.pick([0, 1]))


def gather(g):
    x = g.value(rank=1)
    shape = g.values[x].shape
    axis = int(g.rng.integers(len(shape)))
    if not all(shape):
        raise Again
    if g.chance(0.4):
        index = g.rng.integers(-shape[axis], shape[axis], shape)
        return g.emit("GatherElements", [x, g.constant(index)], axis=axis)
    index = g.rng.integers(-shape[axis], shape[axis], g.shape(g.pick([0, 1, 2])))
    return g.emit("Gather", [x, g.constant(np.asarray(index))], axis=axis)


def gather_nd(g):
    x = g.value(rank=2)
    shape = g.values[x].shape
    if not all(shape):
        raise Again
    index = np.stack([g.rng.integers(-d, d, 3) for d in shape[:2]], -1)
    return g.emit("GatherND", [x, g.constant(index)])


def scatter(g):
    x = g.value(rank=1)
    shape = g.values[x].shape
    axis = int(g.rng.integers(len(shape)))
    y = g.value(fits=lambda a: a.shape == shape)
    index = np.argsort(g.rng.random(shape), axis=axis)  # no place twice
    reduction = g.pick(["none", "add"])
    return g.emit("ScatterElements", [x, g.constant(index), y], axis=axis, reduction=reduction)


def top_k(g):
    x = g.value(rank=1)
    a = g.values[x]
    if a.size > 1 and np.diff(np.sort(a.reshape(-1))).min() < 0.01:
        raise Again
    axis = int(g.rng.integers(a.ndim))
    if not a.size:
        raise Again
    k = int(g.rng.integers(1, a.shape[axis] + 1))
    return g.emit("TopK", [x, g.constant(np.array([k]))], outputs=2, axis=axis)[:1]


def cumulative(g):
    x = g.value(rank=1)
    axis = int(g.rng.integers(g.values[x].ndim))
    return g.emit("CumSum", [x, g.constant(np.array(axis))], exclusive=g.pick([0, 1]), reverse=g.pick([0, 1]))


def matmul(g):
    x = g.value(rank=1)
    a = g.values[x]
    if g.chance(0.5):
        k = g.pick([1, 2, 3])
        y = g.constant(g.draw((a.shape[-1], k) if g.chance(0.7) else (a.shape[-1],)))
    else:
        y = g.value(fits=lambda b: b.ndim > 0 and b.shape[-2:][0] == a.shape[-1])
    return g.emit("MatMul", [x, y])


def gemm(g):
    x = g.value(fits=lambda a: a.ndim == 2)
    ta, tb = g.pick([0, 1]), g.pick([0, 1])
    inner = g.values[x].shape[0 if ta else 1]
    y = g.constant(g.draw((3, inner) if tb else (inner, 3)))
    c = [g.pick([g.constant(g.draw((3,))), g.constant(0.5), g.value()])] if g.chance(0.6) else []
    return g.emit("Gemm", [x, y, *c], transA=ta, transB=tb, alpha=0.7, beta=1.3)


def einsum(g):
    x = g.value(fits=lambda a: a.ndim == 2)
    equation = g.pick(["ij->ji", "ij->i", "ij->", "ij,ij->ij", "ij,ij->j", "ij,kj->ik"])
    return g.emit("Einsum", [x] * (2 if "," in equation else 1), equation=equation)


def normal(g):
    op = g.pick(["Softmax", "LogSoftmax", "LayerNormalization"])
    x = g.value(rank=1)
    shape = g.values[x].shape
    axis = int(g.rng.integers(len(shape)))
    if op != "LayerNormalization":
        return g.emit(op, [x], axis=axis)
    if g.values[x].std(axis=tuple(range(axis, len(shape)))).min() < 0.1:
        raise Again
    return g.emit(op, [x, g.constant(g.draw(shape[axis:]))], axis=axis, stash_type=11)


def branch(g, depth):
    """An If on data: what both branches compute from what is there, nested at most twice."""
    p = g.value()
    total = float(g.values[p].sum())
    if abs(total) < 0.05:
        raise Again
    sum_, flag, out = g.name("s"), g.name("c"), g.name()
    head = [helper.make_node("ReduceSum", [p], [sum_], keepdims=0)]
    zero = g.name("k")
    head += [helper.make_node("Constant", [], [zero], value=numpy_helper.from_array(np.array(0.0)))]
    head += [helper.make_node("Greater", [sum_, zero], [flag])]
    outer, nodes = dict(g.values), g.nodes
    graphs, results = [], []
    for side in ("then", "else"):
        g.nodes, g.values = [], dict(outer)
        g.grow(int(g.rng.integers(1, 4)), depth + 1)
        new = [k for k in g.values if k not in outer]
        yielded = new[-1] if new else g.value()
        if not new or g.chance(0.1):
            g.nodes.append(helper.make_node("Identity", [yielded], [g.name("i")]))
            g.values[g.nodes[-1].output[0]] = g.values[yielded]
            yielded = g.nodes[-1].output[0]
        info = [helper.make_empty_tensor_value_info(yielded)]
        graphs.append(helper.make_graph(g.nodes, f"{side}{g.count}", [], info))
        graphs[-1].output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
        results.append(g.values[yielded])
    g.nodes, g.values = nodes, outer
    g.nodes += head
    g.nodes.append(helper.make_node("If", [flag], [out], then_branch=graphs[0], else_branch=graphs[1]))
    g.values[out] = results[0 if total > 0 else 1]
    return 1


OPERATORS = [
    unary,
    unary,
    positive,
    binary,
    binary,
    variadic,
    where,
    clip,
    reduce,
    reshape,
    computed_reshape,
    transpose,
]
OPERATORS += [ranks, expand, concat, split, slice_, pad, tile, trilu, gather, gather_nd, scatter, top_k, cumulative]
OPERATORS += [matmul, gemm, einsum, normal, branch]
