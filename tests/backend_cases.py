"""onnx's own backend test cases, and what it takes to differentiate one: double precision, smooth points, differences.

A value is an array, a list of values (a sequence) or None (an empty optional).
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from functools import lru_cache
from glob import glob

import numpy as np
import onnx
import onnx_ir
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

from onnxad_ir import schema
from onnxad_ir.core import Graph
from onnxad_ir.infer import Inference
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import FLOATING, DataType, OptionalType, SequenceType, TensorType
from onnxad_rules.full_precision import OPERATORS as PRECISE
from onnxad_rules.spatial_reference import OPERATORS as QUICK
from onnxad_rules.testing import run_in_ort

#: Operators that ONNX Runtime computes in single precision, whatever their type.
IMPRECISE = {"Shrink"}
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class Case:
    """A model and the inputs and outputs recorded for it, by name."""

    name: str
    model: onnx.ModelProto
    inputs: dict
    outputs: dict

    @property
    def differentiable(self):
        """True where it has a floating input and a floating output."""
        return any(map(is_floating, self.inputs.values())) and any(map(is_floating, self.outputs.values()))


@lru_cache(maxsize=1)
def cases():
    """Every case, in a fixed order."""
    with np.errstate(all="ignore"):
        found = [_read(c) for kind in KINDS for c in load_model_tests(kind=kind)]
    return sorted((c for c in found if c is not None), key=lambda c: c.name)


def _read(case):
    if case.model is not None:
        model, (ins, outs) = case.model, case.data_sets[0]
        if len(ins) < len(model.graph.input):
            return None
        ins, outs = [_value(x) for x in ins], [_value(x) for x in outs]
    else:
        model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
        folder = sorted(glob(os.path.join(case.model_dir, "test_data_set_*")))[0]
        ins, outs = (_load_all(folder, "input", model.graph.input), _load_all(folder, "output", model.graph.output))
    names = [[v.name for v in side] for side in (model.graph.input, model.graph.output)]
    return Case(case.name, model, dict(zip(names[0], ins, strict=False)), dict(zip(names[1], outs, strict=False)))


def _load_all(folder, stem, infos):
    paths = [os.path.join(folder, f"{stem}_{i}.pb") for i in range(len(infos))]
    return [_load(p, i.type) for p, i in zip(paths, infos, strict=True) if os.path.exists(p)]


def _load(path, type_proto):
    with open(path, "rb") as f:
        data = f.read()
    kind = type_proto.WhichOneof("value")
    if kind == "sequence_type":
        return _value(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
    if kind == "optional_type":
        return _value(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _value(x):
    if isinstance(x, onnx.TensorProto):
        return numpy_helper.to_array(x)
    if isinstance(x, list | tuple):
        return [_value(v) for v in x]
    return x if x is None or isinstance(x, dict) else np.asarray(x)


# --- values


def is_floating(x):
    """True for a floating array and for a sequence of such."""
    if isinstance(x, list):
        return bool(x) and all(map(is_floating, x))
    return isinstance(x, np.ndarray | np.generic) and x.dtype.name in ("float16", "bfloat16", "float32", "float64")


def tree(f, x, *others):
    """`f` of the arrays of values that are made alike."""
    if isinstance(x, list):
        return [tree(f, *parts) for parts in zip(x, *others, strict=True)]
    return f(x, *others)


def leaves(x):
    """The arrays of a value."""
    return [a for v in x for a in leaves(v)] if isinstance(x, list) else [] if x is None else [x]


def dot(a, b):
    """The sum of the products of two values, where the second is not zero."""
    pairs = zip(leaves(a), leaves(b), strict=True)
    return sum(float(np.where(y == 0, 0, np.asarray(x, np.float64) * y).sum()) for x, y in pairs)


# --- double precision


#: The attribute that names the element type of a result, single precision where it is not set.
_DEFAULT_IS_FLOAT = {
    "SequenceEmpty": "dtype",
    "HannWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "BlackmanWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
}


def in_double(model):
    """The model with every floating tensor in double precision, but for operands that no operator takes so.

    An operator may lack double precision altogether: then its result is not in double precision, or it does not run.
    """
    lifted = from_proto(model)
    bodies = list(lifted.bodies())
    narrow = {v for body in bodies for g in body.graphs() for n in g.nodes for v in _narrow_operands(n, lifted.opset)}
    for body in bodies:
        for g in body.graphs():
            _widen(g, narrow)
    for f in lifted.functions.values():
        f.defaults = {k: _wide_attribute(k, a) for k, a in f.defaults.items()}
    Inference(lifted).graph(lifted.graph)  # what is produced has the type its operator gives it
    return to_proto(lifted)


def _narrow_operands(node, opset):
    f = schema.facts(node.domain, node.op_type, opset.get(node.domain, 0))
    if f is None:
        return
    allowed = {c.type_param_str: c.allowed_type_strs for c in f.schema.type_constraints}
    formals = list(f.schema.inputs)
    for i, v in enumerate(node.inputs):
        formal = formals[min(i, len(formals) - 1)]
        kinds = allowed.get(formal.type_str, [formal.type_str])
        if v is not None and not any("tensor(double)" in k for k in kinds):
            yield v


def _widen(g, narrow):
    for v in (*g.inputs, *g.constants, *(v for n in g.nodes for v in n.outputs)):
        if v not in narrow or (v.producer is not None):
            v.type = _wide_type(v.type)
            v.const = _wide_tensor(v.const)
    g.defaults = {v: t if v in narrow else _wide_tensor(t) for v, t in g.defaults.items()}
    for n in g.nodes:
        keep = n.op_type == "Constant" and n.outputs[0] in narrow
        n.attributes = {k: a if keep else _wide_attribute(k, a) for k, a in n.attributes.items()}
        f = schema.latest(n.domain, n.op_type)
        if f is not None and "stash_type" in f.attributes and n.op_type.endswith("Normalization"):
            n.attributes["stash_type"] = int(DataType.DOUBLE)
        if n.op_type == "ConstantOfShape" and "value" not in n.attributes:
            n.attributes["value"] = onnx_ir.Tensor(np.zeros(1))
        if (name := _DEFAULT_IS_FLOAT.get(n.op_type)) is not None:
            n.attributes.setdefault(name, int(DataType.DOUBLE))


def _wide_type(t):
    if isinstance(t, TensorType):
        return TensorType(DataType.DOUBLE, t.shape) if t.dtype in FLOATING else t
    return type(t)(_wide_type(t.elem)) if isinstance(t, SequenceType | OptionalType) else t


def _wide_tensor(t):
    return onnx_ir.Tensor(t.numpy().astype(np.float64), name=t.name) if t is not None and t.dtype in FLOATING else t


def _wide_attribute(name, a):
    typed = name in ("to", "dtype", "output_dtype", "softmax_precision", "output_datatype")
    if typed and isinstance(a, int) and a in {int(d) for d in FLOATING}:
        return int(DataType.DOUBLE)
    return _wide_tensor(a) if isinstance(a, onnx_ir.TensorProtocol) and not isinstance(a, Graph) else a


# --- running


class Runner:
    """A model in ONNX Runtime, or in the reference evaluator once ONNX Runtime has failed. Floats are cast as declared."""

    def __init__(self, model, level=0):
        self.model = model
        self.names = [o.name for o in model.graph.output]
        self.types = {i.name: _element(i.type) for i in model.graph.input}
        kinds = [t for i in (*model.graph.input, *model.graph.output) if (t := _element(i.type)) is not None]
        #: The narrowest floating type of an input or output.
        self.dtype = min(kinds, key=lambda t: t.itemsize, default=None)
        self.fast = not any(n.op_type in IMPRECISE for n in model.graph.node)
        try:
            self.engine = (run_in_ort if self.fast else _run_in_reference)(model, level)
        except Exception:  # onnxruntime raises many types, all meaning: it cannot run this model
            self.use_reference()

    def use_reference(self):
        """Run in the reference evaluator from now on."""
        self.engine, self.fast = _run_in_reference(self.model), False

    def __call__(self, feeds):
        """Results by name."""
        have = {k: self._cast(k, v) for k, v in feeds.items() if k in self.types}
        with np.errstate(all="ignore"):
            if self.fast:
                try:
                    return dict(zip(self.names, self.engine(have), strict=True))
                except Exception:
                    self.use_reference()
            return dict(zip(self.names, self.engine(have), strict=True))

    def _cast(self, name, v):
        wanted = self.types[name]
        return tree(lambda a: a.astype(wanted) if is_floating(a) else a, v) if wanted is not None else v


def _run_in_reference(model, level=0):
    evaluator = ReferenceEvaluator(model, new_ops=[*PRECISE, *QUICK])
    return lambda feeds: evaluator.run(None, feeds)


def _element(t):
    while t.WhichOneof("value") in ("sequence_type", "optional_type"):
        t = getattr(t, t.WhichOneof("value")).elem_type
    elem = t.tensor_type.elem_type
    return onnx.helper.tensor_dtype_to_np_dtype(elem) if elem in {int(d) for d in FLOATING} else None


# --- differences


class NotSmooth(Exception):
    """Nothing can be said about the derivative at a point along a direction."""


def size_of(x):
    """The typical size of the elements of an array."""
    x = np.abs(x[np.isfinite(x) & (x != 0)])
    return float(np.clip(np.median(x), 1e-2, 1e2)) if x.size else 1.0


def direction_at(rng, value, how="all"):
    """A random direction, of the size of the value; what is infinite does not move.

    how: "all"; "together", so that equals stay equal; "few", one element in 50.
    """

    def one(a):
        a = np.asarray(a, np.float64)
        d = rng.standard_normal(a.shape) * size_of(a)
        if how == "few":
            d *= rng.permutation(a.size).reshape(a.shape) * 50 <= a.size
        if how == "together":
            _, index = np.unique(a, return_inverse=True)
            d = d.reshape(-1)[index.reshape(a.shape)] if a.size else d
        return np.asarray(np.where(np.isfinite(a) & (np.abs(a) < 1e30), d, 0))

    return tree(one, value)


def nearby(rng, feeds, names):
    """Points at which to try: the given one, and others near it in which `names` have moved."""

    def one(a, far, relative):
        step = rng.uniform(0.3, 1, a.shape) * far
        moved = np.where(a == 0, step * size_of(a), a * (1 + step) if relative else a + step * size_of(a))
        return np.asarray(np.where(np.isfinite(a) & (np.abs(a) < 1e30), moved, a))

    here = {k: tree(lambda a: np.asarray(a, np.float64) if is_floating(a) else a, v) for k, v in feeds.items()}
    yield here
    for far, relative in (
        (1e-3, 0),
        (-1e-3, 0),
        (-1e-2, 1),
        (1e-2, 0),
        (-1e-2, 0),
        (-0.1, 1),
        (0.1, 0),
        (-0.1, 0),
        (0.3, 1),
        (-0.3, 1),
    ):
        yield {**here, **{k: tree(lambda a, far=far, r=relative: one(a, far, r), here[k]) for k in names}}


def generator(name):
    """Random numbers that depend on a name only."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def differences(run, feeds, direction, outputs, h, eps):
    """The derivative of each of `outputs` along a direction, and how far rounding may have moved it.

    An element that is not finite is NaN. Raises NotSmooth where the differences of two steps or of the two sides do not
    agree, or where the form of an output changes.
    """

    def at(step):
        moved = {k: tree(lambda a, d: np.asarray(a + step * d), feeds[k], d) for k, d in direction.items()}
        results = run({**feeds, **moved})
        return {k: [np.asarray(a, np.float64) for a in leaves(results[k])] for k in outputs}

    try:
        middle, up, down, up2, down2 = (at(s) for s in (0, h, -h, h / 2, -h / 2))
    except Exception as e:  # an operator that rejects a value nearby
        raise NotSmooth(f"the model fails nearby: {e}") from None
    found = {}
    for k in outputs:
        rows = [r[k] for r in (middle, up, down, up2, down2)]
        if len({tuple(a.shape for a in row) for row in rows}) > 1:
            raise NotSmooth(f"the form of {k} changes")
        found[k] = [_difference(*column, h=h, eps=eps) for column in zip(*rows, strict=True)]
    return found


def _difference(f, up, down, up2, down2, h, eps):
    finite = np.isfinite(f)
    if not all(np.isfinite(x[finite]).all() for x in (up, down, up2, down2)):
        raise NotSmooth("infinite nearby")
    if f.size == 0:
        return f, 0.0
    up, down, up2, down2, f = (np.where(finite, x, 0) for x in (up, down, up2, down2, f))
    noise = 20 * eps * float(np.abs(f).max()) / h
    wide, narrow = (up - down) / (2 * h), (up2 - down2) / h
    top = max(float(np.abs(wide).max()), float(np.abs(narrow).max()))
    curve = 3e-7 if eps < 1e-12 else 2e-2
    if np.abs(wide - narrow).max() > curve * top + 2 * noise:
        raise NotSmooth("two steps disagree")
    bend, bend2 = np.abs(up - 2 * f + down) / h, np.abs(up2 - 2 * f + down2) / (h / 2)
    if ((bend > 1e-6 * top + 4 * noise) & (bend2 > 0.8 * bend)).any():
        raise NotSmooth("the sides disagree")
    return np.where(finite, (4 * narrow - wide) / 3, np.nan), noise
