"""The IR as text: one line a node, types at the definition, regions in place. `parser` reads it back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxad_ir.core import Attr, AttrRef, EmptyList, Function, Graph, Model, Node, RawAttr, Tensor, Value, graphs_of
from onnxad_ir.names import name_body, name_model
from onnxad_ir.types import (
    DataType,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
)

#: Constants with more elements than this go to the resources.
INLINE = 16

_BARE_VALUE = re.compile(r"(?:[A-Za-z0-9_.$/-]|::)+")
_BARE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BARE_DOMAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_BARE_DIM = re.compile(r"\?[A-Za-z0-9_]+|[A-Za-z_][A-Za-z0-9_]*")

_INTS = frozenset(
    {
        DataType.INT64,
        DataType.INT32,
        DataType.INT16,
        DataType.INT8,
        DataType.UINT64,
        DataType.UINT32,
        DataType.UINT16,
        DataType.UINT8,
        DataType.INT4,
        DataType.UINT4,
    }
)
_FLOATS = frozenset(
    {
        DataType.FLOAT,
        DataType.DOUBLE,
        DataType.FLOAT16,
        DataType.BFLOAT16,
        DataType.FLOAT8E4M3FN,
        DataType.FLOAT8E4M3FNUZ,
        DataType.FLOAT8E5M2,
        DataType.FLOAT8E5M2FNUZ,
    }
)


def print_model(model: Model, large: str = "resource", external: Callable[[Tensor], Tensor] | None = None) -> str:
    """The text of a model; `parse_model` reads it back to the same text.

    Big constants stand in a resources section at the end or, with large="elide", are left out (and cannot be
    read back). External tensors are printed as references. `external` may give another tensor to print in
    place of each, for instance one that says where the data has gone.
    """
    out = _Printer(name_model(model), large, external)
    out.model(model)
    return "".join(f"{line}\n" for line in out.lines)


def print_graph(graph: Graph, opset: dict[str, int] | None = None) -> str:
    """The text of a graph, big constants left out."""
    out = _Printer(name_body(graph, opset or {}).values, "elide", None)
    out.block(f"graph {word(graph.name)}", graph, "return", "")
    return "".join(f"{line}\n" for line in out.lines)


def print_type(t: Type | None) -> str:
    """A type as text, `?` for an unknown one."""
    if t is None:
        return "?"
    if isinstance(t, TensorType):
        return f"{t.dtype.name.lower()}{_shape(t.shape)}"
    if isinstance(t, SequenceType):
        return f"seq({print_type(t.elem)})"
    if isinstance(t, OptionalType):
        return f"optional({print_type(t.elem)})"
    if isinstance(t, MapType):
        return f"map({t.key.name.lower()}, {print_type(t.value)})"
    return f"sparse({t.dtype.name.lower()}{_shape(t.shape)})"


def word(name: str) -> str:
    """A name as it is or, where it is no plain word, quoted."""
    return name if _BARE_WORD.fullmatch(name) else quote(name)


def quote(text: str) -> str:
    """A string literal, in one line."""
    return str(json.dumps(text))


def _shape(shape: tuple[Dim, ...] | None) -> str:
    if shape is None:
        return "[*]"
    dims = (str(d) if isinstance(d, int) or _BARE_DIM.fullmatch(d) else quote(d) for d in shape)
    return f"[{','.join(dims)}]"


def _value(name: str) -> str:
    return "%" + (name if _BARE_VALUE.fullmatch(name) else quote(name))


def _float(x: float) -> str:
    return repr(float(x))


class _Texts(dict[Value, str]):
    """What values are called; a broken model, whose values are not all defined, can be printed too."""

    def __missing__(self, v: Value) -> str:
        return _value(f"{v.name} (undefined)")


class _Printer:
    def __init__(self, names: dict[Value, str], large: str, external: Callable[[Tensor], Tensor] | None):
        if large not in ("resource", "elide"):
            raise ValueError(f'large is "resource" or "elide", not {large!r}')
        self.lines: list[str] = []
        self.large = large
        self.external = external
        self.names = _Texts((v, _value(n)) for v, n in names.items())
        self.resources: dict[int, tuple[str, Tensor]] = {}  # By identity, numbered by first use.

    # Structure

    def model(self, m: Model) -> None:
        items = [f"ir = {m.ir_version}", f"opset = {_opset(m.opset)}"]
        for key, text in (("producer", m.producer_name), ("producer_version", m.producer_version)):
            if text:
                items.append(f"{key} = {quote(text)}")
        if m.domain:
            items.append(f"domain = {quote(m.domain)}")
        if m.model_version:
            items.append(f"version = {m.model_version}")
        if m.doc:
            items.append(f"doc = {quote(m.doc)}")
        if metadata := m.written_metadata():
            items.append(f"metadata = {_strings(metadata)}")
        self.lines.append(f"model <{', '.join(items)}>")
        self.block(f"graph {word(m.graph.name)}", m.graph, "return", "")
        for f in m.functions.values():
            self.function(f)
        for t in m.training:
            self.lines.append(f"training {quote(_base64(t.SerializeToString(deterministic=True)))}")
        if self.resources:
            self.lines.append("resources {")
            for name, tensor in self.resources.values():
                self.lines.append(f"  {name} = {_resource(tensor)}")
            self.lines.append("}")

    def function(self, f: Function) -> None:
        domain = f"{f.domain}." if _BARE_DOMAIN.fullmatch(f.domain) else f"{quote(f.domain)}."
        head = f"func {domain}{word(f.name)}"
        if f.overload:
            head += f":{word(f.overload)}"
        tail = f" opset {_opset(f.opset)}"
        if f.parameters:
            tail += f" params [{', '.join(map(word, f.parameters))}]"
        if f.defaults:
            tail += f" defaults <{self.attributes(f.defaults)}>"
        self.block(head, f.body, "return", "", tail, f)

    def block(self, head: str, g: Graph, last: str, indent: str, tail: str = "", about: Function | None = None) -> None:
        """A graph in braces after `head`, which holds its own indentation; what is said of it comes last."""
        inputs = []
        for v in g.inputs:
            text = self.definition(v)
            if v in g.defaults:
                t = g.defaults[v]
                text += f" = {print_type(_type_of(t))} {self.tensor(t)}"
            inputs.append(text)
        said = about or g
        if said.doc:
            tail += f" doc({quote(said.doc)})"
        if said.metadata:
            tail += f" meta({_strings(said.metadata)})"
        self.lines.append(f"{head}({', '.join(inputs)}){tail} {{")
        inner = indent + "  "
        for v in g.constants:
            if v.const is None:
                self.lines.append(f"{inner}{self.definition(v)} = undefined")
            else:
                t = v.const
                self.lines.append(f"{inner}{self.names[v]} : {print_type(_type_of(t))} = {self.tensor(t)}")
        for n in g.nodes:
            self.node(n, inner)
        for v, note in g.notes.items():
            if v not in self.names:
                continue
            text = f"{inner}note {self.names[v]}"
            if note.doc:
                text += f" doc({quote(note.doc)})"
            if note.metadata:
                text += f" meta({_strings(dict(note.metadata))})"
            known = [(k, self.names[p]) for k, p in note.quantization if p in self.names]
            if known:
                text += f" quantization({', '.join(f'{quote(k)}: {p}' for k, p in known)})"
            self.lines.append(text)
        if g.outputs:
            self.lines.append(f"{inner}{last} " + ", ".join(map(self.definition, g.outputs)))
        self.lines.append(f"{indent}}}")

    def definition(self, v: Value) -> str:
        return f"{self.names[v]} : {print_type(v.type)}"

    def node(self, n: Node, indent: str) -> None:
        names = self.names
        text = indent
        if n.outputs:
            results = ", ".join([names.get(v, "_") for v in n.outputs])
            text += f"{results} : {', '.join([print_type(v.type) for v in n.outputs])} = "
        if n.domain:
            text += f"{n.domain if _BARE_DOMAIN.fullmatch(n.domain) else quote(n.domain)}."
        text += word(n.op_type)
        if n.overload:
            text += f":{word(n.overload)}"
        text += f"({', '.join(['_' if v is None else names[v] for v in n.inputs])})"
        plain = {k: a for k, a in n.attributes.items() if not graphs_of(a)} if n.regions else n.attributes
        if plain:
            text += f" <{self.attributes(plain)}>"
        for k, a in n.attributes.items() if n.regions else ():
            if isinstance(a, Graph):
                text = self.region(text, word(k), a, indent)
            else:
                for i, g in enumerate(graphs_of(a)):
                    text = self.region(text, f"{word(k)}[{i}]", g, indent)
        if n.name:
            text += f" loc({quote(n.name)})"
        if n.doc:
            text += f" doc({quote(n.doc)})"
        if n.metadata:
            text += f" meta({_strings(n.metadata)})"
        self.lines.append(text)

    def region(self, text: str, label: str, g: Graph, indent: str) -> str:
        """Print a region after `text`; what follows its closing brace is returned."""
        name = "" if word(g.name) == label else f" @{word(g.name)}"
        self.block(f"{text} {label}{name}", g, "yield", indent)
        return self.lines.pop()

    # Attributes and tensors

    def attributes(self, attributes: dict[str, Attr]) -> str:
        return ", ".join([f"{word(k)} = {self.attribute(a)}" for k, a in attributes.items()])

    def attribute(self, a: Attr) -> str:
        if isinstance(a, int):
            return str(int(a))
        if isinstance(a, float):
            return _float(a)
        if isinstance(a, str):
            return quote(a)
        if isinstance(a, bytes):
            return f"bytes {quote(_base64(a))}"
        if isinstance(a, tuple):
            if any(isinstance(x, float) for x in a):
                return f"[{', '.join(map(_float, a))}]"
            return f"[{', '.join(map(self.attribute, a))}]"
        if isinstance(a, EmptyList):
            return f"[] : {a.kind.name}"
        if isinstance(a, AttrRef):
            return f"@{word(a.name)} : {a.kind.name}"
        if isinstance(a, RawAttr):
            return f"raw {quote(_base64(a.proto.SerializeToString(deterministic=True)))}"
        name = f" {quote(a.name)}" if a.name else ""
        return f"tensor{name} {print_type(_type_of(a))} {self.tensor(a)}"

    def tensor(self, t: Tensor) -> str:
        """The data of a tensor whose type stands before."""
        if self.external is not None:
            t = self.external(t)
        if isinstance(t, ir.ExternalTensor):
            items = [("offset", t.offset), ("length", t.length)]
            extra = "".join(f" {k} {n}" for k, n in items if n is not None)
            return f"external {quote(str(t.location))}{extra}"
        if t.size <= INLINE:
            return dense(t)
        if self.large == "elide":
            return "elided"
        name, _ = self.resources.setdefault(id(t), (f"r{len(self.resources)}", t))
        return f"resource {name}"


def dense(t: Tensor) -> str:
    """A small tensor in full: its elements, or the bytes where elements would not say them exactly."""
    if t.dtype == DataType.STRING:
        return "dense " + _nested([_string(x) for x in _string_data(t)], _dims(t))
    array = t.numpy()
    flat = array.reshape(-1)
    if t.dtype == DataType.BOOL:
        items = ["true" if x else "false" for x in flat]
    elif t.dtype in _INTS:
        items = [str(int(x)) for x in flat]
    elif t.dtype in _FLOATS and not _odd_nan(flat):
        # Of its own types numpy writes the shortest text that reads back to the same number.
        items = [str(x) if isinstance(x, np.floating) else _float(x) for x in flat]
    else:
        return f"hex {quote(t.tobytes().hex())}"
    return "dense " + _nested(items, array.shape)


def _odd_nan(flat: np.ndarray[Any, Any]) -> bool:
    """True where there is a nan other than the one that reading "nan" gives."""
    nans = flat[np.isnan(flat.astype(np.float64))]
    return bool(len(nans)) and nans.tobytes() != np.full(len(nans), np.nan).astype(flat.dtype).tobytes()


def _nested(items: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return items[0]
    for d in reversed(shape[1:]):
        if not d:
            return "[]"
        items = [f"[{', '.join(items[i : i + d])}]" for i in range(0, len(items), d)]
    return f"[{', '.join(items)}]"


def _resource(t: Tensor) -> str:
    if t.dtype == DataType.STRING:
        return f"[{', '.join(map(_string, _string_data(t)))}]"
    return quote(_base64(t.tobytes()))


def _string_data(t: Tensor) -> list[bytes]:
    flat = t.numpy().reshape(-1)
    return [x.encode() if isinstance(x, str) else bytes(x) for x in flat]


def _string(b: bytes) -> str:
    try:
        return quote(b.decode())
    except UnicodeDecodeError:
        return f"bytes {quote(_base64(b))}"


def _base64(b: bytes) -> str:
    return base64.b64encode(b).decode()


def _dims(t: Tensor) -> tuple[int, ...]:
    return tuple(int(d) for d in t.shape)


def _type_of(t: Tensor) -> TensorType:
    return TensorType(t.dtype, _dims(t))


def _strings(d: dict[str, str]) -> str:
    return "{" + ", ".join(f"{quote(k)}: {quote(v)}" for k, v in d.items()) + "}"


def _opset(d: dict[str, int]) -> str:
    return "{" + ", ".join(f"{quote(k)}: {v}" for k, v in d.items()) + "}"
