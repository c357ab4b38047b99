"""Operators through which no derivative passes, and why."""

from __future__ import annotations

from onnxad_rules.kinds import zero

zero("Constant", "EyeLike", "ConstantOfShape", reason="the result depends on no floating operand's values")
zero("Shape", "Size", reason="depends on the form of the operand only")
zero("Sign", "Floor", "Ceil", "Round", reason="piecewise constant")
zero("Hardmax", reason="piecewise constant: one at the place of the largest element")
zero("ArgMax", "ArgMin", "NonZero", "NonMaxSuppression", reason="the result is a place, an integer")
zero(
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf", "And", "Or", "Xor", "Not",
    reason="the result is a truth value",
)  # fmt: skip
zero(
    "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "BitCast",
    reason="works on the bits of its operands",
)  # fmt: skip
zero(
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial",
    reason="a sample does not depend smoothly on the operands",
)  # fmt: skip
zero("HannWindow", "HammingWindow", "BlackmanWindow", reason="depends on a size only")
zero("MelWeightMatrix", reason="the frequencies only choose bins, whole numbers")
zero(
    "StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer", "ImageDecoder",
    reason="works on text, bytes or integers",
)  # fmt: skip
