"""Names for extents that are products, like three times the number of directions.

Inside a pipeline such an extent is an expression, so that it is known to be one; at its ends, where people and other
programs read it, it has the name that a pass gave it. The names travel with the model, in its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from onnxad_ir import dims
from onnxad_ir.core import Graph, Model, Value
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.types import Dim, Shape, TensorType, is_anonymous

#: The metadata entry: by name the terms of the extent, each a factor followed by symbols.
NAMES = "onnxad.extents"


def names_of_extents(model: Model) -> dict[str, Dim]:
    """The extents that were given a name, by name."""
    text = model.metadata.get(NAMES, "{}")
    try:
        return {
            str(name): dims.total(dims.mul(int(factor), dims.product(map(str, symbols))) for factor, *symbols in terms)
            for name, terms in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ModelError(f'the metadata entry "{NAMES}" does not tell extents by name: {text!r}') from None


def give_names(model: Model, names: dict[str, Dim]) -> None:
    """Give names to extents, beside those that have one."""
    if not names:
        return
    every = {**names_of_extents(model), **names}
    text = {name: [[factor, *symbols] for symbols, factor in dims.terms(d).items()] for name, d in every.items()}
    model.metadata[NAMES] = json.dumps(text)


def spell_out(model: Model) -> None:
    """Put what names of extents stand for in their place, in the types of the main graph."""
    if NAMES in model.metadata:
        meaning = names_of_extents(model)
        for v in _values(model.graph):
            if isinstance(v.type, TensorType):
                v.type = TensorType(v.type.dtype, dims.substitute(v.type.shape, meaning))


class PublicNames:
    """What the extents of a model's inputs and outputs are called outside of a pipeline."""

    def __init__(self, model: Model):
        self.model = model
        #: Shapes of outputs by name, as far as they were ever known.
        self.seen: dict[str, Shape] = {}
        #: The shapes that the author declared.
        self.declared: dict[str, Shape] = {}
        spell_out(model)
        self.look()
        self.declared = dict(self.seen)

    def look(self) -> None:
        """Take note of what is known of outputs now: later inference may know less."""
        compound: list[tuple[Dim, Dim]] = []
        for v in self.model.graph.outputs:
            if v.shape and not all(map(is_anonymous, v.shape)):
                self.seen[v.name] = _known(v.shape, self.seen.get(v.name, v.shape))
                if v.name in self.declared and any(isinstance(d, dims.Expr) for d in v.shape):
                    declared = self.declared.pop(v.name)
                    compound += zip(v.shape, declared, strict=True) if len(declared) == len(v.shape) else ()
        if compound:
            self._keep_names(compound)

    def _keep_names(self, pairs: list[tuple[Dim, Dim]]) -> None:
        """Have extents that turned out to be products or sums called what the author called them."""
        names, new = names_of_extents(self.model), dict[str, Dim]()
        known = set(names.values())
        for d, k in pairs:
            compound = isinstance(d, dims.Expr) and not is_anonymous(d) and d not in known
            if compound and isinstance(k, str) and not isinstance(k, dims.Expr) and not is_anonymous(k):
                new.setdefault(k, d)
                known.add(d)
        if new:
            taken = {a for v in _values(self.model.graph) for e in v.shape or () for m in dims.terms(e) for a in m}
            give_names(self.model, {k: d for k, d in new.items() if k not in taken and k not in names})

    def restore(self) -> None:
        """Call extents what they were called."""
        spelled = {d: name for name, d in names_of_extents(self.model).items()}
        graph = self.model.graph
        # what only an output tells a name of has it wherever else it stands: in a seed of that output, say
        for v in graph.outputs:
            for d, k in zip(v.shape or (), self.seen.get(v.name, ()), strict=False):
                if is_anonymous(d) and isinstance(k, str) and not is_anonymous(k):
                    spelled.setdefault(d, k)
        inputs = set(graph.inputs)
        for v in dict.fromkeys((*graph.inputs, *graph.outputs)):
            t = v.type
            if isinstance(t, TensorType) and t.shape is not None:
                shape = t.shape if v in inputs else _known(t.shape, self.seen.get(v.name, t.shape))
                v.type = TensorType(t.dtype, tuple(spelled.get(d, d) for d in shape))


def _known(shape: tuple[Dim, ...], before: Shape) -> tuple[Dim, ...]:
    """A shape, with extents that nobody named as they were before, if only they were known."""
    if len(before) != len(shape):
        return shape
    return tuple(k if is_anonymous(d) else d for d, k in zip(shape, before, strict=True))


def _values(graph: Graph) -> Iterator[Value]:
    yield from graph.inputs
    for n in graph.nodes:
        yield from n.outputs
