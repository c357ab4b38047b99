"""What a value can be: tensors with symbolic extents, sequences, optionals, maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from onnx_ir import DataType as DataType

#: An extent of a tensor: a number, or a symbol. Equal symbols are equal extents. A symbol that starts with "?"
#: is anonymous: nobody named it, it stands for "unknown, but the same wherever it is written".
Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]

FLOATING = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16})
#: The element types of a quantized tensor.
QUANTIZED = frozenset(
    DataType[name]
    for name in """INT8 UINT8 INT16 UINT16 INT4 UINT4 INT2 UINT2 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ
    FLOAT4E2M1""".split()
)


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor: its element type and its shape, None where even the rank is unknown."""

    dtype: DataType
    shape: Shape | None = None

    @property
    def rank(self) -> int | None:
        """The number of axes, None where it is unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """True where every extent is a number."""
        return self.shape is not None and all(isinstance(d, int) for d in self.shape)

    @property
    def size(self) -> int | None:
        """The number of elements, None unless every extent is a number."""
        if self.shape is None:
            return None
        n = 1
        for d in self.shape:
            if not isinstance(d, int):
                return None
            n *= d
        return n


@dataclass(frozen=True, slots=True)
class SparseTensorType:
    """A sparse tensor: its element type and dense shape."""

    dtype: DataType
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A sequence whose elements have type `elem` (None: unknown)."""

    elem: Type | None


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value of type `elem` or none."""

    elem: Type | None


@dataclass(frozen=True, slots=True)
class MapType:
    """A map from keys of an element type to values."""

    key: DataType
    value: Type | None


Type: TypeAlias = TensorType | SparseTensorType | SequenceType | OptionalType | MapType


def held(t: Type | None) -> Type | None:
    """The type of what a sequence or optional holds, at any depth; that of anything else itself."""
    while isinstance(t, SequenceType | OptionalType):
        t = t.elem
    return t


def map_tensors(t: Type | None, f: Callable[[TensorType], TensorType]) -> Type | None:
    """A tensor type changed by `f`, also inside of sequences and optionals; any other type as it is."""
    if isinstance(t, TensorType):
        return f(t)
    return type(t)(map_tensors(t.elem, f)) if isinstance(t, SequenceType | OptionalType) else t


def is_floating(t: Type | None) -> bool:
    """True where `t` can carry a derivative: a floating tensor, or a sequence or optional of one."""
    t = held(t)
    return isinstance(t, TensorType) and t.dtype in FLOATING


def can_vary(t: Type | None) -> bool:
    """True unless `t` is known to carry no derivative: a value of unknown type is never taken for a constant."""
    t = held(t)
    return t is None or (isinstance(t, TensorType) and t.dtype in FLOATING)


def is_anonymous(dim: Dim) -> bool:
    """True for a symbol that nobody named."""
    return isinstance(dim, str) and dim.startswith("?")


def is_made_after(dim: Dim, count: int) -> bool:
    """True for an anonymous symbol that was made when there were `count` of them already (`Model.symbols`)."""
    return isinstance(dim, str) and dim.startswith("?") and dim[1:].isdigit() and int(dim[1:]) > count
