"""Local functions as their calls see them: with attributes resolved, at one opset, and with types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, count, zip_longest
from typing import Any, ClassVar

from onnxad_ir.core import Attr, AttrRef, Function, FunctionKey, Graph, Model, Node, Value, clone_graph
from onnxad_ir.diagnostics import ModelError, UsageError, describe
from onnxad_ir.functions import call_types, signature, specific
from onnxad_ir.infer import Inference, known
from onnxad_ir.types import Type
from onnxad_passes.inline_functions import InlineFunctions, called_functions, merge_opsets
from onnxad_passes.manager import Pass
from onnxad_rules.functions import callees_first


@dataclass(frozen=True)
class SpecializeFunctions(Pass):
    """Give every local function the attributes, the opset and the operand types of its calls.

    A function that is called in one way keeps its name; one that is called in several (other attributes, element
    types, ranks, extents, known shapes or axes) is copied for each. Rules and shape inference can then work on its
    body as they do on a model. Takes the place of inline-functions where functions are kept.
    """

    name: ClassVar[str] = "specialize-functions"

    def run(self, model: Model) -> bool:
        if not model.functions:
            return False
        from onnxad_passes.upgrade import upgrade_model

        _resolve_attributes(model)
        upgrade_model(model)
        merge_opsets(model, list(called_functions(model)))
        _Specializer(model).run()
        return True


def function_passes(functions: str) -> Mapping[str, str]:
    """What an option `functions` (inline or keep) asks to run in the place of other passes."""
    if functions not in ("inline", "keep"):
        raise UsageError(f"functions is inline or keep, not {functions!r}")
    return {InlineFunctions.name: SpecializeFunctions.name} if functions == "keep" else {}


def fresh_name(taken: set[FunctionKey], domain: str, name: str) -> FunctionKey:
    """The key of a function of that name that nobody has: numbered where the name is taken; it is taken now."""
    names = chain([name], (f"{name}_{i}" for i in count(1)))
    key = next((domain, n, "") for n in names if (domain, n, "") not in taken)
    taken.add(key)
    return key


# --- attributes


def _resolve_attributes(model: Model) -> None:
    """Make one function of every distinct list of attributes that a function is called with."""
    old, new = model.functions, {}
    made: dict[Any, Function] = {}
    taken = set(old)
    bodies: list[tuple[Graph, dict[str, Attr]]] = [(model.graph, {})]
    while bodies:
        for n in bodies.pop()[0].walk():
            f = old.get(n.callee)
            if f is None:
                continue
            if any(isinstance(a, AttrRef) for a in n.attributes.values()):
                raise ModelError(f"{describe(n)} refers to an attribute of a function, but stands in none")
            attributes = {**f.defaults, **n.attributes} if f.parameters or f.defaults else {}
            at = (f.key, tuple(sorted((k, _hashable(a)) for k, a in attributes.items())))
            g = made.get(at)
            if g is None:
                first = f.key not in new
                domain, name, overload = f.key if first else fresh_name(taken, f.domain, f.name)
                g = Function(domain, name, overload, clone_graph(f.body, None, attributes), dict(f.opset))
                g.doc, g.metadata = f.doc, dict(f.metadata)
                made[at] = new[g.key] = g
                bodies.append((g.body, attributes))
            n.op_type, n.overload, n.attributes = g.name, g.overload, {}
    model.functions = new


def _hashable(a: Attr) -> tuple[str, Any]:
    """An attribute as part of a key: numbers and texts by value, tensors and graphs by identity."""
    try:
        hash(a)
    except TypeError:
        return ("object", str(id(a)))
    if isinstance(a, int | float | str | bytes | tuple):
        return (type(a).__name__, repr(a))
    return ("object", str(id(a)))


# --- types


class _Specializer:
    """Infers the main graph; what a call returns is found by inferring a copy of the function for its operands."""

    def __init__(self, model: Model):
        self.model = model
        #: The function that a call named before it was specialized: inference visits a call in a loop many times.
        self.origins: dict[Node, Function] = {}
        self.made: dict[tuple[FunctionKey, tuple[object, ...]], Function] = {}
        self.taken = set(model.functions)
        self.waiting: list[Function] = []

    def run(self) -> None:
        model = self.model
        Inference(model, call=self.call).graph(model.graph)
        # types that a loop had only for a while have left functions behind: only what is called is kept, and the
        # first of a function that is gets its name
        by_key = {f.key: f for f in self.made.values()}
        origin = {f.key: key[0] for key, f in self.made.items()}
        old, model.functions = model.functions, by_key
        used = {f.key: f for f in called_functions(model)}
        free = set(old)
        renamed: dict[FunctionKey, FunctionKey] = {}
        for key in used:
            if origin[key] in free:
                free.discard(origin[key])
                renamed[key] = origin[key]
        for body in (model.graph, *(f.body for f in used.values())):
            for n in body.walk():
                if (new := renamed.get(n.callee)) is not None:
                    _, n.op_type, n.overload = new
        model.functions = {}
        for f in used.values():
            _, f.name, f.overload = renamed.get(f.key, f.key)
            model.functions[f.key] = f
        model.functions = {f.key: f for f in callees_first(model)}  # onnx's reference evaluator wants them so

    def call(self, ctx: Inference, node: Node, f: Function) -> tuple[Type | None, ...]:
        """The types of a call's results; the call names the function for its operands from now on."""
        f = self.origins.setdefault(node, f)
        for v in node.inputs:
            known(v)  # a constant's contents are noted when they are first asked for
        key = (f.key, signature(node.inputs))
        special = self.made.get(key)
        if special is None:
            special = self.made[key] = self.make(f, node)
        node.op_type, node.overload = special.name, special.overload
        self.model.functions.setdefault(special.key, special)
        return call_types(ctx, node, special)

    def make(self, f: Function, node: Node) -> Function:
        """A copy of a function with the types of a call. Recursion is as deep as calls nest."""
        if f in self.waiting:
            where = f"function {f.domain}.{f.name} calls itself, at {describe(node)}"
            raise ModelError(f"{where}; ONNX has no recursion")
        body = clone_graph(f.body)
        for formal, v in zip_longest(body.inputs, node.inputs):
            if formal is None:
                raise ModelError(f"{describe(node)} has more operands than its function")
            if v is None:
                _omit(formal)
            else:
                formal.type, formal.content = v.type, specific(v)
        self.waiting.append(f)
        Inference(self.model, f.opset, call=self.call).graph(body)
        self.waiting.pop()
        domain, name, overload = fresh_name(self.taken, f.domain, f.name)
        special = Function(domain, name, overload, body, f.opset)
        special.doc, special.metadata = f.doc, f.metadata
        return special


def _omit(formal: Value) -> None:
    """Leave an operand out wherever a body reads it: this call has none."""
    for user in list(formal.users):
        if isinstance(user, Node):
            inputs = [None if v is formal else v for v in user.inputs]
            while inputs and inputs[-1] is None:
                inputs.pop()
            user.set_inputs(inputs)
        else:
            raise ModelError("a function returns an operand that a call of it leaves out")
