"""Straight-through derivatives of rounding and quantization, against closed forms of what is rounded."""

import numpy as np
import onnx
import onnx.parser
import pytest
from support import evaluate

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import forward, gradient, reverse, run_pipeline

R = np.random.default_rng(3)
X = np.asarray(R.uniform(-3, 3, (2, 3, 4)), np.float32)
CT = np.asarray(R.standard_normal((2, 3, 4)), np.float32)


def model(body, result="float[2,3,4] y", opset=21, inputs="float[2,3,4] x"):
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> m ({inputs}) => ({result}) {body}'
    m = onnx.parser.parse_model(text)
    onnx.checker.check_model(m, full_check=True)
    return m


def both(m, ops, x=X, ct=CT, inputs=("x",), feeds=None):
    """The gradients in reverse, after a check that forward mode is their transpose, in every engine setting."""
    fwd = forward(m, inputs, layout="single", straight_through=ops)
    adj = reverse(m, inputs, layout="single", straight_through=ops)
    for d in (fwd, adj):
        onnx.checker.check_model(d, full_check=True)
    feeds = {"x": x, **(feeds or {})}
    found = []
    for level in (0, 99):
        grads = evaluate(adj, {**feeds, "adj_y": ct}, level)
        left = right = 0
        tangents = {}
        for k in inputs:
            t = np.asarray(R.standard_normal(feeds[k].shape), np.float32)
            tangents[f"fwd_{k}"] = t
            right += float((t * grads[f"adj_{k}"]).sum())
        left = float((evaluate(fwd, {**feeds, **tangents}, level)["fwd_y"] * ct).sum())
        assert abs(left - right) <= 1e-4 * max(1, abs(left))
        found.append({k: grads[f"adj_{k}"] for k in inputs})
    for k in inputs:
        np.testing.assert_allclose(found[0][k], found[1][k], 1e-5, 1e-6)
    return found[0]


@pytest.mark.parametrize("op", ["Round", "Floor", "Ceil", "Sign"])
def test_rounding_passes_the_derivative_unchanged(op):
    m = model(f"{{ s = Mul(x, x) r = {op}(s) y = Mul(r, x) }}")
    got = both(m, (op,))["x"]
    rounded = {"Round": np.round, "Floor": np.floor, "Ceil": np.ceil, "Sign": np.sign}[op](X * X)
    np.testing.assert_allclose(got, CT * (rounded + 2 * X * X), 1e-5, 1e-5)
    plain = evaluate(reverse(m, layout="single"), {"x": X, "adj_y": CT}, 99)["adj_x"]
    np.testing.assert_allclose(plain, CT * rounded, 1e-5, 1e-5)


def quantized(x, scale, zero, low, high):
    """The result of a quantize-dequantize pair, and where it is not clipped."""
    q = np.round(x / scale) + zero
    return (np.clip(q, low, high) - zero) * scale, (low <= q) & (q <= high)


@pytest.mark.parametrize(
    "kind, zero, low, high",
    [
        ("int8", 3, -128, 127),
        ("uint8", 100, 0, 255),
        ("int16", 0, -32768, 32767),
        ("int4", -2, -8, 7),
        ("uint4", 8, 0, 15),
    ],
)
@pytest.mark.parametrize("scale", [0.013, 0.2, 0.00005])
def test_a_pair_is_clipped_to_its_range(kind, zero, low, high, scale):
    m = model(
        f"<float s = {{{scale}}}, {kind} z = {{{zero}}}> {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}"
    )
    want, inside = quantized(X, np.float32(scale), zero, low, high)
    np.testing.assert_allclose(evaluate(m, {"x": X}, 0)["y"], want, 1e-5, 1e-6)
    np.testing.assert_allclose(both(m, ("QuantizeLinear",))["x"], CT * inside, 1e-5)


def test_the_default_is_zero():
    m = model("<float s = {0.1}> { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }")
    assert not evaluate(reverse(m, layout="single"), {"x": X, "adj_y": CT}, 99)["adj_x"].any()
    assert evaluate(gradient(sum_of(m), straight_through="QuantizeLinear"), {"x": X}, 99)["grad_x"].any()


def sum_of(m):
    out = onnx.ModelProto.FromString(m.SerializeToString())
    out.graph.node.append(onnx.helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0))
    del out.graph.output[:]
    out.graph.output.append(onnx.helper.make_tensor_value_info("total", onnx.TensorProto.FLOAT, []))
    return out


def test_without_a_zero_point_and_with_an_element_type():
    m = model("<float s = {0.01}> { q = QuantizeLinear<output_dtype = 3>(x, s) y = DequantizeLinear(q, s) }")
    _, inside = quantized(X, np.float32(0.01), 0, -128, 127)
    assert 0 < inside.mean() < 1
    np.testing.assert_allclose(both(m, ("QuantizeLinear",))["x"], CT * inside, 1e-5)


def test_scales_along_an_axis_have_the_gradient_of_a_learned_step_size():
    m = model(
        "<int8 z = {0}> { zs = Expand(z, n) q = QuantizeLinear<axis = 1>(x, s, zs) y = DequantizeLinear<axis = 1>(q, s, zs) }",
        inputs="float[2,3,4] x, float[3] s, int64[1] n",
    )
    s = np.asarray([0.01, 0.02, 0.5], np.float32)
    column = s.reshape(1, 3, 1)
    got = both(m, ("QuantizeLinear",), inputs=("x", "s"), feeds={"s": s, "n": np.asarray([3])})
    y, inside = quantized(X, column, 0, -128, 127)
    assert 0 < inside.mean() < 1
    np.testing.assert_allclose(got["x"], CT * inside, 1e-5)
    share = np.where(inside, (y - X) / column, y / column)  # Esser et al., equation 3
    np.testing.assert_allclose(got["s"], (CT * share).sum((0, 2)), 1e-3, 1e-4)


def test_scales_of_blocks():
    m = model(
        "{ q = QuantizeLinear<axis = 2, block_size = 2, output_dtype = 3>(x, s) y = DequantizeLinear<axis = 2, block_size = 2>(q, s) }",
        inputs="float[2,3,4] x, float[2,3,2] s",
    )
    s = np.asarray(R.uniform(0.005, 0.05, (2, 3, 2)), np.float32)
    fwd = reverse(m, layout="single", straight_through="QuantizeLinear")
    onnx.checker.check_model(fwd, full_check=True)
    got = evaluate(fwd, {"x": X, "s": s, "adj_y": CT}, None)["adj_x"]
    _, inside = quantized(X, np.repeat(s, 2, 2), 0, -128, 127)
    assert 0 < inside.mean() < 1
    np.testing.assert_allclose(got, CT * inside, 1e-5)


def test_quantized_tensors_are_moved_on_the_way():
    m = model(
        """<float s = {0.02}, int8 z = {1}, int64[2] flat = {6, 4}, int64[1] one = {1}, int64[1] zero = {0}, int64[1] five = {5}>
        { q = QuantizeLinear(x, s, z) a = Identity(q) b = Reshape(a, flat) c = Transpose<perm = [1, 0]>(b)
          d = Unsqueeze(c, zero) e = Squeeze(d, zero) f = Slice(e, zero, five, one) y = DequantizeLinear(f, s, z) }""",
        result="float[4,5] y",
    )
    ct = np.asarray(R.standard_normal((4, 5)), np.float32)
    _, inside = quantized(X, np.float32(0.02), 1, -128, 127)
    moved = np.pad(ct, ((0, 0), (0, 1))).T.reshape(2, 3, 4)
    np.testing.assert_allclose(both(m, ("QuantizeLinear",), ct=ct)["x"], moved * inside, 1e-5)


def test_a_cast_to_a_floating_type_ends_the_quantized_part():
    m = model("<float s = {0.02}, int8 z = {1}> { q = QuantizeLinear(x, s, z) c = Cast<to = 1>(q) y = Mul(c, c) }")
    got = both(m, ("QuantizeLinear",))["x"]
    q = np.clip(np.round(X / np.float32(0.02)) + 1, -128, 127)
    _, inside = quantized(X, np.float32(0.02), 1, -128, 127)
    np.testing.assert_allclose(got, CT * 2 * q * inside / 0.02, 1e-4)


def test_dynamic_quantization_clips_nothing():
    m = model("{ q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }")
    np.testing.assert_allclose(both(m, ("DynamicQuantizeLinear",))["x"], CT, 1e-5)


def test_float8():
    m = model("<float s = {0.005}, float8e4m3fn z = {0}> { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }")
    d = reverse(m, layout="single", straight_through=("QuantizeLinear",))
    onnx.checker.check_model(d, full_check=True)
    got = evaluate(d, {"x": X, "adj_y": CT})["adj_x"]
    inside = np.abs(X / np.float32(0.005)) <= 448
    assert 0 < inside.mean() < 1
    np.testing.assert_allclose(got, CT * inside, 1e-5)


def test_symbolic_shapes_and_order_two():
    m = model(
        "<float s = {0.02}, int8 z = {1}> { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) c = Mul(d, d) y = Mul(c, d) }",
        result="float[A,B,4] y",
        inputs="float[A,B,4] x",
    )
    ops = ("QuantizeLinear",)
    first = reverse(m, layout="single", straight_through=ops)
    second = forward(first, ["x"], ["adj_x"], layout="single", straight_through=ops)
    onnx.checker.check_model(second, full_check=True)
    t = np.asarray(R.standard_normal(X.shape), np.float32)
    y, inside = quantized(X, np.float32(0.02), 1, -128, 127)
    for level in (0, 99):
        found = evaluate(second, {"x": X, "adj_y": CT, "fwd_x": t}, level)
        np.testing.assert_allclose(found["adj_x"], CT * 3 * y * y * inside, 1e-4, 1e-5)
        np.testing.assert_allclose(found["fwd_adj_x"], CT * 6 * y * inside * t, 1e-4, 1e-5)


@pytest.mark.parametrize("name", ["forward", "reverse"])
def test_as_an_option_in_text(name):
    m = model("<float s = {0.1}> { r = Round(x) q = QuantizeLinear(r, s) y = DequantizeLinear(q, s) }")
    text = run_pipeline(m, f"{name}{{straight-through=Round,QuantizeLinear}}")
    direct = {"forward": forward, "reverse": reverse}[name](
        m, layout="single", straight_through=["Round", "QuantizeLinear"]
    )
    assert text.SerializeToString(deterministic=True) == direct.SerializeToString(deterministic=True)


def test_a_wrong_name_is_an_error_with_the_nearest_one():
    m = model("{ y = Identity(x) }")
    with pytest.raises(UsageError, match=r"'QuantiseLinear'; did you mean 'QuantizeLinear'"):
        forward(m, layout="single", straight_through=["QuantiseLinear"])
    with pytest.raises(UsageError, match="no straight-through derivative of 'Relu'"):
        run_pipeline(m, "reverse{straight-through=Relu}")


def test_it_is_pytorchs_fake_quantize():
    torch = pytest.importorskip("torch")
    for kind, zero, low, high in (("int8", 5, -128, 127), ("uint8", 120, 0, 255)):
        m = model(
            f"<float s = {{0.02}}, {kind} z = {{{zero}}}> {{ q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }}"
        )
        x = torch.tensor(X, requires_grad=True)
        torch.fake_quantize_per_tensor_affine(x, 0.02, zero, low, high).backward(torch.tensor(CT))
        np.testing.assert_allclose(both(m, ("QuantizeLinear",))["x"], x.grad.numpy(), 1e-5)
