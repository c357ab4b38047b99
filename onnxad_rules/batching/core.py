"""The vocabulary of batching rules.

A value that is batched has a twin with one more axis in front: an operand X of shape s has the twin b.X of shape
(n, *s), and an operand that is the same for every entry has none. A rule gives the twins of a node's results:

    @batched("Transpose")
    def _(op, n, b):
        return op.Transpose(b.data, perm=[0, *(p + 1 for p in n.perm)])

`n` is the view of the node as it was: the types of all operands, and the operands themselves where they have no twin.
`b` has the twins. An answer of NotImplemented leaves the node to its composition, or to a Scan over the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Attr, Node, Value
from onnxad_ir.printer import print_type
from onnxad_ir.types import QUANTIZED, DataType, Dim, SequenceType, TensorType
from onnxad_rules.node import NodeView
from onnxad_rules.regions import seen
from onnxad_rules.ruleset import UnsupportedOperator

#: (op, n, b) -> twins of the results by position; a result may be `Same`, all of them NotImplemented.
BatchFn: TypeAlias = Callable[[Builder, NodeView, "Batch"], Any]


@dataclass(frozen=True)
class BatchRule:
    """How an operator is batched. `any_rank`: also where the rank of a batched operand is not known."""

    fn: BatchFn
    any_rank: bool = False


Table: TypeAlias = dict[tuple[str, str], BatchRule]


@dataclass(frozen=True)
class Same:
    """A result that is the same for every entry, and gets no twin."""

    var: Var


#: What the innermost `batch_rules()` collects.
_OPEN: ContextVar[Table | None] = ContextVar("batch_rules", default=None)


@contextmanager
def batch_rules() -> Iterator[Table]:
    """Collects the batching rules that are declared inside the block."""
    table: Table = {}
    outer = _OPEN.set(table)
    try:
        yield table
    finally:
        _OPEN.reset(outer)


def batched(*ops: str, domain: str = "", any_rank: bool = False) -> Callable[[BatchFn], BatchFn]:
    """A decorator: the batching rule of operators.

    any_rank: the rule does not need to know ranks; without it, a node whose batched operands have unknown ranks is left
    to a Scan.
    """

    def declare(fn: BatchFn) -> BatchFn:
        table = _OPEN.get()
        if table is None:
            raise TypeError("a batching rule is declared outside of `with batch_rules() as rules:`")
        for op in ops:
            if (domain, op) in table:
                raise TypeError(f"operator {op} has a batching rule already")
            table[domain, op] = BatchRule(fn, any_rank)
        return fn

    return declare


class Batch:
    """The twins of a node's operands: `b.X`, or None where X is the same for every entry.

    A variadic operand is a list of such. `size`: the number of entries, a tensor of shape [1]; `dim`: the same as an
    extent.
    """

    def __init__(self, op: Builder, n: NodeView, twins: dict[Value, Value], dim: Dim):
        self.op = op
        self.n = n
        self.dim = dim
        self._twins = twins

    @property
    def size(self) -> Var:
        """The number of entries, a tensor of shape [1]."""
        return self.op.dim(self.dim)

    @property
    def count(self) -> int | Var:
        """The same, as a number where it is one."""
        return self.dim if isinstance(self.dim, int) else self.size

    def __getattr__(self, name: str) -> Any:
        f, node = self.n.facts, self.n.node
        i = f.inputs.get(name)
        if i is None:
            raise AttributeError(f"{node.op_type} has no operand {name!r}")
        if name == f.variadic_input:
            return [self.twin(v) for v in node.inputs[i:]]
        return self.twin(node.inputs[i]) if i < len(node.inputs) else None

    def twin(self, v: Value | Var | None) -> Var | None:
        """The twin of a value, None where it has none."""
        v = v.value if isinstance(v, Var) else v
        found = None if v is None else self._twins.get(v)
        return None if found is None else self.op.var(found)

    def only(self, *names: str) -> bool:
        """True where no other operand than these has a twin."""
        f, inputs = self.n.facts, self.n.node.inputs
        allowed = {f.inputs[k] for k in names}
        first_variadic = f.inputs[f.variadic_input] if f.variadic_input in names else len(inputs)
        return not any(
            v is not None and v in self._twins and i not in allowed and i < first_variadic for i, v in enumerate(inputs)
        )

    # --- twins as other operators need them

    def full(self, x: Var) -> Var:
        """The twin of an operand; one that is the same for every entry is repeated."""
        twin = self.twin(x)
        return spread(self.op, x, self.dim) if twin is None else twin

    def aligned(self, x: Var, rank: int) -> Var:
        """An operand as it broadcasts against twins of values of a rank: its own axes last.

        What is the same for every entry stays as it is.
        """
        twin = self.twin(x)
        if twin is None:
            return x
        own = x.rank
        assert own is not None
        return twin if own >= rank else self.op.Unsqueeze(twin, list(range(1, 1 + rank - own)))

    def together(self, *operands: Var | None, rank: int | None = None) -> list[Var | None]:
        """Operands as they broadcast against each other, in twins of values of a rank (None: the largest there is)."""
        present = [x for x in operands if x is not None]
        ranks = [x.rank for x in present]
        if rank is None and None not in ranks:
            rank = max((r for r in ranks if r is not None), default=0)
        if rank is not None and all(x.rank is not None or self.twin(x) is None for x in present):
            return [None if x is None else self.aligned(x, rank) for x in operands]
        return [None if x is None else self._aligned_at_run_time(x, present, rank) for x in operands]

    def _aligned_at_run_time(self, x: Var, others: Sequence[Var], rank: int | None) -> Var:
        op, twin = self.op, self.twin(x)
        if twin is None:
            return x
        if rank is None and all(y.rank == 0 for y in others if y.value is not x.value):
            return twin
        if rank is not None and x.rank is not None:
            return self.aligned(x, rank)
        widest = op.const([rank]) if rank is not None else op.Max(*(self.rank(y) for y in others))
        ones = op.Expand(op.const([1]), widest - self.rank(x))
        return op.Reshape(twin, op.Concat(self.size, ones, self.shape(x), axis=0), allowzero=1)

    def rank(self, x: Var) -> Var:
        """The rank of an operand as a tensor of shape [1]."""
        twin = self.twin(x)
        return self.op.rank(x) if x.rank is not None or twin is None else self.op.rank(twin) - 1

    def shape(self, x: Var) -> Var:
        """The shape of an operand, which is the same for every entry."""
        twin = self.twin(x)
        if twin is None:
            return self.op.shape(x)
        if x.shape is not None and all(isinstance(d, int) for d in x.shape):
            return self.op.const(np.asarray(x.shape, np.int64))
        same = None if x.shape is None else self.op.scope.like(x.shape)
        return self.op.Shape(twin, start=1) if same is None else self.op.Shape(same)

    def again(self, *operands: Var | None, outputs: int | None = None, **attributes: Attr) -> Any:
        """The node's own operator on other operands, with other attributes where they are given; None drops one."""
        node = self.n.node
        merged = {k: a for k, a in {**node.attributes, **attributes}.items() if a is not None}
        merged = {k: tuple(a) if isinstance(a, list) else a for k, a in merged.items()}
        inputs = [None if v is None else v.value for v in operands]
        results = self.op.emit(node.op_type, inputs, merged, outputs or len(node.outputs), node.domain)
        return self.op.var(results[0]) if len(results) == 1 else tuple(map(self.op.var, results))

    def fold(self, x: Var) -> Var:
        """The twin of an operand of shape [B, ...] as [n * B, ...]: the entries become part of the batch."""
        op, twin = self.op, self.full(x)
        tail = None if x.shape is None else list(x.shape[1:])
        if tail is not None and all(isinstance(d, int) and d > 0 for d in tail):
            return op.Reshape(twin, [-1, *tail])
        joint = self.size * self._batch(x)
        rest = [] if tail == [] else [op.Shape(twin, start=2) if tail is None else op.shape_of(tail)]
        return op.Reshape(twin, op.Concat(joint, *rest, axis=0), allowzero=1)

    def unfold(self, y: Var, x: Var) -> Var:
        """[n * B, ...] as [n, B, ...], where B is the first extent of an operand `x`."""
        op = self.op
        batch = None if x.shape is None else x.shape[0]
        tail = None if y.shape is None else list(y.shape[1:])
        if tail is not None and all(isinstance(d, int) and d > 0 for d in (batch, *tail)):
            return op.Reshape(y, [-1, batch, *tail])
        rest = [] if tail == [] else [op.Shape(y, start=1)]
        return op.Reshape(y, op.Concat(self.size, self._batch(x), *rest, axis=0), allowzero=1)

    def _batch(self, x: Var) -> Var:
        """The first extent of an operand."""
        if x.shape is not None and seen(self.op, x.shape[0]):
            return self.op.dim(x.shape[0])
        twin = self.twin(x)
        return self.op.Shape(x, start=0, end=1) if twin is None else self.op.Shape(twin, start=1, end=2)


#: Element types that Expand does not take; single precision holds each of their numbers.
_NARROW = QUANTIZED - {DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16}


def spread(op: Builder, x: Var, dim: Dim) -> Var:
    """`x` repeated for every entry: [n, *shape]. What a sequence holds is repeated, element by element."""
    if isinstance(x.type, SequenceType):
        return _spread_elements(op, x, dim)
    if not isinstance(x.type, TensorType):
        raise UnsupportedOperator(f"a value of type {print_type(x.type)} cannot be repeated along a new axis")
    shape = op.Concat(op.dim(dim), op.shape(x), axis=0)
    if x.dtype in _NARROW:  # which no operator but a few takes
        return op.Cast(op.Expand(op.Cast(x, to=int(DataType.FLOAT)), shape), to=int(x.dtype))
    return op.Expand(x, shape)


def _spread_elements(op: Builder, x: Var, dim: Dim) -> Var:
    elem = x.type.elem if isinstance(x.type, SequenceType) else None
    inner = op.region("element")
    v = inner.graph.add_input("", elem)
    inner.scope.define(v)
    inner.graph.set_outputs([spread(inner, inner.var(v), dim).value])
    node = Node("SequenceMap", [x.value], {"body": inner.graph}, ("",), name=op.label)
    return op.var(op.place(node)[0])


def shift(axis: int) -> int:
    """An axis of a value as the axis of its twin; what counts from the end stays."""
    return axis + 1 if axis >= 0 else axis


def shift_all(axes: Sequence[int]) -> list[int]:
    """Axes of a value as axes of its twin."""
    return [shift(a) for a in axes]


def shift_axes(op: Builder, axes: Var) -> Var:
    """The same for axes in a tensor."""
    known = op.known(axes)
    if known is not None and all(isinstance(a, int) for a in known):
        shifted = np.asarray(shift_all([a for a in known if isinstance(a, int)]), np.int64)
        return op.const(shifted.reshape(()) if axes.rank == 0 else shifted, axes.dtype)
    return axes + op.Cast(op.GreaterOrEqual(axes, op.like(0, axes)), to=int(axes.dtype))
