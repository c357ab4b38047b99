"""The examples of the documents run, one after the other as a reader would type them."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["README.md", "docs/extending.md"])
def test_python_examples(name, tmp_path, monkeypatch):
    """CasADi's has a test of its own (test_family). onnxscript reads source files, so the code goes into one."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    code = [b for b in blocks if "import casadi" not in b]
    assert len(code) > 4
    (tmp_path / "examples.py").write_text("\n".join(code))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(tmp_path / "examples.py"))
