"""Where graphs stand in each other, and nodes in their graphs, while sweeps put new ones there."""

from __future__ import annotations

from onnxad_ir.core import Graph, Node


class Nesting:
    """What encloses a graph, and the place of a node, in about constant time: what was found is remembered.

    A region may be put into a node at any time; `forget` where a node that has regions moves to another graph.
    """

    def __init__(self) -> None:
        self._above: dict[Graph, Graph] = {}
        self._branches: dict[Graph, int | None] = {}
        self._places: dict[Graph, dict[Node, int]] = {}

    def outermost(self, graph: Graph) -> Graph:
        """The graph that encloses `graph` and is not, or not yet, a region of a node that stands in a graph."""
        path: list[Graph] = []
        above = self._above.get(graph, graph.enclosing)
        while above is not None:
            path.append(graph)
            graph = above
            above = self._above.get(graph, graph.enclosing)
        for g in path:
            self._above[g] = graph
        return graph

    def branches(self, graph: Graph, root: Graph) -> int | None:
        """How many branches of Ifs are around what stands in `graph`, and nothing else up to `root`; else None."""
        path: list[Graph] = []
        g: Graph | None = graph
        while g is not root and g not in self._branches:
            if g is None or g.parent is None or g.parent.op_type != "If":
                break
            path.append(g)
            g = g.enclosing
        count = 0 if g is root else None if g is None else self._branches.get(g)
        for inner in reversed(path):
            count = None if count is None else count + 1
            self._branches[inner] = count
        return count

    def place(self, node: Node) -> int | None:
        """The position of a node in its graph; None where it stands in none, as in a program written on the side.

        A sweep from the last node to the first finds all places at once: what it puts before a node moves later ones.
        """
        if node.graph is None:
            return None
        nodes = node.graph.nodes
        at = self._places.get(node.graph, {}).get(node, -1)
        if not (0 <= at < len(nodes) and nodes[at] is node):
            self._places[node.graph] = {n: i for i, n in enumerate(nodes)}
            return self._places[node.graph].get(node)
        return at

    def forget(self) -> None:
        """Find everything again."""
        self._above.clear()
        self._branches.clear()
