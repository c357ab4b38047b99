"""Results of If, Loop and Scan that nobody reads, dropped with what computes them inside."""

from __future__ import annotations

from collections.abc import Container

from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.traverse import Captures

#: The attributes of a Scan that have an entry per scan input, and per stacked result.
_PER_INPUT = ("scan_input_axes", "scan_input_directions")
_PER_STACK = ("scan_output_axes", "scan_output_directions")


def drop_results(node: Node, keep: Container[Value], captures: Captures) -> bool:
    """Drop results of a control-flow node that nobody reads, but for `keep`; True where anything went.

    States of a loop that only feed themselves, and scan inputs that its body does not read, go too. One result must be
    in use. Takes time linear in the node's own body.
    """
    if node.domain:
        return False
    if node.op_type == "If":
        return _drop_of_if(node, keep)
    return node.op_type in ("Loop", "Scan") and _drop_of_loop(node, keep, captures)


def _drop_of_if(node: Node, keep: Container[Value]) -> bool:
    alive = [bool(v.users) or v in keep for v in node.outputs]
    if all(alive):
        return False
    for g in node.regions:
        g.set_outputs(v for v, a in zip(g.outputs, alive, strict=True) if a)
    _set_results(node, alive)
    return True


def _drop_of_loop(node: Node, keep: Container[Value], captures: Captures) -> bool:
    body: Graph = node.attributes["body"]
    scan = node.op_type == "Scan"
    head, tail = (0, 0) if scan else (2, 1)
    count = len(node.inputs) - node.attributes["num_scan_inputs"] if scan else max(len(node.inputs) - 2, 0)
    used = [bool(v.users) or v in keep for v in node.outputs]
    used += [False] * (len(body.outputs) - tail - len(used))
    if all(used[count:]) and all(used[:count]) and (not scan or all(v.users for v in body.inputs[count:])):
        return False
    states, after = body.inputs[head : head + count], body.outputs[tail : tail + count]
    roots = [v for v, a in zip(body.outputs[tail:], used, strict=True) if a]
    needed = _needed(body, [*body.outputs[:tail], *roots], dict(zip(states, after, strict=True)), captures)
    alive = [u or v in needed for v, u in zip(states, used, strict=False)]
    results = [*alive, *used[count:]]
    slices = [v in needed for v in body.inputs[head + count :]]
    if slices and not any(slices):
        slices[0] = True  # it tells how often the body runs
    if all(results) and all(slices):
        return False
    body.set_outputs([*body.outputs[:tail], *_chosen(body.outputs[tail:], results)])
    _drop_dead_nodes(body, captures)
    body.inputs[:] = [*body.inputs[:head], *_chosen(body.inputs[head:], [*alive, *slices])]
    for i, v in enumerate(body.inputs):
        v.index = i
    node.set_inputs([*node.inputs[:head], *_chosen(node.inputs[head:], [*alive, *slices])])
    _set_results(node, results)
    if scan:
        _trim(node, _PER_INPUT, slices)
        _trim(node, _PER_STACK, results[count:])
        node.attributes["num_scan_inputs"] = sum(slices)
    return True


def _needed(body: Graph, roots: list[Value], after: dict[Value, Value], captures: Captures) -> set[Value]:
    """The values of a body that `roots` depend on in this iteration or in a later one."""
    needed: set[Value] = set()
    waiting = [v for v in roots if v.graph is body]
    while waiting:
        v = waiting.pop()
        if v in needed:
            continue
        needed.add(v)
        reads = captures.operands(v.producer) if v.producer is not None else ()
        waiting += [w for w in (*reads, *([after[v]] if v in after else [])) if w.graph is body and w not in needed]
    return needed


def _drop_dead_nodes(body: Graph, captures: Captures) -> None:
    """Drop what a body no longer needs for its outputs: a state that feeds itself has users still."""
    needed = _needed(body, list(body.outputs), {}, captures)
    kept = []
    for n in body.nodes:
        if any(v in needed for v in n.outputs):
            kept.append(n)
    alive = set(kept)
    for n in body.nodes:
        if n not in alive:
            n.detach()
    body.nodes[:] = kept


def _chosen(values: tuple[Value | None, ...] | list[Value] | tuple[Value, ...], flags: list[bool]) -> list[Value]:
    return [v for v, a in zip(values, flags, strict=True) if a and v is not None]


def _set_results(node: Node, alive: list[bool]) -> None:
    node.outputs = tuple(v for v, a in zip(node.outputs, alive, strict=False) if a)
    for i, v in enumerate(node.outputs):
        v.index = i


def _trim(node: Node, names: tuple[str, ...], alive: list[bool]) -> None:
    for name in names:
        values = node.attributes.get(name)
        if values:
            left = tuple(x for x, a in zip(values, alive, strict=True) if a)
            if any(left):
                node.attributes[name] = left
            else:
                del node.attributes[name]
