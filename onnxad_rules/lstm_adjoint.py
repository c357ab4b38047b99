"""The fast adjoint of LSTM: what a step needs of the gates is computed again, or kept by a forward run of our own.

    i, o, f = sigmoid, g = tanh of x W^T + h' R^T + b;  c = f c' + i g;  h = o tanh(c)

The fused operator returns h alone. From it all gates of all steps are computed again in one product, and the cells in
a Scan of two operators. That is as much arithmetic as the forward run itself, a third of that of the whole gradient.
Where products are what an LSTM costs, it is therefore run by a Scan that keeps its gates, and the fused operator goes;
where steps are small, the fused operator is what saves the time that starting many small operators takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnxad_ir.builder import Builder, Var
from onnxad_rules.instead import instead, replaceable, writer
from onnxad_rules.node import NodeView
from onnxad_rules.recurrent_cells import Direction, directions, hidden_size, stack
from onnxad_rules.recurrent_sweep import Received, Sweep, Tape, back, blocks, rows, scan, steps

#: Elements of the state from which a run that keeps the gates is the faster one (measured: benchmarks/recurrent.py),
#: and the batch that is assumed where only the run tells it.
TAPE_FROM = 384
LIKELY_BATCH = 8


def tape_pays(n: NodeView) -> bool:
    """True where an LSTM is large enough to be run by a Scan that keeps its gates, and can be."""
    batch = n.X.shape[1] if n.X.shape is not None else None
    hidden = hidden_size(n)
    if not isinstance(hidden, int) or not replaceable(n.op, n.node):
        return False
    return hidden * (batch if isinstance(batch, int) else LIKELY_BATCH) >= TAPE_FROM


def tape(op: Builder, n: NodeView) -> list[Sweep]:
    """Run an LSTM by a Scan in its place, and return its directions with what they kept."""
    inner = writer(op, n.node)
    inside = NodeView(inner, n.node, n.rules)
    runs = [(d, *_run(inner, d, inside.X)) for d in directions(inner, inside, inside.X)]
    results = zip(*(results for _, results, _ in runs), strict=True)
    instead(op, inner, n.node, [stack(inner, list(vs), axis) for vs, axis in zip(results, (1, 0, 0), strict=True)])
    return [Sweep(op, _seen_by(op, d), n.X, op.var(y), Tape(*map(op.var, kept))) for d, (y, *_), kept in runs]


def _seen_by(op: Builder, d: Direction) -> Direction:
    biases = [None if v is None else op.var(v) for v in (d.wb, d.rb)]
    return replace(d, w=op.var(d.w), r=op.var(d.r), wb=biases[0], rb=biases[1], states=[op.var(v) for v in d.states])


def _run(op: Builder, d: Direction, x: Var) -> tuple[list[Var], list[Var]]:
    """[Y, Y_h, Y_c] of one direction, and what a `Tape` holds. Each gate has products of its own."""
    driven, rs = [steps(op, v, x) for v in _driven(op, d, rows(op, x))], blocks(op, d.r, 4)

    def step(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
        parts = [b.Gemm(states[0], r, v, transB=1) for r, v in zip(rs, slices, strict=True)]
        i, o, f, g = *map(b.Sigmoid, parts[:3]), b.Tanh(parts[3])
        fresh, kept = b.Mul(i, g), b.Mul(f, states[1])
        c = b.Add(kept, fresh)
        squashed = b.Tanh(c)
        h = b.Mul(o, squashed)
        return [h, c], [h, i, o, f, g, fresh, kept, squashed]

    ends, (y, *kept) = scan(op, step, d.states, driven, d.backwards)
    return [y, *ends], kept


def _driven(op: Builder, d: Direction, x: Var) -> list[Var]:
    """x W^T with the biases for rows of x, gate by gate: weights are cheaper to split than what they give."""
    bias = None if d.wb is None or d.rb is None else d.wb + d.rb
    biases = [None] * 4 if bias is None else blocks(op, bias, 4)
    return [op.Gemm(x, w, b, transB=1) for w, b in zip(blocks(op, d.w, 4), biases, strict=True)]


def _computed_again(s: Sweep) -> Tape:
    """The tape of a fused operator, from its result."""
    op, d = s.op, s.d
    before, driven = s.rows(s.previous), _driven(op, d, s.rows(s.x))
    parts = [s.steps(s.affine(before, r, v)) for r, v in zip(blocks(op, d.r, 4), driven, strict=True)]
    i, o, f, g = *map(op.Sigmoid, parts[:3]), op.Tanh(parts[3])
    fresh = i * g

    def cell(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
        kept = b.Mul(slices[0], states[0])
        return [b.Add(kept, slices[1])], [kept]

    _, (kept,) = scan(op, cell, [d.states[1]], [f, fresh], d.backwards)
    return Tape(i, o, f, g, fresh, kept, op.Tanh(kept + fresh))


def lstm(s: Sweep, ct_y: Var | None, initial: list[Var], want: Sequence[bool]) -> Received:
    """The way back. The factors of the cotangents are written by way of products that are there:

    i (1 - i) g = i g - (i g) i, and so on.
    """
    op, d, y = s.op, s.d, s.y
    t = s.tape or _computed_again(s)
    to_c = t.o - y * t.squashed
    factors = [t.fresh - t.fresh * t.i, y - y * t.o, t.kept - t.kept * t.f, t.i - t.fresh * t.g]
    if s.tape is None:  # few operators for small steps, else nothing to be put together
        factors = [op.Concat(*factors, axis=2)]
    rs = blocks(op, d.r, len(factors))

    def body(b: Builder, states: list[Var], slices: list[Var]) -> tuple[list[Var], list[Var]]:
        inner, forget, *scales = slices[: 2 + len(factors)]
        dh = states[0] if ct_y is None else b.Add(states[0], slices[-1])
        dc = b.Add(states[1], b.Mul(dh, inner))
        each = [dc, dh, dc, dc]
        gates = list(map(b.Mul, each if len(factors) > 1 else [b.Concat(*each, axis=1)], scales))
        return [back(b, gates, rs), b.Mul(dc, forget)], gates

    slices = [to_c, t.f, *factors]
    ends, gates = scan(op, body, initial, slices if ct_y is None else [*slices, ct_y], not d.backwards)
    cts = [s.rows(g) for g in gates]
    return s.received(want, cts, cts, [(ct, s.rows(s.previous)) for ct in cts], ends)
