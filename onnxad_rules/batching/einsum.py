"""Einsum: entries are the first axis of what an ellipsis stands for, where there is one, else an axis of a label."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

from onnxad_ir.builder import Builder, Var
from onnxad_rules.batching.core import Batch, batched
from onnxad_rules.node import NodeView
from onnxad_rules.subscripts import contract, ordered, subscripts


@batched("Einsum", any_rank=True)
def _einsum(op: Builder, n: NodeView, b: Batch) -> Any:
    terms, result = subscripts(n.equation)
    together = _ellipses(op, n, b, terms) if result.startswith(".") else None
    if together is not None:
        return contract(op, terms, together, result)
    entry = next(c for c in ascii_letters if c not in n.equation)
    # what is of unknown rank has the label behind the ellipsis, where engines want it
    late = [x.rank is None and t.startswith(".") for t, x in zip(terms, n.Inputs, strict=True)]
    labelled = [
        t if v is None else _behind(t, entry) if z else entry + t for t, v, z in zip(terms, b.Inputs, late, strict=True)
    ]
    dotted = [t for t, x in zip(labelled, n.Inputs, strict=True) if "." in t and x.rank is None]
    if any(t != ordered(t, labelled) for t in dotted):
        return NotImplemented
    values = [
        x if v is None else op.exchange(v, 1, 1 - len(t) or None) if z else v
        for t, x, v, z in zip(terms, n.Inputs, b.Inputs, late, strict=True)
    ]
    if not dotted or not result.startswith("."):
        return contract(op, labelled, values, entry + result)
    y = contract(op, labelled, values, _behind(result, entry))
    return op.exchange(y, -len(result), 1 - len(result) or None)


def _behind(term: str, label: str) -> str:
    return "." + label + term[1:]


def _ellipses(op: Builder, n: NodeView, b: Batch, terms: Sequence[str]) -> list[Var] | None:
    """Operands in which an ellipsis has the entries in front of what it stands for, None where that is not sure."""
    dotted = [(t, x) for t, x in zip(terms, n.Inputs, strict=True) if "." in t]
    if any(v is not None and not t.startswith(".") for t, v in zip(terms, b.Inputs, strict=True)):
        return None
    if len(dotted) == 1:
        return [x if v is None else v for x, v in zip(n.Inputs, b.Inputs, strict=True)]
    if any(x.rank is None or not t.startswith(".") for t, x in dotted):
        return None
    wide = max(x.rank - len(t) for t, x in dotted)
    found: list[Var] = []
    for t, x, v in zip(terms, n.Inputs, b.Inputs, strict=True):
        missing = wide - (x.rank - len(t)) if "." in t else -1
        ones = list(range(missing + 1) if v is None else range(1, missing + 1))
        y = x if v is None else v
        found.append(op.Unsqueeze(y, ones) if ones else y)
    return found
