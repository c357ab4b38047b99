"""Operands of unknown rank, where a rule has to know it.

The specification allows an operator few ranks: RoiAlign takes images of rank 4, GridSample of 4 or 5. A rule that needs
them declares the choices (`ranks=`). Where one choice fits what is known, it is what the operand is; where several do,
the derivative is an If on the rank, with the derivative for each choice in a branch of its own. So a rule is written
for known ranks only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value
from onnxad_ir.types import Dim, TensorType, Type
from onnxad_rules.node import NodeView
from onnxad_rules.tangent_space import zeros
from onnxad_rules.windows import known_spatial_rank

#: Shapes by operand or result: a letter stands for the same extent wherever it is used.
Choice: TypeAlias = Mapping[str, Sequence[Dim]]
#: How many spatial axes are tried where nothing tells: those that runtimes have kernels for.
MOST_AXES = 3
#: Letters for spatial extents of an image, and of the grid of places that is made of it.
IMAGE, GRID = "xyz", "XYZ"


def spatial(n: NodeView, shapes: Callable[[int], Choice], *tensors: str) -> list[Choice]:
    """A choice for each number of spatial axes, a single one where one of `tensors` or an attribute tells it."""
    known = known_spatial_rank(n, *(getattr(n, name) for name in tensors))
    return [shapes(k) for k in ([known] if known is not None else range(1, MOST_AXES + 1))]


def unsettled(op: Builder, n: NodeView, choices: Sequence[Choice]) -> list[Choice]:
    """The choices of which one has to be made for the rule of a node to be used, none where it can be used as it is.

    What a single choice says of values of the node's own graph is noted in their types: the node is run whenever they
    are. Of a value from outside it need not hold where the node is not run.
    """
    fitting = _fitting(n, choices)
    if len(fitting) == 1:
        for v, t in _types(op, n, fitting[0]).items():
            if v.graph is n.node.graph:
                v.type = t
                op.scope.define(v)
    return fitting if any(_types(op, n, c) for c in fitting) else []


def open_ranks(op: Builder, n: NodeView, choices: Sequence[Choice]) -> bool:
    """True where a choice says more of operands and results than is known of them."""
    return any(_types(op, n, c) for c in _fitting(n, choices))


def ranked(op: Builder, ts: Sequence[Var | None], values: Sequence[Value | None]) -> list[Var | None]:
    """Tangents or cotangents of values, those of unknown rank in the rank that the value has."""
    return [t if t is None or v is None else _in_rank(op, t, v) for t, v in zip(ts, values, strict=True)]


def _in_rank(op: Builder, t: Var, v: Value) -> Var:
    """A tangent or cotangent of a value, told that it has the rank of the value, where that is known."""
    t, like = op.var(t), op.var(v)
    if t.rank is not None or like.rank is None:
        return t
    return op.fit_type(op.reshape_like(t, like), like)


def push_by_rank(
    op: Builder, n: NodeView, choices: Sequence[Choice], tangents: dict[Value, Var], push: Callable[..., None]
) -> None:
    """What `push` (of `derive`) does, for each of the choices; the run takes the tangents of the one that it has."""
    node = n.node
    own = {v: tangents[v] for v in op.captures.operands(node) if v in tangents}
    results = [v for v in node.outputs if n.rules.carries(node, v)]

    def write(inner: Builder, copies: Mapping[Value, Value]) -> list[Var]:
        inside = {copies.get(v, v): _in_rank(inner, t, copies.get(v, v)) for v, t in own.items()}
        push(inner, node, inside, n.rules)
        return [inside.get(v) or zeros(inner, v) for v in (copies.get(v, v) for v in results)]

    tangents.update(zip(results, by_rank(op, n, choices, write, [v.type for v in results]), strict=True))


def pull_by_rank(
    op: Builder,
    n: NodeView,
    choices: Sequence[Choice],
    cts: Sequence[Var | None],
    wanted: Iterable[Value],
    cotangents: dict[Value, list[Var]],
    pull: Callable[..., None],
) -> None:
    """What `pull` does, for each of the choices; the run takes the contributions of the one that it has."""
    own = {v: ct for v, ct in zip(n.node.outputs, cts, strict=True) if ct is not None}
    wanted = list(wanted)

    def write(inner: Builder, copies: Mapping[Value, Value]) -> list[Var]:
        received = {copies.get(v, v): [_in_rank(inner, ct, copies.get(v, v))] for v, ct in own.items()}
        targets = [copies.get(v, v) for v in wanted]
        pull(inner, n.node, received, targets.__contains__, n.rules)
        return [inner.add_n(received.get(v, ())) or zeros(inner, v) for v in targets]

    for v, ct in zip(wanted, by_rank(op, n, choices, write, [v.type for v in wanted]), strict=True):
        cotangents.setdefault(v, []).append(ct)


def by_rank(
    op: Builder,
    n: NodeView,
    choices: Sequence[Choice],
    write: Callable[[Builder, Mapping[Value, Value]], Sequence[Var]],
    types: Sequence[Type | None],
) -> list[Var]:
    """What `write` makes of the node on operands and results whose ranks are known, whichever of `choices` they have.

    `write` gets a builder and the copies of known rank that the node has in the place of values, and gives results of
    `types`. The last choice is taken where no other fits; operands that do not fit it either fail at run time.
    """
    first, *rest = choices
    if not rest:
        with _copies(op, n, first) as copies:
            return list(write(op, copies))
    branches = []
    for part in ([first], rest):
        inner = op.region()
        results = by_rank(inner, NodeView(inner, n.node, n.rules), part, write, types)
        inner.graph.set_outputs(r.value for r in results)
        branches.append(inner.graph)
    attributes = {"then_branch": branches[0], "else_branch": branches[1]}
    node = Node("If", (_is(op, n, first, rest).value,), attributes, ("",) * len(types), name=op.label)
    return [op.var(v) for v in op.place_typed(node, types)]


def _tensors(n: NodeView, choice: Choice) -> dict[str, Value]:
    """The operands and results that a choice is about, by name."""
    found = {name: getattr(n, name) for name in choice}
    return {k: v.value for k, v in found.items() if v is not None and isinstance(v.type, TensorType)}


def _fitting(n: NodeView, choices: Sequence[Choice]) -> list[Choice]:
    """The choices that agree with what is known."""
    return [c for c in choices if all(_fits(c[name], v) for name, v in _tensors(n, c).items())]


def _fits(want: Sequence[Dim], v: Value) -> bool:
    """True unless a value is known to have another rank, or another extent than a number that the choice gives."""
    s = v.shape
    if s is None:
        return True
    pairs = zip(want, s, strict=False)
    return len(s) == len(want) and all(w == d or isinstance(w, str) or isinstance(d, str) for w, d in pairs)


def _types(op: Builder, n: NodeView, choice: Choice) -> dict[Value, TensorType]:
    """The types of operands and results of which a choice says more than is known: a rank, or an extent in numbers."""
    tensors = _tensors(n, choice)
    extents: dict[Dim, Dim] = {}
    for name, v in tensors.items():
        for w, d in zip(choice[name], v.shape or (), strict=False):
            if isinstance(w, str) and not isinstance(extents.get(w), int):
                extents[w] = d
    found = {}
    for name, v in tensors.items():
        want, have = choice[name], v.shape
        assert isinstance(v.type, TensorType)
        if have is None:
            shape = tuple(extents.setdefault(w, op.model.fresh_dim()) if isinstance(w, str) else w for w in want)
            found[v] = TensorType(v.type.dtype, shape)
        elif any(isinstance(w, int) and isinstance(d, str) for w, d in zip(want, have, strict=False)):
            shape = tuple(w if isinstance(w, int) else d for w, d in zip(want, have, strict=True))
            found[v] = TensorType(v.type.dtype, shape)
    return found


@contextmanager
def _copies(op: Builder, n: NodeView, choice: Choice) -> Iterator[dict[Value, Value]]:
    """Within, a node has copies of known rank in the place of operands and results of unknown rank."""
    node = n.node
    copies = {v: _copy(op, op.var(v), t) for v, t in _types(op, n, choice).items()}
    inputs, outputs = node.inputs, node.outputs
    node.inputs = tuple(None if v is None else copies.get(v, v) for v in inputs)
    node.outputs = tuple(copies.get(v, v) for v in outputs)
    try:
        yield copies
    finally:
        node.inputs, node.outputs = inputs, outputs


def _copy(op: Builder, x: Var, t: TensorType) -> Value:
    """`x` reshaped to its own shape, which is written so that it has the rank of `t` to anyone who infers it.

    A runtime may know the rank that we do not, and has to be able to load a branch for another one.
    """
    assert t.shape is not None
    rank = len(t.shape)
    padded = op.Concat(op.Shape(x), op.const([1] * rank), axis=0)
    target = op.Gather(padded, op.const(list(range(rank))))
    same = Node("Reshape", (x.value, target.value), {"allowzero": 1}, name=op.label)
    return op.place_typed(same, [t])[0]


def _is(op: Builder, n: NodeView, first: Choice, rest: Sequence[Choice]) -> Var:
    """Whether the node's operands have the ranks of the first choice and none of the rest."""
    tests: list[Var] = []
    for name, v in _tensors(n, first).items():
        others = [c for c in rest if name not in c or len(c[name]) != len(first[name])]
        if v.shape is None and others:
            tests.append(op.Equal(op.scalar(op.rank(op.var(v))), op.const(len(first[name]))))
            rest = [c for c in rest if c not in others]
        if not rest:
            break
    found = tests[0]
    for test in tests[1:]:
        found = op.And(found, test)
    return found
