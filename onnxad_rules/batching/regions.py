"""If, Scan and Loop with batched operands: their bodies are batched in place.

Which states become batched is found first, by running the dependences of the body to their fixed point. A condition or
a number of iterations that differs from entry to entry leaves the node to a Scan over the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.region_rules import scan_axes
from onnxad_ir.traverse import loop_layout
from onnxad_ir.types import Dim, TensorType
from onnxad_rules.batching.core import Same, shift

if TYPE_CHECKING:
    from onnxad_rules.batching.sweep import Sweep

Results: TypeAlias = Sequence[Any] | None


def _if(sweep: Sweep, op: Builder, node: Node) -> Results:
    from onnxad_rules.batching.sweep import depends

    if node.inputs[0] in sweep.twins:
        return None
    branches: list[Graph] = [node.attributes["then_branch"], node.attributes["else_branch"]]
    reach = [depends(g, (), sweep.twins, op) for g in branches]
    batched = [any(g.outputs[i] in r for g, r in zip(branches, reach, strict=True)) for i in range(len(node.outputs))]
    for g in branches:
        inner = op.inside(g)
        sweep.graph(inner)
        g.set_outputs(_outputs(sweep, inner, g.outputs, batched))
    return _rebuilt(op, node, node.inputs, dict(node.attributes), batched)


def _outputs(sweep: Sweep, inner: Builder, outputs: Sequence[Value], batched: Sequence[bool]) -> list[Value]:
    return [_yielded(sweep, inner, v) if b else v for v, b in zip(outputs, batched, strict=True)]


def _yielded(sweep: Sweep, inner: Builder, v: Value) -> Value:
    """The twin of what a region yields, of known rank where that has one: a Scan needs it."""
    twin = sweep.full(inner, v)
    if twin.rank is not None or v.rank is None:
        return twin.value
    like = inner.var(Value("", sweep.twin_type(v.type)))
    return inner.fit_rank(twin, like).value


def _rebuilt(
    op: Builder, node: Node, inputs: Sequence[Value | None], attributes: dict[str, Any], batched: Sequence[bool]
) -> list[Var | Same]:
    """The node, whose regions it takes over, on other operands."""
    node.attributes = {}
    node.adopt_regions()
    new = Node(node.op_type, inputs, attributes, [""] * len(batched), node.domain, node.name)
    new.metadata = node.metadata
    results = map(op.var, op.place(new))
    return [v if b else Same(v) for v, b in zip(results, batched, strict=True)]


def _loop(sweep: Sweep, op: Builder, node: Node) -> Results:
    from onnxad_rules.batching.sweep import depends

    body: Graph = node.attributes["body"]
    head, tail, count = loop_layout(node)
    is_scan = node.op_type == "Scan"
    if any(v in sweep.twins for v in node.inputs[:head]):
        return None
    own = [v is not None and v in sweep.twins for v in node.inputs[head:]]
    while True:
        starts = [v for v, b in zip(body.inputs[head:], own, strict=True) if b]
        reach = depends(body, starts, sweep.twins, op)
        more = [b or v in reach for v, b in zip(body.outputs[tail : tail + count], own, strict=False)]
        if more == own[:count]:
            break
        own[:count] = more
    stacks = body.outputs[tail + count :]
    batched = [*own[:count], *(v in reach for v in stacks)]
    if body.outputs[:tail] and body.outputs[0] in reach:
        return None
    operands = [
        sweep.full(op, v).value if b and v is not None else v for v, b in zip(node.inputs[head:], own, strict=True)
    ]
    attributes = dict(node.attributes)
    # what a Loop stacks has its iterations in front; so has what a Scan reads and stacks along axis 0, where they stay:
    # onnx's reference evaluator knows no other axis
    turned = [b and not is_scan for b in batched[count:]]
    if is_scan:
        ins, outs = scan_axes(node)
        turned = [b and a == 0 for a, b in zip(outs, batched[count:], strict=True)]
        moved = [b and a == 0 for a, b in zip(ins, own[count:], strict=True)]
        operands[count:] = [
            _swapped(op, op.var(v)).value if m and v is not None else v
            for v, m in zip(operands[count:], moved, strict=True)
        ]
        for name, axes, kept, twins in (
            ("scan_input_axes", ins, moved, own[count:]),
            ("scan_output_axes", outs, turned, batched[count:]),
        ):
            if any(axes):
                attributes[name] = tuple(
                    shift(a) if b and not k else a for a, k, b in zip(axes, kept, twins, strict=True)
                )
    inner = _with_twins(sweep, op, body, own, head)
    sweep.graph(inner)
    body.set_outputs([*body.outputs[:tail], *_outputs(sweep, inner, body.outputs[tail:], batched)])
    results = _rebuilt(op, node, [*node.inputs[:head], *operands], attributes, batched)
    finish = _swapped if is_scan or _runs(op, node) else partial(_swapped_and_filled, sweep.dim)
    return [
        finish(op, r) if i >= count and turned[i - count] and isinstance(r, Var) else r for i, r in enumerate(results)
    ]


def _runs(op: Builder, node: Node) -> bool:
    """True for a Loop that is sure to run once at least."""
    trips, condition = node.inputs[:2]
    known = None if trips is None else op.known(op.var(trips))
    many = trips is None or (known is not None and all(isinstance(d, int) and d > 0 for d in known))
    return many and (condition is None or (condition.const is not None and bool(condition.const.numpy().all())))


def _swapped(op: Builder, x: Var) -> Var:
    """[n, T, ...] as [T, n, ...], and the other way round."""
    return op.exchange(x, 1, 2)


def _swapped_and_filled(dim: Dim, op: Builder, x: Var) -> Var:
    """The same, with as many entries as there are: what has no iterations has no entries either in ONNX Runtime."""
    if x.shape is not None:
        x.value.type = TensorType(x.dtype, (x.shape[0], op.model.fresh_dim(), *x.shape[2:]))
    y = _swapped(op, x)
    return op.Reshape(y, op.Concat(op.dim(dim), op.Shape(y, start=1), axis=0), allowzero=1)


def _sequence_map(sweep: Sweep, op: Builder, node: Node) -> Results:
    from onnxad_rules.batching.sweep import depends

    body: Graph = node.attributes["body"]
    own = [v is not None and v in sweep.twins for v in node.inputs]
    reach = depends(body, [v for v, b in zip(body.inputs, own, strict=True) if b], sweep.twins, op)
    batched = [v in reach for v in body.outputs]
    operands = [sweep.twins.get(v, v) if v is not None else None for v in node.inputs]
    inner = _with_twins(sweep, op, body, own)
    sweep.graph(inner)
    body.set_outputs(_outputs(sweep, inner, body.outputs, batched))
    return _rebuilt(op, node, operands, dict(node.attributes), batched)


def _with_twins(sweep: Sweep, op: Builder, body: Graph, own: Sequence[bool], head: int = 0) -> Builder:
    """A builder for a body whose inputs (from position `head` on) have become twins where `own` says so."""
    new_inputs = list(body.inputs)
    for k, b in enumerate(own, head):
        if b:
            old = body.inputs[k]
            new_inputs[k] = sweep.twins[old] = Value(old.name, sweep.twin_type(old.type), body)
    body.set_inputs(new_inputs)
    inner = op.inside(body)
    inner.scope.define(*body.inputs)
    return inner


BY_REGION: dict[str, Callable[[Sweep, Builder, Node], Results]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _loop,
    "SequenceMap": _sequence_map,
}
