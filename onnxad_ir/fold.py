"""Evaluation of small constant expressions in numpy, for the operators that shape arithmetic is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxad_ir.core import Attr
from onnxad_ir.types import FLOATING

Array: TypeAlias = "np.ndarray[Any, Any]"
Evaluator: TypeAlias = "Callable[[dict[str, Attr], list[Array | None]], Array]"

#: Constants of more elements than this are not folded: a model must not grow by its folded values.
FOLD_LIMIT = 4096

_CAST = (
    FLOATING | {ir.DataType[f"{sign}INT{bits}"] for sign in ("", "U") for bits in (8, 16, 32, 64)} | {ir.DataType.BOOL}
)

_UNARY: dict[str, Callable[[Array], Array]] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Reciprocal": lambda x: np.asarray(1 / x).astype(x.dtype),
    "Not": np.logical_not,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Identity": lambda x: x,
    "Sign": np.sign,
    "Tanh": np.tanh,
    "Size": lambda x: np.asarray(x.size, np.int64),
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Pow": lambda x, y: np.power(x, y).astype(x.dtype),
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}


def _div(x: Array, y: Array) -> Array:
    if np.issubdtype(x.dtype, np.integer):
        if not np.all(y):
            raise ZeroDivisionError
        q = np.abs(x) // np.abs(y)
        return np.asarray(np.where((x < 0) != (y < 0), -q, q)).astype(x.dtype)
    return x / y


def _axes(rank: int, axes: Array | None) -> tuple[int, ...]:
    return () if axes is None else tuple(int(a) % rank for a in axes.reshape(-1))


def _reduce(f: Callable[..., Array]) -> Evaluator:
    def run(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
        x = xs[0]
        assert x is not None
        axes = _axes(x.ndim, xs[1] if len(xs) > 1 else None)
        if not axes and attrs.get("noop_with_empty_axes", 0):
            return x
        return np.asarray(f(x, axis=axes or None, keepdims=bool(attrs.get("keepdims", 1))), x.dtype)

    return run


def _slice(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x, starts, ends = xs[0], xs[1], xs[2]
    assert x is not None and starts is not None and ends is not None
    axes = xs[3].reshape(-1) if len(xs) > 3 and xs[3] is not None else np.arange(len(starts))
    steps = xs[4].reshape(-1) if len(xs) > 4 and xs[4] is not None else np.ones(len(starts), np.int64)
    index = [slice(None)] * x.ndim
    if any(st < 0 and s < -x.shape[int(a)] for s, a, st in zip(starts.reshape(-1), axes, steps, strict=True)):
        raise ValueError  # see slice_extent
    for s, e, a, st in zip(starts.reshape(-1), ends.reshape(-1), axes, steps, strict=True):
        lo, hi, step = slice(int(s), int(e), int(st)).indices(x.shape[int(a)])
        index[int(a)] = slice(lo, hi if hi >= 0 else None, step)
    return x[tuple(index)]


def _reshape(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x, target = xs[0], xs[1]
    assert x is not None and target is not None
    shape = [
        x.shape[i] if d == 0 and not attrs.get("allowzero", 0) else int(d) for i, d in enumerate(target.reshape(-1))
    ]
    return x.reshape(shape)


def _squeeze(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x = xs[0]
    assert x is not None
    axes = xs[1] if len(xs) > 1 else None
    return np.squeeze(x) if axes is None else np.squeeze(x, _axes(x.ndim, axes))


def _unsqueeze(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x, axes = xs[0], xs[1]
    assert x is not None and axes is not None
    return np.expand_dims(x, tuple(int(a) for a in axes.reshape(-1)))


def _gather(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x, i = xs[0], xs[1]
    assert x is not None and i is not None
    return np.take(x, i, axis=attrs.get("axis", 0))


def _gather_elements(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x, i = _present(xs)
    axis = attrs.get("axis", 0) % x.ndim
    x = x[tuple(slice(None if k == axis else d) for k, d in enumerate(i.shape))]  # others may be shorter in `i`
    return np.take_along_axis(x, np.where(i < 0, i + x.shape[axis], i), axis)


def _gather_nd(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x, i = _present(xs)
    if attrs.get("batch_dims", 0):
        raise ValueError
    return np.asarray(x[tuple(np.moveaxis(i, -1, 0))])


def _within_limit(shape: Iterable[Any]) -> None:
    if math.prod(int(d) for d in shape) > FOLD_LIMIT:
        raise OverflowError


def _flatten(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    (x,) = _present(xs)
    axis = attrs.get("axis", 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _tile(x: Array, repeats: Array) -> Array:
    _within_limit([*x.shape, *repeats.reshape(-1)])
    return np.tile(x, repeats)


def _cast(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    """Between the types that numpy casts as ONNX does: not to and from strings, nor with saturation."""
    (x,) = _present(xs)
    to = ir.DataType(attrs["to"])
    if (x.dtype.kind not in "biuf" and x.dtype != ir.DataType.BFLOAT16.numpy()) or to not in _CAST:
        raise TypeError
    return x.astype(to.numpy())


def _constant_of_shape(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    shape, value = xs[0], attrs.get("value")
    assert shape is not None
    _within_limit(shape)
    fill = np.zeros((), np.float32) if value is None else value.numpy().reshape(())
    return np.full(tuple(int(d) for d in shape), fill)


def _expand(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    x, shape = xs[0], xs[1]
    assert x is not None and shape is not None
    target = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
    _within_limit(target)
    return np.broadcast_to(x, target).copy()  # (ascontiguousarray gives a scalar an axis)


def _range(attrs: dict[str, Attr], xs: list[Array | None]) -> Array:
    # AffineGrid's function body has Range take vectors of one element
    lo, hi, step = (x.reshape(()) for x in _present(xs))
    n = max(0, int(np.ceil((hi - lo) / step)))
    if n > FOLD_LIMIT:
        raise OverflowError
    return (lo + np.arange(n) * step).astype(lo.dtype)


def _present(xs: list[Array | None]) -> list[Array]:
    return [x for x in xs if x is not None]


def _plain(f: Callable[..., Array]) -> Evaluator:
    return lambda attrs, xs: f(*xs)


EVALUATORS: dict[str, Evaluator] = {
    **{k: _plain(f) for k, f in _UNARY.items()},
    **{k: _plain(f) for k, f in _BINARY.items()},
    "Max": lambda a, xs: reduce(np.maximum, _present(xs)),
    "Min": lambda a, xs: reduce(np.minimum, _present(xs)),
    "Sum": lambda a, xs: reduce(np.add, _present(xs)),
    "Flatten": _flatten,
    "Div": lambda a, xs: _div(*_present(xs)),
    "Mod": lambda a, xs: (np.fmod if a.get("fmod", 0) else np.mod)(*_present(xs)),
    "Cast": _cast,
    "Shape": lambda a, xs: np.asarray(_present(xs)[0].shape[a.get("start", 0) : a.get("end")], np.int64),
    "Concat": lambda a, xs: np.concatenate(_present(xs), axis=a["axis"]),
    "Where": lambda a, xs: np.where(*_present(xs)),
    "Transpose": lambda a, xs: np.transpose(_present(xs)[0], a.get("perm")).copy(),
    "ReduceSum": _reduce(np.sum),
    "ReduceProd": _reduce(np.prod),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
    "Slice": _slice,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Range": _range,
    "NonZero": lambda a, xs: np.asarray(np.nonzero(_present(xs)[0]), np.int64),
    "Tile": lambda a, xs: _tile(*_present(xs)),
    "CumSum": lambda a, xs: _cumsum(a, *_present(xs)),
}


def _cumsum(attrs: dict[str, Attr], x: Array, axis: Array) -> Array:
    k = int(axis.reshape(()))
    if attrs.get("reverse", 0):
        x = np.flip(x, k)
    out = np.cumsum(x, axis=k, dtype=x.dtype)
    if attrs.get("exclusive", 0):
        out = out - x
    return np.flip(out, k) if attrs.get("reverse", 0) else out


def evaluate(op_type: str, attrs: dict[str, Attr], operands: list[Array | None]) -> Array | None:
    """The result of a default-domain operator on constants, None where it is not evaluated here.

    Results that are larger than `FOLD_LIMIT`, and domain errors, are not folded either.
    """
    f = EVALUATORS.get(op_type)
    if f is None:
        return None
    try:
        with np.errstate(all="ignore"):
            out = np.asarray(f(attrs, operands))
    except (ArithmeticError, ValueError, TypeError, IndexError, AssertionError):
        return None
    return out if out.size <= FOLD_LIMIT else None
