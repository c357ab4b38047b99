"""Checkpointing changes what is kept, not what is computed."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxad_passes as ad
from onnxad_ir.diagnostics import UsageError
from onnxad_passes import run_pipeline
from tests.support import evaluate

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'


def feeds_of(model, seed=5, **extents):
    rng = np.random.default_rng(seed)
    feeds = {}
    for v in model.graph.input:
        t = v.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else extents[d.dim_param] for d in t.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(t.elem_type)
        feeds[v.name] = rng.uniform(-1, 1, shape).astype(dtype) if dtype.kind == "f" else np.zeros(shape, dtype)
    return feeds


def same(text, every, levels=(0, 1, 2, 99), feeds=None, mode="reverse", **extents):
    """The derivative with checkpoints, equal to the one without."""
    primal = parser.parse_model(HEAD + text)
    plain = run_pipeline(primal, mode)
    model = run_pipeline(primal, f"{mode}{{checkpoint={every}}}")
    onnx.checker.check_model(model, full_check=True)
    feeds = {**feeds_of(plain, **extents), **(feeds or {})}
    want = evaluate(plain, feeds, 0)
    for level in levels:
        got = evaluate(model, feeds, level)
        for name, value in want.items():
            assert got[name].shape == value.shape
            np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-6, err_msg=f"{name} at level {level}")
    return model


def scans(model):
    """The number of Scans and Loops at every depth."""

    def depth(nodes, at):
        for n in nodes:
            inside = [a.g.node for a in n.attribute if a.HasField("g")]
            here = n.op_type in ("Scan", "Loop")
            if here:
                yield at
            for g in inside:
                yield from depth(g, at + here)

    return list(depth(model.graph.node, 0))


SCAN = """g (float[3] h, float[{T},3] xs, float[3,3] w) => (float[3] last, float[{T},3] ys) {{
  last, ys = Scan <num_scan_inputs = 1, body = step (float[3] a, float[3] x) => (float[3] b, float[3] y) {{
    m = MatMul(a, w) s = Add(m, x) b = Tanh(s) e = Sin(b) y = Mul(e, x)
  }}> (h, xs)
}}"""


@pytest.mark.parametrize("every", ["1", "2", "3", "7", "8", "100", "auto"])
def test_scan(every):
    model = same(SCAN.format(T=8), every)
    assert max(scans(model)) == (0 if every in ("1", "8", "100") else 1)


@pytest.mark.parametrize("every, length", [*itertools.product(["1", "3", "auto"], [1, 2, 6, 7])])
def test_scan_of_a_length_known_at_run_time(every, length):
    same(SCAN.format(T="T"), every, levels=(0, 99), T=length)


MANY = """g (float[2] h, float[2] k, float[{T},2] xs, float[2,{T}] zs, float[2] w)
    => (float[2] h2, float[2] k2, float[2,{T}] ys, float[{T},2,1] us) {{
  h2, k2, ys, us = Scan <num_scan_inputs = 2, scan_input_axes = [0, -1], scan_input_directions = [1, 0],
      scan_output_axes = [-1, 0], scan_output_directions = [0, 1],
      body = step (float[2] a, float[2] b, float[2] x, float[2] z)
             => (float[2] c, float[2] d, float[2] y, float[2,1] u) {{
    p = Mul(a, x) q = Mul(b, w) d = Sin(p) c = Add(q, z) y = Mul(d, z)
    axes = Constant <value_ints = [1]> () v = Exp(p) u = Unsqueeze(v, axes)
  }}> (h, k, xs, zs)
}}"""


@pytest.mark.parametrize("every, length", [("2", 7), ("3", 6), ("auto", 10)])
def test_axes_directions_and_several_states(every, length):
    same(MANY.format(T=length), every)
    same(MANY.format(T="T"), every, levels=(0, 99), T=length)


def test_scan_in_a_scan_and_in_a_branch():
    text = """g (float[3] h, float[6,3] xs, bool c) => (float[3] y) {
      y = If (c) <then_branch = yes () => (float[3] p) { p = Exp(h) }, else_branch = no () => (float[3] q) {
        q, k = Scan <num_scan_inputs = 1, body = outer (float[3] a, float[3] x) => (float[3] b, float[3] o) {
          b, r = Scan <num_scan_inputs = 1, body = inner (float[3] e, float[3] z) => (float[3] f, float[3] g) {
            m = Mul(e, z) f = Tanh(m) g = Mul(f, x)
          }> (a, xs)
          o = Identity(x)
        }> (h, xs)
      }>
    }"""
    same(text, "2", levels=(0, 99), feeds={"c": np.array(False)})
    same(text, "2", levels=(0, 99), feeds={"c": np.array(True)})


FOR = """g (float[3] h, int64 n, float[3] w) => (float[3] y, float[N,3] ys) {{
  {trips} yes = Constant <value = bool {{1}}> ()
  y, ys = Loop (trips, yes, h) <body = step (int64 i, bool go, float[3] a) => (bool more, float[3] b, float[3] s) {{
    more = Identity(go) f = Cast <to = 1> (i) m = Mul(a, w) k = Add(m, f) b = Sin(k) s = Mul(b, m)
  }}>
}}"""


@pytest.mark.parametrize("every", ["1", "2", "4", "auto"])
def test_loop(every):
    same(FOR.format(trips="trips = Constant <value_int = 7> ()"), every, N=7)


@pytest.mark.parametrize("every, trips", [*itertools.product(["1", "3", "auto"], [1, 3, 5, 9])])
def test_loop_of_a_length_known_at_run_time(every, trips):
    same(FOR.format(trips="trips = Identity(n)"), every, (0, 99), {"n": np.array(trips)}, N=trips)


WHILE = """g (float[3] h, int64 n, float[3] w) => (float[3] y) {{
  yes = Constant <value = bool {{1}}> ()
  y = Loop ({n}, yes, h) <body = step (int64 i, bool go, float[3] a) => (bool more, float[3] b) {{
    m = Mul(a, w) f = Cast <to = 1> (i) t = Constant <value_float = 0.1> () u = Mul(f, t) k = Add(m, u) b = Sin(k)
    limit = Constant <value_int = 6> () more = Less(i, limit)
  }}>
}}"""


@pytest.mark.parametrize("n, every", [("n", "2"), ("n", "auto"), ("n", "1"), ("", "3"), ("", "4")])
@pytest.mark.parametrize("trips", [0, 4, 5, 20])
def test_loop_that_ends_early(n, every, trips):
    same(WHILE.format(n=n), every, (0, 99), {"n": np.array(trips)})


def test_gradient_and_higher_order():
    text = SCAN.format(T=7).replace("float[7,3] ys)", "float loss)")
    text = text.rstrip()[:-1] + "loss = ReduceSum <keepdims = 0> (ys) }"
    primal = parser.parse_model(HEAD + text)
    got = ad.gradient(primal, output="loss", inputs=["h", "w"], checkpoint="auto")
    want = ad.gradient(primal, output="loss", inputs=["h", "w"])
    feeds = feeds_of(want)
    for a, b in zip(evaluate(got, feeds, 0).values(), evaluate(want, feeds, 0).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    one = run_pipeline(primal, "reverse{checkpoint=3},forward")
    two = run_pipeline(primal, "reverse,forward")
    feeds = feeds_of(two)
    a, b = evaluate(one, feeds, 0), evaluate(two, feeds, 0)
    for name in b:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_what_is_kept():
    """The primal loop over blocks yields one state per block, and nothing else of its iterations."""
    model = same(SCAN.format(T=12), "4", levels=(0,))
    outer = next(n for n in model.graph.node if n.op_type == "Scan")
    (body,) = [a.g for a in outer.attribute if a.name == "body"]
    (inner,) = [n for n in body.node if n.op_type == "Scan"]
    assert len(outer.output) == 3 and len(inner.output) == 2


def test_loops_of_functions_that_are_kept():
    primal = parser.parse_model(
        HEAD.replace('"" : 18', '"" : 18, "f" : 1')
        + """g (float[3] h, float[8,3] xs) => (float[3] y) { t = f.run(h, xs) y = f.run(t, xs) }
        <domain: "f", opset_import: ["" : 18]> run (h, xs) => (y) {
          y = Scan <num_scan_inputs = 1, body = step (a, x) => (b) { m = Mul(a, x) b = Tanh(m) }> (h, xs)
        }"""
    )
    kept = run_pipeline(primal, "reverse{functions=keep checkpoint=3}")
    plain = run_pipeline(primal, "reverse")
    (f,) = [f for f in kept.functions if f.name == "run"]
    assert [n.op_type for n in f.node].count("Scan") == 2
    feeds = feeds_of(plain)
    for a, b in zip(evaluate(kept, feeds, 0).values(), evaluate(plain, feeds, 0).values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_errors():
    primal = parser.parse_model(HEAD + SCAN.format(T=8))
    for every in ("0", "-1", "sometimes"):
        with pytest.raises(UsageError, match="checkpoint is a number"):
            run_pipeline(primal, f"reverse{{checkpoint={every}}}")
    with pytest.raises(ad.UnsupportedOperator, match="name a number of iterations"):
        run_pipeline(parser.parse_model(HEAD + WHILE.format(n="")), "reverse{checkpoint=auto}")
    early = FOR.format(trips="trips = Identity(n)").replace("more = Identity(go)", "l = Add(i, i) more = Less(l, n)")
    with pytest.raises(ad.UnsupportedOperator, match="it stacks results"):
        run_pipeline(parser.parse_model(HEAD + early), "reverse{checkpoint=2}")
    noisy = SCAN.format(T=8).replace("b = Tanh(s)", "r = RandomNormalLike(s) v = Add(r, s) b = Tanh(v)")
    with pytest.raises(ad.UnsupportedOperator, match="other numbers"):
        run_pipeline(parser.parse_model(HEAD + noisy), "reverse{checkpoint=2}")
    called = parser.parse_model(
        HEAD.replace('"" : 18', '"" : 18, "f" : 1')
        + SCAN.format(T=8).replace("b = Tanh(s)", "r = f.noise(s) v = Add(r, s) b = Tanh(v)")
        + '<domain: "f", opset_import: ["" : 18]> noise (a) => (b) { b = RandomNormalLike(a) }'
    )
    with pytest.raises(ad.UnsupportedOperator, match="other numbers"):
        run_pipeline(called, "reverse{checkpoint=2 functions=keep}")
