"""Passes and the manager that runs them.

A pass is a frozen dataclass: its fields are its options, its docstring its help, `requires` the passes whose
result it needs. The manager runs those first where they have not run, verifies the model in between, and
tells instruments.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from onnxad_ir.core import Model
from onnxad_ir.diagnostics import ModelError, UsageError
from onnxad_ir.verify import verify
from onnxad_passes.extents import PublicNames


@dataclass(frozen=True)
class Pass(ABC):
    """One rewrite of a whole model, in place."""

    name: ClassVar[str] = ""
    requires: ClassVar[tuple[str, ...]] = ()
    #: Passes whose result this one undoes: they run again where somebody needs them later.
    undoes: ClassVar[tuple[str, ...]] = ()

    @property
    def instead(self) -> Mapping[str, str]:
        """Passes that run in the place of prerequisites, its own and those of its prerequisites."""
        return {}

    @abstractmethod
    def run(self, model: Model) -> bool:
        """Rewrite `model` in place; True where anything changed."""

    def prepare(self, model: Model) -> None:  # noqa: B027  (most passes have nothing to prepare)
        """Called once before the first pass of a pipeline runs, on the model as it was given.

        A pass that needs something left alone until its turn (a weight it differentiates) says so here.
        """


class Instrument(Protocol):
    """What watches a pipeline: every method is optional to override in a subclass of `Watcher`."""

    def before(self, p: Pass, model: Model) -> None: ...
    def after(self, p: Pass, model: Model, modified: bool, seconds: float) -> None: ...
    def failed(self, p: Pass, model: Model, error: Exception) -> None: ...


class Watcher:
    """An instrument that does nothing: override what you need."""

    def before(self, p: Pass, model: Model) -> None:
        """Before a pass runs."""

    def after(self, p: Pass, model: Model, modified: bool, seconds: float) -> None:
        """After a pass ran and the model was verified."""

    def failed(self, p: Pass, model: Model, error: Exception) -> None:
        """When a pass, or the verification of its result, raised."""


class PassManager:
    """Runs passes in order.

    `passes`: Pass objects. `verify_each`: check every invariant of the IR before the first pass and after
    each that changed the model. `instruments`: watchers.
    """

    def __init__(self, passes: Iterable[Pass], verify_each: bool = True, instruments: Sequence[Instrument] = ()):
        if isinstance(passes, str):
            raise TypeError(f"{passes!r} is text; `parse_pipeline` makes passes from it")
        self.passes = tuple(passes)
        for p in self.passes:
            if not isinstance(p, Pass):
                what = "a class: make one with ()" if isinstance(p, type) else f"a {type(p).__name__}"
                raise TypeError(f"{p!r} is no Pass but {what}; `parse_pipeline` makes passes from text")
        self.verify_each = verify_each
        self.instruments = tuple(instruments)

    def plan(self) -> list[Pass]:
        """The passes with their prerequisites, each prerequisite once and before its first need."""
        from onnxad_passes.registry import lookup

        done: set[str] = set()
        order: list[Pass] = []

        def add(p: Pass, waiting: tuple[str, ...], instead: Mapping[str, str]) -> None:
            if p.name in waiting:
                raise UsageError(f"pass {p.name!r} needs itself: {' needs '.join((*waiting, p.name))}")
            instead = {**p.instead, **instead}
            for name in p.requires:
                name = instead.get(name, name)
                if name not in done:
                    add(lookup(name)(), (*waiting, p.name), instead)
            done.difference_update(p.undoes)
            done.add(p.name)
            order.append(p)

        for p in self.passes:
            add(p, (), {})
        return order

    def run(self, model: Model) -> bool:
        """Run the pipeline on `model`, in place; True where anything changed.

        Raises what a pass raises; a ModelError of the verifier after a pass is a fault of that pass. TypeError for a
        model of another kind: `run_pipeline` takes every kind.
        """
        if not isinstance(model, Model):
            what = type(model).__name__
            raise TypeError(
                f"a PassManager runs on an onnxad_ir Model, not on a {what}; `run_pipeline` takes all kinds"
            )
        order = self.plan()
        for p in order:
            p.prepare(model)
        if self.verify_each:
            verify(model)
        changed = False
        names = PublicNames(model)
        for p in order:
            changed |= self._run_one(p, model)
            names.look()
        names.restore()
        return changed

    def _run_one(self, p: Pass, model: Model) -> bool:
        for i in self.instruments:
            i.before(p, model)
        start = time.perf_counter()
        try:
            modified = p.run(model)
            seconds = time.perf_counter() - start
            if modified is None:
                raise TypeError(f"pass {p.name!r} returned nothing; `run` says whether it changed the model")
            if modified and self.verify_each:
                _verify_after(p, model)
        except Exception as error:
            for i in self.instruments:
                i.failed(p, model, error)
            raise
        for i in self.instruments:
            i.after(p, model, modified, seconds)
        return modified


def _verify_after(p: Pass, model: Model) -> None:
    try:
        verify(model)
    except ModelError as e:
        raise ModelError(f"after pass {p.name!r}, whose fault this is: {e}") from None
