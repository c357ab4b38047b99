"""onnxad_passes: what happens to a program. The public functions are here."""

from onnxad_passes.api import forward, gradient, hessian, jacobian, reverse, run_pipeline, unroll, vectorize
from onnxad_passes.check import CheckReport, check_derivatives
from onnxad_passes.family import family, sibling
from onnxad_passes.grad_registry import GradRegistry, register_gradient_function
from onnxad_passes.gradient_function import gradient_of_function, gradient_of_nodes
from onnxad_passes.manager import Pass, PassManager
from onnxad_passes.pipeline import parse_pipeline, print_pipeline
from onnxad_passes.unroll import UnrollTooLarge
from onnxad_rules.ruleset import NotDifferentiable, UnsupportedOperator

__version__ = "0.1.0"

__all__ = [
    "CheckReport",
    "GradRegistry",
    "NotDifferentiable",
    "Pass",
    "PassManager",
    "UnrollTooLarge",
    "UnsupportedOperator",
    "__version__",
    "check_derivatives",
    "family",
    "forward",
    "gradient",
    "gradient_of_function",
    "gradient_of_nodes",
    "hessian",
    "jacobian",
    "parse_pipeline",
    "print_pipeline",
    "register_gradient_function",
    "reverse",
    "run_pipeline",
    "sibling",
    "unroll",
    "vectorize",
]
