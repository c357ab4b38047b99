"""Upsample and the earlier forms of Resize."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import AttrRef, Node
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.types import DataType
from onnxad_passes.upgrade.registry import Results, adapter, operand, required, take

#: How pixels were found before opset 11 gave the choice.
_ASYMMETRIC = "asymmetric"


@adapter("Upsample", before=7)
def upsample_image(op: Builder, n: Node) -> None:
    """The last two axes of a batch of images."""
    scales = [1.0, 1.0, float(take(n, "height_scale", 1.0)), float(take(n, "width_scale", 1.0))]
    _upsample(op, n, op.const(scales, DataType.FLOAT))


@adapter("Upsample", since=7, before=9)
def upsample_static(op: Builder, n: Node) -> None:
    """The scales were an attribute."""
    _upsample(op, n, op.const([float(s) for s in take(n, "scales")], DataType.FLOAT))


@adapter("Upsample", since=9, before=18)
def upsample(op: Builder, n: Node) -> None:
    """The scales are an operand."""
    _upsample(op, n, required(op, n, 1))


def _upsample(op: Builder, n: Node, scales: Var) -> None:
    n.op_type = "Resize"
    n.set_inputs((n.inputs[0], None, scales.value))
    n.attributes.update(_sampling(str(take(n, "mode", "nearest")), "floor"))


def _sampling(mode: str, nearest: str) -> dict[str, Any]:
    linear = mode.endswith("linear")  # bilinear and trilinear are what the rank makes of linear
    return {
        "mode": "linear" if linear else mode,
        "coordinate_transformation_mode": _ASYMMETRIC,
        **({} if linear else {"nearest_mode": nearest}),
    }


@adapter("Resize", since=10, before=11)
def resize_scales(op: Builder, n: Node) -> Results:
    """The nearest pixel was below when enlarging and above when shrinking, axis by axis.

    This is what ONNX Runtime does and what the operator's examples of opset 10 show. Nearest neighbours are
    found for each axis by itself, so scales of both kinds, and scales nobody knows, take two steps.
    """
    x, scales, mode = required(op, n, 0), required(op, n, 1), str(take(n, "mode", "nearest"))
    known = scales.value.numpy()
    if mode != "nearest" or (known is not None and bool(np.all(known >= 1))):
        return op.Resize(x, None, scales, **_sampling(mode, "floor"))
    if known is None or bool(np.any(known > 1)):
        one = op.const(1.0, DataType.FLOAT)
        x = op.Resize(x, None, op.Max(scales, one), **_sampling(mode, "floor"))
        scales = op.Min(scales, one)
    return op.Resize(x, None, scales, **_sampling(mode, "ceil"))


@adapter("Resize", since=11, before=18)
def resize(op: Builder, n: Node) -> None:
    """Operands that are not used were empty tensors, and one coordinate transformation is gone."""
    x, roi, scales, sizes = (operand(op, n, i) for i in range(4))
    transformation = n.attributes.get("coordinate_transformation_mode", "half_pixel")
    if transformation != "tf_crop_and_resize" and not isinstance(transformation, AttrRef):
        roi = None
    if sizes is not None and sizes.shape != (0,):
        scales = None
    else:
        sizes = None
    kept = [x, roi, scales, sizes]
    while kept and kept[-1] is None:
        kept.pop()
    n.set_inputs(None if v is None else v.value for v in kept)
    if transformation == "tf_half_pixel_for_nn":
        _without_tf_half_pixel(n)


def _without_tf_half_pixel(n: Node) -> None:
    """Pixels at z + 0.5 for the half_pixel coordinate z: floor(z + 0.5) is z rounded half up, and z + 0.5
    rounded half down is ceil(z). The other modes, and interpolation, have no equivalent."""
    nearest = {"floor": "round_prefer_ceil", "round_prefer_floor": "ceil"}
    mode, how = n.attributes.get("mode", "nearest"), n.attributes.get("nearest_mode", "round_prefer_floor")
    if mode != "nearest" or how not in nearest:
        raise ModelError(
            f"{describe(n)}: coordinate_transformation_mode tf_half_pixel_for_nn with mode {mode} and "
            f"nearest_mode {how} has no equivalent since opset 13"
        )
    n.attributes["coordinate_transformation_mode"] = "half_pixel"
    n.attributes["nearest_mode"] = nearest[how]
