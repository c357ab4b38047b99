"""Random graphs: several directions in every layout, and dense Jacobians, against one direction after the other."""

import numpy as np
import pytest
from random_models import Drawn
from test_fuzz import Engine
from test_layouts import packed

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import run_pipeline
from onnxad_passes.forward import Forward
from onnxad_passes.jacobian import Jacobian
from onnxad_passes.reverse import Reverse

#: Some that were wrong once, and others.
SEEDS = (1, 2, 8, 22, 24, 32, 53, 60, 101)


def close(got, want, tolerance, what):
    assert got.shape == want.shape, (what, got.shape, want.shape)
    scale = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0))
    np.testing.assert_allclose(got, want, tolerance, tolerance * scale, err_msg=str(what))


def added(model, derivative):
    ins, outs = (
        [v.name for v in getattr(derivative.graph, k)][len(getattr(model.graph, k)) :] for k in ("input", "output")
    )
    return ins, outs


@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed):
    drawn = Drawn(seed)
    model, names, _ = drawn.model()
    rng = np.random.default_rng(seed)
    inputs = None if names is None else tuple(names)
    values = {**drawn.values, **drawn.weights, **drawn.inputs}
    for kind in (Forward, Reverse):
        one = run_pipeline(model, [kind(inputs, prefix="d_")])
        seeds, results = added(model, one)
        directions = {s: rng.standard_normal((3, *np.shape(values[s[2:]]))) for s in seeds}
        run = Engine(one)
        each = [run({**drawn.inputs, **{s: v[k] for s, v in directions.items()}}) for k in range(3)]
        for layout in ("casadi", "onnx", "leading"):
            try:
                several = run_pipeline(model, [kind(inputs, prefix="d_", layout=layout)])
            except UsageError as e:
                assert layout == "casadi" and "unknown rank" in str(e)
                continue
            got = Engine(several)({**drawn.inputs, **{s: packed(v, layout) for s, v in directions.items()}})
            for r in results:
                close(got[r], packed(np.stack([e[r] for e in each]), layout), 1e-9, (kind.name, layout, r))
    # a Jacobian times cotangents is what reverse mode gives for them: `one` is its model now
    cotangents = {s: v[0] for s, v in directions.items()}
    for mode in ("auto", "forward", "reverse"):
        got = Engine(run_pipeline(model, [Jacobian(inputs, prefix="j_", mode=mode)]))(drawn.inputs)
        for r in results:
            x = r[2:-2] if r.endswith("_1") and r[:-2] in seeds else r[2:]
            blocks = {s: got[f"j_{s[2:]}_{x}"] for s in seeds}
            for s, b in blocks.items():
                assert b.shape == np.shape(values[s[2:]]) + np.shape(values[x])
            total = sum(np.tensordot(ct, blocks[s], ct.ndim) for s, ct in cotangents.items())
            close(np.asarray(total), each[0][r], 1e-8, (mode, x))
