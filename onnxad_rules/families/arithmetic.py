"""Arithmetic with broadcasting."""

from __future__ import annotations

from onnxad_rules.kinds import elementwise, times

elementwise("Add", A=1, B=1)
elementwise("Sub", A=1, B=-1)
elementwise("Mul", A=lambda op, n: n.B, B=lambda op, n: n.A)
elementwise("Div", A=times(lambda op, n, x: x / n.B), B=times(lambda op, n, x: -(x * (n.C / n.B))))
elementwise("Neg", X=-1)
elementwise("Sum", data_0=lambda op, n, i: 1)
elementwise("Mean", data_0=lambda op, n, i: 1 / len(n.data_0))
elementwise("Reciprocal", X=lambda op, n: -(n.Y * n.Y))
elementwise("Sqrt", X=times(lambda op, n, x: x * 0.5 / n.Y))
