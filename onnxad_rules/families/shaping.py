"""Operators that only move elements about: reshaping, transposing, joining and splitting."""

from __future__ import annotations

from onnxad_rules.kinds import linear

linear("Identity", input=lambda op, n, ct: ct)
linear("Reshape", data=lambda op, n, ct: op.reshape_like(ct, n.data))
linear("Transpose", data=lambda op, n, ct: op.Transpose(ct, perm=_inverse(n.perm)))
linear("Squeeze", data=lambda op, n, ct: op.reshape_like(ct, n.data))
linear("Unsqueeze", data=lambda op, n, ct: op.reshape_like(ct, n.data))
linear("Expand", input=lambda op, n, ct: op.sum_to(ct, n.input))


def _inverse(perm: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The permutation that undoes `perm` (None reverses the axes, and undoes itself)."""
    return None if perm is None else tuple(sorted(range(len(perm)), key=perm.__getitem__))
