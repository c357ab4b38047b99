"""Passes by name, those of other packages included."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import registry
from onnxad_passes.builtin import BUILTIN
from onnxad_passes.dce import Dce
from onnxad_passes.manager import Pass
from onnxad_passes.pipeline import parse_pipeline


@dataclass(frozen=True)
class Shout(Pass):
    """Write names in capitals.

    volume: how loud.
    """

    name: ClassVar[str] = "shout"
    volume: int = 1

    def run(self, model):
        for n in model.graph.nodes:
            n.name = n.name.upper()
        return True


@dataclass(frozen=True)
class Impostor(Pass):
    """Another dce."""

    name: ClassVar[str] = "dce"

    def run(self, model):
        return False


NOT_A_PASS = 3


@pytest.fixture
def entry_points(monkeypatch):
    """Install entry points for one test."""
    import sys

    monkeypatch.setitem(sys.modules, "third_party", sys.modules[__name__])
    found = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == "onnxad.passes" else [])

    def install(*names):
        found.extend(EntryPoint(n, f"third_party:{n}", "onnxad.passes") for n in names)
        registry.all_passes.cache_clear()

    yield install
    registry.all_passes.cache_clear()


def test_names_are_those_of_the_design():
    names = {p.name for p in BUILTIN}
    assert names >= {
        "upgrade-opset",
        "inline-functions",
        "fold-shapes",
        "decompose",
        "forward",
        "reverse",
        "gradient",
    }
    assert len(names) == len(BUILTIN)
    for p in BUILTIN:
        assert registry.lookup(p.name) is p
        assert all(registry.lookup(r) for r in p.requires)


def test_third_party_passes(entry_points):
    entry_points("Shout")
    assert parse_pipeline("shout{volume=11},dce")[0] == Shout(11)
    assert "shout\n    Write names in capitals.\n    volume=N  how loud. Default: 1." in registry.list_passes()


def test_a_name_can_be_taken_once(entry_points):
    entry_points("Impostor")
    with pytest.raises(UsageError, match=r"two passes are called 'dce'.*third_party:Impostor"):
        registry.all_passes()
    assert registry.lookup("dce") is Dce


def test_entry_points_hold_passes(entry_points):
    entry_points("NOT_A_PASS")
    with pytest.raises(UsageError, match=r"'NOT_A_PASS'.*no Pass class"):
        registry.lookup("shout")


def test_an_entry_point_that_does_not_load(entry_points):
    entry_points("Missing")
    with pytest.raises(UsageError, match=r"'Missing'.*cannot be loaded.*third_party:Missing"):
        registry.lookup("shout")
    assert parse_pipeline("reverse{inputs=x},dce")  # what is ours goes on working


def test_unknown_names():
    with pytest.raises(
        UsageError, match=r"no pass called 'fold_shapes'; did you mean 'fold-shapes'\? \(known: cse, dce"
    ):
        registry.lookup("fold_shapes")
    with pytest.raises(UsageError, match=r"no pass called 'zzz' \(known"):
        registry.lookup("zzz")
