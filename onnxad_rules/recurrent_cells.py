"""RNN, GRU and LSTM as a Scan over their equations.

The projection of the inputs is one product for all steps, outside of the Scan; the Scan holds the recurrent part.
Equations, gate order and attributes are those of the specification; clipping and masking are what ONNX Runtime does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_ir.diagnostics import ModelError, describe
from onnxad_ir.types import DataType, Dim, TensorType
from onnxad_rules.node import NodeView

Activation: TypeAlias = Callable[[Builder, Var], Var]

#: Default activations per direction.
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
#: Activations that take parameters, with the defaults of alpha and beta (None: takes none), which are those of ONNX
#: Runtime's kernels: where the specification names none, a missing parameter is 0.
PARAMETERS: dict[str, tuple[float | None, float | None]] = {
    "affine": (0.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (0.0, None),
    "scaledtanh": (0.0, 0.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
}
PLAIN = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softsign": "Softsign", "softplus": "Softplus"}


def _activation(name: str, alpha: float, beta: float) -> Activation:
    def parametrized(op: Builder, x: Var) -> Var:
        if name == "affine":
            return x * alpha + beta
        if name == "scaledtanh":
            return op.Tanh(x * beta) * alpha
        if name == "leakyrelu":
            return op.LeakyRelu(x, alpha=alpha)
        if name == "thresholdedrelu":
            return op.ThresholdedRelu(x, alpha=alpha)
        if name == "elu":
            return op.Elu(x, alpha=alpha)
        return op.HardSigmoid(x, alpha=alpha, beta=beta)

    if name in PLAIN:
        return lambda op, x: getattr(op, PLAIN[name])(x)
    return parametrized


def activations(n: NodeView) -> list[list[Activation]]:
    """The activation functions of a recurrent node, per direction."""
    directions = 2 if n.direction == "bidirectional" else 1
    names = n.node.attributes.get("activations") or DEFAULTS[n.node.op_type] * directions
    alphas, betas = iter(n.activation_alpha or ()), iter(n.activation_beta or ())
    found: list[Activation] = []
    for name in names:
        key = name.lower()
        if key not in PLAIN and key not in PARAMETERS:
            raise ModelError(f"{describe(n.node)} has an unknown activation {name!r}")
        alpha, beta = PARAMETERS.get(key, (None, None))
        alpha = 0.0 if alpha is None else next(alphas, alpha)
        beta = 0.0 if beta is None else next(betas, beta)
        found.append(_activation(key, alpha, beta))
    each = len(found) // directions
    return [found[d * each : (d + 1) * each] for d in range(directions)]


@dataclass
class Direction:
    """One direction of a recurrent node: its weights without the axis of directions."""

    n: NodeView
    functions: list[Activation]
    backwards: bool
    w: Var
    r: Var
    wb: Var | None
    rb: Var | None
    peepholes: list[Var] | None
    states: list[Var]
    #: What becomes of the hidden state before its product with R: quantized operators round it.
    entering: Activation | None = None

    @property
    def hidden(self) -> Dim:
        """The number of hidden units."""
        return hidden_size(self.n)


def hidden_size(n: NodeView) -> Dim:
    """The number of hidden units of a recurrent node; a ModelError where nothing tells it."""
    if n.hidden_size is not None:
        return int(n.hidden_size)
    if n.R.shape is None:
        raise ModelError(f"{describe(n.node)} has no hidden_size, and its weights no known shape")
    return n.R.shape[-1]


def recurrent(op: Builder, n: NodeView, entering: Activation | None = None) -> tuple[Var, ...]:
    """The results of RNN, GRU or LSTM (Y, Y_h and for LSTM Y_c) in terms of other operators.

    entering: for LSTM, what becomes of the hidden state at every step before its product with R.
    """
    operands = n.node.inputs
    copies = settle_ranks(op, n)
    n.node.inputs = tuple(v if v is None else copies.get(v, v) for v in operands)
    try:
        return _results(op, n, entering)
    finally:
        n.node.inputs = operands


def _results(op: Builder, n: NodeView, entering: Activation | None) -> tuple[Var, ...]:
    x = op.Transpose(n.X, perm=[1, 0, 2]) if n.layout else n.X
    mask = _mask(op, x, n.sequence_lens) if n.sequence_lens is not None else None
    ys: list[Var] = []
    finals: list[list[Var]] = []
    for d in directions(op, n, x):
        d.entering = entering
        y, *ends = _scan(op, d, _project(op, d, x), mask)
        ys.append(y)
        finals.append(ends)
    axis = 2 if n.layout else 1
    if n.layout:
        ys = [op.Transpose(y, perm=[1, 0, 2]) for y in ys]
    stacked = [stack(op, ys, axis), *(stack(op, list(ends), axis - 1) for ends in zip(*finals, strict=True))]
    return tuple(stacked)


def settle_ranks(op: Builder, n: NodeView) -> dict[Value, Value]:
    """Note the ranks that the operator asks for of operands of unknown rank: the body of a Scan needs to know them.

    Of a value from outside of the node's graph they need not hold where the node is not run: a copy that `op` writes
    has the rank. Returns such copies by value.
    """
    batch = op.model.fresh_dim()
    ranks = {"X": 3, "W": 3, "R": 3, "B": 2, "sequence_lens": 1, "initial_h": 3, "initial_c": 3, "P": 2}
    copies: dict[Value, Value] = {}
    for name in ranks.keys() & n.facts.inputs.keys():
        v: Var | None = getattr(n, name)
        if v is None or v.rank is not None or v.value in copies:
            continue
        free: list[Dim] = [op.model.fresh_dim() for _ in range(ranks[name])]
        if name in ("X", "initial_h", "initial_c", "sequence_lens"):
            free[0 if n.layout or name == "sequence_lens" else 1] = batch
        t = TensorType(v.dtype, tuple(free))
        if v.value.graph is n.node.graph or v.value.graph is op.graph:
            v.value.type = t
            op.scope.define(v.value)
        else:
            copies[v.value] = op.place_typed(Node("Identity", (v.value,), {}, name=op.label), [t])[0]
    return copies


def stack(op: Builder, parts: Sequence[Var], axis: int) -> Var:
    """Parts along a new axis, that of the directions."""
    rows = [op.Unsqueeze(v, [axis]) for v in parts]
    return rows[0] if len(rows) == 1 else op.Concat(*rows, axis=axis)


def directions(op: Builder, n: NodeView, x: Var) -> list[Direction]:
    """The directions of a recurrent node, whose (sequence-first) input is `x`."""
    names = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    functions = activations(n)
    lstm = n.node.op_type == "LSTM"
    found = []
    for i, backwards in enumerate(names[n.direction]):
        bias = None if n.B is None else op.Split(take(op, n.B, i, 0), num_outputs=2, axis=0, outputs=2)
        p = take(op, n.P, i, 0) if lstm and n.P is not None else None
        initial = [n.initial_h, n.initial_c] if lstm else [n.initial_h]
        states = [_zero_state(op, n, x) if v is None else take(op, v, i, 1 if n.layout else 0) for v in initial]
        found.append(
            Direction(
                n,
                functions[i],
                backwards,
                take(op, n.W, i, 0),
                take(op, n.R, i, 0),
                None if bias is None else bias[0],
                None if bias is None else bias[1],
                None if p is None else list(op.Split(p, num_outputs=3, axis=0, outputs=3)),
                states,
            )
        )
    return found


def take(op: Builder, x: Var, i: int, axis: int) -> Var:
    """Entry `i` along an axis, which is dropped."""
    if x.shape is not None and x.shape[axis] == 1:
        return op.Squeeze(x, [axis])
    return op.Gather(x, op.const(i), axis=axis)


def _zero_state(op: Builder, n: NodeView, x: Var) -> Var:
    hidden = hidden_size(n)
    shape = op.Concat(op.extent(x, 1), op.dim(hidden, n.R, -1), axis=0)
    return op.Expand(op.like(0, x), shape)


def _mask(op: Builder, x: Var, lengths: Var) -> Var:
    """[T, B, 1]: True where a step belongs to its sequence."""
    steps = op.iota(op.extent(x, 0), DataType.INT32)
    return op.Unsqueeze(op.Less(op.Unsqueeze(steps, [1]), op.Unsqueeze(lengths, [0])), [2])


def _project(op: Builder, d: Direction, x: Var) -> Var:
    """x W^T + biases for all steps: [T, B, gates * hidden]."""
    out = op.MatMul(x, op.swap(d.w))
    if d.wb is None or d.rb is None:
        return out
    if d.n.node.op_type == "GRU" and d.n.linear_before_reset:
        zr, _ = _split_gru(op, d.rb, 0)
        rest = op.Concat(zr, op.zeros_like(op.Slice(d.rb, *_bounds(op, d, 2, 3))), axis=0)
        return out + (d.wb + rest)
    return out + (d.wb + d.rb)


def _bounds(op: Builder, d: Direction, start: int, end: int) -> tuple[Var, Var, Var]:
    h = op.dim(d.hidden, d.n.R, -1)
    return h * start, h * end, op.const([0])


def _split_gru(op: Builder, x: Var, axis: int) -> tuple[Var, Var]:
    """The rows (or columns) of the update and reset gates, and those of the hidden gate."""
    z, r, h = op.Split(x, num_outputs=3, axis=axis, outputs=3)
    return op.Concat(z, r, axis=axis), h


def _scan(op: Builder, d: Direction, xw: Var, mask: Var | None) -> tuple[Var, ...]:
    """Y [T, B, H] and the final states."""
    body = op.region(d.n.node.op_type.lower())
    state_types = [v.type for v in d.states]
    h0 = d.states[0]
    slices = [v for v in (xw, mask) if v is not None]
    ins = [body.graph.add_input("", t) for t in state_types]
    sliced = [body.graph.add_input("", _slice_type(v)) for v in slices]
    body.scope.define(*ins, *sliced)
    old = [body.var(v) for v in ins]
    new = CELLS[d.n.node.op_type](op, body, d, body.var(sliced[0]), old)
    y = new[0]
    if mask is not None:
        inside = body.var(sliced[1])
        new = [body.Where(inside, a, b) for a, b in zip(new, old, strict=True)]
        y = body.where(inside, y, 0)
    body.graph.set_outputs([*(v.value for v in new), y.value])
    attributes: dict[str, object] = {"body": body.graph, "num_scan_inputs": len(slices)}
    if d.backwards:
        attributes |= {"scan_input_directions": (1,) * len(slices), "scan_output_directions": (1,)}
    operands: list[Value] = [v.value for v in (*d.states, *slices)]
    length = xw.shape[0] if xw.shape is not None else op.model.fresh_dim()
    stacked = TensorType(h0.dtype, None if h0.shape is None else (length, *h0.shape))
    node = Node("Scan", operands, attributes, ("",) * (len(old) + 1), name=op.label)
    *ends, ys = op.place_typed(node, [*state_types, stacked])
    return (op.var(ys), *map(op.var, ends))


def _slice_type(v: Var) -> TensorType:
    return TensorType(v.dtype, None if v.shape is None else v.shape[1:])


def _clip(op: Builder, d: Direction, x: Var) -> Var:
    limit = d.n.clip
    return op.Clip(x, op.like(-limit, x), op.like(limit, x)) if limit else x


def _rnn(op: Builder, body: Builder, d: Direction, x: Var, states: Sequence[Var]) -> list[Var]:
    (f,) = d.functions
    (h,) = states
    return [f(body, _clip(body, d, x + body.MatMul(h, op.swap(d.r))))]


def _gru(op: Builder, body: Builder, d: Direction, x: Var, states: Sequence[Var]) -> list[Var]:
    f, g = d.functions
    (h,) = states
    r_zr, r_h = _split_gru(op, d.r, 0)
    x_zr, x_h = _split_gru(body, x, -1)
    z, r = body.Split(f(body, _clip(body, d, x_zr + body.MatMul(h, op.swap(r_zr)))), num_outputs=2, axis=-1, outputs=2)
    if d.n.linear_before_reset:
        inner = body.MatMul(h, op.swap(r_h))
        if d.rb is not None:
            inner = inner + _split_gru(op, d.rb, 0)[1]
        inner = r * inner
    else:
        inner = body.MatMul(r * h, op.swap(r_h))
    new = g(body, _clip(body, d, x_h + inner))
    return [new + z * (h - new)]


def _lstm(op: Builder, body: Builder, d: Direction, x: Var, states: Sequence[Var]) -> list[Var]:
    f, g, last = d.functions
    h, c = states
    seen = h if d.entering is None else d.entering(body, h)
    i, o, forget, cell = body.Split(x + body.MatMul(seen, op.swap(d.r)), num_outputs=4, axis=-1, outputs=4)
    p = d.peepholes
    if p is not None:
        i, forget = i + c * p[0], forget + c * p[2]
    i = f(body, _clip(body, d, i))
    forget = (1 - i) if d.n.input_forget else f(body, _clip(body, d, forget))
    new_c = forget * c + i * g(body, _clip(body, d, cell))
    if p is not None:
        o = o + new_c * p[1]
    return [f(body, _clip(body, d, o)) * last(body, new_c), new_c]


CELLS: dict[str, Callable[[Builder, Builder, Direction, Var, Sequence[Var]], list[Var]]] = {
    "RNN": _rnn,
    "GRU": _gru,
    "LSTM": _lstm,
}
