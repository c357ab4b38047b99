"""Random nests of If, Loop and Scan.

Bodies read what is around them (weights, states of outer loops, results of other branches); loops carry several
states, some of which grow, and stack results along axes and in directions; branches have results of different shapes;
branches that are not taken hold what would fail if it ran.
"""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper
from random_draws import Again
from random_programs import BOOL, DOUBLE, FAR, INT64, NEVER, ODD, Program, full


def condition(g):
    """A flag: an input, or what is computed from data or from an iteration's number."""
    kind = g.pick(["flag", "data", "count"])
    if kind == "flag":
        return g.pick(g.flags)
    c = g.name("c")
    if kind == "data":
        s = g.emit("ReduceSum", [g.value()], (), keepdims=0)
        # on what is known before it runs, ONNX Runtime 1.32 inlines branches, and crashes on some
        s = g.emit("Add", [s, g.emit("ReduceSum", ["x0"], (), keepdims=0)], ())
        g.nodes.append(helper.make_node("Greater", [s, g.constant(0.1)], [c]))
    else:
        g.nodes.append(helper.make_node("Less", [g.pick(g.counters), g.constant(np.array(1))], [c]))
    g.flags.append(c)
    return c


def branch(g, depth):
    c = condition(g)
    many = g.pick([1, 1, 2, 3])
    drawn = []
    kinds = [g.pick(["same", "same", "free"]) for _ in range(many)]
    for _ in range(2):
        outer, new = g.region(depth)
        picked = [g.pick(new) if new and g.chance(0.85) else g.value() for _ in range(many)]
        drawn.append([outer, picked, g.nodes, g.shapes, g.flags, g.counters])
        g.restore(outer)
    results, shapes = [[], []], []
    for i, kind in enumerate(kinds):
        target = drawn[0][3][drawn[0][1][i]]
        if target is None or not all(
            isinstance(d, int) or any(d in (s or ()) for s in g.shapes.values()) for d in target
        ):
            target = ()
        both = []
        for k, d in enumerate(drawn):
            g.nodes, g.shapes, g.flags, g.counters = d[2:]
            try:
                x = d[1][i] if kind == "free" else g.as_shape(d[1][i], target)
            finally:
                g.restore(d[0])
            both.append(d[3][x])
            results[k].append(x)
        shapes.append(target if kind == "same" else merged(g, *both))
    graphs = []
    for k, d in enumerate(drawn):
        g.nodes = d[2]
        results[k] = unique(g, results[k])
        graphs.append(
            helper.make_graph(d[2], g.name("b"), [], [g.inner(r, s) for r, s in zip(results[k], shapes, strict=True)])
        )
        g.restore(d[0])
    outs = [g.name() for _ in range(many)]
    g.nodes.append(helper.make_node("If", [c], outs, then_branch=graphs[0], else_branch=graphs[1]))
    g.shapes |= dict(zip(outs, shapes, strict=True))


def merged(g, s, t):
    if s is None or t is None or len(s) != len(t):
        return None
    return tuple(
        a if a == b and isinstance(a, int) else g.fresh(not (full((a,)) and full((b,))))
        for a, b in zip(s, t, strict=True)
    )


def unique(g, results):
    """Results of a region: each a value of the region of its own."""
    own = {o for n in g.nodes for o in n.output}
    out = []
    for r in results:
        if r not in own or r in out:
            name = g.name("i")
            g.nodes.append(helper.make_node("Identity", [r], [name]))
            r = name
        out.append(r)
    return out


def hazard(g, depth):
    """A branch that fails where it is taken, and is not; the other one computes something."""
    outer, new = g.region(depth, size=2)
    x = g.value(lambda s: s is not None and len(s) > 0)
    g.shapes[x]
    for _ in range(2):
        op = g.pick(["Gather", "Reshape", "Expand"])
        if op == "Gather":
            r = g.emit(op, [x, FAR], None, axis=0)
        else:
            r = g.emit(op, [x, ODD], None)
        r = g.emit(g.pick(["Sin", "Sqrt", "Tanh"]), [r], None)
        if g.chance(0.5):
            r = g.emit("Mul", [r, x], None)
        if new and g.chance(0.5):
            r = g.emit("Sum", [g.total(r), g.total(g.pick(new))], ())
    r = g.emit("Sin", [g.emit("ReduceSum", [r], (), keepdims=0)], ())
    then = helper.make_graph(g.nodes, g.name("b"), [], [g.inner(r, ())])
    g.restore(outer)
    outer, new = g.region(depth, size=2)
    (r,) = unique(g, [g.total(g.pick(new) if new else g.value())])
    other = helper.make_graph(g.nodes, g.name("b"), [], [g.inner(r, ())])
    g.restore(outer)
    out = g.name()
    g.nodes.append(helper.make_node("If", [NEVER], [out], then_branch=then, else_branch=other))
    g.shapes[out] = ()


def known(shape, g):
    """True where all extents are known around the loop."""
    around = {d for s in g.shapes.values() if s is not None for d in s}
    return shape is not None and all(isinstance(d, int) or d in around for d in shape)


def loop(g, depth):
    count = g.pick([0, 1, 1, 2, 3])
    starts = [g.value(lambda s: s is not None and len(s) < 4) for _ in range(count)]
    growing = [len(g.shapes[x]) > 0 and g.chance(0.25) for x in starts]
    params = []
    for x, grows in zip(starts, growing, strict=True):
        s = g.shapes[x]
        params.append((g.name("s"), (g.fresh(not full(s[:1])), *s[1:]) if grows else s))
    i, go = g.name("i"), g.name("g")
    ends = g.chance(0.25)
    stack = g.pick([0, 0, 1, 2]) if count else 1
    # (what shape there is to stacks of no iterations, ONNX Runtime and the specification do not say)
    trips = (
        g.pick(["n1", "n2", "n3"])
        if stack
        else g.pick(["n0", "n1", "n2", "n3", "n2", "n3"])
        if g.chance(0.5)
        else g.constant(np.array(g.pick([0, 1, 2, 3, 2, 3])))
    )
    outer = g.nodes, g.shapes, g.flags, g.counters
    g.nodes, g.shapes = [], {**g.shapes, **dict(params)}
    g.flags, g.counters = [*g.flags, go], [*g.counters, i, i]
    try:
        new = g.grow(g.pick([1, 2, 3, 4]), depth + 1)
        inside = g.nodes
        after = []
        for (s, shape), grows in zip(params, growing, strict=True):
            x = g.pick(new) if new and g.chance(0.8) else g.value()
            if grows:
                row = (1, *shape[1:])
                if not all(isinstance(d, int) for d in row):
                    raise Again
                after.append(
                    g.emit(
                        "Concat", [s, g.as_shape(x, row)] if g.chance(0.6) else [g.as_shape(x, row), s], None, axis=0
                    )
                )
            else:
                y = g.as_shape(x, shape)
                after.append(g.emit("Tanh", [g.emit("Add", [y, s], shape)], shape) if g.chance(0.5) else y)
        stacks = []
        for _ in range(stack):
            x = g.pick(new) if new and g.chance(0.8) else g.value()
            s = g.shapes[x]
            around = {d for t in outer[1].values() if t is not None for d in t}
            if s is None or not all(isinstance(d, int) or d in around for d in s):
                x = g.total(x)
            stacks.append(x)
        kind = g.pick(["pass", "true", "count", "data"]) if ends else g.pick(["pass", "true"])
        flag = g.name("g")
        if kind == "pass":
            g.nodes.append(helper.make_node("Identity", [go], [flag]))
        elif kind == "true":
            t = g.name("k")
            g.nodes.append(helper.make_node("Constant", [], [t], value=numpy_helper.from_array(np.array(True))))
            g.nodes.append(helper.make_node("Identity", [t], [flag]))
        elif kind == "count":
            g.nodes.append(helper.make_node("Less", [i, g.constant(np.array(1))], [flag]))
        else:
            x = g.pick(after) if after else g.value()
            s = g.emit("ReduceSum", [x], (), keepdims=0)
            g.nodes.append(helper.make_node("Less", [s, g.constant(0.7)], [flag]))
        yields = unique(g, [*after, *stacks])
        shapes = [g.shapes[x] for x in stacks]
        body = helper.make_graph(
            inside,
            g.name("b"),
            [
                helper.make_tensor_value_info(i, INT64, []),
                helper.make_tensor_value_info(go, BOOL, []),
                *(g.inner(s, None if grows else shape) for (s, shape), grows in zip(params, growing, strict=True)),
            ],
            [
                helper.make_tensor_value_info(flag, BOOL, []),
                *(g.inner(y, None) for y in yields[:count]),
                *(
                    helper.make_tensor_value_info(y, DOUBLE, [d if isinstance(d, int) else None for d in s])
                    for y, s in zip(yields[count:], shapes, strict=True)
                ),
            ],
        )
    finally:
        g.restore(outer)
    outs = [g.name() for _ in yields]
    start = g.pick(["", "yes", "yes", "no" if g.chance(0.3) and not stack else ""])
    g.nodes.append(helper.make_node("Loop", [trips, start, *starts], outs, body=body))
    e = g.fresh(True)
    finals = [(g.fresh(not full(s[:1])), *s[1:]) if grows else s for (_, s), grows in zip(params, growing, strict=True)]
    g.shapes |= dict(zip(outs, [*finals, *((e, *s) for s in shapes)], strict=True))


def scan(g, depth):
    first = g.value(lambda s: full(s) and len(s) > 0)
    axis = int(g.rng.integers(len(g.shapes[first])))
    length = g.shapes[first][axis]
    operands = [(first, axis)]
    if g.chance(0.5):
        x = g.value(lambda s: full(s) and length in s)
        operands.append((x, g.shapes[x].index(length)))
    count = g.pick([0, 1, 1, 2])
    starts = [g.value(lambda s: s is not None and len(s) < 4) for _ in range(count)]
    states = [(g.name("s"), g.shapes[x]) for x in starts]
    slices = [(g.name("s"), g.shapes[x][:a] + g.shapes[x][a + 1 :]) for x, a in operands]
    outer = g.nodes, g.shapes, g.flags, g.counters
    g.nodes, g.shapes = [], {**g.shapes, **dict(states), **dict(slices)}
    g.flags = list(g.flags)
    try:
        new = g.grow(g.pick([1, 2, 3, 4]), depth + 1)
        inside = g.nodes
        after = []
        for s, shape in states:
            y = g.as_shape(g.pick(new) if new and g.chance(0.8) else g.value(), shape)
            after.append(g.emit("Tanh", [g.emit("Add", [y, s], shape)], shape) if g.chance(0.5) else y)
        stacks = []
        for _ in range(g.pick([0, 1, 2]) if count else g.pick([1, 2])):
            x = g.pick(new) if new and g.chance(0.8) else g.value()
            s = g.shapes[x]
            around = {d for t in outer[1].values() if t is not None for d in t}
            if not full(s) or not all(isinstance(d, int) or d in around for d in s):  # (a Scan cannot stack nothing)
                x = g.total(x)
            stacks.append(x)
        yields = unique(g, [*after, *stacks])
        shapes = [g.shapes[x] for x in stacks]
        body = helper.make_graph(
            inside,
            g.name("b"),
            [g.inner(s, shape) for s, shape in (*states, *slices)],
            [
                helper.make_tensor_value_info(y, DOUBLE, [d if isinstance(d, int) else None for d in s])
                for y, s in zip(yields, [*(s for _, s in states), *shapes], strict=True)
            ],
        )
    finally:
        g.restore(outer)
    axes = [int(g.rng.integers(len(s) + 1)) for s in shapes]
    attributes = {"num_scan_inputs": len(operands), "body": body}
    attributes["scan_input_axes"] = [a - len(g.shapes[x]) * g.pick([0, 1]) for x, a in operands]
    if axes:
        attributes["scan_output_axes"] = axes
    if g.chance(0.5):
        attributes["scan_input_directions"] = [g.pick([0, 1]) for _ in operands]
        if axes:
            attributes["scan_output_directions"] = [g.pick([0, 1]) for _ in shapes]
    outs = [g.name() for _ in yields]
    g.nodes.append(helper.make_node("Scan", [*starts, *(x for x, _ in operands)], outs, **attributes))
    g.shapes |= dict(
        zip(
            outs,
            [*(s for _, s in states), *((*s[:a], length, *s[a:]) for s, a in zip(shapes, axes, strict=True))],
            strict=True,
        )
    )


def collect(g, depth):
    """A loop that puts values in a sequence, and what is taken out of it."""
    x = g.value(lambda s: s is not None and 0 < len(s) < 4)
    rank = len(g.shapes[x])
    start, i, go, s, after, flag = (g.name(k) for k in ("q", "i", "g", "q", "q", "g"))
    if g.chance(0.4):
        g.nodes.append(helper.make_node("SequenceEmpty", [], [start], dtype=DOUBLE))
    else:
        g.nodes.append(helper.make_node("SequenceConstruct", [x], [start]))
    outer = g.nodes, g.shapes, g.flags, g.counters
    g.nodes, g.shapes = [], dict(g.shapes)
    g.flags, g.counters = [*g.flags, go], [*g.counters, i, i]
    try:
        new = g.grow(g.pick([1, 2, 3]), depth + 1)
        inside = g.nodes
        y = g.pick(new) if new and g.chance(0.8) else x
        if g.shapes[y] is None or len(g.shapes[y]) != rank or g.shapes[y][1:] != g.shapes[x][1:]:
            y = g.emit("Mul", [x, g.total(y)], g.shapes[x])
        g.nodes.append(helper.make_node("SequenceInsert", [s, y] + [g.constant(np.array(0))] * g.pick([0, 1]), [after]))
        g.nodes.append(helper.make_node("Identity", [go], [flag]))
        element = helper.make_tensor_sequence_value_info
        body = helper.make_graph(
            inside,
            g.name("b"),
            [
                helper.make_tensor_value_info(i, INT64, []),
                helper.make_tensor_value_info(go, BOOL, []),
                element(s, DOUBLE, None),
            ],
            [helper.make_tensor_value_info(flag, BOOL, []), element(after, DOUBLE, None)],
        )
    finally:
        g.restore(outer)
    q = g.name("q")
    g.nodes.append(helper.make_node("Loop", [g.pick(["n1", "n2", "n3"]), "", start], [q], body=body))
    if g.chance(0.5):
        g.emit("ConcatFromSequence", [q], (g.fresh(not full(g.shapes[x])), *g.shapes[x][1:]), axis=0)
    else:
        at = g.constant(np.array(g.pick([0, -1])))
        g.emit("SequenceAt", [q, at], (g.fresh(not full(g.shapes[x])), *g.shapes[x][1:]))


class Nest(Program):
    """A random program with regions in regions."""

    regions = (branch, branch, loop, loop, scan, scan, hazard, collect)


class DeepNest(Nest):
    """Few operators in branches of branches: deep enough for what is cheap to run again in the adjoint."""

    regions = (*[branch] * 14, *[hazard] * 3)

    def __init__(self, seed: int, size: int | None = None):
        super().__init__(seed, size, deepest=6)

    def region(self, depth, size=None):
        return super().region(depth, size or self.pick([1, 2, 2]))


def depth(nodes):
    """How deep regions are nested."""
    inside = [a.g.node for n in nodes for a in n.attribute if a.HasField("g")]
    return 1 + max(map(depth, inside)) if inside else 0
