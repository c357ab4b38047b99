"""Random straight-line programs of smooth operators in double precision, whose shapes are followed as they are drawn.

An extent is a number, or a name where only the run tells it ("?" in front where it may be zero); None is an unknown
rank. `random_regions` puts nests of If, Loop and Scan around them.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from random_draws import Again, Draws

OPSET = 21
DOUBLE, INT64, BOOL = TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL
#: Never true: the condition of branches that would fail.
NEVER = "never"
#: What a branch that is not taken uses: a place outside of every tensor, and a shape that none has.
FAR, ODD = "far", "odd"


class Program(Draws):
    """A random program: `model()`, and `feeds` for its inputs; `active` are those to differentiate."""

    #: What draws nodes with regions: functions of the program and the depth.
    regions: tuple = ()

    def __init__(self, seed: int, size: int | None = None, deepest: int = 3):
        self.rng = np.random.default_rng(seed)
        self.deepest = deepest
        self.count = 0
        self.nodes: list = []
        self.shapes: dict = {}
        self.flags: list[str] = ["yes", "no"]
        self.counters: list[str] = ["n0", "n1", "n2", "n3"]
        self.feeds: dict = {"yes": np.array(True), "no": np.array(False), NEVER: np.array(False)}
        self.feeds |= {f"n{i}": np.array(i) for i in range(4)}
        self.feeds |= {FAR: np.array(1000), ODD: np.array([7, 11, 13])}
        self.weights: dict = {}
        self.active: list[str] = []
        #: Extents that are the same in every iteration and every branch.
        for i in range(self.pick([1, 2, 3])):
            shape = self.extents()
            self.active.append(f"x{i}")
            self.shapes[f"x{i}"] = shape
            self.feeds[f"x{i}"] = self.draw(shape)
        for i in range(self.pick([0, 1, 2])):
            shape = self.extents()
            self.weights[f"w{i}"], self.shapes[f"w{i}"] = self.draw(shape), shape
        self.grow(size or int(self.rng.integers(3, 9)), 0)

    # --- the model

    def model(self):
        """The model; its outputs are values that nobody reads, and a few others."""
        top = [o for n in self.nodes for o in n.output if o in self.shapes]
        read = {x for n in self.nodes for x in n.input}
        outputs = [v for v in top if v not in read][-3:] or top[-1:]
        outputs += [v for v in top if v not in outputs and self.chance(0.05)]
        outputs = [self.total(v) if self.shapes[v] is None else v for v in outputs]
        used = set(names(self.nodes)) | set(outputs)
        self.feeds = {k: v for k, v in self.feeds.items() if k in used or k in self.active}
        inputs = [self.declared(k, v) for k, v in self.feeds.items()]
        graph = helper.make_graph(
            self.nodes,
            "g",
            inputs,
            [self.result(k) for k in outputs],
            [numpy_helper.from_array(np.asarray(a), k) for k, a in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)

    def declared(self, name, a):
        """An input with its type: extents are numbers, symbols or nothing; or no rank."""
        t = helper.np_dtype_to_tensor_dtype(a.dtype)
        if t != DOUBLE or self.chance(0.4):
            return helper.make_tensor_value_info(name, t, a.shape)
        if self.chance(0.15):
            return helper.make_tensor_value_info(name, t, None)
        shape = [d if self.chance(0.3) else self.pick([f"S{d}", f"{name}_{i}", None]) for i, d in enumerate(a.shape)]
        return helper.make_tensor_value_info(name, t, shape)

    def result(self, name):
        """An output with its type: numbers where they are known."""
        return helper.make_tensor_value_info(
            name, DOUBLE, [d if isinstance(d, int) else None for d in self.shapes[name]]
        )

    def inner(self, name, shape, t=DOUBLE):
        """An input or output of a region, with its type or a part of it."""
        if shape is None or self.chance(0.5):
            return helper.make_tensor_value_info(name, t, None)
        if self.chance(0.5):
            return helper.make_tensor_value_info(name, t, [d if isinstance(d, int) else None for d in shape])
        return helper.make_tensor_value_info(
            name, t, [d if isinstance(d, int) and self.chance(0.5) else None for d in shape]
        )

    # --- choices

    def extents(self):
        return tuple(self.pick([1, 2, 3]) for _ in range(self.pick([0, 1, 1, 2, 2, 3])))

    def name(self, stem="v"):
        self.count += 1
        return f"{stem}{self.count}"

    def value(self, fits=lambda s: True):
        """The name of a value; later ones are likelier."""
        found = [k for k, s in self.shapes.items() if fits(s)]
        if not found:
            raise Again
        return found[len(found) - 1 - int(len(found) * self.rng.random() ** 1.7)]

    def constant(self, a):
        """A constant: an initializer of the model, or a node where it is used."""
        a, name = np.asarray(a), self.name("k")
        if self.chance(0.5):
            self.weights[name] = a
        else:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(a)))
        return name

    def emit(self, op, operands, shape, **attributes):
        name = self.name()
        self.nodes.append(helper.make_node(op, operands, [name], **attributes))
        self.shapes[name] = shape
        return name

    # --- growth

    def grow(self, size, depth):
        """Append about `size` nodes to the graph at hand; the names of what is new."""
        before = set(self.shapes)
        done = 0
        for _ in range(20 * size):
            if done >= size:
                break
            f = self.pick([*OPERATORS, *self.regions])
            deep = f in self.regions
            if deep and depth >= self.deepest:
                continue
            nodes, mark, shapes, flags = self.nodes, len(self.nodes), dict(self.shapes), list(self.flags)
            counters = self.counters
            try:
                f(self, depth) if deep else f(self)
            except Again:
                del nodes[mark:]
                self.restore((nodes, shapes, flags, counters))
                continue
            done += 1
        return [k for k in self.shapes if k not in before]

    def region(self, depth, size=None):
        """Draw a body. Returns what `restore` needs, and what is new."""
        outer = self.nodes, self.shapes, self.flags, self.counters
        self.nodes, self.shapes = [], dict(self.shapes)
        self.flags, self.counters = list(self.flags), list(self.counters)
        new = self.grow(size or self.pick([1, 2, 2, 3, 4]), depth + 1)
        return outer, new

    def restore(self, outer):
        self.nodes, self.shapes, self.flags, self.counters = outer

    def as_shape(self, x, shape):
        """A value that depends on x and has a shape of numbers and names that other values have; else Again."""
        if self.shapes[x] == shape:
            return x
        if shape is None:
            raise Again
        if not all(isinstance(d, int) for d in shape):
            like = self.value(lambda s: s == shape)
            return self.emit("Add", [self.total(x), like], shape)
        return self.emit("Add", [self.total(x), self.constant(np.full(shape, 0.25))], shape)

    def total(self, x):
        """The sum of all elements, tamed."""
        s = self.emit("ReduceSum", [x], (), keepdims=0)
        return self.emit("Sin", [s], ())

    def fresh(self, empty=False):
        return self.name("?e" if empty else "e")


def names(nodes):
    """Everything that nodes and their regions read."""
    for n in nodes:
        yield from n.input
        for a in n.attribute:
            if a.g.node or a.g.output:
                yield from names(a.g.node)
                yield from (o.name for o in a.g.output)


def full(s):
    """True where a shape is known and has no extent that may be zero."""
    return s is not None and not any(d == 0 or (isinstance(d, str) and d[0] == "?") for d in s)


# --- operators


def unary(g):
    x = g.value()
    g.emit(g.pick(["Sin", "Cos", "Tanh", "Sigmoid", "Neg", "Identity", "Relu", "Abs"]), [x], g.shapes[x])


def steep(g):
    x = g.value()
    s = g.shapes[x]
    op = g.pick(["Sqrt", "Log", "Reciprocal"])
    square = g.emit("Add", [g.emit("Mul", [x, x], s), g.constant(0.5)], s)
    g.emit(op, [square], s)


def broadcast(s, t):
    if s is None or t is None:
        raise Again
    n = max(len(s), len(t))
    out = []
    for a, b in zip((1,) * (n - len(s)) + s, (1,) * (n - len(t)) + t, strict=True):
        if a != b and 1 not in (a, b):
            raise Again
        out.append(b if a == 1 else a)
    return tuple(out)


def binary(g):
    op = g.pick(["Add", "Sub", "Mul", "Mul", "Div", "Max", "Min"])
    x, y = g.value(), g.value()
    shape = g.shapes[x] if x == y else broadcast(g.shapes[x], g.shapes[y])
    if op == "Div":
        y = g.emit("Add", [g.emit("Sigmoid", [y], g.shapes[y]), g.constant(0.5)], g.shapes[y])
    r = g.emit(op, [x, y], shape)
    if g.chance(0.5):
        g.emit(g.pick(["Tanh", "Sin"]), [r], shape)


def product(g):
    x = g.value(lambda s: s is not None and len(s) > 0 and isinstance(s[-1], int))
    s = g.shapes[x]
    if g.chance(0.4):
        y = g.value(lambda t: t is not None and len(t) == 2 and t[0] == s[-1])
        k = g.shapes[y][1]
    else:
        k = g.pick([1, 2, 3])
        y = g.name("k")
        g.weights[y] = g.draw((s[-1], k)) * 0.7
    g.emit("MatMul", [x, y], (*s[:-1], k))


def reduce(g):
    x = g.value()
    s = g.shapes[x]
    keep = g.pick([0, 1])
    if s is None or not s or g.chance(0.3):
        if s is None or not keep:
            return g.emit("ReduceSum", [x], (), keepdims=0)
        return g.emit("ReduceSum", [x], (1,) * len(s), keepdims=1)
    axis = int(g.rng.integers(len(s)))
    op = g.pick(["ReduceSum", "ReduceMean", "ReduceMax", "ReduceSumSquare", "ReduceProd"]) if full(s) else "ReduceSum"
    shape = s[:axis] + (1,) * keep + s[axis + 1 :]
    return g.emit(op, [x, g.constant(np.array([axis - len(s) * g.pick([0, 1])]))], shape, keepdims=keep)


def move(g):
    x = g.value(lambda s: s is not None and len(s) > 0)
    s = g.shapes[x]
    op = g.pick(["Transpose", "Concat", "Unsqueeze", "Flat", "Expand", "Slice", "Gather", "Split"])
    if op == "Transpose":
        perm = [int(i) for i in g.rng.permutation(len(s))]
        g.emit(op, [x], tuple(s[i] for i in perm), perm=perm)
    elif op == "Concat":
        axis = int(g.rng.integers(len(s)))

        def same(t):
            return t is not None and len(t) == len(s) and t[:axis] == s[:axis] and t[axis + 1 :] == s[axis + 1 :]

        y = g.value(same)
        a, b = s[axis], g.shapes[y][axis]
        d = a + b if isinstance(a, int) and isinstance(b, int) else g.fresh(not full((a,)) and not full((b,)))
        g.emit(op, [x, y], (*s[:axis], d, *s[axis + 1 :]), axis=axis)
    elif op == "Unsqueeze" and len(s) < 4:
        axis = int(g.rng.integers(len(s) + 1))
        g.emit(op, [x, g.constant(np.array([axis]))], (*s[:axis], 1, *s[axis:]))
    elif op == "Flat":
        n = int(np.prod(s)) if all(isinstance(d, int) for d in s) else g.fresh(not full(s))
        g.emit("Reshape", [x, g.constant(np.array([-1]))], (n,))
    elif op == "Expand":
        g.emit(op, [x, g.constant(np.array([2] + [1] * len(s)))], (2, *s))
    elif isinstance(s[0], int) and s[0] > 1 and op in ("Slice", "Gather", "Split"):
        if op == "Slice":
            k = [g.constant(np.array([v])) for v in (1, 2**40, 0)]
            g.emit(op, [x, *k], (s[0] - 1, *s[1:]))
        elif op == "Gather":
            g.emit(op, [x, g.constant(np.array(g.rng.integers(-s[0], s[0], 3)))], (3, *s[1:]), axis=0)
        else:
            a, b = g.name(), g.name()
            sizes = g.constant(np.array([1, s[0] - 1]))
            g.nodes.append(helper.make_node("Split", [x, sizes], [a, b], axis=0))
            g.shapes |= {a: (1, *s[1:]), b: (s[0] - 1, *s[1:])}
    else:
        raise Again


def where(g):
    x, y = g.value(), g.value()
    shape = broadcast(g.shapes[x], g.shapes[y])
    c = g.name("c")
    g.nodes.append(helper.make_node("Greater", [x, y], [c]))
    z = g.value(lambda s: s == shape)
    g.emit("Where", [c, z, x], shape)


def normal(g):
    x = g.value(lambda s: full(s) and len(s) > 0)
    g.emit(g.pick(["Softmax", "LogSoftmax"]), [x], g.shapes[x], axis=int(g.rng.integers(len(g.shapes[x]))))


def counted(g):
    """An iteration's number as a factor."""
    i = g.pick(g.counters)
    f = g.emit("Cast", [i], (), to=DOUBLE)
    x = g.value()
    s = g.shapes[x]
    if s is None:
        raise Again
    g.emit("Mul", [x, g.emit("Cos", [f], ())], s)


OPERATORS = [unary, unary, steep, binary, binary, binary, product, reduce, move, move, where, normal, counted]
