"""All directions at once: what a derivative for one direction becomes when its seed takes every unit direction.

The unit directions of a value of N elements are the rows of an identity. As long as a seed only meets operators that
work place by place it stays a diagonal, of which the elements alone are computed; the first operator that mixes places
gets the N rows (`onnxad_rules.batching`), and a product with a matrix scales its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Model, Node, Value
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.dims import TOO_LONG, product
from onnxad_ir.printer import print_type
from onnxad_ir.types import Dim, TensorType
from onnxad_passes.forward import interleave
from onnxad_passes.seeds import add_results, named_values
from onnxad_passes.tidy import tidy
from onnxad_rules.batching import RULES
from onnxad_rules.batching.sweep import Sweep
from onnxad_rules.ruleset import Ruleset

#: An identity of more elements than this is made at run time.
_CONSTANT = 4096


@dataclass(frozen=True)
class Single:
    """A derivative for one direction: of the shape of the value called `of`; None is zero. name: of the dense one."""

    name: str
    of: str
    derivative: Var | None


def check_tensors(values: Sequence[Value]) -> None:
    """Raise UsageError for a value that is no tensor: it has no unit directions."""
    for v in values:
        if not isinstance(v.type, TensorType):
            raise UsageError(f"{v.name!r} is no tensor ({print_type(v.type)}): a dense derivative has no axes for it")


def start(model: Model) -> Builder:
    """A builder for a derivative in one direction of the main graph."""
    op = Builder(model, model.graph)
    op.scope.define_all(model.graph)
    return op


def tangents_along(model: Model, x: Value, sinks: Sequence[Value], rules: Ruleset) -> tuple[Value, dict[Value, Var]]:
    """A seed that stands for a direction of a value, and the tangents along it, interleaved with the main graph."""
    op = Builder(model, model.graph)
    op.scope.define(*model.graph.inputs)
    seed = Value("", x.type, model.graph)
    return seed, interleave(op, {x: op.var(seed)}, sinks, rules)


def add_dense(model: Model, seed: Value, along: str, singles: Sequence[Single], leading: bool, rules: Ruleset) -> None:
    """Outputs by name: what derivatives for one direction are for all unit directions of the value called `along`.

    seed: stands for the direction in the main graph, which is rewritten. The axes of `along` are the `leading` ones of
    each result, or its last.
    """
    graph = model.graph
    count = len(graph.outputs)
    named = named_values(graph)
    add_results(start(model), graph, [(s.name, named[s.of], s.derivative) for s in singles])
    tidy(model)
    ends, named = graph.outputs[count:], named_values(graph)
    for v in ends:
        v.name = ""
    op = Builder(model, graph)
    units = _Units(op, seed, named[along], rules)
    op.scope.define(*graph.inputs)
    nodes = graph.nodes[:]
    graph.nodes.clear()
    for node in nodes:
        units.node(node)
    graph.set_outputs(graph.outputs[:count])  # not before: what nobody reads is not batched
    op.label = "result"
    results, named = [], named_values(graph)
    for v, single in zip(ends, singles, strict=True):
        x, y = named[along], named[single.of]
        first, second = (x, y) if leading else (y, x)
        kind = op.var(second).dtype
        shape = None if first.shape is None or second.shape is None else (*first.shape, *second.shape)
        dense = op.Cast(units.dense(v, y, leading), to=int(kind))
        results.append((single.name, Value("", TensorType(kind, shape)), dense))
    add_results(op, graph, results)
    for v, (_, like, _) in zip(graph.outputs[count:], results, strict=True):
        v.type = like.type
    tidy(model)


def order_outputs(graph: Graph, count: int, names: Sequence[str]) -> None:
    """Put those outputs behind the first `count` in the order of their names; others are dropped."""
    outputs = {v.name: v for v in graph.outputs[count:]}
    graph.set_outputs([*graph.outputs[:count], *(outputs[name] for name in names)])


class _Units:
    """The unit directions of a value, and all that depends on them."""

    def __init__(self, op: Builder, seed: Value, along: Value, rules: Ruleset):
        self.op = op
        self.along = along
        size = None if along.shape is None else product(along.shape)
        #: How many there are.
        self.size: Dim = op.model.fresh_dim() if size is None or size == TOO_LONG else size
        self.sweep = Sweep(self.size, RULES, rules)
        #: The diagonals of values that are diagonal: of the identity, one.
        self.diagonals: dict[Value, Var] = {seed: op.like(1, op.var(seed))}
        self._mask: Var | None = None

    def node(self, node: Node) -> None:
        """Write a node as it is or, where it depends on the directions, for all of them."""
        op, diagonals = self.op, self.diagonals
        dependent = [v in diagonals or v in self.sweep.twins for v in node.inputs]
        op.label = node.name
        if any(dependent) and self._stays_diagonal(node, dependent):
            inputs = [diagonals[v].value if v in diagonals else v for v in node.inputs if v is not None]
            diagonals[node.outputs[0]] = op.var(op.emit(node.op_type, inputs, node.attributes)[0])
        elif any(dependent) and (rows := self._rows(node, dependent)) is not None:
            self._set(node.outputs[0], rows)
        else:
            for v in op.captures.operands(node):
                self.twin(v)
            self.sweep.nodes(op, [node])
            return
        node.detach()

    def twin(self, v: Value) -> Var | None:
        """A value for every unit direction, [N, *shape]; None where it does not depend on them, so that it is zero."""
        if v in self.diagonals and v not in self.sweep.twins:
            self._set(v, self._spread(self.diagonals[v]))
        found = self.sweep.twins.get(v)
        return None if found is None else self.op.var(found)

    def _set(self, v: Value, twin: Var) -> None:
        if twin.value.producer is not None:
            twin.value.type = self.sweep.twin_type(v.type)
            self.op.scope.define(twin.value)
        self.sweep.twins[v] = twin.value

    # --- diagonals

    def _stays_diagonal(self, node: Node, dependent: Sequence[bool]) -> bool:
        """True for an operator that works place by place, and is linear, on diagonals alone."""
        shape = self.along.shape
        if node.domain or node.regions or shape is None or node.outputs[0].shape != shape:
            return False
        if any(d and v not in self.diagonals for v, d in zip(node.inputs, dependent, strict=True)):
            return False
        if node.op_type == "Mul":
            return sum(dependent) == 1
        if node.op_type == "Div":
            return not dependent[1]
        if node.op_type == "Where":
            branches = zip(node.inputs[1:], dependent[1:], strict=True)
            return not dependent[0] and all(d or self._is_zero(v) for v, d in branches)
        return node.op_type in ("Neg", "Add", "Sub", "Sum", "Identity") and all(dependent)

    def _is_zero(self, v: Value | None) -> bool:
        return v is not None and self.op.number(v, 0) is not None

    def _rows(self, node: Node, dependent: Sequence[bool]) -> Var | None:
        """A diagonal times a matrix, for vectors and single rows: the rows of the matrix, scaled."""
        op, shape = self.op, self.along.shape
        if node.op_type not in ("MatMul", "Gemm") or node.domain or sum(dependent) != 1 or len(node.inputs) != 2:
            return None
        at = dependent.index(True)
        vector, matrix = node.inputs[at], node.inputs[1 - at]
        if vector is None or vector not in self.diagonals or shape is None or matrix is None or matrix.rank != 2:
            return None
        diagonal = self.diagonals[vector]
        rows = op.var(matrix)
        if node.op_type == "MatMul" and len(shape) == 1:
            rows = rows if at == 0 else op.Transpose(rows, perm=[1, 0])
        elif at == 0 and len(shape) == 2 and shape[0] == 1 and node.attributes.keys() <= {"transB"}:
            rows = op.Transpose(rows, perm=[1, 0]) if node.attributes.get("transB") else rows
        else:
            return None
        column = op.Reshape(diagonal, [-1, 1]) if diagonal.rank else diagonal
        scaled = op.Mul(column, rows)
        return scaled if len(shape) == 1 else op.Unsqueeze(scaled, [1])

    def _spread(self, diagonal: Var) -> Var:
        """A diagonal as rows, [N, *shape]."""
        op, n = self.op, self.size
        number = op.number(diagonal) if diagonal.rank == 0 else None
        t = self.along.type
        if number == 1 and isinstance(t, TensorType) and t.is_static and isinstance(n, int) and n * n <= _CONSTANT:
            return op.const(np.eye(n).reshape(n, *(t.shape or ())), diagonal.dtype)
        mask = self.mask()
        return op.Cast(mask, to=int(diagonal.dtype)) if number == 1 else op.where(mask, diagonal, 0)

    def mask(self) -> Var:
        """True where an element is the one whose unit direction the row is, [N, *shape]."""
        if self._mask is None:
            op, shape, n = self.op, self.along.shape, self.size
            op.label = "seed"
            if isinstance(n, int):
                places = op.const(np.arange(n))
            else:
                known = op.scope.dim(n) is not None
                count = op.dim(n) if known else op.ReduceProd(op.shape(op.var(self.along)), keepdims=1)
                places = op.shaped(op.iota(count), (n,))
            square = op.Equal(op.Unsqueeze(places, [1]), places)
            mask = square
            if shape is None or len(shape) != 1:
                mask = op.Reshape(square, op.Concat(op.dim(n), op.shape(op.var(self.along)), axis=0), allowzero=1)
                mask = op.shaped(mask, None if shape is None else (n, *shape))
            self._mask = mask
        return self._mask

    # --- results

    def dense(self, v: Value, like: Value, leading: bool) -> Var:
        """What a value, which has the shape of `like`, is in all directions, of the shapes behind each other."""
        op = self.op
        along, of = op.var(self.along), op.var(like)
        diagonal = v in self.diagonals
        y, shape = self.twin(v), _joined(op, [along, of] if leading else [of, along])
        if y is None:
            return op.Expand(op.like(0, op.var(v)), shape)
        if not leading and not diagonal:
            if of.rank is None:
                matrix = op.Concat(op.dim(self.size), op.ReduceProd(op.Shape(of), keepdims=1), axis=0)
                y = op.Reshape(y, matrix, allowzero=1)
            y = op.Transpose(y, perm=[*range(1, y.rank or 2), 0])
        return op.Reshape(y, shape, allowzero=1)


def _joined(op: Builder, values: Sequence[Var]) -> Var:
    if all(x.shape is not None for x in values):
        return op.shape_of([d for x in values for d in x.shape or ()])
    return op.Concat(*map(op.shape, values), axis=0)
