"""What the fast adjoints of RNN, GRU and LSTM have in common: products for all steps, and the Scan back over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_ir.types import Shape, TensorType
from onnxad_rules.recurrent_cells import Direction


@dataclass
class Received:
    """What the operands of one direction receive; None where nobody asks or nothing arrives."""

    x: Var | None
    w: Var | None
    r: Var | None
    b: Var | None
    states: list[Var]


@dataclass(frozen=True)
class Tape:
    """What an LSTM keeps of all steps, each [T, B, H]: its gates, and i g, f c' and tanh(c)."""

    i: Var
    o: Var
    f: Var
    g: Var
    fresh: Var
    kept: Var
    squashed: Var


class Sweep:
    """One direction on its way back: `x` is its input for all steps, [T, B, I], and `y` its result, [T, B, H].

    tape: what the forward run of an LSTM kept for the way back, where it is not computed again.
    """

    def __init__(self, op: Builder, d: Direction, x: Var, y: Var, tape: Tape | None = None):
        self.op, self.d, self.x, self.y, self.tape = op, d, x, y, tape
        self.previous = self._shift(y, d.states[0])

    def _shift(self, steps: Var, first: Var) -> Var:
        """What every step finds: the initial value, then the values of the steps before."""
        op, row = self.op, self.op.Unsqueeze(first, [0])
        if self.d.backwards:
            return op.Concat(op.Slice(steps, [1], [2**62], [0]), row, axis=0)
        return op.Concat(row, op.Slice(steps, [0], [-1], [0]), axis=0)

    def rows(self, v: Var) -> Var:
        """[T, B, N] as [T * B, N]."""
        return rows(self.op, v)

    def steps(self, v: Var) -> Var:
        """[T * B, N] as [T, B, N]."""
        return steps(self.op, v, self.x)

    def affine(self, x: Var, w: Var, b: Var | None) -> Var:
        """x w^T + b for rows of x."""
        return self.op.Gemm(x, w, b, transB=1)

    def weight(self, ct: Var, x: Var) -> Var:
        """The gradient of w in x w^T."""
        return self.op.Gemm(ct, x, transA=1)

    def received(
        self,
        want: Sequence[bool],
        gates: Sequence[Var],
        inner: Sequence[Var],
        products: Sequence[tuple[Var, Var]],
        states: list[Var],
    ) -> Received:
        """From the cotangents of the gates: `gates` by way of the input, `inner` by way of the hidden state.

        Each is given in blocks of columns, as rows of all steps. `products`: (cotangent, rows) of the products with R,
        block after block of its rows.
        """
        op, d = self.op, self.d
        ct_x = self.steps(back(op, gates, blocks(op, d.w, len(gates)))) if want[0] else None
        ct_w = join(op, [self.weight(ct, self.rows(self.x)) for ct in gates]) if want[1] else None
        ct_r = join(op, [self.weight(ct, rows) for ct, rows in products]) if want[2] else None
        ct_b = None
        if want[3]:
            wb = [op.ReduceSum(ct, [0], keepdims=0) for ct in gates]
            same = all(i.value is g.value for i, g in zip(inner, gates, strict=True))
            rb = wb if same else [op.ReduceSum(ct, [0], keepdims=0) for ct in inner]
            ct_b = join(op, [*wb, *rb])
        return Received(ct_x, ct_w, ct_r, ct_b, states)


def blocks(op: Builder, v: Var, count: int) -> list[Var]:
    """A weight or bias in so many blocks of rows."""
    return [v] if count == 1 else list(op.Split(v, num_outputs=count, axis=0, outputs=count))


def join(op: Builder, parts: Sequence[Var]) -> Var:
    """The inverse of `blocks`."""
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)


def back(op: Builder, cts: Sequence[Var], weights: Sequence[Var]) -> Var:
    """What the rows of x receive from the cotangents of products x w^T, given in blocks."""
    total = op.MatMul(cts[0], weights[0])
    for ct, w in zip(cts[1:], weights[1:], strict=True):
        total = op.Gemm(ct, w, total)
    return total


def rows(op: Builder, v: Var) -> Var:
    """[T, B, N] as [T * B, N]."""
    last = None if v.shape is None else v.shape[-1]
    if isinstance(last, int) and last > 0:
        return op.Reshape(v, [-1, last])
    return op.Flatten(v, axis=2)


def steps(op: Builder, v: Var, like: Var) -> Var:
    """[T * B, N] as [T, B, N], for T and B of `like`."""
    last = None if v.shape is None else v.shape[-1]
    if isinstance(last, int) and like.shape is not None:
        t, b = like.shape[0], like.shape[1]
        if sum(not isinstance(e, int) for e in (t, b)) <= 1 and 0 not in (t, b, last):
            return op.Reshape(v, [e if isinstance(e, int) else -1 for e in (t, b, last)])
    shape = op.Concat(op.extent(like, 0), op.extent(like, 1), op.extent(v, 1), axis=0)
    return op.Reshape(v, shape, allowzero=1)


Body: TypeAlias = Callable[[Builder, list[Var], list[Var]], tuple[list[Var], list[Var]]]


def scan(
    op: Builder, body: Body, states: Sequence[Var], slices: Sequence[Var], backwards: bool
) -> tuple[list[Var], list[Var]]:
    """A Scan over [T, B, N] tensors; `body` (builder, states, slices) gives the next states and what to stack."""
    inner = op.region("sweep")
    ins = [inner.graph.add_input("", v.type) for v in states]
    ins += [inner.graph.add_input("", TensorType(v.dtype, _tail(v))) for v in slices]
    inner.scope.define(*ins)
    args = [inner.var(v) for v in ins]
    after, stacks = body(inner, args[: len(states)], args[len(states) :])
    inner.graph.set_outputs([v.value for v in (*after, *stacks)])
    attributes: dict[str, object] = {"body": inner.graph, "num_scan_inputs": len(slices)}
    if backwards:
        attributes["scan_input_directions"] = (1,) * len(slices)
        attributes["scan_output_directions"] = (1,) * len(stacks)
    length = slices[0].shape[0] if slices[0].shape is not None else op.model.fresh_dim()
    types = [v.type for v in states]
    types += [TensorType(v.dtype, None if v.shape is None else (length, *v.shape)) for v in stacks]
    operands = [v.value for v in (*states, *slices)]
    results = op.place_typed(Node("Scan", operands, attributes, ("",) * len(types), name=op.label), types)
    found = [op.var(v) for v in results]
    return found[: len(states)], found[len(states) :]


def _tail(v: Var) -> Shape | None:
    return None if v.shape is None else v.shape[1:]
