"""The builder: ONNX operators by name, on values; every node gets its types, and no node is made that need not be.

    op.Add(a, op.MatMul(b, c))      a * 2 + b      op.ReduceSum(x, [1], keepdims=0)

Constant operands are folded, algebraic identities are skipped and equal expressions are shared, so the graph a rule
writes has no dead weight to clean up afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxad_ir import schema
from onnxad_ir.core import Attr, Graph, Model, Node, Value
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.expressions import expression_key
from onnxad_ir.fold import FOLD_LIMIT, evaluate
from onnxad_ir.idioms import Idioms
from onnxad_ir.infer import Inference
from onnxad_ir.nesting import Nesting
from onnxad_ir.peephole import peephole
from onnxad_ir.spelling import SPELLINGS, in_single, turn, turn_scan
from onnxad_ir.traverse import Captures
from onnxad_ir.types import FLOATING, DataType, Shape, TensorType, Type

#: The oldest opset that rules write for.
OLDEST_OPSET = 18

Operand: TypeAlias = "Var | Value | int | float | bool | Sequence[Any] | np.ndarray[Any, Any] | None"


class Var:
    """A value seen by someone who builds: arithmetic on it emits nodes through its builder."""

    __slots__ = ("op", "value")

    def __init__(self, op: Builder, value: Value):
        self.op = op
        self.value = value

    @property
    def type(self) -> Type | None:
        """The type of the value."""
        return self.value.type

    @property
    def dtype(self) -> DataType:
        """The element type; a ModelError where it is unknown."""
        d = self.value.dtype
        if d is None:
            raise ModelError(f"the element type of {self.value!r} is unknown; infer the model's types first")
        return d

    @property
    def shape(self) -> Shape | None:
        """The shape, None where the rank is unknown."""
        return self.value.shape

    @property
    def rank(self) -> int | None:
        """The rank, None where it is unknown."""
        return self.value.rank

    def __add__(self, other: Operand) -> Var:
        return self.op.Add(self, other)

    def __radd__(self, other: Operand) -> Var:
        return self.op.Add(other, self)

    def __sub__(self, other: Operand) -> Var:
        return self.op.Sub(self, other)

    def __rsub__(self, other: Operand) -> Var:
        return self.op.Sub(other, self)

    def __mul__(self, other: Operand) -> Var:
        return self.op.Mul(self, other)

    def __rmul__(self, other: Operand) -> Var:
        return self.op.Mul(other, self)

    def __truediv__(self, other: Operand) -> Var:
        return self.op.Div(self, other)

    def __rtruediv__(self, other: Operand) -> Var:
        return self.op.Div(other, self)

    def __neg__(self) -> Var:
        return self.op.Neg(self)

    def __repr__(self) -> str:
        return repr(self.value)


class Scope:
    """What a builder knows about the values it may use: shared expressions, and where symbols can be read off.

    A region's scope looks into the enclosing scope, never the other way round.
    """

    __slots__ = ("_depth", "_jump", "_memo", "dims", "parent", "shapes", "top")

    def __init__(self, parent: Scope | None = None):
        self.parent = parent
        #: The outermost scope.
        self.top: Scope = self if parent is None else parent.top
        #: The results of expressions by key with the scope that has them, the last one if several do; of all scopes.
        self._memo: dict[Any, tuple[Scope, tuple[Value, ...]]] = {} if parent is None else parent._memo
        self._depth: int = 0 if parent is None else parent._depth + 1
        #: A scope around, so far up that every one is reached in a logarithmic number of steps.
        self._jump: Scope = self
        if parent is not None:
            near, far = parent._jump, parent._jump._jump
            self._jump = far if parent._depth + far._depth == 2 * near._depth else parent
        #: A value and axis whose extent a symbol is.
        self.dims: dict[str, tuple[Value, int]] = {}
        #: A value of a given symbolic shape.
        self.shapes: dict[Shape, Value] = {}

    def apart(self) -> Scope:
        """A scope for another place of the program: nothing is known there yet but the constants, which are shared."""
        other = Scope()
        other.top = self.top
        return other

    def expression(self, key: Any) -> tuple[Value, ...] | None:
        """The results of an equal expression."""
        found = self._memo.get(key)
        return found[1] if found is not None and self._sees(found[0]) else None

    def remember(self, key: Any, results: tuple[Value, ...]) -> None:
        """Let this scope, and those inside, find the results of an expression that they do not have yet."""
        self._memo[key] = (self, results)

    def _sees(self, other: Scope) -> bool:
        s, depth = self, other._depth
        while s._depth > depth:
            s = s._jump if s._jump._depth >= depth or s.parent is None else s.parent
        return s is other

    def dim(self, symbol: str) -> tuple[Value, int] | None:
        """Where a symbol can be read off; outermost first."""
        found = None if self.parent is None else self.parent.dim(symbol)
        return self.dims.get(symbol) if found is None else found

    def like(self, shape: Shape) -> Value | None:
        """A value of a symbolic shape; the outermost one, which lives longest."""
        found = None if self.parent is None else self.parent.like(shape)
        return self.shapes.get(shape) if found is None else found

    def define(self, *values: Value) -> None:
        """Remember the symbols of values."""
        for value in values:
            t = value.type
            if not isinstance(t, TensorType) or t.shape is None:
                continue
            symbolic = False
            for i, d in enumerate(t.shape):
                if isinstance(d, str):
                    symbolic = True
                    if d not in self.dims:
                        self.dims[d] = (value, i)
            if symbolic and t.shape not in self.shapes:
                self.shapes[t.shape] = value

    def define_all(self, graph: Graph) -> None:
        """Remember the symbols of everything defined in a graph (not in its regions)."""
        self.define(*graph.inputs)
        for n in graph.nodes:
            self.define(*n.outputs)


#: Operators whose result has the number of their first operand, but for its precision.
_SAME_NUMBER = frozenset(
    ("", op) for op in ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Expand")
)


class Builder(Idioms):
    """Appends nodes to `nodes`, a list that belongs to `graph`.

    `label` becomes the name of the nodes made: forward(...) or reverse(...) of the author's node.
    """

    def __init__(
        self,
        model: Model,
        graph: Graph,
        nodes: list[Node] | None = None,
        scope: Scope | None = None,
        inference: Inference | None = None,
        label: str = "",
        root: Graph | None = None,
        captures: Captures | None = None,
        survey: object = None,
        nesting: Nesting | None = None,
    ):
        self.model = model
        self.graph = graph
        self.nodes = graph.nodes if nodes is None else nodes
        self.scope = Scope() if scope is None else scope
        self.inference = Inference(model) if inference is None else inference
        if "" not in self.inference.opset:  # a model of other domains only: what is written here needs the default one
            self.inference.opset[""] = model.opset.setdefault("", OLDEST_OPSET)
        self.version = self.inference.opset[""]
        self.label = label
        #: What regions read from outside, shared by all builders of a sweep.
        self.captures = Captures() if captures is None else captures
        #: Where graphs stand in each other, shared likewise.
        self.nesting = Nesting() if nesting is None else nesting
        #: What an analysis of the program that is differentiated found; rules know what it is.
        self.survey = survey
        #: The outermost graph: constants are put there, once, for every region to read.
        self.root = root if root is not None else graph
        while self.root.enclosing is not None:
            self.root = self.root.enclosing

    def scratch(self) -> Builder:
        """A builder for the same place whose nodes go to a list of its own and are not shared with others yet."""
        return self._child(self.graph, [])

    def region(self, name: str = "") -> Builder:
        """A builder for a new region's graph; make it a node's attribute when it is complete."""
        return self.inside(Graph(name))

    def inside(self, graph: Graph, nodes: list[Node] | None = None) -> Builder:
        """A builder for the graph of a region of a node at this builder's place."""
        return self._child(graph, nodes)

    def apart(self, graph: Graph, nodes: list[Node] | None = None) -> Builder:
        """A builder for another graph, or another place of this one: no value and expression of here is known there."""
        scope = self.scope.apart()
        return Builder(self.model, graph, nodes, scope, self.inference, self.label, self.root, self.captures)

    def _child(self, graph: Graph, nodes: list[Node] | None) -> Builder:
        scope = Scope(self.scope)
        shared = self.captures, self.survey, self.nesting
        return Builder(self.model, graph, nodes, scope, self.inference, self.label, self.root, *shared)

    # --- values

    def var(self, value: Value | Var) -> Var:
        """A value as this builder's Var."""
        return Var(self, value.value if isinstance(value, Var) else value)

    def const(self, data: Any, dtype: DataType | None = None) -> Var:
        """A constant; Python numbers need a dtype unless they are integers (int64) or booleans."""
        if dtype is not None and dtype.is_string():
            array = np.asarray(data, dtype=object)
        elif dtype is not None:
            array = np.asarray(data).astype(dtype.numpy())
        elif isinstance(data, np.ndarray | np.generic):
            array = np.asarray(data)
        else:
            array = np.asarray(data)
            if array.dtype.kind == "f" or array.size == 0:
                if array.size:
                    raise TypeError(f"a floating constant {data!r} needs a dtype")
                array = array.astype(np.int64)
        key = ("const", array.dtype, array.shape, array.tobytes())
        found = self.scope.top.expression(key)
        if found is None:
            tensor = ir.Tensor(array, dtype=dtype)
            found = (self.root.add_constant("", tensor),)
            self.scope.top.remember(key, found)
        return Var(self, found[0])

    def number(self, x: Var | Value, wanted: float | None = None) -> float | None:
        """The one number that every element of a small constant is (None otherwise, or where it is not `wanted`).

        The constant may have been cast and shaped on the way (as exporters do: CastLike of a scalar). A caller uses the
        number: where the constant is the author's, the model is marked, so that nobody later asks for a derivative with
        respect to it in vain (`Model.freeze`). A constant that is differentiated has no number.
        """
        v: Value | None = x.value if isinstance(x, Var) else x
        types = []
        while v is not None and v.const is None and v.producer is not None and v.producer.key in _SAME_NUMBER:
            if v in self.model.variables:
                return None
            types.append(v.type)
            v = v.producer.inputs[0]
        if v is None or v.const is None or v in self.model.variables:
            return None
        size = v.type.size if isinstance(v.type, TensorType) else None
        if size is None or not 0 < size <= 64:
            return None
        a = v.const.numpy().reshape(-1)
        if a.dtype.kind in "OUSc" or not (size == 1 or bool((a == a[0]).all())):
            return None
        for t in reversed(types):
            if not isinstance(t, TensorType) or t.dtype.is_string():
                return None
            a = a[:1].astype(t.dtype.numpy())
        number = float(a[0])
        if wanted is not None and number != wanted:
            return None
        self._freeze(v)
        return number

    def _freeze(self, v: Value) -> None:
        if v.name and v.dtype in FLOATING and self.root is self.model.graph:  # names of functions are their own
            self.model.freeze(v.name)

    def _operand(self, x: Operand, dtype: DataType | None) -> Value | None:
        if x is None:
            return None
        if isinstance(x, Var):
            return x.value
        if isinstance(x, Value):
            return x
        if isinstance(x, bool | int | float | np.generic):
            return self.const(x, dtype).value
        if isinstance(x, np.ndarray):
            return self.const(x).value
        return self.const(np.asarray(x, np.int64)).value

    # --- nodes

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)

        def call(*operands: Operand, outputs: int | None = None, **attributes: Attr) -> Any:
            dtype = None
            for x in operands:
                if isinstance(x, Var | Value) and (dtype := (x.value if isinstance(x, Var) else x).dtype) is not None:
                    break
            inputs = [self._operand(x, dtype) for x in operands]
            for k, a in attributes.items():
                if isinstance(a, list):
                    attributes[k] = tuple(a)
            if outputs is None:
                f = schema.facts("", op_type, self.version)
                if f is None:
                    raise ModelError(f"opset {self.version} has no operator {op_type}")
                outputs = max(1, f.min_outputs)
            results = self.emit(op_type, inputs, {k: a for k, a in attributes.items() if a is not None}, outputs)
            return Var(self, results[0]) if outputs == 1 else tuple(Var(self, v) for v in results)

        return call

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        attributes: dict[str, Attr],
        outputs: int = 1,
        domain: str = "",
    ) -> tuple[Value, ...]:
        """The results of an operator: existing values where an identity, a constant or an equal node gives them."""
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        if not domain and outputs == 1:
            if (respell := SPELLINGS.get(op_type)) is not None:
                inputs = respell(self, inputs, attributes) or inputs
            if (wide := in_single(self, op_type, inputs, attributes)) is not None:
                return (wide,)
            if (same := peephole(self, op_type, inputs, attributes)) is not None:
                return (same,)
            if (folded := self._fold(op_type, inputs, attributes)) is not None:
                return (folded,)
        key = _key(op_type, domain, outputs, inputs, attributes)
        if key is not None and (found := self.scope.expression(key)) is not None:
            return found
        # a result that turns out unused before one that is used is named all the same: onnx's reference evaluator
        # mistakes the omitted result "" for the omitted operand "" of later nodes
        names = (op_type.lower(),) * (outputs - 1) + ("",)
        node = Node(op_type, inputs, attributes, names, domain, self.label)
        return self.place(node, key)

    def place(self, node: Node, key: Any = None) -> tuple[Value, ...]:
        """Append a node as it is, with its types inferred."""
        node.graph = self.graph
        self.nodes.append(node)
        self.inference.node(node)
        self.scope.define(*node.outputs)
        if key is not None:
            self.scope.remember(key, node.outputs)
        return node.outputs

    def keep(self, node: Node) -> None:
        """Append a node of the graph that is rewritten, whose results have their types."""
        self.nodes.append(node)
        self.scope.define(*node.outputs)

    def place_typed(self, node: Node, types: Sequence[Type | None]) -> tuple[Value, ...]:
        """Append a node whose result types are known to the caller."""
        turned = turn_scan(self, node) if node.op_type == "Scan" and not node.domain else {}
        node.graph = self.graph
        self.nodes.append(node)
        for v, t in zip(node.outputs, types, strict=True):
            v.type = t
            self.scope.define(v)
        if turned:
            return tuple(turn(self, v, turned[i]) if i in turned else v for i, v in enumerate(node.outputs))
        return node.outputs

    def place_identity(self, value: Value, name: str) -> Value:
        """A new value of that name which equals `value`: for outputs that need a name of their own."""
        return self.place(Node("Identity", (value,), {}, (name,), name=self.label))[0]

    def fit_rank(self, x: Var, like: Var) -> Var:
        """`x`, or a copy of it, that has the type of `like`, where that tells its rank and it does not itself.

        A Scan has to know the ranks of what its body yields.
        """
        if not isinstance(x.type, TensorType) or x.rank is not None or like.shape is None:
            return x
        if x.value.graph is self.graph and x.value.producer is not None:
            return self.fit_type(x, like)
        same = Node("Identity", (x.value,), {}, name=self.label)
        return self.var(self.place_typed(same, [TensorType(x.dtype, like.shape)])[0])

    def _fold(self, op_type: str, inputs: Sequence[Value | None], attributes: dict[str, Attr]) -> Value | None:
        arrays: list[np.ndarray[Any, Any] | None] = []
        for v in inputs:
            if v is None:
                arrays.append(None)
                continue
            if v.const is None:
                return None
            size = v.type.size if isinstance(v.type, TensorType) else None
            if size is None or size > FOLD_LIMIT or v in self.model.variables:
                return None
            if size > 1 and v.name and v.dtype in FLOATING:
                return None  # a weight: someone may want the derivative with respect to it
            arrays.append(v.const.numpy())
        out = evaluate(op_type, attributes, arrays)
        if out is None:
            return None
        for v in inputs:
            if v is not None:
                self._freeze(v)
        return self.const(out).value


def key_of(node: Node) -> Any:
    """What `Builder.emit` finds an equal node by, None for one that is not shared."""
    return _key(node.op_type, node.domain, len(node.outputs), node.inputs, node.attributes)


def _key(op_type: str, domain: str, outputs: int, inputs: Sequence[Value | None], attributes: dict[str, Attr]) -> Any:
    key = expression_key(op_type, domain, inputs, attributes)
    return None if key is None else (outputs, key)
