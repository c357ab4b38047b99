"""Results, states and scan inputs of If, Loop and Scan that nothing alive reads, dropped."""

from __future__ import annotations

from collections.abc import Container, Iterable

from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.traverse import loop_layout

#: The attributes of a Scan that have an entry per scan input, and per stacked result.
_PER_INPUT = ("scan_input_axes", "scan_input_directions")
_PER_STACK = ("scan_output_axes", "scan_output_directions")


def drop_results(node: Node, live: Container[Value]) -> bool:
    """Drop what an If, Loop or Scan takes and returns that is not in `live` (`onnxad_ir.liveness`); True if any was.

    The nodes of its regions are left; what computed a dropped result has lost that reader.
    """
    return _drop_of_if(node, live) if node.op_type == "If" else _drop_of_loop(node, live)


def _drop_of_if(node: Node, live: Container[Value]) -> bool:
    alive = [v in live for v in node.outputs]
    if all(alive):
        return False
    for g in node.regions:
        g.set_outputs(_chosen(g.outputs, alive))
    node.set_results(_chosen(node.outputs, alive))
    return True


def _drop_of_loop(node: Node, live: Container[Value]) -> bool:
    body: Graph = node.attributes["body"]
    head, tail, count = loop_layout(node)
    used = [v in live for v in node.outputs]
    used += [False] * (len(body.outputs) - tail - len(used))
    states = [u or v in live for v, u in zip(body.inputs[head : head + count], used, strict=False)]
    results = [*states, *used[count:]]
    slices = [v in live for v in body.inputs[head + count :]]
    if all(results) and all(slices):
        return False
    body.set_outputs([*body.outputs[:tail], *_chosen(body.outputs[tail:], results)])
    body.set_inputs([*body.inputs[:head], *_chosen(body.inputs[head:], [*states, *slices])])
    node.set_inputs([*node.inputs[:head], *_chosen(node.inputs[head:], [*states, *slices])])
    node.set_results([v for v, a in zip(node.outputs, results, strict=False) if a])  # it may lack the last ones
    if node.op_type == "Scan":
        _trim(node, _PER_INPUT, slices)
        _trim(node, _PER_STACK, results[count:])
        node.attributes["num_scan_inputs"] = sum(slices)
    return True


def _chosen(values: Iterable[Value | None], flags: list[bool]) -> list[Value]:
    return [v for v, a in zip(values, flags, strict=True) if a and v is not None]


def _trim(node: Node, names: tuple[str, ...], alive: list[bool]) -> None:
    for name in names:
        values = node.attributes.get(name)
        if values:
            left = tuple(x for x, a in zip(values, alive, strict=True) if a)
            if any(left):
                node.attributes[name] = left
            else:
                del node.attributes[name]
