"""Fused operators of sequence models, differentiated through the bodies that the specification gives them."""

from __future__ import annotations

from onnxad_rules.kinds import specification

specification("LinearAttention", "CausalConvWithState")
specification("FlexAttention", domain="ai.onnx.preview")
