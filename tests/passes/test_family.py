"""Families of models in files: what stands in them, what is promised about writing, and CasADi as their client."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from support import session

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import family, forward, reverse, sibling

RNG = np.random.default_rng(11)
MLP = """g (double[3] x) => (double[2] y)
  <double[4,3] V = {0.4, -0.7, 0.2, 0.9, 0.1, -0.5, -0.3, 0.8, 0.6, 0.5, 0.5, -1.1},
   double[2,4] W = {0.7, -0.4, 0.3, 1.2, -0.6, 0.9, 0.8, -0.1}> {
  a = MatMul(V, x) t = Tanh(a) y = MatMul(W, t) }"""


def model(text):
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')


def signature(path):
    m = onnx.load(path)
    onnx.checker.check_model(m, full_check=True)
    return tuple(
        {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
        for values in (m.graph.input, m.graph.output)
    )


def run(path, feeds):
    names = [i.name for i in onnx.load(path).graph.input]
    s = session(onnx.load(path), 99)
    return dict(zip([o.name for o in s.get_outputs()], s.run(None, {k: feeds[k] for k in names}), strict=True))


def test_siblings_are_named_after_the_file(tmp_path):
    assert sibling("f.onnx", "adj") == "adj_f.onnx"
    assert sibling(os.path.join("a", "b", "f.onnx"), "fwd_adj") == os.path.join("a", "b", "fwd_adj_f.onnx")
    assert sibling(tmp_path / "adj_f.onnx", "adj") == str(tmp_path / "adj_adj_f.onnx")


def test_what_is_written(tmp_path):
    path = tmp_path / "f.onnx"
    assert family(model(MLP), path) == [str(tmp_path / f"{k}f.onnx") for k in ("", "adj_", "fwd_adj_")]
    assert sorted(os.listdir(tmp_path)) == ["adj_f.onnx", "f.onnx", "fwd_adj_f.onnx"]
    assert signature(path) == ({"x": [3]}, {"y": [2]})
    assert signature(sibling(path, "adj")) == ({"x": [3], "adj_y": [2, "nadj"]}, {"adj_x": [3, "nadj"]})
    assert signature(sibling(path, "fwd_adj")) == (
        {"x": [3], "adj_y": [2, "nadj"], "fwd_x": [3, "nfwd"], "fwd_adj_y": [2, "nfwd_nadj"]},
        {"fwd_adj_x": [3, "nfwd_nadj"]},
    )


def test_which_files_are_written(tmp_path):
    every = family(model(MLP), tmp_path / "f.onnx", forward_sibling=True)
    assert [os.path.basename(p) for p in every] == ["f.onnx", "adj_f.onnx", "fwd_f.onnx", "fwd_adj_f.onnx"]
    assert signature(every[2]) == ({"x": [3], "fwd_x": [3, "nfwd"]}, {"fwd_y": [2, "nfwd"]})
    few = family(model(MLP), str(tmp_path / "g.onnx"), second_order=False)
    assert [os.path.basename(p) for p in few] == ["g.onnx", "adj_g.onnx"]


def test_the_folder_is_made(tmp_path):
    assert all(map(os.path.isfile, family(model(MLP), tmp_path / "new" / "folder" / "f.onnx")))
    with pytest.raises(UsageError, match="no value called 'nope'"):
        family(model(MLP), tmp_path / "other" / "f.onnx", inputs=["nope"])
    assert not os.path.exists(tmp_path / "other")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file"):
        family(model(MLP), tmp_path / "file" / "f.onnx")


def test_the_files_are_right(tmp_path):
    """Against numpy, with two directions in three."""
    path = str(tmp_path / "f.onnx")
    family(model(MLP), path, forward_sibling=True)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    v, w = weights["V"], weights["W"]
    x, ct, s, moved = (RNG.standard_normal(k) for k in ((3,), (2, 3), (3, 2), (2, 6)))
    t = np.tanh(v @ x)
    jac = w * (1 - t * t) @ v
    feeds = {"x": x, "adj_y": ct, "fwd_x": s, "fwd_adj_y": moved}
    bent = [v.T @ ((-2 * t * (1 - t * t) * (v @ d))[:, None] * (w.T @ ct)) for d in s.T]
    for kind, name, want in (
        ("fwd", "fwd_y", jac @ s),
        ("adj", "adj_x", jac.T @ ct),
        ("fwd_adj", "fwd_adj_x", np.hstack(bent) + jac.T @ moved),
    ):
        np.testing.assert_allclose(run(sibling(path, kind), feeds)[name], want, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(run(path, feeds)["y"], w @ t, rtol=1e-14)


def test_signatures_are_complete(tmp_path):
    """Every input and output has its derivative in every file, where there is none a zero."""
    m = model(
        "g (double[2] a, double[3,2] b, int64 k) => (double[2] ya, double[3,2] yb) { ya = Exp(a) yb = Identity(b) }"
    )
    path = tmp_path / "f.onnx"
    family(m, path, forward_sibling=True)
    assert [*signature(sibling(path, "adj"))[1]] == ["adj_a", "adj_b"]
    assert [*signature(sibling(path, "fwd"))[1]] == ["fwd_ya", "fwd_yb"]
    ins, outs = signature(sibling(path, "fwd_adj"))
    assert [*ins] == ["a", "b", "k", "adj_ya", "adj_yb", "fwd_a", "fwd_b", "fwd_adj_ya", "fwd_adj_yb"]
    assert outs == {"fwd_adj_a": [2, "nfwd_nadj"], "fwd_adj_b": [3, "nfwd_nadj_x2"]}
    only = tmp_path / "g.onnx"
    family(m, only, inputs=["b"], outputs=["ya"])
    assert signature(sibling(only, "adj")) == (
        {"a": [2], "b": [3, 2], "k": [], "adj_ya": [2, "nadj"]},
        {"adj_b": [3, "nadj_x2"]},
    )
    assert [*signature(sibling(only, "fwd_adj"))[1]] == ["fwd_adj_b"]
    feeds = {"a": np.ones(2), "b": np.ones((3, 2)), "k": np.array(1), "adj_ya": np.ones((2, 4))}
    got = run(sibling(only, "adj"), feeds)["adj_b"]
    assert got.shape == (3, 8) and not got.any()


def test_names_count_up(tmp_path):
    m = model("g (double[3] adj_a) => (double[3] y) { y = Sin(adj_a) }")
    family(m, tmp_path / "f.onnx")
    assert signature(tmp_path / "adj_f.onnx") == (
        {"adj_a": [3], "adj2_y": [3, "nadj2"]},
        {"adj2_adj_a": [3, "nadj2"]},
    )
    ins, outs = signature(tmp_path / "fwd_adj_f.onnx")
    assert [*ins] == ["adj_a", "adj2_y", "fwd_adj_a", "fwd_adj2_y"] and [*outs] == ["fwd_adj2_adj_a"]


def test_the_adjoint_has_no_outputs_of_the_model(tmp_path):
    """Nothing is computed for them alone."""
    path = tmp_path / "f.onnx"
    family(model(MLP), path)
    adj, second = (onnx.load(sibling(path, k)).graph.node for k in ("adj", "fwd_adj"))
    assert [n.op_type for n in adj].count("MatMul") == 3
    assert len(adj) <= 9 and len(second) <= 26


def test_external_data_is_brought_in(tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    m = model(MLP)
    onnx.save(m, there / "m.onnx", save_as_external_data=True, size_threshold=0)
    loaded = onnx.load(there / "m.onnx")
    path = tmp_path / "f.onnx"
    family(loaded, path)
    for p in (path, sibling(path, "adj"), sibling(path, "fwd_adj")):
        assert not any(t.external_data for t in onnx.load(p, load_external_data=False).graph.initializer)
    from onnxad_ir.files import load

    family(load(there / "m.onnx"), path)
    assert not any(t.external_data for t in onnx.load(path, load_external_data=False).graph.initializer)
    assert run(path, {"x": np.ones(3)})["y"].shape == (2,)


def test_all_or_nothing(tmp_path, monkeypatch):
    for name in ("f.onnx", "adj_f.onnx", "fwd_adj_f.onnx"):
        (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(UsageError):
        family(model(MLP), tmp_path / "f.onnx", inputs=["nope"])
    import onnxad_ir.files as files

    written = []

    def fail_at_last(m, external=None):
        written.append(m)
        if len(written) == 3:
            raise OSError("disk full")
        return proto(m, external=external)

    proto = files.to_proto
    monkeypatch.setattr(files, "to_proto", fail_at_last)
    with pytest.raises(OSError, match="disk full"):
        family(model(MLP), tmp_path / "f.onnx")
    assert len(written) == 3
    assert sorted(os.listdir(tmp_path)) == ["adj_f.onnx", "f.onnx", "fwd_adj_f.onnx"]
    assert {p.read_bytes() for p in tmp_path.iterdir()} == {b"precious"}


def test_too_big_for_one_file(tmp_path, monkeypatch):
    import onnxad_ir.files as files

    monkeypatch.setattr(files, "_PROTO_LIMIT", 100)
    with pytest.raises(UsageError, match=r"f\.onnx: 160 bytes of weights are over the 2 GB"):
        family(model(MLP), tmp_path / "f.onnx")
    assert not os.listdir(tmp_path)


def test_values_that_are_no_inputs_or_outputs(tmp_path):
    with pytest.raises(UsageError, match=r"'V' is no input of the model \(x\)"):
        family(model(MLP), tmp_path / "f.onnx", inputs=["V"])
    with pytest.raises(UsageError, match="no floating-point input, and a family knows no other values"):
        family(model("g (int64[2] k) => (float[2,3] y) <float[2,3] w = {1,2,3,4,5,6}> { y = Gather(w, k) }"), "f.onnx")
    with pytest.raises(UsageError, match=r"'t' is no output of the model"):
        family(model(MLP), tmp_path / "f.onnx", outputs=["t"])
    assert not os.listdir(tmp_path)


# --- CasADi, where it is installed


@pytest.fixture(scope="module")
def ca():
    import onnxruntime

    folder = os.path.join(os.path.dirname(onnxruntime.__file__), "capi")
    found = sorted(
        glob.glob(os.path.join(folder, "libonnxruntime.so*")) + glob.glob(os.path.join(folder, "libonnxruntime*.dylib"))
    )
    if found:
        os.environ.setdefault("CASADI_ONNXRUNTIME_LIB", found[0])
    casadi = pytest.importorskip("casadi", minversion="3.8")
    if not casadi.has_onnxbackend("ort"):
        pytest.skip("casadi has no ONNX Runtime backend here")
    return casadi


def same(ca, got, want, tolerance=1e-11):
    for a, b in zip(got, want, strict=True):
        a, b = np.array(ca.densify(ca.DM(a))), np.array(ca.densify(ca.DM(b)))
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def compare(ca, f, ref, x):
    """Value, Jacobian, several adjoint directions, several forward ones of them, and the Hessian."""
    x, y = ca.DM(x), ref(x)
    s = ca.MX.sym("s", *x.shape)
    same(ca, [f(x)], [y])
    jac = [ca.Function("j", [s], [ca.jacobian(g(s), s)]) for g in (f, ref)]
    same(ca, [jac[0](x)], [jac[1](x)])
    for n, m in ((1, 1), (2, 3), (3, 2)):

        def random(v, k):
            return ca.DM(RNG.standard_normal((v.shape[0], k * v.shape[1])))

        w, vx, vw = random(y, n), random(x, m), random(y, n * m)
        args = (x, y, w)
        adj = ref.reverse(n)(*args)
        same(ca, [f.reverse(n)(*args)], [adj])
        more = (*args, adj, vx, ca.DM.zeros(y.shape[0], m * y.shape[1]), vw)
        same(ca, [f.reverse(n).forward(m)(*more)], [ref.reverse(n).forward(m)(*more)])
    flat, c = ca.MX.sym("v", x.numel()), random(y, 1)
    hess = [ca.Function("h", [flat], [ca.hessian(ca.dot(g(ca.reshape(flat, *x.shape)), c), flat)[0]]) for g in (f, ref)]
    same(ca, [hess[0](ca.vec(x))], [hess[1](ca.vec(x))])


def test_casadi_vectors(ca, tmp_path):
    m = model(MLP)
    weights = {t.name: ca.DM(onnx.numpy_helper.to_array(t)) for t in m.graph.initializer}
    family(m, tmp_path / "f.onnx")
    x = ca.SX.sym("x", 3)
    ref = ca.Function("r", [x], [weights["W"] @ ca.tanh(weights["V"] @ x)])
    compare(ca, ca.GraphBuilder(str(tmp_path / "f.onnx")).create("f"), ref, RNG.standard_normal(3))


def test_casadi_matrices(ca, tmp_path):
    m = model(
        "g (double[3,2] x) => (double[2,3] y) { e = Sin(x) t = Transpose <perm = [1, 0]> (x) s = Transpose(e) y = Mul(s, t) }"
    )
    family(m, tmp_path / "f.onnx")
    x = ca.SX.sym("x", 3, 2)
    ref = ca.Function("r", [x], [ca.sin(x).T * x.T])
    compare(ca, ca.GraphBuilder(str(tmp_path / "f.onnx")).create("f"), ref, RNG.standard_normal((3, 2)))


def test_casadi_bound_extents(ca, tmp_path):
    m = model(
        "g (double[N,3] x) => (double[N,1] y) { t = Tanh(x) s = Mul(t, x) axes = Constant <value_ints = [1]> () y = ReduceSum(s, axes) }"
    )
    family(m, tmp_path / "f.onnx")
    for n in (1, 3):
        builder = ca.GraphBuilder(str(tmp_path / "f.onnx"))
        builder.bind_dim("N", n)
        x = ca.SX.sym("x", n, 3)
        ref = ca.Function("r", [x], [ca.sum2(ca.tanh(x) * x)])
        compare(ca, builder.create("f"), ref, RNG.standard_normal((n, 3)))


def test_casadi_bound_extents_of_cubes(ca, tmp_path):
    """Of rank 3: a column whose length is a product of extents, two of them symbols."""
    m = model("g (double[N,2,M] x) => (double[N,2,M] y) { s = Sin(x) y = Mul(s, x) }")
    family(m, tmp_path / "f.onnx")
    builder = ca.GraphBuilder(str(tmp_path / "f.onnx"))
    builder.bind_dim("N", 3)
    builder.bind_dim("M", 2)
    x = ca.SX.sym("x", 12)
    compare(ca, builder.create("f"), ca.Function("r", [x], [ca.sin(x) * x]), RNG.standard_normal(12))


def test_casadi_columns_that_are_bound(ca, tmp_path):
    """The number of columns is a symbol: directions are counted at run time."""
    m = model("g (double[3,N] x) => (double[3,N] y) { s = Sin(x) y = Mul(s, x) }")
    family(m, tmp_path / "f.onnx")
    builder = ca.GraphBuilder(str(tmp_path / "f.onnx"))
    builder.bind_dim("N", 4)
    x = ca.SX.sym("x", 3, 4)
    compare(ca, builder.create("f"), ca.Function("r", [x], [ca.sin(x) * x]), RNG.standard_normal((3, 4)))


def test_casadi_reverse_over_reverse(ca, tmp_path):
    m = model(MLP)
    path = tmp_path / "f.onnx"
    family(m, path, second_order=False)
    onnx.save(reverse(onnx.load(sibling(path, "adj")), outputs=["adj_x"]), sibling(sibling(path, "adj"), "adj"))
    f, w = ca.GraphBuilder(str(path)).create("f"), ca.DM([0.7, -1.3])
    weights = {t.name: ca.DM(onnx.numpy_helper.to_array(t)) for t in m.graph.initializer}
    s = ca.MX.sym("s", 3)
    ref = ca.dot(weights["W"] @ ca.tanh(weights["V"] @ s), w)
    got, want = (ca.Function("h", [s], [ca.hessian(e, s)[0]]) for e in (ca.dot(f(s), w), ref))
    same(ca, [got([0.1, 0.2, -0.3])], [want([0.1, 0.2, -0.3])])


def test_casadi_third_order(ca, tmp_path):
    m = model(MLP)
    path = tmp_path / "f.onnx"
    family(m, path)
    second = sibling(path, "fwd_adj")
    onnx.save(forward(onnx.load(second), outputs=["fwd_adj_x"]), sibling(second, "fwd"))
    f, w, d = ca.GraphBuilder(str(path)).create("f"), ca.DM([0.7, -1.3]), ca.DM([0.3, -0.8, 0.5])
    weights = {t.name: ca.DM(onnx.numpy_helper.to_array(t)) for t in m.graph.initializer}
    s = ca.MX.sym("s", 3)
    ref = ca.dot(weights["W"] @ ca.tanh(weights["V"] @ s), w)
    got, want = (ca.Function("t", [s], [ca.jtimes(ca.hessian(e, s)[0] @ d, s, d)]) for e in (ca.dot(f(s), w), ref))
    same(ca, [got([0.1, 0.2, -0.3])], [want([0.1, 0.2, -0.3])])


def test_the_example_of_the_readme(ca, capsys):
    section = (Path(__file__).parents[2] / "README.md").read_text().split("## CasADi")[1].split("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    found = {}
    exec(code, found)
    assert capsys.readouterr().out
    x, w = np.array([0.3, -0.5]), np.array([[0.4, -0.7], [0.9, 0.1]])
    y = np.tanh(w @ x)
    s = 1 - y * y
    h = w.T @ np.diag(2 * s * s - 4 * y * y * s) @ w
    same(ca, [ca.Function("h", [found["x"]], [found["exact"]])(x)], [h])
