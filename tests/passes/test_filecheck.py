"""Text tests: what a pass is about, as the IR prints it. RUN lines say what runs, CHECK lines what
comes out.

A RUN line with --check proves the model that its neighbours pin: it is differentiated right, or the line
fails.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from onnxad_ir.files import load
from onnxad_ir.printer import print_model

FOLDER = Path(__file__).parent / "filecheck"
FILES = sorted(FOLDER.glob("*.txt"))


def run_lines(path):
    for line in path.read_text().splitlines():
        if line.startswith("// RUN: "):
            yield line.removeprefix("// RUN: ").replace("%s", shlex.quote(str(path)))


def execute(line):
    """Run one line, a command or two with a pipe between them, without a shell: braces are no pattern
    here."""
    commands = [shlex.split(part) for part in line.split(" | ")]
    modules = {"onnxad-opt": "onnxad_cli.opt", "filecheck": "filecheck"}
    text = ""
    for command in commands:
        full = [sys.executable, "-m", modules[command[0]], *command[1:]]
        done = subprocess.run(full, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
        text = done.stdout
    return text


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_file(path):
    lines = list(run_lines(path))
    assert any("filecheck" in line for line in lines)
    for line in lines:
        execute(line)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_models_are_written_as_the_ir_prints_them(path):
    text = "".join(f"{line}\n" for line in path.read_text().splitlines() if line and not line.startswith("//"))
    assert print_model(load(path, "oir")) == text


def test_a_wrong_line_is_found(tmp_path):
    path = tmp_path / "wrong.txt"
    path.write_text((FOLDER / "reverse.txt").read_text().replace("// CHECK-NEXT: %mul", "// CHECK-NEXT: %mist"))
    with pytest.raises(AssertionError, match="mist"):
        for line in run_lines(path):
            execute(line)
