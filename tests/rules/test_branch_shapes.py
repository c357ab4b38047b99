"""Branches of an If whose shapes differ from each other or from what is declared, or are known by the If alone."""

import numpy as np
import onnx
import pytest
from onnx import parser
from support import evaluate

from onnxad_passes import forward, reverse, run_pipeline

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def model(text):
    return parser.parse_model(HEAD + text)


#: Exporters write such branches: the result was traced with the rank of the first.
DECLARED = """g (float[2,3] x, bool c) => (float[2,3] y) {
    y = If (c) <
        then_branch = then_g () => (float t) { t = Mul(x, x) },
        else_branch = else_g () => (float e) { axes = Constant<value_ints = [1]>() s = Exp(x) %s }
    >
}"""
OTHERS = [
    "e = ReduceSum<keepdims = 0>(s, axes)",  # of another rank
    "e = ReduceMean<keepdims = 1>(s, axes)",  # of another extent
    "p = Unsqueeze(s, axes) q = Exp(p) e = Mul(q, p)",
    "d = Shape(s) r = Reshape(s, d) n = NonZero(r) f = Cast<to = 1>(n) g = Exp(s) k = ReduceSum<keepdims = 0>(g) "
    "e = Mul(f, k)",
    "k = Constant<value_ints = [1]>() e, i = TopK(s, k)",
    "e = Concat<axis = 0>(s, s)",
    "w = Transpose(s) e = MatMul(s, w)",
    "k = Constant<value_ints = [6]>() r = Reshape(s, k) f = Exp(r) e = Softmax<axis = 0>(f)",
]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("level", [0, 99])
def test_a_branch_that_contradicts_the_declared_result(other, level):
    m = model(DECLARED % other)
    out = reverse(m, layout="single")
    got = evaluate(out, {"x": X, "c": np.array(True), "adj_y": X}, level)
    np.testing.assert_allclose(got["adj_x"], 2 * X * X, rtol=1e-6)
    second = forward(out, ["x"], layout="single")
    feeds = {"x": X, "c": np.array(True), "adj_y": X, "fwd_x": np.ones_like(X)}
    np.testing.assert_allclose(evaluate(second, feeds, level)["fwd_adj_x"], 2 * X, rtol=1e-6)


@pytest.mark.parametrize("then", ["e", "Sin"])
@pytest.mark.parametrize("level", [0, 99])
def test_branches_inside_of_a_branch_that_contradict_the_declared_result(then, level):
    """What the inner If returns has no extents of its own: a runtime that sees the declared ones there fails to load."""
    last = "e = Sin(v)" if then == "Sin" else "e = Identity(v)"
    m = model(
        f"""g (float[2,3] x, bool c, bool d) => (float[2,3] y) {{
        y = If (c) <
            then_branch = outer_then () => (float t) {{ t = Mul(x, x) }},
            else_branch = outer_else () => (float e) {{
                v = If (d) <
                    then_branch = inner_then () => (float r) {{ p = Exp(x) q = Transpose(p) r = MatMul(p, q) }},
                    else_branch = inner_else () => (float s) {{ s = Concat<axis = 0>(x, x) }}
                >
                {last}
            }}
        >
    }}"""
    )
    out = reverse(m, layout="single")
    got = evaluate(out, {"x": X, "c": np.array(True), "d": np.array(True), "adj_y": X}, level)
    np.testing.assert_allclose(got["adj_x"], 2 * X * X, rtol=1e-6)


@pytest.mark.parametrize("level", [0, 99])
def test_a_branch_that_contradicts_what_a_runtime_finds_out(level):
    """Nothing is declared of v; the cotangent that a product gives it has known extents, as seen by a runtime."""
    m = model(
        """g (float[3,3] x, bool c) => (float[3,3] y) {
            v = If (c) <
                then_branch = then_g () => (float t) { t = Sin(x) },
                else_branch = else_g () => (float e) {
                    pads = Constant<value_ints = [1, 2, 0, 1]>() e = Pad<mode = "edge">(x, pads) }
            >
            y = MatMul(x, v)
        }"""
    )
    out = reverse(m, layout="single")
    x = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
    ct = np.cos(x)
    got = evaluate(out, {"x": x, "c": np.array(True), "adj_y": ct}, level)
    np.testing.assert_allclose(got["adj_x"], ct @ np.sin(x).T + (x.T @ ct) * np.cos(x), rtol=1e-5)


def test_branches_of_different_ranks():
    text = """g (float[2,3] x, bool c) => (float l) {
        v = If (c) <
            then_branch = then_g () => (float t) { t = Mul(x, x) },
            else_branch = else_g () => (float e) { k = Constant<value_ints = [1]>() e = ReduceSum<keepdims = 0>(x, k) }
        >
        s = Sin(v) l = ReduceSum<keepdims = 0>(s)
    }"""
    out = reverse(model(text), layout="single")
    for flag, want in ((True, 2 * X * np.cos(X * X)), (False, np.cos(X.sum(1, keepdims=True)) * np.ones_like(X))):
        got = evaluate(out, {"x": X, "c": np.array(flag), "adj_l": np.array(1, np.float32)}, 0)
        np.testing.assert_allclose(got["adj_x"], want, rtol=1e-5)


def test_the_zero_tangent_of_a_branch_does_not_read_the_result():
    """The extent S is known by the result of the If only, which its own branches cannot read."""
    text = """g (float[2,3] x, bool[4] mask, bool c) => (float[S,3] y) <float[4,3] w = {
        1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0}> {
        v = If (c) <
            then_branch = then_g () => (float[S,3] t) { t = Compress<axis = 0>(w, mask) },
            else_branch = else_g () => (float[S,3] e) { e = Sin(x) }
        >
        y = Exp(v)
    }"""
    m = model(text)
    m.graph.value_info.append(onnx.helper.make_tensor_value_info("v", 1, ["S", 3]))
    out = run_pipeline(m, "forward")
    onnx.checker.check_model(out, full_check=True)
    mask = np.array([True, False, False, True])
    feeds = {"x": X, "mask": mask, "fwd_x": np.ones_like(X)}
    assert not evaluate(out, {**feeds, "c": np.array(True)}, 0)["fwd_y"].any()
    got = evaluate(out, {**feeds, "c": np.array(False)}, 0)["fwd_y"]
    np.testing.assert_allclose(got, np.exp(np.sin(X)) * np.cos(X), rtol=1e-5)


def test_a_branch_that_reads_what_is_differentiated_only_for_its_shape():
    """Nothing is left of the adjoint of such an If: no node, and no use of the cotangent."""
    text = """g (float[2,3] x, bool c) => (float[2,3] y) {
        v = If (c) <
            then_branch = then_g () => (float[2,3] t) { s = Shape(x) t = ConstantOfShape(s) },
            else_branch = else_g () => (float e) { s = Shape(x) o = ConstantOfShape(s) e = Concat<axis = 0>(o, o) }
        >
        y = Sin(v)
    }"""
    out = run_pipeline(model(text), "reverse")
    assert [n.op_type for n in out.graph.node if n.op_type != "If"] in (["Sin"], ["Sin", "Identity"])
    assert not evaluate(out, {"x": X, "c": np.array(True), "adj_y": X}, 0)["adj_x"].any()
