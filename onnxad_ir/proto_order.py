"""Nodes of a protobuf graph in execution order."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import onnx

from onnxad_ir.diagnostics import ModelError

_SUBGRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def title_of(p: onnx.NodeProto) -> str:
    """A node in an error message."""
    label = p.name or next((o for o in p.output if o), "")
    return f'{p.domain + "." if p.domain else ""}{p.op_type} "{label}"'


def sort_nodes(nodes: Sequence[onnx.NodeProto], graph_name: str) -> list[onnx.NodeProto]:
    """`nodes` in an order in which every name is defined before it is used, otherwise as they stand.

    Raises ModelError, naming the nodes, where they form a cycle.
    """
    producer = {name: i for i, p in enumerate(nodes) for name in p.output if name}
    users: list[list[int]] = [[] for _ in nodes]
    waiting = [0] * len(nodes)
    for i, p in enumerate(nodes):
        needs = {producer[name] for name in _names_used(p) if name in producer}
        waiting[i] = len(needs)
        for j in needs:
            users[j].append(i)
    ready = [i for i, n in enumerate(waiting) if not n]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for u in users[i]:
            waiting[u] -= 1
            if not waiting[u]:
                heapq.heappush(ready, u)
    if len(order) < len(nodes):
        left = set(range(len(nodes))) - set(order)
        raise ModelError(f'graph "{graph_name}" has a cycle: ' + ", ".join(map(title_of, _cycle(nodes, users, left))))
    return [nodes[i] for i in order]


def _names_used(p: onnx.NodeProto) -> set[str]:
    """Names that a node needs from around it: its operands and what its subgraphs capture."""
    used = set(p.input)
    for a in p.attribute:
        for g in (*a.graphs, a.g) if a.type in _SUBGRAPHS else ():
            inner = {o.name for o in g.output}.union(*map(_names_used, g.node))
            inner.difference_update(i.name for i in g.input)
            inner.difference_update(t.name for t in g.initializer)
            inner.difference_update(o for n in g.node for o in n.output)
            used |= inner
    return used


def _cycle(nodes: Sequence[onnx.NodeProto], users: list[list[int]], left: set[int]) -> list[onnx.NodeProto]:
    """The nodes of one cycle, given those that never became ready: each has a predecessor among them."""
    before = {u: i for i in sorted(left, reverse=True) for u in users[i] if u in left}
    at, seen = min(left), dict[int, int]()
    while at not in seen:
        seen[at] = len(seen)
        at = before[at]
    path = list(seen)[seen[at] :]
    return [nodes[i] for i in reversed(path)]
