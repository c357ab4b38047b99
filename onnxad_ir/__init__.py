"""onnxad_ir: what a program is."""

from onnxad_ir import content_rules, region_rules, shape_rules, shape_rules_nn  # noqa: F401  (importing registers the fast paths of inference)
