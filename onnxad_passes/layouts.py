"""Layouts: how several directions are handed over, and the axis they have inside.

A derivative is written for one direction. A layout gives everything that depends on a seed one more axis in front
(`onnxad_rules.batching`), which is `leading`; the others pack seeds and results at the boundary:

    leading   [n, *shape]
    onnx      [*shape, n]
    casadi    a value of r rows and c columns is one matrix [r, n * c], direction k in columns k * c to (k + 1) * c - 1;
              a scalar is a row [1, n], a vector a matrix [r, n], a value of rank 3 and more a matrix [size, n]

The primal has no such axis and stays as it is. Two orders are the rule applied twice.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Model, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.dims import Expr, mul, product, terms
from onnxad_ir.printer import print_type
from onnxad_ir.types import Dim, Shape, TensorType, Type, is_anonymous
from onnxad_passes.extents import give_names, names_of_extents
from onnxad_rules.batching import RULES
from onnxad_rules.batching.core import spread
from onnxad_rules.batching.sweep import Sweep
from onnxad_rules.ruleset import Ruleset

SINGLE = "single"


def check_layout(layout: str, dim: str | None = None) -> None:
    """Raise UsageError for a layout that does not exist, or a name for an axis that it does not have."""
    if layout != SINGLE and layout not in LAYOUTS:
        raise UsageError(f"there is no layout {layout!r}; the layouts are {', '.join((SINGLE, *LAYOUTS))}")
    if dim is not None and layout == SINGLE:
        raise UsageError(f"dim={dim!r} names the axis of several directions, which layout {SINGLE!r} does not have")
    if dim is not None:
        check_name(dim)


def check_name(dim: str) -> None:
    """Raise UsageError for what is no name for an axis."""
    if not isinstance(dim, str) or not dim or is_anonymous(dim) or dim[0].isdigit():
        raise UsageError(f"an axis cannot be called {dim!r}: dim is a name, the extent is known when the model runs")


def extents(graph: Graph) -> set[Dim]:
    """Every extent of a value of a graph (not of its regions)."""
    values = [*graph.inputs, *(v for n in graph.nodes for v in n.outputs)]
    return {d for v in values if isinstance(v.type, TensorType) for d in v.type.shape or ()}


def check_free(dim: str, taken: Collection[Dim]) -> None:
    """Raise UsageError for the name of a new axis that the model has already."""
    if dim in taken:
        raise UsageError(f"the model has a dimension called {dim!r} already; choose another name with dim=")


def add_directions(
    model: Model,
    layout: str,
    dim: str,
    fixed: bool,
    seeds: int,
    results: Sequence[Type | None],
    rules: Ruleset,
) -> None:
    """Rewrite a model, whose last inputs are `seeds` seeds and whose last outputs results of these types, for several
    directions.

    dim: the name of their axis; where the model has such an axis already, this is an error or, unless it is `fixed`, it
    is numbered. A result that depends on no seed is zero, and has the axis all the same. Raises UsageError for a value
    that cannot be packed (no tensor; of unknown rank in layout casadi).
    """
    graph, taken = model.graph, {*extents(model.graph), *names_of_extents(model)}
    if fixed:
        check_free(dim, taken)
    else:
        dim = _free(dim, taken)
    op = Builder(model, graph)
    form, sweep = LAYOUTS[layout](op, dim, taken), Sweep(dim, RULES, rules)
    form.names |= {d: name for name, d in names_of_extents(model).items()}
    ends = graph.outputs[len(graph.outputs) - len(results) :]
    packed = [form.packed(v.name, t) for v, t in zip(ends, results, strict=True)]
    waiting: dict[Value, Var] = {}
    for i, v in enumerate(graph.inputs[-seeds:], len(graph.inputs) - seeds):
        graph.inputs[i] = Value(v.name, form.packed(v.name, v.type), graph, i)
        waiting[v] = op.var(graph.inputs[i])
    form.seeds = [(x, v.shape) for v, x in waiting.items()]
    op.scope.define(*graph.inputs)
    nodes = graph.nodes[:]
    graph.nodes.clear()
    for node in nodes:
        for v in op.captures.operands(node):
            if v in waiting:
                op.label = "seed"
                seed = form.unpack(waiting.pop(v), v.shape)
                sweep.twins[v] = op.shaped(seed, None if v.shape is None else (sweep.dim, *v.shape)).value
        sweep.nodes(op, [node])
    op.label = "result"
    outputs = list(graph.outputs)
    used = set(outputs)
    for i, t in enumerate(results, len(outputs) - len(results)):
        old, shape = outputs[i], t.shape if isinstance(t, TensorType) else None
        twin = sweep.twins.get(old)
        v = (form.zeros(op.var(old), shape) if twin is None else form.pack(op.var(twin), shape)).value
        if v.producer is None or v.name or v in used:
            v = op.place_identity(v, old.name)
        v.name, old.name = old.name, ""
        v.type = packed[i - len(outputs)]
        outputs[i] = v
        used.add(v)
    graph.set_outputs(outputs)
    give_names(model, {name: d for d, name in form.names.items() if not is_anonymous(d)})


def _free(name: str, taken: Collection[Dim]) -> str:
    """The name, numbered where it is taken."""
    numbered = (f"{name}_{k}" if k else name for k in count())
    return next(n for n in numbered if n not in taken)


@dataclass
class _Leading:
    """Layout leading: the axis in front, as it is inside."""

    op: Builder
    dim: str
    taken: set[Dim]
    #: The packed seeds with the shapes of one direction.
    seeds: list[tuple[Var, Shape | None]] = field(default_factory=list)
    #: What extents that are products are called.
    names: dict[Dim, str] = field(default_factory=dict)

    def packed(self, name: str, t: Type | None) -> TensorType:
        """The type of several directions of the value called `name`, which is of type `t`."""
        if not isinstance(t, TensorType):
            raise UsageError(
                f"{name!r} is no tensor ({print_type(t)}), so that directions cannot be packed; use layout={SINGLE!r}"
            )
        return TensorType(t.dtype, self.packed_shape(name, t.shape))

    def packed_shape(self, name: str, shape: Shape | None) -> Shape | None:
        return None if shape is None else (self.dim, *shape)

    def unpack(self, x: Var, shape: Shape | None) -> Var:
        """Packed directions of a value of a shape as [n, *shape]."""
        if shape is None:
            self.show()
        return x

    def pack(self, y: Var, shape: Shape | None) -> Var:
        """The inverse of `unpack`."""
        return y

    def zeros(self, zero: Var, shape: Shape | None) -> Var:
        """Packed directions of a value that is zero."""
        self.show()
        return self.pack(spread(self.op, zero, self.dim), shape)

    def count(self) -> Var:
        """The number of directions, a tensor of shape [1]."""
        return self.read() if self.op.scope.dim(self.dim) is None else self.op.dim(self.dim)

    def read(self) -> Var:
        """The same, read off a seed."""
        return self.op.Shape(self.seeds[0][0], start=0, end=1)

    def show(self) -> None:
        """Have a value whose extent it is, for the builder to read it off."""
        if self.op.scope.dim(self.dim) is None:
            self.op.scope.dims[self.dim] = (self.seeds[0][0].value, 0)


class _Apart(_Leading):
    """A layout that does not have the axis in front."""

    def show(self) -> None:
        if self.op.scope.dim(self.dim) is None:
            self.op.shaped(self.op.iota(self.read()), (self.dim,))


class _Onnx(_Apart):
    """Layout onnx: the axis behind."""

    def packed_shape(self, name: str, shape: Shape | None) -> Shape | None:
        return None if shape is None else (*shape, self.dim)

    def unpack(self, x: Var, shape: Shape | None) -> Var:
        op = self.op
        if shape is not None:
            return op.Transpose(x, perm=[len(shape), *range(len(shape))])
        self.show()
        own = op.Shape(x, start=0, end=-1)
        return self._turned(x, [op.ReduceProd(own, keepdims=1), self.count()], [self.count(), own])

    def pack(self, y: Var, shape: Shape | None) -> Var:
        op = self.op
        if shape is not None:
            return op.Transpose(y, perm=[*range(1, len(shape) + 1), 0])
        own = op.Shape(y, start=1)
        return self._turned(y, [self.count(), op.ReduceProd(own, keepdims=1)], [own, self.count()])

    def read(self) -> Var:
        return self.op.Shape(self.seeds[0][0], start=-1)

    def _turned(self, x: Var, matrix: list[Var], result: list[Var]) -> Var:
        """A value as a matrix, transposed, in another shape; shapes are given in parts."""
        op = self.op
        y = op.Transpose(op.Reshape(x, op.Concat(*matrix, axis=0), allowzero=1), perm=[1, 0])
        return op.Reshape(y, op.Concat(*result, axis=0), allowzero=1)


class _Casadi(_Apart):
    """Layout casadi: matrices side by side."""

    def packed_shape(self, name: str, shape: Shape | None) -> Shape | None:
        if shape is None:
            raise UsageError(
                f"{name!r} has an unknown rank, which layout 'casadi' has to know; use layout='onnx' or 'leading'"
            )
        rows, columns = _matrix(shape)
        if isinstance(rows, Expr) and not is_anonymous(rows):
            self._call(rows, _words(rows))
        return (rows, self._axis(columns, name))

    def _axis(self, columns: Dim, value: str) -> Dim:
        """The extent of n times so many columns, called n, n_x3, n_batch or, where nobody named columns, n_value."""
        axis = mul(self.dim, columns)
        if axis in (0, self.dim):
            return axis
        name = self._call(axis, (self.dim, *((value,) if is_anonymous(axis) else _words(columns))))
        return name if is_anonymous(axis) else axis

    def _call(self, extent: Dim, words: Iterable[str]) -> str:
        """The name of an extent, which is given one, of words, where it has none."""
        if extent not in self.names:
            self.names[extent] = _free("_".join(words), {*self.taken, *self.names.values(), self.dim})
        return self.names[extent]

    def unpack(self, x: Var, shape: Shape | None) -> Var:
        assert shape is not None
        op, (rows, columns) = self.op, _matrix(shape)
        if not shape:
            return op.Squeeze(x, [0])
        if columns != 1:
            if rows == 1:
                return self._reshape(x, [_N, (1,), (columns,)])
            return op.Transpose(self._reshape(x, [(rows,), _N, (columns,)]), perm=[1, 0, 2])
        turned = op.Transpose(x, perm=[1, 0])
        if len(shape) > 2:
            return self._reshape(turned, [_N, *((d,) for d in shape)])
        return turned if len(shape) == 1 else op.Unsqueeze(turned, [2])

    def pack(self, y: Var, shape: Shape | None) -> Var:
        assert shape is not None
        op, (rows, columns) = self.op, _matrix(shape)
        if not shape:
            return op.Unsqueeze(y, [0])
        if columns != 1:
            turned = y if rows == 1 else op.Transpose(y, perm=[1, 0, 2])
            return self._reshape(turned, [(rows,), (None, columns)])
        if len(shape) == 2:
            y = op.Squeeze(y, [2])
        elif len(shape) > 2:
            y = self._reshape(y, [_N, shape])
        return op.Transpose(y, perm=[1, 0])

    def zeros(self, zero: Var, shape: Shape | None) -> Var:
        assert shape is not None
        rows = shape if len(shape) > 2 else _matrix(shape)[:1]
        parts = [self._extent(rows), self._extent((None, _matrix(shape)[1]))]
        return self.op.Expand(self.op.like(0, zero), self.op.Concat(*parts, axis=0))

    def read(self) -> Var:
        columns, x = min(((_matrix(s or ())[1], x) for x, s in self.seeds), key=lambda c: _ease(c[0]))
        if columns == 0:
            raise UsageError(
                "no seed has an element, so that layout 'casadi' cannot tell how many directions there are"
            )
        width: Var = self.op.Shape(x, start=1)
        if columns == 1:
            return width
        each = self._extent((columns,))
        return width / (each if isinstance(columns, int) else self.op.Max(each, self.op.const([1])))

    def _reshape(self, x: Var, axes: Sequence[Sequence[Dim | None]]) -> Var:
        """Reshape to extents that are products; a factor of None is the number of directions."""
        known = [_number(a) for a in axes]
        if known.count(None) == 1 and 0 not in known:
            return self.op.Reshape(x, [-1 if k is None else k for k in known])
        return self.op.Reshape(x, self.op.Concat(*map(self._extent, axes), axis=0), allowzero=1)

    def _extent(self, factors: Sequence[Dim | None]) -> Var:
        """A product of extents as a tensor of shape [1]."""
        numbers = product(d for d in factors if isinstance(d, int))
        out = self.op.const([numbers])
        for d in factors:
            if not isinstance(d, int):
                out = out * (self.count() if d is None else self.op.dim(d))
        return out


_N = (None,)


def _matrix(shape: Shape) -> tuple[Dim, Dim]:
    """How many rows and columns a value has."""
    return (1, 1) if not shape else shape if len(shape) == 2 else (product(shape), 1)


def _number(factors: Sequence[Dim | None]) -> int | None:
    """A product of extents where all are known."""
    numbers = [d for d in factors if isinstance(d, int)]
    return int(product(numbers)) if len(numbers) == len(factors) else None


def _words(d: Dim) -> Iterable[str]:
    """An extent spelled in words: x3, batch, nadj x3; the symbols of a sum one after the other."""
    for atoms, factor in terms(d).items():
        yield from (w for a in atoms for w in re.findall(r"\w+", a))
        if factor != 1:
            yield f"x{factor}".replace("-", "m")


def _ease(columns: Dim) -> int:
    """How hard the number of directions is to tell from the extent of so many columns for each."""
    return 0 if columns == 1 else 3 if columns == 0 else 1 if isinstance(columns, int) else 2


LAYOUTS: dict[str, type[_Leading]] = {"casadi": _Casadi, "onnx": _Onnx, "leading": _Leading}
