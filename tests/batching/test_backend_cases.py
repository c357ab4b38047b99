"""onnx's own backend cases and their derivatives, vectorized: against one entry after the other.

Every case is batched in its first floating input and in all of them; every derivative model of a case (but for those that
are other cases, written out), in both modes, in all of its seeds. There, where what is batched is linear, hardly anything needs a Scan.
"""

import re

import numpy as np
import pytest
from backend_cases import cases, generator, is_floating
from support import evaluate

from onnxad_passes import UnsupportedOperator, forward, reverse, run_pipeline
from onnxad_passes.vectorize import Vectorize
from onnxad_rules.ruleset import NotDifferentiable

CHUNKS = 4
N = 2
#: Cases that are not compared, and why.
EXCEPTIONS = {
    r"test_bernoulli.*|test_training_dropout(?!_zero).*": "random",
    r"test_range_b?float16.*|test_range_float_type_positive_delta_expanded": "onnx's reference evaluator stacks scalars "
    "of a Loop as [T, 1]",
    r"test_attention_4d_with_past_and_present_qk_matmul_bias_[34]d_mask_causal": "ONNX Runtime masks by the lowest number",
    r"test_resize_downsample_scales_cubic_align_corners": "ONNX Runtime and the specification disagree",
    r"test_gradient_of_.*": "no engine has the operator",
    r"test_optional_get_element_optional_tensor": "onnx's reference evaluator gives an optional result as a list",
}
#: Cases that cannot be batched: entries of a result would have different extents, or an optional is repeated.
RAGGED = r"test_nonmaxsuppression.*|test_unique.*|test_(resize|upsample).*|test_loop16_seq_none"
#: Cases whose derivatives in reverse mode no engine runs: ONNX Runtime has no layout 1, onnx's evaluator no directions.
BACKWARDS = r"test_(gru|lstm|simple_rnn)_batchwise"
#: Operators that a derivative model may run for one entry after the other.
SCANS = {"MaxUnpool", "Resize"}


def excused(name):
    """Why a case is not compared, None where it is."""
    return next((why for pattern, why in EXCEPTIONS.items() if re.fullmatch(pattern, name)), None)


def entries(rng, x):
    """Entries for an input: itself, and its elements in other orders."""
    x = np.array(x)
    return np.stack([x, *(rng.permutation(x.reshape(-1)).reshape(x.shape) for _ in range(N - 1))])


def compare(model, vectorized, feeds, batched, tolerance=2e-4):
    """Assert that a vectorized model does what the model does for one entry after the other."""
    each = [evaluate(model, {**feeds, **{k: np.asarray(v[i]) for k, v in batched.items()}}) for i in range(N)]
    for k, got in evaluate(vectorized, {**feeds, **batched}).items():
        if not isinstance(got, np.ndarray):
            continue
        want = np.stack([e[k] for e in each]) if got.ndim > np.ndim(each[0][k]) else each[0][k]
        assert got.shape == want.shape, (k, got.shape, want.shape)
        if got.dtype.kind in "OUS":
            assert (got == want).all(), k
            continue
        loose = 2e-2 if got.dtype.name in ("float16", "bfloat16") else tolerance
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        size = np.abs(want[np.isfinite(want)]).max(initial=0)
        np.testing.assert_allclose(got, want, loose, loose * max(size, 1e-3), err_msg=k)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_cases(chunk):
    wrong, done = [], 0
    for case in cases()[chunk::CHUNKS]:
        floats = [k for k, v in case.inputs.items() if isinstance(v, np.ndarray) and is_floating(v)]
        if not floats or excused(case.name):
            continue
        rng = generator(case.name)
        for chosen in dict.fromkeys((tuple(floats[:1]), tuple(floats))):
            try:
                vectorized = run_pipeline(case.model, [Vectorize(chosen, dim="entries")], verify_each=False)
                compare(case.model, vectorized, case.inputs, {k: entries(rng, case.inputs[k]) for k in chosen})
                done += 1
            except UnsupportedOperator as e:
                if not re.fullmatch(RAGGED, case.name):
                    wrong.append(f"{case.name} in {chosen}: {e}")
            except Exception as e:
                wrong.append(f"{case.name} in {chosen}: {type(e).__name__}: {str(e)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert done > 1900 / CHUNKS


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_derivatives(chunk, mode, scans):
    wrong, done = [], 0
    for case in [c for c in cases() if c.differentiable and not c.name.endswith("_expanded")][chunk::CHUNKS]:
        if excused(case.name) or case.name == "test_loop16_seq_none":
            continue
        if mode == "reverse" and re.fullmatch(BACKWARDS, case.name):
            continue
        try:
            if directions(case, mode, scans):
                done += 1
        except Exception as e:
            wrong.append(f"{case.name}: {type(e).__name__}: {str(e)[:300]}")
    assert not wrong, "\n".join(wrong)
    assert done > 900 / CHUNKS


def directions(case, mode, scans):
    """Compare several directions at once with each alone; False where there is no derivative or a seed is no tensor."""
    try:
        derivative = (forward if mode == "forward" else reverse)(case.model, layout="single")
    except NotDifferentiable:
        return False
    prefix = "fwd_" if mode == "forward" else "adj_"
    like = case.inputs if mode == "forward" else case.outputs
    seeds = [i.name for i in derivative.graph.input if i.name.startswith(prefix) and i.name[4:] in like]
    if not all(isinstance(like[s[4:]], np.ndarray) for s in seeds):
        return False
    rng = generator(case.name)
    batched = {s: rng.standard_normal((N, *like[s[4:]].shape)).astype(like[s[4:]].dtype) for s in seeds}
    del scans[:]
    vectorized = run_pipeline(derivative, [Vectorize(tuple(seeds), dim="entries")], verify_each=False)
    assert SCANS.issuperset(scans), scans
    compare(derivative, vectorized, case.inputs, batched)
    return True


def test_every_exception_excuses_something():
    names = [c.name for c in cases()]
    for pattern in (*EXCEPTIONS, RAGGED, BACKWARDS):
        assert any(re.fullmatch(pattern, n) for n in names), pattern
