"""Dense Jacobians and Hessians, and vectorize as a function: shapes, values, and how little is computed for them."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser
from orders import close, differences
from small import ops
from support import evaluate, retyped

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import gradient, hessian, jacobian, run_pipeline, vectorize

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(3)


def model(text, opset=18):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def weight(name, a):
    return f"double[{','.join(map(str, a.shape))}] {name} = {{{', '.join(map(repr, a.ravel().tolist()))}}}"


def dims(m):
    return {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in m.graph.output}


def columns(m, feeds, x):
    """The derivatives of every output by one input: differences along every element, which come last."""
    here = np.asarray(feeds[x])
    found = []
    for i in range(here.size):
        one = np.zeros(here.size)
        one[i] = 1
        found.append(differences(m, feeds, {x: one.reshape(here.shape)}))
    base = evaluate(m, feeds, 0)
    return {
        y: np.stack([f[y] for f in found], -1).reshape(v.shape + here.shape)
        if found
        else np.zeros(v.shape + here.shape)
        for y, v in base.items()
        if v.dtype == np.float64
    }


def check(m, feeds, tolerance=1e-7, levels=(0, 99), modes=("auto", "forward", "reverse"), **options):
    """The Jacobian in every mode against differences; the models."""
    base = evaluate(m, feeds, 0)
    xs = options.get("inputs") or [i.name for i in m.graph.input if i.type.tensor_type.elem_type == TensorProto.DOUBLE]
    want = {x: columns(m, feeds, x) for x in xs}
    out = []
    for mode in modes:
        jac = jacobian(m, mode=mode, **options)
        if m.graph.input[0].type.tensor_type.HasField("shape"):
            onnx.checker.check_model(jac, full_check=True)
        names = [f"jac_{y}_{x}" for y in base if y in want[xs[0]] for x in xs]
        assert [o.name for o in jac.graph.output] == [*base, *names]
        for level in levels:
            got = evaluate(jac, feeds, level)
            for y, v in base.items():
                close(got[y], v, 1e-13, ("primal", mode, y))
                for x in xs:
                    if y in want[x]:
                        close(got[f"jac_{y}_{x}"], want[x][y], tolerance, (mode, level, y, x))
        out.append(jac)
    return out


MODELS = {
    "vectors": (
        """g (double[3] x, double[2] u) => (double[2] y, double[2] z) <double[2,3] w = {1, -2, 0.5, 0.3, 0.7, -1}> {
          t = Tanh(x) a = MatMul(w, t) y = Mul(a, u) z = Exp(u) }""",
        dict(x=RNG.standard_normal(3), u=RNG.standard_normal(2)),
    ),
    "matrices": (
        """g (double[2,3] x) => (double[2,4] y) <double[3,4] w = {1, 0.2, -2, 0.5, 0.3, 0.7, -1, 0.1, -0.6, 0.4, 1, 2}> {
          t = Sigmoid(x) a = MatMul(t, w) y = Sin(a) }""",
        dict(x=RNG.standard_normal((2, 3))),
    ),
    "rows": (
        """g (double[1,3] x) => (double[1,2] y)
          <double[2,3] w = {1, 0.2, -2, 0.5, 0.3, 0.7}, double[2] b = {1, 2}, double[2,2] v = {1, 2, 3, 5}> {
          h = Gemm <transB = 1> (x, w, b) t = Tanh(h) y = Gemm <transB = 1, alpha = 0.5> (t, v) }""",
        dict(x=RNG.standard_normal((1, 3))),
    ),
    "scalars": (
        "g (double x, double[4] v) => (double y, double[4] z) { n = ReduceL2 <keepdims = 0> (v) s = Sin(x) y = Mul(s, n) z = Mul(v, x) }",
        dict(x=np.array(0.6), v=RNG.standard_normal(4)),
    ),
    "cubes": (
        "g (double[2,1,3] x, double[2,1] u) => (double[3,2,2] y) { t = Transpose <perm = [2, 1, 0]> (x) s = Mul(t, u) y = Exp(s) }",
        dict(x=RNG.standard_normal((2, 1, 3)), u=RNG.standard_normal((2, 1))),
    ),
    "place by place": (
        """g (double[2,3] x, double[3] u) => (double[2,3] y) <double c = {0.3}, double zero = {0}> {
          t = Tanh(x) n = Neg(t) m = Mul(n, u) d = Div(m, u) s = Sub(d, x) b = Greater(x, c) w = Where(b, s, zero) y = Add(w, t) }""",
        dict(x=RNG.standard_normal((2, 3)), u=np.array([0.5, -1, 2])),
    ),
    "apart": (
        "g (double[2] a, double[3] b) => (double[2] ya, double[3] yb) { ya = Exp(a) f = Floor(b) yb = Identity(f) }",
        dict(a=RNG.standard_normal(2), b=np.array([0.2, 0.5, -0.4])),
    ),
    "copied": (
        "g (double[2,2] x) => (double[2,2] y, double[4] z) <int64[1] s = {-1}> { y = Identity(x) z = Reshape(x, s) }",
        dict(x=RNG.standard_normal((2, 2))),
    ),
    "symbols": (
        """g (double[N,3] x, double[M] u) => (double[N,M] y, double[3] z) <double[3,1] w = {1, -2, 0.5}> {
          t = Tanh(x) a = MatMul(t, w) e = Exp(u) y = Mul(a, e) axes = Constant <value_ints = [0]> ()
          z = ReduceSum <keepdims = 0> (t, axes) }""",
        dict(x=RNG.standard_normal((2, 3)), u=RNG.standard_normal(4)),
    ),
    "unnamed extents": (
        "g (double[?,3] x) => (double[?,3] y) { t = Tanh(x) y = Mul(t, x) }",
        dict(x=RNG.standard_normal((2, 3))),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_jacobians(name):
    text, feeds = MODELS[name]
    for jac in check(model(text), feeds):
        assert "Scan" not in ops(jac)


def test_shapes():
    m = model(MODELS["symbols"][0])
    assert dims(jacobian(m)) == {
        "y": ["N", "M"], "z": [3],
        "jac_y_x": ["N", "M", "N", 3], "jac_y_u": ["N", "M", "M"], "jac_z_x": [3, "N", 3], "jac_z_u": [3, "M"],
    }  # fmt: skip
    assert dims(jacobian(model(MODELS["scalars"][0]), ["v"], ["y"])) == {"y": [], "z": [4], "jac_y_v": [4]}


def test_closed_form():
    v, w, x = RNG.standard_normal((5, 3)), RNG.standard_normal((2, 5)), RNG.standard_normal(3)
    m = model(
        f"g (double[3] x) => (double[2] y) <{weight('V', v)}, {weight('W', w)}> {{ a = MatMul(V, x) t = Tanh(a) y = MatMul(W, t) }}"
    )
    t = np.tanh(v @ x)
    for mode in ("auto", "forward", "reverse"):
        got = evaluate(jacobian(m, mode=mode), {"x": x}, 99)["jac_y_x"]
        close(got, w * (1 - t * t) @ v, 1e-14, mode)


def test_an_identity_times_a_matrix_is_no_product():
    """Rows of the outermost weight are scaled; the only products left are the model's and one with each further weight."""
    v, w = RNG.standard_normal((5, 3)), RNG.standard_normal((2, 5))
    text = f"g (double[3] x) => (double[2] y) <{weight('V', v)}, {weight('W', w)}> {{ a = MatMul(V, x) t = Tanh(a) y = MatMul(W, t) }}"
    for mode in ("forward", "reverse"):
        assert ops(jacobian(model(text), mode=mode)).count("MatMul") == 3
    rows = f"g (double[1,3] x) => (double[1,2] y) <{weight('V', v)}, {weight('W', w)}> {{ a = Gemm <transB = 1> (x, V) t = Tanh(a) y = Gemm <transB = 1> (t, W) }}"
    jac = jacobian(model(rows), mode="reverse")
    assert sum(o in ("MatMul", "Gemm") for o in ops(jac)) == 3
    x = RNG.standard_normal((1, 3))
    t = np.tanh(x @ v.T)
    close(evaluate(jac, {"x": x}, 99)["jac_y_x"], (w * (1 - t * t) @ v)[None, :, None], 1e-14, "rows")


def test_diagonals_stay_diagonals():
    """Place by place, nothing as large as the result is computed but the result itself."""
    text = "g (double[50] x) => (double[50] y) { t = Tanh(x) s = Sin(t) y = Exp(s) }"
    for mode in ("forward", "reverse"):
        jac = jacobian(model(text), mode=mode)
        every = onnx.shape_inference.infer_shapes(jac)
        big = [v.name for v in every.graph.value_info if len(v.type.tensor_type.shape.dim) == 2]
        assert not big
        x = RNG.standard_normal(50)
        slope = np.exp(np.sin(np.tanh(x))) * np.cos(np.tanh(x)) * (1 - np.tanh(x) ** 2)
        close(evaluate(jac, {"x": x}, 99)["jac_y_x"], np.diag(slope), 1e-14, mode)


def test_slopes_that_are_infinite_stay_where_they_are():
    m = model("g (double[2] x) => (double[2] y) { y = Sqrt(x) }")
    for mode in ("forward", "reverse"):
        got = evaluate(jacobian(m, mode=mode), {"x": np.array([0.0, 4.0])}, 0)["jac_y_x"]
        np.testing.assert_array_equal(got, [[np.inf, 0], [0, 0.25]])


def test_the_mode_with_fewer_directions():
    """Reverse mode where outputs are fewer than inputs, forward mode where they are not; each output has its own."""

    def modes(m):
        return {n.name.split("(")[0] for n in jacobian(m).graph.node if n.name.startswith(("forward", "reverse"))}

    wide = (
        "g (double[4] x) => (double[2] y) <double[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { t = Tanh(x) y = MatMul(t, w) }"
    )
    tall = (
        "g (double[2] x) => (double[4] y) <double[2,4] w = {1, 2, 3, 4, 5, 6, 7, 8}> { t = Tanh(x) y = MatMul(t, w) }"
    )
    assert modes(model(wide)) == {"reverse"}
    assert modes(model(tall)) == {"forward"}
    both = """g (double[3] x) => (double s, double[4] y) <double[3,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
      t = Tanh(x) q = MatMul(t, w) y = Exp(q) n = Sin(x) s = ReduceSum <keepdims = 0> (n) }"""
    assert modes(model(both)) == {"forward", "reverse"}
    assert modes(
        model(
            "g (double[N] x) => (double[2] y) { t = Sin(x) s = ReduceSum <keepdims = 0> (t) k = Constant <value_ints = [2]> () y = Expand(s, k) }"
        )
    ) == {"reverse"}
    with pytest.raises(UsageError, match="no mode 'sideways'; the modes are auto, forward, reverse"):
        jacobian(model(both), mode="sideways")


def test_weights_and_inner_values():
    m = model(
        "g (double[2,3] x) => (double[2,2] y) <double[3,2] w = {1, 2, -3, 0.4, 0.5, 0.6}> { h = Tanh(x) y = MatMul(h, w) }"
    )
    x = RNG.standard_normal((2, 3))
    w = np.array([1, 2, -3, 0.4, 0.5, 0.6]).reshape(3, 2)
    for mode in ("forward", "reverse"):
        got = evaluate(jacobian(m, ["w", "h"], mode=mode), {"x": x}, 99)
        close(got["jac_y_w"], np.einsum("ia,bc->ibac", np.tanh(x), np.eye(2)), 1e-14, "weight")
        close(got["jac_y_h"], np.einsum("ij,cb->ibjc", np.eye(2), w), 1e-14, "inner value")


def test_inner_values_that_are_a_derivative():
    """y is linear in w, and the derivative is the inner value h, whose derivative is asked for as well."""
    m = model("g (double[2,3] x) => (double[2] y) <double[3] w = {1, 2, -3}> { h = Exp(x) y = MatMul(h, w) }")
    x = RNG.standard_normal((2, 3))
    for mode in ("forward", "reverse"):
        got = evaluate(jacobian(m, ["w", "h"], mode=mode), {"x": x}, 99)
        close(got["jac_y_w"], np.exp(x), 1e-14, "weight")
        close(got["jac_y_h"], np.einsum("ij,k->ijk", np.eye(2), [1, 2, -3]), 1e-14, "inner value")


def test_empty_values():
    m = model("g (double[0,2] x, double[2] u) => (double[0,2] y) { t = Tanh(x) y = Mul(t, u) }")
    s = model("g (double[N,2] x, double[2] u) => (double[N,2] y) { t = Tanh(x) y = Mul(t, u) }")
    for each in (m, s):
        for mode in ("auto", "forward", "reverse"):
            got = evaluate(jacobian(each, mode=mode), {"x": np.zeros((0, 2)), "u": np.ones(2)}, 0)
            assert got["jac_y_x"].shape == (0, 2, 0, 2) and got["jac_y_u"].shape == (0, 2, 2)


def test_unknown_ranks():
    m = model("g (double[2,3] x) => (double[2,3] y) { t = Tanh(x) y = Mul(t, x) }")
    for v in (m.graph.input[0], m.graph.output[0]):
        v.type.tensor_type.ClearField("shape")
    check(m, {"x": RNG.standard_normal((2, 3))})


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_element_types(kind):
    text, feeds = MODELS["matrices"]
    want = evaluate(jacobian(model(text)), feeds, 99)["jac_y_x"]
    m = retyped(model(text.replace("double", "float")), kind)
    narrow = onnx.helper.tensor_dtype_to_np_dtype(kind)
    for mode in ("forward", "reverse"):
        got = evaluate(jacobian(m, mode=mode), {"x": feeds["x"].astype(narrow)}, 99)["jac_y_x"]
        assert got.dtype == narrow
        close(got, want, 1e-6 if kind == TensorProto.FLOAT else 1e-2, mode)


def test_element_types_that_differ():
    """A block has the element type of what it is differentiated with respect to, whatever the mode."""
    m = model("g (float[3] x) => (double[3] y) { s = Sin(x) y = Cast <to = 11> (s) }")
    x = np.array([0.1, -0.4, 2], np.float32)
    for mode in ("forward", "reverse"):
        got = evaluate(jacobian(m, mode=mode), {"x": x}, 99)["jac_y_x"]
        assert got.dtype == np.float32
        close(got, np.diag(np.cos(x)), 1e-6, mode)


def test_control_flow():
    scan = """g (double[2] s, double[3,2] us) => (double[2] e) {
      e, all = Scan <num_scan_inputs = 1, body = b (double[2] p, double[2] u) => (double[2] q, double[2] o) {
        t = Tanh(p) m = Mul(t, u) q = Add(m, p) o = Identity(q) }> (s, us) }"""
    check(model(scan), dict(s=RNG.standard_normal(2), us=RNG.standard_normal((3, 2))))


def test_hessian_through_control_flow():
    """A loop over what is differentiated, and a branch: one derivative after the other is taken of the same nodes."""
    text = """g (double[2] s, double[3,2] us, bool c) => (double y) {
      e, all = Scan <num_scan_inputs = 1, body = b (double[2] p, double[2] u) => (double[2] q, double[2] o) {
        t = Tanh(p) m = Mul(t, u) q = Add(m, p) o = Identity(q) }> (s, us)
      f = If (c) <then_branch = t () => (double[2] a) { a = Mul(e, s) }, else_branch = f () => (double[2] b) { b = Exp(e) }>
      y = ReduceSum <keepdims = 0> (f) }"""
    m = model(text)
    hess, grad = hessian(m), gradient(m)
    for c in (True, False):
        feeds = dict(s=RNG.standard_normal(2), us=RNG.standard_normal((3, 2)), c=np.array(c))
        got = evaluate(hess, feeds, 99)
        for b in ("s", "us"):
            want = columns(grad, feeds, b)
            for a in ("s", "us"):
                close(got[f"hess_{a}_{b}"], want[f"grad_{a}"], 1e-7, (c, a, b))


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_a_last_operator_that_runs_direction_by_direction(mode):
    """Nothing reads its result yet when it is written as a Scan: a resized batch, whose Jacobian is its own columns."""
    m = model(
        """g (float[2,3] x) => (float[3,5] y) <int64[2] sizes = {3, 5}> { y = Resize <mode = "linear"> (x, , , sizes) }"""
    )
    jac = jacobian(m, mode=mode)
    units = np.eye(6, dtype=np.float32).reshape(6, 2, 3)
    want = np.stack([evaluate(m, {"x": u}, 0)["y"] for u in units], -1).reshape(3, 5, 2, 3)
    close(evaluate(jac, {"x": units[0]}, 0)["jac_y_x"], want, 1e-6, mode)


def test_larger_identities_are_made_at_run_time():
    m = model(
        "g (float[100] x) => (float[100] y) <float two = {2}, int64 zero = {0}> { c = CumSum(x, zero) y = Mul(c, two) }"
    )
    jac = jacobian(m)
    assert jac.ByteSize() < 3000
    got = evaluate(jac, {"x": np.ones(100, np.float32)}, 99)["jac_y_x"]
    np.testing.assert_allclose(got, 2 * np.tril(np.ones((100, 100))))


def test_names_that_clash():
    m = model("g (double[2] x) => (double[2] y, double[2] jac_y_x) { y = Exp(x) jac_y_x = Sin(x) }")
    assert "jac2_y_x" in dims(jacobian(m))
    with pytest.raises(UsageError, match="would clash"):
        run_pipeline(m, "jacobian{prefix=jac_}")
    s = model("g (seq(double[2]) s) => (double[N] y) { y = ConcatFromSequence <axis = 0> (s) }")
    with pytest.raises(UsageError, match="'s' is no tensor"):
        jacobian(s, ["s"])


# --- Hessians

SCALAR = {
    "one": (
        "g (double[3] x) => (double y) <double[3,3] a = {1, 2, 0, 0, 3, -1, 0.5, 0, 1}> { s = Sin(x) q = MatMul(a, s) p = Mul(q, x) y = ReduceSum <keepdims = 0> (p) }",
        dict(x=RNG.standard_normal(3)),
    ),
    "two": (
        """g (double[2,3] x, double[2] u, double c) => (double[1,1] y) { t = Tanh(x) m = MatMul(u, t) q = Mul(m, m) s = Mul(q, c)
          k = Constant <value_ints = [1, 3]> () r = Reshape(s, k) axes = Constant <value_ints = [1]> () y = ReduceSum(r, axes) }""",
        dict(x=RNG.standard_normal((2, 3)), u=RNG.standard_normal(2), c=np.array(0.7)),
    ),
    "symbols": (
        "g (double[N,2] x, double[2] u) => (double y) { m = MatMul(x, u) e = Exp(m) y = ReduceSum <keepdims = 0> (e) }",
        dict(x=RNG.standard_normal((3, 2)), u=RNG.standard_normal(2)),
    ),
    "linear": (
        "g (double[3] x, double[2] u) => (double y) { a = ReduceSum <keepdims = 0> (x) b = ReduceSumSquare <keepdims = 0> (u) y = Add(a, b) }",
        dict(x=RNG.standard_normal(3), u=RNG.standard_normal(2)),
    ),
}


@pytest.mark.parametrize("name", SCALAR)
def test_hessians(name):
    text, feeds = SCALAR[name]
    m = model(text)
    hess, grad = hessian(m), gradient(m)
    onnx.checker.check_model(hess, full_check=True)
    assert [o.name for o in hess.graph.output] == ["y", *(f"hess_{a}_{b}" for a in feeds for b in feeds)]
    assert "Scan" not in ops(hess)
    shapes = {i.name: [d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in m.graph.input}
    for level in (0, 99):
        got = evaluate(hess, feeds, level)
        for b in feeds:
            want = columns(grad, feeds, b)
            for a in feeds:
                close(got[f"hess_{a}_{b}"], want[f"grad_{a}"], 1e-7, (level, a, b))
                assert dims(hess)[f"hess_{a}_{b}"] == shapes[a] + shapes[b]
                turned = np.moveaxis(got[f"hess_{b}_{a}"], range(np.ndim(feeds[b])), range(-np.ndim(feeds[b]), 0))
                np.testing.assert_allclose(got[f"hess_{a}_{b}"], turned, rtol=1e-12, atol=1e-14)


def test_hessian_in_closed_form():
    a, x = RNG.standard_normal((4, 4)), RNG.standard_normal(4)
    m = model(
        f"g (double[4] x) => (double y, double[4] s) <{weight('A', a)}> {{ q = MatMul(A, x) p = Mul(x, q) y = ReduceSum <keepdims = 0> (p) s = Sin(x) }}"
    )
    close(evaluate(hessian(m, "y"), {"x": x}, 99)["hess_x_x"], a + a.T, 1e-14, "quadratic")
    with pytest.raises(UsageError, match="name the one to differentiate"):
        hessian(m)
    with pytest.raises(UsageError, match="one element"):
        hessian(m, "s")


def test_hessian_with_respect_to_weights():
    m = model(
        "g (double[2] x) => (double y) <double[3,2] w = {1, 2, -3, 0.4, 0.5, 0.6}> { h = MatMul(w, x) e = Exp(h) y = ReduceSum <keepdims = 0> (e) }"
    )
    x, w = RNG.standard_normal(2), np.array([1, 2, -3, 0.4, 0.5, 0.6]).reshape(3, 2)
    got = evaluate(hessian(m, inputs=["w"]), {"x": x}, 99)["hess_w_w"]
    close(got, np.einsum("ij,i,a,b->iajb", np.eye(3), np.exp(w @ x), x, x), 1e-13, "weights")


def test_pipelines():
    m = model(SCALAR["two"][0])
    assert run_pipeline(m, "jacobian{mode=reverse}") == jacobian(m, mode="reverse")
    assert run_pipeline(m, "hessian{output=y inputs=u,x}") == hessian(m, "y", ["u", "x"])
    # a Hessian is the Jacobian of the gradient
    feeds = SCALAR["two"][1]
    got = evaluate(run_pipeline(m, "gradient{inputs=u},jacobian{inputs=u outputs=grad_u}"), feeds, 99)["jac_grad_u_u"]
    close(got, evaluate(hessian(m, inputs="u"), feeds, 99)["hess_u_u"], 1e-12, "jacobian of gradient")


def test_vectorize():
    m = model(MODELS["vectors"][0])
    x, u = RNG.standard_normal((4, 3)), RNG.standard_normal(2)
    batched = vectorize(m, ["x"])
    assert dims(batched) == {"y": ["batch", 2], "z": [2]}
    want = [evaluate(m, {"x": v, "u": u}, 99)["y"] for v in x]
    close(evaluate(batched, {"x": x, "u": u}, 99)["y"], np.stack(want), 1e-14, "y")
    every = vectorize(m, dim="k")
    assert dims(every) == {"y": ["k", 2], "z": ["k", 2]}
    assert run_pipeline(m, "vectorize{inputs=x}") == batched
    # per-example gradients
    loss = gradient(model(SCALAR["one"][0]))
    each = evaluate(vectorize(loss, ["x"]), {"x": x}, 99)["grad_x"]
    close(each, np.stack([evaluate(loss, {"x": v}, 99)["grad_x"] for v in x]), 1e-13, "gradients")
    with pytest.raises(UsageError, match="no input called 'q'"):
        vectorize(m, ["q"])


def test_the_example_of_the_readme(monkeypatch):
    monkeypatch.chdir(ROOT)
    section = (ROOT / "README.md").read_text().split("## Jacobians, Hessians, several directions")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    found = {}
    exec(code, found)
    assert found["matrix"].shape == (10, 10)
    np.testing.assert_allclose(found["matrix"].sum(0), 0, atol=1e-6)  # a shift of all logits changes nothing
    assert dims(found["jac"])["jac_logits_head.2.weight"] == ["batch", 10, 10, 48]
    assert found["several"].graph.input[-1].name == "adj_logits"
    assert dims(found["batched"])["logits"] == ["group", "batch", 10]
