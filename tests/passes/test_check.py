"""check_derivatives: it agrees with what is right, and finds what is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, numpy_helper
from small import model

from onnxad_ir.diagnostics import OnnxadError, UsageError
from onnxad_ir.proto import from_proto
from onnxad_passes import check, forward, gradient, jacobian, reverse, run_pipeline
from onnxad_passes.check import check_derivatives

MLP = """g (float[N,3] x, float[3] b) => (float[N,2] y) <float[3,2] w = {1, -2, 3, 0.5, -1, 2}> {
  h = Add(x, b) t = Tanh(h) y = MatMul(t, w) }"""
CONV = """g (float[1,2,6,6] x) => (float[1,3,3,3] y) {
  c = Conv<strides = [2, 2], pads = [1, 1, 0, 0], kernel_shape = [3, 3]>(x, k) y = Relu(c) }"""


def conv():
    proto = model(CONV)
    k = np.random.default_rng(0).standard_normal((3, 2, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(k, "k"))
    return proto


def spoil(proto, name, factor=1.01):
    """Multiply an output of a derivative model by a factor."""
    out = onnx.ModelProto()
    out.CopyFrom(proto)
    for n in out.graph.node:
        for i, o in enumerate(n.output):
            if o == name:
                n.output[i] = f"{name} before"
        for i, o in enumerate(n.input):
            if o == name:  # a copy of it stays right
                n.input[i] = f"{name} before"
    t = out.graph.output[[o.name for o in out.graph.output].index(name)].type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(t)
    out.graph.initializer.append(numpy_helper.from_array(np.array(factor, dtype), "factor"))
    out.graph.node.append(helper.make_node("Mul", [f"{name} before", "factor"], [name]))
    return out


def test_both_modes_by_default():
    report = check_derivatives(model(MLP))
    assert report.ok
    assert {(r.mode, r.result, r.along) for r in report.rows} == {
        ("value", "y", ""),
        ("forward", "fwd_y", "x"),
        ("forward", "fwd_y", "b"),
        ("reverse", "adj_x", "x"),
        ("reverse", "adj_b", "b"),
    }
    assert all(r.error < 1e-8 for r in report.rows)
    assert "double precision" in report.engine and "onnxruntime" in report.engine


def test_any_kind_of_model():
    proto = model(MLP)
    for kind in (proto, from_proto(proto), onnx_ir.from_proto(proto)):
        assert check_derivatives(kind).ok
        assert check_derivatives(kind, reverse(kind, layout="single")).ok


@pytest.mark.parametrize("name", ["adj_x", "adj_w", "adj_h"])
@pytest.mark.parametrize("factor", [1.001, -1.0, 0.0])
def test_a_wrong_adjoint_is_found(name, factor):
    proto = model(MLP)
    adj = reverse(proto, ["x", "w", "h"], layout="single")
    report = check_derivatives(proto, spoil(adj, name, factor))
    assert [r.result for r in report.rows if not r.ok] == [name]
    assert "1 of 4 comparisons are WRONG" in str(report) and not report.ok


def test_a_wrong_tangent_is_found():
    proto = model(MLP)
    report = check_derivatives(proto, spoil(forward(proto, layout="single"), "fwd_y"))
    assert [r.along for r in report.rows if not r.ok] == ["x", "b"]


def test_a_changed_value_is_found():
    proto = model(MLP)
    report = check_derivatives(proto, spoil(reverse(proto, layout="single"), "y", 1.0001))
    assert [r.mode for r in report.rows if not r.ok] == ["value"]


def test_a_derivative_that_is_not_a_number():
    proto = model(MLP)
    report = check_derivatives(proto, spoil(reverse(proto, layout="single"), "adj_b", np.nan))
    assert [r.result for r in report.rows if not r.ok] == ["adj_b"]


def test_gradients():
    proto = model("g (float[3] x) => (float[3] y, float l) { q = Mul(x, x) y = Exp(q) l = ReduceSum<keepdims = 0>(y) }")
    grad = gradient(proto, "l")
    assert check_derivatives(proto, grad, outputs=["l"]).ok
    wrong = check_derivatives(proto, spoil(grad, "grad_x"), outputs=["l"])
    assert [r.result for r in wrong.rows if not r.ok] == ["grad_x"]


def test_operators_without_double_kernels():
    """ONNX Runtime has no convolution in double precision: the reference evaluator checks it."""
    proto = conv()
    report = check_derivatives(proto, inputs=["x", "k"])
    assert report.ok and "double precision" in report.engine and "reference" in report.engine
    own = check_derivatives(proto, inputs=["x", "k"], engine="onnxruntime", precision="own")
    assert own.ok and "own precision" in own.engine
    adj = spoil(reverse(proto, ["x", "k"], layout="single"), "adj_k", 1.1)
    assert not check_derivatives(proto, adj, engine="onnxruntime", precision="own").ok


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
@pytest.mark.parametrize("precision", ["own", "double"])
def test_scalars(engine, precision):
    proto = model("g (float x, float[3] v) => (float y, float[3] z) { y = Sin(x) z = Mul(x, v) }")
    report = check_derivatives(proto, engine=engine, precision=precision)
    assert report.ok and len(report.rows) == 2 * (2 + 2 * 2) - 2


@pytest.mark.parametrize("dtype", ["FLOAT16", "BFLOAT16", "DOUBLE"])
def test_other_element_types(dtype):
    t = onnx_ir.DataType[dtype]
    proto = model(MLP)
    w = onnx_ir.Tensor(numpy_helper.to_array(proto.graph.initializer[0]).astype(t.numpy()), name="w")
    proto.graph.initializer[0].CopyFrom(onnx_ir.to_proto(w))
    for v in (*proto.graph.input, *proto.graph.output):
        v.type.tensor_type.elem_type = int(t)
    assert check_derivatives(proto, inputs=["x", "b", "w"]).ok


def test_symbolic_dims_and_given_points():
    proto = model(MLP)
    assert "N=2" in check_derivatives(proto).point
    assert "N=7" in check_derivatives(proto, dims={"N": 7}).point
    feeds = {"x": np.ones((4, 3), np.float32), "b": np.zeros(3, np.float32)}
    report = check_derivatives(proto, feeds=feeds)
    assert report.ok and report.point == "given inputs"
    half = check_derivatives(proto, feeds={"b": feeds["b"]}, dims={"N": 1})
    assert half.ok and "random" in half.point
    with pytest.raises(UsageError, match="no symbolic dimension 'M'"):
        check_derivatives(proto, dims={"M": 2})
    with pytest.raises(UsageError, match="no input 'z'"):
        check_derivatives(proto, feeds={"z": feeds["b"]})


def test_what_is_given_has_to_fit():
    proto = model(
        "g (float[N,3] x, float[N] b, int32[N] i) => (float[N] y) { s = ReduceSum<keepdims = 0>(x, axis) y = Add(s, b) }".replace(
            "{ s", "<int64[1] axis = {1}> { s"
        )
    )
    whole = check_derivatives(proto, feeds={"x": [[1, 2, 3]] * 5, "i": [1] * 5})  # numbers of another type, N by x
    assert whole.ok and whole.point == "given x, i, other random inputs, floats normal"
    for feeds, message in [
        ({"x": np.ones((2, 4))}, r"input 'x' is float\[N,3\], but what is given for it has shape \(2, 4\)"),
        ({"x": np.ones(3)}, r"but what is given for it has shape \(3,\)"),
        ({"x": "abc"}, "but what is given for it is of type <U3"),
        ({"i": [0.5]}, r"input 'i' is int32\[N\], but what is given for it is of type float64"),
        ({"i": [2**40]}, "but what is given for it is of type int64"),
        ({"x": np.ones((2, 3)), "b": np.ones(4)}, "the extent of 'N' is 2 by 'x', but 4 by what is given for 'b'"),
    ]:
        with pytest.raises(UsageError, match=message):
            check_derivatives(proto, feeds=feeds)
    with pytest.raises(UsageError, match="the extent of 'N' is 3 by dims, but 2 by what is given for 'x'"):
        check_derivatives(proto, feeds={"x": np.ones((2, 3))}, dims={"N": 3})
    with pytest.raises(UsageError, match="the extent of 'N' is a number from 0, not 'a'"):
        check_derivatives(proto, dims={"N": "a"})


def test_a_failure_is_told_once_and_a_slow_engine_is_not_tried_for_ever(monkeypatch):
    proto = model("g (float[N,3] x) => (float[2,3] y) <int64[2] i = {0, 99}> { y = Gather(x, i) }")
    tried = []
    samples = check.samples
    monkeypatch.setattr(check, "samples", lambda *a: (tried.append(s) or s for s in samples(*a)))
    with pytest.raises(OnnxadError, match=r"index 99 is out of bounds .* \(random inputs, .*, N=2, and 2 more\)") as e:
        check_derivatives(proto, engine="reference", precision="double", mode="reverse")
    assert len(tried) == 3 * str(e.value).count("IndexError")
    tried.clear()
    monkeypatch.setattr(check, "_PATIENCE", 0)
    with pytest.raises(OnnxadError):
        check_derivatives(proto, engine="reference", precision="double", mode="reverse")
    assert len(tried) == 1


def test_a_domain_that_is_not_everywhere():
    report = check_derivatives(model("g (float[5] x) => (float[5] y) { a = Log(x) b = Sqrt(a) y = Reciprocal(b) }"))
    assert report.ok and "1.0 .. 2.0" in report.point


def test_integer_and_boolean_inputs():
    proto = model(
        """g (float[4,3] x, int64[2] i, bool p) => (float[2,3] y) {
          a = Gather(x, i)
          y = If (p) < then_branch = t () => (float[2,3] u) { u = Exp(a) },
                       else_branch = e () => (float[2,3] v) { v = Neg(a) } > }"""
    )
    assert check_derivatives(proto).ok


def test_layer_normalization_keeps_its_precision():
    proto = model(
        "g (float[2,6] x) => (float[2,6] y) <float[6] s = {1, 2, 3, 4, 5, 6}> { y = LayerNormalization(x, s) }"
    )
    report = check_derivatives(proto, inputs=["x", "s"])
    assert report.ok and max(r.error for r in report.rows) < 1e-6


def test_what_is_single_precision_by_default_is_widened():
    text = """g (float[3] x, int64[1] n) => (float[3] y) {
      z = ConstantOfShape(n) a = Add(x, z) size = Constant<value_int = 3>() w = HannWindow(size)
      e = SequenceEmpty() s = SequenceInsert(e, a) zero = Constant<value_int = 0>() b = SequenceAt(s, zero)
      c = Mul(b, w) y = Exp(c) }"""
    report = check_derivatives(
        model(text), inputs=["x"], feeds={"x": np.array([0.3, -1.2, 0.5], np.float32), "n": np.array([3])}
    )
    assert report.ok and "double precision" in report.engine
    assert all(r.error < 1e-8 for r in report.rows)


def test_old_opsets_in_the_reference_evaluator():
    """Softmax at opset 9 goes over all axes behind the given one, which the evaluator does not know."""
    proto = model("g (float[1,2,3,3] x) => (float[1,2,3,3] y) { c = Conv<kernel_shape = [1, 1]>(x, k) y = Softmax(c) }")
    proto.opset_import[0].version = 9
    proto.graph.initializer.append(
        numpy_helper.from_array(np.array([[1, -2], [3, 0.5]], np.float32)[..., None, None], "k")
    )
    report = check_derivatives(proto)
    assert report.ok and report.engine == "reference, double precision" and max(r.error for r in report.rows) < 1e-8


def test_an_engine_that_computes_something_else_is_not_believed(monkeypatch):
    from onnxad_rules import testing

    honest = testing.run_in_reference

    def wrong(proto):
        run = honest(proto)
        return lambda feeds: [2 * y for y in run(feeds)]

    monkeypatch.setattr(testing, "run_in_reference", wrong)
    report = check_derivatives(conv())
    assert report.ok and report.engine == "onnxruntime, the model's own precision"
    report = check_derivatives(conv(), engine="reference")  # who asks for it gets it
    assert "reference" in report.engine


def test_rounding_that_only_the_derivative_has_is_no_error():
    """Equal columns: the logits are equal, the derivative is zero, and what is left of the sum is made large again."""
    proto = model("g (float[4,3] x) => (float[4,7] y) { h = MatMul(x, w) y = Softmax(h) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.full((3, 7), 1e9, np.float32), "w"))
    report = check_derivatives(proto)
    (row,) = [r for r in report.rows if r.mode == "reverse"]
    assert report.ok and row.expected == 0 and row.derivative != 0
    assert not check_derivatives(proto, spoil(reverse(proto, layout="single"), "y", 1.001)).ok


def test_kinks_are_no_errors():
    proto = model("g (float[40,40] x) => (float[40,40] y) { a = Relu(x) b = Abs(a) y = Mul(b, x) }")
    assert check_derivatives(proto).ok


def test_random_models_are_refused():
    proto = model("g (float[3] x) => (float[3] y) { r = RandomNormalLike(x) y = Mul(x, r) }")
    with pytest.raises(OnnxadError, match="is random"):
        check_derivatives(proto)


def test_what_no_engine_runs():
    proto = model("g (float[3] x) => (float[3] y) { a = com.acme.Warp(x) y = Exp(x) }")
    proto.opset_import.append(helper.make_opsetid("com.acme", 1))
    proto.graph.output.append(helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [3]))
    with pytest.raises(OnnxadError, match=r"no engine runs the models[\s\S]*Warp"):
        check_derivatives(proto, outputs=["y"])


def test_unknown_ranks_ask_for_inputs():
    proto = model("g (float[3] x) => (float[3] y) { y = Exp(x) }")
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(UsageError, match="rank of input 'x' is unknown"):
        check_derivatives(proto)
    assert check_derivatives(proto, feeds={"x": np.ones((2, 2), np.float32)}).ok


def test_second_order():
    proto = reverse(model(MLP), ["x", "w"], layout="single")
    report = check_derivatives(proto, forward(proto, layout="single"))
    assert report.ok and len(report.rows) == 3 + 3 * 3
    assert check_derivatives(proto, reverse(proto, layout="single")).ok


def test_what_is_no_derivative_of_the_model():
    proto = model(MLP)
    adj = reverse(proto, layout="single")
    other = model("g (float[3] q) => (float[3] y) { y = Exp(q) }")
    for args, message in (
        ((other, adj), "first inputs are not those"),
        ((proto, proto), "no output that the model does not have"),
        ((proto, adj, "gradient"), "takes no seeds"),
        ((proto, reverse(proto, prefix="d", layout="single")), "say its mode"),
        ((proto, adj, "sideways"), "no mode 'sideways'"),
    ):
        with pytest.raises(UsageError, match=message):
            check_derivatives(args[0], args[1], mode=args[2] if len(args) > 2 else None)
    assert check_derivatives(proto, reverse(proto, prefix="d", layout="single"), mode="reverse").ok


def test_progress_is_told():
    seen = []
    check_derivatives(model(MLP), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_table():
    text = str(check_derivatives(model(MLP)))
    lines = text.splitlines()
    assert lines[0].split() == ["mode", "result", "along", "derivative", "difference", "error"]
    assert lines[1].startswith("value    y") and lines[1].endswith("ok")
    assert lines[-1].startswith("all 6 comparisons agree (onnxruntime, double precision; random inputs, floats normal")


def test_models_with_external_data(tmp_path):
    from onnxad_ir.files import load

    proto = conv()
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    m = load(tmp_path / "m.onnx")
    assert check_derivatives(m, run_pipeline(m, "reverse{inputs=k,x}")).ok


@pytest.mark.parametrize("layout", ["casadi", "onnx", "leading"])
def test_layouts_of_several_directions(layout):
    proto = model(MLP)
    adj, fwd = (f(proto, layout=layout) for f in (reverse, forward))
    assert check_derivatives(proto, adj, layout=layout).ok and check_derivatives(proto, fwd, layout=layout).ok
    assert not check_derivatives(proto, spoil(adj, "adj_x", 1.01), layout=layout).ok
    assert not check_derivatives(proto, spoil(fwd, "fwd_y", 1.01), layout=layout).ok
    second = forward(adj, layout=layout)
    assert check_derivatives(adj, second, layout=layout).ok
    assert not check_derivatives(adj, spoil(second, "fwd_adj_x", 0.99), layout=layout).ok


def test_jacobians():
    proto = model(MLP)
    jac = jacobian(proto)
    result = next(o.name for o in jac.graph.output if o.name.startswith("jac_"))
    assert check_derivatives(proto, jac, mode="jacobian").ok
    assert not check_derivatives(proto, spoil(jac, result, 1.01), mode="jacobian").ok
    with pytest.raises(UsageError, match="not the Jacobian of y by"):
        check_derivatives(proto, reverse(proto, layout="single"), mode="jacobian")
