"""Work per node does not grow with the model: chains, fans, many inputs, constants, branches, growing extents.

What is counted is lines of Python that run, and comparisons of nodes and values, so that a search in a list counts for
what it is. A step that takes work with the square of the model costs 3 times as much a node at the larger size.
"""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import evaluate, steps

from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.parser import parse_model
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import DataType, TensorType
from onnxad_ir.verify import verify
from onnxad_passes import run_pipeline

SMALL, GROWTH, BOUND = 80, 3, 1.1


def value(name, shape=(2, 3), dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def make(nodes, inputs, outputs, weights=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def number(name, x):
    return numpy_helper.from_array(np.asarray(x, np.float32), name)


def chain(n):
    names = ["x", *(f"v{i}" for i in range(n))]
    ops = ["Sin", "Exp", "Tanh", "Relu"]
    nodes = [helper.make_node(ops[i % 4], [names[i]], [names[i + 1]]) for i in range(n)]
    return make(nodes, [value("x")], [value(names[-1])])


def fan_out(n):
    nodes = [helper.make_node("Sin", ["x"], ["v0"])]
    nodes += [helper.make_node("Mul", ["v0", f"v{i}"], [f"v{i + 1}"]) for i in range(n - 1)]
    return make(nodes, [value("x")], [value(f"v{n - 1}")])


def fan_in(n, op="Sum", **attributes):
    nodes = [helper.make_node("Mul", ["x", f"w{i}"], [f"v{i}"]) for i in range(n)]
    nodes += [helper.make_node(op, [f"v{i}" for i in range(n)], ["y"], **attributes)]
    return make(nodes, [value("x")], [value("y", None)], [number(f"w{i}", i + 1.5) for i in range(n)])


def concatenation(n):
    return fan_in(n, "Concat", axis=0)


def interface(n):
    nodes = [helper.make_node("Mul", [f"x{i}", f"w{i}"], [f"y{i}"]) for i in range(n)]
    weights = [number(f"w{i}", [i, 2, 3]) for i in range(n)]
    return make(nodes, [value(f"x{i}") for i in range(n)], [value(f"y{i}") for i in range(n)], weights)


def constants(n):
    names = ["x", *(f"v{i}" for i in range(n // 2))]
    nodes = []
    for i in range(n // 2):
        nodes.append(helper.make_node("Constant", [], [f"c{i}"], value_ints=[1] * (1 + i % 7) + [2, 1]))
        nodes.append(helper.make_node("Expand", [names[i], f"c{i}"], [names[i + 1]]))
    return make(nodes, [value("x", (2, 1))], [value(names[-1], None)])


def symbols(n):
    """A Concat of n symbolic extents, and one that grows piece by piece."""
    nodes = [helper.make_node("Concat", [f"x{i}" for i in range(n)], ["all"], axis=0)]
    grown = ["x0", *(f"v{i}" for i in range(1, n))]
    nodes += [helper.make_node("Concat", [grown[i - 1], f"x{i}"], [grown[i]], axis=0) for i in range(1, n)]
    outputs = [value("all", None), value(grown[-1], None)]
    return make(nodes, [value(f"x{i}", (f"N{i}", 3)) for i in range(n)], outputs)


def shapes(n):
    """x keeps its first extent, the others are merged, again and again."""
    nodes, x = [], "x"
    for i in range(n // 5):
        nodes += [
            helper.make_node("Shape", [x], [f"s{i}"]),
            helper.make_node("Gather", [f"s{i}", "zero"], [f"d{i}"]),
            helper.make_node("Concat", [f"d{i}", "rest"], [f"t{i}"], axis=0),
            helper.make_node("Reshape", [x, f"t{i}"], [f"r{i}"]),
            helper.make_node("Sin", [f"r{i}"], [f"v{i}"]),
        ]
        x = f"v{i}"
    weights = [numpy_helper.from_array(np.array([0]), "zero"), numpy_helper.from_array(np.array([-1]), "rest")]
    return make(nodes, [value("x", ("N", "M", "K"))], [value(x, None)], weights)


def branches(n):
    nodes, x = [], "x"
    for i in range(n // 3):
        graphs = [
            helper.make_graph([helper.make_node(op, [x, "x"], [f"{side}{i}"])], side, [], [value(f"{side}{i}")])
            for op, side in (("Mul", "then"), ("Add", "else"))
        ]
        nodes.append(helper.make_node("If", ["c"], [f"v{i}"], then_branch=graphs[0], else_branch=graphs[1]))
        x = f"v{i}"
    return make(nodes, [value("x"), value("c", (), TensorProto.BOOL)], [value(x)])


def frozen(n):
    """Every weight is a one that a derivative uses."""
    names = ["x", *(f"v{i}" for i in range(n))]
    nodes = [helper.make_node("Mul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(n)]
    return make(nodes, [value("x")], [value(names[-1])], [number(f"w{i}", 1) for i in range(n)])


def recurrent(n):
    """LSTMs large enough for a Scan to take their place in reverse mode."""
    names = ["x", *(f"v{i}" for i in range(n // 4))]
    nodes = []
    for i in range(n // 4):
        nodes.append(helper.make_node("LSTM", [names[i], "w", "r"], [f"y{i}"], hidden_size=48))
        nodes.append(helper.make_node("Squeeze", [f"y{i}", "one"], [names[i + 1]]))
    weights = [numpy_helper.from_array(np.full((1, 192, 48), 0.01, np.float32), k) for k in "wr"]
    weights.append(numpy_helper.from_array(np.array([1]), "one"))
    return make(nodes, [value("x", (2, 8, 48))], [value(names[-1], None)], weights)


def carried(n):
    """A Scan of many states."""
    names = [f"{i}" for i in range(n // 2)]
    nodes = [helper.make_node("Sin", [f"s{k}"], [f"t{k}"]) for k in names]
    inputs = [*(value(f"s{k}") for k in names), value("u")]
    body = helper.make_graph(nodes, "body", inputs, [value(f"t{k}") for k in names])
    scan = helper.make_node(
        "Scan", [*(f"x{k}" for k in names), "u"], [f"y{k}" for k in names], num_scan_inputs=1, body=body
    )
    return make([scan], [*(value(f"x{k}") for k in names), value("u", (4, 2, 3))], [value(f"y{k}") for k in names])


MODELS = [
    frozen,
    chain,
    fan_out,
    fan_in,
    concatenation,
    interface,
    constants,
    symbols,
    shapes,
    branches,
    recurrent,
    carried,
]


def step(name):
    if name == "proto":
        return lambda m: to_proto(from_proto(m))
    if name == "text":
        return lambda m: parse_model(print_model(from_proto(m)))
    if name == "verify":
        return lambda m: verify(from_proto(m))
    return lambda m: run_pipeline(m, name, verify_each=False)


STEPS = [
    "proto",
    "text",
    "verify",
    "fold-shapes,simplify,cse,dce",
    "reverse,forward",
    "reverse{layout=casadi}",
    "unroll,decompose",
    "vectorize",
    "onnx-ir{passes=CommonSubexpressionEliminationPass},reverse",
]


@pytest.fixture(autouse=True)
def searches_count(monkeypatch):
    """Compare nodes and values in Python, line by line: dicts and sets do not, lists and tuples do."""
    for kind in (Node, Value, Graph):
        monkeypatch.setattr(kind, "__eq__", lambda self, other: self is other)
        monkeypatch.setattr(kind, "__hash__", object.__hash__)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("build", MODELS, ids=lambda f: f.__name__)
def test_linear(build, name):
    f = step(name)
    f(build(10))  # what is looked up once
    ratio = steps(f, build(SMALL * GROWTH)) / steps(f, build(SMALL)) / GROWTH
    assert ratio < BOUND, f"{ratio:.2f} times as much work a node when the model is {GROWTH} times as large"


def delayed(n):
    """A Scan that hands on what enters its first state, from one state to the next, and returns the last one."""
    names = [f"{i}" for i in range(n // 2)]
    nodes = [helper.make_node("Add", ["s0", "u"], ["t0"])]
    nodes += [helper.make_node("Exp", [f"s{k}"], [f"t{k}"]) for k in names[1:]]
    ends = [f"t{k}" for k in [names[-1], *names[:-1]]]
    body = helper.make_graph(nodes, "body", [*(value(f"s{k}") for k in names), value("u")], list(map(value, ends)))
    starts = ["x", *["zero"] * (len(names) - 1)]
    scan = helper.make_node("Scan", [*starts, "w"], [f"y{k}" for k in names], num_scan_inputs=1, body=body)
    zero, w = np.zeros((2, 3), np.float32), np.zeros((4, 2, 3), np.float32)
    weights = [numpy_helper.from_array(a, name) for name, a in (("zero", zero), ("w", w))]
    return make([scan], [value("x")], [value(f"y{names[-1]}")], weights)


@pytest.mark.parametrize("mode", ["forward", "reverse", "reverse,forward"])
def test_linear_in_states_that_are_handed_on(mode):
    f = step(mode)
    f(delayed(10))
    ratio = steps(f, delayed(SMALL * GROWTH)) / steps(f, delayed(SMALL)) / GROWTH
    assert ratio < BOUND, f"{ratio:.2f} times as much work a state when there are {GROWTH} times as many"


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("kind", "wv")
def test_linear_in_what_is_named(kind, mode):
    """Weights, and inner values, by name."""

    def run(n):
        names = ",".join(f"{kind}{i}" for i in range(n))
        run_pipeline(frozen(n), f"onnx-ir{{passes=CommonSubexpressionEliminationPass}},{mode}{{inputs={names}}}")

    run(10)
    ratio = steps(run, SMALL * GROWTH) / steps(run, SMALL) / GROWTH
    assert ratio < BOUND


def called(n):
    """A local function of n nodes, called twice."""
    names = ["s", *(f"v{i}" for i in range(n))]
    nodes = [
        helper.make_node("MatMul" if i % 2 else "Tanh", [names[i], "w"][: 1 + i % 2], [names[i + 1]]) for i in range(n)
    ]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "F", ["s", "w"], [names[-1]], nodes, opsets[:1])
    calls = [
        helper.make_node("F", ["x", "w"], ["h"], domain="mine"),
        helper.make_node("F", ["h", "w"], ["y"], domain="mine"),
    ]
    graph = helper.make_graph(calls, "g", [value("x"), value("w", (3, 3))], [value("y")])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[function])


@pytest.mark.parametrize("pipeline", ["forward{functions=keep}", "reverse{functions=keep},reverse{functions=keep}"])
def test_linear_in_functions(pipeline):
    f = step(pipeline)
    f(called(10))
    ratio = steps(f, called(SMALL * GROWTH)) / steps(f, called(SMALL)) / GROWTH
    assert ratio < BOUND


def add(graph, op_type, *operands):
    return graph.append(Node(op_type, operands)).outputs[0]


def nested_branches(depth, before=False, after=True, both=False, own=False):
    """An If in an If in an If, `depth` times: deeper than protobuf reads, so built here.

    A branch computes something for the next If (`before`), and something of what that returns (`after`); the other one
    computes something as well (`both`); the conditions are computed on the way (`own`) or one input.
    """
    graph = Graph("g")
    x, c = graph.add_input("x", TensorType(DataType.FLOAT, (2, 3))), graph.add_input("c", TensorType(DataType.BOOL, ()))
    levels = [graph, *(Graph(f"then{i}") for i in range(depth))]
    values, conditions = [x], [c]
    for then in levels[1:]:
        values.append(add(then, "Tanh", add(then, "Mul", values[-1], x)) if before else x)
        conditions.append(add(then, "Not", add(then, "Not", conditions[-1])) if own else c)
    inner = add(levels[-1], "Sin", values[-1])
    for i in reversed(range(depth)):
        other, then = Graph("else"), levels[i + 1]
        other.set_outputs([add(other, "Exp", add(other, "Sin", values[i]) if both else x)])
        then.set_outputs([add(then, "Mul", inner, values[i + 1]) if after else inner])
        node = Node("If", (conditions[i],), {"then_branch": then, "else_branch": other}, ("y",) if i == 0 else ("",))
        inner = levels[i].append(node).outputs[0]
    graph.set_outputs([inner])
    return Model(graph, {"": 18})


def work(model, pipeline):
    """How many steps a pipeline takes, and how large the result is (nodes and their results)."""
    found = []
    count = steps(lambda: found.append(run_pipeline(model, pipeline)))
    return count, size(found[0])


def size(model):
    """The number of nodes and their results."""
    return sum(1 + len(n.outputs) for n in model.graph.walk())


NESTS = {
    "before": dict(before=True, after=False),
    "after": dict(),
    "both branches": dict(before=True, both=True),
    "conditions": dict(own=True),
}


@pytest.mark.parametrize("pipeline", ["fold-shapes,simplify,cse,dce", "forward", "reverse"])
@pytest.mark.parametrize("options", NESTS.values(), ids=NESTS)
def test_work_grows_with_the_result(options, pipeline):
    """No step costs more than linear in what it reads and writes, however deep regions are nested."""
    run_pipeline(nested_branches(5, **options), pipeline)  # what is looked up once
    (few, small), (many, large) = (work(nested_branches(n, **options), pipeline) for n in (20, 60))
    assert many / large < 1.25 * few / small


@pytest.mark.parametrize("pipeline", ["forward", "reverse", "reverse,forward{inputs=x outputs=adj_x}"])
def test_derivatives_grow_with_the_nest(pipeline):
    """What a branch of many Ifs hands on to its adjoint is computed again there where that is cheap."""
    small, large = (run_pipeline(nested_branches(n, before=True, after=False), pipeline) for n in (15, 60))
    assert size(large) < 1.1 * 4 * size(small)


@pytest.mark.parametrize("pipeline", ["fold-shapes,simplify,cse,dce", "forward", "reverse"])
def test_hundred_levels(pipeline):
    out = run_pipeline(nested_branches(100), pipeline)
    assert sum(1 for _ in out.graph.walk()) < 1000
    assert print_model(parse_model(print_model(out))) == print_model(out)


def nested_numbers(x, depth, before, after, both, own):
    """What `nested_branches` returns, and its derivative, where every then-branch is taken."""
    value, slope, values = x, np.ones_like(x), [(x, np.ones_like(x))]
    for _ in range(depth):
        if before:
            value, slope = np.tanh(value * x), (1 - np.tanh(value * x) ** 2) * (value + slope * x)
        values.append((value, slope))
    y, dy = np.sin(value), np.cos(value) * slope
    for v, dv in reversed(values[1:]):
        if after:
            y, dy = y * v, dy * v + y * dv
    return y, dy


@pytest.mark.parametrize("options", NESTS.values(), ids=NESTS)
def test_nested_branches_are_right(options):
    options = dict(before=False, after=True, both=False, own=False) | options
    model = to_proto(run_pipeline(nested_branches(12, **options), "reverse"))
    onnx.checker.check_model(model, full_check=True)
    x, seed = np.array([[0.5, -1.25, 0.75], [1.5, -0.5, 1.0]], np.float32), np.full((2, 3), 1.5, np.float32)
    y, adjoint = evaluate(model, {"x": x, "c": np.array(True), "adj_y": seed}).values()
    want, slope = nested_numbers(x.astype(np.float64), 12, **options)
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(adjoint, 1.5 * slope, rtol=1e-5, atol=1e-7)
