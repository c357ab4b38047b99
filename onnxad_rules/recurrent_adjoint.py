"""The fast adjoint of RNN, GRU and LSTM with the standard activations.

What the sweep back needs of the gates is prepared for all steps at once, so that the Scan holds nothing but the
recurrence of the cotangents: a few elementwise operators and its products. Gradients of weights, and of the input, are
products over all steps at the end. The fused operator stays, and all gates of all steps are computed again from the
hidden states it returns, in products over all steps; but for an LSTM that is large enough for its products to be what
it costs (see `lstm_adjoint`). (Differentiate the equations of `recurrent_cells`; the factors of the cotangents that do
not depend on them are what is prepared.)
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_rules.instead import place, replaceable, writer
from onnxad_rules.lstm_adjoint import lstm, tape, tape_pays
from onnxad_rules.node import NodeView
from onnxad_rules.recurrent_cells import DEFAULTS, directions, settle_ranks, stack, take
from onnxad_rules.recurrent_sweep import Received, Sweep, scan


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


def pull_recurrent(op: Builder, n: NodeView, cts: Sequence[Var | None], wanted: Sequence[bool]) -> list[Var | None]:
    """Contributions to X, W, R, B, sequence_lens, initial_h (and initial_c) by position."""
    _settle(op, n)
    want = [*wanted, *[False] * (8 - len(wanted))]
    cts = [*cts, *[None] * (3 - len(cts))]
    parts: list[Received] = []
    for i, s in enumerate(_sweeps(op, n)):
        ct_y = None if cts[0] is None else take(op, cts[0], i, 1)
        ends = [None if c is None else take(op, c, i, 0) for c in cts[1 : 1 + len(s.d.states)]]
        initial = [e or op.zeros_like(v) for e, v in zip(ends, s.d.states, strict=True)]
        parts.append(ADJOINTS[n.node.op_type](s, ct_y, initial, want))
    out: list[Var | None] = [op.add_n([p.x for p in parts])]
    for w, name in zip(want[1:4], "wrb", strict=True):
        out.append(stack(op, [getattr(p, name) for p in parts], 0) if w else None)
    out.append(None)
    for k, w in enumerate(want[5:7]):
        out.append(stack(op, [p.states[k] for p in parts], 0) if w else None)
    return out[: len(wanted)]


def _settle(op: Builder, n: NodeView) -> None:
    """Let the node read copies of known rank where it has to, placed ahead of it for what takes its place."""
    if all(v is None or v.rank is not None for v in n.node.inputs):
        return
    there = replaceable(op, n.node)
    written = writer(op, n.node) if there else op
    for v, copy in settle_ranks(written, n).items():
        n.node.set_inputs(copy if w is v else w for w in n.node.inputs)
    if there:
        place(op, written, n.node)
    for w in n.node.inputs:
        if w is not None:
            op.scope.define(w)


def _sweeps(op: Builder, n: NodeView) -> list[Sweep]:
    if n.node.op_type == "LSTM" and tape_pays(n):
        return tape(op, n)
    return [Sweep(op, d, n.X, take(op, n.Y, i, 1)) for i, d in enumerate(directions(op, n, n.X))]


def rnn(s: Sweep, ct_y: Var | None, initial: list[Var], want: Sequence[bool]) -> Received:
    """h = tanh(x W^T + h' R^T + b)."""
    op, d = s.op, s.d
    slope = op.Sub(op.like(1, s.y), op.Mul(s.y, s.y))

    def body(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
        dh = states[0] if ct_y is None else b.Add(states[0], slices[1])
        pre = b.Mul(dh, slices[0])
        return [b.MatMul(pre, d.r)], [pre]

    slices = [slope] if ct_y is None else [slope, ct_y]
    ends, (gates,) = scan(op, body, initial, slices, not d.backwards)
    ct = s.rows(gates)
    return s.received(want, [ct], [ct], [(ct, s.rows(s.previous))], ends)


def gru(s: Sweep, ct_y: Var | None, initial: list[Var], want: Sequence[bool]) -> Received:
    """z, r = sigmoid, n = tanh of their parts; h = (1 - z) n + z h'. The reset gate applies before or after R."""
    op, d = s.op, s.d
    before = s.rows(s.previous)
    z_r, r_r, n_r = op.Split(d.r, num_outputs=3, axis=0, outputs=3)
    gate_r = op.Concat(z_r, r_r, axis=0)
    z_w, r_w, n_w = op.Split(d.w, num_outputs=3, axis=0, outputs=3)
    bias: list[Var | None] = [None, None, None]
    if d.wb is not None and d.rb is not None:
        zw, rw, nw = op.Split(d.wb, num_outputs=3, axis=0, outputs=3)
        zr, rr, nr = op.Split(d.rb, num_outputs=3, axis=0, outputs=3)
        bias = [op.Concat(zw + zr, rw + rr, axis=0), nw, nr]
    x = s.rows(s.x)
    gate_pre = s.affine(before, gate_r, s.affine(x, op.Concat(z_w, r_w, axis=0), bias[0]))
    z, r = op.Split(op.Sigmoid(gate_pre), num_outputs=2, axis=1, outputs=2)
    after = bool(d.n.linear_before_reset)
    if after:
        hidden = s.affine(before, n_r, bias[2])
        n = op.Tanh(s.affine(x, n_w, bias[1]) + r * hidden)
    else:
        n_bias = None if bias[1] is None or bias[2] is None else bias[1] + bias[2]
        n = op.Tanh(s.affine(r * before, n_r, s.affine(x, n_w, n_bias)))
    one = op.like(1, n)
    to_n = (one - z) * (one - n * n)
    to_z = (before - n) * (z - z * z)
    reset = r - r * r
    keep = s.steps(z)
    if after:
        factors = s.steps(op.Concat(to_z, to_n * hidden * reset, to_n * r, axis=1))

        def body(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
            dh = states[0] if ct_y is None else b.Add(states[0], slices[2])
            pre = b.Mul(b.Concat(dh, dh, dh, axis=1), slices[1])
            return [b.Add(b.Mul(dh, slices[0]), b.MatMul(pre, d.r))], [b.Identity(dh), pre]

        slices = [keep, factors] if ct_y is None else [keep, factors, ct_y]
        ends, (dh, pre) = scan(op, body, initial, slices, not d.backwards)
        inner = s.rows(pre)
        ct_z, ct_r, _ = op.Split(inner, num_outputs=3, axis=1, outputs=3)
        gates = op.Concat(ct_z, ct_r, s.rows(dh) * to_n, axis=1)
        return s.received(want, [gates], [inner], [(inner, before)], ends)

    factors = s.steps(op.Concat(to_z, reset * before, axis=1))

    def late(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
        dh = states[0] if ct_y is None else b.Add(states[0], slices[4])
        dn = b.Mul(dh, slices[2])
        de = b.MatMul(dn, n_r)
        pre = b.Mul(b.Concat(dh, de, axis=1), slices[1])
        back = b.Sum(b.Mul(dh, slices[0]), b.Mul(de, slices[3]), b.MatMul(pre, gate_r))
        return [back], [pre, dn]

    slices = [keep, factors, s.steps(to_n), s.steps(r)]
    ends, (pre, dn) = scan(op, late, initial, slices if ct_y is None else [*slices, ct_y], not d.backwards)
    ct_gate, ct_n = s.rows(pre), s.rows(dn)
    gates = op.Concat(ct_gate, ct_n, axis=1)
    products = [(ct_gate, before), (ct_n, r * before)]
    return s.received(want, [gates], [gates], products, ends)


ADJOINTS = {"RNN": rnn, "GRU": gru, "LSTM": lstm}
