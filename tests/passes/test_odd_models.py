"""Odd and broken models: a right derivative or one clear error, never a traceback."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from orders import close, differences
from support import evaluate

from onnxad_ir.diagnostics import ModelError, OnnxadError, UsageError
from onnxad_ir.onnx_ir import from_onnx_ir, to_onnx_ir
from onnxad_ir.parser import parse_model
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto
from onnxad_passes import forward, reverse, run_pipeline, vectorize

W = np.linspace(0.3, 1.7, 6).reshape(2, 3)
node = helper.make_node


def value(name, shape=(2, 3), dtype=TensorProto.DOUBLE):
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name, a=W):
    return numpy_helper.from_array(np.asarray(a), name)


def make(nodes, inputs, outputs, weights=(), ir_version=10, opset=(("", 18),), **fields):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(weights), **fields)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*o) for o in opset], ir_version=ir_version)


def check(model):
    """Forward against finite differences, the dot test, and names as they were."""
    rng = np.random.default_rng(0)
    own, outputs = [i.name for i in model.graph.input], list(dict.fromkeys(o.name for o in model.graph.output))
    feeds = {i.name: rng.uniform(0.5, 1.5, (2, 3)) for i in model.graph.input}
    fwd, adj = forward(model, layout="single"), reverse(model, layout="single")
    for m in (fwd, adj):
        onnx.checker.check_model(m, full_check=True)
        assert [i.name for i in m.graph.input][: len(own)] == own
    t = {i.name: rng.standard_normal((2, 3)) for i in fwd.graph.input[len(own) :]}
    ct = {i.name: rng.standard_normal((2, 3)) for i in adj.graph.input[len(own) :]}
    stem = next(iter(t))[: next(iter(t)).index("_") + 1]
    want = differences(model, feeds, {k[len(stem) :]: v for k, v in t.items()})
    got = evaluate(fwd, {**feeds, **t}, 0)
    tangents = [got[o.name] for o in fwd.graph.output[len(model.graph.output) :]]
    for y, tangent in zip(outputs, tangents, strict=True):
        close(tangent, want[y], 1e-6, y)
    back = evaluate(adj, {**feeds, **ct}, 99)
    cotangents = [back[o.name] for o in adj.graph.output[len(model.graph.output) :]]
    left = sum((a * b).sum() for a, b in zip(ct.values(), tangents, strict=True))
    right = sum((a * b).sum() for a, b in zip(t.values(), cotangents, strict=True))
    np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9)


ODD_NAMES = ["a b", 'q"uote', "ünï/码:0", "new\nline", "tab\t", "%x", "x->y", "back\\slash", "a,b", "{", "1", "true"]


@pytest.mark.parametrize("name", [*ODD_NAMES, "adj_y", "fwd_x", "reverse"])
def test_names_of_any_characters(name):
    model = make(
        [node("Mul", [name, name], [f"mid {name}"]), node("Sin", [f"mid {name}"], [f"{name}!"])],
        [value(name)],
        [value(f"{name}!")],
    )
    check(model)


def product(x, y, inputs, weights=()):
    return make([node("Mul", [x, y], ["y"])], [value(i) for i in inputs], [value("y")], [weight(w) for w in weights])


SINE = [node("Sin", ["x"], ["y"])]
MODELS = {
    "seeds of the same names": product("x", "adj_y", ["x", "adj_y"]),
    "seeds and second seeds": product("adj_y", "adj2_y", ["adj_y", "adj2_y"]),
    "a weight called as a seed": product("x", "adj_y", ["x"], ["adj_y"]),
    "a weight called as a result": product("x", "adj_x", ["x"], ["adj_x"]),
    "inner values called as seeds": make(
        [node("Sin", ["x"], ["fwd_x"]), node("Exp", ["fwd_x"], ["adj_y"]), node("Mul", ["adj_y", "x"], ["y"])],
        [value("x")],
        [value("y")],
    ),
    "an output that is an input": make(SINE, [value("x")], [value("x"), value("y")]),
    "an output that is a weight": make(
        [node("Mul", ["x", "w"], ["y"])], [value("x")], [value("w"), value("y")], [weight("w")]
    ),
    "no node": make([], [value("x")], [value("x")]),
    "an output listed twice": make(SINE, [value("x")], [value("y"), value("y")]),
    "a weight that is an input": make(
        [node("Mul", ["x", "w"], ["y"])], [value("x"), value("w")], [value("y")], [weight("w")]
    ),
    "an opset twice": make(SINE, [value("x")], [value("y")], opset=(("", 18), ("", 18))),
    "nodes out of order": make([node("Sin", ["a"], ["y"]), node("Cos", ["x"], ["a"])], [value("x")], [value("y")]),
    "a sparse weight": make(
        [node("Mul", ["x", "w"], ["y"])],
        [value("x")],
        [value("y")],
        sparse_initializer=[helper.make_sparse_tensor(weight("w", [1.0, 2.0]), weight("", np.array([1, 4])), [2, 3])],
    ),
}


@pytest.mark.parametrize(
    "name", [k for k in MODELS if k not in ("an output listed twice", "a weight that is an input")]
)
def test_odd_models(name):
    check(MODELS[name])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("which", ["the first input", "every input"])
def test_odd_models_vectorized(name, which):
    """Each entry is the model itself, under the names it had."""
    model = MODELS[name]
    names = [i.name for i in model.graph.input]
    batched = names[:1] if which == "the first input" else names
    out = vectorize(model, batched)
    assert [o.name for o in out.graph.output] == [o.name for o in model.graph.output]
    if len({o.name for o in model.graph.output}) < len(model.graph.output):
        return  # no runtime loads it
    onnx.checker.check_model(out, full_check=True)
    rng = np.random.default_rng(0)
    feeds = {x: rng.uniform(0.5, 1.5, (2, 3)) for x in names}
    many = {x: rng.uniform(0.5, 1.5, (4, 2, 3)) for x in batched}
    got = evaluate(out, {**feeds, **many}, 99)
    each = [evaluate(model, {**feeds, **{x: a[i] for x, a in many.items()}}, 0) for i in range(4)]
    for y, stack in got.items():
        want = np.stack([e[y] for e in each])
        same = stack.ndim < want.ndim  # what every entry shares
        np.testing.assert_allclose(np.broadcast_to(stack, want.shape) if same else stack, want, rtol=1e-12)


def test_an_output_listed_twice():
    out = reverse(MODELS["an output listed twice"], layout="single")
    assert [o.name for o in out.graph.output] == ["y", "y", "adj_x"]
    assert [i.name for i in out.graph.input] == ["x", "adj_y"]


def test_a_weight_that_is_an_input_is_no_constant():
    model = MODELS["a weight that is an input"]
    out = reverse(model, layout="single")
    assert [o.name for o in out.graph.output] == ["y", "adj_x"]  # an input with a default is differentiated on demand
    other = 3 * W
    got = evaluate(out, {"x": W, "w": other, "adj_y": np.ones((2, 3))}, 0)
    np.testing.assert_allclose(got["adj_x"], other)
    both = reverse(model, ["x", "w"], layout="single")
    np.testing.assert_allclose(evaluate(both, {"x": W, "adj_y": np.ones((2, 3))}, 0)["adj_w"], W)


def classifier(zipped):
    """Probabilities of three classes; `zipped`: also as maps, as converters of classical models write them."""
    nodes = [
        node("LinearClassifier", ["x"], ["label", "p"], domain="ai.onnx.ml", classlabels_ints=[0, 1, 2],
             coefficients=[0.5, -1.0, 2.0, 0.25, 1.0, 0.75], intercepts=[0.1, 0.2, 0.3], post_transform="SOFTMAX"),
        node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]),
    ]  # fmt: skip
    entry = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    maps = helper.make_value_info("z", helper.make_sequence_type_proto(entry))
    outputs = [value("label", ["N"], TensorProto.INT64), maps if zipped else value("p", ["N", 3], TensorProto.FLOAT)]
    x = value("x", ["N", 2], TensorProto.FLOAT)
    return make(nodes[: 1 + zipped], [x], outputs, ir_version=8, opset=(("", 18), ("ai.onnx.ml", 3)))


def test_maps_beside_a_derivative():
    """Probabilities are differentiated, and stay what they were as maps."""
    out, plain = (reverse(classifier(zipped), outputs=["p"], layout="single") for zipped in (True, False))
    onnx.checker.check_model(out, full_check=True)
    rng = np.random.default_rng(0)
    feeds = {k: rng.standard_normal(s).astype(np.float32) for k, s in (("x", (4, 2)), ("adj_p", (4, 3)))}
    got, want = evaluate(out, feeds), evaluate(plain, feeds)
    np.testing.assert_allclose(got["adj_x"], want["adj_x"])
    assert np.abs(got["adj_x"]).max() > 0.1
    np.testing.assert_allclose([[row[i] for i in range(3)] for row in got["z"]], want["p"])
    assert parse_model(print_model(from_proto(out))).graph.outputs[1].type == from_proto(out).graph.outputs[1].type


def test_ir_version_3():
    """Weights are inputs there, and stay so."""
    model = make(
        [node("Mul", ["x", "w"], ["y"])],
        [value("x"), value("w")],
        [value("y")],
        [weight("w")],
        ir_version=3,
        opset=(("", 8),),
    )
    out = reverse(model, ["x", "w"], layout="single")
    onnx.checker.check_model(out)
    got = evaluate(out, {"x": 2 * W, "adj_y": np.ones((2, 3))}, 0)
    np.testing.assert_allclose(got["adj_w"], 2 * W)


def constant(name, data):
    return weight(name, np.array(data, np.int64))


ONE = [value("x")]
BROKEN = {
    "no name": (make([node("Sin", [""], ["y"])], [value("")], [value("y")]), "no name"),
    "opset twice": (make(SINE, ONE, [value("y")], opset=(("", 18), ("", 17))), "twice"),
    "no opset": (make(SINE, ONE, [value("y")], opset=(("ai.onnx.ml", 3),)), "opset"),
    "too old": (make(SINE, ONE, [value("y")], opset=(("", 3),)), "opset 3"),
    "defined twice": (make([*SINE, node("Cos", ["x"], ["y"])], ONE, [value("y")]), "twice"),
    "undefined operand": (make([node("Add", ["x", "q"], ["y"])], ONE, [value("y")]), '"q"'),
    "undefined output": (make(SINE, ONE, [value("z")]), '"z"'),
    "two inputs of a name": (make(SINE, [*ONE, *ONE], [value("y")]), "twice"),
    "cycle": (make([node("Add", ["x", "b"], ["a"]), node("Sin", ["a"], ["b"])], ONE, [value("b")]), "cycle"),
    "arity": (make([node("Sin", ["x", "x"], ["y"])], ONE, [value("y")]), "2 operands"),
    "no operands": (make([node("Add", ["", ""], ["y"])], ONE, [value("y")]), "required"),
    "no result": (make([onnx.NodeProto(op_type="Sin", input=["x"]), *SINE], ONE, [value("y")]), "0 results"),
    "attribute kind": (make([node("Softmax", ["x"], ["y"], axis="one")], ONE, [value("y")]), "STRING"),
    "attribute missing": (make([node("Concat", ["x"], ["y"])], ONE, [value("y")]), "axis is required"),
    "wrong type": (make(SINE, ONE, [value("y", dtype=TensorProto.FLOAT)]), "tensor"),
    "an inner value of a type that an operator does not take": (
        make(
            [node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16), node("TopK", ["a", "k"], ["b", "c"], axis=0)],
            ONE,
            [value("b", None, TensorProto.BFLOAT16)],
            [constant("k", [1])],
        ),
        r"TopK.*bfloat16",
    ),
    "Concat": (make([node("Concat", ["x", "x"], ["y"], axis=5)], ONE, [value("y", None)]), "Concat"),
    "Split": (
        make([node("Split", ["x"], ["y", "z"], axis=4, num_outputs=2)], ONE, [value("y", None), value("z", None)]),
        "Split",
    ),
    "Slice": (
        make(
            [node("Slice", ["x", "a", "b", "c"], ["y"])],
            ONE,
            [value("y", None)],
            [constant("a", [0]), constant("b", [2]), constant("c", [9])],
        ),
        "Slice",
    ),
    "Unsqueeze": (
        make([node("Unsqueeze", ["x", "a"], ["y"])], ONE, [value("y", None)], [constant("a", [0, 0])]),
        "Unsqueeze",
    ),
    "Pad": (
        make(
            [node("Pad", ["x", "a", "", "b"], ["y"])],
            ONE,
            [value("y", None)],
            [constant("a", [0, 1]), constant("b", [7])],
        ),
        "Pad",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("f", [forward, reverse], ids=["forward", "reverse"])
def test_broken_models(name, f):
    model, said = BROKEN[name]
    with pytest.raises(ModelError, match=said):
        f(model, layout="single")


@pytest.mark.parametrize(
    "model, said",
    [
        (onnx.ModelProto(), "no floating-point input"),
        (make([], [], []), "no floating-point input"),
        (make(SINE, ONE, []), "no floating-point output"),
        (make([node("Add", ["x", "x"], ["y"])], [value("x", dtype=7)], [value("y", dtype=7)]), "no floating-point"),
    ],
)
def test_nothing_to_differentiate(model, said):
    with pytest.raises(UsageError, match=said):
        reverse(model, layout="single")


@pytest.mark.parametrize("domain", ["me", ""])
def test_only_custom_operators(domain):
    opset = (("", 18), ("me", 1)) if domain == "" else (("me", 1),)
    model = make([node("Foo", ["x"], ["y"], domain="me")], ONE, [value("y")], opset=opset)
    with pytest.raises(OnnxadError, match=r"me\.Foo"):
        reverse(model, layout="single")
    assert run_pipeline(model, "fold-shapes,simplify,cse,dce").graph.node[0].op_type == "Foo"


def test_what_surrounds_the_graph_is_kept():
    model = make([node("Mul", ["x", "w"], ["y"])], ONE, [value("y")], [weight("w"), weight("s", np.float32(0.1))])
    helper.set_model_props(model, {"a": "b"})
    annotation = model.graph.quantization_annotation.add(tensor_name="w")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    training = model.training_info.add()
    training.algorithm.name = "step"
    out = reverse(model, ["x", "w"], layout="single")
    assert {p.key: p.value for p in out.metadata_props}["a"] == "b"
    assert out.training_info[0].algorithm.name == "step"
    assert [a.tensor_name for a in out.graph.quantization_annotation] in (["w"], [])


def test_frozen_names_travel_with_the_model():
    """simplify uses the number of w; nobody is told a derivative with respect to it afterwards, in any form."""
    model = make([node("Mul", ["x", "w"], ["a"]), node("Sin", ["a"], ["y"])], ONE, [value("y")], [weight("w", 1.0)])
    simple = run_pipeline(model, "simplify")
    text = print_model(from_proto(simple))
    assert print_model(parse_model(text)) == text
    for form in (simple, parse_model(text), from_onnx_ir(to_onnx_ir(from_proto(simple)))):
        with pytest.raises(UsageError, match="'w' cannot be told any more"):
            reverse(form, ["w"], layout="single")


def test_frozen_names_that_are_no_list():
    model = make(SINE, ONE, [value("y")])
    helper.set_model_props(model, {"onnxad.frozen": "not json"})
    with pytest.raises(ModelError, match=r"onnxad\.frozen"):
        reverse(model, layout="single")
