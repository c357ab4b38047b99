"""Subscripts of Einsum."""

from __future__ import annotations

from collections.abc import Sequence

from onnxad_ir.builder import Builder, Var


def subscripts(equation: str) -> tuple[list[str], str]:
    """The subscripts of the operands and of the result (explicit); an ellipsis is written as a dot."""
    left, arrow, right = equation.replace(" ", "").replace("...", ".").partition("->")
    if not arrow:
        once = sorted(c for c in set(left) if c not in ".," and left.count(c) == 1)
        right = ("." if "." in left else "") + "".join(once)
    return left.split(","), right


def ordered(term: str, terms: Sequence[str]) -> str:
    """A term with its labels in the order in which they appear in all of them, after the ellipsis.

    ONNX Runtime puts operands into this order; of one that is empty, doing so ends the process (a division by zero).
    """
    labels = "." + "".join(dict.fromkeys("".join(terms).replace(".", "")))
    return "".join(sorted(term, key=labels.index))


def contract(op: Builder, terms: Sequence[str], values: Sequence[Var], result: str) -> Var:
    """The Einsum of values with these subscripts, or what is simpler for a single operand."""
    if list(terms) == [result]:
        return values[0]
    out: Var
    if len(terms) == 1 and "." not in result and sorted(terms[0]) == sorted(result):
        out = op.Transpose(values[0], perm=tuple(terms[0].index(c) for c in result))
        return out
    turned = [_turned(op, t, x, ordered(t, terms)) for t, x in zip(terms, values, strict=True)]
    left = ",".join(t for t, _ in turned)
    out = op.Einsum(*(x for _, x in turned), equation=f"{left}->{result}".replace(".", "..."))
    return out


def _turned(op: Builder, term: str, x: Var, wanted: str) -> tuple[str, Var]:
    """An operand that may be empty, with its labels in the order that is wanted. A Transpose is right for those."""
    full = x.shape is not None and all(isinstance(d, int) and d > 0 for d in x.shape)
    if wanted == term or full or len(set(term)) < len(term) or ("." in term and x.rank is None):
        return term, x
    dot = term.find(".")
    places = [[p] for p in range(len(term))]
    if dot >= 0:
        assert x.rank is not None
        wide = x.rank - len(term)
        places = [[p if p < dot else p + wide] for p in range(len(term))]
        places[dot] = list(range(dot, dot + wide + 1))
    return wanted, op.Transpose(x, perm=tuple(a for c in wanted for a in places[term.index(c)]))
