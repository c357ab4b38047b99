"""Two draws stay two draws: no pass takes one random node for another that reads the same."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from support import evaluate

from onnxad_passes import run_pipeline

LIKE = """<ir_version: 10, opset_import: ["" : 21]>
f (float[50] x) => (float[50] y, float[50] z) { y = RandomNormalLike(x) z = RandomNormalLike(x) }"""

DROPOUT = """<ir_version: 10, opset_import: ["" : 21]>
f (float[50] x) => (float[50] y, float[50] z) <float r = {0.5}, bool t = {1}> {
    y = Dropout(x, r, t)
    z = Dropout(x, r, t)
}"""

LOOP = """<ir_version: 10, opset_import: ["" : 21]>
f (float[50] x) => (float[50] y, float[50] z) <int64 n = {2}> {
    y, z = Loop(n, , x, x) <body = b (int64 i, bool c, float[50] u, float[50] v) => (bool d, float[50] p, float[50] q) {
        d = Identity(c)
        p = RandomNormal <shape = [50]> ()
        q = RandomNormal <shape = [50]> ()
    }>
}"""

FUNCTION = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
f (float[50] x) => (float[50] y, float[50] z) { y = mine.Noisy(x) z = mine.Noisy(x) }
<domain: "mine", opset_import: ["" : 21]>
Noisy (a) => (b) { r = RandomNormalLike(a) b = Add(a, r) }"""


@pytest.mark.parametrize(
    ("text", "pipeline"),
    [
        (LIKE, "cse"),
        (LIKE, "simplify"),
        (LIKE, "vectorize{dim=n}"),
        (DROPOUT, "cse"),
        (DROPOUT, "decompose{ops=Dropout}"),
        (DROPOUT, "vectorize{dim=n}"),
        (DROPOUT, "decompose{ops=Dropout},reverse"),
        (LOOP, "unroll"),
        (LOOP, "vectorize{dim=n}"),
        (FUNCTION, "inline-functions,cse"),
        (FUNCTION, "vectorize{dim=n}"),
    ],
)
def test_two_draws_on_the_same_operands_are_two(text: str, pipeline: str) -> None:
    model = run_pipeline(parser.parse_model(text), pipeline)
    x = np.ones((3, 50) if "vectorize" in pipeline else 50, np.float32)
    feeds = {i.name: x for i in model.graph.input}
    results = evaluate(model, feeds)
    assert not np.array_equal(results["y"], results["z"])


def test_masks_of_two_dropouts_have_derivatives_of_their_own() -> None:
    model = run_pipeline(parser.parse_model(DROPOUT), "decompose{ops=Dropout},reverse")
    ones, none = np.ones(50, np.float32), np.zeros(50, np.float32)
    for seeded, other in (("y", "z"), ("z", "y")):
        results = evaluate(model, {"x": ones, f"adj_{seeded}": ones, f"adj_{other}": none})
        np.testing.assert_array_equal(results["adj_x"], results[seeded])  # both are mask / (1 - ratio) at x = 1


UNKNOWN = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
f (float[50] x) => (float[50] y, float[50] z) <int64 n = {2}> {
    y, z = Loop(n, , x, x) <body = b (int64 i, bool c, float[50] u, float[50] v) => (bool d, float[50] p, float[50] q) {
        d = Identity(c)
        p = mine.Noisy(x)
        q = mine.Noisy(x)
    }>
}"""
CALLS = UNKNOWN + FUNCTION[FUNCTION.index("\n<domain") :]


@pytest.mark.parametrize("text", [UNKNOWN, CALLS])
@pytest.mark.parametrize("pipeline", ["unroll", "unroll,cse", "unroll,decompose"])
def test_what_nobody_knows_may_be_random(text: str, pipeline: str) -> None:
    """Operators that onnx does not define, and local functions."""
    model = run_pipeline(parser.parse_model(text), pipeline)
    noisy = [n for n in model.graph.node if n.op_type in ("Noisy", "RandomNormalLike")]
    first, second = ({n.output[0] for n in noisy if n.output[0] in _needed(model, v)} for v in "yz")
    assert first and second and not first & second


def _needed(model, name):
    """The names that an output is computed from."""
    found = {name}
    for n in reversed(model.graph.node):
        if found.intersection(n.output):
            found.update(n.input)
    return found


def test_attributes_that_are_equal_and_not_the_same() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
    f (float[50] x) => (float[50] y, float[50] z) <int64 n = {1}> {
        y, z = Loop(n, , x, x) <body = b (int64 i, bool c, float[50] u, float[50] v) => (bool d, float[50] p, float[50] q) {
            d = Identity(c)
            p = LeakyRelu <alpha = 0.0> (x) q = LeakyRelu <alpha = -0.0> (x)
        }>
    }"""
    results = evaluate(run_pipeline(parser.parse_model(text), "unroll"), {"x": -np.ones(50, np.float32)})
    assert np.signbit(results["y"]).all() and not np.signbit(results["z"]).any()
