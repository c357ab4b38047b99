"""Whether two onnx_ir models say the same: how a rewrite that went through another representation tells its effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from onnxad_ir.onnx_ir import QUANTIZATION

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)
#: Tensors of more bytes than this are equal only where they are one object: weights are not read.
_READ = 128


def same_onnx_ir(a: ir.Model, b: ir.Model) -> bool:
    """True where two models have the same graphs, functions, names, types, attributes, notes and tensors.

    Stops at the first difference, and takes time linear in the model otherwise. The order of initializers and of
    attributes says nothing. Tensors of more than 128 bytes are equal where they are the same object.
    """
    return (
        _header(a) == _header(b)
        and dict(a.opset_imports) == dict(b.opset_imports)
        and a.functions.keys() == b.functions.keys()
        and _graphs(a.graph, b.graph, {})
        and all(_functions(f, b.functions[k]) for k, f in a.functions.items())
    )


def _header(m: ir.Model) -> tuple[Any, ...]:
    texts = (m.producer_name, m.producer_version, m.domain, m.doc_string)
    return (m.ir_version, m.model_version or 0, dict(m.metadata_props), *(t or "" for t in texts))


def _notes(x: Any) -> tuple[Any, ...]:
    return (x.name or "", x.doc_string or "", dict(x.metadata_props))


def _functions(a: ir.Function, b: ir.Function) -> bool:
    return (
        dict(a.opset_imports) == dict(b.opset_imports)
        and _attributes(a.attributes, b.attributes, {})
        and _graphs(a.graph, b.graph, {})
    )


def _graphs(a: ir.Graph, b: ir.Graph, pairs: dict[ir.Value | None, ir.Value | None]) -> bool:
    """Compare two graphs; `pairs` maps values of the first, in sight here, to those of the second."""
    if len(a) != len(b) or _notes(a) != _notes(b) or a.initializers.keys() != b.initializers.keys():
        return False
    pairs[None] = None
    if not _define(a.inputs, b.inputs, pairs):
        return False
    for name, v in a.initializers.items():
        w = b.initializers[name]
        if v in pairs and pairs[v] is not w:
            return False
        if not _define([v], [w], pairs) or not _tensors(v.const_value, w.const_value):
            return False
    return all(_nodes(m, n, pairs) for m, n in zip(a, b, strict=True)) and _uses(a.outputs, b.outputs, pairs)


def _nodes(a: ir.Node, b: ir.Node, pairs: dict[ir.Value | None, ir.Value | None]) -> bool:
    return (
        (a.op_type, a.domain, a.overload) == (b.op_type, b.domain, b.overload)
        and _uses(a.inputs, b.inputs, pairs)
        and _notes(a) == _notes(b)
        and _attributes(a.attributes, b.attributes, pairs)
        and _define(a.outputs, b.outputs, pairs)
    )


def _define(a: Iterable[ir.Value], b: Iterable[ir.Value], pairs: dict[ir.Value | None, ir.Value | None]) -> bool:
    a, b = list(a), list(b)
    pairs.update(zip(a, b, strict=False))
    return len(a) == len(b) and all(_facts(v) == _facts(w) for v, w in zip(a, b, strict=True))


def _facts(v: ir.Value) -> tuple[Any, ...]:
    quantization = v.meta.get(QUANTIZATION) or {}
    return (*_notes(v), v.type, v.shape, dict(quantization))


def _uses(
    a: Iterable[ir.Value | None], b: Iterable[ir.Value | None], pairs: dict[ir.Value | None, ir.Value | None]
) -> bool:
    a, b = list(a), list(b)
    return len(a) == len(b) and all(v in pairs and pairs[v] is w for v, w in zip(a, b, strict=True))


def _attributes(
    a: Mapping[str, ir.Attr], b: Mapping[str, ir.Attr], pairs: dict[ir.Value | None, ir.Value | None]
) -> bool:
    return a.keys() == b.keys() and all(_attribute(x, b[k], pairs) for k, x in a.items())


def _attribute(a: ir.Attr, b: ir.Attr, pairs: dict[ir.Value | None, ir.Value | None]) -> bool:
    if a.type != b.type or a.ref_attr_name != b.ref_attr_name:
        return False
    if a.is_ref() or a.value is None or b.value is None or a.type not in (*_GRAPHS, *_TENSORS):
        return _number_text(a.value) == _number_text(b.value)
    several = a.type in (ir.AttributeType.GRAPHS, ir.AttributeType.TENSORS)
    xs, ys = (tuple(c.value) if several else (c.value,) for c in (a, b))
    if len(xs) != len(ys):
        return False
    if a.type in _GRAPHS:
        return all(_graphs(x, y, pairs) for x, y in zip(xs, ys, strict=True))
    return all(_tensors(x, y) for x, y in zip(xs, ys, strict=True))


def _number_text(value: Any) -> Any:
    """What tells attributes apart that compare otherwise: nan is itself, and 0.0 is not -0.0."""
    return repr(value) if isinstance(value, float | tuple) else value


def _tensors(a: ir.TensorProtocol | None, b: ir.TensorProtocol | None) -> bool:
    if a is b:
        return True
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape or a.dtype == ir.DataType.STRING:
        return False
    return a.nbytes <= _READ and a.tobytes() == b.tobytes()
