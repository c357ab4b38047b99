"""Pipelines as text, both ways."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import ClassVar

import pytest

from onnxad_ir.diagnostics import UsageError
from onnxad_passes.builtin import BUILTIN
from onnxad_passes.cse import Cse
from onnxad_passes.dce import Dce
from onnxad_passes.decompose import Decompose
from onnxad_passes.forward import Forward
from onnxad_passes.gradient import Gradient
from onnxad_passes.manager import Pass
from onnxad_passes.pipeline import describe_options, make_pass, parse_pipeline, print_pipeline
from onnxad_passes.reverse import Reverse

NAMES = [
    "x",
    "a b",
    "a,b",
    "{x}",
    "x=1",
    'say "hi"',
    "back\\slash",
    "é\u4e2d",
    "tab\there",
    "x/y:0",
    "-",
    "'",
    "",
    "true",
]


def test_names_options_and_lists():
    assert parse_pipeline("cse,reverse{inputs=x,w layout=single},dce") == [
        Cse(),
        Reverse(inputs=("x", "w"), layout="single"),
        Dce(),
    ]


def test_white_space_is_free():
    assert parse_pipeline("  cse ,\n dce , reverse{  inputs=x   prefix=p } ") == [
        Cse(),
        Dce(),
        Reverse(inputs=("x",), prefix="p"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_survives(name):
    for passes in (
        [Reverse(inputs=(name,), outputs=(name, "y", name + "2"))],
        [Gradient(output=name, prefix=name), Dce()],
        [Forward(prefix=name), Forward()],
    ):
        text = print_pipeline(passes)
        assert parse_pipeline(text) == passes
        assert print_pipeline(parse_pipeline(text)) == text


def test_defaults_are_left_out():
    assert print_pipeline([Reverse(), Decompose(), Gradient(output="y")]) == "reverse,decompose,gradient{output=y}"


def test_an_empty_list_is_not_the_default():
    text = print_pipeline([Reverse(inputs=())])
    assert text == "reverse{inputs=}" and parse_pipeline(text) == [Reverse(inputs=())]


@dataclass(frozen=True)
class Typed(Pass):
    """Options of every type.

    limit: how many. strict: whether to be so. size_or_name: either.
    """

    name: ClassVar[str] = "typed"
    limit: int = 3
    strict: bool = False
    size_or_name: int | str | None = None
    rate: float = 0.5

    def run(self, model):
        return False


def test_types_of_options(monkeypatch):
    assert make_pass(Typed, {"limit": ["7"], "strict": ["true"], "size-or-name": ["n"]}) == Typed(7, True, "n")
    assert make_pass(Typed, {"strict": ["no"], "size_or_name": ["-4"], "rate": ["1e-3"]}) == Typed(3, False, -4, 1e-3)
    for options, message in (
        ({"limit": ["many"]}, "is a number, not 'many'"),
        ({"strict": ["maybe"]}, "is true or false, not 'maybe'"),
        ({"limit": ["1", "2"]}, "takes one value, not 2"),
        ({"rate": ["fast"]}, "is a number, not 'fast'"),
        ({"limits": ["1"]}, "no option 'limits'; did you mean 'limit'"),
    ):
        with pytest.raises(UsageError, match=message):
            make_pass(Typed, options)


def test_a_flag_needs_no_value(monkeypatch):
    monkeypatch.setattr("onnxad_passes.pipeline.lookup", lambda name: Typed)
    assert parse_pipeline("typed{strict}") == [Typed(strict=True)]
    text = print_pipeline([Typed(limit=-1, strict=True, rate=2.5, size_or_name="a b")])
    assert parse_pipeline(text) == [Typed(limit=-1, strict=True, rate=2.5, size_or_name="a b")]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (",cse", "expected the name of a pass"),
        ("cse,,dce", "expected the name of a pass"),
        ("cse,", "expected the name of a pass, found the end"),
        ("cse dce", "expected , between passes"),
        ("reverse{inputs=x", r"expected \}"),
        ("reverse}", "expected , between passes"),
        ("reverse{inputs=x,}", "expected another value for inputs"),
        ("reverse{inputs=x inputs=w}", "given twice"),
        ('reverse{prefix="a}', "position 15: expected a closing quote"),
        (r'reverse{prefix="a\q"}', r"position 15: expected a string whose backslashes are escapes"),
        ("reverse{inputs}", "option 'inputs' of pass 'reverse' takes a value: inputs=a,b,..."),
        ("unroll{limit}", "option 'limit' of pass 'unroll' takes a value: limit=N"),
        ("gradient{output=y,inputs=x}", "found '=x}' .options go as name=value, separated by spaces"),
        ("gradient{output = y}", "options go as name=value, separated by spaces"),
        ("reverse{=x}", "expected the name of an option"),
        ("revers", "did you mean 'reverse'"),
    ],
)
def test_what_does_not_parse(text, message):
    with pytest.raises(UsageError, match=message):
        parse_pipeline(text)


def test_every_pass_explains_itself():
    for cls in BUILTIN:
        summary, options = describe_options(cls)
        assert summary.endswith((".", "...")), cls
        assert inspect.getdoc(cls).startswith(summary[:20])
        for o in options:
            assert o.help, f"{cls.__name__}.{o.name} is not explained in the docstring"


def test_explanations_are_found():
    summary, options = describe_options(Typed)
    assert summary == "Options of every type."
    assert [(o.name, o.form, o.help, o.default) for o in options] == [
        ("limit", "N", "how many.", 3),
        ("strict", "true|false", "whether to be so.", False),
        ("size-or-name", "N|text", "either.", None),
        ("rate", "X", "", 0.5),
    ]
