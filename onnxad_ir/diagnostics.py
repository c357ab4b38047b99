"""Errors that say what is wrong, where in the model, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
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
    return f"{node.operator}{label} ({node!r}){inside}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """For the middle of a message about an unknown name: "; did you mean 'softmax'?", "" where none is near."""
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
