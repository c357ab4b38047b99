import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxad_passes import NotDifferentiable, forward, reverse, run_pipeline
from onnxad_rules.testing import check_rule, differentiate, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
X = r((2, 3, 2)) * 2
inf, nan = np.inf, np.nan


@pytest.mark.parametrize(
    "c, x, y", [((2, 3), (2, 3), (2, 3)), ((2, 1), (3,), ()), ((3,), (), (2, 1)), ((), (2, 3), (3,))]
)
def test_where(c, x, y):
    check_rule("Where", [np.asarray(R.random(c) > 0.5), r(x), r(y)])
    check_rule("Where", [np.asarray(R.random(c) > 0.5), r(x), r(y)], constants=[2])


@pytest.mark.parametrize("low, high", [(-0.8, 0.9), (None, 0.9), (-0.8, None), (None, None), (0.9, -0.8)])
@pytest.mark.parametrize("constant", [True, False])
def test_clip(low, high, constant):
    bounds = [None if b is None else np.asarray(b) for b in (low, high)]
    while bounds and bounds[-1] is None:
        bounds.pop()
    check_rule(
        "Clip",
        [X, *bounds],
        constants=[1 + i for i, b in enumerate(bounds) if b is not None] if constant else [],
    )


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_extremum(op):
    check_rule(op, [r((2, 3)), r((2, 3))])
    check_rule(op, [r((2, 3)), r((3,)), r((4, 1, 1))])
    check_rule(op, [r((2, 3)), np.asarray(0.2)], constants=[1])
    check_rule(op, [r((2, 3))])
    check_rule(op, [r((2, 3)), r((2, 3)), r(()), r((1, 3))], wrt=[1, 3])


@pytest.mark.parametrize("attrs", [{}, {"axis": 0}, {"axis": 1, "largest": 0}, {"axis": -1, "sorted": 0}])
@pytest.mark.parametrize("constants", [[1], []])
def test_top_k(attrs, constants):
    check_rule("TopK", [r((3, 4, 3)), np.array([2])], attrs, outputs=2, constants=constants)


def test_dropout_outside_training():
    check_rule("Dropout", [X])
    check_rule("Dropout", [X, np.asarray(0.3)], constants=[1])
    check_rule("Dropout", [X, np.asarray(0.3), np.asarray(False)], constants=[1, 2])
    check_rule("Dropout", [X, np.asarray(0.3), np.asarray(False)], outputs=2)
    check_rule("Dropout", [X, np.asarray(0.0), np.asarray(True)], constants=[1, 2])


def model_of(nodes, inputs, outputs, constants=(), opset=18):
    info = {n: helper.make_tensor_value_info(n, k, s) for n, k, s in [*inputs, *outputs]}
    init = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", [info[i[0]] for i in inputs], [info[o[0]] for o in outputs], init)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


F, D = TensorProto.FLOAT, TensorProto.DOUBLE


@pytest.mark.parametrize("training", ["constant", "run time"])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("ratio", [0.25, None, 0.0])
def test_dropout_in_training(training, mask, ratio):
    """The mask of the very run: y / x where it kept, zero where it did not."""
    node = helper.make_node("Dropout", ["x", "" if ratio is None else "r", "t"], ["y", "m"] if mask else ["y"])
    t = [("t", TensorProto.BOOL, [])]
    constants = {} if ratio is None else {"r": np.float32(ratio)}
    if training == "constant":
        constants, t = constants | {"t": np.array(True)}, []
    out = [("y", F, [100, 3])] + ([("m", TensorProto.BOOL, [100, 3])] if mask else [])
    model = model_of([node], [("x", F, [100, 3]), *t], out, constants)
    if training == "constant":
        model = run_pipeline(model, "decompose{ops=Dropout}")
    x, ct = np.float32(R.uniform(1, 2, (100, 3))), np.float32(r((100, 3)))
    feeds = {"x": x, "t": np.array(True), "adj_y": ct, "fwd_x": ct}
    for derive in (forward, reverse):
        d = derive(model, ["x"], ["y"], layout="single")
        onnx.checker.check_model(d, full_check=True)
        for level in (0, 99):
            got = run_in_ort(d, level)(feeds)
            np.testing.assert_allclose(got[-1], ct * got[0] / x, rtol=1e-5)
            assert ratio == 0 or 0.1 < (got[0] == 0).mean() < 0.9
            if training == "run time":
                off = run_in_ort(d, level)({**feeds, "t": np.array(False)})
                np.testing.assert_array_equal(off[-1], ct)


@pytest.mark.parametrize("wrt", ["x", "r"])
@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_dropout_that_is_always_in_training(mode, wrt):
    """Values that differ from run to run have no derivative, unless that of the very run is asked for."""
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y"], name="noise", seed=3)
    model = model_of([node], [("x", F, [8]), ("r", F, [])], [("y", F, [8])], {"t": np.array(True)})
    derive = {"forward": forward, "reverse": reverse}[mode]
    with pytest.raises(NotDifferentiable, match=r'Dropout "noise".*another mask.*decompose\{ops=Dropout\}'):
        derive(model, [wrt], layout="single")
    derive(run_pipeline(model, "decompose{ops=Dropout}"), [wrt], layout="single")


def test_dropout_as_a_product_with_its_mask():
    """The composition that can be asked for: the very node's mask, in every mode, order and element type."""
    for kind, real in ((F, np.float32), (D, np.float64)):
        node = helper.make_node("Dropout", ["x", "r", "t"], ["y", "m"])
        shape = [40, 3]
        outputs = [("y", kind, shape), ("m", TensorProto.BOOL, shape)]
        model = model_of([node], [("x", kind, shape), ("r", F, []), ("t", TensorProto.BOOL, [])], outputs)
        square = run_pipeline(model, "decompose{ops=Dropout}")
        square.graph.node.append(helper.make_node("Mul", ["y", "y"], ["z"]))
        square.graph.output.append(helper.make_tensor_value_info("z", kind, shape))
        h = forward(reverse(square, ["x"], ["z"], layout="single"), ["x"], ["adj_x"], layout="single")
        feeds = {"x": real(R.uniform(1, 2, shape)), "adj_z": real(r(shape)), "fwd_x": real(r(shape))}
        for t, ratio in ((True, 0.25), (True, 0.0), (False, 0.25)):
            got = run_in_ort(h)({**feeds, "t": np.array(t), "r": np.array(ratio, np.float32)})
            y, mask, second = got[0], got[1], got[-1]
            scale = 1 / (1 - ratio) if t else 1
            factor = scale * mask
            np.testing.assert_allclose(y, feeds["x"] * factor, rtol=1e-6)
            np.testing.assert_allclose(second, 2 * factor**2 * feeds["adj_z"] * feeds["fwd_x"], rtol=1e-5)


def test_dropout_in_its_ratio():
    """For the mask at hand, y is x / (1 - ratio) where x is kept."""
    node = helper.make_node("Dropout", ["x", "r", "t"], ["y"])
    for kind in (F, D):
        model = model_of([node], [("x", F, [50]), ("r", kind, []), ("t", TensorProto.BOOL, [])], [("y", F, [50])])
        real = np.float32 if kind == F else np.float64
        feeds = {
            "x": np.ones(50, np.float32),
            "r": real(0.2),
            "t": np.array(True),
            "adj_y": np.ones(50, np.float32),
        }
        feeds |= {"r": np.array(0.2, real), "fwd_x": np.zeros(50, np.float32), "fwd_r": np.array(1, real)}
        y, forward = run_in_ort(differentiate(model, "forward"))(feeds)
        np.testing.assert_allclose(forward, y / 0.8, rtol=1e-5)
        y, _, reverse = run_in_ort(differentiate(model, "reverse"))(feeds)
        assert reverse.dtype == real
        np.testing.assert_allclose(reverse, y.sum() / 0.8, rtol=1e-5)


def gradients(model, feeds):
    """Every adj_ result in the reference evaluator."""
    d = differentiate(model, "reverse")
    names = [o.name for o in d.graph.output]
    return {n: v for n, v in zip(names, run_in_reference(d)(feeds), strict=True) if n.startswith("adj_")}


def test_clip_at_its_bounds():
    """PyTorch 2.13: torch.clamp([1, 2, 3], 2, 2.5), and with min above max."""
    node = helper.make_node("Clip", ["x", "a", "b"], ["y"])
    model = model_of([node], [("x", D, [3]), ("a", D, []), ("b", D, [])], [("y", D, [3])])
    feeds = {"x": np.array([1.0, 2, 3]), "adj_y": np.ones(3)}
    got = gradients(model, {**feeds, "a": np.array(2.0), "b": np.array(2.5)})
    assert (list(got["adj_x"]), got["adj_a"], got["adj_b"]) == ([0, 1, 0], 1, 1)
    got = gradients(model, {**feeds, "a": np.array(2.5), "b": np.array(2.0)})
    assert (list(got["adj_x"]), got["adj_a"], got["adj_b"]) == ([0, 0, 0], 0, 3)
    got = gradients(model, {**feeds, "a": np.array(1.0), "b": np.array(3.0)})
    assert (list(got["adj_x"]), got["adj_a"], got["adj_b"]) == ([1, 1, 1], 0, 0)


@pytest.mark.parametrize("op", ["Max", "Min"])
def test_ties_share(op):
    """torch.maximum of two equal numbers: one half each."""
    model = model_of([helper.make_node(op, ["a", "b"], ["y"])], [("a", D, [3]), ("b", D, [3])], [("y", D, [3])])
    sign = 1 if op == "Max" else -1
    got = gradients(
        model,
        {
            "a": sign * np.array([1.0, 2, 3]),
            "b": sign * np.array([1.0, 3, 2]),
            "adj_y": np.array([1.0, 5, 7]),
        },
    )
    np.testing.assert_array_equal(got["adj_a"], [0.5, 0, 7])
    np.testing.assert_array_equal(got["adj_b"], [0.5, 5, 0])


def test_where_keeps_infinities_apart():
    """sqrt of what was selected, at 0: the branch not taken receives zero, not 0 * inf."""
    nodes = [helper.make_node("Where", ["c", "x", "z"], ["a"]), helper.make_node("Sqrt", ["a"], ["y"])]
    model = model_of(nodes, [("c", TensorProto.BOOL, [2]), ("x", D, [2])], [("y", D, [2])], {"z": np.zeros(2)})
    got = gradients(model, {"c": np.array([True, False]), "x": np.array([4.0, 1]), "adj_y": np.ones(2)})
    np.testing.assert_array_equal(got["adj_x"], [0.25, 0])


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE])
def test_cast_of_floats(kind):
    model = model_of([helper.make_node("Cast", ["x"], ["y"], to=kind)], [("x", F, [3])], [("y", kind, [3])])
    for mode, name in (("reverse", "adj_x"), ("forward", "fwd_y")):
        d = differentiate(model, mode)
        onnx.checker.check_model(d, full_check=True)
        want = F if mode == "reverse" else kind
        assert next(o for o in d.graph.output if o.name == name).type.tensor_type.elem_type == want


def test_cast_like():
    check_rule("CastLike", [r((2, 3)), r(2)])
    inputs = [("x", D, [3]), ("like", F, [2])]
    model = model_of([helper.make_node("CastLike", ["x", "like"], ["y"])], inputs, [("y", F, [3])])
    got = gradients(model, {"x": r(3), "like": np.float32(r(2)), "adj_y": np.float32([1, 2, 3])})
    assert got["adj_x"].dtype == np.float64 and list(got["adj_x"]) == [1, 2, 3]
    assert list(got["adj_like"]) == [0, 0]


def test_cast_to_integers_stops():
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Cast", ["i"], ["y"], to=D),
    ]
    model = model_of(nodes, [("x", D, [3])], [("y", D, [3])])
    got = gradients(model, {"x": np.array([1.5, 2.5, -1]), "adj_y": np.ones(3)})
    np.testing.assert_array_equal(got["adj_x"], [0, 0, 0])
