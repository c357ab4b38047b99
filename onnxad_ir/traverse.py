"""Walking a graph: what regions capture, liveness, and a networkx view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onnxad_ir.core import Graph, Node, Value

if TYPE_CHECKING:
    import networkx


class Captures:
    """What each node's regions read from outside of that node, found in one walk over the graph.

    `captures[node]` is a tuple of values in order of first use; empty for nodes without regions.
    """

    def __init__(self, graph: Graph):
        found: dict[Node, dict[Value, None]] = {}
        for n in graph.walk():
            for region in n.regions:
                for inner in region.nodes:
                    _record(inner.inputs, region, graph, found)
                _record(region.outputs, region, graph, found)
        self._found = {n: tuple(vs) for n, vs in found.items()}

    def __getitem__(self, node: Node) -> tuple[Value, ...]:
        return self._found.get(node, ())

    def operands(self, node: Node) -> tuple[Value, ...]:
        """Everything a node reads: its operands and what its regions capture."""
        own = tuple(v for v in node.inputs if v is not None)
        return own + self[node] if node.regions else own


def _record(
    values: Iterable[Value | None], region: Graph, outermost: Graph, found: dict[Node, dict[Value, None]]
) -> None:
    for v in values:
        if v is None:
            continue
        home, here = v.graph, region
        while here is not home and here is not outermost and here.parent is not None:
            found.setdefault(here.parent, {})[v] = None
            if here.parent.graph is None:
                break
            here = here.parent.graph


def live_nodes(graph: Graph) -> set[Node]:
    """The nodes of `graph` (not of its regions) that its outputs depend on."""
    captures = Captures(graph)
    live: set[Node] = set()
    needed = {v.producer for v in graph.outputs}
    for n in reversed(graph.nodes):
        if n in needed:
            live.add(n)
            needed.update(v.producer for v in captures.operands(n))
    return live


def to_networkx(graph: Graph) -> networkx.DiGraph[Any]:
    """The data flow of `graph` as a networkx graph: nodes are Nodes, edges carry the value (`value=`).

    What a region captures is an edge to the node that owns the region.
    """
    import networkx as nx

    captures = Captures(graph)
    g: networkx.DiGraph[Any] = nx.DiGraph()
    for n in graph.nodes:
        g.add_node(n, op_type=n.op_type, domain=n.domain, name=n.name)
        for v in captures.operands(n):
            if v.producer is not None and v.producer.graph is graph:
                g.add_edge(v.producer, n, value=v)
    return g
