"""What later passes differentiate, kept out of the sight of a rewrite that knows nothing of derivatives.

Such a rewrite may fold the number of a weight into others, share a value with an equal one or compute past it; each
would leave a derivative wrong without a sign. So the model is cut before: a weight becomes an input, and an inner
value becomes an output and, for those that read it, an input. No rewrite that keeps what a model computes can do harm
then. Afterwards the ends are joined again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxad_ir.core import Graph, Model, Tensor, Value
from onnxad_ir.diagnostics import ModelError

#: The start of the names of inputs that stand for inner values.
_CUT = "onnxad.cut."


@dataclass(frozen=True)
class _Weight:
    """A constant (or the default of an input), which stands as an input without a number."""

    name: str
    tensor: Tensor
    constant: bool


@dataclass(frozen=True)
class _Inner:
    """A result of a node: output `index` of the model (`added`: for this), and what `placeholder` stands for."""

    name: str
    index: int
    added: bool
    placeholder: str | None


class Cuts:
    """The cuts through a model, made in place; `join` mends them in what became of it."""

    def __init__(self, model: Model):
        self.weights: list[_Weight] = []
        self.inner: list[_Inner] = []
        graph = model.graph
        graph.constants = [v for v in graph.constants if v not in model.variables]
        outputs = list(graph.outputs)
        places = {v: i for i, v in reversed(list(enumerate(outputs)))}
        for v in model.variables:
            if v in graph.defaults:
                self.weights.append(_Weight(v.name, graph.defaults.pop(v), False))
            elif v.const is not None:
                self.weights.append(_Weight(v.name, v.const, True))
                v.const, v.content, v.index = None, None, len(graph.inputs)
                graph.inputs.append(v)
            elif v.producer is not None:
                added = v not in places
                if added:
                    places[v] = len(outputs)
                    outputs.append(v)
                self.inner.append(_Inner(v.name, places[v], added, _placeholder(graph, v)))
        graph.set_outputs(outputs)
        self.outputs = [v.name for v in graph.outputs]

    def join(self, graph: ir.Graph, label: str) -> None:
        """Mend the cuts in a graph that the rewrite `label` made of the model's main graph, and sort its nodes.

        Raises ModelError where an end is missing or the graph has a cycle.
        """
        inputs = {v.name: v for v in graph.inputs}
        ends = [(w, _end(inputs, w.name, w.name, label)) for w in self.weights]
        gone = {v for w, v in ends if w.constant}
        _replace_inputs(graph, [v for v in graph.inputs if v not in gone])
        for w, v in ends:
            v.const_value = w.tensor
            graph.register_initializer(v)
        if self.inner:
            self.join_inner(graph, inputs, label)
        try:
            graph.sort()
        except ValueError as e:
            raise ModelError(f"the pass {label} left a graph with a cycle: {e}") from e

    def join_inner(self, graph: ir.Graph, inputs: dict[str | None, ir.Value], label: str) -> None:
        ends = list(graph.outputs)
        if len(ends) != len(self.outputs):
            raise ModelError(f"the pass {label} added or dropped outputs: run it after the passes that differentiate")
        kept = len(ends) - sum(x.added for x in self.inner)
        del graph.outputs[kept:]
        cut = {x.name for x in self.inner}
        for v, name in zip(graph.outputs, self.outputs, strict=False):
            if v.name != name and v.name in cut:
                v.name = name  # it was given that of an end with the same value
        gone: set[ir.Value] = set()
        for x in self.inner:
            if x.placeholder is not None:
                placeholder = _end(inputs, x.placeholder, x.name, label)
                placeholder.replace_all_uses_with(_parted(graph, ends[x.index], x), replace_graph_outputs=True)
                gone.add(placeholder)
        _replace_inputs(graph, [v for v in graph.inputs if v not in gone])


def _replace_inputs(graph: ir.Graph, inputs: list[ir.Value]) -> None:
    graph.inputs.clear()
    graph.inputs.extend(inputs)


def _placeholder(graph: Graph, v: Value) -> str | None:
    """What the readers of an inner value read in its place: the name of a new input, None where there are none."""
    readers = [u for u in v.users if u is not graph]
    if not readers:
        return None
    placeholder = graph.add_input(_CUT + v.name, v.type)
    placeholder.content = v.content
    v.replace_by(placeholder, readers)
    return placeholder.name


def _end(inputs: Mapping[str | None, ir.Value], name: str, variable: str, label: str) -> ir.Value:
    if name not in inputs:
        raise ModelError(
            f"the pass {label} dropped or renamed {variable!r}, which a later pass of the pipeline differentiates: "
            "run it after that pass"
        )
    return inputs[name]


def _parted(graph: ir.Graph, v: ir.Value, x: _Inner) -> ir.Value:
    """The end `v` of a cut, or a copy where the rewrite uses it elsewhere too: who reads it there reads no variable."""
    yielded = sum(o is v for o in graph.outputs)
    if v.producer() is not None and v.graph is graph and not v.uses() and yielded == (not x.added):
        v.name = x.name
        return v
    copy = ir.Value(name=x.name, type=v.type, shape=v.shape)
    if v.name == x.name:
        name = f"{x.name}/shared"
        while name in graph.initializers:
            name += "_"
        v.name = name
    if not x.added:
        graph.outputs[x.index] = copy
    graph.append(ir.Node("", "Identity", [v], outputs=[copy], name=""))
    return copy
