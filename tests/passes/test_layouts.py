"""Several directions in one evaluation: every layout, against finite differences and closed forms, up to order three."""

from itertools import product

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser
from orders import close, differences
from small import ops
from support import evaluate, retyped

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import forward, gradient, reverse, run_pipeline, unroll, vectorize

LAYOUTS = ("casadi", "onnx", "leading")
RNG = np.random.default_rng(7)


def model(text, opset=18):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def matrix(d):
    """A value as CasADi sees it: rows and columns."""
    return d.reshape(1, 1) if d.ndim == 0 else d if d.ndim == 2 else d.reshape(-1, 1)


def packed(directions, layout):
    """Directions [n, *shape] as a layout has them."""
    if layout == "casadi":
        rows = matrix(np.zeros(directions.shape[1:])).shape[0]
        return np.hstack([np.zeros((rows, 0)), *map(matrix, directions)]).astype(directions.dtype)
    return np.moveaxis(directions, 0, -1) if layout == "onnx" else directions


def random(n, like):
    return np.asarray(RNG.standard_normal((n, *np.shape(like))))


def seeds_size(directions):
    return int(np.prod(directions.shape[1:]))


def dims(info):
    return [d.dim_param or d.dim_value for d in info.type.tensor_type.shape.dim]


def signature(m):
    return {v.name: dims(v) for v in (*m.graph.input, *m.graph.output)}


def added(old, new):
    """Names of inputs and outputs that a derivative model has on top."""
    ins, outs = ([v.name for v in getattr(new.graph, k)][len(getattr(old.graph, k)) :] for k in ("input", "output"))
    return ins, outs


def step(m, feeds, mode, layout, n, levels=(0, 99), inputs=None, tolerance=1e-7):
    """The derivative of a model, checked against differences of that model; with it, feeds of its inputs."""
    d = {"forward": forward, "reverse": reverse}[mode](m, inputs, layout=layout)
    if m.graph.input[0].type.tensor_type.HasField("shape"):  # onnx's checker wants ranks of inputs and outputs
        onnx.checker.check_model(d, full_check=True)
    seeds, results = added(m, d)
    cut = len(seeds[0]) - len(m.graph.input[0].name) if mode == "forward" and inputs is None else None
    prefix = seeds[0][: cut if cut is not None else seeds[0].index("_") + 1]
    base = evaluate(m, feeds, 0)
    value = feeds if mode == "forward" else base
    directions = {s: random(n, value[s[len(prefix) :]]) for s in seeds}
    out = {**feeds, **{s: packed(v, layout) for s, v in directions.items()}}
    if mode == "forward":
        moved = [{s[len(prefix) :]: v[k] for s, v in directions.items()} for k in range(n)]
        each = [differences(m, feeds, d) for d in moved]
        want = {r: [e[r[len(prefix) :]] for e in each] for r in results}
    else:
        # the whole Jacobian, an element at a time
        want = {}
        for r in results:
            x = np.asarray(feeds[r[len(prefix) :]])
            grads = np.zeros((n, x.size))
            for i in range(x.size):
                one = np.zeros(x.size)
                one[i] = 1
                along = differences(m, feeds, {r[len(prefix) :]: one.reshape(x.shape)})
                for s, v in directions.items():
                    grads[:, i] += (v * along[s[len(prefix) :]]).reshape(n, seeds_size(v)).sum(1)
            want[r] = list(grads.reshape(n, *x.shape))
    for level in levels:
        got = evaluate(d, out, level)
        for name, v in base.items():
            close(got[name], v, 1e-13, ("primal", level, name))
        for r in results:
            v = (
                np.asarray(want[r])
                if n
                else np.zeros((0, *np.shape(base.get(r[len(prefix) :], feeds.get(r[len(prefix) :])))))
            )
            close(got[r], packed(v, layout), tolerance, (mode, layout, level, r))
    return d, out


MODELS = {
    "vectors": (
        """g (double[3] x, double[2] u) => (double[2] y, double[2] z) <double[2,3] w = {1, -2, 0.5, 0.3, 0.7, -1}> {
          t = Tanh(x) a = MatMul(w, t) y = Mul(a, u) z = Exp(u) }""",
        dict(x=np.array([0.3, -0.7, 0.2]), u=np.array([0.5, -0.4])),
    ),
    "matrices": (
        """g (double[2,3] x) => (double[2,4] y) <double[3,4] w = {1, 0.2, -2, 0.5, 0.3, 0.7, -1, 0.1, -0.6, 0.4, 1, 2}> {
          t = Sigmoid(x) y = MatMul(t, w) }""",
        dict(x=RNG.standard_normal((2, 3))),
    ),
    "transposed": (
        "g (double[3,2] x) => (double[2,3] y) { e = Sin(x) t = Transpose <perm = [1, 0]> (x) s = Transpose(e) y = Mul(s, t) }",
        dict(x=RNG.standard_normal((3, 2))),
    ),
    "row and column": (
        "g (double[1,3] x, double[2,1] u) => (double[2,3] y, double[1,3] r) { t = Tanh(x) y = Mul(t, u) r = Mul(t, t) }",
        dict(x=RNG.standard_normal((1, 3)), u=RNG.standard_normal((2, 1))),
    ),
    "cubes": (
        "g (double[2,3,2] x) => (double[2,2,3] y) { t = Transpose <perm = [2, 0, 1]> (x) e = Tanh(t) y = Mul(e, t) }",
        dict(x=RNG.standard_normal((2, 3, 2))),
    ),
    "scalars": (
        "g (double x, double[4] v) => (double y) { s = Sigmoid(x) n = ReduceL2 <keepdims = 0> (v) y = Mul(s, n) }",
        dict(x=np.array(0.7), v=RNG.standard_normal(4)),
    ),
    "apart": (
        "g (double[2] a, double[3,2] b) => (double[2] ya, double[3,2] yb) { ya = Exp(a) yb = Mul(b, b) }",
        dict(a=RNG.standard_normal(2), b=RNG.standard_normal((3, 2))),
    ),
    "copied": (
        "g (double[2,3] x) => (double[2,3] y, double[2,3] z) { y = Identity(x) z = Identity(x) }",
        dict(x=RNG.standard_normal((2, 3))),
    ),
    "symbols": (
        """g (double[N,3] x, double[M] u) => (double[N,M] y, double[M,N] z) <double[3,1] w = {1, -2, 0.5}> {
          t = Tanh(x) a = MatMul(t, w) e = Exp(u) y = Mul(a, e) z = Transpose(y) }""",
        dict(x=RNG.standard_normal((2, 3)), u=RNG.standard_normal(4)),
    ),
    "symbolic cubes": (
        "g (double[N,2,M] x) => (double[M,N,2] y) { t = Transpose <perm = [2, 0, 1]> (x) s = Sin(t) y = Mul(s, t) }",
        dict(x=RNG.standard_normal((3, 2, 2))),
    ),
    "of unnamed extents": (
        "g (double[?,3] x, double[?,3] u) => (double[?,?] y) { t = Tanh(x) s = Transpose(u) y = MatMul(t, s) }",
        dict(x=RNG.standard_normal((2, 3)), u=RNG.standard_normal((4, 3))),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_first_order(name, layout):
    text, feeds = MODELS[name]
    m = model(text)
    for mode in ("forward", "reverse"):
        for n in (1, 3):
            d, _ = step(m, feeds, mode, layout, n)
        assert "Scan" not in ops(d)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["vectors", "matrices", "row and column", "cubes", "scalars", "apart", "symbols"])
def test_second_order(name, layout):
    text, feeds = MODELS[name]
    for first, second in product(("forward", "reverse"), repeat=2):
        d, more = step(model(text), feeds, first, layout, 2, levels=())
        dd, _ = step(d, more, second, layout, 3)
        assert "Scan" not in ops(dd)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("modes", [("reverse", "forward", "forward"), ("reverse", "reverse", "forward")])
def test_third_order(modes, layout):
    text, feeds = MODELS["transposed"]
    m = model(text)
    for k, mode in enumerate(modes):
        m, feeds = step(m, feeds, mode, layout, (2, 3, 2)[k], levels=() if k < 2 else (0, 99), tolerance=1e-6)


def test_closed_form():
    """y = W tanh(V x): both modes, and forward over reverse, written down in numpy."""
    v, w = RNG.standard_normal((4, 3)), RNG.standard_normal((2, 4))
    text = ", ".join(
        f"double[{a.shape[0]},{a.shape[1]}] {k} = {{{', '.join(map(repr, a.ravel().tolist()))}}}"
        for k, a in (("V", v), ("W", w))
    )
    m = model(f"g (double[3] x) => (double[2] y) <{text}> {{ a = MatMul(V, x) t = Tanh(a) y = MatMul(W, t) }}")
    x, ct, s = RNG.standard_normal(3), RNG.standard_normal((2, 5)), RNG.standard_normal((3, 2))
    t = np.tanh(v @ x)
    jac = w * (1 - t * t) @ v
    adj, fwd = reverse(m), forward(m)
    close(evaluate(adj, {"x": x, "adj_y": ct}, 99)["adj_x"], jac.T @ ct, 1e-14, "reverse")
    close(evaluate(fwd, {"x": x, "fwd_x": s}, 99)["fwd_y"], jac @ s, 1e-14, "forward")
    second = forward(adj, outputs=["adj_x"])
    moved = RNG.standard_normal((2, 2 * 5))
    got = evaluate(second, {"x": x, "adj_y": ct, "fwd_x": s, "fwd_adj_y": moved}, 99)["fwd_adj_x"]
    bent = [v.T @ ((-2 * t * (1 - t * t) * (v @ d))[:, None] * (w.T @ ct)) for d in s.T]
    close(got, np.hstack(bent) + jac.T @ moved, 1e-13, "forward over reverse")
    assert ops(adj).count("MatMul") == 4 and len(ops(adj)) <= 11


def test_names_of_axes():
    m = model(
        "g (double[2,3] x, double[4] u, double c) => (double[2,3] y) { a = ReduceSum <keepdims = 0> (u) b = Mul(a, c) y = Mul(x, b) }"
    )
    assert signature(reverse(m)) == {
        "x": [2, 3], "u": [4], "c": [], "adj_y": [2, "nadj_x3"], "y": [2, 3],
        "adj_x": [2, "nadj_x3"], "adj_u": [4, "nadj"], "adj_c": [1, "nadj"],
    }  # fmt: skip
    second = signature(forward(reverse(m), ["x", "adj_y"], ["adj_x", "adj_u"]))
    assert second["fwd_x"] == [2, "nfwd_x3"] and second["adj_x"] == second["adj_y"] == [2, "nadj_x3"]
    assert second["fwd_adj_y"] == [2, "nfwd_nadj_x3"] and second["fwd_adj_u"] == [4, "nfwd_nadj"]
    again = signature(reverse(reverse(m)))
    assert again["adj2_adj_u"] == [4, "nadj2_nadj"] and again["adj2_c"] == [1, "nadj2"]
    assert signature(reverse(m, layout="onnx"))["adj_x"] == [2, 3, "nadj"]
    assert signature(reverse(m, layout="leading", dim="K"))["adj_c"] == ["K"]
    assert signature(forward(m, prefix="d", dim="K"))["dy"] == [2, "K_x3"]
    assert signature(forward(m, layout="single"))["fwd_y"] == [2, 3]


def test_names_of_products_of_symbols():
    m = model(
        "g (double[N,2,M] x, double[K,N] u) => (double[N] y) { c = ReduceSum <keepdims = 0> (x) d = ReduceSum <keepdims = 0> (u) e = Mul(c, d) s = Shape <end = 1> (x) y = Expand(e, s) }"
    )
    adj = reverse(m)
    assert signature(adj)["adj_x"] == ["M_N_x2", "nadj"] and signature(adj)["adj_u"] == ["K", "nadj_N"]
    second = forward(adj, outputs=["adj_x", "adj_u"])
    assert signature(second)["fwd_adj_x"] == ["M_N_x2", "nfwd_nadj"] and signature(second)["fwd_adj_u"] == [
        "K",
        "nfwd_N_nadj",
    ]
    assert signature(second)["adj_u"] == ["K", "nadj_N"]


def test_extents_that_the_author_named_keep_the_name():
    """P is three times K, M is a number, and W is called like an extent of an input."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (double[3,K] x, double[W] w) => (double[P] y, double[M] m, double[W] z) <int64[1] s = {-1}, int64[1] one = {1}> {
          y = Reshape(x, s) m = ReduceSum<keepdims = 0>(x, one) z = Concat<axis = 0>(w, w) }""")

    def axes(d):
        return {
            v.name: [x.dim_param or x.dim_value for x in v.type.tensor_type.shape.dim]
            for v in (*d.graph.input, *d.graph.output)
        }

    for d in (unroll(proto), forward(proto), reverse(proto, layout="single")):
        shapes = axes(d)
        assert shapes["y"] == ["P"] and shapes["m"] == [3]
        assert shapes["z"] != ["W"]
    assert axes(forward(proto))["fwd_y"] == ["P", "nfwd"]
    adjoint = reverse(proto, layout="single")
    assert axes(adjoint)["adj_y"] == ["P"]
    assert axes(forward(adjoint, layout="single"))["fwd_adj_y"] == ["P"]


def test_extents_that_only_the_author_knows():
    """Declared names and numbers stay; a seed goes by the name, and by no number that nobody can prove."""
    proto = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (double[B,6] x, int64[2] s) => (double[M,3] y) { r = Reshape(x, s) y = Exp(r) }""")
    for d in (reverse(proto, layout="single"), forward(proto, layout="leading")):
        shapes = {v.name: v.type.tensor_type.shape.dim for v in (*d.graph.input, *d.graph.output)}
        assert shapes["y"][0].dim_param == "M" and shapes["y"][1].dim_value == 3
        other = shapes["adj_y"] if "adj_y" in shapes else shapes["fwd_y"][1:]
        assert other[0].dim_param == "M" and not other[1].dim_value


def test_axes_that_have_the_name_already():
    m = model("g (double[nadj,3] x) => (double[nadj,3] y) { y = Exp(x) }")
    assert signature(reverse(m))["adj_y"] == ["nadj", "nadj_1_x3"]
    with pytest.raises(UsageError, match="dimension called 'nadj' already"):
        reverse(m, dim="nadj")
    twice = reverse(reverse(model("g (double[3] x) => (double[3] y) { y = Exp(x) }"), prefix="d"), prefix="e")
    assert signature(twice)["ey"] == [3, "nadj_1"] and signature(twice)["edx"] == [3, "nadj_1_nadj"]


def test_what_depends_on_no_seed_has_the_axis():
    m = model(
        "g (double[2] a, double[3,2] b) => (double[2] ya, double[3,2] yb) { ya = Exp(a) f = Floor(b) yb = Identity(f) }"
    )
    d = reverse(m)
    got = evaluate(
        d, {"a": np.zeros(2), "b": np.zeros((3, 2)), "adj_ya": np.ones((2, 4)), "adj_yb": np.ones((3, 8))}, 99
    )
    assert got["adj_b"].shape == (3, 8) and not got["adj_b"].any()
    assert signature(d)["adj_b"] == [3, "nadj_x2"]
    none = forward(m, outputs=["yb"])  # no result depends on any seed
    got = evaluate(
        none, {"a": np.zeros(2), "b": np.zeros((3, 2)), "fwd_a": np.ones((2, 4)), "fwd_b": np.ones((3, 8))}, 99
    )
    assert got["fwd_yb"].shape == (3, 8) and not got["fwd_yb"].any()


def test_the_primal_is_shared():
    """What does not depend on a seed is computed once, as it was."""
    m = model(MODELS["matrices"][0])
    single, several = reverse(m, layout="single"), reverse(m, layout="leading")
    assert ops(several).count("Sigmoid") == 1
    flat = [n.op_type for n in several.graph.node if n.op_type != "Reshape"]
    assert sorted(flat) == sorted(ops(single))
    assert len(ops(reverse(m))) <= len(ops(several)) + 4


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 3)])
def test_empty_values(shape, layout):
    known = model(
        f"g (double[{','.join(map(str, shape))}] x, double[2] u) => (double[{','.join(map(str, shape))}] y, double[2] v) {{ y = Exp(x) v = Tanh(u) }}"
    )
    symbols = model(
        f"g (double[{','.join('ABC'[: len(shape)])}] x, double[2] u) => (double[{','.join('ABC'[: len(shape)])}] y, double[2] v) {{ y = Exp(x) v = Tanh(u) }}"
    )
    for m in (known, symbols):
        for mode in ("forward", "reverse"):
            step(m, {"x": np.zeros(shape), "u": RNG.standard_normal(2)}, mode, layout, 3, levels=(99,))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_directions(layout):
    for name in ("vectors", "matrices", "cubes", "symbols"):
        text, feeds = MODELS[name]
        for mode in ("forward", "reverse"):
            step(model(text), feeds, mode, layout, 0, levels=(99,))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_directions_of_shapes_that_the_run_tells(layout):
    """A Reshape to -1 has nothing to tell the extent by."""
    m = model(
        """g (double[3,4] x, int64[1] from) => (double[n,4] y, double[m] z) <int64[1] end = {9}, int64[1] all = {-1}> {
          y = Slice(x, from, end) r = Reshape(y, all) z = Sin(r) }"""
    )
    wide = model(
        """g (double[3,4] x, int64[4] pads) => (double[n,m] y) { t = Tanh(x) y = Pad <mode = "edge"> (t, pads) }"""
    )
    for mode in ("forward", "reverse"):
        for n in (0, 2):
            feeds = {"x": RNG.standard_normal((3, 4)), "from": np.array([1])}
            step(m, feeds, mode, layout, n, levels=(99,), inputs=["x"])
            feeds = {"x": RNG.standard_normal((3, 4)), "pads": np.array([1, 0, 0, 2])}
            step(wide, feeds, mode, layout, n, levels=(99,), inputs=["x"])


@pytest.mark.parametrize("layout", ["onnx", "leading"])
def test_unknown_ranks(layout):
    m = model("g (double[2,3] x) => (double[2,3] y) { t = Tanh(x) y = Mul(t, x) }")
    for v in (m.graph.input[0], m.graph.output[0]):
        v.type.tensor_type.ClearField("shape")
    x = RNG.standard_normal((2, 3))
    for mode in ("forward", "reverse"):
        d, feeds = step(m, {"x": x}, mode, layout, 4)
        assert not d.graph.input[-1].type.tensor_type.HasField("shape")
    step(reverse(m, layout=layout), feeds, "forward", layout, 2)
    with pytest.raises(UsageError, match=r"'fwd_y' has an unknown rank.*layout='onnx'"):
        forward(m)


def test_no_element_to_count_by():
    m = model("g (double[3,0] x) => (double[3,0] y) { y = Exp(x) }")
    with pytest.raises(UsageError, match="cannot tell how many directions"):
        reverse(m)
    assert evaluate(reverse(m, layout="onnx"), {"x": np.zeros((3, 0)), "adj_y": np.zeros((3, 0, 2))}, 99)[
        "adj_x"
    ].shape == (3, 0, 2)


def test_sequences_need_one_direction():
    m = model("g (seq(double[2]) s) => (double[N] y) { y = ConcatFromSequence <axis = 0> (s) }")
    for layout in LAYOUTS:
        with pytest.raises(UsageError, match="'adj_s' is no tensor"):
            reverse(m, ["s"], layout=layout)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_element_types(kind):
    text, feeds = MODELS["matrices"]
    narrow = helper.tensor_dtype_to_np_dtype(kind)
    m = retyped(model(text.replace("double", "float")), kind)
    seeds = {"adj_y": random(3, np.zeros((2, 4)))}
    want = evaluate(reverse(model(text), layout="leading"), {**feeds, **seeds}, 99)["adj_x"]
    for layout in LAYOUTS:
        cast = {k: v.astype(narrow) for k, v in {**feeds, "adj_y": packed(seeds["adj_y"], layout)}.items()}
        got = evaluate(reverse(m, layout=layout), cast, 99)["adj_x"]
        assert got.dtype == narrow
        close(got, packed(want, layout), 1e-6 if kind == TensorProto.FLOAT else 1e-2, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_and_inner_values(layout):
    m = model(
        "g (double[2,3] x) => (double[2,2] y) <double[3,2] w = {1, 2, -3, 0.4, 0.5, 0.6}> { h = Tanh(x) y = MatMul(h, w) }"
    )
    x, ct = RNG.standard_normal((2, 3)), RNG.standard_normal((5, 2, 2))
    d = reverse(m, ["w", "h"], layout=layout)
    got = evaluate(d, {"x": x, "adj_y": packed(ct, layout)}, 99)
    w = np.array([1, 2, -3, 0.4, 0.5, 0.6]).reshape(3, 2)
    close(got["adj_w"], packed(np.tanh(x).T @ ct, layout), 1e-14, "weight")
    close(got["adj_h"], packed(ct @ w.T, layout), 1e-14, "inner value")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_control_flow(layout):
    scan = """g (double[2] s, double[4,2] us) => (double[2] e, double[4,2] all) {
      e, all = Scan <num_scan_inputs = 1, body = b (double[2] p, double[2] u) => (double[2] q, double[2] o) {
        t = Tanh(p) m = Mul(t, u) q = Add(m, p) o = Identity(q) }> (s, us) }"""
    branch = """g (double[2] s, double[2] us, bool c) => (double[2] e) {
      e = If (c) <then_branch = t () => (double[2] a) { a = Mul(s, us) }, else_branch = f () => (double[2] b) { b = Exp(us) }> }"""
    for mode in ("forward", "reverse"):
        step(model(scan), dict(s=RNG.standard_normal(2), us=RNG.standard_normal((4, 2))), mode, layout, 3)
        for c in (True, False):
            feeds = dict(s=RNG.standard_normal(2), us=RNG.standard_normal(2), c=np.array(c))
            m = model(branch)
            given = ["s", "us"] if mode == "forward" else None
            step(m, feeds, mode, layout, 3, inputs=given, levels=(99,))


def test_the_primal_of_nested_control_flow_is_shared():
    """A result of a branch in a branch, and the state of a loop in a loop, that depends on no seed has no axis."""
    branch = """g (double[2] x, bool c) => (double[2] y) {
      y = If (c) <then_branch = t () => (double[2] a) {
        a = If (c) <then_branch = tt () => (double[2] p) { p = Exp(x) }, else_branch = te () => (double[2] q) { q = Sin(x) }> },
        else_branch = f () => (double[2] b) { b = Tanh(x) }> }"""
    loop = """g (double[2] x, double[3,2] us) => (double[2] y) {
      y = Scan <num_scan_inputs = 1, body = b (double[2] p, double[2] u) => (double[2] q) {
        q = Scan <num_scan_inputs = 1, body = c (double[2] r, double v) => (double[2] s) { t = Tanh(r) s = Mul(t, v) }> (p, u) }> (x, us) }"""
    for text, feeds in (
        (branch, dict(x=RNG.standard_normal(2), c=np.array(True))),
        (loop, dict(x=RNG.standard_normal(2), us=RNG.standard_normal((3, 2)))),
    ):
        d, _ = step(model(text), feeds, "forward", "leading", 3, inputs=["x"])
        onnx.checker.check_model(d, full_check=True)
        assert dims(d.graph.output[0]) == [2]
        inner = next(n for n in d.graph.node if n.op_type in ("If", "Scan"))
        body = next(a.g for a in inner.attribute if a.type == onnx.AttributeProto.GRAPH)
        assert sorted(len(o.type.tensor_type.shape.dim) for o in body.output) == [1, 2]


def test_passes_as_text():
    m = model(MODELS["vectors"][0])
    assert run_pipeline(m, "reverse{layout=casadi}") == reverse(m)
    assert run_pipeline(m, "reverse") == reverse(m, layout="single")
    assert run_pipeline(m, "forward{layout=leading dim=k}") == forward(m, layout="leading", dim="k")
    both = run_pipeline(m, "reverse{layout=casadi outputs=y},forward{layout=casadi outputs=adj_x}")
    assert signature(both) == signature(forward(reverse(m, outputs=["y"]), outputs=["adj_x"]))


def test_gradients_of_gradients_keep_their_direction():
    """A Hessian times several directions: forward over the gradient."""
    m = model(
        "g (double[3] x) => (double y) { s = Sin(x) c = Mul(s, x) p = Mul(c, c) y = ReduceSum <keepdims = 0> (p) }"
    )
    x, d = RNG.standard_normal(3), RNG.standard_normal((2, 3))
    grad = gradient(m)
    got = evaluate(forward(grad, outputs=["grad_x"]), {"x": x, "fwd_x": d.T}, 99)["fwd_grad_x"]
    want = [differences(grad, {"x": x}, {"x": k})["grad_x"] for k in d]
    close(got, np.transpose(want), 1e-8, "hessian")


def test_functions_that_are_kept():
    text = """<ir_version: 8, opset_import: ["" : 18, "l" : 1]>
    g (double[3] x) => (double[3] y) { h = l.f(x) y = l.f(h) }
    <domain: "l", opset_import: ["" : 18]> f (a) => (b) { t = Tanh(a) b = Mul(t, a) }"""
    m = parser.parse_model(text)
    feeds = {"x": RNG.standard_normal(3), "adj_y": RNG.standard_normal((3, 2))}
    kept, inlined = (reverse(m, functions=f) for f in ("keep", "inline"))
    np.testing.assert_array_equal(evaluate(kept, feeds, 0)["adj_x"], evaluate(inlined, feeds, 0)["adj_x"])
    with pytest.raises(UsageError, match="functions is inline or keep"):
        reverse(m, functions="both")


def test_bad_requests():
    m = model(MODELS["vectors"][0])
    with pytest.raises(UsageError, match="no layout 'diagonal'; the layouts are single, casadi, onnx, leading"):
        reverse(m, layout="diagonal")
    with pytest.raises(UsageError, match="layout 'single' does not have"):
        reverse(m, layout="single", dim="n")
    with pytest.raises(UsageError, match="cannot be called ''"):
        reverse(m, dim="")
    for number in (4, "4"):
        with pytest.raises(UsageError, match=f"cannot be called {number!r}: dim is a name"):
            reverse(m, dim=number)
        with pytest.raises(UsageError, match=f"cannot be called {number!r}: dim is a name"):
            vectorize(m, dim=number)
    whole = parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N] x, int64[N,2] k) => (float[N] y) { y = Exp(x) }""")
    with pytest.raises(UsageError, match=r"input 'k' is not a floating-point tensor \(int64\[N,2\]\)"):
        reverse(whole, inputs=["k"])


def test_one_evaluation_is_cheaper_than_many():
    """What does not depend on a seed is a big product here; directions must not repeat it."""
    m = model(
        "g (float[300,300] x, float[300] v) => (float[300] y) { a = MatMul(x, x) b = MatMul(a, x) c = MatMul(b, x) y = MatMul(c, v) }"
    )
    d = forward(m, ["v"], ["y"])
    assert ops(d).count("MatMul") == 5
    assert len(ops(d)) <= len(ops(forward(m, ["v"], ["y"], layout="single"))) + 3
