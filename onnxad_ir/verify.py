"""The invariants of the IR, checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir

from onnxad_ir.core import Attr, AttrRef, EmptyList, Graph, Model, Node, RawAttr, Value, graphs_of
from onnxad_ir.diagnostics import ModelError, describe, did_you_mean
from onnxad_ir.schema import Facts, facts
from onnxad_ir.types import MapType, OptionalType, SequenceType, SparseTensorType, TensorType, Type

_KNOWN_DOMAINS = frozenset({"", *(s.domain for s in onnx.defs.get_all_schemas())})
_LIMIT = 20  # Problems named in one error.


def verify(model: Model) -> None:
    """Check every invariant of a model, in time linear in its size.

    Every value has one definition, which precedes its uses in the same or an enclosing graph; owners, indices
    and use lists are right; nodes agree with their operator's schema (operands, results, attributes, element
    types) and regions with their node; used domains are imported; names of inputs, outputs and constants are
    unique. Operators of domains that the installed onnx does not know are taken as they are.

    Raises ModelError listing what is broken.
    """
    check = _Check(model)
    check.body(model.graph, model.opset)
    for v, n in Counter(v.name for v in {*model.graph.inputs, *model.graph.outputs, *model.graph.constants}).items():
        if n > 1 and v:
            check.problem(f'{n} values among the inputs, outputs and constants of the model are called "{v}"')
    if any(not v.name for v in model.graph.inputs):
        check.problem("an input of the model has no name")
    for f in model.functions.values():
        check.body(f.body, f.opset)
    if check.problems:
        more = len(check.problems) - _LIMIT
        shown = check.problems[:_LIMIT] + ([f"... and {more} more"] if more > 0 else [])
        raise ModelError("the model is broken:" + "".join(f"\n  {p}" for p in shown))


class _Check:
    def __init__(self, model: Model):
        self.model = model
        self.problems: list[str] = []
        self.defined: set[Value] = set()
        self.uses = 0  # Distinct (value, user) pairs met.
        self.listed = 0  # The same, counted in the use lists of the values met.
        #: What was wrong with a node of this signature; the signature holds all that a schema speaks of.
        self.signatures: dict[Any, str | None] = {}
        self.opset: dict[str, int] = {}

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def body(self, graph: Graph, opset: dict[str, int]) -> None:
        self.opset = opset
        self.signatures.clear()
        self.defined.clear()
        self.uses = self.listed = 0
        if graph.parent is not None:
            self.problem(f'graph "{graph.name}" is a body, but has a parent')
        newest = onnx.defs.onnx_opset_version()
        if opset.get("", 0) > newest:
            self.problem(
                f'graph "{graph.name}" is written in opset {opset[""]}, of which the installed onnx {onnx.__version__} '
                f"knows nothing: it ends at {newest}; use a newer onnx, or an older opset"
            )
            return
        self.graph(graph)
        if self.uses != self.listed and not self.problems:
            self.stale_users(graph)

    def graph(self, g: Graph) -> None:
        """One graph and, recursively, its regions: as deep as regions nest, not as the graph is long."""
        defined = self.defined
        mine: list[Value] = []
        for values in (g.inputs, g.constants):
            for v in values:
                if v.owner is not g:
                    self.problem(f'{v!r} stands in graph "{g.name}" but belongs to {v.owner!r}')
                if v in defined:
                    self.problem(f'{v!r} is defined twice in graph "{g.name}"')
                defined.add(v)
                mine.append(v)
                self.listed += len(v.users)
        for i, v in enumerate(g.inputs):
            if v.index != i:
                self.problem(f'{v!r} is input {i} of graph "{g.name}" but has the index {v.index}')
        for v in g.constants:
            self.constant(v)
        for v in g.defaults:
            if v.owner is not g or v.const is not None:
                self.problem(f'{v!r} has a default but is no input of graph "{g.name}"')
        self.nodes(g, mine)
        for v, n in Counter(g.outputs).items():
            self.uses += 1
            if v not in defined:
                self.problem(f'output {v!r} of graph "{g.name}" is not defined')
            elif v.users.get(g) != n:
                self.problem(f'the use list of {v!r} lacks output {v!r} of graph "{g.name}"')
        defined.difference_update(mine)

    def nodes(self, g: Graph, mine: list[Value]) -> None:
        defined, signatures = self.defined, self.signatures
        uses = listed = 0
        for n in g.nodes:
            if n.graph is not g:
                self.problem(f'{describe(n)} stands in graph "{g.name}" but belongs to {n.graph!r}')
            inputs = n.inputs
            n_in = len(inputs)
            alone = n_in == 1 or (n_in == 2 and inputs[0] is not inputs[1])
            for v in inputs if alone else set(inputs):
                if v is None:
                    continue
                uses += 1
                if v not in defined:
                    self.problem(f"operand {v!r} of {describe(n)} is not defined before it")
                if n not in v.users:
                    self.problem(f"the use list of {v!r} lacks {describe(n)}")
                elif v.users[n] != 1 and v.users[n] != inputs.count(v):
                    self.problem(f"the use list of {v!r} has {v.users[n]} uses by {describe(n)}")
            if n.attributes:
                attributes = tuple([(k, _kind(a)) for k, a in n.attributes.items()])
                if n.regions or any(map(graphs_of, n.attributes.values())):
                    self.regions(n)
            else:
                attributes = ()
            outputs = n.outputs
            for i, v in enumerate(outputs):
                if v.owner is not n or v.index != i:
                    self.problem(f"result {i} of {describe(n)} belongs to {v.owner!r}, index {v.index}")
                if v in defined:
                    self.problem(f"{v!r}, a result of {describe(n)}, is defined twice")
                defined.add(v)
                listed += len(v.users)
            mine += outputs
            signature = (
                n.op_type,
                n.domain,
                n.overload,
                tuple([None if v is None else _element(v.type) for v in inputs]),
                tuple([_element(v.type) for v in outputs]),
                attributes,
            )
            if signature in signatures:
                wrong = signatures[signature]
            else:
                wrong = signatures[signature] = self.against_schema(n, signature)
            if wrong:
                self.problem(f"{describe(n)}: {wrong}")
        self.uses += uses
        self.listed += listed

    def constant(self, v: Value) -> None:
        t = v.const
        if t is None:
            self.problem(f"constant {v!r} has no tensor")
        elif not isinstance(v.type, TensorType) or v.type.dtype != t.dtype or v.type.shape != tuple(t.shape.numpy()):
            self.problem(f"constant {v!r} has the type {v.type}, its tensor {t.dtype} {t.shape}")

    def regions(self, n: Node) -> None:
        found = [g for a in n.attributes.values() for g in graphs_of(a)]
        if len(found) != len(n.regions) or any(a is not b for a, b in zip(found, n.regions, strict=True)):
            self.problem(f"the regions of {describe(n)} are not those of its attributes")
        for g in found:
            if g.parent is not n:
                self.problem(f'region "{g.name}" of {describe(n)} has another parent')
            self.graph(g)
        if not n.domain:
            for text in _region_problems(n, self.opset.get("", 0)):
                self.problem(f"{describe(n)}: {text}")

    def against_schema(self, n: Node, signature: Any) -> str | None:
        """What is wrong with a node, as far as its operator's schema (or function) tells."""
        domain = n.domain
        if domain not in self.opset:
            return f'no opset of domain "{domain}" is imported'
        function = self.model.called(n)
        if function is not None:
            body = function.body
            if len(n.inputs) > len(body.inputs) or len(n.outputs) > len(body.outputs):
                return f"the function has {len(body.inputs)} inputs and {len(body.outputs)} outputs"
            return None
        if domain not in _KNOWN_DOMAINS:
            return None
        f = facts(domain, n.op_type, self.opset[domain])
        if f is None:
            return f'domain "{domain}" has no such operator in opset {self.opset[domain]}{_near(n, self.opset[domain])}'
        if f.schema is None:  # an operator that a runtime has in this domain
            return None
        return _arity(n, f) or _attributes(signature[5], f) or _elements(signature[3], signature[4], f)

    def stale_users(self, graph: Graph) -> None:
        """Name the users that do not use what their use lists say."""
        placed = set(graph.walk())
        for g in graph.graphs():
            for v in _definitions(g):
                for user in v.users:
                    uses = user.inputs if isinstance(user, Node) else user.outputs
                    if v not in uses:
                        self.problem(f"the use list of {v!r} holds {user!r}, which does not use it")
                    elif isinstance(user, Node) and user not in placed:
                        self.problem(f"the use list of {v!r} holds {user!r}, which is in no graph")
        if not self.problems:
            self.problem("use lists name users that are not in the model")


def _near(n: Node, version: int) -> str:
    """What may have been meant by an operator that its domain does not have in an opset."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == n.domain]
    first = min((s.since_version for s in schemas if s.name == n.op_type), default=0)
    if first > version:
        return f": it came with opset {first}"
    return did_you_mean(n.op_type, {s.name for s in schemas if s.since_version <= version and not s.deprecated})


def _definitions(g: Graph) -> Iterator[Value]:
    yield from g.inputs
    yield from g.constants
    for n in g.nodes:
        yield from n.outputs


def _region_problems(n: Node, version: int) -> Iterator[str]:
    """Regions that do not fit the operands and results of If, Loop or Scan."""
    if n.op_type == "If":
        for g in n.regions:
            if g.inputs:
                yield f'branch "{g.name}" has inputs'
            if len(g.outputs) < len(n.outputs):
                yield f'branch "{g.name}" yields {len(g.outputs)} values for {len(n.outputs)} results'
    elif n.op_type in ("Loop", "Scan") and n.regions:
        g = n.regions[0]
        extra = 1 if n.op_type == "Loop" else 0  # The condition.
        lengths = 1 if n.op_type == "Scan" and version == 8 else 0  # It had the lengths of its sequences.
        if len(g.inputs) != max(len(n.inputs), 2 * extra) - lengths:
            yield f"the body takes {len(g.inputs)} values for {len(n.inputs)} operands"
        if len(g.outputs) - extra < len(n.outputs):
            yield f"the body yields {len(g.outputs)} values for {len(n.outputs)} results"


def _arity(n: Node, f: Facts) -> str | None:
    if f.deprecated:
        return "this operator is deprecated"
    if not f.min_inputs <= len(n.inputs) <= f.max_inputs:
        return f"{len(n.inputs)} operands, where {_range(f.min_inputs, f.max_inputs)}"
    if not f.min_outputs <= len(n.outputs) <= f.max_outputs:
        return f"{len(n.outputs)} results, where {_range(f.min_outputs, f.max_outputs)}"
    required = onnx.defs.OpSchema.FormalParameterOption.Single
    for p, v in zip(f.schema.inputs, n.inputs, strict=False):
        if v is None and p.option == required:
            return f"operand {p.name} is required"
    return None


def _range(least: int, most: int) -> str:
    if least == most:
        return f"{least} {'is' if least == 1 else 'are'} expected"
    return f"{least} or more are expected" if most > 1000 else f"{least} to {most} are expected"


def _attributes(found: tuple[tuple[str, Any], ...], f: Facts) -> str | None:
    names = {k for k, _ in found}
    for k in sorted(f.required_attributes - names):
        return f"attribute {k} is required"
    for k, kind in found:
        if k not in f.attributes:
            return f"there is no attribute {k} (known: {', '.join(sorted(f.attributes)) or 'none'})"
        if kind is not None and int(kind) != int(f.kinds[k].value):
            return f"attribute {k} is {kind.name}, where {f.kinds[k].name} is expected"
    return None


def _elements(inputs: tuple[Any, ...], outputs: tuple[Any, ...], f: Facts) -> str | None:
    """Element types against the schema's type constraints, where they are known."""
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in f.schema.type_constraints}
    bound: dict[str, str] = {}
    for formals, found, what in ((f.schema.inputs, inputs, "operand"), (f.schema.outputs, outputs, "result")):
        for i, e in enumerate(found):
            if e is None or e == "?":
                continue
            p = formals[min(i, len(formals) - 1)]
            t = e if isinstance(e, str) else f"tensor({_TYPE_NAMES[e]})"
            if "?" in t:
                continue
            if t not in allowed.get(p.type_str, {p.type_str}):
                expected = ", ".join(sorted(allowed.get(p.type_str, {p.type_str})))
                return f"{what} {p.name} is a {t}, which is not among its types ({expected})"
            if p.is_homogeneous and p.type_str in allowed and bound.setdefault(p.type_str, t) != t:
                return f"{what} {p.name} is a {t}, where {p.type_str} is already {bound[p.type_str]}"
    return None


_TYPE_NAMES = {d: d.name.lower() for d in ir.DataType}


def _element(t: Type | None) -> Any:
    """What a schema's type constraints speak of: an element type, or the text of a type; "?" is unknown."""
    if type(t) is TensorType:
        return t.dtype
    return _type_text(t)


def _type_text(t: Type | None) -> str:
    """A type as onnx.defs spells it; nothing known gives a "?" in it."""
    if isinstance(t, TensorType):
        return f"tensor({_TYPE_NAMES[t.dtype]})"
    if isinstance(t, SequenceType):
        return f"seq({_type_text(t.elem)})"
    if isinstance(t, OptionalType):
        return f"optional({_type_text(t.elem)})"
    if isinstance(t, MapType):
        value = _TYPE_NAMES[t.value.dtype] if isinstance(t.value, TensorType) else _type_text(t.value)
        return f"map({_TYPE_NAMES[t.key]}, {value})"
    if isinstance(t, SparseTensorType):
        return f"sparse_tensor({_TYPE_NAMES[t.dtype]})"
    return "?"


_KINDS: tuple[tuple[type, ir.AttributeType, ir.AttributeType], ...] = (
    (int, ir.AttributeType.INT, ir.AttributeType.INTS),
    (float, ir.AttributeType.FLOAT, ir.AttributeType.FLOATS),
    (str, ir.AttributeType.STRING, ir.AttributeType.STRINGS),
    (bytes, ir.AttributeType.STRING, ir.AttributeType.STRINGS),
    (Graph, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS),
)


def _kind(a: Attr) -> ir.AttributeType | None:
    """The ONNX kind of an attribute."""
    if isinstance(a, AttrRef | EmptyList):
        return a.kind
    if isinstance(a, RawAttr):
        return ir.AttributeType(a.proto.type)
    several = isinstance(a, tuple)
    one = a[0] if several and a else a
    for python, scalar, many in _KINDS:
        if isinstance(one, python):
            if several and scalar == ir.AttributeType.INT and any(isinstance(x, float) for x in a):
                return ir.AttributeType.FLOATS
            return many if several else scalar
    return ir.AttributeType.TENSORS if several else ir.AttributeType.TENSOR
