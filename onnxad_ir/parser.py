"""The text of `printer` back to IR."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir import serde

from onnxad_ir.core import (
    Attr,
    AttrRef,
    EmptyList,
    Function,
    Graph,
    Model,
    Node,
    Note,
    RawAttr,
    Tensor,
    Value,
)
from onnxad_ir.printer import print_type
from onnxad_ir.tokens import Tokens
from onnxad_ir.types import (
    DataType,
    Dim,
    MapType,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    Type,
)

_DTYPES = {d.name.lower(): d for d in DataType if d != DataType.UNDEFINED}
_ANONYMOUS = re.compile(r"\?([0-9]+)")
_RESOURCES = re.compile(r"^resources \{$", re.MULTILINE)


def parse_model(text: str, base_dir: str = "") -> Model:
    """The model that `print_model` printed. External tensors are looked up in `base_dir`, not read.

    Raises ModelError, with the line, where the text is not well formed.
    """
    parser = _Parser(text, base_dir)
    return parser.model()


class _Parser(Tokens):
    def __init__(self, text: str, base_dir: str):
        super().__init__(text)
        self.base_dir = base_dir
        self.scopes: list[dict[str, Value]] = []
        self.symbols = 0
        self.resources: dict[str, Any] = {}
        self.tensors: dict[str, Tensor] = {}

    def value(self) -> Value:
        """A value that is in sight."""
        name = self.value_name()
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        self.at -= 1
        self.fail("this value is not defined")

    def define(self, v: Value) -> Value:
        if v.name in self.scopes[-1]:
            self.at -= 1
            self.fail(f'"{v.name}" is defined twice')
        self.scopes[-1][v.name] = v
        return v

    # Structure

    def model(self) -> Model:
        self.read_resources()
        self.at = 0
        self.expect("model")
        header: dict[str, Any] = {}
        self.expect("<")
        while not self.accept(">"):
            key = self.token("word")
            self.expect("=")
            if key == "opset":
                header[key] = self.opset()
            elif key == "metadata":
                header[key] = self.pairs()
            elif key in ("ir", "version"):
                header[key] = self.integer()
            elif key in ("producer", "producer_version", "domain", "doc"):
                header[key] = self.string()
            else:
                self.at -= 2
                self.fail("unknown field of a model")
            self.accept(",")
        self.expect("graph")
        graph = Graph(self.word())
        self.block(graph, "return", None)
        model = Model(
            graph,
            header.get("opset", {}),
            ir_version=header.get("ir", 10),
            producer_name=header.get("producer", ""),
            producer_version=header.get("producer_version", ""),
            domain=header.get("domain", ""),
            model_version=header.get("version", 0),
            doc=header.get("doc", ""),
            metadata=header.get("metadata", {}),
            base_dir=self.base_dir,
        )
        while self.accept("func"):
            f = self.function()
            model.functions[f.key] = f
        training = []
        while self.accept("training"):
            training.append(onnx.TrainingInfoProto.FromString(self.binary()))
        model.training = tuple(training)
        model.symbols = self.symbols
        if self.words[self.at] != "resources" and self.kinds[self.at] != "end":
            self.fail("expected func, training, resources or the end")
        return model

    def function(self) -> Function:
        domain, name, overload = self.operator()
        f = Function(domain, name, overload, Graph(name), {})
        self.block(f.body, "return", f)
        return f

    def operator(self) -> tuple[str, str, str]:
        """domain, name and overload."""
        parts = [self.word()]
        while self.accept("."):
            parts.append(self.word())
        overload = self.word() if self.accept(":") else ""
        return ".".join(parts[:-1]), parts[-1], overload

    def block(self, g: Graph, last: str, f: Function | None) -> None:
        """Inputs, what is said about the graph, and its contents in braces."""
        self.scopes.append({})
        self.expect("(")
        while not self.accept(")"):
            name = self.value_name()
            self.expect(":")
            v = self.define(g.add_input(name, self.type()))
            if self.accept("="):
                g.defaults[v] = self.tensor(self.tensor_type())
            self.accept(",")
        while not self.accept("{"):
            if self.accept("doc"):
                g.doc = self.note()
            elif self.accept("meta"):
                g.metadata = self.meta()
            elif f is not None and self.accept("opset"):
                f.opset = self.opset()
            elif f is not None and self.accept("params"):
                f.parameters = self.words_in_brackets()
            elif f is not None and self.accept("defaults"):
                f.defaults = self.attributes()
            else:
                self.fail("expected {")
        if f is not None:
            f.doc, f.metadata, g.doc, g.metadata = g.doc, g.metadata, "", {}
        while not self.accept("}"):
            self.line(g, last)
        self.scopes.pop()

    def line(self, g: Graph, last: str) -> None:
        word, ahead = self.words[self.at], self.kinds[self.at + 1]
        if word == last and ahead == "value":
            self.at += 1
            outputs = []
            while True:
                v = self.value()
                outputs.append(v)
                if self.accept(":") and self.type() != v.type:
                    self.at -= 1
                    self.fail(f"%{v.name} is {print_type(v.type)} where it is defined")
                if not self.accept(","):
                    break
            g.set_outputs(outputs)
            if self.words[self.at] != "}":
                self.fail("expected }")
        elif word == "note" and ahead == "value":
            self.at += 1
            self.value_note(g)
        else:
            self.definition(g)

    def value_note(self, g: Graph) -> None:
        v = self.value()
        note = Note()
        if self.accept("doc"):
            note = Note(self.note())
        if self.accept("meta"):
            note = Note(note.doc, tuple(self.meta().items()))
        if self.accept("quantization"):
            found = []
            self.expect("(")
            while not self.accept(")"):
                key = self.string()
                self.expect(":")
                found.append((key, self.value()))
                self.accept(",")
            note = Note(note.doc, note.metadata, tuple(found))
        g.notes[v] = note

    def note(self) -> str:
        self.expect("(")
        text = self.string()
        self.expect(")")
        return text

    def meta(self) -> dict[str, str]:
        self.expect("(")
        pairs = self.pairs()
        self.expect(")")
        return pairs

    def words_in_brackets(self) -> tuple[str, ...]:
        out = []
        self.expect("[")
        while not self.accept("]"):
            out.append(self.word())
            self.accept(",")
        return tuple(out)

    def definition(self, g: Graph) -> None:
        """A constant or a node."""
        results: list[str] = []
        types: list[Type | None] = []
        if self.kinds[self.at] == "value" or self.words[self.at] == "_":
            while True:
                results.append("" if self.accept("_") else self.value_name())
                if not self.accept(","):
                    break
            self.expect(":")
            while True:
                types.append(self.type())
                if not self.accept(","):
                    break
            if len(types) != len(results):
                self.fail(f"{len(results)} results have {len(types)} types")
            self.expect("=")
            # An operator could be called like a form of data, but is followed by ( . or :
            if self.words[self.at] in _TENSOR_FORMS and self.words[self.at + 1] not in ("(", ".", ":"):
                self.constant(g, results, types)
                return
        self.node(g, results, types)

    def constant(self, g: Graph, names: list[str], types: list[Type | None]) -> None:
        t = types[0]
        if len(names) != 1 or not isinstance(t, TensorType):
            self.fail("a constant is one tensor")
        v = Value(names[0], t, g)
        v.const = self.tensor(t)
        self.define(v)
        g.constants.append(v)

    def node(self, g: Graph, results: list[str], types: list[Type | None]) -> None:
        domain, op_type, overload = self.operator()
        operands: list[Value | None] = []
        self.expect("(")
        while not self.accept(")"):
            operands.append(None if self.accept("_") else self.value())
            self.accept(",")
        attributes = self.attributes() if self.words[self.at] == "<" else {}
        name, doc, metadata = "", "", None
        while self.kinds[self.at] in ("word", "string"):
            ahead = self.words[self.at + 1]
            if ahead == "(" and self.kinds[self.at + 2] == "string" and self.accept("loc"):
                name = self.note()
            elif ahead == "(" and self.kinds[self.at + 2] == "string" and self.accept("doc"):
                doc = self.note()
            elif ahead == "(" and self.words[self.at + 2] == "{" and self.accept("meta"):
                metadata = self.meta()
            elif not self.starts_region():
                break
            else:
                self.region(attributes)
        node = Node(op_type, operands, attributes, results, domain, name, overload, g)
        node.doc, node.metadata = doc, metadata
        for v, t in zip(node.outputs, types, strict=True):
            v.type = t
            if v.name:
                self.define(v)
        g.nodes.append(node)

    def starts_region(self) -> bool:
        """A word here starts a region (`name @graph(`, `name[0] @graph(`, `name(`), or else the next node.

        The next line can only start with a word where it is return, yield, note or a node without results;
        that node's operands tell it from a region, whose inputs have types.
        """
        at = self.at + 1
        if self.words[at] in ("@", "["):
            return True
        if self.words[at] != "(" or self.kinds[at] != "mark":
            return False
        if self.words[at + 1] == ")":
            return self.words[at + 2] in ("{", "doc", "meta")
        return self.kinds[at + 1] == "value" and self.words[at + 2] == ":"

    def region(self, attributes: dict[str, Attr]) -> None:
        key = self.word()
        several = self.accept("[")
        if several:
            self.integer()
            self.expect("]")
        graph = Graph(self.word() if self.accept("@") else key)
        self.block(graph, "yield", None)
        attributes[key] = (*attributes.get(key, ()), graph) if several else graph

    # Types

    def type(self) -> Type | None:
        if self.kinds[self.at] == "unknown":
            self.at += 1
            return None
        word = self.token("word")
        if word in _DTYPES:
            return TensorType(_DTYPES[word], self.shape())
        if word not in ("seq", "optional", "map", "sparse"):
            self.at -= 1
            self.fail("expected a type")
        self.expect("(")
        out: Type
        if word == "seq":
            out = SequenceType(self.type())
        elif word == "optional":
            out = OptionalType(self.type())
        elif word == "map":
            key = self.dtype()
            self.expect(",")
            out = MapType(key, self.type())
        else:
            out = SparseTensorType(self.dtype(), self.shape())
        self.expect(")")
        return out

    def dtype(self) -> DataType:
        word = self.token("word")
        if word not in _DTYPES:
            self.at -= 1
            self.fail("expected an element type")
        return _DTYPES[word]

    def tensor_type(self) -> TensorType:
        return TensorType(self.dtype(), self.shape())

    def shape(self) -> tuple[Dim, ...] | None:
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return None
        dims: list[Dim] = []
        while not self.accept("]"):
            kind = self.kinds[self.at]
            if kind == "number":
                dims.append(self.integer())
            elif kind == "unknown":
                dims.append(self.symbol(self.token("unknown")))
            else:
                dims.append(self.symbol(self.word()))
            self.accept(",")
        return tuple(dims)

    def symbol(self, dim: str) -> str:
        """`dim`, after taking note of the anonymous symbols in it."""
        for number in _ANONYMOUS.findall(dim) if "?" in dim else ():
            self.symbols = max(self.symbols, int(number))
        return dim

    # Attributes and tensors

    def attributes(self) -> dict[str, Attr]:
        out: dict[str, Attr] = {}
        self.expect("<")
        while not self.accept(">"):
            key = self.word()
            self.expect("=")
            out[key] = self.attribute()
            self.accept(",")
        return out

    def attribute(self) -> Attr:
        kind, word = self.kinds[self.at], self.words[self.at]
        if kind == "number" or word in ("nan", "inf"):
            return self.number()
        if kind == "string":
            return self.string()
        if self.accept("["):
            items = []
            while not self.accept("]"):
                items.append(self.attribute())
                self.accept(",")
            if items:
                return tuple(items)
            self.expect(":")
            return EmptyList(self.attribute_kind())
        if self.accept("@"):
            name = self.word()
            self.expect(":")
            return AttrRef(name, self.attribute_kind())
        if self.accept("raw"):
            return RawAttr(onnx.AttributeProto.FromString(self.binary()))
        if self.accept("bytes"):
            return self.binary()
        if self.accept("tensor"):
            name = self.string() if self.kinds[self.at] == "string" else ""
            return self.tensor(self.tensor_type(), name)
        self.fail("expected an attribute")

    def attribute_kind(self) -> ir.AttributeType:
        word = self.token("word")
        if word not in ir.AttributeType.__members__:
            self.at -= 1
            self.fail("expected the kind of an attribute")
        return ir.AttributeType[word]

    def number(self) -> int | float:
        word = self.words[self.at]
        self.at += 1
        digits = word.removeprefix("-")
        return int(word) if digits.isdigit() else float(word)

    def tensor(self, t: TensorType, name: str = "") -> Tensor:
        """The tensor of a type, whose data comes next."""
        if t.shape is None or not all(isinstance(d, int) for d in t.shape):
            self.fail("the shape of a constant is made of numbers")
        dims = tuple(int(d) for d in t.shape)
        if self.accept("dense"):
            return self.dense(t.dtype, dims, name)
        if self.accept("hex"):
            return _raw(t.dtype, dims, bytes.fromhex(self.string()), name)
        if self.accept("resource"):
            return self.resource(t.dtype, dims, name)
        if self.accept("external"):
            location = self.string()
            offset = self.integer() if self.accept("offset") else None
            length = self.integer() if self.accept("length") else None
            return ir.ExternalTensor(
                location, offset, length, t.dtype, shape=ir.Shape(dims), name=name, base_dir=self.base_dir
            )
        if self.words[self.at] == "elided":
            self.fail("the numbers of this constant were left out when it was printed")
        self.fail(f"expected one of {', '.join(_TENSOR_FORMS)}")

    def dense(self, dtype: DataType, dims: tuple[int, ...], name: str) -> Tensor:
        start, depth = self.at, 0
        items: list[Any] = []
        while True:
            if self.accept("["):
                depth += 1
            elif self.accept("]"):
                depth -= 1
            elif depth and self.accept(","):
                continue
            else:
                items.append(self.element(dtype))
            if not depth:
                break
        if len(items) != int(np.prod(dims, dtype=np.int64)):
            self.at = start
            self.fail(f"{len(items)} elements for a tensor of shape {list(dims)}")
        if dtype == DataType.STRING:
            return ir.StringTensor(items, shape=ir.Shape(dims), name=name)
        array = np.array(items, dtype.numpy() if dtype.numpy().kind in "fiub" else None)
        return ir.Tensor(array.astype(dtype.numpy()).reshape(dims), dtype=dtype, name=name)

    def element(self, dtype: DataType) -> Any:
        if dtype == DataType.STRING:
            return self.binary() if self.accept("bytes") else self.string().encode()
        if self.accept("true"):
            return True
        if self.accept("false"):
            return False
        if self.words[self.at] not in ("nan", "inf") and self.kinds[self.at] != "number":
            self.fail("expected a number")
        return self.number()

    def resource(self, dtype: DataType, dims: tuple[int, ...], name: str) -> Tensor:
        key = self.token("word")
        if key not in self.resources:
            self.at -= 1
            self.fail("no such resource")
        if key not in self.tensors:
            data = self.resources[key]
            if dtype == DataType.STRING:
                self.tensors[key] = ir.StringTensor(data, shape=ir.Shape(dims), name=name)
            else:
                self.tensors[key] = _raw(dtype, dims, data, name)
        return self.tensors[key]

    def read_resources(self) -> None:
        m = _RESOURCES.search(self.text)
        if m is None:
            return
        # A string literal stays within its line, so a line of its own is the section.
        self.at = self.starts.index(m.start())
        self.expect("resources")
        self.expect("{")
        while not self.accept("}"):
            key = self.token("word")
            self.expect("=")
            if self.accept("["):
                strings = []
                while not self.accept("]"):
                    strings.append(self.element(DataType.STRING))
                    self.accept(",")
                self.resources[key] = strings
            else:
                self.resources[key] = self.binary()


_TENSOR_FORMS = ("dense", "hex", "resource", "external", "elided")


def _raw(dtype: DataType, dims: tuple[int, ...], data: bytes, name: str) -> Tensor:
    return serde.TensorProtoTensor(onnx.TensorProto(data_type=int(dtype), dims=dims, raw_data=data, name=name or None))
