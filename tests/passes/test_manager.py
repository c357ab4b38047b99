"""The manager: prerequisites, order, verification, instruments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from onnx import parser

from onnxad_ir.core import Node
from onnxad_ir.diagnostics import ModelError, UsageError
from onnxad_ir.proto import from_proto
from onnxad_passes.dce import Dce
from onnxad_passes.manager import Pass, PassManager, Watcher
from onnxad_passes.pipeline import parse_pipeline
from onnxad_passes.reverse import Reverse

MODEL = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Tanh(x) }'


@pytest.fixture
def model():
    return from_proto(parser.parse_model(MODEL))


@dataclass(frozen=True)
class Break(Pass):
    """Break the model."""

    name: ClassVar[str] = "break"
    honest: bool = True

    def run(self, model):
        model.graph.nodes.insert(0, Node("Add", (model.graph.nodes[0].outputs[0],) * 2, graph=model.graph))
        return self.honest


class Log(Watcher):
    def __init__(self):
        self.lines = []

    def before(self, p, model):
        self.lines.append(("before", p.name))

    def after(self, p, model, modified, seconds):
        assert seconds >= 0
        self.lines.append(("after", p.name, modified))

    def failed(self, p, model, error):
        self.lines.append(("failed", p.name, type(error).__name__))


def names(passes):
    return [p.name for p in PassManager(passes).plan()]


def test_prerequisites_run_once_and_first():
    pre = ["inline-functions", "upgrade-opset", "fold-shapes"]
    assert names([Reverse()]) == [*pre, "reverse"]
    assert names([Reverse(), Reverse()]) == [*pre, "reverse", "reverse"]
    assert names(parse_pipeline("dce,fold-shapes,reverse")) == ["dce", *pre, "reverse"]
    assert names(parse_pipeline("cse,dce,cse")) == ["cse", "dce", "cse"]


def test_prerequisites_that_need_each_other():
    @dataclass(frozen=True)
    class Loop(Pass):
        """Needs itself."""

        name: ClassVar[str] = "loop"
        requires: ClassVar[tuple[str, ...]] = ("loop",)

        def run(self, model):
            return False

    from unittest import mock

    with (
        mock.patch("onnxad_passes.registry.lookup", lambda name: Loop),
        pytest.raises(UsageError, match="'loop' needs itself"),
    ):
        PassManager([Loop()]).plan()


def test_instruments_see_every_pass(model):
    log = Log()
    assert PassManager([Reverse(), Dce()], instruments=[log]).run(model)
    assert log.lines[0] == ("before", "inline-functions")
    assert log.lines[1] == ("after", "inline-functions", False)
    assert log.lines[-2:] == [("before", "dce"), ("after", "dce", False)]
    assert ("after", "reverse", True) in log.lines


def test_a_broken_result_is_a_fault_of_the_pass(model):
    log = Log()
    with pytest.raises(ModelError, match="after pass 'break'"):
        PassManager([Break(), Dce()], instruments=[log]).run(model)
    assert log.lines == [("before", "break"), ("failed", "break", "ModelError")]


def test_a_broken_model_is_found_before_the_first_pass(model):
    Break().run(model)
    log = Log()
    with pytest.raises(ModelError) as e:
        PassManager([Dce()], instruments=[log]).run(model)
    assert log.lines == [] and "after pass" not in str(e.value)


def test_a_pass_says_whether_it_changed_the_model(model):
    with pytest.raises(TypeError, match="pass 'break' returned nothing"):
        PassManager([Break(None)]).run(model)


def test_verification_can_be_switched_off(model):
    PassManager([Break()], verify_each=False).run(model)


def test_prepare_sees_the_model_as_given(model):
    seen = []

    @dataclass(frozen=True)
    class Peek(Pass):
        """Look."""

        name: ClassVar[str] = "peek"

        def prepare(self, model):
            seen.append(len(model.graph.inputs))

        def run(self, model):
            seen.append(len(model.graph.inputs))
            return False

    PassManager([Reverse(), Peek()]).run(model)
    assert seen == [1, 2]


def test_modified_is_honest(model):
    manager = PassManager(parse_pipeline("inline-functions,upgrade-opset,fold-shapes,cse,dce,simplify"))
    manager.run(model)
    assert not manager.run(model)
