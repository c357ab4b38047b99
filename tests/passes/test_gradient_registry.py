"""Gradient functions: element types, functions, rules of one's own, errors."""

import numpy as np
import onnx
import pytest
from gradient_functions import away, calling, close, closed, differences, grads, node, normal, primal, run
from onnx import TensorProto, helper, numpy_helper
from support import session

from onnxad_passes import (
    GradRegistry,
    UnsupportedOperator,
    gradient_of_function,
    gradient_of_nodes,
    register_gradient_function,
)
from onnxad_rules.kinds import declarations, elementwise

# --- element types


def test_float16():
    nodes = [node("Softmax", ["x"], ["s"]), node("Mul", ["s", "w"], ["y"])]
    f = gradient_of_nodes(nodes, [], [], ["x", "w"], "y")
    x, w, dy = normal(1, 2, 3), normal(2, 3), normal(3, 2, 3)
    exact = run(f, {"x": x, "w": w, "dy": dy})
    for got, e in zip(
        run(f, {k: v.astype(np.float16) for k, v in {"x": x, "w": w, "dy": dy}.items()}), exact, strict=True
    ):
        assert got.dtype == np.float16
        close(got, e, 3e-3)


def test_numbers_in_full_precision():
    """A constant that a rule makes is the number itself in double precision, not its float32."""
    f = gradient_of_nodes([node("Erf", ["x"], ["y"])], [], [], ["x"], "y")
    x = np.array([0.3, -1.1])
    close(run(f, {"x": x, "dy": np.ones(2)})[0], 2 / np.sqrt(np.pi) * np.exp(-x * x), 1e-15)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_limits_of_the_type(dtype):
    """Where a rule needs the smallest number of the type, it is that of the type at run time."""
    nodes = [node("Div", ["a", "x"], ["s"]), node("Where", ["c", "s", "x"], ["y"])]
    f = gradient_of_nodes(nodes, [], [], ["x", "a"], "y", ["c"])
    got = grads(
        f, x=np.array([0, 1, 4], dtype), a=np.array([0, 1, 1], dtype), c=[False, True, True], dy=np.ones(3, dtype)
    )
    assert got[0].tolist() == [1, -1, -0.0625] and got[1].tolist() == [0, 1, 0.25]


def test_a_constant_tells_the_type_of_what_it_meets():
    nodes = [
        node("Mul", ["x", "two"], ["m"]),
        node("Cast", ["m"], ["d"], to=TensorProto.DOUBLE),
        node("Mul", ["d", "w"], ["y"]),
    ]
    f = gradient_of_nodes(nodes, ["x"], [numpy_helper.from_array(np.float32(2), "two")], ["x", "w"], "y")
    got = grads(f, x=np.float32([1, 3]), w=np.array([0.5, 0.1]), dy=np.ones(2))
    assert [g.dtype for g in got] == [np.float32, np.float64]
    assert np.array_equal(got[0], np.float32([1, 0.2])) and got[1].tolist() == [2, 6]


@pytest.mark.parametrize("to", [TensorProto.DOUBLE, TensorProto.FLOAT])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_type_that_the_nodes_name_is_another_one(to, dtype):
    nodes = [
        node("Cast", ["x"], ["d"], to=to),
        node("Exp", ["d"], ["e"]),
        node("CastLike", ["e", "x"], ["l"]),
        node("Mul", ["l", "x"], ["y"]),
    ]
    f = gradient_of_nodes(nodes, ["x"], [], ["x"], "y")
    (got,) = grads(f, x=np.array([0.5, 1], dtype), dy=np.ones(2, dtype))
    assert got.dtype == dtype
    close(got, np.exp([0.5, 1]) * [1.5, 2], 2e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize("x", [np.float32, np.float64])
@pytest.mark.parametrize("like", [np.float32, np.float64])
def test_every_gradient_has_the_type_of_its_operand(x, like):
    nodes = [node("CastLike", ["x", "l"], ["h"]), node("Mul", ["h", "l"], ["y"])]
    f = gradient_of_nodes(nodes, [], [], ["x", "l"], "y")
    got = grads(f, x=np.array([1, 2], x), l=np.array([3, 4], like), dy=np.ones(2, like))
    assert [g.dtype for g in got] == [x, like] and got[0].tolist() == [3, 4] and got[1].tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float32])
def test_an_operand_that_may_be_of_integers(dtype):
    f = gradient_of_nodes([node("Pow", ["x", "e"], ["y"])], [], [], ["x"], "y", ["e"])
    got = grads(f, x=np.float32([1, 2, 3]), e=np.array([0, 1, 2], dtype), dy=np.ones(3, np.float32))
    assert got[0].tolist() == [0, 1, 6]


@pytest.mark.parametrize("results", [["y"], ["y", "m2", "v2"]], ids=["inference", "training"])
def test_declared_types_and_shapes_are_used(results):
    nodes = [node("BatchNormalization", list("xsbmv"), results, training_mode=len(results) // 3)]
    half, full = TensorProto.FLOAT16, TensorProto.FLOAT
    infos = [
        helper.make_tensor_value_info(k, half if k == "x" else full, ["N", 2, 3] if k == "x" else [2]) for k in "xsbmv"
    ]
    feeds = {"x": normal(1, 4, 2, 3), "s": away(2, 2), "b": normal(3, 2), "m": normal(4, 2), "v": np.array([0.5, 2.0])}
    dy = normal(5, 4, 2, 3)
    free = gradient_of_nodes(nodes, list("xsbmv"), [], list("xs"), "y", list("bmv"))
    wanted = run(free, {**feeds, "dy": dy})
    typed = gradient_of_nodes(nodes, infos, [], list("xs"), "y", list("bmv"))
    function = helper.make_function(
        "my", "f", list("xsbmv"), ["y"], nodes, [helper.make_opsetid("", 21)], value_info=infos
    )
    assert len(typed.node) < len(free.node) / 2
    for f in (typed, gradient_of_function(function, list("xs"), "y", list("bmv"))):
        given = {k: v.astype(np.float16 if k in ("x", "dy") else np.float32) for k, v in {**feeds, "dy": dy}.items()}
        got = run(f, given)
        assert [g.dtype for g in got] == [np.float16, np.float32]
        for g, w in zip(got, wanted, strict=True):
            close(g, w, 5e-3)


def test_operators_without_double_precision():
    nodes = [node("RotaryEmbedding", ["x", "c", "s"], ["r"]), node("Mul", ["r", "r"], ["y"])]
    f = gradient_of_nodes(nodes, [], [], ["x", "c"], "y", ["s"])
    assert [(o.domain, o.version) for o in f.opset_import] == [("", 23)]
    feeds = {"x": normal(1, 1, 2, 3, 4), "c": normal(2, 1, 3, 2), "s": normal(3, 1, 3, 2)}
    forward = primal(nodes, {}, "y", 23)
    dy = away(7, 1, 2, 3, 4)
    for x, got in zip("xc", run(f, {k: v.astype(np.float32) for k, v in {**feeds, "dy": dy}.items()}), strict=True):
        close(got, differences(forward, feeds, x, dy), 1e-5)


def test_a_recurrent_layer():
    """The body of its Scan has ranks that no type says any more."""
    names = ["x", "w", "r", "b", "", "", "", "p"]
    feeds = {
        k: 0.5 * normal(i, *s)
        for i, (k, s) in enumerate(dict(x=(3, 2, 2), w=(1, 12, 2), r=(1, 12, 3), b=(1, 24), p=(1, 9)).items())
    }
    nodes = [node("LSTM", names, ["y"], hidden_size=3)]
    f = gradient_of_nodes(nodes, [], [], list("xwrbp"), "y")
    forward, dy = primal(nodes, {}, "y"), away(7, 3, 1, 2, 3)
    got = run(f, {k: v.astype(np.float32) for k, v in {**feeds, "dy": dy}.items()})
    for x, g in zip("xwrbp", got, strict=True):
        close(g, differences(forward, feeds, x, dy), 1e-5)


def test_a_sequence():
    nodes = [node("SplitToSequence", ["x"], ["q"], axis=0, keepdims=0), node("SequenceAt", ["q", "i"], ["y"])]
    f = gradient_of_nodes(nodes, [], [numpy_helper.from_array(np.int64(1), "i")], ["x"], "y")
    for dtype in (np.float32, np.float64):
        (got,) = grads(f, x=np.ones((3, 2), dtype), dy=np.array([4, 5], dtype))
        assert got.dtype == dtype and got.tolist() == [[0, 0], [4, 5], [0, 0]]


# --- functions


def function(nodes, inputs, opset=21, name="layer", domain="my", **more):
    return helper.make_function(domain, name, inputs, ["y"], nodes, [helper.make_opsetid("", opset)], **more)


def test_name_domain_and_opset():
    f = gradient_of_function(function([node("Tanh", ["x"], ["y"])], ["x"], 19), ["x"], "y")
    assert (f.domain, f.name) == ("my", "layer_grad") and [(o.domain, o.version) for o in f.opset_import] == [("", 19)]
    f = gradient_of_nodes([node("Tanh", ["x"], ["y"])], ["x"], [], ["x"], "y")
    assert (f.domain, f.name) == ("onnxad", "gradient") and [(o.domain, o.version) for o in f.opset_import] == [
        ("", 21)
    ]


def test_an_old_opset_is_upgraded():
    f = gradient_of_function(function([node("ReduceSum", ["x"], ["y"], axes=[0], keepdims=0)], ["x"], 11), ["x"], "y")
    assert [(o.domain, o.version) for o in f.opset_import] == [("", 18)]
    assert grads(f, x=np.ones((2, 3)), dy=np.array([1.0, 2, 3]))[0].tolist() == [[1, 2, 3]] * 2


def test_attributes_have_their_defaults():
    def leaky(**more):
        n = node("LeakyRelu", ["x"], ["y"])
        n.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        return function([n], ["x"], **more)

    f = gradient_of_function(leaky(attribute_protos=[helper.make_attribute("slope", 0.25)]), ["x"], "y")
    assert grads(f, x=np.array([-1.0, 1]), dy=np.ones(2))[0].tolist() == [0.25, 1]
    with pytest.raises(ValueError, match="'slope', which has no default"):
        gradient_of_function(leaky(attributes=["slope"]), ["x"], "y")


def test_weights_of_a_function_are_constants_unless_named():
    w = numpy_helper.from_array(np.array([2.0, 3]), "w")
    g = function([node("Constant", [], ["w"], value=w), node("Mul", ["x", "w"], ["y"])], ["x"])
    assert grads(gradient_of_function(g, ["x"], "y"), x=np.ones(2), dy=np.ones(2))[0].tolist() == [2, 3]
    f = gradient_of_function(g, ["w"], "y", ["x"])
    assert grads(f, w=np.zeros(2), x=np.array([5.0, 7]), dy=np.ones(2))[0].tolist() == [5, 7]


def test_third_order():
    f = function([node("Sin", ["x"], ["y"])], ["x"])
    first = gradient_of_function(f, ["x"], "y")
    second = gradient_of_function(first, ["x"], "grad_x", ["dy"])
    third = gradient_of_function(second, ["x"], "grad_x", ["dy", "dy_1"])
    assert (third.name, list(third.input)) == ("layer_grad_grad_grad", ["x", "dy", "dy_1", "dy_2"])
    close(grads(third, x=0.3, dy=1.0, dy_1=1.0, dy_2=2.0)[0], -2 * np.cos(0.3), 1e-12)


# --- rules of one's own


def cube(n, output_grad, grad_accum, counter, func):
    """3 x^2 in NodeProtos, as onnx-light has its rules."""
    x, tag = n.input[0], f"{n.output[0]}_{counter}"
    func.node.extend(
        [
            node("Constant", [], [tag + "k"], value=numpy_helper.from_array(np.float32(3))),
            node("CastLike", [tag + "k", x], [tag + "c"]),
            node("Mul", [x, x], [tag + "s"]),
            node("Mul", [tag + "s", tag + "c"], [tag + "d"]),
            node("Mul", [tag + "d", output_grad], [tag + "g"]),
        ]
    )
    grad_accum[x] = tag + "g"
    return True


def product(n, output_grad, grad_accum, counter, func):
    """The gradient of an operator with two operands, added up as onnx-light's rules do."""
    for i in (0, 1):
        name = f"p{i}_{counter}"
        func.node.append(node("Mul", [n.input[1 - i], output_grad], [name]))
        if grad_accum.get(n.input[i]):
            func.node.append(node("Add", [grad_accum[n.input[i]], name], [name + "sum"]))
            name += "sum"
        grad_accum[n.input[i]] = name


with declarations() as VERBS:
    elementwise("Cube", domain="ops", input_0=lambda op, n: 3 * (n.input_0 * n.input_0))


def with_cube(f, dtype):
    """The gradient function of nodes that call ops.Cube, in a model that has it."""
    body = [node("Mul", ["a", "a"], ["b"]), node("Mul", ["b", "a"], ["c"])]
    local = helper.make_function("ops", "Cube", ["a"], ["c"], body, [helper.make_opsetid("", 21)])
    model = calling(f, {"x": np.array([1, 2], dtype), "dy": np.ones(2, dtype)})
    model.functions.append(local)
    return session(model, 0).run(None, {"x": np.array([1, 2], dtype), "dy": np.ones(2, dtype)})[0]


@pytest.mark.parametrize(
    "rules", [{("ops", "Cube"): cube}, {("ops", "Cube"): VERBS[0]}, VERBS], ids=["nodes", "verb", "list"]
)
def test_rules_for_other_operators(rules):
    nodes = [
        node("Cube", ["x"], ["c"], domain="ops"),
        node("Cube", ["c"], ["d"], domain="ops"),
        node("Add", ["c", "d"], ["y"]),
    ]
    f = gradient_of_nodes(nodes, ["x"], [], ["x"], "y", registry=rules)
    closed(f)
    for dtype in (np.float32, np.float64):
        got = with_cube(f, dtype)
        assert got.dtype == dtype and got.tolist() == [3 + 9, 3 * 4 + 9 * 2**8]


def test_a_rule_for_two_operands_that_are_one():
    f = gradient_of_nodes([node("Mul", ["x", "x"], ["y"])], [], [], ["x"], "y", registry={("", "Mul"): product})
    assert grads(f, x=3.0, dy=1.0)[0] == 6


def test_rules_go_before_the_built_in_ones():
    def twice(n, output_grad, grad_accum, counter, func):
        func.node.append(node("Add", [output_grad, output_grad], ["t"]))
        grad_accum[n.input[0]] = "t"

    nodes = [node("Tanh", ["x"], ["y"])]
    assert grads(gradient_of_nodes(nodes, [], [], ["x"], "y", registry={("", "Tanh"): twice}), x=0.0, dy=1.0)[0] == 2
    assert grads(gradient_of_nodes(nodes, [], [], ["x"], "y"), x=0.0, dy=1.0)[0] == 1


def test_a_registry_is_the_whole_table():
    registry = GradRegistry.default()
    register_gradient_function("ops", "Cube", cube, registry)
    assert registry.op_types("ops") == ["Cube"] and GradRegistry.default().op_types("ops") == []
    assert {"MatMul", "Tanh"} <= set(registry.op_types()) and registry.op_types() == sorted(registry.op_types())
    f = gradient_of_nodes([node("Cube", ["x"], ["y"], domain="ops")], [], [], ["x"], "y", registry=registry)
    assert with_cube(f, np.float32).tolist() == [3, 12]
    with pytest.raises(UnsupportedOperator, match="Tanh"):
        gradient_of_nodes([node("Tanh", ["x"], ["y"])], [], [], ["x"], "y", registry=GradRegistry())


def test_a_rule_may_decline():
    with pytest.raises(UnsupportedOperator, match="declined Tanh"):
        gradient_of_nodes([node("Tanh", ["x"], ["y"])], [], [], ["x"], "y", registry={("", "Tanh"): lambda *_: False})


# --- errors

TANH = [node("Tanh", ["x"], ["t"]), node("Mystery", ["t"], ["m"], domain="ops"), node("Mul", ["m", "w"], ["y"])]


@pytest.mark.parametrize(
    ("xs", "y", "zs", "error", "words"),
    [
        ([], "", [], ValueError, "xs is empty"),
        (["x"], "", [], ValueError, "y is empty"),
        (["x"], "nothing", [], ValueError, "'nothing', is not a result"),
        (["x"], "x", [], ValueError, "'x', is not a result"),
        (["q"], "y", [], ValueError, "no value called 'q'"),
        (["x"], "y", ["q"], ValueError, "no value called 'q'"),
        (["x"], "t", ["x"], ValueError, "named twice"),
        (["x", "x"], "t", [], ValueError, "named twice"),
        (["x"], "y", ["w"], UnsupportedOperator, "ops.Mystery"),
        (["x"], "y", [], UnsupportedOperator, "ops.Mystery"),
        (["w"], "y", ["x"], None, ""),  # Mystery lies on no path
        (["w"], "y", [], ValueError, "reads 'x': name it in xs or zs"),
        (["m"], "y", [], ValueError, "reads 'w'"),
        (["m"], "y", ["w"], None, ""),
    ],
)
def test_errors(xs, y, zs, error, words):
    def call():
        return gradient_of_nodes(TANH, ["x", "w"], [], xs, y, zs)

    if error is None:
        closed(call())
    else:
        with pytest.raises(error, match=words):
            call()
        with pytest.raises(error, match=words):
            gradient_of_function(
                helper.make_function(
                    "my", "f", ["x", "w"], ["y"], TANH, [helper.make_opsetid(d, 1 if d else 21) for d in ("", "ops")]
                ),
                xs,
                y,
                zs,
            )


def test_integers_have_no_gradient():
    with pytest.raises(ValueError, match="not a floating-point tensor"):
        gradient_of_nodes([node("Gather", ["x", "i"], ["y"])], [], [], ["i"], "y", ["x"])
