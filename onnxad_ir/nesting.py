"""Where graphs stand in each other, while sweeps put new regions into nodes."""

from __future__ import annotations

from onnxad_ir.core import Graph


class Nesting:
    """What encloses a graph, in about constant time however deep regions are nested: what was found is remembered.

    A region may be put into a node at any time; `forget` where a node that has regions moves to another graph.
    """

    def __init__(self) -> None:
        self._above: dict[Graph, Graph] = {}
        self._branches: dict[Graph, int | None] = {}

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

    def forget(self) -> None:
        """Find everything again."""
        self._above.clear()
        self._branches.clear()
