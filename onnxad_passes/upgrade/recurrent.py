"""Recurrent layers and Scan with a batch axis of its own."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_ir.core import Node
from onnxad_ir.types import DataType, TensorType, Type
from onnxad_passes.upgrade.registry import Results, adapter, take, take_ints


@adapter("RNN", "GRU", "LSTM", before=7)
def recurrent(op: Builder, n: Node) -> None:
    """A result was asked for by attribute and by name."""
    n.attributes.pop("output_sequence", None)


@adapter("GRU", before=3)
def gru(op: Builder, n: Node) -> None:
    """The default direction was misspelled, and some wrote it so."""
    if n.attributes.get("direction") == "foward":
        n.attributes["direction"] = "forward"


@adapter("Scan", since=8, before=9)
def scan(op: Builder, n: Node) -> Results:
    """Operands are (sequence_lens, states, scan inputs); axis 0 of each is the batch, axis 1 the sequence.

    A Scan over the batch, without states, of a Scan over the sequence. Where lengths are given, the sequence
    is cut to its length first, and what was scanned out is filled up with zeros (it is undefined there).
    """
    body = take(n, "body")
    count = int(take(n, "num_scan_inputs"))
    directions = take_ints(n, "directions")
    lengths, rest = n.inputs[0], [op.var(v) for v in n.inputs[1:] if v is not None]
    states = len(rest) - count

    outer = op.region(body.name + "_batch" if body.name else "batch")
    length: Var | None = None
    batched = rest
    if lengths is not None:
        batched = [op.Cast(op.var(lengths), to=int(DataType.INT64)), *rest]
    inner = [outer.var(outer.graph.add_input(x.value.name, _element(x.value.type))) for x in batched]
    for v in inner:
        outer.scope.define(v.value)
    extent: Var | None = None
    if lengths is not None:
        length, inner = outer.Unsqueeze(inner[0], [0]), inner[1:]
        assert length is not None
        extent = outer.Shape(inner[states], start=0, end=1)
        inner[states:] = [outer.Slice(v, [0], length, [0]) for v in inner[states:]]
    attributes = {"body": body, "num_scan_inputs": count}
    if directions:
        attributes["scan_input_directions"] = tuple(directions)
    sequence = Node("Scan", [v.value for v in inner], attributes, ("",) * len(n.outputs), name=op.label)
    results = [outer.var(v) for v in outer.place(sequence)]
    if length is not None and extent is not None:
        pads = outer.Concat([0], extent - length, axis=0)
        results[states:] = [outer.Pad(v, pads, None, [0]) for v in results[states:]]
    outer.graph.set_outputs(v.value for v in results)
    n.regions = ()
    batch = Node(
        "Scan",
        [v.value for v in batched],
        {"body": outer.graph, "num_scan_inputs": len(batched)},
        ("",) * len(n.outputs),
        name=op.label,
    )
    return [op.var(v) for v in op.place(batch)]


def _element(t: Type | None) -> Type | None:
    """The type of one element along axis 0."""
    if isinstance(t, TensorType) and t.shape:
        return TensorType(t.dtype, t.shape[1:])
    return TensorType(t.dtype) if isinstance(t, TensorType) else t
