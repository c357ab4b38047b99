"""The gradient of nodes or of a function as a FunctionProto, for operands of any shape and floating type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import onnx

from onnxad_ir.core import Function, Graph, Model, Node, Value
from onnxad_ir.diagnostics import UsageError, did_you_mean
from onnxad_ir.element_types import element_of
from onnxad_ir.names import Namer
from onnxad_ir.proto import from_proto, function_to_proto
from onnxad_ir.proto_read import wrap_tensor
from onnxad_ir.schema import domain_of, facts, latest
from onnxad_ir.traverse import deep_regions
from onnxad_ir.types import DataType, TensorType
from onnxad_ir.verify import verify
from onnxad_passes.any_element_type import assume, release
from onnxad_passes.api import paused_gc
from onnxad_passes.arguments import all_of
from onnxad_passes.dce import drop_dead
from onnxad_passes.grad_registry import Registry, rules_of
from onnxad_passes.manager import PassManager
from onnxad_passes.reverse import Reverse
from onnxad_passes.seeds import named_values
from onnxad_rules.ruleset import Ruleset

#: What bare nodes are taken to be written in, and the domain of their gradient (a function in the default domain
#: cannot be called).
_OPSET, _DOMAIN = 21, "onnxad"


def gradient_of_nodes(
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[str | onnx.ValueInfoProto],
    initializers: Iterable[onnx.TensorProto],
    xs: Sequence[str],
    y: str,
    zs: Sequence[str] = (),
    registry: Registry | None = None,
) -> onnx.FunctionProto:
    """A function with inputs [xs..., zs..., "dy"] and outputs ["grad_<x>"...]: dy times dy/dx for each x.

    nodes: of opset 21 (or of the oldest that has them all). inputs, initializers: what they read; initializers become
    constants of the function, inputs are names, or ValueInfoProtos where types and shapes are known. xs: what to
    differentiate with respect to: inputs, initializers or results of nodes. y: what is differentiated, a result of a
    node. zs: what else the function is given. A result of a node among xs and zs is used as it is given and not
    computed again; gradients of what it was computed from pass through it all the same. registry: rules that go before
    the built-in ones, by (domain, operator), in the verbs of `onnxad_rules.kinds` or as functions that append nodes
    (`onnxad_rules.node_rules`); or a `GradRegistry`, which takes their place.

    grad_<x> has the shape and type of x, zeros where y does not depend on it. Shapes and floating element types may be
    any, unless declared; operands of unknown type share one. "dy" and "grad_<x>" are numbered where an operand has the
    name already. The function is called "gradient", in the domain "onnxad".

    Raises ValueError where xs or y are empty, y is not a result of a node, a name is unknown or listed twice, and
    where the gradient reads an input that is neither in xs nor in zs; UnsupportedOperator where an operator between an
    x and y has no rule. The arguments are not changed.
    """
    nodes = all_of(onnx.NodeProto, nodes, "nodes")
    tensors = {t.name: t for t in all_of(onnx.TensorProto, initializers, "initializers")}
    read, opset = set[str](), {"": _OPSET}
    for n in _inside(nodes, read):
        domain = domain_of(n.domain)
        if domain:
            opset[domain] = 1
        elif facts("", n.op_type, _OPSET) is None and (newer := latest("", n.op_type)) is not None:
            opset[""] = max(opset[""], newer.since)
    produced = {name for n in nodes for name in n.output}
    known = {i if isinstance(i, str) else i.name: i for i in inputs}
    known.update({name: name for name in sorted(read) if name not in known})
    infos = [_info(i) for name, i in known.items() if name not in produced and name not in tensors]
    source = _Source("gradient", nodes, infos, [], tensors, opset)
    return _gradient(source, _DOMAIN, xs, y, zs, registry)


def gradient_of_function(
    function: onnx.FunctionProto,
    xs: Sequence[str],
    y: str,
    zs: Sequence[str] = (),
    registry: Registry | None = None,
) -> onnx.FunctionProto:
    """The gradient of a value of a function with respect to others, as `gradient_of_nodes` gives it.

    It is called "<name>_grad", in the function's domain, and imports the function's opsets (opset 18 of the default
    domain where the function's is older). Types and shapes in the function's value_info are used. Attributes of the
    function have their defaults; one without a default is a ValueError.
    """
    if not isinstance(function, onnx.FunctionProto):
        raise TypeError(f"expected a FunctionProto, not a {type(function).__name__}")
    types = {i.name: i for i in function.value_info}
    infos = [types.get(name) or _info(name) for name in function.input]
    opset = {o.domain: o.version for o in function.opset_import}
    source = _Source(
        f"{function.name}_grad" if function.name else "gradient",
        list(function.node),
        infos,
        list(function.value_info),
        {},
        opset,
        tuple(function.attribute),
        {a.name: a for a in function.attribute_proto},
    )
    return _gradient(source, function.domain, xs, y, zs, registry)


@dataclass
class _Source:
    """What is differentiated, as protobuf objects, and what its gradient will be called."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    inputs: list[onnx.ValueInfoProto]
    types: list[onnx.ValueInfoProto]
    tensors: dict[str, onnx.TensorProto]
    opset: dict[str, int]
    parameters: tuple[str, ...] = ()
    defaults: dict[str, onnx.AttributeProto] = field(default_factory=dict)

    def lift(self, y: str) -> Model:
        """An IR model of it with the output y."""
        proto = onnx.ModelProto(ir_version=10)
        proto.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in self.opset.items())
        proto.graph.name = self.name
        proto.graph.node.extend(self.nodes)
        for n in _inside(proto.graph.node, set()) if self.parameters or self.defaults else ():
            self.bind(n)
        proto.graph.input.extend(self.inputs)
        proto.graph.input.extend(map(_info, self.tensors))
        proto.graph.value_info.extend(self.types)
        proto.graph.output.add(name=y)
        model = from_proto(proto)
        for v in model.graph.inputs:
            if v.name in self.tensors:
                tensor = wrap_tensor(self.tensors[v.name])
                v.replace_by(model.graph.add_constant(v.name, tensor))
        model.graph.set_inputs([v for v in model.graph.inputs if v.name not in self.tensors])
        return model

    def bind(self, n: onnx.NodeProto) -> None:
        """Give the attributes of a node that refer to attributes of the function the defaults of these."""
        for a in n.attribute:
            if a.ref_attr_name:
                if a.ref_attr_name not in self.defaults:
                    where = f"attribute {a.name!r} of {n.op_type} is the function's {a.ref_attr_name!r}"
                    raise UsageError(f"{where}, which has no default: put a value in its place first")
                name = a.name
                a.CopyFrom(self.defaults[a.ref_attr_name])
                a.name = name


def _info(name: str | onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=name) if isinstance(name, str) else name


def _inside(nodes: Iterable[onnx.NodeProto], read: set[str]) -> Iterator[onnx.NodeProto]:
    """The nodes and those of their regions; `read` takes the names they read that no region defines."""
    for n in nodes:
        yield n
        read.update(name for name in n.input if name)
        for a in n.attribute:
            for g in (*a.graphs, *([a.g] if a.HasField("g") else ())):
                inner = {o.name for o in g.output}
                yield from _inside(g.node, inner)
                own = {name for m in g.node for name in m.output}
                read |= inner - own - {v.name for v in (*g.input, *g.initializer)}


def _gradient(
    source: _Source, domain: str, xs: Sequence[str], y: str, zs: Sequence[str], registry: Registry | None
) -> onnx.FunctionProto:
    xs, zs = [xs] if isinstance(xs, str) else list(xs), [zs] if isinstance(zs, str) else list(zs)
    if not xs:
        raise UsageError("xs is empty: name what to differentiate with respect to")
    if not y:
        raise UsageError("y is empty: name the value to differentiate")
    if all(y not in n.output for n in source.nodes):
        raise UsageError(f"y, {y!r}, is not a result of any node")
    if twice := [name for name, times in Counter([*xs, *zs]).items() if times > 1]:
        raise UsageError(f"{twice[0]!r} is named twice in xs and zs")
    with paused_gc(), deep_regions():
        model = source.lift(y)
        _differentiate(model, xs, y, zs, rules_of(registry))
        return function_to_proto(Function(domain, source.name, "", model.graph, model.opset))


def _differentiate(model: Model, xs: list[str], y: str, zs: list[str], rules: Ruleset) -> None:
    """Turn a model of y into one of the gradients with respect to xs, with inputs xs, zs and the seed."""
    graph = model.graph
    inner = _give(graph, [*xs, *zs])
    values = named_values(graph)
    graph.set_outputs(dict.fromkeys([values[y], *inner]))
    names = [v.name for v in graph.outputs]
    assumed = assume(model, [values[name] for name in (*xs, y)])
    verify(model)
    PassManager([Reverse(tuple(xs), (y,), rules=rules)], verify_each=False).run(model)
    computed = dict(zip(names, graph.outputs, strict=False))
    graph.set_outputs(graph.outputs[len(names) :])
    _close(graph, [*xs, *zs], computed)
    namer = Namer()
    for v in graph.inputs[:-1]:
        namer.claim(v.name)
    graph.inputs[-1].name = namer.fresh("dy")
    for x, v in zip(xs, graph.outputs, strict=True):
        v.name = namer.fresh(f"grad_{x}")
    _spell_out(graph, model.opset)
    if assumed is not None:
        if assumed.several:
            _cast_like(graph, len(xs), assumed.floating)
        like = _of_type(graph.inputs, assumed.floating)
        if like is not None:
            release(graph, assumed.floating, like)
        elif any(element_of(v.type) == assumed.floating for n in graph.walk() for v in n.outputs):
            raise UsageError("no operand tells the element type: declare types in value_info")
        for d, v in assumed.others.items():
            release(graph, d, v)


def _give(graph: Graph, names: list[str]) -> list[Value]:
    """Have the constants that are named be inputs; returns the results of nodes that are named."""
    values, given = named_values(graph), set[Value]()
    for name in names:
        if name not in values:
            raise UsageError(f"there is no value called {name!r}{did_you_mean(name, values)}")
        v = values[name]
        if v.is_const:
            v.replace_by(graph.add_input(name, v.type))
            given.add(v)
    graph.constants[:] = [v for v in graph.constants if v not in given]
    return [values[name] for name in names if values[name].producer is not None]


def _close(graph: Graph, names: list[str], computed: dict[str, Value]) -> None:
    """Leave the inputs of those names, and the last one; what has been computed of them is given from now on.

    Raises UsageError where anything else is read.
    """
    values = {v.name: v for v in graph.inputs}
    seed = graph.inputs[-1]
    for name in names:
        if (old := computed.get(name)) is not None:
            values[name] = graph.add_input(name, old.type)
            old.replace_by(values[name])
            old.name = ""
    drop_dead(graph)
    given = [*(values[name] for name in names), seed]
    named = set(given)
    if missing := [v.name for v in graph.inputs if v.users and v not in named]:
        raise UsageError(f"the gradient reads {', '.join(map(repr, missing))}: name it in xs or zs")
    graph.set_inputs(given)


def _spell_out(graph: Graph, opset: dict[str, int]) -> None:
    """Set attributes to their defaults where ONNX Runtime 1.32, within a function, goes by an operator's body only."""
    for n in graph.walk():
        f = facts(n.domain, n.op_type, opset.get(n.domain, 0))
        if f is not None and f.has_body and not f.schema.has_type_and_shape_inference_function:
            for name, default in f.attributes.items():
                if default is not None:
                    n.attributes.setdefault(name, default)


def _of_type(operands: list[Value], dtype: DataType) -> Value | None:
    """An operand of an element type, None where there is none."""
    return next((v for v in operands if isinstance(v.type, TensorType) and v.type.dtype == dtype), None)


def _cast_like(graph: Graph, count: int, dtype: DataType) -> None:
    """Have the gradients of operands that are only taken to be of a type be of those operands' own types."""
    outputs = []
    for x, v in zip(graph.inputs[:count], graph.outputs, strict=True):
        if isinstance(x.type, TensorType) and x.type.dtype == dtype:
            cast = graph.append(Node("CastLike", (v, x), {}, (v.name,)))
            cast.outputs[0].type, v.name, v = x.type, "", cast.outputs[0]
        outputs.append(v)
    graph.set_outputs(outputs)
