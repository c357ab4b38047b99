"""What the way back through a loop keeps of every iteration, and what it computes again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onnxad_ir.core import Graph, Node, Value, clone_node
from onnxad_ir.diagnostics import describe
from onnxad_ir.noise import is_random
from onnxad_ir.traverse import Captures
from onnxad_ir.types import TensorType
from onnxad_rules.regions import CHEAP, Adjoint
from onnxad_rules.ruleset import UnsupportedOperator

#: The metadata entry of a Scan or Loop whose iterations are run again on the way back, from the states they started
#: with, instead of keeping what they computed.
REPLAY = "onnxad.replay"


def is_replayed(node: Node) -> bool:
    """True for a loop that keeps nothing of its iterations but the states they start from."""
    return node.metadata is not None and REPLAY in node.metadata


def plan(
    region: Graph, needed: Iterable[Value], there: set[Value], captures: Captures
) -> tuple[list[Value], list[Node]]:
    """The values to keep of every iteration, and the nodes to run again, for the values `needed`.

    `there`: what can be had anyway. A value is computed again where that takes cheap operators only, on values that
    are there, are kept, or come from outside of the loop; or where it is the same in every iteration.
    """
    wanted = set(needed)
    kept: list[Value] = []
    had = set(there)
    constant: set[Value] = set()
    for v in region.inputs:
        if v in wanted and v not in had:
            kept.append(v)
            had.add(v)
    runnable: set[Value] = set()
    for n in region.nodes:
        inner = [v for v in n.inputs if v is not None and v.graph is region]
        # (who knows what a function does)
        fixed = not n.domain and not n.regions and not is_random(n) and all(v in constant for v in inner)
        cheap = n.op_type in CHEAP and not n.domain
        again = fixed or (cheap and all(v in had or v in runnable for v in inner))
        if fixed:
            constant.update(n.outputs)
        for v in n.outputs:
            if again:
                runnable.add(v)
            elif v in wanted and v not in had:
                kept.append(v)
                had.add(v)
    return kept, producers(region, wanted - had, had, captures)


def producers(region: Graph, wanted: set[Value], had: set[Value], captures: Captures) -> list[Node]:
    """The nodes of a region that compute `wanted` from values of `had`, inputs and values from outside.

    Raises UnsupportedOperator where one of them draws random numbers.
    """
    missing = set(wanted)
    nodes: list[Node] = []
    for n in reversed(region.nodes):
        if any(v in missing for v in n.outputs):
            if (noise := _noise(n)) is not None:
                raise UnsupportedOperator(
                    f"the shape of what {describe(noise)} leads to changes from iteration to iteration, so that it "
                    "would have to be computed again, but it gives other numbers when it runs again",
                    (noise,),
                )
            nodes.append(n)
            reads = (*n.inputs, *captures[n]) if n.regions else n.inputs
            missing.update(v for v in reads if v is not None and v.graph is region and v not in had)
    nodes.reverse()
    return nodes


def _noise(n: Node) -> Node | None:
    """The node, or one in its regions, that gives other results when it runs again."""
    inside = (m for g in n.regions for m in g.walk())
    return next((m for m in (n, *inside) if is_random(m)), None)


#: Operators whose results have shapes that the contents of their operands decide: of any, or of any but the first.
_BY_CONTENT = frozenset(
    {"NonZero", "Compress", "Unique", "NonMaxSuppression", "Range", "ConstantOfShape", "StringSplit"}
)
_BY_OPERANDS = frozenset(
    """Reshape Expand Slice Tile Pad Resize Upsample TopK Split Squeeze Unsqueeze OneHot CenterCropPad MaxUnpool
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
    DFT STFT BlackmanWindow HannWindow HammingWindow MelWeightMatrix AffineGrid Col2Im""".split()
)


def steady(region: Graph) -> set[Value]:
    """Values of the body of a Scan that have one shape in all iterations, whether or not anything tells it.

    Those of operators whose results have shapes that the shapes of their operands decide, or numbers that are the same
    in all iterations. Sequences, and what regions and functions return, are not looked into.
    """
    found, constant = set(region.inputs), set[Value]()
    for n in region.nodes:
        if n.regions or n.domain or is_random(n):
            continue
        reads = [v for v in n.inputs if v is not None]
        inner = [v for v in reads if v.graph is region]
        if all(v in constant for v in inner):
            constant.update(n.outputs)
            found.update(n.outputs)
        elif all(v in found and isinstance(v.type, TensorType) for v in inner) and _decided_by_shapes(n, constant):
            found.update(n.outputs)
    return found


def _decided_by_shapes(n: Node, constant: set[Value]) -> bool:
    """True where the shapes of its operands decide those of a node's results, with numbers that are the same always."""
    if n.op_type in _BY_CONTENT:
        return False
    return n.op_type not in _BY_OPERANDS or all(
        v is None or v.graph is not n.graph or v in constant for v in n.inputs[1:]
    )


def cheap_producers(region: Graph, wanted: Sequence[Value], root: Graph) -> list[Node]:
    """The nodes of a branch to run again, ahead of its adjoint, so that it needs fewer of the values `wanted`.

    Cheap operators only, on others of the values and on what comes from outside of the branch. None at all where
    that reads more values of the branches around than are saved.
    """
    missing, kept, runnable = set(wanted), set[Value](), set[Value]()
    for n in region.nodes:
        if n.op_type in CHEAP and not n.domain and all(_is_at_hand(v, region, kept, runnable) for v in n.inputs):
            runnable.update(n.outputs)
        else:
            kept.update(v for v in n.outputs if v in missing)
    missing &= runnable
    saved, nodes, read = len(missing), list[Node](), set[Value]()
    for n in reversed(region.nodes):
        if any(v in missing for v in n.outputs):
            nodes.append(n)
            operands = [v for v in n.inputs if v is not None and v not in kept]
            missing.update(v for v in operands if v.graph is region)
            read.update(v for v in operands if v.graph is not region and v.graph is not root)
    return nodes[::-1] if len(read) <= saved else []


def _is_at_hand(v: Value | None, region: Graph, kept: set[Value], runnable: set[Value]) -> bool:
    return v is None or v.graph is not region or v in kept or v in runnable


def replay(a: Adjoint, nodes: Sequence[Node]) -> None:
    """Run nodes of the primal region again in the adjoint, ahead of what is there, and let it read their results."""
    mapping: dict[Value, Value] = {}
    copies: list[Node] = []
    for n in nodes:
        copy = clone_node(n, mapping)
        copy.graph = a.graph
        copy.name = a.op.label
        copies.append(copy)
    for old, new in mapping.items():
        new.name = ""
        a.retarget(old, new)
    a.graph.nodes[:0] = copies
