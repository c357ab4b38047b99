"""What several tests need: running a model, and the same model in double precision."""

import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

from onnxad_rules.testing import run_in_reference


def steps(f, *args):
    """How much work a call is: the lines of Python that run, whatever else the machine has to do.

    What one line has C do (a search in a list, say) counts as one.
    """
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        f(*args)
    finally:
        sys.settrace(before)
    return count


def session(model, level=99):
    """An ONNX Runtime session at an optimization level (0, 1, 2, 99), one thread."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def evaluate(model, feeds, level=None):
    """Results by name; initializers named in `feeds` are replaced by their values.

    In ONNX Runtime at a level; without a level, unoptimized where it has the kernels, else in the reference evaluator.
    """
    model = replace_weights(model, feeds)
    names = [o.name for o in model.graph.output]
    have = {i.name: feeds[i.name] for i in model.graph.input if i.name in feeds}
    if level is not None:
        return dict(zip(names, session(model, level).run(None, have), strict=True))
    try:
        return dict(zip(names, session(model, 0).run(None, have), strict=True))
    except Exception:  # onnxruntime raises many types, all meaning: no kernel for this model
        return dict(zip(names, run_in_reference(model)(have), strict=True))


def replace_weights(model, values):
    """A copy of the model in which initializers have new values."""
    if not any(t.name in values for t in model.graph.initializer):
        return model
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for t in out.graph.initializer:
        if t.name in values:
            t.CopyFrom(numpy_helper.from_array(np.asarray(values[t.name]), t.name))
    return out


def _retype_tensor(t, to):
    if t.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(t).astype(onnx.helper.tensor_dtype_to_np_dtype(to))
        t.CopyFrom(numpy_helper.from_array(array, t.name))


def _retype_graph(graph, to, stash):
    scales = {n.input[2] for n in graph.node if n.op_type == "Resize" and len(n.input) > 2}  # always float32
    for t in graph.initializer:
        if t.name not in scales:
            _retype_tensor(t, to)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = to
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.TENSOR:
                _retype_tensor(a.t, to)
            elif a.type == onnx.AttributeProto.GRAPH:
                _retype_graph(a.g, to, stash)
            elif a.name == "to" and a.i == TensorProto.FLOAT:
                a.i = to
        if stash and node.op_type in ("LayerNormalization", "RMSNormalization"):
            kept = [a for a in node.attribute if a.name != "stash_type"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("stash_type", to)])


def retyped(model, to, stash=False):
    """The same model with every float32 tensor in another floating type; with `stash`, also inside of normalizations."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    _retype_graph(out.graph, to, stash)
    return out


def to_double(model):
    """The same model with every float32 tensor in float64, for the reference evaluator: no float32 is left inside."""
    return retyped(model, TensorProto.DOUBLE, stash=True)
