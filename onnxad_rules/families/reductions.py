"""Reductions over axes, static or computed, kept or dropped."""

from __future__ import annotations

from onnxad_rules.kinds import linear

linear("ReduceSum", data=lambda op, n, ct: op.unreduce(ct, n.data, n.axes, n.keepdims))
