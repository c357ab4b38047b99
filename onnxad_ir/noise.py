"""Operators that draw random numbers: two nodes of one are two draws, whatever they read, and so are two runs."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.core import Node, Value

RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


def draws(op_type: str, domain: str, inputs: Sequence[Value | None]) -> bool:
    """True for an operator on these operands that gives other results each time; Dropout does so in training only."""
    if domain or op_type not in RANDOM:
        return False
    if op_type != "Dropout":
        return True
    training = inputs[2] if len(inputs) > 2 else None
    return training is not None and (training.const is None or bool(training.const.numpy()))


def is_random(n: Node) -> bool:
    """True for a node that gives other results when it runs again."""
    return draws(n.op_type, n.domain, n.inputs)
