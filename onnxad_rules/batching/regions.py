"""If, Scan and Loop with batched operands: their bodies are batched in place.

Which states become batched is found first, by running the dependences of the body to their fixed point. A condition or
a number of iterations that differs from entry to entry leaves the node to a Scan over the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.region_rules import scan_axes
from onnxad_ir.traverse import loop_layout
from onnxad_rules.batching.core import Same, shift
from onnxad_rules.regions import set_inputs

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
    return [sweep.full(inner, v).value if b else v for v, b in zip(outputs, batched, strict=True)]


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
    if not is_scan and any(b and v.rank is None for v, b in zip(stacks, batched[count:], strict=True)):
        return None
    attributes = dict(node.attributes)
    if is_scan:
        ins, outs = scan_axes(node)
        attributes["scan_input_axes"] = tuple(shift(a) if b else a for a, b in zip(ins, own[count:], strict=True))
        attributes["scan_output_axes"] = tuple(shift(a) if b else a for a, b in zip(outs, batched[count:], strict=True))
    operands = [
        sweep.full(op, v).value if b and v is not None else v for v, b in zip(node.inputs[head:], own, strict=True)
    ]
    new_inputs = list(body.inputs)
    for k, b in enumerate(own, head):
        if b:
            old = body.inputs[k]
            new_inputs[k] = sweep.twins[old] = Value(old.name, sweep.twin_type(old.type), body)
    set_inputs(body, new_inputs)
    inner = op.inside(body)
    for v in body.inputs:
        inner.scope.define(v)
    sweep.graph(inner)
    body.set_outputs([*body.outputs[:tail], *_outputs(sweep, inner, body.outputs[tail:], batched)])
    results = _rebuilt(op, node, [*node.inputs[:head], *operands], attributes, batched)
    if not is_scan:
        results = [_entries_first(op, r) if i >= count else r for i, r in enumerate(results)]
    return results


def _entries_first(op: Builder, r: Var | Same) -> Var | Same:
    """What a Loop stacked, [T, n, ...], as [n, T, ...]."""
    if isinstance(r, Same):
        return r
    assert r.rank is not None
    return op.Transpose(r, perm=[1, 0, *range(2, r.rank)])


BY_REGION: dict[str, Callable[[Sweep, Builder, Node], Results]] = {"If": _if, "Loop": _loop, "Scan": _loop}
