"""Are the derivatives of a model right? They are compared with finite differences of the model itself.

    report = check_derivatives(model)          # forward and reverse mode with respect to every floating input
    report = check_derivatives(model, adjoint) # a derivative model that exists already
    print(report); assert report.ok

Both models run in double precision wherever an engine has the kernels: ONNX Runtime, else onnx's reference
evaluator. Each differentiated value is moved along one random direction; forward mode must give the central
difference of every output, reverse mode and gradients its inner product with the cotangents.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from onnxad_ir.core import Graph, Model, Node, Value, clone_model
from onnxad_ir.diagnostics import OnnxadError, UsageError
from onnxad_ir.infer import Inference
from onnxad_ir.types import TensorType
from onnxad_passes.arguments import names_or_all
from onnxad_passes.check_forms import JACOBIAN, Form, jacobian_signature
from onnxad_passes.engines import ENGINES, PRECISIONS, Engine, Run, choose_engines
from onnxad_passes.extents import spell_out
from onnxad_passes.layouts import SINGLE, check_layout
from onnxad_passes.samples import samples
from onnxad_passes.signature import Signature, signature_of
from onnxad_rules.ruleset import Ruleset

Array: TypeAlias = "np.ndarray[Any, Any]"
Progress: TypeAlias = "Callable[[int, int], None]"

#: By whether the precision is double: relative tolerance, and steps of the difference quotient in turn.
_TOLERANCE = {True: 1e-5, False: 3e-2}
_STEPS = {True: (1e-5, 1e-6, 1e-4, 1e-7), False: (1e-2, 3e-3, 3e-2)}
_EPSILON = {True: 2.3e-16, False: 1.2e-7}
#: Seconds after which an engine that has failed is not tried at further points.
_PATIENCE = 10


@dataclass(frozen=True)
class Comparison:
    """One line of a report: a result of the derivative model beside what the model itself says.

    `mode`: forward, reverse, gradient, or "value" where an output is compared with the model's own. `along`:
    the value that was moved. `derivative`, `expected`: the inner product or, of a vector, the Euclidean norm.
    `error`: relative.
    """

    mode: str
    result: str
    along: str
    derivative: float
    expected: float
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """True where both agree."""
        return self.error <= self.tolerance


@dataclass(frozen=True)
class CheckReport:
    """What was compared, where and how exactly. `str()` is a table."""

    rows: tuple[Comparison, ...]
    engine: str
    point: str

    @property
    def ok(self) -> bool:
        """True where every comparison agrees."""
        return all(r.ok for r in self.rows)

    def __str__(self) -> str:
        head = ("mode", "result", "along", "derivative", "difference", "error", "")
        body = [
            (
                r.mode,
                r.result,
                r.along,
                f"{r.derivative:.8g}",
                f"{r.expected:.8g}",
                f"{r.error:.1e}",
                "ok" if r.ok else f"WRONG (tolerance {r.tolerance:.0e})",
            )
            for r in self.rows
        ]
        widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
        lines = []
        for row in (head, *body):
            cells = [
                c.rjust(w) if 3 <= i <= 5 else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        bad = sum(not r.ok for r in self.rows)
        verdict = (
            f"{bad} of {len(self.rows)} comparisons are WRONG" if bad else f"all {len(self.rows)} comparisons agree"
        )
        lines.append(f"{verdict} ({self.engine}; {self.point})")
        return "\n".join(lines)


def check_derivatives(
    model: Any,
    derivative: Any = None,
    *,
    mode: str | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    layout: str = SINGLE,
    feeds: Mapping[str, Array] | None = None,
    dims: Mapping[str, int] | None = None,
    engine: str = "auto",
    precision: str = "auto",
    seed: int = 0,
    tolerance: float | None = None,
    rules: Ruleset | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Compare derivatives of `model` with its finite differences.

    `derivative`: a derivative model of it in a `layout`, whose signature begins with the model's (default: both modes
    are built and checked, with respect to `inputs` and of `outputs`, by `rules`). `mode`: forward, reverse or gradient
    (default: as the names say), or jacobian, of `outputs` by `inputs`. `outputs` names the differentiated output of a
    gradient where the model has several. `feeds`: the point, by input name (default: random);
    `dims`: extents of symbolic dimensions. `engine`: auto, onnxruntime or reference; `precision`: auto
    (double where an engine can), double or own. `progress` is called with the comparisons made so far and
    their number.

    Raises UsageError where `derivative` is none of `model` or no point can be found, OnnxadError where no
    engine runs the models or where they are random.
    """
    from onnxad_passes.api import lift

    check_layout(layout)
    inputs, outputs = names_or_all(inputs), names_or_all(outputs)
    modes = ("forward", "reverse", *(() if derivative is None else ("gradient", JACOBIAN)))
    if mode not in (None, *modes):
        of = "the modes that are built are" if derivative is None else "the modes are"
        raise UsageError(f"there is no mode {mode!r} to check; {of} {', '.join(modes)}")
    if engine not in ENGINES or precision not in PRECISIONS:
        raise UsageError(f"engine is one of {', '.join(ENGINES)}, precision one of {', '.join(PRECISIONS)}")
    primal = lift(model)[0]
    spell_out(primal)
    if any(v.type is None for n in primal.graph.nodes for v in n.outputs):
        Inference(primal).graph(primal.graph)  # an inner value that is moved needs its rank
    jobs: list[tuple[Model, str | None]]
    if derivative is None:
        jobs = [(m, k) for k, m in _build(primal, inputs, outputs, rules).items() if mode in (None, k)]
    else:
        jobs = [(lift(derivative)[0], mode)]
    rows: list[Comparison] = []
    said: dict[str, None] = {}
    for k, (d, kind) in enumerate(jobs):
        whole = jacobian_signature(primal, d, inputs, outputs) if kind == JACOBIAN else None
        signature = whole or signature_of(primal, d, kind, outputs)
        step = None if progress is None else _part(progress, k, len(jobs))
        form = Form(signature, layout if derivative is not None else SINGLE, len(primal.graph.outputs))
        run = _Check(primal, d, form, feeds or {}, dims or {}, engine, precision, seed, tolerance, step)
        rows += run.rows
        said[f"{run.engines.name}; {run.point}"] = None
    name, _, point = " / ".join(said).partition("; ")
    return CheckReport(tuple(rows), name, point)


def _build(
    primal: Model, inputs: tuple[str, ...] | None, outputs: tuple[str, ...] | None, rules: Ruleset | None
) -> dict[str, Model]:
    """The derivative models of both modes."""
    from onnxad_passes.forward import Forward
    from onnxad_passes.manager import PassManager
    from onnxad_passes.reverse import Reverse

    built = {}
    for p in (Forward(inputs, outputs, rules=rules), Reverse(inputs, outputs, rules=rules)):
        built[p.name] = clone_model(primal)
        PassManager([p]).run(built[p.name])
    return built


def _part(progress: Progress, k: int, count: int) -> Progress:
    return lambda done, total: progress(k * total + done, count * total)


class _Check:
    """One derivative model against its primal."""

    def __init__(
        self,
        primal: Model,
        derivative: Model,
        form: Form,
        feeds: Mapping[str, Array],
        dims: Mapping[str, int],
        engine: str,
        precision: str,
        seed: int,
        tolerance: float | None,
        progress: Progress | None,
    ):
        self.form, self.signature = form, form.signature
        self.rng = np.random.default_rng(seed)
        self.count = len(primal.graph.outputs)
        self.primal, self.probe = primal, _Probe(primal, form.signature)
        self.rows: list[Comparison] = []
        self.engines, self.feeds, self.point = self._start(derivative, feeds, dims, engine, precision, seed)
        double = self.engines.double
        self.tolerance = _TOLERANCE[double] if tolerance is None else tolerance
        self.steps, self.epsilon = _STEPS[double], _EPSILON[double]
        self.base = self.engines.primal(self.feeds)
        again = self.engines.primal(self.feeds)
        if any(not np.array_equal(a, b, equal_nan=_inexact(a)) for a, b in zip(self.base, again, strict=True)):
            raise OnnxadError(
                "the model is random (two runs differ), so finite differences say nothing about it; "
                "replace its random operators, or switch its training mode off, to check the rest"
            )
        self.run(progress)

    def _start(
        self,
        derivative: Model,
        given: Mapping[str, Array],
        dims: Mapping[str, int],
        engine: str,
        precision: str,
        seed: int,
    ) -> tuple[Engine, dict[str, Array], str]:
        """Engines that run both models, and a point at which the model is finite."""
        refused: list[str] = []
        failed: dict[str, list[str]] = {}
        for engines in choose_engines(self.probe.model, derivative, engine, precision, refused):
            engines = replace(engines, derivative=self.form.of(engines.derivative))
            start = time.perf_counter()
            for feeds, how in samples(self.primal, given, dims, engines.double, seed):
                feeds = {**feeds, **self.probe.feeds(engines.double)}
                try:
                    found = engines.primal(feeds)
                    feeds.update(self.probe.offsets(found))
                    found = engines.primal(feeds)
                    if not all(np.isfinite(y).all() for y in found if _inexact(y)):
                        failed.setdefault(f"{engines.name}: results are not finite", []).append(how)
                        continue
                    if not _confirmed(engines.witness, feeds, found):
                        failed.setdefault(f"{engines.name}: other results than ONNX Runtime", []).append(how)
                        break
                    self.form.shapes = self._shapes(found, feeds)
                    engines.derivative({**feeds, **self._seeds(found, feeds)})
                except Exception as e:  # engines raise many types, all meaning: not this model at this point
                    failed.setdefault(f"{engines.name}: {_one_line(e)}", []).append(how)
                    if time.perf_counter() - start > _PATIENCE:
                        break  # larger extents take longer still
                    continue
                return engines, feeds, how
        points = [f"{r} ({at[0]}{f', and {len(at) - 1} more' if at[1:] else ''})" for r, at in failed.items()]
        shown = "".join(f"\n  {r}" for r in dict.fromkeys([*refused, *points]))
        raise OnnxadError(
            "the derivative cannot be checked, as no engine runs the models at a point tried; give the "
            f"inputs, or the extents of symbolic dimensions:{shown}"
        )

    def _shapes(self, results: Sequence[Array], feeds: Mapping[str, Array]) -> list[tuple[int, ...]]:
        """The shapes of the results for one direction."""
        if self.signature.mode == "forward":
            ys = self.probe.sinks(results)
            return [ys[y].shape for y in self.signature.sinks]
        return [np.shape(feeds[self.probe.name_of[x]]) for x in self.signature.sources]

    def _seeds(self, results: Sequence[Array], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Random cotangents of the sinks (reverse), or zero tangents of the sources (forward)."""
        s = self.signature
        if s.mode == "forward":
            return {s.prefix + x: np.zeros_like(feeds[self.probe.name_of[x]]) for x in s.sources}
        if s.mode == "gradient":
            return {}
        ys = self.probe.sinks(results)
        rng = np.random.default_rng(1)
        return {s.prefix + y: _normal(rng, ys[y]) for y in s.sinks}

    def run(self, progress: Progress | None) -> None:
        """Make every comparison."""
        s = self.signature
        seeds = self._seeds(self.base, self.feeds)
        at = self.engines.derivative({**self.feeds, **seeds})
        for name, got, want in zip(self.probe.outputs, at, self.base[: self.count], strict=False):
            if _inexact(got):
                noise = 100 * self.epsilon * _norm(want)
                self._compare("value", name, "", got, [(want, noise)])
            elif not np.array_equal(got, want):
                self._append("value", name, "", np.nan, np.nan, np.inf)
        for k, x in enumerate(s.sources):
            here = self.feeds[self.probe.name_of[x]]
            size = float(np.sqrt(np.mean(np.square(here)))) if here.size else 0.0
            d = np.asarray(_normal(self.rng, here) * np.asarray(size or 1.0, here.dtype))  # of a scalar an array, too
            if s.mode == "forward":
                fed = {**seeds, s.prefix + x: d}
                tangents = self.engines.derivative({**self.feeds, **fed})[self.count :]
                for i, (t, y) in enumerate(zip(tangents, s.sinks, strict=True)):
                    wants = self._rounded(self._differences(x, d, y), fed, self.count + i, t, 1.0)
                    self._compare("forward", s.prefix + y, x, t, wants)
            else:
                grad = at[self.count + k]
                if grad.shape != here.shape:
                    raise OnnxadError(
                        f"{s.prefix + x!r} has shape {grad.shape}, but {x!r} has shape {here.shape}; a derivative of "
                        "several directions is checked with its layout"
                    )
                d = _along(grad, d)
                product = np.asarray((grad.astype(np.float64) * d).sum())
                weights = {y: seeds.get(s.prefix + y, 1.0) for y in s.sinks}
                wants = self._rounded(self._products(x, d, weights), seeds, self.count + k, grad, _norm(d))
                self._compare(s.mode, s.prefix + x, x, product, wants)
            if progress is not None:
                progress(k + 1, len(s.sources))

    def _quotient(self, x: str, d: Array, h: float) -> dict[str, Array]:
        name = self.probe.name_of[x]
        ends = []
        for sign in (h, -h):
            moved = np.asarray(self.feeds[name] + np.asarray(sign, d.dtype) * d)
            ends.append(self.probe.sinks(self.engines.primal({**self.feeds, name: moved})))
        up, down = ends
        return {y: (up[y].astype(np.float64) - down[y].astype(np.float64)) / (2 * h) for y in up}

    def _differences(self, x: str, d: Array, y: str) -> Any:
        """Difference quotients of a sink with their rounding noise, for ever other steps."""
        size = _norm(self.probe.sinks(self.base)[y])
        for h in self.steps:
            yield self._quotient(x, d, h)[y], 10 * self.epsilon * size / h

    def _products(self, x: str, d: Array, weights: Mapping[str, Any]) -> Any:
        """The same, multiplied by cotangents."""
        base = self.probe.sinks(self.base)
        size = sum(_norm(np.asarray(w * base[y], np.float64)) for y, w in weights.items())
        for h in self.steps:
            q = self._quotient(x, d, h)
            yield (
                np.asarray(sum(float((q[y] * w).sum()) for y, w in weights.items())),
                10 * self.epsilon * size / h,
            )

    def _rounded(self, wants: Any, seeds: Mapping[str, Array], i: int, got: Array, factor: float) -> Any:
        """Expectations, and if none of them agrees the same with the rounding noise of result `i` of the derivative.

        What cancels in the derivative, and does not in the model, leaves noise of its own. It is what changes when the
        point and the seeds move by a few units in the last place; a wrong derivative does not change with that.
        """
        tried = []
        for pair in wants:
            tried.append(pair)
            yield pair
        shaken = {
            k: np.asarray(a * (1 + 4 * self.epsilon * self.rng.standard_normal(a.shape)), a.dtype) if _inexact(a) else a
            for k, a in {**self.feeds, **seeds}.items()
        }
        again = self.engines.derivative(shaken)[i]
        change = 10 * factor * _norm(again.astype(np.float64) - got.astype(np.float64))
        if np.isfinite(change):
            yield from ((want, noise + change) for want, noise in tried)

    def _compare(self, mode: str, result: str, along: str, got: Array, wants: Any) -> None:
        """Compare with the first of several expectations that agrees, else with the nearest."""
        got = np.asarray(got, np.float64)
        best = (np.inf, np.nan)
        for want, noise in wants:
            want = np.asarray(want, np.float64)
            if got.shape != want.shape:
                raise OnnxadError(f"{result!r} has shape {got.shape}, but {want.shape} was expected")
            scale = max(_norm(got), _norm(want), noise / self.tolerance, np.finfo(np.float64).tiny)
            error = _norm(got - want) / scale
            error = np.inf if np.isnan(error) else error
            best = min(best, (error, _number(want)), key=lambda pair: pair[0])
            if error <= self.tolerance:
                break
        self._append(mode, result, along, _number(got), best[1], best[0])

    def _append(self, mode: str, result: str, along: str, got: float, want: float, error: float) -> None:
        self.rows.append(Comparison(mode, result, along, got, want, error, self.tolerance))


class _Probe:
    """The primal with all that is differentiated as an input and all that is seeded as an output.

    A constant becomes an input that is fed its numbers; an inner value gets an offset of zero added.
    """

    def __init__(self, primal: Model, signature: Signature):
        from onnxad_passes.seeds import named_values

        self.model = clone_model(primal)
        graph = self.model.graph
        self.outputs = [v.name for v in graph.outputs]
        values = named_values(graph)
        #: The input to move for each source.
        self.name_of: dict[str, str] = {}
        self.constants: dict[str, Array] = {}
        self.inner: dict[str, int] = {}  # Input that offsets an inner value to the output that shows its shape.
        extra: list[Value] = []
        shown = {v: i for i, v in reversed(list(enumerate(graph.outputs)))}
        gone: set[Value] = set()
        added: dict[Node, list[Node]] = {}
        for x in signature.sources:
            v = values[x]
            if v.is_const:
                gone.add(v)
                numbers = v.numpy()
                assert numbers is not None
                moved = graph.add_input(v.name, v.type)
                self.constants[x] = numbers
                v.replace_by(moved)
                values[x] = moved
                self.name_of[x] = x
            elif v.producer is None:
                graph.defaults.pop(v, None)  # it is fed, which not every engine allows beside a default
                self.name_of[x] = x
            else:
                self.name_of[x] = _fresh(f"offset_{x}", values)
                self.inner[self.name_of[x]] = len(graph.outputs) + len(extra)
                extra.append(v)
                node = _offset(graph, v, self.name_of[x])
                added.setdefault(v.producer, []).append(node)
                values[x] = node.outputs[0]
                if v in shown:
                    shown[values[x]] = shown.pop(v)
        graph.constants = [v for v in graph.constants if v not in gone]
        graph.nodes = [m for n in graph.nodes for m in (n, *added.get(n, ()))]
        self.sink_at: dict[str, int] = {}
        for y in signature.sinks:
            v = values[y]
            if v not in shown:
                shown[v] = len(graph.outputs) + len(extra)
                extra.append(v)
            self.sink_at[y] = shown[v]
        graph.set_outputs([*graph.outputs, *extra])
        self._separate(graph)

    @staticmethod
    def _separate(graph: Graph) -> None:
        """A place of its own for each output, as engines want distinct names."""
        seen: set[Value] = set()
        outputs: list[Value] = []
        for v in graph.outputs:
            if v in seen or v.producer is None or not v.name:
                node = graph.append(Node("Identity", (v,), {}, (f"{v.name}:{len(outputs)}",)))
                node.outputs[0].type = v.type
                v = node.outputs[0]
            seen.add(v)
            outputs.append(v)
        graph.set_outputs(outputs)

    def feeds(self, double: bool) -> dict[str, Array]:
        """What to feed inputs that only the probe has; offsets have one element until shapes are known."""
        wide = {k: a.astype(np.float64) if double else a for k, a in self.constants.items()}
        types = {v.name: v.type for v in self.model.graph.inputs}
        for name in self.inner:
            t: Any = types[name]
            wide[name] = np.zeros((1,) * len(t.shape or ()), np.float64 if double else t.dtype.numpy())
        return wide

    def offsets(self, results: Sequence[Array]) -> dict[str, Array]:
        """Offsets of zero, in the shapes that a run has shown."""
        return {name: np.zeros_like(results[i]) for name, i in self.inner.items()}

    def sinks(self, results: Sequence[Array]) -> dict[str, Array]:
        """The seeded values among the results of a run."""
        return {y: results[i] for y, i in self.sink_at.items()}


def _offset(graph: Graph, v: Value, name: str) -> Node:
    """Add an input to an inner value wherever it is read; the sum, which is not placed yet."""
    loose = v.type
    if isinstance(loose, TensorType) and loose.shape is not None:  # of extents that the first run shows
        loose = TensorType(loose.dtype, tuple(f"{name}_{i}" for i in range(len(loose.shape))))
    node = Node("Add", (None, graph.add_input(name, loose)), {}, (v.name,), graph=graph)
    node.outputs[0].type = v.type
    v.replace_by(node.outputs[0])
    node.set_input(0, v)
    v.name = ""
    return node


def _normal(rng: np.random.Generator, like: Array) -> Array:
    return np.asarray(rng.standard_normal(like.shape)).astype(like.dtype)


def _along(gradient: Array, direction: Array) -> Array:
    """A direction turned towards the gradient, so that its product with it does not cancel by chance."""
    size = _norm(gradient)
    if not 0 < size < np.inf:
        return direction
    return np.asarray(direction + np.asarray(gradient * (_norm(direction) / size)).astype(direction.dtype))


def _fresh(name: str, taken: Mapping[str, Any]) -> str:
    while name in taken:
        name += "_"
    return name


def _inexact(a: Array) -> bool:
    return bool(a.dtype.kind == "f" or a.dtype.name in ("bfloat16", "float16"))


def _norm(a: Array) -> float:
    return float(np.linalg.norm(np.asarray(a, np.float64).reshape(-1)))


def _confirmed(witness: Run | None, feeds: Mapping[str, Array], results: Sequence[Array]) -> bool:
    """False where a witness runs the model in its own precision, and comes to results that no rounding explains."""
    if witness is None:
        return True
    try:
        seen = witness(feeds)
    except Exception:  # engines raise many types, all meaning: not this model at this point
        return True
    for a, b in zip(results, seen, strict=True):
        if _inexact(a) and a.shape == b.shape and np.isfinite(b.astype(np.float64)).all():
            far = _norm(a.astype(np.float64) - b.astype(np.float64))
            if far > _TOLERANCE[False] * max(_norm(a), _norm(b)) + 1e-3 * np.sqrt(a.size):
                return False
    return True


def _number(a: Array) -> float:
    return float(a) if a.ndim == 0 else _norm(a)


def _one_line(e: Exception) -> str:
    text = " ".join(str(e).split())
    return f"{type(e).__name__}: {text[:200]}"
