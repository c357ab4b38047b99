"""Sums of padded pieces: what several slices of one tensor send back to it.

x[:, :h] and x[:, h:] return their cotangents surrounded by zeros. Where such pieces are neighbours, their sum
is their concatenation, which costs one copy instead of a padding each and the additions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from onnxad_ir.core import Value
from onnxad_ir.infer import known_ints

if TYPE_CHECKING:
    from onnxad_ir.builder import Builder, Var


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor with zeros before and after it along one axis."""

    value: Value
    axis: int
    before: int
    length: int
    after: int


def piece(v: Value) -> Piece | None:
    """What a value is a padding of; None where it is none, along several axes or by unknown margins."""
    p = v.producer
    if p is None or p.op_type != "Pad" or p.domain or p.attributes.get("mode", "constant") != "constant":
        return None
    x = p.inputs[0]
    value, given = (p.inputs[i] if len(p.inputs) > i else None for i in (2, 3))
    pads = known_ints(p.inputs[1])
    if x is None or x.shape is None or value is not None or pads is None or v.shape is None:
        return None
    axes = tuple(range(len(x.shape))) if given is None else known_ints(given)
    if axes is None:
        return None
    at = [i for i in range(len(axes)) if pads[i] or pads[i + len(axes)]]
    if len(at) != 1:
        return None
    axis = axes[at[0]] % len(x.shape)
    length, before, after = x.shape[axis], pads[at[0]], pads[at[0] + len(axes)]
    if not isinstance(length, int) or before < 0 or after < 0:
        return None
    return Piece(x, axis, before, length, after)


def join(op: Builder, terms: Sequence[Var]) -> list[Var]:
    """Terms of a sum, with neighbouring padded pieces among them concatenated."""
    out: list[Var] = []
    groups: dict[tuple[object, int], list[tuple[Piece, Var]]] = {}
    for t in terms:
        p = piece(t.value)
        if p is None:
            out.append(t)
        else:
            groups.setdefault((t.shape, p.axis), []).append((p, t))
    for (_, axis), group in groups.items():
        pieces = sorted((p for p, _ in group), key=lambda p: p.before)
        touching = all(a.before + a.length == b.before for a, b in pairwise(pieces))
        if len(pieces) == 1 or not touching:
            out.extend(t for _, t in group)
            continue
        whole: Var = op.Concat(*(p.value for p in pieces), axis=axis)
        if pieces[0].before or pieces[-1].after:
            whole = op.Pad(whole, [pieces[0].before, pieces[-1].after], None, [axis])
        out.append(whole)
    return out
