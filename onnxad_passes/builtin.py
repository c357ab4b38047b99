"""The passes that come with onnxad."""

from onnxad_passes.cse import Cse
from onnxad_passes.dce import Dce
from onnxad_passes.decompose import Decompose
from onnxad_passes.fold_shapes import FoldShapes
from onnxad_passes.forward import Forward
from onnxad_passes.gradient import Gradient
from onnxad_passes.hessian import Hessian
from onnxad_passes.inline_functions import InlineFunctions
from onnxad_passes.jacobian import Jacobian
from onnxad_passes.lower_rnn import LowerRnn
from onnxad_passes.manager import Pass
from onnxad_passes.onnx_ir_passes import OnnxIrPasses
from onnxad_passes.onnxscript_rewrite import OnnxscriptRewrite
from onnxad_passes.reverse import Reverse
from onnxad_passes.simplify import Simplify
from onnxad_passes.specialize_functions import SpecializeFunctions
from onnxad_passes.unroll import Unroll
from onnxad_passes.upgrade_opset import UpgradeOpset
from onnxad_passes.vectorize import Vectorize

BUILTIN: tuple[type[Pass], ...] = (
    UpgradeOpset,
    InlineFunctions,
    SpecializeFunctions,
    FoldShapes,
    LowerRnn,
    Decompose,
    Forward,
    Reverse,
    Gradient,
    Jacobian,
    Hessian,
    Vectorize,
    Dce,
    Cse,
    Simplify,
    Unroll,
    OnnxIrPasses,
    OnnxscriptRewrite,
)
