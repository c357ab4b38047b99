"""The recorded networks in half precision and in double: derivatives in the element type of the model."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support import evaluate, retyped, run_in_reference
from test_shapes import load

from onnxad_passes import forward, reverse

NAMES = ["mlp", "depthwise", "unet", "bert"]
TOLERANCE = {TensorProto.DOUBLE: 1e-5, TensorProto.FLOAT16: 3e-2, TensorProto.BFLOAT16: 2e-1}


@pytest.mark.parametrize("to", TOLERANCE, ids=["double", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_network_in_another_precision(name, to):
    # Conv takes bfloat16 from opset 22 on
    model, feeds, cotangent, wrt = load(name, 23 if to == TensorProto.BFLOAT16 else 18)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    y = model.graph.output[0].name
    want = evaluate(reverse(model, inputs=wrt, layout="single"), {**feeds, f"adj_{y}": cotangent}, 99)
    other = retyped(model, to)
    narrow = {k: v.astype(dtype) if v.dtype == np.float32 else v for k, v in feeds.items()}
    adjoint = reverse(other, inputs=wrt, layout="single")
    onnx.checker.check_model(adjoint, full_check=True)
    have = {**narrow, f"adj_{y}": cotangent.astype(dtype)}
    got = dict(zip([o.name for o in adjoint.graph.output], run_in_reference(adjoint)(have), strict=True))
    for key, w in want.items():
        assert got[key].dtype == dtype, key
        error = np.abs(got[key].astype(np.float64) - w).max() / (np.abs(w).max() + 1e-6)
        assert error < TOLERANCE[to], f"{key}: relative error {error:.2g}"
    tangent = forward(other, inputs=wrt[:1], layout="single")
    onnx.checker.check_model(tangent, full_check=True)
    assert run_in_reference(tangent)({**narrow, f"fwd_{wrt[0]}": narrow[wrt[0]]})[-1].dtype == dtype


@pytest.mark.parametrize("name", NAMES)
def test_float16_runs_in_onnxruntime(name):
    model, feeds, cotangent, wrt = load(name)
    y = model.graph.output[0].name
    want = evaluate(reverse(model, inputs=wrt, layout="single"), {**feeds, f"adj_{y}": cotangent}, 99)
    adjoint = reverse(retyped(model, TensorProto.FLOAT16), inputs=wrt, layout="single")
    half = {k: v.astype(np.float16) if v.dtype == np.float32 else v for k, v in feeds.items()}
    got = evaluate(adjoint, {**half, f"adj_{y}": cotangent.astype(np.float16)}, 99)
    for key, w in want.items():
        error = np.abs(got[key].astype(np.float64) - w).max() / (np.abs(w).max() + 1e-6)
        assert error < 3e-2, f"{key}: relative error {error:.2g}"
