"""Gradient functions of graphs: what is computed inside and what is given, names, control flow."""

from pathlib import Path

import numpy as np
import pytest
from gradient_functions import Case, as_type, away, close, differences, grads, node, normal, primal, run
from onnx import ValueInfoProto, helper, numpy_helper

from onnxad_passes import gradient_of_nodes

# --- graphs


MLP = [
    node("MatMul", ["X", "W1"], ["h1"], name="first"),
    node("Add", ["h1", "b1"], ["h2"]),
    node("Tanh", ["h2"], ["h3"]),
    node("MatMul", ["h3", "W2"], ["h4"]),
    node("Sigmoid", ["h4"], ["h5"]),
    node("ReduceMean", ["h5"], ["loss"], keepdims=0),
]
WEIGHTS = {"W1": normal(71, 3, 5), "b1": normal(72, 5), "W2": normal(73, 5, 2)}
X = normal(70, 4, 3)


def mlp_gradients(weights=WEIGHTS):
    forward = primal(MLP, {}, "loss")
    return {k: differences(forward, {"X": X, **weights}, k, 1.0) for k in weights}


def initializers(dtype=np.float64):
    return [numpy_helper.from_array(v.astype(dtype), k) for k, v in WEIGHTS.items()]


def test_forward_values_are_computed_inside():
    f = gradient_of_nodes(MLP, ["X", *WEIGHTS], [], list(WEIGHTS), "loss", ["X"])
    for got, w in zip(grads(f, **WEIGHTS, X=X, dy=1.0), mlp_gradients().values(), strict=True):
        close(got, w, 1e-8)
    assert [n.name for n in f.node if n.name == "first"] == ["first"]  # the author's nodes keep their names


def test_initializers_become_constants_unless_they_are_named():
    wanted = mlp_gradients()
    f = gradient_of_nodes(MLP, ["X"], initializers(), ["W1", "W2"], "loss", ["X"])
    assert list(f.input) == ["W1", "W2", "X", "dy"]
    for got, name in zip(grads(f, W1=WEIGHTS["W1"], W2=WEIGHTS["W2"], X=X, dy=1.0), ("W1", "W2"), strict=True):
        close(got, wanted[name], 1e-8)
    f = gradient_of_nodes(MLP, ["X"], initializers(), ["b1"], "loss", ["X", "W2"])
    close(
        grads(f, b1=WEIGHTS["b1"], X=X, W2=2 * WEIGHTS["W2"], dy=1.0)[0],
        mlp_gradients({**WEIGHTS, "W2": 2 * WEIGHTS["W2"]})["b1"],
        1e-8,
    )


def test_a_forward_value_that_is_given_is_not_computed_again():
    f = gradient_of_nodes(MLP, ["X", *WEIGHTS], [], ["W2"], "loss", ["h3"])
    assert "Tanh" not in {n.op_type for n in f.node}
    h3 = normal(5, 4, 5)  # not what the nodes would give: it is used as it is given
    forward = primal(MLP[3:], {}, "loss")
    close(
        grads(f, W2=WEIGHTS["W2"], h3=h3, dy=1.0)[0],
        differences(forward, {"W2": WEIGHTS["W2"], "h3": h3}, "W2", 1.0),
        1e-8,
    )


def test_gradients_pass_through_a_forward_value_that_is_given():
    f = gradient_of_nodes(MLP, ["X", *WEIGHTS], [], ["W1", "h3"], "loss", ["X", "W2", "h5"])
    assert not {"Tanh", "Sigmoid"} & {n.op_type for n in f.node}
    h3 = np.tanh(X @ WEIGHTS["W1"] + WEIGHTS["b1"])
    h5 = 1 / (1 + np.exp(-h3 @ WEIGHTS["W2"]))
    got = grads(f, W1=WEIGHTS["W1"], h3=h3, X=X, W2=WEIGHTS["W2"], h5=h5, dy=1.0)
    close(got[0], mlp_gradients()["W1"], 1e-8)
    close(got[1], differences(primal(MLP[3:], {}, "loss"), {"W2": WEIGHTS["W2"], "h3": h3}, "h3", 1.0), 1e-8)


def test_y_may_be_an_inner_value_and_an_x():
    f = gradient_of_nodes(MLP, ["X", *WEIGHTS], [], ["h3", "b1"], "h3", ["X", "W1"])
    dy, h3 = normal(3, 4, 5), np.tanh(X @ WEIGHTS["W1"] + WEIGHTS["b1"])
    got = grads(f, h3=h3, b1=WEIGHTS["b1"], X=X, W1=WEIGHTS["W1"], dy=dy)
    close(got[0], dy, 1e-15)
    close(got[1], (dy * (1 - h3 * h3)).sum(0), 1e-12)


def test_zeros_where_nothing_arrives():
    nodes = [
        node("Tanh", ["a"], ["y"]),
        node("Mul", ["a", "b"], ["other"]),
        node("Round", ["c"], ["r"]),
        node("Add", ["y", "r"], ["z"]),
    ]
    f = gradient_of_nodes(nodes, [], [], ["b", "a", "c"], "z", [])
    for dtype in (np.float16, np.float32, np.float64):
        got = grads(f, b=np.ones((3, 2), dtype), a=np.zeros(2, dtype), c=np.ones(2, dtype), dy=np.ones(2, dtype))
        assert [g.dtype for g in got] == [dtype] * 3
        assert [g.tolist() for g in got] == [[[0, 0]] * 3, [1, 1], [0, 0]]


def test_an_operand_that_is_not_needed_may_be_left_out():
    f = gradient_of_nodes([node("Add", ["a", "b"], ["y"])], ["a", "b"], [], ["b"], "y")
    assert list(f.input) == ["b", "dy"]
    assert grads(f, b=np.ones(3), dy=np.ones((2, 3)))[0].tolist() == [2, 2, 2]


def test_an_operand_that_nothing_reads_need_not_have_the_type_of_the_others():
    """A constant tells the type of x; of z nobody knows or needs it."""
    half = numpy_helper.from_array(np.array(0.5), "half")
    f = gradient_of_nodes([node("Mul", ["x", "half"], ["y"])], ["x", "z"], [half], ["x"], "y", ["z"])
    assert list(f.input) == ["x", "z", "dy"]
    dy = normal(82, 3)
    (got,) = grads(f, x=normal(80, 3), z=normal(81, 2), dy=dy)
    close(got, dy / 2, 1e-12)


def test_nodes_need_not_be_in_order():
    f = gradient_of_nodes([node("Exp", ["t"], ["y"]), node("Neg", ["x"], ["t"])], ["x"], [], ["x"], "y")
    assert grads(f, x=0.0, dy=1.0)[0] == -1


def test_names_in_use():
    """Inputs and outputs have the names that were asked for; other names give way, seed and results are numbered."""
    nodes = [
        node("Tanh", ["a"], ["dy"]),
        node("Mul", ["dy", "grad_a"], ["grad_b"]),
        node("Mul", ["grad_b", "b"], ["y"]),
    ]
    f = gradient_of_nodes(nodes, ["a", "grad_a", "b"], [], ["a", "b"], "y", ["grad_a"])
    assert list(f.input) == ["a", "b", "grad_a", "dy"] and list(f.output) == ["grad_a_1", "grad_b"]
    got = grads(f, a=0.5, b=2.0, grad_a=3.0, dy=1.0)
    close(got[0], 6 * (1 - np.tanh(0.5) ** 2), 1e-12)
    close(got[1], 3 * np.tanh(0.5), 1e-12)
    f = gradient_of_nodes(nodes, ["a", "grad_a", "b"], [], ["b"], "y", ["dy", "grad_a"])
    assert list(f.input) == ["b", "dy", "grad_a", "dy_1"] and list(f.output) == ["grad_b"]
    assert grads(f, b=2.0, dy=5.0, grad_a=3.0, dy_1=1.0)[0] == 15


def test_arguments_stay_as_they_are():
    nodes, inits = (
        [node("MatMul", ["X", "W"], ["h"]), node("Tanh", ["h"], ["y"])],
        [numpy_helper.from_array(np.eye(2), "W")],
    )
    before = [p.SerializeToString() for p in (*nodes, *inits)]
    xs, zs = ["W"], ["X"]
    gradient_of_nodes(nodes, ["X"], inits, xs, "y", zs)
    assert before == [p.SerializeToString() for p in (*nodes, *inits)] and (xs, zs) == (["W"], ["X"])


def test_the_example_in_the_readme():
    text = (Path(__file__).parents[2] / "README.md").read_text()
    found = {}
    exec(text.split("## Gradients as functions")[1].split("```python\n")[1].split("```")[0], found)
    x, w, dy, v = normal(1, 4, 3), normal(2, 3, 2), normal(3, 4, 2), normal(4, 3, 2)
    t = np.tanh(x @ w)
    close(grads(found["f"], w=w, x=x, dy=dy)[0], x.T @ (dy * (1 - t * t)), 1e-12)
    close(grads(found["g"], w=w, x=x, dy=dy, dy_1=v)[0], x.T @ (dy * (x @ v) * -2 * t * (1 - t * t)), 1e-12)


# --- control flow


def region(nodes, inputs, outputs):
    return helper.make_graph(
        nodes, "region", [ValueInfoProto(name=i) for i in inputs], [ValueInfoProto(name=o) for o in outputs]
    )


LOOP = region(
    [
        node("MatMul", ["h", "W"], ["m"]),
        node("Tanh", ["m"], ["n"]),
        node("Mul", ["n", "n"], ["s"]),
        node("Identity", ["c"], ["d"]),
    ],
    ["i", "c", "h"],
    ["d", "n", "s"],
)
SCAN = region(
    [
        node("Mul", ["h", "w"], ["m"]),
        node("Add", ["m", "e"], ["a"]),
        node("Tanh", ["a"], ["n"]),
        node("Exp", ["n"], ["o"]),
    ],
    ["h", "e"],
    ["n", "o"],
)
CONTROL = {
    "If": Case(
        [
            node(
                "If",
                ["c"],
                ["v"],
                then_branch=region([node("Tanh", ["x"], ["t"])], [], ["t"]),
                else_branch=region([node("Exp", ["x"], ["e"])], [], ["e"]),
            ),
            node("Mul", ["v", "x"], ["y"]),
        ],
        [{"x": normal(1, 2, 3), "c": np.array(c)} for c in (True, False)],
        "x",
    ),
    "Loop": Case(
        [
            node("Loop", ["k", "on", "x"], ["l", "ss"], body=LOOP),
            node("ReduceSum", ["ss"], ["t"], keepdims=0),
            node("Mul", ["t", "l"], ["y"]),
        ],
        [{"x": normal(1, 2, 3), "W": normal(2, 3, 3), "k": np.array(k)} for k in (3, 1)],
        "x W",
        {"on": np.array(True)},
    ),
    "Scan": Case(
        [node("Scan", ["h0", "es"], ["last", "y"], body=SCAN, num_scan_inputs=1)],
        [{"h0": normal(1, 2), "es": normal(2, 4, 2), "w": away(3, 2)}],
        "h0 es w",
    ),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow(name):
    case = CONTROL[name]
    f, forward = case.gradient(), primal(case.nodes, case.inits, "y")
    for feeds in case.feeds:
        dy = away(7, *np.shape(forward(feeds)))
        wanted = [differences(forward, feeds, x, dy) for x in case.xs]
        for dtype, tolerance in ((np.float64, 1e-7), (np.float32, 3e-4)):
            given = {k: as_type(v, dtype) for k, v in {**feeds, "dy": dy}.items()}
            for got, w in zip(run(f, given), wanted, strict=True):
                close(got, w, tolerance)
