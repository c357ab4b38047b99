"""Sequences whose elements are known one by one become plain values; others stay, and results do not change."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser
from support import evaluate

from onnxad_passes import reverse, run_pipeline

X = np.linspace(-1, 2, 24).reshape(4, 6)
HEAD = '<ir_version: 8, opset_import: ["" : 18]> g (double[4,6] x, double[N] z, int64 k) => '
CONSTANTS = "<int64 zero = {0}, int64 one = {1}, int64 last = {-1}, int64 two = {2}, int64 four = {4}>"


def fold(outputs, body):
    """The folded model, which does what the model does, and has nothing left to fold."""
    model = parser.parse_model(f"{HEAD} ({outputs}) {CONSTANTS} {{ {body} }}")
    folded = run_pipeline(model, "fold-shapes")
    onnx.checker.check_model(folded, full_check=True)
    feeds = {"x": X, "z": np.arange(3.0), "k": np.array(1)}
    want, got = evaluate(model, feeds, 0), evaluate(folded, feeds, 0)
    assert list(want) == list(got)
    for name, value in want.items():
        assert got[name].shape == value.shape
        np.testing.assert_array_equal(got[name], value)
    assert run_pipeline(folded, "fold-shapes") == folded
    return folded


def ops(graph):
    return [n.op_type for n in graph.node]


@pytest.mark.parametrize(
    "split, keepdims, axis, operators",
    [
        ("two", 1, 1, ["Split"]),
        ("four", 1, -1, ["Split"]),  # into 4 and 2
        ("parts", 1, 1, ["Split"]),
        ("parts", 0, 1, ["Split"]),  # the attribute counts without the operand only
        ("", 1, 0, ["Split"]),
        ("", 0, -1, ["Split", "Squeeze", "Squeeze"]),
    ],
)
def test_parts_of_a_tensor(split, keepdims, axis, operators):
    """The positions count from either end."""
    parts = f"s = SplitToSequence<axis = {axis}, keepdims = {keepdims}>({f'x, {split}' if split else 'x'})"
    body = f"parts = Constant<value_ints = [1, 2, 3]>() {parts} p = SequenceAt(s, zero) q = SequenceAt(s, last)"
    folded = fold("double[a,b] u, double[c,d] v" if operators == ["Split"] else "double[a] u, double[c] v",
                  f"{body} u = Sin(p) v = Cos(q)")  # fmt: skip
    assert ops(folded.graph) == [*operators, "Sin", "Cos"]
    names = [v for n in folded.graph.node for v in n.output]
    assert {"p", "q"} <= set(names)


def test_one_part_is_the_tensor():
    whole = fold("double[4,6] u", "six = Constant<value_int = 6>() s = SplitToSequence<axis = 1>(x, six) "
                 "p = SequenceAt(s, zero) u = Sin(p)")  # fmt: skip
    assert ops(whole.graph) == ["Sin"]


def test_built_element_by_element():
    body = """e = SequenceEmpty<dtype = 11>() a = SequenceInsert(e, x) y = Sin(x) b = SequenceInsert(a, y, zero)
              w = Cos(x) c = SequenceInsert(b, w, last) i = Identity(c) d = SequenceErase(i, last)
              n = SequenceLength(d) u = ConcatFromSequence<axis = 1>(d)
              v = ConcatFromSequence<axis = -1, new_axis = 1>(i) l = SequenceAt(c, one)"""
    folded = fold("int64 n, double[4,12] u, double[4,6,3] v, double[4,6] l", body)
    assert not any("Sequence" in t for t in ops(folded.graph))


def test_elements_of_different_ranks():
    body = "s = SequenceConstruct(x, z) p = SequenceAt(s, one) q = SequenceAt(s, zero) u = Sin(p) v = Cos(q)"
    assert ops(fold("double[a] u, double[b,c] v", body).graph) == ["Sin", "Cos"]


def test_a_known_sequence_read_in_a_branch_and_a_loop():
    body = """s = SplitToSequence<axis = 1>(x, two) c = Equal(k, one)
              u = If(c) <then_branch = t () => (double[a,b] p) { q = SequenceAt(s, zero) p = Sin(q) },
                         else_branch = f () => (double[a,b] p) { q = SequenceAt(s, one) p = Cos(q) }>
              v = Loop(k, , x) <body = l (int64 i, bool g, double[a,b] y) => (bool h, double[a,b] w) {
                 h = Identity(g) q = SequenceAt(s, last) r = ReduceSum(q) w = Mul(y, r) }>"""
    folded = fold("double[4,2] u, double[4,6] v", body)
    assert ops(folded.graph) == ["Split", "Equal", "If", "Loop"]
    for n in folded.graph.node:
        for a in n.attribute:
            assert "SequenceAt" not in ops(a.g)


@pytest.mark.parametrize(
    "outputs, body",
    [
        ("double[a,b] u", "s = SplitToSequence<axis = 1>(x, two) p = SequenceAt(s, k) u = Sin(p)"),
        ("double[a] u", "s = SplitToSequence(z, one) p = SequenceAt(s, zero) u = Sin(p)"),
        ("double[a,b] u", "y = Sin(x) s = SequenceConstruct(x, y) t = SequenceErase(s, k) u = SequenceAt(t, zero)"),
        ("seq(double[4,2]) s", "s = SplitToSequence<axis = 1>(x, two)"),
    ],
)
def test_what_only_the_run_knows_stays(outputs, body):
    folded = fold(outputs, body) if not outputs.startswith("seq") else run_pipeline(
        parser.parse_model(f"{HEAD} ({outputs}) {CONSTANTS} {{ {body} }}"), "fold-shapes")  # fmt: skip
    assert any("Sequence" in t for t in ops(folded.graph))


def test_a_position_out_of_bounds_is_left_to_the_runtime():
    model = parser.parse_model(
        f"{HEAD} (double[a,b] u) {CONSTANTS} {{ s = SequenceConstruct(x) u = SequenceAt(s, two) }}"
    )
    assert ops(run_pipeline(model, "fold-shapes").graph) == ["SequenceConstruct", "SequenceAt"]


def test_a_part_that_is_differentiated_keeps_its_node():
    model = parser.parse_model(
        f"{HEAD} (double[4,2] u) {CONSTANTS} {{ s = SplitToSequence<axis = 1>(x, two) p = SequenceAt(s, zero) u = Sin(p) }}"
    )
    d = reverse(model, ["p", "x"], layout="single")
    got = evaluate(d, {"x": X, "z": np.zeros(1), "k": np.array(0), "adj_u": np.ones((4, 2))})
    np.testing.assert_allclose(got["adj_p"], np.cos(X[:, :2]))
    np.testing.assert_allclose(got["adj_x"], np.pad(np.cos(X[:, :2]), ((0, 0), (0, 4))))


def test_the_derivative_of_chunks_has_no_sequence():
    body = "s = SplitToSequence<axis = 1>(x, three) p = SequenceAt(s, zero) q = SequenceAt(s, last) e = Sigmoid(q) u = Mul(p, e)"
    model = parser.parse_model(
        f"{HEAD} (double[4,3] u) <int64 three = {{3}}, int64 zero = {{0}}, int64 last = {{-1}}> {{ {body} }}"
    )
    d = reverse(model, ["x"], layout="single")
    assert ops(d.graph) == ["Split", "Sigmoid", "Mul", "Mul", "Mul", "Sub", "Mul", "Mul", "Concat"]
    ct = np.linspace(1, 2, 12).reshape(4, 3)
    got = evaluate(d, {"x": X, "z": np.zeros(1), "k": np.array(0), "adj_u": ct})["adj_x"]
    p, sigma = X[:, :3], 1 / (1 + np.exp(-X[:, 3:]))
    np.testing.assert_allclose(got, np.concatenate([ct * sigma, ct * p * sigma * (1 - sigma)], 1))
