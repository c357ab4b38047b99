"""Shapes inferred where the model tells extents by names only, or not at all, against those that were recorded."""

import numpy as np
import onnx
import pytest
from backend_cases import cases

from onnxad_ir.infer import Inference
from onnxad_ir.proto import from_proto
from onnxad_ir.types import TensorType


def loosened(model, named):
    """The model with inputs whose extents are symbols, or unknown; of its results it tells the ranks neither."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    del out.graph.value_info[:]
    for v in out.graph.input:
        for i, d in enumerate(v.type.tensor_type.shape.dim if v.type.HasField("tensor_type") else ()):
            d.Clear()
            if named:
                d.dim_param = f"{v.name}:{i}"
    for v in out.graph.output:
        if v.type.HasField("tensor_type"):
            v.type.tensor_type.ClearField("shape")
    return out


@pytest.mark.parametrize("named", [True, False], ids=["named", "unknown"])
def test_inferred_extents_are_those_of_the_run(named):
    wrong, told = [], 0
    for case in cases():
        model = from_proto(loosened(case.model, named))
        Inference(model).graph(model.graph)
        extents = {}
        for v in model.graph.inputs:
            recorded = case.inputs.get(v.name)
            if isinstance(recorded, np.ndarray) and isinstance(v.type, TensorType) and v.shape is not None:
                extents |= {d: n for d, n in zip(v.shape, recorded.shape, strict=True) if isinstance(d, str)}
        for v in model.graph.outputs:
            recorded = case.outputs.get(v.name)
            if not isinstance(recorded, np.ndarray) or not isinstance(v.type, TensorType) or v.shape is None:
                continue
            told += 1
            known = [
                extents.get(d, n) if isinstance(d, str) else d for d, n in zip(v.shape, recorded.shape, strict=False)
            ]
            if len(v.shape) != recorded.ndim or known != list(recorded.shape):
                wrong.append(f"{case.name}: {v.name} is {v.shape}, not {recorded.shape}")
    assert not wrong, "\n".join(wrong)
    assert told > 1500
