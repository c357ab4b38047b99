"""If, Loop, Scan and SequenceMap: their bodies are batched in place, unless the entries part ways."""

import numpy as np
import onnx
import pytest
from batched import check_batched

from onnxad_passes import run_pipeline
from onnxad_passes.vectorize import Vectorize

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(0.2, 0.9, shape).astype(np.float32)


def check(text, batched, **options):
    """A graph as ONNX text, its inputs filled by name: c a condition, n a count, everything else floats."""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)
    feeds = {}
    for i in model.graph.input:
        dims = [d.dim_value or 3 for d in i.type.tensor_type.shape.dim]
        kind = i.type.tensor_type.elem_type
        feeds[i.name] = (
            np.array(True) if kind == 9 else np.full(dims, 3, np.int64) if kind == 7 else np.asarray(floats(*dims))
        )
    feeds |= options.pop("feeds", {})
    return check_batched(model, feeds, batched, **options)


IF = """ g (bool c, float[2] x, float[2] w) => (float[2] y, float[2] z) {
  y, z = If (c) <
    then_branch = t () => (float[2] a, float[2] k) { a = Mul(x, w) k = Add(w, w) },
    else_branch = e () => (float[2] b, float[2] l) { b = Neg(w) l = Identity(w) }>
}"""


@pytest.mark.parametrize("c", [True, False])
def test_branches(c):
    feeds = {"c": np.array(c)}
    model = check(IF, ["x"], feeds=feeds)
    y, z = model.graph.output
    assert len(y.type.tensor_type.shape.dim) == 2 and len(z.type.tensor_type.shape.dim) == 1
    check(IF, ["w"], feeds=feeds)
    check(IF, ["x", "w"], feeds=feeds)


def test_a_condition_of_every_entry_parts_them():
    check(IF, ["c"], scan=True, feeds={"c*": np.array([True, False, True])})
    check(IF, ["c", "x"], scan=True, feeds={"c*": np.array([False, False, True])})


SCAN = """ g (float[2] h, float[T,2] xs, float[2] w) => (float[2] y, float[T,2] ys) {{
  y, ys = Scan <num_scan_inputs = 1, {attrs}
    body = b (float[2] s, float[2] x) => (float[2] t, float[2] o) {{
      p = Mul(s, w) t = Add(p, x) o = Tanh(t) }}> (h, xs)
}}"""
DIRECTIONS = ["", "scan_input_directions = [1],", "scan_input_directions = [1], scan_output_directions = [1],"]


@pytest.mark.parametrize("directions", DIRECTIONS)
def test_scan(directions):
    for batched in (["h"], ["xs"], ["w"], ["h", "xs", "w"]):
        model = check(SCAN.format(attrs=directions), batched, scan=True)
        (scan,) = (n for n in model.graph.node if n.op_type == "Scan")
        assert next(a.i for a in scan.attribute if a.name == "num_scan_inputs") == 1  # the one that was there


@pytest.mark.parametrize("axes", [(0, 0), (1, 1), (-1, -1), (1, 0), (-2, -1), (0, -2)])
def test_axes(axes):
    shape = "2,T" if axes[0] in (1, -1) else "T,2"
    out = "2,T" if axes[1] in (1, -1) else "T,2"
    text = f""" g (float[2] h, float[{shape}] xs) => (float[2] y, float[{out}] ys) {{
      y, ys = Scan <num_scan_inputs = 1, scan_input_axes = [{axes[0]}], scan_output_axes = [{axes[1]}],
        body = b (float[2] s, float[2] x) => (float[2] t, float[2] o) {{ t = Add(s, x) o = Mul(t, x) }}> (h, xs)
    }}"""
    for batched in (["h"], ["xs"], ["h", "xs"]):
        check(text, batched, scan=True)


def test_a_stack_that_every_entry_shares():
    text = """ g (float[2] h, float[T,2] xs, float[2] w) => (float[2] y, float[T,2] ys) {
      y, ys = Scan <num_scan_inputs = 1,
        body = b (float[2] s, float[2] x) => (float[2] t, float[2] o) { t = Mul(s, w) o = Tanh(x) }> (h, xs)
    }"""
    model = check(text, ["w"], scan=True)
    assert [len(o.type.tensor_type.shape.dim) for o in model.graph.output] == [2, 2]


LOOP = """ g (int64 n, float[2] h, float[2] w) => (float[2] y, float[2] u, float[T,2] ys) {
  c = Constant<value = bool {1}>()
  y, u, ys = Loop <body = b (int64 i, bool k, float[2] s, float[2] r) => (bool go, float[2] t, float[2] q, float[2] o) {
      go = Identity(k) t = Mul(s, w) q = Add(r, s) o = Tanh(t) }> (n, c, h, h)
}"""


def test_loop():
    for batched in (["h"], ["w"], ["h", "w"]):
        check(LOOP, batched)


def test_a_loop_without_iterations():
    check(LOOP, ["w"], feeds={"n": np.array(0)})


def test_iterations_of_every_entry_part_them():
    check(LOOP.replace("float[T,2] ys", "float[T,2] unused").replace("y, u, ys =", "y, u, unused ="), ["n"], scan=True)
    text = """ g (float h, float w) => (float y) {
      m = Constant<value = int64 {9}>() one = Constant<value = float {1.0}>() c = Constant<value = bool {1}>()
      y = Loop <body = b (int64 i, bool k, float s) => (bool go, float t) { t = Add(s, w) go = Less(t, one) }> (m, c, h)
    }"""
    check(text, ["h"], scan=True, feeds={"h*": np.array([0.1, 0.7, 0.3], np.float32)})


def test_nested():
    text = """ g (bool c, float[2] h, float[T,2] xs, float[2] w) => (float[2] y) {
      y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] x) => (float[2] t) {
        t = If (c) <
          then_branch = p () => (float[2] a) {
            m = Constant<value = int64 {2}>() k = Constant<value = bool {1}>()
            a = Loop <body = q (int64 i, bool g1, float[2] r) => (bool g2, float[2] r2) {
              g2 = Identity(g1) e = Mul(r, w) r2 = Add(e, x) }> (m, k, s)
          },
          else_branch = e () => (float[2] d) { d = Mul(s, x) }>
      }> (h, xs)
    }"""
    for c in (True, False):
        for batched in (["h"], ["xs"], ["w"], ["xs", "w"]):
            check(text, batched, scan=True, feeds={"c": np.array(c)})


def test_a_rank_that_only_the_author_tells_is_kept():
    """What no entry changes is written anew all the same: a Scan has to know the rank of what the Loop inside gives."""
    text = """ g (float[2] a, float[3,2] b, float[2] z) => (float[2] y, float[3,2] o) {
      y, o = Scan <num_scan_inputs = 1, body = bd (float[2] s, float[2] q) => (float[2] t, float[2] w) {
        k = Constant <value_int = 2> ()
        t, w = Loop (k, , z, q) <body = lb (int64 i, bool c, float[2] u, float[2] p) => (
            bool d, float[2] v, float[2] r) { d = Identity(c) v = Mul(u, s) r = Sin(p) }> }> (a, b)
    }"""
    model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)
    (scan,) = model.graph.node
    (body,) = [a.g for a in scan.attribute if a.name == "body"]
    (loop,) = [n for n in body.node if n.op_type == "Loop"]
    inner = loop.attribute[0].g
    for v in (model.graph.input[2], body.input[0], inner.input[2], inner.output[1]):
        v.type.tensor_type.ClearField("shape")
    feeds = {"a": floats(2), "b": floats(3, 2), "z": floats(2)}
    check_batched(model, feeds, ["b"], scan=True)
    check_batched(model, feeds, ["a", "b"], scan=True)


def test_sequence_map():
    text = """ g (float[2] a, float[2] b, float[2] w) => (float[4] y, float[4] z) {
      s = SequenceConstruct(a, b)
      t, u = SequenceMap <body = m (float[2] e, float[2] k) => (float[2] f, float[2] d) { f = Mul(e, k) d = Neg(e) }>
        (s, w)
      y = ConcatFromSequence<axis = 0>(t)
      z = ConcatFromSequence<axis = 0>(u)
    }"""
    for batched in (["a"], ["b"], ["a", "w"]):
        check(text, batched)
    model = check(text, ["w"])
    assert [len(o.type.tensor_type.shape.dim) for o in model.graph.output] == [2, 1]


def test_a_loop_over_a_sequence_that_is_batched():
    text = """ g (float[2] a, float[2] b) => (float[2] y) {
      s = SequenceConstruct(a, b)
      n = SequenceLength(s) k = Constant<value = bool {1}>()
      y = Loop <body = q (int64 i, bool g1, float[2] r) => (bool g2, float[2] r2) {
        g2 = Identity(g1) e = SequenceAt(s, i) r2 = Add(r, e) }> (n, k, a)
    }"""
    for batched in (["a"], ["b"], ["a", "b"]):
        check(text, batched)


def test_sequences_alone_tell_the_number_of_entries():
    text = """<ir_version: 10, opset_import: ["": 21]> g (seq(float[2]) s, float[2] w) => (float[2] y) {
      z = Constant<value = int64 {0}>()
      a = SequenceAt(s, z) y = Concat<axis = 0>(w, a)
    }"""
    vectorized = run_pipeline(
        onnx.parser.parse_model(text.replace("float[2] y", "float[4] y")), [Vectorize(("s",), "N")]
    )
    from support import evaluate

    w, s = floats(2), floats(3, 2)
    got = evaluate(vectorized, {"s": [s], "w": w})["y"]
    np.testing.assert_array_equal(got, np.stack([np.concatenate([w, r]) for r in s]))
