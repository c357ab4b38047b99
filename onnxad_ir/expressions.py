"""When two nodes compute the same, so that one of them is enough."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxad_ir import schema
from onnxad_ir.core import Attr, Value, graphs_of
from onnxad_ir.noise import draws

#: Tensors of more bytes than this are not compared.
COMPARED = 128


def expression_key(
    op_type: str, domain: str, inputs: Sequence[Value | None], attributes: Mapping[str, Attr]
) -> Hashable | None:
    """What equal expressions have in common; None for one that is not shared.

    Those are random operators, operators that onnx does not define (nobody knows whether they are), calls of local
    functions among them, and operators with regions.
    """
    if draws(op_type, domain, inputs) or (domain and schema.latest(domain, op_type) is None):
        return None
    if not attributes:
        return op_type, domain, tuple(inputs)
    found: list[tuple[str, Any]] = []
    for name, a in sorted(attributes.items(), key=_name):
        if graphs_of(a):
            return None
        found.append((name, _comparable(a)))
    key = op_type, domain, tuple(inputs), tuple(found)
    try:
        hash(key)
    except TypeError:  # an attribute that does not hash
        return None
    return key


def _name(item: tuple[str, Attr]) -> str:
    return item[0]


def _comparable(a: Attr) -> Any:
    if isinstance(a, float) or (isinstance(a, tuple) and a and isinstance(a[0], float)):
        return "float", repr(a)  # 0.0 and -0.0 are equal, and not the same
    if isinstance(a, int | str | tuple):  # most are, and to ask for a tensor takes long
        return a
    if isinstance(a, ir.TensorProtocol) and a.nbytes <= COMPARED and a.dtype != ir.DataType.STRING:
        return tensor_key(a)
    return a


def tensor_key(t: ir.TensorProtocol) -> Hashable:
    """What equal tensors have in common."""
    return t.dtype, tuple(t.shape), t.tobytes()
