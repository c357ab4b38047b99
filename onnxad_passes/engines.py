"""Engines that run a model and its derivative, in double precision where they can."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxad_ir.core import Attr, Graph, Model, Tensor, Value, clone_model
from onnxad_ir.diagnostics import OnnxadError
from onnxad_ir.types import DataType, TensorType, map_tensors
from onnxad_passes.upgrade import TARGET, upgrade_model

Array: TypeAlias = "np.ndarray[Any, Any]"
Run: TypeAlias = "Callable[[Mapping[str, Array]], list[Array]]"

ENGINES = ("auto", "onnxruntime", "reference")
PRECISIONS = ("auto", "double", "own")

_NARROW = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16})
#: Attributes that name an element type.
_TYPED = frozenset({"to", "dtype", "output_dtype", "output_datatype", "softmax_precision"})
#: Operators without an operand that tells their element type: the attribute that does (without it: single precision).
_UNTYPED: dict[str, tuple[str, Attr]] = {
    "ConstantOfShape": ("value", ir.Tensor(np.zeros(1))),
    "MelWeightMatrix": ("output_datatype", int(DataType.DOUBLE)),
    **dict.fromkeys(("RandomNormal", "RandomUniform", "SequenceEmpty"), ("dtype", int(DataType.DOUBLE))),
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), ("output_datatype", int(DataType.DOUBLE))),
}
#: Weights of more bytes than this are not widened.
_WIDEN_LIMIT = 1 << 29


@dataclass(frozen=True)
class Engine:
    """How to run a model and its derivative; `name` says where, `double` whether in double precision.

    `witness`: how to run the model in ONNX Runtime as it is, where another engine was chosen to run it.
    """

    name: str
    double: bool
    primal: Run
    derivative: Run
    witness: Run | None = None


def choose_engines(
    primal: Model, derivative: Model, engine: str, precision: str, reasons: list[str]
) -> Iterator[Engine]:
    """Pairs of runners, the most exact and fastest first; why one is missing goes to `reasons`.

    ONNX Runtime lacks many kernels for double precision: a model it does not take runs in the reference evaluator,
    which knows no old opsets well, and so gets the model upgraded.
    """
    witness: list[Run | None] = []
    for double in {"auto": (True, False), "double": (True,), "own": (False,)}[precision]:
        label = "double precision" if double else "the model's own precision"
        if double and (_weight(primal) > _WIDEN_LIMIT or _weight(derivative) > _WIDEN_LIMIT):
            reasons.append(f"{label}: the weights are too large to be widened")
            continue
        models = [widened(m) if double else m for m in (primal, derivative)]
        protos: list[dict[str, Any]] = [{}, {}]
        seen = set()
        for first in _order(engine):
            runs: list[Run] = []
            names: list[str] = []
            for model, made in zip(models, protos, strict=True):
                for name in (first, *(e for e in _order(engine) if e != first)):
                    try:
                        if name not in made:
                            made[name] = _proto(_modern(model) if name == "reference" else model)
                        runs.append(_MAKE[name](made[name]))
                    except Exception as e:  # engines raise many types, all meaning: they do not take this model
                        reasons.append(f"{name}, {label}: {' '.join(str(e).split())[:160]}")
                        continue
                    names.append(name)
                    break
            if len(runs) == 2 and (key := tuple(names)) not in seen:
                seen.add(key)
                doubt = names[0] == "reference" and (engine, precision) == ("auto", "auto")
                if doubt and not witness:
                    witness.append(_witness(primal))
                said = f"{' and '.join(dict.fromkeys(names))}, {label}"
                yield Engine(said, double, runs[0], runs[1], witness[0] if doubt else None)


def _order(engine: str) -> tuple[str, ...]:
    return ("onnxruntime", "reference") if engine == "auto" else (engine,)


def _onnxruntime(proto: Any) -> Run:
    from onnxad_rules.testing import run_in_ort

    return run_in_ort(proto)


def _reference(proto: Any) -> Run:
    from onnxad_rules.testing import run_in_reference

    return run_in_reference(proto)


def _witness(model: Model) -> Run | None:
    """ONNX Runtime on a model as it is, fed and answering in any precision; None where it does not run it."""
    floats = (*_NARROW, DataType.DOUBLE)
    types = {v.name: v.dtype.numpy() for v in model.graph.inputs if v.dtype is not None and v.dtype in floats}
    try:
        run = _onnxruntime(_proto(model))
    except Exception:  # onnxruntime raises many types, all meaning: it does not take this model
        return None
    return lambda feeds: run({k: a.astype(types[k]) if k in types else a for k, a in feeds.items()})


def _modern(model: Model) -> Model:
    """A model of an opset that the reference evaluator knows well."""
    if model.version >= TARGET and all(f.opset.get("", TARGET) >= TARGET for f in model.functions.values()):
        return model
    out = clone_model(model)
    upgrade_model(out)
    return out


_MAKE: dict[str, Callable[[Any], Run]] = {"onnxruntime": _onnxruntime, "reference": _reference}


def _weight(model: Model) -> int:
    from onnxad_ir.files import tensors

    return sum(t.nbytes for t in tensors(model))


def _proto(model: Model) -> Any:
    """The model in one piece, as engines take it from memory; external data is read."""
    from onnxad_ir.proto import to_proto

    if _weight(model) > 2**31 - (1 << 20):
        raise OnnxadError("the model has over 2 GB of weights, too many to be checked in memory")
    return to_proto(
        model,
        external=lambda t: ir.Tensor(t.numpy(), dtype=t.dtype) if isinstance(t, ir.ExternalTensor) else t,
    )


def widened(model: Model) -> Model:
    """A copy of a model with every float16, bfloat16 and float32 made double."""
    out = clone_model(model)
    for body in out.bodies():
        for g in body.graphs():
            _widen_graph(g, model.version)
    for f in out.functions.values():
        f.defaults = {k: _attribute(k, a) for k, a in f.defaults.items()}
    return out


def _widen_graph(g: Graph, version: int) -> None:
    for v in (*g.inputs, *g.constants):
        _widen_value(v)
    g.defaults = {v: _tensor(t) for v, t in g.defaults.items()}
    for n in g.nodes:
        for v in n.outputs:
            _widen_value(v)
        n.attributes = {k: _attribute(k, a) for k, a in n.attributes.items()}
        if not n.domain and n.op_type in _UNTYPED:
            n.attributes.setdefault(*_UNTYPED[n.op_type])
        if n.op_type == "GroupNormalization" and not n.domain and version >= 21:
            # its function body, which engines run, would go through single precision
            n.attributes["stash_type"] = int(DataType.DOUBLE)


def _widen_value(v: Value) -> None:
    v.type = map_tensors(v.type, lambda t: TensorType(DataType.DOUBLE, t.shape) if t.dtype in _NARROW else t)
    if v.const is not None:
        v.const = _tensor(v.const)


def _tensor(t: Tensor) -> Tensor:
    return ir.Tensor(t.numpy().astype(np.float64), name=t.name) if t.dtype in _NARROW else t


def _attribute(name: str, a: Attr) -> Attr:
    if name in _TYPED and isinstance(a, int) and a in {int(d) for d in _NARROW}:
        return int(DataType.DOUBLE)
    return _tensor(a) if isinstance(a, ir.TensorProtocol) and not isinstance(a, Graph) else a
