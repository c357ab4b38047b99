"""Type inference of one node: element types, shapes with symbols, and the contents of shape-like integer tensors.

`Inference(model).node(n)` gives the results of `n` their types from those of its operands; `.graph(g)` does a whole
graph in order. Common operators have a fast path here (`infer_shapes`, `infer_contents`); every other operator asks
the inference function of its schema through onnx. An extent that nothing tells is a fresh anonymous symbol, so that
two values of the same unknown extent are still known to be equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from onnxad_ir import dims, schema
from onnxad_ir.bridge import infer_with_onnx
from onnxad_ir.core import AttrRef, Function, Graph, Model, Node, Value
from onnxad_ir.diagnostics import ModelError, OnnxadError, describe
from onnxad_ir.functions import call_types
from onnxad_ir.types import DataType, Dim, Shape, TensorType, Type, is_anonymous, is_made_after

#: The types of a node's results by position, None for one that is unknown.
Types: TypeAlias = tuple[Type | None, ...]
ShapeRule: TypeAlias = "Callable[[Inference, Node], Types | None]"
ContentRule: TypeAlias = "Callable[[Inference, Node], tuple[Dim, ...] | None]"
CallRule: TypeAlias = "Callable[[Inference, Node, Function], Types]"

#: Fast paths by operator (with its domain, but for the default one): result types, or None to ask onnx.
SHAPES: dict[str, ShapeRule] = {}
#: Contents of integer results of rank 0 and 1.
CONTENTS: dict[str, ContentRule] = {}
#: No content is followed beyond this many elements.
CONTENT_LIMIT = 64

INTEGERS = frozenset({DataType.INT64, DataType.INT32})


class Mismatch(Exception):
    """Operands whose shapes an operator never takes together, whatever the run."""


class Inference:
    """Infers in the context of a model: its opsets, and its supply of anonymous symbols.

    `region` is what is done to a region once its inputs have types: `self.graph`, or a pass that does more. `call`
    gives the result types of a call of a local function.
    """

    def __init__(
        self,
        model: Model,
        opset: dict[str, int] | None = None,
        region: Callable[[Graph], None] | None = None,
        call: CallRule = call_types,
    ):
        self.model = model
        self.opset = model.opset if opset is None else opset
        self.fresh = model.fresh_dim
        self.region = self.graph if region is None else region
        self.call = call
        #: What the rules of operators with regions remember about a node between visits.
        self.memory: dict[Node, Any] = {}
        #: The fast paths know the spelling of opset 18 and later only.
        self.modern = self.opset.get("", 18) >= 18

    def graph(self, graph: Graph) -> None:
        """Infer every node of `graph` in order; regions are inferred with the node that owns them."""
        for n in graph.nodes:
            self.node(n)

    def node(self, node: Node) -> None:
        """Give the results of `node` types and contents. A declared type stays where inference knows less."""
        before = self.model.symbols
        f = self.model.called(node)
        if f is not None:
            self._retype(node, self.call(self, node, f), before)
            return
        rule = SHAPES.get(node.operator) if self.modern else None
        try:
            types = rule(self, node) if rule is not None else None
        except (OnnxadError, RecursionError):
            raise
        except Mismatch as e:
            raise ModelError(f"{describe(node)}: {e}") from None
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
            why = f"its operands or attributes do not fit the operator ({type(e).__name__}: {e})"
            raise ModelError(f"the types of {describe(node)} cannot be told: {why}") from e
        if types is None:
            types = self._ask_onnx(node)
        self._retype(node, types, before)
        if self.modern and not node.domain and node.outputs:
            out = node.outputs[0]
            t0 = out.type
            if (
                isinstance(t0, TensorType)
                and t0.dtype in INTEGERS
                and t0.shape is not None
                and len(t0.shape) <= 1
                and (content := CONTENTS.get(node.op_type)) is not None
            ):
                found = content(self, node)
                if found is not None and len(found) <= CONTENT_LIMIT and _fits(found, t0.dtype):
                    out.content = found
                    if t0.shape and t0.shape != (len(found),):
                        out.type = TensorType(t0.dtype, (len(found),))

    def _retype(self, node: Node, types: Types, before: int) -> None:
        for v, t in zip(node.outputs, types, strict=False):
            if isinstance(t, TensorType) and t.shape is not None and dims.TOO_LONG in t.shape:
                t = TensorType(t.dtype, tuple(self.fresh() if d == dims.TOO_LONG else d for d in t.shape))
            if v.type is None:
                v.type = t
                continue
            v.type = _refine(t, v.type, before)
            if v.type is not t and _says_more(v.type, t):
                self.model.told.add(v)
            else:
                self.model.told.discard(v)

    def _ask_onnx(self, node: Node) -> Types:
        blank: Types = (None,) * len(node.outputs)
        f = schema.facts(node.domain, node.op_type, self.opset.get(node.domain, 0))
        if f is None or f.schema is None or node.regions:
            return blank
        if any(isinstance(a, AttrRef) for a in node.attributes.values()):
            return blank
        return infer_with_onnx(node, f, self.opset, self.fresh)


def _fits(content: tuple[Dim, ...], dtype: DataType) -> bool:
    """True where nothing in it is too long, and no number is one that the run, which wraps around, would not have."""
    top = 2 ** (31 if dtype == DataType.INT32 else 63)
    return all(-top <= d < top if isinstance(d, int) else d != dims.TOO_LONG for d in content)


def known(value: Value | None) -> tuple[Dim, ...] | None:
    """What an integer tensor of rank 0 or 1 holds, as extents; None where it is not known."""
    if value is None:
        return None
    if value.content is None and value.const is not None:
        t = value.type
        if isinstance(t, TensorType) and t.dtype in INTEGERS and t.shape is not None and len(t.shape) <= 1:
            size = t.size
            if size is not None and size <= CONTENT_LIMIT:
                value.content = tuple(int(x) for x in value.const.numpy().reshape(-1))
    return value.content


def known_ints(value: Value | None) -> tuple[int, ...] | None:
    """`known`, where every element is a number."""
    c = known(value)
    return c if c is not None and all(isinstance(x, int) for x in c) else None  # type: ignore[return-value]


def _refine(inferred: Type | None, declared: Type, before: int) -> Type:
    """The more precise of an inferred and a declared type. Inference wins, but for extents it found nothing about.

    Those are the anonymous symbols numbered above `before`; an older one says that two extents are equal.
    """
    if inferred is None or inferred == declared:
        return declared
    if not (isinstance(inferred, TensorType) and isinstance(declared, TensorType)):
        return inferred
    if inferred.shape is None:
        return TensorType(inferred.dtype, declared.shape)
    if declared.shape is None or len(declared.shape) != len(inferred.shape):
        return inferred
    merged = tuple(d if is_made_after(i, before) else i for i, d in zip(inferred.shape, declared.shape, strict=True))
    return inferred if merged == inferred.shape else TensorType(inferred.dtype, merged)


def _says_more(declared: Type, inferred: Type | None) -> bool:
    """True where a declared type has extents, by number or name, that an inferred one does not have."""
    if not (isinstance(inferred, TensorType) and isinstance(declared, TensorType)) or declared.shape is None:
        return False
    if inferred.shape is None:
        return True
    return any(d != i and not is_anonymous(d) for d, i in zip(declared.shape, inferred.shape, strict=False))


def infer_shapes(*ops: str) -> Callable[[ShapeRule], ShapeRule]:
    """Register the fast path of operators; their domain is part of the name, but for the default one."""

    def register(f: ShapeRule) -> ShapeRule:
        for op in ops:
            if SHAPES.setdefault(op, f) is not f:
                raise TypeError(f"operator {op} has a fast path already")
        return f

    return register


def infer_contents(*ops: str) -> Callable[[ContentRule], ContentRule]:
    """Register how operators compute shape-like integer tensors."""

    def register(f: ContentRule) -> ContentRule:
        for op in ops:
            if CONTENTS.setdefault(op, f) is not f:
                raise TypeError(f"the contents of {op} have a rule already")
        return f

    return register


def operand_type(n: Node, i: int) -> TensorType | None:
    """The type of the operand at a position, None where it is omitted, unknown or no tensor."""
    v = n.inputs[i] if i < len(n.inputs) else None
    return v.type if v is not None and isinstance(v.type, TensorType) else None


def broadcast(ctx: Inference, a: Shape | None, b: Shape | None) -> Shape | None:
    """The shape of two shapes broadcast together. Raises Mismatch where they never do."""
    if a is None or b is None:
        return None
    if a == b:
        return a
    if len(a) < len(b):
        a, b = b, a
    pad = len(a) - len(b)
    out: list[Dim] = list(a[:pad])
    for x, y in zip(a[pad:], b, strict=True):
        d = dims.broadcast_dim(x, y)
        out.append(ctx.fresh() if d is None else d)
        if clash(x, y) and 1 not in (x, y):
            raise Mismatch(f"shapes {spelled(a)} and {spelled(b)} do not broadcast")
    return tuple(out)


def clash(a: Dim, b: Dim) -> bool:
    """True for two extents that are known, and differ."""
    return a != b and isinstance(a, int) and isinstance(b, int)


def spelled(shape: Shape) -> str:
    """A shape as the text of the IR has it."""
    return f"[{','.join(map(str, shape))}]"


def onnx_dtype(x: object) -> DataType:
    """A DataType from an attribute's integer."""
    return DataType(int(x))  # type: ignore[call-overload]
