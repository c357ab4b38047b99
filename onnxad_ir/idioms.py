"""Idioms: the phrases rules are written in. Static where shapes are known, run-time otherwise, right in both.

They are methods of the builder; `self` is it. Shapes as values are int64 tensors of rank 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxad_ir.infer import known
from onnxad_ir.peephole import absorbs, same_shape
from onnxad_ir.pieces import join
from onnxad_ir.types import DataType, Dim, Shape, TensorType

if TYPE_CHECKING:
    from onnxad_ir.builder import Scope, Var
    from onnxad_ir.core import Model, Value


class Idioms:
    """Mixed into `Builder`."""

    if TYPE_CHECKING:
        model: Model
        scope: Scope

        def const(self, data: Any, dtype: DataType | None = None) -> Var: ...
        def var(self, value: Value | Var) -> Var: ...
        def __getattr__(self, name: str) -> Any: ...

    # --- extents

    def shape(self, x: Var) -> Var:
        """The shape of `x`: a constant where it is known, else read off a value that has it."""
        s = x.shape
        if s is None:
            return self.Shape(x)
        if all(isinstance(d, int) for d in s):
            return self.const(np.asarray(s, np.int64))
        like = self.scope.like(s)
        return self.Shape(x if like is None else self.var(like))

    def extent(self, x: Var, axis: int) -> Var:
        """The extent of one axis (which may be negative) as a tensor of shape [1]."""
        s = x.shape
        if s is not None:
            return self.dim(s[axis], x, axis)
        end = axis + 1 if axis != -1 else None
        return self.Shape(x, start=axis, end=end)

    def dim(self, d: Dim, x: Var | None = None, axis: int = 0) -> Var:
        """An extent as a tensor of shape [1]; a symbol is read off a value that has it, or off axis `axis` of `x`."""
        if isinstance(d, int):
            return self.const([d])
        found = self.scope.dim(d)
        if found is not None:
            return self.Shape(self.var(found[0]), start=found[1], end=found[1] + 1)
        assert x is not None and x.shape is not None
        axis = axis % len(x.shape)
        return self.Shape(x, start=axis, end=axis + 1)

    def shape_of(self, dims: Sequence[Dim | Var]) -> Var:
        """A shape from extents, each a number, a symbol, or a Var of shape [1]."""
        if all(isinstance(d, int) for d in dims):
            return self.const(np.asarray(dims, np.int64))
        parts = [self.dim(d) if isinstance(d, int | str) else d for d in dims]
        return self.Concat(*parts, axis=0)

    def rank(self, x: Var) -> Var:
        """The rank of `x` as a tensor of shape [1]."""
        if x.rank is not None:
            return self.const([x.rank])
        return self.Shape(self.Shape(x))

    # --- shapes made to agree

    def reshape_like(self, x: Var, like: Var) -> Var:
        """`x` with the shape of `like`, which has as many elements."""
        if same_shape(x.value, like.value):
            return x
        return self.Reshape(x, self.target(like), allowzero=self._zeros_possible(like.shape))

    def target(self, like: Var) -> Var:
        """The shape of `like` as the operand of a Reshape: with -1 for a single extent that only the run knows."""
        s = like.shape
        if s is not None:
            unknown = [i for i, d in enumerate(s) if not isinstance(d, int)]
            if len(unknown) == 1 and 0 not in s:
                return self.const([d if isinstance(d, int) else -1 for d in s])
        return self.shape(like)

    @staticmethod
    def _zeros_possible(s: Shape | None) -> int | None:
        """allowzero=1 where a Reshape target may hold a zero that means zero."""
        if s is not None and 0 not in s and sum(not isinstance(d, int) for d in s) <= 1:
            return None
        return 1

    def sum_to(self, x: Var, like: Var) -> Var:
        """`x` summed to the shape of `like`, the transpose of broadcasting `like` to the shape of `x`.

        Static where every extent tells whether it was broadcast; otherwise the axes are found at run time.
        """
        if x.value is like.value or same_shape(x.value, like.value):
            return x
        xs, ls = x.shape, like.shape
        if xs is not None and ls is not None:
            pad = len(xs) - len(ls)
            pairs = list(zip(xs[pad:], ls, strict=True))
            if all(b == 1 or a == b or (isinstance(b, int) and b != 1) for a, b in pairs):
                inner = [pad + i for i, (a, b) in enumerate(pairs) if b == 1 and a != 1]
                if pad and not inner:
                    return self.ReduceSum(x, list(range(pad)), keepdims=0)
                if inner or pad:
                    x = self.ReduceSum(x, list(range(pad)) + inner, keepdims=1)
                return self.Squeeze(x, list(range(pad))) if pad else x
        return self._sum_to_at_run_time(x, like)

    def _sum_to_at_run_time(self, x: Var, like: Var) -> Var:
        shape = self.shape(x)
        target = self.shape(like)
        if x.rank is not None and like.rank is not None:
            pad = x.rank - like.rank
            padded = self.Concat(self.const([1] * pad), target, axis=0) if pad else target
        else:
            gap = self.rank(x) - self.rank(like)
            padded = self.Concat(self.Expand(self.const([1]), gap), target, axis=0)
        differ = self.Not(self.Equal(shape, padded))
        axes = self.Squeeze(self.NonZero(differ), [0])
        summed = self.ReduceSum(x, axes, keepdims=1, noop_with_empty_axes=1)
        if x.rank is not None and x.rank == like.rank:
            return self.fit_type(summed, like)
        return self.fit_type(self.Reshape(summed, target, allowzero=1), like)

    def fit_type(self, x: Var, like: Var) -> Var:
        """`x`, whose shape is known to be that of `like`, told so to inference."""
        v = x.value
        known = isinstance(v.type, TensorType) and like.shape is not None
        if known and v.shape != like.shape and not v.is_const and v.producer is not None:
            v.type = TensorType(x.dtype, like.shape)
            self.model.told.add(v)
            self.scope.define(v)
        return x

    def shaped(self, x: Var, shape: Shape | None) -> Var:
        """`x`, whose shape is known to be this wherever it comes from a node here."""
        if shape is not None and x.value.producer is not None:
            x.value.type = TensorType(x.dtype, shape)
            self.scope.define(x.value)
        return x

    def expand_to(self, x: Var, like: Var) -> Var:
        """`x` broadcast to the shape of `like`."""
        if x.value is like.value or same_shape(x.value, like.value):
            return x
        return self.fit_type(self.Expand(x, self.shape(like)), like)

    def unreduce(self, x: Var, data: Var, axes: Var | None, keepdims: int) -> Var:
        """`x`, of the shape of a reduction of `data`, broadcast back over the reduced axes (None: all of them)."""
        if not keepdims and axes is not None and x.rank != 0:
            x = self.Unsqueeze(x, axes)
        return self.expand_to(x, data)

    def fit(self, x: Var, like: Var) -> Var:
        """`x` summed or broadcast to the shape of `like`, whichever it needs."""
        if same_shape(x.value, like.value):
            return x
        if absorbs(x.shape, like.shape):
            return self.sum_to(x, like)
        return self.expand_to(x, like)

    # --- values

    def like(self, number: Any, x: Var) -> Var:
        """A scalar constant of the element type of `x`."""
        return self.const(number, x.dtype)

    def zeros_like(self, x: Var) -> Var:
        """Zeros of the shape and element type of `x`."""
        return self.full_like(x, 0)

    def ones_like(self, x: Var) -> Var:
        """Ones of the shape and element type of `x`."""
        return self.full_like(x, 1)

    def full_like(self, x: Var, number: Any) -> Var:
        """A tensor of the shape and element type of `x` that holds one number."""
        c = self.like(number, x)
        return c if x.shape == () else self.expand_to(c, x)

    def where(self, condition: Var, x: Any, y: Any) -> Var:
        """Where, with numbers in the element type of the other branch."""
        from onnxad_ir.builder import Var

        branch = x if isinstance(x, Var) else y
        if not isinstance(x, Var):
            x = self.like(x, branch)
        if not isinstance(y, Var):
            y = self.like(y, branch)
        return self.Where(condition, x, y)

    def cast_like(self, x: Var, like: Var) -> Var:
        """`x` in the element type of `like`."""
        return self.Cast(x, to=int(like.dtype))

    def swap(self, x: Var) -> Var:
        """`x` with its last two axes exchanged; its rank must be known unless it is 2 or more at run time.

        For an unknown rank the transpose is written as an Einsum over an ellipsis.
        """
        r = x.rank
        if r is None:
            return self.Einsum(x, equation="...ij->...ji")
        perm = [*range(r - 2), r - 1, r - 2]
        return self.Transpose(x, perm=perm)

    def exchange(self, x: Var, middle: int, end: int | None = None) -> Var:
        """`x` with the axes before `middle` and those from there to `end` exchanged, for any rank.

        Axes count from the end where they are negative; None is the end. Where the rank is not known an Einsum over an
        ellipsis would do as well, but ONNX Runtime ends the process for empty operands that it has to transpose for one
        (a division by zero).
        """
        if x.rank is not None:
            axes = list(range(x.rank))
            first, second, rest = axes[:middle], axes[middle:end], axes[x.rank if end is None else end :]
            return self.Transpose(x, perm=[*second, *first, *rest])
        parts = [self.Shape(x, end=middle), self.Shape(x, start=middle, end=end)]
        rest = [] if end is None else [self.Shape(x, start=end)]
        sizes = [self.ReduceProd(s, keepdims=1) for s in (*parts, *rest)]
        turned = self.Reshape(x, self.Concat(*sizes, axis=0), allowzero=1)
        turned = self.Transpose(turned, perm=[1, 0, 2][: len(sizes)])
        return self.Reshape(turned, self.Concat(*reversed(parts), *rest, axis=0), allowzero=1)

    def iota(self, n: Var, dtype: DataType = DataType.INT64) -> Var:
        """0, 1, ..., n-1 for an `n` of shape [1] or []."""
        r: Var = self.Range(self.const(0), self.scalar(n), self.const(1))
        return r if dtype == DataType.INT64 else self.Cast(r, to=int(dtype))

    def scalar(self, x: Var) -> Var:
        """A tensor of one element as a scalar."""
        if x.rank == 0:
            return x
        return self.Squeeze(x) if x.rank == 1 else self.Reshape(x, self.const(np.zeros(0, np.int64)))

    def add_n(self, terms: Sequence[Var | None]) -> Var | None:
        """The sum of terms of one shape; None (zero) where there is none."""
        present = [t for t in terms if t is not None]
        if len(present) > 1:
            present = join(self, present)  # type: ignore[arg-type]
        if not present:
            return None
        if len(present) <= 2:
            return present[0] if len(present) == 1 else self.Add(*present)
        return self.Sum(*present)

    def known(self, x: Var | None) -> tuple[Dim, ...] | None:
        """What an integer tensor holds, as extents, where it is known."""
        return None if x is None else known(x.value)
