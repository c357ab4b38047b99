"""Every differentiable model among onnx's backend test cases, in both modes and at order two, against differences.

In double precision wherever an engine runs it so, along random directions, at the recorded point or, where that is a
kink, near it. The derivatives of the models as they are, in their own precision, have to be valid models and to give
the same numbers.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from backend_cases import (
    NotSmooth,
    Runner,
    cases,
    differences,
    direction_at,
    dot,
    generator,
    in_double,
    is_floating,
    leaves,
    nearby,
    tree,
)

from onnxad_passes import forward, reverse

CHUNKS = 48
#: Cases that are not compared, by name, and why.
EXCEPTIONS = {
    "test_bernoulli.*": "random",
    "test_training_dropout(_default)?(_mask)?": "random",
    "test_gradient_of_.*": "no engine has the operator Gradient",
    "test_(gru|lstm|simple_rnn)_batchwise": "layout=1 runs in the reference evaluator only, Scan backwards elsewhere only",
    "test_range_float(16)?_type_positive_delta_expanded": "the quotient that is rounded up is a whole number",
    "test_range_bfloat16_.*_expanded": "bfloat16 runs in the reference evaluator only, Scan backwards elsewhere only",
    "test_mod_float_edge_cases_fmod_0_.*": "divisors of zero and infinity: a difference steps over jumps everywhere nearby",
}
#: Operands that are declared not differentiable, by operator and position: inputs that feed them are left out.
WITHHELD = {
    ("Resize", 2): "the scales decide the shape",
    ("Upsample", 1): "the scales decide the shape",
    ("OneHot", 0): "the indices are whole numbers",
    ("OneHot", 1): "the depth decides the shape",
}
#: Cases whose primal is not run in double precision, as the reference evaluator takes seconds for it.
SLOW = re.compile("test_(averagepool|lppool)_3d_default|test_lppool_2d.*|test_averagepool_2d.*")

#: By the type in which the primal runs: how far a derivative may be off, relative to its largest element ...
TOLERANCE = {"float64": 1e-6, "float32": 5e-3, "float16": 0.1, "bfloat16": 0.2}
#: ... the step of differences, and the unit of rounding.
STEP = {"float64": 1e-5, "float32": 1e-2, "float16": 5e-2, "bfloat16": 0.1}
EPSILON = {"float64": 2.3e-16, "float32": 1.2e-7, "float16": 1e-3, "bfloat16": 8e-3}
#: How far a derivative in a type may be off from the one in double precision.
OWN_TOLERANCE = {"float64": 1e-9, "float32": 2e-4, "float16": 3e-2, "bfloat16": 0.2}


class Derivatives:
    """Forward, reverse and forward of reverse of a model, ready to run."""

    def __init__(self, model, inputs, level=0, check=True):
        self.own = {o.name for o in model.graph.output}
        self.forward = forward(model, inputs, layout="single", prefix="fwd_")
        self.reverse = reverse(model, inputs, layout="single", prefix="adj_")
        self.xs = [i.name[4:] for i in self.forward.graph.input if i.name.startswith("fwd_")]
        self.ys = [o.name[4:] for o in self.forward.graph.output if o.name.startswith("fwd_")]
        self.moved = [*self.xs, *(f"adj_{y}" for y in self.ys)]
        self.results = [f"adj_{x}" for x in self.xs]
        self.second = forward(self.reverse, self.moved, self.results, layout="single", prefix="d_")
        if check:
            for m in (self.forward, self.reverse, self.second):
                onnx.checker.check_model(m, full_check=full_check_passes(model))
        self.push, self.pull, self.twice = (Runner(m, level) for m in (self.forward, self.reverse, self.second))


def full_check_passes(model):
    """True where onnx's shape inference has nothing to say against a model."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except onnx.shape_inference.InferenceError:
        return False
    return True


class Check:
    """A case. `factors`: what derivatives of a mode are multiplied by before they are compared, to see it noticed."""

    def __init__(self, case, factors=None):
        self.case = case
        self.factors = factors or {}
        self.rng = generator(case.name)
        self.dtype = _narrowest(case)
        self.tolerance = TOLERANCE[self.dtype]
        self.model, self.run = self._primal()

    def _primal(self):
        """The primal in double precision where an engine runs it so and gives the recorded results, else as it is."""
        case = self.case
        if SLOW.fullmatch(case.name):
            return case.model, Runner(case.model)
        try:
            model = in_double(case.model)
            run = Runner(model)
            found = run(case.inputs)
            assert self._as_recorded(found)
            assert any(a.dtype == np.float64 for v in found.values() if is_floating(v) for a in leaves(v))
        except Exception:  # no engine has it in double precision, or it means something else there
            return case.model, Runner(case.model)
        self.dtype, self.tolerance = "float64", TOLERANCE["float64"]
        return model, run

    def _as_recorded(self, found):
        for k, want in self.case.outputs.items():
            for a, b in zip(leaves(found[k]), leaves(want), strict=True):
                if is_floating(b):
                    tolerance = 3e-2 if b.dtype.itemsize < 4 else 1e-3
                    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
                    if a.shape != b.shape or not np.allclose(a, b, tolerance, tolerance, equal_nan=True):
                        return False
        return True

    def all(self):
        """Compare everything."""
        case, withheld = self.case, _withheld(self.case.model)
        inputs = [k for k, v in case.inputs.items() if is_floating(v) and k not in withheld] if withheld else None
        own = Derivatives(case.model, inputs, level=99)
        if not self._as_recorded(Runner(case.model, level=99)(case.inputs)):  # a fault of ONNX Runtime
            for run in (own.push, own.pull, own.twice):
                run.use_reference()
        wide = self._wide(inputs) if self.dtype == "float64" else None
        d = own if wide is None else wide
        if wide is None and self.dtype == "float64":
            self.tolerance = OWN_TOLERANCE[_narrowest(case)]
        feeds, direction, found = self._smooth_point(d)
        base = self.run(feeds)
        seeds = {f"adj_{y}": self._seed(base[y]) for y in d.ys}
        got = self._forward(d, feeds, direction, found)
        grads = self._reverse(d, feeds, seeds, direction, found)
        got2, direction2 = self._second(d, {**feeds, **seeds})
        if d is not own:
            self._own(own, d, feeds, seeds, direction, direction2, (got, grads, got2))

    def _wide(self, inputs):
        """The derivatives in double precision, None where no engine runs them so."""
        d = Derivatives(self.model, inputs, check=False)
        base = self.run(self.case.inputs)
        zeros = {f"fwd_{x}": tree(np.zeros_like, self.case.inputs[x]) for x in d.xs}
        seeds = {f"adj_{y}": tree(np.zeros_like, base[y]) for y in d.ys}
        feeds = {**self.case.inputs, **zeros, **seeds}
        try:
            for run in (d.push, d.pull, d.twice):
                run({**feeds, **{f"d_{k}": tree(np.zeros_like, feeds[k]) for k in d.moved}})
        except Exception:  # no engine has an operator of it in double precision
            return None
        return d

    def _smooth_point(self, d):
        """A point, a direction and the derivatives along it."""
        reasons = []
        form = {k: [a.shape for a in leaves(v)] for k, v in self.case.outputs.items()}
        points = list(nearby(self.rng, self.case.inputs, d.xs))
        first = points[0]
        for feeds, how in [(first, "all"), (first, "together"), *((p, "all") for p in points[1:]), (first, "few")]:
            direction = {k: direction_at(self.rng, feeds[k], how) for k in d.xs}
            try:
                found = self._differences(self.run, feeds, direction, d.ys)
                if any([w.shape for w, _ in found[y]] != form[y] for y in d.ys):
                    raise NotSmooth("the form of a result is not the recorded one")
            except NotSmooth as e:
                reasons.append(str(e))
                continue
            return feeds, direction, found
        raise NotSmooth("; ".join(dict.fromkeys(reasons)))

    def _differences(self, run, feeds, direction, outputs, dtype=None):
        dtype = dtype or self.dtype
        return differences(run, feeds, direction, outputs, STEP[dtype], EPSILON[dtype])

    def _seed(self, y):
        return tree(lambda a: np.asarray(self.rng.standard_normal(a.shape) * np.isfinite(a)), y)

    def _forward(self, d, feeds, direction, found):
        got = d.push({**feeds, **{f"fwd_{k}": t for k, t in direction.items()}})
        got = {k: got[f"fwd_{k}"] for k in d.ys}
        self._compare("forward", got, found, self.tolerance)
        return got

    def _reverse(self, d, feeds, seeds, direction, found):
        grads = d.pull({**feeds, **seeds})
        self._product("all", grads, feeds, seeds, direction, found)
        for k in d.xs:
            along = {k: direction_at(self.rng, feeds[k])}
            try:
                alone = self._differences(self.run, feeds, along, d.ys)
            except NotSmooth:
                continue
            self._product(k, grads, feeds, seeds, along, alone)
        return {k: grads[k] for k in d.results}

    def _product(self, what, grads, feeds, seeds, along, found):
        """The gradients times a direction, against the seeds times the derivatives along it."""
        if any(np.isnan(w).any() for row in found.values() for w, _ in row):
            # beside results that are not finite, gradients need not be: they are not moved along
            along = {
                k: tree(lambda a, g: np.where(np.isfinite(g), a, 0), a, grads[f"adj_{k}"]) for k, a in along.items()
            }
            found = self._differences(self.run, feeds, along, found)
        terms = [
            (np.nan_to_num(w) * u, noise * float(np.linalg.norm(u)))
            for y, row in found.items()
            for (w, noise), u in zip(row, leaves(seeds[f"adj_{y}"]), strict=True)
        ]
        left = self.factors.get("reverse", 1.0) * sum(dot(grads[f"adj_{k}"], t) for k, t in along.items())
        right = sum(float(w.sum()) for w, _ in terms)
        size = np.sqrt(sum(float(np.square(w).sum()) for w, _ in terms))
        bound = self.tolerance * max(size, abs(right)) + 4 * sum(noise for _, noise in terms)
        assert abs(left - right) <= bound, f"reverse in {what}: {left:.9g}, not {right:.9g}"

    def _second(self, d, feeds):
        """Forward of reverse against differences of reverse; what it gave, and along what."""
        direction = {k: direction_at(self.rng, feeds[k]) for k in d.moved}
        got = d.twice({**feeds, **{f"d_{k}": t for k, t in direction.items()}})
        got = {k: got[f"d_{k}"] for k in d.results}
        dtype = self.dtype if d.pull.dtype == np.float64 or self.dtype != "float64" else "float32"
        try:
            found = self._differences(d.pull, feeds, direction, d.results, dtype)
        except NotSmooth:
            return got, direction
        self._compare("order two", got, found, (10 if dtype == "float64" else 3) * TOLERANCE[dtype])
        return got, direction

    def _compare(self, what, got, wants, tolerance):
        """Values against differences."""
        for k, want in wants.items():
            for g, (w, noise) in zip(leaves(got[k]), want, strict=True):
                g = np.asarray(g, np.float64) * self.factors.get(what, 1.0)
                assert g.shape == w.shape, f"{what} of {k}: shape {g.shape}, not {w.shape}"
                at = ~np.isnan(w)
                top = np.abs(w[at]).max(initial=0)
                error = np.abs(g[at] - w[at]).max(initial=0)
                assert error <= tolerance * top + 4 * noise, f"{what} of {k}: off by {error:.3g} of {top:.3g}"

    def _own(self, own, d, feeds, seeds, direction, direction2, expected):
        """The derivatives of the model as it is, against those in double precision."""
        feeds = {**feeds, **seeds}
        tangents = {f"fwd_{k}": t for k, t in direction.items()}
        twice = {f"d_{k}": t for k, t in direction2.items()}
        found = (
            {k: own.push({**feeds, **tangents})[f"fwd_{k}"] for k in d.ys},
            {k: own.pull(feeds)[k] for k in d.results},
            {k: own.twice({**feeds, **twice})[f"d_{k}"] for k in d.results},
        )
        kind = _narrowest(self.case)
        for what, got, want in zip(("forward", "reverse", "order two"), found, expected, strict=True):
            size = max(np.abs(a[np.isfinite(a)]).max(initial=0) for w in want.values() for a in leaves(w))
            bound = OWN_TOLERANCE[kind] * float(size) + (3e-5 if kind == "float32" else 20 * EPSILON[kind]) * (
                10 if what == "order two" else 1
            )
            for k, w in want.items():
                for a, b in zip(leaves(got[k]), leaves(w), strict=True):
                    at = np.isfinite(b)
                    a, b = np.asarray(a, np.float64)[at], np.asarray(b, np.float64)[at]
                    error = np.abs(a - b).max(initial=0)
                    assert error <= bound, f"{what} of {k} in {kind}: off by {error:.3g} of {size:.3g}"


def _narrowest(case):
    kinds = {a.dtype.name for v in (*case.inputs.values(), *case.outputs.values()) if is_floating(v) for a in leaves(v)}
    return max(kinds, key=EPSILON.__getitem__)


def _withheld(model):
    """The inputs that feed operands which are declared not differentiable."""
    return {x for n in model.graph.node for i, x in enumerate(n.input) if (n.op_type, i) in WITHHELD}


def excused(name):
    """Why a case is not compared, None where it is."""
    return next((why for pattern, why in EXCEPTIONS.items() if re.fullmatch(pattern, name)), None)


def compared():
    """The cases that are compared."""
    return [c for c in cases() if c.differentiable and excused(c.name) is None]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_derivatives(chunk):
    wrong = []
    for case in compared()[chunk::CHUNKS]:
        try:
            Check(case).all()
        except Exception as e:
            wrong.append(f"{case.name}: {type(e).__name__}: {str(e)[:300]}")
    assert not wrong, "\n".join(wrong)


def test_nearly_all_are_compared():
    names = [c.name for c in cases() if c.differentiable]
    assert len(compared()) > 1450
    for pattern in EXCEPTIONS:
        assert any(re.fullmatch(pattern, n) for n in names), f"{pattern} excuses nothing"


@pytest.mark.parametrize("mode", ["forward", "reverse", "order two"])
@pytest.mark.parametrize(
    "name",
    """test_matmul_2d test_basic_conv_with_padding test_softmax_axis_0 test_layer_normalization_2d_axis1 test_gelu_tanh_1
    test_reduce_prod_keepdims_random test_attention_4d test_lstm_defaults test_swiglu_float16 test_mul_bcast
    test_causal_conv_with_state_basic test_sequence_map_add_2_sequences""".split(),
)
def test_a_derivative_off_by_two_percent_is_noticed(name, mode):
    (case,) = [c for c in cases() if c.name == name]
    with pytest.raises(AssertionError, match=f"{mode} (of|in)"):
        Check(case, {mode: 1.02}).all()
