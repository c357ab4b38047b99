"""Values that have another shape for every entry.

Such a value has no twin. Where what depends on it comes back to one shape (a product over the zeros that were found,
say), all nodes between are run together for one entry after the other; where it does not, that is an error.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from onnxad_ir.builder import Builder
from onnxad_ir.core import Graph, Node, Value
from onnxad_ir.diagnostics import describe
from onnxad_ir.types import TensorType
from onnxad_rules.regions import seen
from onnxad_rules.ruleset import UnsupportedOperator

#: Operators whose results have another extent for every entry: which operands decide it (None: all).
RAGGED: dict[str, tuple[str, ...] | None] = {
    "NonZero": None,
    "Unique": None,
    "Compress": ("condition",),
    "NonMaxSuppression": None,
    "Range": None,
    "Resize": ("scales", "sizes"),
    "StringSplit": None,
}
_KEYS = {("", op_type) for op_type in RAGGED}


class Ragged(UnsupportedOperator):
    """A node whose results have another shape for every entry."""

    def __init__(self, node: Node):
        super().__init__(
            f"{describe(node)} has a result of another shape for every entry: it cannot be batched", (node,)
        )


@dataclass
class Part:
    """Nodes that run together for each entry, and those of their results that others read."""

    nodes: list[Node]
    results: list[Value]


Item = Node | Part


def operands(op: Builder, item: Item) -> list[Value]:
    """Everything that a node reads, or the nodes of a part read of others."""
    if isinstance(item, Node):
        return list(op.captures.operands(item))
    own = {v for n in item.nodes for v in n.outputs}
    return [v for n in item.nodes for v in op.captures.operands(n) if v not in own]


def close(op: Builder, items: list[Item], start: int, awaited: Container[Value]) -> bool:
    """Put a part in the place of the node at `start` and of those that have to run with it, False where none is enough.

    What comes between and does not depend on the part goes before it, the rest behind it. `awaited`: values that are
    read without having users.
    """
    inside: dict[int, None] = {}
    behind: list[int] = []
    loose: set[Value] = set()
    reached: set[Value] = set()
    waiting: set[Node | Graph] = set()
    other: set[Value] = set()
    known: set[str] = set()
    end = start
    while end < len(items) and (end == start or waiting):
        item = items[end]
        if end == start or not loose.isdisjoint(operands(op, item)):
            inside[end] = None
            for v in _results(item):
                if end > start and _has_one_shape(op, v, known):
                    reached.add(v)
                else:
                    loose.add(v)
                    waiting.update(v.users)
            waiting.difference_update(r for n in _nodes(item) for r in _readers(n))
        elif not reached.isdisjoint(operands(op, item)):
            behind.append(end)
            reached.update(_results(item))
        elif not other.isdisjoint(operands(op, item)) or (isinstance(item, Node) and item.key in _KEYS):
            other.update(_results(item))  # whose symbols may be another number for every entry, too
        else:
            known.update(d for v in _results(item) for d in v.shape or () if isinstance(d, str))
        end += 1
    if waiting or any(v in awaited for v in loose):
        return False
    wanted = {v for i in inside for v in operands(op, items[i])}
    for i in reversed(behind):  # what the part leads to and reads again
        if not wanted.isdisjoint(_results(items[i])):
            inside[i] = None
            wanted.update(operands(op, items[i]))
    nodes = [n for i in range(start, end) if i in inside for n in _nodes(items[i])]
    readers: set[Node | Graph] = {r for n in nodes for r in _readers(n)}
    results = [v for n in nodes for v in n.outputs if v in awaited or any(u not in readers for u in v.users)]
    after = [items[i] for i in behind if i not in inside]
    apart = inside.keys() | set(behind)
    before = [items[i] for i in range(start, end) if i not in apart]
    items[start:end] = [*before, Part(nodes, results), *after]
    return True


def _nodes(item: Item) -> Sequence[Node]:
    return [item] if isinstance(item, Node) else item.nodes


def _results(item: Item) -> Sequence[Value]:
    return item.outputs if isinstance(item, Node) else item.results


def _readers(node: Node) -> Iterator[Node | Graph]:
    """A node, and what its regions consist of: everything that may use a value it reads."""
    yield node
    for region in node.regions:
        yield from region.walk()
        yield from region.graphs()


def _has_one_shape(op: Builder, v: Value, known: Container[str]) -> bool:
    """True for a tensor whose shape is the same for every entry, as far as its symbols tell."""
    t = v.type
    if not isinstance(t, TensorType) or t.shape is None:
        return False
    return all(d in known or seen(op, d) for d in t.shape)
