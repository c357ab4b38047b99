import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxad_rules.testing import differentiate, run_in_reference

R = np.random.default_rng(0)
X = R.integers(-100, 100, (2, 6, 5), np.int8)
Z = R.integers(-5, 5, (2, 6, 5), np.int8)


# ONNX Runtime has no double precision here
@pytest.mark.parametrize(
    "scale, attrs",
    [
        ((), {}),
        ((1,), {}),
        ((6,), {}),
        ((6,), {"axis": -2}),
        ((2,), {"axis": 0}),
        ((5,), {"axis": 2}),
        ((2, 2, 5), {"axis": 1, "block_size": 3}),
        ((2, 2, 5), {"axis": 1, "block_size": 4}),
        ((2, 6, 3), {"axis": -1, "block_size": 2}),
        ((2, 6, 1), {"axis": 2, "block_size": 5}),
        ((1, 6, 5), {"axis": 0, "block_size": 2}),
    ],
)
@pytest.mark.parametrize("zero_point", [True, False])
@pytest.mark.parametrize("shapes", ["static", "symbolic", "none"])
def test_scale(scale, attrs, zero_point, shapes):
    s = np.float32(R.uniform(0.5, 2, scale))
    z = Z[tuple(slice(0, d) for d in scale)] if len(scale) == 3 else Z.reshape(-1)[: s.size].reshape(scale)
    whole = x_minus_z(s, z if zero_point else np.int8(0), attrs)
    kinds = [("x", TensorProto.INT8, X), ("s", TensorProto.FLOAT, s)] + (
        [("z", TensorProto.INT8, z)] if zero_point else []
    )
    info = [
        helper.make_tensor_value_info(
            n,
            k,
            list(v.shape) if shapes == "static" else None if shapes == "none" else [f"{n}{i}" for i in range(v.ndim)],
        )
        for n, k, v in kinds
    ]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, list(X.shape) if shapes == "static" else None)
    node = helper.make_node("DequantizeLinear", [n for n, _, _ in kinds], ["y"], **attrs)
    model = helper.make_model(
        helper.make_graph([node], "g", info, [y]), opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    ct, t = np.float32(R.standard_normal(X.shape)), np.float32(R.standard_normal(scale))
    feeds = {"x": X, "s": s, "z": z, "adj_y": ct, "fwd_s": t}
    forward = run_in_reference(differentiate(model, "forward"))(feeds)[1]
    reverse = run_in_reference(differentiate(model, "reverse"))(feeds)[1]
    np.testing.assert_allclose(forward, whole * spread(t, attrs), rtol=1e-5)
    assert reverse.shape == scale and reverse.dtype == np.float32
    np.testing.assert_allclose((reverse * t).sum(), (ct * forward).sum(), rtol=1e-4)
    one = np.zeros(s.size, np.float32)
    one[-1] = 1
    want = (ct * whole * spread(one.reshape(scale), attrs)).sum()
    np.testing.assert_allclose(reverse.reshape(-1)[-1], want, rtol=1e-4, atol=1e-3)


def spread(v, attrs):
    """One value for each element."""
    axis = attrs.get("axis", 1) % 3
    if "block_size" in attrs:
        return np.repeat(v, attrs["block_size"], axis)[tuple(slice(0, d) for d in X.shape)]
    if v.size == 1:
        return np.full(X.shape, v.reshape(()))
    return v.reshape([-1 if i == axis else 1 for i in range(3)]) * np.ones(X.shape)


def x_minus_z(s, z, attrs):
    return X.astype(np.float32) - spread(np.broadcast_to(z, s.shape).astype(np.float32), attrs)


def test_scale_in_half_precision_is_summed_in_its_own_type():
    info = [helper.make_tensor_value_info(n, k, [3]) for n, k in (("x", TensorProto.INT8), ("y", TensorProto.FLOAT))]
    s = helper.make_tensor_value_info("s", TensorProto.FLOAT16, [])
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], output_dtype=TensorProto.FLOAT)
    model = helper.make_model(
        helper.make_graph([node], "g", [info[0], s], [info[1]]),
        opset_imports=[helper.make_opsetid("", 23)],
        ir_version=11,
    )
    feeds = {"x": np.int8([1, 2, 3]), "s": np.float16(2), "adj_y": np.float32([1, 1, 2])}
    got = run_in_reference(differentiate(model, "reverse"))(feeds)[1]
    assert got.dtype == np.float16 and got == 9


def test_dynamic_quantization():
    """The scale is (max(x, 0) - min(x, 0)) / 255."""
    info = [
        helper.make_tensor_value_info(*a)
        for a in (
            ("x", TensorProto.FLOAT, [4]),
            ("q", TensorProto.UINT8, [4]),
            ("s", TensorProto.FLOAT, []),
            ("z", TensorProto.UINT8, []),
        )
    ]
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    model = helper.make_model(
        helper.make_graph([node], "g", info[:1], info[1:]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )
    feeds = {"x": np.float32([1, -2, 3, 0.5]), "adj_s": np.float32(510)}
    got = run_in_reference(differentiate(model, "reverse"))(feeds)[3]
    np.testing.assert_allclose(got, [0, -2, 2, 0], rtol=1e-6)
