"""The command: what it reads, runs, writes and prints."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxad_cli import files
from onnxad_ir.files import load
from onnxad_ir.parser import parse_model
from onnxad_ir.printer import print_model
from onnxad_passes.builtin import BUILTIN

ROOT = Path(__file__).parents[2]
X = np.array([[0.3, -1.2, 0.5], [1.1, 0.2, -0.7]], np.float32)
B = np.array([0.1, -0.2, 0.3], np.float32)
SEED = np.array([[1, -2, 0.5, 0.25], [0.75, 1.5, -1, 2]], np.float32)


def adjoint_of_mlp(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(
        zip(
            [o.name for o in session.get_outputs()],
            session.run(None, {"x": X, "b": B, "adj_y": SEED}),
            strict=True,
        )
    )


def check_adjoint(path):
    w = np.array([0.5, 2, 1, -1, 2, 3, -0.2, 0.1, 0.7, 0.3, 0.9, 1], np.float32).reshape(3, 4)
    t = np.tanh(X + B)
    dx = (SEED @ w.T) * (1 - t * t)
    got = adjoint_of_mlp(path)
    np.testing.assert_allclose(got["y"], t @ w, rtol=1e-5)
    np.testing.assert_allclose(got["adj_x"], dx, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["adj_b"], dx.sum(0), rtol=1e-4, atol=1e-6)


def test_reverse_to_a_file(opt, mlp, tmp_path):
    out = tmp_path / "adj.onnx"
    assert opt(mlp, "--pass=reverse", "-o", out) == (0, "", "")
    onnx.checker.check_model(onnx.load(out), full_check=True)
    check_adjoint(out)


@pytest.mark.parametrize("suffix", [".onnx", ".onnxtxt", ".json", ".oir"])
def test_reads_and_writes_by_suffix(opt, mlp, tmp_path, suffix):
    between, out = tmp_path / f"m{suffix}", tmp_path / "adj.onnx"
    assert opt(mlp, "-o", between) == (0, "", "")
    assert opt(between, "--pass=reverse", "-o", out) == (0, "", "")
    check_adjoint(out)


def test_format_options_go_before_suffixes(opt, mlp, tmp_path):
    odd = tmp_path / "m.model"
    assert opt(mlp, "-o", odd, "--to=json")[0] == 0
    assert odd.read_bytes().lstrip().startswith(b"{")
    assert opt(odd, "--from=json", "-o", tmp_path / "a.onnx", "--pass=reverse")[0] == 0
    check_adjoint(tmp_path / "a.onnx")


def test_passes_run_in_the_order_given(opt, mlp):
    order = opt(mlp, "--pass=cse", "--pass-pipeline=dce,simplify", "--pass=gradient{output=y}", "--print-ir-after-all")[
        2
    ]
    titles = [line.split()[4] for line in order.splitlines() if line.startswith("// ----- IR after")]
    assert titles == [
        "cse",
        "dce",
        "inline-functions",
        "upgrade-opset",
        "fold-shapes",
        "simplify",
    ]  # gradient fails
    assert "use `reverse`" in order


def test_pass_options_in_braces(opt, mlp):
    status, out, _ = opt(mlp, "--pass=reverse{inputs=w prefix=d/}", "--pass=forward{inputs=b}")
    assert status == 0
    assert "%d/w : float[3,4]" in out and "%fwd_b : float[3]" in out and "adj_" not in out


def test_without_output_the_ir_is_printed(opt, mlp):
    status, out, err = opt(mlp, "--pass=reverse")
    assert status == 0 and err == ""
    assert print_model(parse_model(out)) == out


def test_a_derivative_model_has_no_dead_identity_or_duplicate_node(opt, save, tmp_path):
    path = save(
        """<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y, float[2] z) {
          a = Identity(x)  b = Sigmoid(a)  c = Sigmoid(x)  dead = Exp(x)  d = Mul(b, c)
          y = Identity(d)  z = Identity(x) }"""
    )
    out = tmp_path / "adj.onnx"
    for mode in ("reverse", "forward"):
        assert opt(path, f"--pass={mode}", "-o", out)[0] == 0
        graph = onnx.load(out).graph
        ops = [n.op_type for n in graph.node]
        assert "Exp" not in ops and ops.count("Sigmoid") == 1
        # z is the input itself, and so is its tangent: outputs with names of their own
        assert ops.count("Identity") == (1 if mode == "reverse" else 2)
        keys = [(n.op_type, tuple(n.input), n.SerializeToString() if n.attribute else b"") for n in graph.node]
        assert len(keys) == len(set(keys))


def test_print_ir_options(opt, mlp, tmp_path):
    err = opt(mlp, "--pass-pipeline=cse,reverse", "--print-ir-after=reverse", "-o", tmp_path / "o.onnx")[2]
    assert err.count("IR after") == 1 and "%adj_x" in err
    text = err.split("-----\n", 1)[1]
    assert "%adj_x" in print_model(parse_model(text))  # a dump can be pasted back
    err = opt(mlp, "--pass-pipeline=cse,reverse,cse,dce", "--print-ir-after-change")[2]
    assert "IR after reverse" in err and "IR after cse" not in err and "IR after dce" not in err
    err = opt(mlp, "--pass-pipeline=cse,reverse,dce", "--print-ir-after-all")[2]
    assert "IR after cse (no change)" in err
    status, _, err = opt(mlp, "--pass-pipeline=cse,reverse{inputs=q}", "--print-ir-after-failure")
    assert status == 2 and "IR after reverse failed" in err and "graph mlp(" in err


def test_no_verify_each(opt, mlp, monkeypatch):
    from onnxad_passes import manager

    calls = []
    monkeypatch.setattr(manager, "verify", lambda model: calls.append(model))
    assert opt(mlp, "--pass=reverse", "--no-verify-each")[0] == 0 and not calls
    assert opt(mlp, "--pass=reverse")[0] == 0 and calls


def test_timing(opt, mlp):
    status, out, err = opt(mlp, "--pass=reverse", "--timing")
    assert status == 0 and "graph mlp" in out
    lines = err.splitlines()
    assert lines[0].split()[:3] == ["pass", "seconds", "%"]
    assert [line.split()[0] for line in lines[1:]] == [
        "inline-functions",
        "upgrade-opset",
        "fold-shapes",
        "reverse",
        "total",
    ]
    assert lines[4].split()[3] == "3"  # nodes before


def test_list_passes(opt):
    status, out, _ = opt("--list-passes")
    assert status == 0
    for cls in BUILTIN:
        assert f"\n{cls.name}\n" in f"\n{out}"
    block = out.split("\nreverse\n")[1].split("\n\n")[0]
    assert "adds inputs adj_<y>" in block and "needs: inline-functions, upgrade-opset, fold-shapes" in block
    assert "inputs=a,b,...  what to differentiate with respect to" in block and "rules" not in block
    assert "inputs=a,b,...  which (default: all).\n    dim=text" in out and "Default: batch." in out


def test_list_rules(opt):
    status, out, _ = opt("--list-rules")
    assert status == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line}
    assert "multilinear" in rows["MatMul"] and "A, B" in rows["MatMul"]
    assert "zero" in rows["ai.onnx.ml.ZipMap"] and "maps" in rows["ai.onnx.ml.ZipMap"]
    assert "with a rule" in out.splitlines()[-1]
    assert max(len(rows[op]) for op in ("Add", "MatMul", "And", "Celu")) < 120  # one wide row widens no other
    markdown = opt("--list-rules=markdown")[1]
    assert "| MatMul | 13 | multilinear | A, B |" in markdown


def test_check_and_report(opt, mlp, tmp_path):
    out = tmp_path / "adj.onnx"
    status, text, err = opt(mlp, "--pass=reverse{inputs=x,w}", "--check", "--report", "--dim=N=5", "-o", out)
    assert status == 0 and err == "" and out.exists()
    assert "differentiated: 3 of 3 nodes" in text and "missing: nothing" in text
    assert "all 3 comparisons agree" in text and "N=5" in text


def test_a_wrong_derivative_is_an_error(opt, mlp, tmp_path, monkeypatch):
    reverse = sys.modules["onnxad_passes.reverse"]
    adjoint = reverse.adjoint

    def wrong(op, sources, cotangents, rules):
        adjoint(op, sources, cotangents, rules)
        b = next(v for v in sources if v.name == "b")
        cotangents[b] = [c * op.like(1.001, c) for c in cotangents[b]]

    monkeypatch.setattr(reverse, "adjoint", wrong)
    out = tmp_path / "adj.onnx"
    status, text, err = opt(mlp, "--pass=reverse", "--check", "-o", out)
    assert status == 1 and not out.exists() and "nothing is written" in err
    wrong_lines = [line for line in text.splitlines() if "WRONG" in line]
    assert wrong_lines[0].startswith("reverse  adj_b") and "1 of 3 comparisons are WRONG" in wrong_lines[1]


def test_check_without_a_derivative_pass_checks_both_modes(opt, mlp):
    status, text, _ = opt(mlp, "--check")
    assert status == 0 and "forward  fwd_y" in text and "reverse  adj_x" in text


def test_check_of_passes_that_are_no_derivative(opt, mlp, save, tmp_path, monkeypatch):
    """What they left is differentiated, and compared with the model that was read."""
    status, text, _ = opt(mlp, "--pass=simplify", "--check", "-o", tmp_path / "s.onnx")
    assert status == 0 and "forward  fwd_y   x" in text and "reverse  adj_x" in text
    assert "k=" in opt(mlp, "--pass=vectorize{inputs=x dim=k}", "--check")[1]  # another signature: checked by itself
    simplify = sys.modules["onnxad_passes.simplify"].Simplify
    run = simplify.run

    def wrong(self, model):
        run(self, model)
        node = next(n for n in model.graph.nodes if n.op_type == "Tanh")
        node.op_type = "Sin"
        return True

    monkeypatch.setattr(simplify, "run", wrong)
    status, text, _ = opt(mlp, "--pass=simplify", "--check", "-o", tmp_path / "wrong.onnx")
    assert status == 1 and "WRONG" in text and not (tmp_path / "wrong.onnx").exists()


def test_check_of_second_order(opt, mlp):
    status, text, _ = opt(mlp, "--pass=reverse", "--pass=forward", "--check")
    assert status == 0 and "fwd_adj_x  adj_y" in text and text.count("comparisons agree") == 2


def test_check_at_given_inputs(opt, mlp, tmp_path):
    np.savez(tmp_path / "in.npz", x=X, b=B)
    status, text, _ = opt(mlp, "--pass=reverse", "--check", "--check-inputs", tmp_path / "in.npz")
    assert status == 0 and "given inputs" in text


def test_report_names_what_is_missing(opt, save):
    path = save(
        """<ir_version: 8, opset_import: ["" : 18, "com.acme" : 1]>
        g (float[2] x) => (float[2] y) { a = Sign(x) b = com.acme.Warp(x) y = Add(a, b) }"""
    )
    model = onnx.load(path)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [2]))
    onnx.save(model, path)
    status, text, err = opt(path, "--pass=reverse", "--report")
    assert status == 1 and "com.acme.Warp" in err
    assert "missing: 1" in text and "com.acme.Warp" in text.split("missing: 1")[1]
    zero = text.split("zero by convention: 1")[1].split("missing")[0]
    assert "Sign" in zero
    assert opt(path, "--report")[0] == 0


def test_report_of_straight_through(opt, save):
    path = save('<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { a = Round(x) y = Sin(a) }')
    text = opt(path, "--pass=reverse", "--report")[1]
    assert "differentiated: 0 of 2" in text and "zero by convention: 1" in text and "Round" in text
    text = opt(path, "--pass=reverse{straight-through=Round}", "--report")[1]
    assert "differentiated: 2 of 2" in text and "zero by convention: nothing" in text


def test_external_data_stays_where_it_is(opt, mlp, tmp_path):
    model = onnx.load(mlp)
    (w,) = model.graph.initializer
    w.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(w), "w"))
    (tmp_path / "a").mkdir()
    onnx.save(model, tmp_path / "a/m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    before = os.stat(tmp_path / "a/w.bin")
    assert opt(tmp_path / "a/m.onnx", "--pass=reverse", "-o", tmp_path / "a/adj.onnx", "--check")[0] == 0
    check_adjoint(tmp_path / "a/adj.onnx")
    assert os.stat(tmp_path / "a/w.bin").st_mtime_ns == before.st_mtime_ns
    assert sorted(os.listdir(tmp_path / "a")) == ["adj.onnx", "m.onnx", "w.bin"]
    (tmp_path / "b").mkdir()
    assert opt(tmp_path / "a/m.onnx", "--pass=reverse", "-o", tmp_path / "b/adj.onnx", "--external-data=copy")[0] == 0
    check_adjoint(tmp_path / "b/adj.onnx")


@pytest.mark.parametrize("form", ["onnx", "onnxtxt", "json", "oir"])
def test_pipes(mlp, tmp_path, form):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "onnxad_cli.opt"]
    first = subprocess.run(
        [*command, str(mlp), "--pass=fold-shapes", "-o", "-", f"--to={form}"],
        capture_output=True,
        env=env,
        check=True,
    )
    assert files.sniff(first.stdout) == form
    second = subprocess.run(
        [*command, "-", "--pass=reverse", "-o", str(tmp_path / "adj.onnx"), "--check"],
        input=first.stdout,
        capture_output=True,
        env=env,
        check=True,
    )
    assert b"agree" in second.stdout and second.stderr == b""
    check_adjoint(tmp_path / "adj.onnx")


def test_named_pipes(mlp, tmp_path):
    """A pipe with a name is recognised as standard input is, and written to as standard output is."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "onnxad_cli.opt"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first = subprocess.Popen([*command, str(mlp), "--pass=fold-shapes", "-o", str(pipe)], env=env)
    subprocess.run([*command, str(pipe), "--pass=reverse", "-o", str(tmp_path / "adj.onnx")], env=env, check=True)
    assert first.wait(60) == 0 and pipe.is_fifo()
    check_adjoint(tmp_path / "adj.onnx")


def test_tables_keep_out_of_a_piped_model(mlp):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "onnxad_cli.opt",
        str(mlp),
        "--pass=reverse",
        "--check",
        "--report",
        "-o",
        "-",
    ]
    done = subprocess.run(command, capture_output=True, env=env, check=True)
    onnx.checker.check_model(onnx.load_from_string(done.stdout))
    assert b"comparisons agree" in done.stderr and b"differentiated: 3" in done.stderr


def test_help_and_usage_load_nothing_heavy():
    code = (
        "import sys; from onnxad_cli.opt import main; main(['--help'])\nprint('onnx' in sys.modules, file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stderr.strip() == "False" and "exit status" in done.stdout.lower()


def test_a_model_is_written_without_a_runtime(mlp, tmp_path):
    code = (
        "import sys; from onnxad_cli.opt import main\n"
        f"assert main([{str(mlp)!r}, '--pass=reverse', '-o', {str(tmp_path / 'o.onnx')!r}]) == 0\n"
        "print([m for m in ('onnxruntime', 'networkx', 'onnxscript', 'onnx.reference') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"


def test_deterministic(opt, mlp, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        assert opt(mlp, "--pass=reverse", "--pass=forward", "-o", tmp_path / name)[0] == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_every_pass_alone(opt, mlp, tmp_path):
    for cls in BUILTIN:
        if cls.name in ("gradient", "hessian"):
            continue  # y is no scalar
        out = tmp_path / f"{cls.name}.onnx"
        status, _, err = opt(mlp, f"--pass={cls.name}", "-o", out)
        assert status == 0, err
        model = load(out)
        assert [v.name for v in model.graph.inputs][:2] == ["x", "b"]


def test_progress_bar():
    from onnxad_cli.instruments import Progress

    out = io.StringIO()
    bar = Progress(out, 4, patience=0)
    bar.show("reverse", 1, 4)
    assert "######.................. 1/4 reverse" in out.getvalue().replace("]", "").replace("[", "")
    bar.clear()
    assert out.getvalue().endswith("\r\x1b[K")
    quiet = io.StringIO()
    Progress(quiet, 4, patience=60).show("reverse", 1, 4)
    assert quiet.getvalue() == ""


def test_closed_pipe_is_no_error(mlp):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = f"{sys.executable} -m onnxad_cli.opt --list-rules | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.startswith("operator") and done.stderr == ""


@pytest.mark.parametrize(
    "pipeline, checks",
    [
        ("reverse{layout=casadi}", 1),
        ("forward{layout=onnx inputs=x,w}", 1),
        ("reverse{layout=leading dim=k},forward{layout=casadi inputs=x,adj_y}", 2),
        ("jacobian", 1),
        ("jacobian{inputs=w,x mode=forward}", 1),
        ("vectorize{inputs=x dim=k},reverse{layout=casadi}", 1),
    ],
)
def test_several_directions(opt, mlp, tmp_path, pipeline, checks):
    status, out, err = opt(mlp, f"--pass-pipeline={pipeline}", "--check", "-o", tmp_path / "d.onnx")
    assert status == 0 and "WRONG" not in out and out.count("comparisons agree") == checks, out + err
    onnx.checker.check_model(onnx.load(tmp_path / "d.onnx"), full_check=True)


def test_a_hessian(opt, save, tmp_path):
    m = save(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float y) { e = Exp(x) y = ReduceSum <keepdims = 0> (e) }'
    )
    status, out, _ = opt(m, "--pass=hessian", "--report", "-o", tmp_path / "h.onnx")
    assert status == 0 and "derivative of y with respect to x" in out
    x = np.array([0.5, -1], np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "h.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["hess_x_x"], {"x": x})[0], np.diag(np.exp(x)), rtol=1e-6)
    status, _, err = opt(m, "--pass=hessian", "--check")
    assert status == 2 and "then jacobian" in err
    assert opt(m, "--pass-pipeline=gradient,jacobian{inputs=x outputs=grad_x}", "--check")[0] == 0
