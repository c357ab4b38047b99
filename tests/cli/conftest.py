"""Models in files, and the command run in this process."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from onnxad_cli.opt import main

MLP = """<ir_version: 8, opset_import: ["" : 18]>
mlp (float[N,3] x, float[3] b) => (float[N,4] y)
<float[3,4] w = {0.5, 2, 1, -1, 2, 3, -0.2, 0.1, 0.7, 0.3, 0.9, 1}> {
  h = Add(x, b)
  t = Tanh(h)
  y = MatMul(t, w)
}"""


@pytest.fixture
def mlp(tmp_path):
    """The path of a small model."""
    path = tmp_path / "mlp.onnx"
    onnx.save(parser.parse_model(MLP), path)
    return path


@pytest.fixture
def opt(capsys):
    """Run onnxad-opt; returns (exit status, standard output, standard error)."""

    def run(*argv):
        status = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, out, err

    return run


@pytest.fixture
def save(tmp_path):
    """Write a model given as ONNX text and return its path."""

    def write(text, name="m.onnx"):
        path = tmp_path / name
        onnx.save(parser.parse_model(text), path)
        return path

    return write
