"""What the results of a graph depend on, at any depth.

Optimistic: everything is dead until something alive reads it, so that a state of a loop that only feeds itself is dead
even where it does so through other loops. A value is reached at most once, which takes time linear in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable

from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.traverse import crossings, is_control, loop_layout


def live_values(graph: Graph, keep: Iterable[Value] = ()) -> set[Value]:
    """The values, of `graph` and of regions inside, that its outputs depend on, and `keep` and what that depends on.

    If, Loop and Scan are seen result by result and state by state: a state is alive where its final value is, or what
    the body is handed. Of any other node every operand is alive where a result is. A loop that runs needs its condition
    and number of iterations; of a Scan, one scan input at least.
    """
    found = _Liveness()
    found.reach(graph.outputs)
    found.reach(v for v in keep if v.graph is graph)
    found.run()
    return found.live


class _Liveness:
    def __init__(self) -> None:
        self.live: set[Value] = set()
        self.waiting: list[Value] = []
        self.opened: set[Node] = set()
        self.scans: list[Node] = []
        #: What a value was on the other side of a border.
        self.before: dict[Value, list[Value]] = {}

    def reach(self, values: Iterable[Value | None]) -> None:
        for v in values:
            if v is not None and v not in self.live:
                self.live.add(v)
                self.waiting.append(v)

    def run(self) -> None:
        while self.waiting or self.scans:
            if not self.waiting:
                self.reach_length(self.scans.pop())
                continue
            v = self.waiting.pop()
            n = v.producer
            if n is not None and n not in self.opened:
                self.opened.add(n)
                if is_control(n):
                    self.open(n)
                else:
                    self.reach(n.inputs)
                    for g in n.regions:
                        self.reach(g.outputs)
            if (sources := self.before.get(v)) is not None:
                self.reach(sources)

    def open(self, n: Node) -> None:
        """Reach what an If, Loop or Scan needs in any case."""
        for source, target in crossings(n):
            self.before.setdefault(target, []).append(source)
        if n.op_type == "Scan":
            self.scans.append(n)
            return
        self.reach(n.inputs[: loop_layout(n)[0]] if n.op_type == "Loop" else n.inputs)
        if n.op_type == "Loop":
            self.reach(n.attributes["body"].outputs[:1])

    def reach_length(self, scan: Node) -> None:
        """Let a Scan that reads none of its scan inputs have one, for the number of iterations."""
        count = loop_layout(scan)[2]
        if any(v in self.live for v in scan.attributes["body"].inputs[count:]):
            return
        at = next((i for i, v in enumerate(scan.inputs[count:]) if v in self.live), 0)
        self.reach(scan.attributes["body"].inputs[count + at : count + at + 1])
