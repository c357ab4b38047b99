"""Cached facts of onnx.defs: what an operator's operands, results and attributes are called."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import onnx
from onnx import defs


@dataclass(frozen=True)
class Facts:
    """One operator of one opset, by name.

    `inputs`, `outputs`: position of each formal. `attributes`: every attribute with its default (None: no default).
    `variadic_input`, `variadic_output`: the name of the last formal where it is variadic. `schema` is None for an
    operator that onnx does not know (`declare`).
    """

    domain: str
    op_type: str
    since: int
    inputs: dict[str, int]
    outputs: dict[str, int]
    attributes: dict[str, Any]
    required_attributes: frozenset[str]
    kinds: dict[str, Any]
    variadic_input: str | None
    variadic_output: str | None
    min_inputs: int
    max_inputs: int
    min_outputs: int
    max_outputs: int
    deprecated: bool
    schema: Any = field(repr=False, compare=False)

    @property
    def has_body(self) -> bool:
        """True where the specification defines the operator by a function of others."""
        return self.schema is not None and bool(self.schema.has_function or self.schema.has_context_dependent_function)


def domain_of(name: str) -> str:
    """A domain as nodes and imports have it: the default one, which a file may also call "ai.onnx", is ""."""
    return "" if name == "ai.onnx" else name


def attribute_value(proto: onnx.AttributeProto) -> Any:
    """The Python value of a plain attribute: int, float, str, tuple of them, or the proto itself for the rest."""
    kind = proto.type
    if kind == onnx.AttributeProto.INT:
        return proto.i
    if kind == onnx.AttributeProto.FLOAT:
        return proto.f
    if kind == onnx.AttributeProto.STRING:
        return proto.s.decode("utf-8", "replace")
    if kind == onnx.AttributeProto.INTS:
        return tuple(proto.ints)
    if kind == onnx.AttributeProto.FLOATS:
        return tuple(proto.floats)
    if kind == onnx.AttributeProto.STRINGS:
        return tuple(s.decode("utf-8", "replace") for s in proto.strings)
    return proto


#: Operators of a runtime that onnx does not know.
_DECLARED: dict[tuple[str, str], Facts] = {}


def declare(domain: str, op_type: str, inputs: str, outputs: str, required: int = 1, **attributes: Any) -> None:
    """Make an operator known that onnx has no schema of.

    inputs, outputs: the names of its operands and results; the first `required` operands cannot be left out.
    attributes: their defaults (None: no default).
    """
    ins, outs = inputs.split(), outputs.split()
    _DECLARED[domain, op_type] = Facts(
        domain=domain,
        op_type=op_type,
        since=1,
        inputs={name: i for i, name in enumerate(ins)},
        outputs={name: i for i, name in enumerate(outs)},
        attributes=attributes,
        required_attributes=frozenset(),
        kinds={},
        variadic_input=None,
        variadic_output=None,
        min_inputs=required,
        max_inputs=len(ins),
        min_outputs=1,
        max_outputs=len(outs),
        deprecated=False,
        schema=None,
    )


@cache
def facts(domain: str, op_type: str, version: int) -> Facts | None:
    """The facts of an operator at an opset version of its domain, None where the installed onnx does not know it."""
    try:
        s = defs.get_schema(op_type, version, domain)
    except defs.SchemaError:
        return _DECLARED.get((domain, op_type))
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    ins, outs, attrs = s.inputs, s.outputs, s.attributes
    return Facts(
        domain=domain,
        op_type=op_type,
        since=s.since_version,
        inputs={p.name: i for i, p in enumerate(ins)},
        outputs={p.name: i for i, p in enumerate(outs)},
        attributes={k: attribute_value(a.default_value) if a.default_value.name else None for k, a in attrs.items()},
        required_attributes=frozenset(k for k, a in attrs.items() if a.required),
        kinds={k: a.type for k, a in attrs.items()},
        variadic_input=ins[-1].name if ins and ins[-1].option == variadic else None,
        variadic_output=outs[-1].name if outs and outs[-1].option == variadic else None,
        min_inputs=s.min_input,
        max_inputs=s.max_input,
        min_outputs=s.min_output,
        max_outputs=s.max_output,
        deprecated=s.deprecated,
        schema=s,
    )


@cache
def latest(domain: str, op_type: str) -> Facts | None:
    """The newest version of an operator in the installed onnx."""
    return facts(domain, op_type, latest_opset(domain))


@cache
def latest_opset(domain: str = "") -> int:
    """The newest opset of a domain that the installed onnx knows (1 for an unknown domain)."""
    known: dict[str, tuple[int, int]] = defs.C.schema_version_map()
    return known.get(domain, (1, 1))[1]
