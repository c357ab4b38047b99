"""An import only points left: ir <- rules <- passes <- cli, and never at another package's private modules."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ORDER = ["onnxad_ir", "onnxad_rules", "onnxad_passes", "onnxad_cli"]
FILES = [p for package in ORDER for p in sorted((ROOT / package).rglob("*.py"))]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_left(path):
    here = path.relative_to(ROOT).parts[0]
    for name in imported(path):
        package, *rest = name.split(".")
        if package in ORDER and package != here:
            assert ORDER.index(package) < ORDER.index(here), f"{path} imports {name}"
            assert not any(part.startswith("_") for part in rest), f"{path} imports {name}, which is private"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short(path):
    assert len(path.read_text().splitlines()) <= 600
