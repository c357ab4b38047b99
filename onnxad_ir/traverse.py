"""Walking a graph: what regions capture, what crosses their borders, and a networkx view."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onnxad_ir.core import Graph, Node, Value

if TYPE_CHECKING:
    import networkx


class Captures:
    """What each node's regions read from outside of that node.

    `captures[node]` is a tuple of values in order of first use; empty for nodes without regions. It is found when it
    is first asked for, together with that of every node inside, and kept: no region is searched twice.
    """

    def __init__(self) -> None:
        self._found: dict[Node, tuple[Value, ...]] = {}

    def __getitem__(self, node: Node) -> tuple[Value, ...]:
        if not node.regions:
            return ()
        if node not in self._found:
            self._fill(node)
        return self._found[node]

    def forget(self, node: Node) -> None:
        """Search `node` again when it is asked for next: its regions have changed."""
        self._found.pop(node, None)

    def _fill(self, node: Node) -> None:
        stack, order = [node], []
        while stack:
            n = stack.pop()
            order.append(n)
            for g in n.regions:
                stack.extend(m for m in g.nodes if m.regions and m not in self._found)
        for n in reversed(order):
            outer: dict[Value, None] = {}
            for g in n.regions:
                for m in g.nodes:
                    for v in (*m.inputs, *self._found[m]) if m.regions else m.inputs:
                        if v is not None and v.graph is not g:
                            outer[v] = None
                for v in g.outputs:
                    if v.graph is not g:
                        outer[v] = None
            self._found[n] = tuple(outer)

    def operands(self, node: Node) -> tuple[Value, ...]:
        """Everything a node reads: its operands and what its regions capture."""
        own = tuple(v for v in node.inputs if v is not None)
        return own + self[node] if node.regions else own


def is_control(node: Node) -> bool:
    """True for an If, a Loop or a Scan: what leads into their regions and out of them is `crossings`."""
    return bool(node.regions) and node.op_type in ("If", "Loop", "Scan") and not node.domain


def loop_layout(node: Node) -> tuple[int, int, int]:
    """Of a Loop or Scan: how many operands (and body inputs) are before its states, how many body outputs are before
    those of the states, and how many states there are."""
    if node.op_type == "Scan":
        return 0, 0, len(node.inputs) - node.attributes["num_scan_inputs"]
    return 2, 1, max(len(node.inputs) - 2, 0)


def crossings(node: Node) -> Iterator[tuple[Value, Value]]:
    """How values cross the borders of the regions of an If, Loop or Scan: pairs of a value and what it becomes.

    That is the value itself, a slice of it or a stack of it. A loop may run no iteration, so that an operand becomes
    a result. What a region captures it reads directly; conditions and numbers of iterations are no part of this.
    """
    if node.op_type == "If":
        for g in node.regions:
            yield from zip(g.outputs, node.outputs, strict=False)
        return
    body: Graph = node.attributes["body"]
    head, tail, count = loop_layout(node)
    for operand, inner in zip(node.inputs[head:], body.inputs[head:], strict=False):
        if operand is not None:
            yield operand, inner
    yielded = body.outputs[tail:]
    yield from zip(yielded[:count], body.inputs[head : head + count], strict=False)
    yield from zip(yielded, node.outputs, strict=False)
    for operand, result in zip(node.inputs[head : head + count], node.outputs, strict=False):
        if operand is not None:
            yield operand, result


def to_networkx(graph: Graph) -> networkx.DiGraph[Any]:
    """The data flow of `graph` as a networkx graph: nodes are Nodes, edges carry the value (`value=`).

    What a region captures is an edge to the node that owns the region.
    """
    import networkx as nx

    captures = Captures()
    g: networkx.DiGraph[Any] = nx.DiGraph()
    for n in graph.nodes:
        g.add_node(n, op_type=n.op_type, domain=n.domain, name=n.name)
        for v in captures.operands(n):
            if v.producer is not None and v.producer.graph is graph:
                g.add_edge(v.producer, n, value=v)
    return g


@contextmanager
def deep_regions(limit: int = 10_000) -> Iterator[None]:
    """Let Python recurse as deep as regions are nested: some twelve frames for each level of If, Loop or Scan.

    Nothing recurses along a graph; only nesting needs this, and only beyond some eighty levels.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, limit))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
