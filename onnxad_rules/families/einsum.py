"""Einsum: any equation, any number of operands."""

from __future__ import annotations

from onnxad_ir.builder import Builder, Var
from onnxad_rules.kinds import multilinear
from onnxad_rules.node import NodeView
from onnxad_rules.subscripts import contract, subscripts


def _einsum(op: Builder, n: NodeView, ct: Var, i: int) -> Var:
    """The sum with the cotangent in the place of the operand, and the operand in the place of the result.

    Labels that only this operand has were summed: the cotangent is the same all along them. A repeated label
    reads a diagonal: off it there are zeros. What an ellipsis or extent of one was broadcast along is summed.
    """
    operands, result = subscripts(n.equation)
    own, x = operands[i], n.Inputs[i]
    others = [k for k in range(len(operands)) if k != i]
    seen = set(result).union(*(operands[k] for k in others))
    first = [own.index(c) == p for p, c in enumerate(own)]
    found = "".join(c for p, c in enumerate(own) if first[p] and c in seen)
    if "." in seen and "." not in own:
        found = "." + found
    out = contract(op, [result, *(operands[k] for k in others)], [ct, *(n.Inputs[k] for k in others)], found)
    added = [p for p, c in enumerate(own) if c not in seen or not first[p]]
    if added:
        out = op.Unsqueeze(out, _axes(op, own, added, x))
    if not all(first):
        out = op.where(_diagonal(op, own, x), out, 0)
    if any(c not in seen for c in own) or _differs(x, out):
        out = op.Expand(out, op.shape(x))
    if "." in own or "." in found or _differs(out, x):
        return op.sum_to(out, x)
    return op.fit_type(out, x)


def _axes(op: Builder, own: str, at: list[int], x: Var) -> Var:
    """The axes of `x` at places of its subscripts; those of an ellipsis are counted at run time."""
    dot = own.find(".")
    fixed = op.const([p if p < dot else p - len(own) for p in at if p != dot])
    if dot not in at:
        return fixed
    count = op.rank(x) - op.const([len(own) - 1])
    return op.Concat(fixed, op.iota(count) + op.const([dot]), axis=0)


def _diagonal(op: Builder, own: str, x: Var) -> Var:
    """Where the indices of a repeated label agree; a mask that broadcasts to the shape of `x`."""
    masks: list[Var] = []
    dot = own.find(".")
    for p, c in enumerate(own):
        q = own.index(c)
        if p == q:
            continue
        # an axis after an ellipsis is counted from the end
        ends = [a if a < dot else a - len(own) for a in (q, p)]
        order = op.iota(op.extent(x, ends[0]))
        rank = op.rank(x) if dot >= 0 else op.const([len(own)])
        sides = [op.Unsqueeze(order, _all_but(op, rank, e)) for e in ends]
        masks.append(op.Equal(*sides))
    mask = masks[0]
    for m in masks[1:]:
        mask = op.And(mask, m)
    return mask


def _all_but(op: Builder, rank: Var, axis: int) -> Var:
    """Every axis of a rank but one."""
    before = op.const([axis]) if axis >= 0 else rank + op.const([axis])
    after = rank - before - op.const([1])
    return op.Concat(op.iota(before), op.iota(after) + before + op.const([1]), axis=0)


def _differs(large: Var, small: Var) -> bool:
    """True where `small` is known to have an extent of one where `large` has another.

    Extents of one label are taken to be equal where they are not known: the specification does not have them
    broadcast, though runtimes do.
    """
    a, b = large.shape, small.shape
    return a is not None and b is not None and len(a) == len(b) and any(y == 1 != x for x, y in zip(a, b, strict=True))


multilinear("Einsum", Inputs=_einsum)
