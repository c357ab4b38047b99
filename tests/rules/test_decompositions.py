"""What is written in place of an operator depends on its operands, whatever is there already or known about them."""

import numpy as np
import onnx
import pytest
from support import session

from onnxad_passes import forward, reverse

HEAD = '<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]> g '
R = np.random.default_rng(0)


def both_modes(text, shapes, wrt):
    """Adjoints of `wrt`, and the error of the tangent in their inner product with the cotangents."""
    m = onnx.parser.parse_model(HEAD + text)
    feeds = {k: R.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    outputs = [o.name for o in m.graph.output]
    values = session(m).run(None, feeds)
    seeds = {f"adj_{o}": R.standard_normal(v.shape).astype(np.float32) for o, v in zip(outputs, values, strict=True)}
    adjoints = session(reverse(m, inputs=wrt, layout="single")).run([f"adj_{n}" for n in wrt], {**feeds, **seeds})
    ts = {f"fwd_{n}": R.standard_normal(shapes[n]).astype(np.float32) for n in wrt}
    pushed = session(forward(m, inputs=wrt, layout="single")).run([f"fwd_{o}" for o in outputs], {**feeds, **ts})
    ahead = sum(np.vdot(a, b) for a, b in zip(pushed, seeds.values(), strict=True))
    back = sum(np.vdot(a, b) for a, b in zip(adjoints, ts.values(), strict=True))
    return feeds, seeds, adjoints, float(abs(ahead - back) / (1 + abs(back)))


@pytest.mark.parametrize("copies", [1, 2])
def test_two_operators_that_begin_alike(copies):
    """Both transpose x: the second finds the first one's result."""
    second = "z = com.microsoft.FusedMatMul <transA = 1> (x, w)"
    text = f"(float[3,2] x, float[3,4] v, float[3,4] w) => (float[2,4] y, float[2,4] z) {{ y = com.microsoft.FusedMatMul <transA = 1> (x, v) {second} }}"
    wrt = ["x", "v", "w"][: copies + 1]
    f, s, got, error = both_modes(text, {"x": (3, 2), "v": (3, 4), "w": (3, 4)}, wrt)
    np.testing.assert_allclose(got[0], f["v"] @ s["adj_y"].T + f["w"] @ s["adj_z"].T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], f["x"] @ s["adj_y"], rtol=1e-5, atol=1e-5)
    assert error < 1e-5


def test_an_operand_that_is_undone():
    """The transpose of a transpose is known, but the way from w is the one that counts."""
    text = "(float[2,3] x, float[3,4] z) => (float[2,4] y) { w = Transpose <perm = [1, 0]> (z) y = com.microsoft.FusedMatMul <transB = 1> (x, w) }"
    f, s, (got,), error = both_modes(text, {"x": (2, 3), "z": (3, 4)}, ["z"])
    np.testing.assert_allclose(got, f["x"].T @ s["adj_y"], rtol=1e-5, atol=1e-5)
    assert error < 1e-5


def test_an_operand_that_is_a_reshape():
    """A reshape of a reshape is one reshape."""
    text = """(float[1,2,5,6] x, float[12,2] t) => (float[1,2,3,4] y) {
        s = Constant <value = int64[4] {1, 3, 4, 2}> ()
        u = Tanh (t)
        grid = Reshape (u, s)
        y = GridSample <align_corners = 1, mode = "cubic"> (x, grid) }"""
    shapes = {"x": (1, 2, 5, 6), "t": (12, 2)}
    f, s, (got,), error = both_modes(text, shapes, ["t"])
    assert error < 1e-5 and np.abs(got).max() > 0.01
    run = session(onnx.parser.parse_model(HEAD + text))
    e = R.standard_normal((12, 2)).astype(np.float32)
    up, down = (run.run(None, {**f, "t": f["t"] + h * e})[0].astype(np.float64) for h in (1e-3, -1e-3))
    assert np.vdot(got, e) == pytest.approx(np.vdot((up - down) / 2e-3, s["adj_y"]), rel=2e-2)
