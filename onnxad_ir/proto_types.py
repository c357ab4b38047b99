"""Types to and from protobuf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx

from onnxad_ir.diagnostics import ModelError
from onnxad_ir.types import (
    DataType,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    Shape,
    SparseTensorType,
    TensorType,
    Type,
    is_anonymous,
)

#: Element types by the number that protobuf has for them.
DTYPES: dict[int, DataType] = {int(d): d for d in DataType}


def read_dtype(number: int) -> DataType:
    if number not in DTYPES:
        raise ModelError(f"there is no element type {number}")
    return DTYPES[number]


def read_type(t: onnx.TypeProto, fresh: Callable[[], str], anonymous: bool = False) -> Type | None:
    """A type, None where nothing is said; every extent without value or name becomes a fresh symbol.

    With `anonymous`, a name that starts with "?" is one of our own symbols; an author's means unknown.
    """
    kind = t.WhichOneof("value")
    if kind == "tensor_type":
        tensor = t.tensor_type
        known = tensor.elem_type != 0
        return TensorType(read_dtype(tensor.elem_type), _read_shape(tensor, fresh, anonymous)) if known else None
    if kind == "sequence_type":
        return SequenceType(read_type(t.sequence_type.elem_type, fresh, anonymous))
    if kind == "optional_type":
        return OptionalType(read_type(t.optional_type.elem_type, fresh, anonymous))
    if kind == "map_type":
        return MapType(read_dtype(t.map_type.key_type), read_type(t.map_type.value_type, fresh, anonymous))
    if kind == "sparse_tensor_type":
        sparse = t.sparse_tensor_type
        return SparseTensorType(read_dtype(sparse.elem_type), _read_shape(sparse, fresh, anonymous))
    return None


def _read_shape(t: Any, fresh: Callable[[], str], anonymous: bool) -> Shape | None:
    if not t.HasField("shape"):
        return None
    dims: list[Dim] = []
    for d in t.shape.dim:
        if d.HasField("dim_value") and d.dim_value >= 0:
            dims.append(d.dim_value)
        elif d.dim_param and (anonymous or not d.dim_param.startswith("?")):
            dims.append(d.dim_param)
        else:  # Authors write ?, -1 or nothing for an extent they know nothing about.
            dims.append(fresh())
    return tuple(dims)


def write_type(out: onnx.TypeProto, t: Type, anonymous: bool = False) -> None:
    """Write a type; extents nobody named are written as unknown, unless `anonymous`."""
    if isinstance(t, TensorType):
        out.tensor_type.elem_type = int(t.dtype)
        _write_shape(out.tensor_type, t.shape, anonymous)
    elif isinstance(t, SequenceType):
        out.sequence_type.SetInParent()
        if t.elem is not None:
            write_type(out.sequence_type.elem_type, t.elem, anonymous)
    elif isinstance(t, OptionalType):
        out.optional_type.SetInParent()
        if t.elem is not None:
            write_type(out.optional_type.elem_type, t.elem, anonymous)
    elif isinstance(t, MapType):
        out.map_type.key_type = int(t.key)
        if t.value is not None:
            write_type(out.map_type.value_type, t.value, anonymous)
    elif isinstance(t, SparseTensorType):
        out.sparse_tensor_type.elem_type = int(t.dtype)
        _write_shape(out.sparse_tensor_type, t.shape, anonymous)
    else:
        raise TypeError(f"{t!r} is no type")


def _write_shape(out: Any, shape: Shape | None, anonymous: bool) -> None:
    if shape is None:
        return
    dims = out.shape
    dims.SetInParent()
    for d in shape:
        if isinstance(d, int):
            dims.dim.add(dim_value=d)
        elif is_anonymous(d) and not anonymous:
            dims.dim.add()
        else:
            dims.dim.add(dim_param=d)
