"""A node of the primal computed by other nodes, which take its place."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node, Value


def replaceable(op: Builder, node: Node) -> bool:
    """True where a node stands in a graph, not in a program that is written on the side."""
    return op.nesting.place(node) is not None


def writer(op: Builder, node: Node) -> Builder:
    """A builder of nodes for the place of `node`, which must be `replaceable`: `instead` puts them there.

    They may read what stands before that place; `op`, which writes after it, may read them.
    """
    graph = node.graph
    assert graph is not None
    written = op.apart(graph, [])
    written.label = node.name
    for v in node.inputs:
        if v is not None:
            written.scope.define(v)
    return written


def place(op: Builder, written: Builder, node: Node) -> None:
    """Put what `writer` wrote for `op` before `node`."""
    at = op.nesting.place(node)
    assert at is not None
    written.graph.nodes[at:at] = written.nodes


def instead(op: Builder, written: Builder, node: Node, results: Sequence[Var]) -> None:
    """Put what `writer` wrote for `op` before `node`, and let its results be those of the node, by position.

    The values stay the ones they are; the node is left with results that nobody reads.
    """
    kept: list[Value] = []
    for v, r in zip(node.outputs, results, strict=False):
        r = written.var(written.place_identity(r.value, v.name)) if r.value.producer not in written.nodes else r
        producer = r.value.producer
        assert producer is not None
        kept.append(Value("", v.type, node, v.index))
        v.owner, v.index = producer, r.value.index
        producer.outputs = tuple(v if o is r.value else o for o in producer.outputs)
        r.value.replace_by(v)
    node.outputs = tuple(kept)
    place(op, written, node)
