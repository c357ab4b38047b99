"""check_rule: is the derivative rule of an operator right? A test kit for our rules and for yours.

    check_rule("Softmax", [np.random.randn(2, 3, 5)], {"axis": 1})

One node is differentiated in both modes with respect to all floating operands and compared, in double precision, with
finite differences of the operator itself; then the same model with symbolic dims, with unknown ranks, in single
precision at every optimization level of ONNX Runtime, and at order two; and the derivative models evaluated for two
entries at once, by way of the batching rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxad_ir.builder import Builder, Scope
from onnxad_ir.core import Model, Value, clone_model
from onnxad_ir.diagnostics import did_you_mean
from onnxad_ir.infer import Inference
from onnxad_ir.noise import is_random
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.schema import facts, latest_opset
from onnxad_ir.types import is_floating
from onnxad_ir.verify import verify
from onnxad_rules.activity import varying
from onnxad_rules.batching import RULES
from onnxad_rules.batching.sweep import Sweep
from onnxad_rules.derive import pull, push, total
from onnxad_rules.ruleset import Ruleset, UnsupportedOperator, default_rules
from onnxad_rules.survey import Survey

Array: TypeAlias = "np.ndarray[Any, Any]"
Runner: TypeAlias = "Callable[[Mapping[str, Array]], list[Array]]"


def one_node(
    op_type: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any],
    results: Sequence[Array] | int,
    domain: str,
    opset: int,
    shapes: str = "static",
    constants: Sequence[int] = (),
) -> onnx.ModelProto:
    """A model of one node.

    `results`: its results, or their number where they are not known yet. `shapes`: "static"; "symbolic", every extent
    a symbol of its own; "unknown", operands and results reshaped by shapes that only the run knows, so that the node
    itself sees no rank. `constants`: positions that become initializers.
    """
    count = results if isinstance(results, int) else len(results)
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    ys = [f"y{i}" for i in range(count)]
    hide = shapes == "unknown" and not isinstance(results, int)
    seen = [n and (f"z_{n}" if hide and i not in constants else n) for i, n in enumerate(names)]
    node = helper.make_node(op_type, seen, [f"r_{y}" if hide else y for y in ys], domain=domain, **attrs)
    graph = helper.make_graph([node], "one", [], [helper.make_empty_tensor_value_info(y) for y in ys])
    for i, x in enumerate(inputs):
        if x is None:
            continue
        if i in constants:
            graph.initializer.append(numpy_helper.from_array(x, names[i]))
            continue
        dims = [f"d{i}_{k}" for k in range(x.ndim)] if shapes == "symbolic" else list(x.shape)
        graph.input.append(helper.make_tensor_value_info(names[i], helper.np_dtype_to_tensor_dtype(x.dtype), dims))
    if hide:
        assert not isinstance(results, int)
        for i, name in enumerate(names):
            if name and i not in constants:
                graph.input.append(helper.make_tensor_value_info(f"s_{name}", TensorProto.INT64, [f"rank_{name}"]))
                graph.node.insert(0, helper.make_node("Reshape", [name, f"s_{name}"], [f"z_{name}"], allowzero=1))
        for y, value in zip(ys, results, strict=True):
            dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.value_info.append(helper.make_tensor_value_info(f"r_{y}", dtype, None))
            graph.initializer.append(numpy_helper.from_array(np.asarray(value.shape, np.int64), f"s_{y}"))
            graph.node.append(helper.make_node("Reshape", [f"r_{y}", f"s_{y}"], [y], allowzero=1))
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, latest_opset(domain))] if domain else [])
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    if not isinstance(results, int):
        for out, value in zip(model.graph.output, results, strict=True):
            if not out.type.tensor_type.HasField("shape"):  # the checker wants a rank, the node need not know it
                dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
                out.CopyFrom(helper.make_tensor_value_info(out.name, dtype, [None] * value.ndim))
    return model


def differentiate(
    proto: onnx.ModelProto,
    mode: str,
    rules: Ruleset | None = None,
    wrt: Sequence[str] | None = None,
    prefix: str = "",
) -> onnx.ModelProto:
    """A model with `fwd_x` seeds and `fwd_y` results, or with `adj_y` seeds and `adj_x` results; no clean-up.

    A value that is not reached gets zeros.
    """
    return to_proto(_derivative(proto, mode, default_rules() if rules is None else rules, wrt, prefix))


def _derivative(
    proto: onnx.ModelProto, mode: str, rules: Ruleset, wrt: Sequence[str] | None, prefix: str = ""
) -> Model:
    prefix = prefix or ("fwd_" if mode == "forward" else "adj_")
    model = from_proto(proto)
    graph = model.graph
    inference = Inference(model)
    inference.graph(graph)
    sources = [v for v in graph.inputs if is_floating(v.type) and (wrt is None or v.name in wrt)]
    sinks = [v for v in graph.outputs if is_floating(v.type)]
    op = Builder(model, graph, scope=Scope(), inference=inference)
    op.scope.define_all(graph)
    nodes = list(graph.nodes)
    op.survey = Survey(nodes)
    extra: list[Value] = []
    if mode == "forward":
        tangents = {v: op.var(graph.add_input(f"{prefix}{v.name}", v.type)) for v in sources}
        graph.nodes.clear()
        for n in nodes:
            graph.nodes.append(n)
            push(op, n, tangents, rules)
        found = [(f"{prefix}{v.name}", tangents.get(v) or op.zeros_like(op.var(v))) for v in sinks]
    else:
        cts = {v: [op.var(graph.add_input(f"{prefix}{v.name}", v.type))] for v in sinks}
        active, _ = varying(nodes, sources, rules, op.captures)
        for n in reversed(nodes):
            pull(op, n, cts, active.__contains__, rules)
        found = [(f"{prefix}{v.name}", total(op, cts, v) or op.zeros_like(op.var(v))) for v in sources]
    for name, var in found:
        out = op.place_identity(var.value, name)
        extra.append(out)
    graph.set_outputs([*graph.outputs, *extra])
    verify(model)
    return model


def run_in_ort(proto: onnx.ModelProto, level: int = 0) -> Runner:
    """A function from feeds to results, in ONNX Runtime at an optimization level (0, 1, 2, 99)."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    return lambda feeds: session.run(None, {k: v for k, v in feeds.items() if k in names})


def run_in_reference(proto: onnx.ModelProto) -> Runner:
    """A function from feeds to results, in onnx's reference evaluator, with exact and quick operators of our own."""
    from onnx.reference import ReferenceEvaluator

    from onnxad_rules import full_precision, spatial_reference

    evaluator = ReferenceEvaluator(proto, new_ops=[*full_precision.OPERATORS, *spatial_reference.OPERATORS])
    names = {i.name for i in proto.graph.input}
    return lambda feeds: [np.asarray(r) for r in evaluator.run(None, {k: v for k, v in feeds.items() if k in names})]


def runner(proto: onnx.ModelProto) -> Runner:
    """ONNX Runtime without optimization where it has the kernels, else the reference evaluator."""
    try:
        return run_in_ort(proto)
    except Exception:  # onnxruntime raises many types, all meaning: it cannot run this model
        return run_in_reference(proto)


def finite_difference(run: Runner, feeds: Mapping[str, Array], direction: Mapping[str, Array], h: float) -> list[Array]:
    """Derivatives of all results along a direction: central differences, one step of Richardson extrapolation."""

    def central(step: float) -> list[Array]:
        up, down = (
            run({k: np.asarray(v + s * direction[k]) if k in direction else v for k, v in feeds.items()})
            for s in (step, -step)
        )
        return [(a.astype(np.float64) - b.astype(np.float64)) / (2 * step) for a, b in zip(up, down, strict=True)]

    return [(4 * b - a) / 3 for a, b in zip(central(h), central(h / 2), strict=True)]


class _Derivative:
    """A derivative model of a node in one mode, and a function that runs it."""

    def __init__(
        self,
        primal: onnx.ModelProto,
        shapes: str,
        mode: str,
        rules: Ruleset,
        names: Sequence[str],
        engine: Callable[[onnx.ModelProto], Runner],
    ):
        self.shapes = shapes
        self.mode = mode
        self.model = _derivative(primal, mode, rules, names)
        self.proto = to_proto(self.model)
        self.run = engine(self.proto)


def check_rule(
    op_type: str,
    inputs: Sequence[Array | None],
    attrs: Mapping[str, Any] | None = None,
    *,
    outputs: int = 1,
    wrt: Sequence[int] | None = None,
    order: int = 2,
    domain: str = "",
    opset: int = 0,
    constants: Sequence[int] = (),
    symbolic: bool = True,
    unknown_rank: bool = True,
    single: bool = True,
    ragged: str = "",
    rtol: float = 1e-6,
    h: float = 1e-3,
    rules: Ruleset | None = None,
    engine: Callable[[onnx.ModelProto], Runner] = runner,
) -> None:
    """Assert that the rule of `op_type` is right at a point.

    `inputs`: arrays, floating ones in float64, at a point where the operator is smooth within `h`; None omits an
    operand. `wrt`: positions to differentiate (default: every floating operand). `constants`: positions given as
    initializers. `symbolic`, `unknown_rank`: also with symbolic dims, with unknown ranks. `single`: also in float32
    in ONNX Runtime at all optimization levels. `order=2`: also forward of reverse and forward of forward.

    Every model is also given two entries at once, along a leading axis (`onnxad_rules.batching`): forward mode of all
    differentiated operands and their seeds, and of the last operand alone; reverse mode of its seeds. The second entry
    is at the operands with their rows in reverse order, moved by as much as `h`, so the operator has to be defined
    there. `ragged`: why entries of operands cannot be evaluated together (results of another shape for each entry);
    that the node is refused is checked then.
    Raises AssertionError that says which comparison failed; TypeError for operands that are no list of arrays,
    ValueError where none to be differentiated is in float64, and for an operator that onnx does not know.
    """
    attrs = dict(attrs or {})
    opset = opset or latest_opset()
    _check_operands(op_type, inputs, domain, opset, wrt is None)
    rules = default_rules() if rules is None else rules
    rng = np.random.default_rng(len(op_type))
    floating = [i for i, x in enumerate(inputs) if x is not None and x.dtype == np.float64 and i not in constants]
    wrt = floating if wrt is None else list(wrt)
    names = [f"x{i}" for i in wrt]

    inputs = [None if x is None else np.asarray(x) for x in inputs]
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None and i not in constants}
    primal = one_node(op_type, inputs, attrs, outputs, domain, opset, constants=constants)
    ys = engine(primal)(feeds)
    primal = one_node(op_type, inputs, attrs, ys, domain, opset, constants=constants)
    onnx.checker.check_model(primal, full_check=True)
    run = engine(primal)

    def build(values: Sequence[Array | None], shapes: str) -> onnx.ModelProto:
        return one_node(op_type, values, attrs, ys, domain, opset, shapes, constants)

    smooth = [i for i, y in enumerate(ys) if y.dtype == np.float64]
    tangents = {k: _normal(rng, feeds[k].shape) for k in names}
    seeds = {f"adj_y{i}": _normal(rng, ys[i].shape) for i in smooth}
    shapes_at_run_time = {f"s_{k}": np.asarray(v.shape, np.int64) for k, v in feeds.items()}
    all_feeds = {**feeds, **shapes_at_run_time, **{f"fwd_{k}": t for k, t in tangents.items()}, **seeds}

    fwd, adj = (_Derivative(primal, "static", mode, rules, names, engine) for mode in ("forward", "reverse"))
    for d in (fwd, adj):
        onnx.checker.check_model(d.proto, full_check=True)
    jvp = fwd.run(all_feeds)
    expected = finite_difference(run, feeds, tangents, h)
    for found, i in zip(jvp[len(ys) :], smooth, strict=True):
        _close(found, expected[i], rtol, f"{op_type}: forward against finite differences, result {i}")
        assert found.dtype == ys[i].dtype
    for k in names:  # one operand alone: catches partials that cancel
        only = {**all_feeds, **{f"fwd_{o}": np.zeros_like(tangents[o]) for o in names if o != k}}
        want = finite_difference(run, feeds, {k: tangents[k]}, h)
        for found, i in zip(fwd.run(only)[len(ys) :], smooth, strict=True):
            _close(found, want[i], rtol, f"{op_type}: forward in {k} alone, result {i}")
    vjp = adj.run(all_feeds)
    for k, got in zip(names, vjp[len(ys) :], strict=True):
        assert got.dtype == feeds[k].dtype and got.shape == feeds[k].shape, (op_type, k, got.shape)
        want_k = _gradient(run, feeds, k, seeds, smooth, h, rng)
        at = ~np.isnan(want_k)
        _close(got[at], want_k[at], rtol, f"{op_type}: reverse in {k} against finite differences")

    derivatives = [(fwd, jvp), (adj, vjp)]
    for flag, shapes in ((symbolic, "symbolic"), (unknown_rank, "unknown")):
        for mode, results in (("forward", jvp), ("reverse", vjp)) if flag else ():
            d = _Derivative(build(inputs, shapes), shapes, mode, rules, names, engine)
            onnx.checker.check_model(d.proto)
            for got, w in zip(d.run(all_feeds), results, strict=True):
                _close(got, w, 1e-9, f"{op_type}: {mode} with {shapes} shapes")
            derivatives.append((d, results))
    if single:
        _check_single(op_type, build, inputs, all_feeds, {"forward": jvp, "reverse": vjp}, rules, names)
    if order > 1:
        for d, results in ((fwd, jvp), (adj, vjp)):
            _check_second(op_type, d, all_feeds, results, rules, engine, rtol, h, rng)

    batch = _Batch(rules, engine, [all_feeds, _another(rng, all_feeds, names, h)], rtol)
    everything = [*names, *(f"fwd_{k}" for k in names)]
    for d, results in derivatives:
        what = f"{op_type}: {d.mode} with {d.shapes} shapes"
        if d.mode == "reverse":
            batch.check(what, d, list(seeds), results)
        elif not ragged or d.shapes == "static":
            batch.check(what, d, everything, results, ragged)
    if len(names) > 1 and not ragged:
        some = [names[-1], f"fwd_{names[-1]}"]
        batch.check(f"{op_type}: forward in {names[-1]} alone", fwd, some, jvp)


def _check_operands(op_type: str, inputs: Sequence[Array | None], domain: str, opset: int, every: bool) -> None:
    """Refuse what cannot be differentiated at all; `every`: all operands in float64 are."""
    if isinstance(inputs, np.ndarray) or any(x is not None and not hasattr(x, "dtype") for x in inputs):
        raise TypeError("inputs are a list of arrays, with None for an operand that is left out")
    dtypes = [x.dtype for x in inputs if x is not None]
    if every and np.float64 not in dtypes:
        said = ", ".join(map(str, dtypes)) or "there is none"
        raise ValueError(f"no operand is in float64, which finite differences need: {said}")
    if not domain and facts("", op_type, opset) is None:
        known = {s.name for s in onnx.defs.get_all_schemas() if not s.domain}
        raise ValueError(f"onnx has no operator {op_type!r} in opset {opset}{did_you_mean(op_type, known)}")


def _normal(rng: np.random.Generator, shape: Sequence[int]) -> Array:
    return np.asarray(rng.standard_normal(tuple(shape)))


def _gradient(
    run: Runner,
    feeds: Mapping[str, Array],
    name: str,
    seeds: Mapping[str, Array],
    smooth: Sequence[int],
    h: float,
    rng: np.random.Generator,
) -> Array:
    """The gradient of <seeds, results> in one operand by finite differences; NaN where an element was not tried."""
    x = feeds[name]
    out = np.full(x.size, np.nan)
    tried = range(x.size) if x.size <= 40 else rng.choice(x.size, 40, replace=False)
    for j in tried:
        e = np.zeros(x.size)
        e[j] = 1
        ds = finite_difference(run, feeds, {name: e.reshape(x.shape)}, h)
        out[j] = sum(float((ds[i] * seeds[f"adj_y{i}"]).sum()) for i in smooth)
    return out.reshape(x.shape)


def _check_single(
    op_type: str,
    build: Callable[[Sequence[Array | None], str], onnx.ModelProto],
    inputs: Sequence[Array | None],
    feeds: Mapping[str, Array],
    expected: Mapping[str, list[Array]],
    rules: Ruleset | None,
    names: Sequence[str],
) -> None:
    narrow = [x if x is None or x.dtype != np.float64 else x.astype(np.float32) for x in inputs]
    small = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in feeds.items()}
    for mode, want in expected.items():
        m = differentiate(build(narrow, "static"), mode, rules, names)
        for level in (0, 99):
            for got, w in zip(run_in_ort(m, level)(small), want, strict=True):
                _close(got, w, 2e-3, f"{op_type}: {mode} in float32, optimization level {level}")


def _check_second(
    op_type: str,
    first: _Derivative,
    feeds: Mapping[str, Array],
    base: Sequence[Array],
    rules: Ruleset,
    engine: Callable[[onnx.ModelProto], Runner],
    rtol: float,
    h: float,
    rng: np.random.Generator,
) -> None:
    inputs = first.proto.graph.input
    second = differentiate(first.proto, "forward", rules, prefix="d_")
    onnx.checker.check_model(second, full_check=True)
    have = {i.name: feeds[i.name] for i in inputs}
    direction = {
        i.name: _normal(rng, feeds[i.name].shape)
        for i in inputs
        if i.type.tensor_type.elem_type == TensorProto.DOUBLE and f"d_{i.name}" in {k.name for k in second.graph.input}
    }
    differences = finite_difference(first.run, have, direction, h)
    want = [w for w, b in zip(differences, base, strict=True) if b.dtype == np.float64]
    got = engine(second)({**have, **{f"d_{k}": d for k, d in direction.items()}})[len(base) :]
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        _close(g, w, 10 * rtol, f"{op_type}: forward of {first.mode}, result {i}")


def _another(rng: np.random.Generator, feeds: Mapping[str, Array], names: Sequence[str], h: float) -> dict[str, Array]:
    """Another entry: operands with their rows the other way round, moved by as much as a finite difference moves them,
    and other seeds."""
    moved = {k: np.flip(feeds[k], 0) if feeds[k].shape[:1] > (1,) else feeds[k] for k in names}
    moved = {k: np.asarray(x + h * _normal(rng, x.shape)) for k, x in moved.items()}
    seeds = {k: _normal(rng, x.shape) for k, x in feeds.items() if k.startswith(("fwd_", "adj_"))}
    return {**feeds, **moved, **seeds}


@dataclass(frozen=True)
class _Batch:
    """Entries, that is feeds for all derivative models of a node, to be evaluated together."""

    rules: Ruleset
    engine: Callable[[onnx.ModelProto], Runner]
    entries: Sequence[Mapping[str, Array]]
    rtol: float

    def check(self, what: str, d: _Derivative, names: Sequence[str], first: Sequence[Array], ragged: str = "") -> None:
        """Assert that inputs with a leading axis of entries give what each gives alone (`first`: what the first does).

        What is drawn at random is not compared. `ragged`: why this has to be refused.
        """
        if not names:
            return
        shared, *others = self.entries
        want = [first, *(d.run({**shared, **{k: e[k] for k in names}}) for e in others)]
        model = clone_model(d.model)
        drawn: set[Value] = set()
        for n in model.graph.nodes:
            if is_random(n) or any(v in drawn for v in n.inputs):
                drawn.update(n.outputs)
        compared = [v not in drawn for v in model.graph.outputs]
        try:
            Sweep("entries", RULES, self.rules).model(model, [v for v in model.graph.inputs if v.name in names])
        except UnsupportedOperator as e:
            assert ragged, f"{what} cannot be batched: {e}"
            return
        assert not ragged, f"{what} can be batched, but it was said that {ragged}"
        verify(model)
        batched = to_proto(model)
        onnx.checker.check_model(batched, full_check=d.shapes == "static")
        got = self.engine(batched)({**shared, **{k: np.stack([e[k] for e in self.entries]) for k in names}})
        for k, (g, *alone) in enumerate(zip(got, *want, strict=True)):
            for i, w in enumerate(alone):
                if compared[k]:
                    own = g[i] if np.ndim(g) > np.ndim(w) else g
                    _close(own, w, self.rtol, f"{what}, batched, entry {i} of result {k}")


def _close(got: Array, want: Array, rtol: float, what: str) -> None:
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    scale = max(1.0, float(np.abs(want).max(initial=0)))
    error = float(np.abs(got - want).max(initial=0))
    assert error <= rtol * scale, f"{what}: off by {error:.3g} (values up to {scale:.3g})"
