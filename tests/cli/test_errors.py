"""Everything a user can get wrong: one clear message, exit status 1 or 2, no traceback, nothing written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from onnxad_cli.opt import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fails(opt, tmp_path):
    """Run the command with an output file; assert how it fails and that nothing is written."""

    def run(status, message, *argv, output=True):
        before = sorted(os.listdir(tmp_path))
        out_file = tmp_path / "out.onnx"
        got, out, err = opt(*argv, *(["-o", out_file] if output else []))
        assert got == status, err
        assert re.search(message, err), err
        assert out == ""
        assert err.count("error:") == 1
        assert sorted(os.listdir(tmp_path)) == before
        return err

    return run


def test_operator_without_rule(fails, save):
    path = save(
        """<ir_version: 8, opset_import: ["" : 18, "com.acme" : 1]>
        g (float[2] x) => (float[2] y) {
          a = com.acme.Warp(x)
          b = com.acme.Weft(x)
          c = Add(a, b)
          y = Tanh(c)
        }"""
    )
    model = onnx.load(path)
    model.graph.node[0].name = "layer/warp"
    for name in "ab":
        model.graph.value_info.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]))
    onnx.save(model, path)
    err = fails(1, "2 node", path, "--pass=reverse")
    assert 'com.acme.Warp "layer/warp" (%a = com.acme.Warp(%x))' in err  # every node, where it is
    assert "com.acme.Weft" in err
    assert "Add a rule" in err and "--list-rules" in err  # a way out


def test_not_an_onnx_file(fails, tmp_path):
    path = tmp_path / "photo.onnx"
    path.write_bytes(b"\x89PNG\r\n\x1a\n and so on")
    fails(1, r"photo\.onnx: not an ONNX model", path, "--pass=reverse")


def test_empty_file(fails, tmp_path):
    path = tmp_path / "empty.onnx"
    path.write_bytes(b"")
    fails(1, "is empty", path)


@pytest.mark.parametrize("suffix, text", [(".onnxtxt", "hello"), (".json", "{]"), (".oir", "model <ir = 8")])
def test_text_that_is_no_model(fails, tmp_path, suffix, text):
    path = tmp_path / f"m{suffix}"
    path.write_text(text)
    fails(1, rf"m{suffix}: ", path)


def test_truncated_file(fails, mlp):
    data = mlp.read_bytes()
    for cut in (len(data) - 1, len(data) // 2, 30):
        mlp.write_bytes(data[:cut])
        fails(1, "truncated|not an ONNX model", mlp, "--pass=reverse")


def test_no_such_file(fails, mlp, tmp_path):
    """What the caller names and is not there is bad usage, be it the model, the inputs of a check or a pass."""
    fails(2, "nowhere.onnx: No such file", tmp_path / "nowhere.onnx")
    fails(2, "nowhere: No such file", tmp_path / "nowhere")
    fails(2, "the name of the model is empty", "")
    fails(2, "is a folder", tmp_path)
    if os.geteuid() != 0:
        mlp.chmod(0)
        fails(2, "Permission denied", mlp)


def _external(folder, location):
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,2] x) => (float[N,500] y) { y = MatMul(x, w) }'
    )
    w = numpy_helper.from_array(np.ones((2, 500), np.float32), "w")
    proto.graph.initializer.append(w)
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    proto = onnx.load(folder / "m.onnx", load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return folder / "m.onnx"


def test_missing_external_data(fails, tmp_path):
    path = _external(tmp_path, "w.bin")
    (tmp_path / "w.bin").unlink()
    fails(1, r"'w\.bin', which does not exist", path, "--pass=reverse")


def test_short_external_data(fails, tmp_path):
    path = _external(tmp_path, "w.bin")
    (tmp_path / "w.bin").write_bytes(b"1234")
    fails(1, "w.*has 4 bytes, but", path, "--pass=reverse")


@pytest.mark.parametrize("location", ["../w.bin", "/etc/passwd", "sub/../../w.bin"])
def test_external_data_outside_the_folder(fails, tmp_path, location):
    path = _external(tmp_path, location)
    fails(1, "outside the model's folder", path, "--pass=reverse")


def test_external_data_cannot_be_kept_in_another_folder(opt, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    path = _external(tmp_path / "a", "w.bin")
    status, _, err = opt(path, "--pass=reverse", "-o", tmp_path / "b" / "out.onnx")
    assert status == 2 and "--external-data=copy" in err
    assert os.listdir(tmp_path / "b") == []


def test_external_data_cannot_go_through_a_pipe(fails, tmp_path):
    path = _external(tmp_path, "w.bin")
    fails(2, "outside the folder.*a pipe has no folder", path, "--pass=reverse", "-o", "-", output=False)


def test_unknown_pass(fails, mlp):
    fails(2, "no pass called 'revrese'; did you mean 'reverse'", mlp, "--pass=revrese")
    fails(2, "no pass called 'dcee'; did you mean 'dce'", mlp, "--pass-pipeline=cse,dcee")
    fails(2, "no pass called 'revers'; did you mean 'reverse'", mlp, "--pass=reverse", "--print-ir-after=revers")


def test_wrong_pass_option(fails, mlp):
    fails(2, "'reverse' has no option 'input'; did you mean 'inputs'", mlp, "--pass=reverse{input=x}")
    fails(2, "there is no layout 'vertical'", mlp, "--pass=reverse{layout=vertical}")
    fails(2, "takes one value, not 2", mlp, "--pass=reverse{prefix=a,b}")
    fails(2, r"expected \}", mlp, "--pass=reverse{inputs=x")
    fails(2, "named twice", mlp, "--pass=reverse{inputs=x,x}")


def test_wrong_command_option(fails, mlp):
    fails(2, "unrecognized arguments: --pas=reverse", mlp, "--pas=reverse")
    fails(2, "--chek; did you mean '--check'", mlp, "--chek")
    fails(2, "one model is read, '.*', so what is 'b.onnx'", mlp, "b.onnx")
    fails(2, "--pass: expected one argument", mlp, "--pass")
    fails(2, "invalid choice: 'yaml'", mlp, "--to=yaml")
    fails(2, "--dim takes NAME=N", mlp, "--pass=reverse", "--check", "--dim=N:3")
    fails(2, "no symbolic dimension 'M'", mlp, "--pass=reverse", "--check", "--dim=M=3")


def test_an_option_that_says_nothing_is_an_error(fails, mlp, tmp_path):
    np.savez(tmp_path / "in.npz", x=np.ones((2, 3), np.float32))
    fails(2, "--dim says how to check: add --check", mlp, "--pass=reverse", "--dim=N=3")
    fails(2, "--check-inputs says how to check", mlp, "--pass=reverse", "--check-inputs", tmp_path / "in.npz")
    fails(2, "--check-engine says how to check", mlp, "--pass=reverse", "--check-engine=reference")
    fails(2, "differences, which see the steps that", mlp, "--pass=reverse{straight-through=Round}", "--check")
    fails(2, "--external-data says how to write", mlp, "--external-data=copy", output=False)
    fails(2, "a pipe has no folder", mlp, "--external-data=copy", "-o", "-", output=False)
    fails(2, r"no pass 'dce' runs \(inline-functions, .*reverse\)", mlp, "--pass=reverse", "--print-ir-after=dce")
    fails(2, r"no pass 'dce' runs \(the pipeline is empty\)", mlp, "--print-ir-after=dce")


def test_no_model(fails):
    fails(2, "name a model to read", "--pass=reverse")


def test_unknown_value_names(fails, mlp):
    fails(2, r"no value called 'xx'.*did you mean 'x'.*inputs: x, b", mlp, "--pass=reverse{inputs=xx}")
    fails(2, "no value called 'z'", mlp, "--pass=forward{outputs=z}")
    fails(2, "no value called 'loss'", mlp, "--pass=gradient{output=loss}")


def test_integer_input_and_output(fails, save):
    path = save(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[5] x, int64[2] i) => (float[2] y, int64[1] s) { y = Gather(x, i) s = Shape(x) }"""
    )
    fails(2, "input 'i' is not a floating-point tensor", path, "--pass=reverse{inputs=i}")
    fails(2, "output 's' is not a floating-point tensor", path, "--pass=reverse{outputs=s}")


def test_nothing_to_differentiate(fails, save):
    path = save('<ir_version: 8, opset_import: ["" : 18]> g (int64[2] i) => (int64[2] j) { j = Neg(i) }')
    fails(2, "no floating-point input", path, "--pass=reverse")


def test_gradient_needs_one_element(fails, mlp):
    fails(2, r"'y' has shape \['N', 4\]; use `reverse`", mlp, "--pass=gradient")


def test_cyclic_graph(fails, tmp_path):
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], "first"),
        helper.make_node("Tanh", ["a"], ["b"], "second"),
    ]
    f = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", f, [2])], [helper.make_tensor_value_info("b", f, [2])]
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    fails(1, 'cycle: .*Tanh "second", Add "first"', tmp_path / "m.onnx", "--pass=reverse")


def test_missing_opset_import(fails, mlp, save):
    proto = onnx.load(mlp)
    del proto.opset_import[:]
    mlp.write_bytes(proto.SerializeToString())
    fails(1, "opset", mlp, "--pass=reverse")
    path = save('<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
    proto = onnx.load(path)
    proto.graph.node[0].domain = "ai.onnx.ml"
    path.write_bytes(proto.SerializeToString())
    fails(1, "ai.onnx.ml.*import|import.*ai.onnx.ml", path, "--pass=reverse")


def test_undefined_operand(fails, mlp):
    proto = onnx.load(mlp)
    proto.graph.node[1].input[0] = "ghost"
    mlp.write_bytes(proto.SerializeToString())
    fails(1, "ghost", mlp, "--pass=reverse")


def test_broken_model(fails, mlp):
    proto = onnx.load(mlp)
    proto.graph.node[1].input.append("x")  # Tanh takes one operand
    mlp.write_bytes(proto.SerializeToString())
    fails(1, "Tanh", mlp, "--pass=reverse")


def test_unwritable_output(fails, mlp, tmp_path):
    (tmp_path / "folder.onnx").mkdir()
    fails(2, "no folder", mlp, "--pass=reverse", "-o", tmp_path / "no" / "such.onnx", output=False)
    fails(2, "is a folder", mlp, "--pass=reverse", "-o", tmp_path / "folder.onnx", output=False)
    fails(2, "the name of the output is empty", mlp, "--pass=reverse", "-o", "", output=False)
    if os.geteuid() != 0:
        (tmp_path / "old.onnx").write_bytes(b"precious")
        (tmp_path / "old.onnx").chmod(0o400)
        fails(2, "may not be written", mlp, "-o", tmp_path / "old.onnx", output=False)
        (tmp_path / "folder.onnx").chmod(0o500)
        fails(2, "cannot be written", mlp, "-o", tmp_path / "folder.onnx" / "a.onnx", output=False)


def test_unknown_suffix(fails, mlp, tmp_path):
    fails(2, r"suffix '\.onx'.*did you mean '\.onnx'.*--to", mlp, "-o", tmp_path / "out.onx", output=False)
    odd = tmp_path / "m.model"
    odd.write_bytes(mlp.read_bytes())
    fails(2, r"m\.model: suffix '\.model'.*--from", odd)


def test_clashing_result_names(fails, mlp):
    fails(2, "would clash", mlp, '--pass=reverse{prefix=""}')


def test_check_inputs(fails, mlp, tmp_path):
    fails(2, "no.npz: No such file", mlp, "--pass=reverse", "--check", "--check-inputs", tmp_path / "no.npz")
    (tmp_path / "bad.npz").write_bytes(b"junk")
    fails(2, "not a .npz file", mlp, "--pass=reverse", "--check", "--check-inputs", tmp_path / "bad.npz")
    np.save(tmp_path / "one.npy", np.ones(3))
    fails(2, "one array without a name", mlp, "--pass=reverse", "--check", "--check-inputs", tmp_path / "one.npy")
    np.savez(tmp_path / "odd.npz", q=np.ones(2))
    fails(2, "no input 'q'", mlp, "--pass=reverse", "--check", "--check-inputs", tmp_path / "odd.npz")


def test_what_is_there_survives_a_failure(opt, mlp, tmp_path):
    out = tmp_path / "adj.onnx"
    out.write_bytes(b"precious")
    assert opt(mlp, "--pass=reverse{inputs=nope}", "-o", out)[0] == 2
    assert out.read_bytes() == b"precious"


def test_faults_of_ours_are_called_so(opt, mlp, monkeypatch):
    from onnxad_passes.reverse import Reverse

    monkeypatch.setattr(Reverse, "run", lambda self, model: 1 / 0)
    status, _, err = opt(mlp, "--pass=reverse")
    assert status == 1 and "internal error in pass 'reverse', ZeroDivisionError" in err
    assert "a fault of onnxad;" in err and "--debug" in err


def test_faults_of_a_pass_of_others_are_theirs(opt, mlp, monkeypatch):
    from onnxad_passes.reverse import Reverse

    class Theirs(Reverse):
        def run(self, model):
            raise KeyError("gone")

    Theirs.__module__ = "their_package.passes"
    monkeypatch.setattr("onnxad_passes.pipeline.lookup", lambda name: Theirs)
    status, _, err = opt(mlp, "--pass=reverse")
    assert status == 1 and "a fault of their_package.passes;" in err


def test_debug_shows_the_traceback_and_keeps_the_status(mlp, capsys):
    assert main([str(mlp), "--pass=reverse{inputs=nope}", "--debug"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and err.splitlines()[-1].startswith("onnxad-opt: error: the model has no value")


def test_external_data_is_looked_at_before_the_pipeline_runs(opt, tmp_path, monkeypatch):
    from onnxad_passes.reverse import Reverse

    monkeypatch.setattr(Reverse, "run", lambda self, model: 1 / 0)
    (tmp_path / "a").mkdir()
    path = _external(tmp_path / "a", "w.bin")
    assert opt(path, "--pass=reverse", "-o", tmp_path / "m.onnx")[0] == 1  # a folder above: the pass runs, and fails
    (tmp_path / "b").mkdir()
    status, _, err = opt(path, "--pass=reverse", "-o", tmp_path / "b" / "m.onnx")
    assert status == 2 and "--external-data=copy" in err


@pytest.mark.parametrize(
    "redirection, status, message",
    [
        ("- <&-", 2, "standard input is closed"),
        ("{} >&-", 1, "standard output is closed"),
        ("{} -o - >&-", 1, "standard output is closed"),
        ("--list-passes >&-", 1, "standard output is closed"),
        ("{} >/dev/full", 1, "standard output: No space left"),
        ("{} -o - >/dev/full", 1, "standard output: No space left"),
        ("--list-passes >/dev/full", 1, "standard output: No space left"),
        ("{} --pass=nonsense 2>&-", 2, ""),
        ("{} -o {}.oir >&-", 0, ""),
    ],
)
def test_closed_and_full_streams(mlp, redirection, status, message):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if "/dev/full" in redirection and not os.path.exists("/dev/full"):
        pytest.skip("this system has no device that is always full")
    line = f"{sys.executable} -m onnxad_cli.opt {redirection.replace('{}', str(mlp))}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == status and done.stdout == ""
    assert done.stderr.startswith(f"onnxad-opt: error: {message}") if message else done.stderr == ""
    assert done.stderr.count("\n") == bool(message)


def test_interrupted(mlp, tmp_path):
    """Ctrl-C while the model is awaited: a silent end with the status that shells use for it."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-c",
        "import signal, sys; from onnxad_cli.opt import main; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # tests in the background are run to ignore it
        "print('ready', flush=True); sys.exit(main())",
    ]
    p = subprocess.Popen(
        [*command, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    assert p.stdout.readline() == b"ready\n"
    p.stdin.write(b"model <")
    p.stdin.flush()
    time.sleep(1)  # until it reads
    p.send_signal(signal.SIGINT)
    assert p.communicate() == (b"", b"") and p.returncode == 130


def test_as_a_process(mlp, tmp_path):
    """The same through the interpreter: status and streams as a shell sees them."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "onnxad_cli.opt",
        str(mlp),
        "--pass=nonsense",
        "-o",
        str(tmp_path / "o.onnx"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("onnxad-opt: error: there is no pass")
    assert not (tmp_path / "o.onnx").exists()
