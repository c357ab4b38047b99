"""Which operators were not batched."""

import pytest

from onnxad_rules.batching.sweep import Sweep


@pytest.fixture
def scans(monkeypatch):
    """The operators that have been run for one entry after the other since the test started."""
    found = []
    original = Sweep.one_by_one

    def noted(self, op, node):
        found.append(node.op_type)
        return original(self, op, node)

    monkeypatch.setattr(Sweep, "one_by_one", noted)
    return found
