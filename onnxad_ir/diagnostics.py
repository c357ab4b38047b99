"""Errors that say what is wrong, where in the model, what was expected and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnxad_ir.core import Node


class OnnxadError(Exception):
    """A model or a pipeline that cannot be done. `str()` is one clear message."""


class ModelError(OnnxadError, ValueError):
    """The model breaks a rule of ONNX or of the IR."""


class UsageError(OnnxadError, ValueError):
    """A request that makes no sense for the model: an unknown name, a wrong option, a bad type."""


def describe(node: Node) -> str:
    """A node in one line: `Conv "layer1/conv" (%y = Conv(%x, %w))`."""
    label = f' "{node.name}"' if node.name else ""
    where = node.graph.name if node.graph is not None and node.graph.name else ""
    inside = f' in graph "{where}"' if where else ""
    return f"{node.domain + '.' if node.domain else ''}{node.op_type}{label} ({node!r}){inside}"
