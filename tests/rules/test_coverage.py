"""The list of rules: complete, and the page that documents it is current."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import defs

from onnxad_rules.coverage import NO_RULE, NOT_NEEDED, coverage, markdown, summary, text
from onnxad_rules.kinds import Linear, Zero
from onnxad_rules.ruleset import Ruleset, default_rules

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


@pytest.fixture(scope="module")
def rows():
    return coverage()


def test_every_operator_is_listed(rows):
    listed = {(r.domain, r.op_type) for r in rows}
    assert listed >= {(s.domain, s.name) for s in defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    assert listed >= set(default_rules().keys())


def test_rows_say_what_rules_say(rows):
    by_name = {r.name: r for r in rows}
    matmul = by_name["MatMul"]
    assert (matmul.kind, matmul.operands, matmul.since, matmul.refused) == ("multilinear", ("A", "B"), 13, ())
    assert by_name["Gather"].operands == ("data",)
    assert by_name["Shape"].kind in ("zero", NOT_NEEDED)
    assert by_name["SequenceEmpty"].kind in ("zero", NOT_NEEDED)


def test_no_operator_without_a_rule_is_called_unneeded_if_it_is_smooth(rows):
    unneeded = {r.op_type for r in rows if r.kind == NOT_NEEDED and r.domain == ""}
    assert not unneeded & {"MatMul", "Conv", "Add", "Softmax", "If", "Loop", "Scan", "SequenceAt", "Identity"}


def test_rules_of_ones_own():
    rules = Ruleset(
        [
            Linear("Warp", "com.acme", {"input_0": lambda op, n, ct: ct}, frozenset({"input_1"})),
            Zero("Weft", "com.acme", {}, reason="it counts"),
        ]
    )
    rows = {r.name: r for r in coverage(rules) if r.domain == "com.acme"}
    assert rows["com.acme.Warp"].operands == ("input_0",) and rows["com.acme.Warp"].zeros == ("input_1",)
    assert rows["com.acme.Weft"].note == "it counts" and rows["com.acme.Weft"].since == 0
    assert "com.acme.Warp" in text(coverage(rules))
    assert "## com.acme" in markdown(coverage(rules))


def test_the_summary_counts(rows):
    names = {(r.domain, r.op_type) for r in rows}
    missing = {(r.domain, r.op_type) for r in rows if r.kind == NO_RULE}
    assert summary(rows).startswith(f"{len(names)} operators: ")
    assert summary(rows).endswith(f"{len(missing)} without")


@pytest.mark.skipif(not PAGE.exists(), reason="an installed package has no docs")
def test_the_page_is_current(rows):
    assert PAGE.read_text() == markdown(rows) + "\n", "run: onnxad-opt --list-rules=markdown > docs/rules.md"


def test_no_operator_has_two_rules_that_always_apply():
    rules = default_rules()
    for key in {r.key for r in rules.all()}:
        always = [r for r in rules.all() if r.key == key and r.when is None]
        assert len(always) <= 1, key
        assert len({r.zeros for r in rules.all() if r.key == key}) == 1, key
