"""The fast adjoint of RNN, GRU and LSTM with the standard activations.

The fused operator stays. All gates of all steps are computed again in one batched product, from the hidden states it
returns; what the sweep back needs of them is prepared for all steps at once, so that the Scan holds nothing but the
recurrence of the cotangents: a few elementwise operators and one product. Gradients of weights, and of the input, are
one product each at the end. (Differentiate the equations of `recurrent_cells`; the factors of the cotangents that do
not depend on them are what is prepared.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_ir.types import Shape, TensorType
from onnxad_rules.node import NodeView
from onnxad_rules.recurrent_cells import DEFAULTS, Direction, directions, settle_ranks, take


def standard(n: NodeView) -> bool:
    """True where the fast adjoint applies: default activations, no clip, lengths, peepholes or coupled gates."""
    names = n.node.attributes.get("activations") or ()
    defaults = DEFAULTS[n.node.op_type]
    lstm = n.node.op_type == "LSTM"
    return (
        all(a.lower() == defaults[i % len(defaults)].lower() for i, a in enumerate(names))
        and not n.clip
        and not n.layout
        and n.sequence_lens is None
        and not (lstm and (n.P is not None or n.input_forget))
    )


@dataclass
class Received:
    """What the operands of one direction receive; None where nobody asks or nothing arrives."""

    x: Var | None
    w: Var | None
    r: Var | None
    b: Var | None
    states: list[Var]


def pull_recurrent(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]) -> list[Var | None]:
    """Contributions to X, W, R, B, sequence_lens, initial_h (and initial_c) by position."""
    settle_ranks(op, n)
    want = [*wanted, *[False] * (8 - len(wanted))]
    cts = [*cts, *[None] * (3 - len(cts))]
    parts: list[Received] = []
    for i, d in enumerate(directions(op, n, n.X)):
        ct_y = None if cts[0] is None else take(op, cts[0], i, 1)
        ends = [None if c is None else take(op, c, i, 0) for c in cts[1 : 1 + len(d.states)]]
        parts.append(_Direction(op, d, take(op, n.Y, i, 1)).pull(ct_y, ends, want))
    out: list[Var | None] = [op.add_n([p.x for p in parts])]
    for w, name in zip(want[1:4], "wrb", strict=True):
        out.append(_stack(op, [getattr(p, name) for p in parts]) if w else None)
    out.append(None)
    for k, w in enumerate(want[5:7]):
        out.append(_stack(op, [p.states[k] for p in parts]) if w else None)
    return out[: len(wanted)]


def _stack(op: Builder, parts: Sequence[Var]) -> Var:
    rows = [op.Unsqueeze(v, [0]) for v in parts]
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=0)


class _Direction:
    """One direction: `y` is its result for all steps, [T, B, H]."""

    def __init__(self, op: Builder, d: Direction, y: Var):
        self.op, self.d, self.y = op, d, y
        self.x: Var = d.n.X
        self.previous = self.shift(y, d.states[0])

    # --- all steps at once

    def shift(self, steps: Var, first: Var) -> Var:
        """What every step finds: the initial value, then the values of the steps before."""
        op, row = self.op, self.op.Unsqueeze(first, [0])
        if self.d.backwards:
            return op.Concat(op.Slice(steps, [1], [2**62], [0]), row, axis=0)
        return op.Concat(row, op.Slice(steps, [0], [-1], [0]), axis=0)

    def rows(self, v: Var) -> Var:
        """[T, B, N] as [T * B, N]."""
        last = None if v.shape is None else v.shape[-1]
        if isinstance(last, int) and last > 0:
            return self.op.Reshape(v, [-1, last])
        return self.op.Flatten(v, axis=2)

    def steps(self, v: Var) -> Var:
        """[T * B, N] as [T, B, N]."""
        op, like = self.op, self.x
        last = None if v.shape is None else v.shape[-1]
        if isinstance(last, int) and like.shape is not None:
            t, b = like.shape[0], like.shape[1]
            if sum(not isinstance(e, int) for e in (t, b)) <= 1 and 0 not in (t, b, last):
                return op.Reshape(v, [e if isinstance(e, int) else -1 for e in (t, b, last)])
        shape = op.Concat(op.extent(like, 0), op.extent(like, 1), op.extent(v, 1), axis=0)
        return op.Reshape(v, shape, allowzero=1)

    def affine(self, x: Var, w: Var, b: Var | None) -> Var:
        """x w^T + b for rows of x."""
        return self.op.Gemm(x, w, b, transB=1)

    def weight(self, ct: Var, x: Var) -> Var:
        """The gradient of w in x w^T."""
        return self.op.Gemm(ct, x, transA=1)

    # --- the sweep

    def sweep(
        self,
        body: Callable[[Builder, list[Var], list[Var]], tuple[list[Var], list[Var]]],
        states: Sequence[Var],
        slices: Sequence[Var],
        backwards: bool,
    ) -> tuple[list[Var], list[Var]]:
        """A Scan over [T, B, N] tensors; `body` (builder, states, slices) gives the next states and what to stack."""
        op = self.op
        inner = op.region("sweep")
        ins = [inner.graph.add_input("", v.type) for v in states]
        ins += [inner.graph.add_input("", TensorType(v.dtype, _tail(v))) for v in slices]
        for v in ins:
            inner.scope.define(v)
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

    def pull(self, ct_y: Var | None, ends: Sequence[Var | None], want: Sequence[bool]) -> Received:
        """What the operands receive from the cotangents of Y and of the final states."""
        initial = [e or self.op.zeros_like(s) for e, s in zip(ends, self.d.states, strict=True)]
        kind = {"RNN": self.rnn, "GRU": self.gru, "LSTM": self.lstm}[self.d.n.node.op_type]
        return kind(ct_y, initial, want)

    def received(
        self, want: Sequence[bool], gates: Var, inner: Var, products: Sequence[tuple[Var, Var]], states: list[Var]
    ) -> Received:
        """From the cotangents of the gates: `gates` by way of the input, `inner` by way of the hidden state.

        `products`: (cotangent, rows) of the products with R, block after block of its rows.
        """
        op, d = self.op, self.d
        ct_x = self.steps(op.MatMul(gates, d.w)) if want[0] else None
        ct_w = self.weight(gates, self.rows(self.x)) if want[1] else None
        ct_r = None
        if want[2]:
            blocks = [self.weight(ct, rows) for ct, rows in products]
            ct_r = blocks[0] if len(blocks) == 1 else op.Concat(*blocks, axis=0)
        ct_b = None
        if want[3]:
            wb = op.ReduceSum(gates, [0], keepdims=0)
            rb = wb if inner.value is gates.value else op.ReduceSum(inner, [0], keepdims=0)
            ct_b = op.Concat(wb, rb, axis=0)
        return Received(ct_x, ct_w, ct_r, ct_b, states)

    def rnn(self, ct_y: Var | None, initial: list[Var], want: Sequence[bool]) -> Received:
        """h = tanh(x W^T + h' R^T + b)."""
        op, d = self.op, self.d
        slope = op.Sub(op.like(1, self.y), op.Mul(self.y, self.y))

        def body(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
            dh = states[0] if ct_y is None else b.Add(states[0], slices[1])
            pre = b.Mul(dh, slices[0])
            return [b.MatMul(pre, d.r)], [pre]

        slices = [slope] if ct_y is None else [slope, ct_y]
        ends, (gates,) = self.sweep(body, initial, slices, not d.backwards)
        ct = self.rows(gates)
        return self.received(want, ct, ct, [(ct, self.rows(self.previous))], ends)

    def lstm(self, ct_y: Var | None, initial: list[Var], want: Sequence[bool]) -> Received:
        """i, o, f = sigmoid, g = tanh of x W^T + h' R^T + b; c = f c' + i g; h = o tanh(c).

        The factors of the cotangents are written by way of products that are there: i (1 - i) g = i g - (i g) i, and
        so on.
        """
        op, d = self.op, self.d
        before, y, x = self.rows(self.previous), self.rows(self.y), self.rows(self.x)
        bias = None if d.wb is None or d.rb is None else d.wb + d.rb
        # gate by gate: to split weights costs less than to split what they give for all steps
        ws, rs = _blocks(op, d.w, 4), _blocks(op, d.r, 4)
        bs = [None] * 4 if bias is None else _blocks(op, bias, 4)
        pre = [self.affine(before, r, self.affine(x, w, b)) for w, r, b in zip(ws, rs, bs, strict=True)]
        i, o, f, g = op.Sigmoid(pre[0]), op.Sigmoid(pre[1]), op.Sigmoid(pre[2]), op.Tanh(pre[3])
        fresh = i * g
        forget = self.steps(f)

        def cell(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
            kept = b.Mul(slices[0], states[0])
            return [b.Add(kept, slices[1])], [kept]

        _, (remembered,) = self.sweep(cell, [d.states[1]], [forget, self.steps(fresh)], d.backwards)
        kept = self.rows(remembered)
        squashed = op.Tanh(kept + fresh)
        to_c = self.steps(o - y * squashed)
        factors = self.steps(op.Concat(fresh - fresh * i, y - y * o, kept - kept * f, i - fresh * g, axis=1))

        def body(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
            dh = states[0] if ct_y is None else b.Add(states[0], slices[3])
            dc = b.Add(states[1], b.Mul(dh, slices[0]))
            gates = b.Mul(b.Concat(dc, dh, dc, dc, axis=1), slices[1])
            return [b.MatMul(gates, d.r), b.Mul(dc, slices[2])], [gates]

        slices = [to_c, factors, forget] if ct_y is None else [to_c, factors, forget, ct_y]
        ends, (gates,) = self.sweep(body, initial, slices, not d.backwards)
        ct = self.rows(gates)
        return self.received(want, ct, ct, [(ct, before)], ends)

    def gru(self, ct_y: Var | None, initial: list[Var], want: Sequence[bool]) -> Received:
        """z, r = sigmoid, n = tanh of their parts; h = (1 - z) n + z h'. The reset gate applies before or after R."""
        op, d = self.op, self.d
        before = self.rows(self.previous)
        z_r, r_r, n_r = op.Split(d.r, num_outputs=3, axis=0, outputs=3)
        gate_r = op.Concat(z_r, r_r, axis=0)
        z_w, r_w, n_w = op.Split(d.w, num_outputs=3, axis=0, outputs=3)
        bias: list[Var | None] = [None, None, None]
        if d.wb is not None and d.rb is not None:
            zw, rw, nw = op.Split(d.wb, num_outputs=3, axis=0, outputs=3)
            zr, rr, nr = op.Split(d.rb, num_outputs=3, axis=0, outputs=3)
            bias = [op.Concat(zw + zr, rw + rr, axis=0), nw, nr]
        x = self.rows(self.x)
        gate_pre = self.affine(before, gate_r, self.affine(x, op.Concat(z_w, r_w, axis=0), bias[0]))
        z, r = op.Split(op.Sigmoid(gate_pre), num_outputs=2, axis=1, outputs=2)
        after = bool(d.n.linear_before_reset)
        if after:
            hidden = self.affine(before, n_r, bias[2])
            n = op.Tanh(self.affine(x, n_w, bias[1]) + r * hidden)
        else:
            n_bias = None if bias[1] is None or bias[2] is None else bias[1] + bias[2]
            n = op.Tanh(self.affine(r * before, n_r, self.affine(x, n_w, n_bias)))
        one = op.like(1, n)
        to_n = (one - z) * (one - n * n)
        to_z = (before - n) * (z - z * z)
        reset = r - r * r
        keep = self.steps(z)
        if after:
            factors = self.steps(op.Concat(to_z, to_n * hidden * reset, to_n * r, axis=1))

            def body(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
                dh = states[0] if ct_y is None else b.Add(states[0], slices[2])
                pre = b.Mul(b.Concat(dh, dh, dh, axis=1), slices[1])
                return [b.Add(b.Mul(dh, slices[0]), b.MatMul(pre, d.r))], [b.Identity(dh), pre]

            slices = [keep, factors] if ct_y is None else [keep, factors, ct_y]
            ends, (dh, pre) = self.sweep(body, initial, slices, not d.backwards)
            inner = self.rows(pre)
            ct_z, ct_r, _ = op.Split(inner, num_outputs=3, axis=1, outputs=3)
            gates = op.Concat(ct_z, ct_r, self.rows(dh) * to_n, axis=1)
            return self.received(want, gates, inner, [(inner, before)], ends)

        factors = self.steps(op.Concat(to_z, reset * before, axis=1))

        def late(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
            dh = states[0] if ct_y is None else b.Add(states[0], slices[4])
            dn = b.Mul(dh, slices[2])
            de = b.MatMul(dn, n_r)
            pre = b.Mul(b.Concat(dh, de, axis=1), slices[1])
            back = b.Sum(b.Mul(dh, slices[0]), b.Mul(de, slices[3]), b.MatMul(pre, gate_r))
            return [back], [pre, dn]

        slices = [keep, factors, self.steps(to_n), self.steps(r)]
        ends, (pre, dn) = self.sweep(late, initial, slices if ct_y is None else [*slices, ct_y], not d.backwards)
        ct_gate, ct_n = self.rows(pre), self.rows(dn)
        gates = op.Concat(ct_gate, ct_n, axis=1)
        products = [(ct_gate, before), (ct_n, r * before)]
        return self.received(want, gates, gates, products, ends)


def _blocks(op: Builder, v: Var, count: int) -> list[Var]:
    """The blocks of rows of a weight or bias, one per gate."""
    return list(op.Split(v, num_outputs=count, axis=0, outputs=count))


def _tail(v: Var) -> Shape | None:
    return None if v.shape is None else v.shape[1:]
