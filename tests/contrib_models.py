"""Operators of ONNX Runtime against the same functions written in numpy, in double precision.

Each function is checked against ONNX Runtime's kernel, and its finite differences are the reference for both modes, with
static and with symbolic shapes, and for order two.
"""

import numpy as np
from onnx import TensorProto, helper

from onnxad_passes import forward, reverse, run_pipeline
from onnxad_rules.testing import run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal
MS = "com.microsoft"


def model(op, inputs, attrs, results, domain, symbolic, unused=()):
    names = [None if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(
        op, [n or "" for n in names], [*(f"y{i}" for i in range(results)), *unused], domain=domain, **attrs
    )
    infos = []
    for name, x in zip(names, inputs, strict=True):
        if x is not None:
            dtype = TensorProto.FLOAT if x.dtype == np.float64 else helper.np_dtype_to_tensor_dtype(x.dtype)
            shape = [f"{name}_{k}" for k in range(x.ndim)] if symbolic else x.shape
            infos.append(helper.make_tensor_value_info(name, dtype, shape))
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(results)]
    graph = helper.make_graph([node], "g", infos, outputs)
    return helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(MS, 1)]
    )


def single(x):
    return np.asarray(x, np.float32) if np.asarray(x).dtype == np.float64 else x


def central(f, at, ts, h):
    up, down = (f(*(x if t is None else x + s * h * t for x, t in zip(at, ts, strict=True))) for s in (1, -1))
    return [(a - b) / (2 * h) for a, b in zip(up, down, strict=True)]


def check(
    op, f, inputs, attrs=None, wrt=None, domain=MS, second=True, symbolic=True, tol=3e-3, unused=(), kernel=True,
    elements=True,
):  # fmt: skip
    """`f` maps the inputs to a list of results; `wrt` are positions (default: every floating input).

    `unused`: results behind those of `f`. `kernel=False`: there is none here, so that the operator is taken apart first.
    `elements=False`: gradients are compared along one direction only, not element by element.
    """
    inputs = [None if x is None else np.asarray(x) for x in inputs]
    floats = [i for i, x in enumerate(inputs) if x is not None and x.dtype == np.float64]
    wrt = floats if wrt is None else wrt
    names = [f"x{i}" for i in wrt]
    ts = [r(x.shape) if i in wrt else None for i, x in enumerate(inputs)]
    us = [r(x.shape) if i in wrt else None for i, x in enumerate(inputs)]
    values = f(*inputs)
    feeds = {f"x{i}": single(x) for i, x in enumerate(inputs) if x is not None}
    pushed = {f"fwd_x{i}": single(ts[i]) for i in wrt}
    seeds = [r(v.shape) for v in values]
    pulled = {f"adj_y{i}": single(s) for i, s in enumerate(seeds)}
    want = central(f, inputs, ts, 1e-5)
    gradients = []
    for i in wrt if elements else ():
        g = np.zeros(inputs[i].size)
        for k in range(g.size):
            e = np.zeros(g.size)
            e[k] = 1
            one = [e.reshape(x.shape) if j == i else None for j, x in enumerate(inputs)]
            g[k] = sum((d * s).sum() for d, s in zip(central(f, inputs, one, 1e-5), seeds, strict=True))
        gradients.append(g.reshape(inputs[i].shape))
    for shapes in (False, True) if symbolic else (False,):
        primal = model(op, inputs, attrs or {}, len(values), domain, shapes, unused)
        if not kernel:
            primal = run_pipeline(primal, f"decompose{{ops={domain}.{op}}}")
        tangent = forward(primal, inputs=names, layout="single")
        adjoint = reverse(primal, inputs=names, layout="single")
        got = run_in_ort(tangent)({**feeds, **pushed})
        for g, w in zip(got, [*values, *want], strict=True):
            np.testing.assert_allclose(g, w, rtol=tol, atol=tol)
        back = run_in_ort(adjoint)({**feeds, **pulled})[len(values) :]
        assert [g.shape for g in back] == [inputs[i].shape for i in wrt]
        pairs = sum((g * ts[i]).sum() for i, g in zip(wrt, back, strict=True))
        paired = sum((s * w).sum() for s, w in zip(seeds, want, strict=True))
        np.testing.assert_allclose(pairs, paired, rtol=tol, atol=tol * max(1, abs(paired)))
        for g, w in zip(back, gradients, strict=elements):
            np.testing.assert_allclose(g, w, rtol=tol, atol=tol * max(1, np.abs(w).max()))
        if second:
            twice = forward(tangent, inputs=names, outputs=[f"fwd_y{i}" for i in range(len(values))], layout="single")
            moved = {f"fwd2_x{i}": single(us[i]) for i in wrt}
            got = run_in_ort(twice)({**feeds, **pushed, **moved})[2 * len(values) :]
            ends = [
                central(f, [x if u is None else x + s * 1e-3 * u for x, u in zip(inputs, us, strict=True)], ts, 1e-4)
                for s in (1, -1)
            ]
            for g, a, b in zip(got, *ends, strict=True):
                w = (a - b) / 2e-3
                np.testing.assert_allclose(g, w, rtol=20 * tol, atol=20 * tol * max(1, np.abs(w).max()))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
