"""onnxad_ir: what a program is."""

# importing these registers the fast paths of inference
from onnxad_ir import (  # noqa: F401
    content_rules,
    region_rules,
    shape_rules,
    shape_rules_contrib,
    shape_rules_contrib_layers,
    shape_rules_index,
    shape_rules_nn,
    shape_rules_preview,
    shape_rules_sequences,
)
