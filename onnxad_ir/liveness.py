"""What the results of a graph depend on, at any depth.

Optimistic: everything is dead until something alive reads it, so that a state of a loop that only feeds itself is dead
even where it does so through other loops. A value is reached at most once, which takes time linear in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.traverse import crossings, is_control, loop_layout


class Liveness:
    """The values and nodes, of a graph and of regions inside, that its outputs and `keep` depend on, these included.

    If, Loop and Scan are seen result by result and state by state: a state is alive where its final value is, or what
    the body is handed. Of any other node every operand is alive where a result is. A loop that runs needs its condition
    and number of iterations; of a Scan, one scan input at least.
    """

    def __init__(self, graph: Graph, keep: Iterable[Value] = ()) -> None:
        self.values: set[Value] = set()
        self.nodes: set[Node] = set()
        self._waiting: list[Value] = []
        self._scans: list[Node] = []
        #: What a value was on the other side of a border.
        self._before: dict[Value, list[Value]] = {}
        self._reach(graph.outputs)
        self._reach(v for v in keep if v.graph is graph)
        self._run()

    def _reach(self, values: Iterable[Value | None]) -> None:
        live, waiting = self.values, self._waiting
        for v in values:
            if v is not None and v not in live:
                live.add(v)
                waiting.append(v)

    def _run(self) -> None:
        waiting, nodes, before, reach = self._waiting, self.nodes, self._before, self._reach
        while waiting or self._scans:
            if not waiting:
                self._reach_length(self._scans.pop())
                continue
            v = waiting.pop()
            n = v.owner
            if n.__class__ is Node and n not in nodes:
                nodes.add(n)
                if n.regions:
                    self._open(n)
                else:
                    reach(n.inputs)
            if v in before:
                reach(before[v])

    def _open(self, n: Node) -> None:
        """Reach what a node with regions needs in any case."""
        if not is_control(n):
            self._reach(n.inputs)
            for g in n.regions:
                self._reach(g.outputs)
            return
        for source, target in crossings(n):
            self._before.setdefault(target, []).append(source)
        if n.op_type == "Scan":
            self._scans.append(n)
        elif n.op_type == "Loop":
            self._reach((*n.inputs[:2], n.attributes["body"].outputs[0]))
        else:
            self._reach(n.inputs)

    def _reach_length(self, scan: Node) -> None:
        """Let a Scan that reads none of its scan inputs have one, for the number of iterations."""
        count = loop_layout(scan)[2]
        slices = scan.attributes["body"].inputs[count:]
        if not any(v in self.values for v in slices):
            at = next((i for i, v in enumerate(scan.inputs[count:]) if v in self.values), 0)
            self._reach(slices[at : at + 1])
