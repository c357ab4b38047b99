"""Gradient functions of single operators, for every form of their attributes and any shape and type of what is fed."""

import numpy as np
import pytest
from gradient_functions import (
    Case,
    as_type,
    away,
    calling,
    close,
    differences,
    node,
    normal,
    primal,
    rng,
    run,
    run_in_reference,
)
from support import session

from onnxad_passes import gradient_of_function


def pairs(seed, *shapes):
    return [{"a": away(seed + i, *s), "b": away(seed + 50 + i, *t)} for i, (s, t) in enumerate(shapes)]


BROADCAST = [((2, 3), (2, 3)), ((2, 1, 4), (3, 1)), ((3,), (4, 3)), ((), (2, 2)), ((1, 3), (1, 3)), ((1, 1), ())]
PRODUCTS = [
    *(((3, 4), (4, 2)), ((2, 3, 4), (2, 4, 2)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 3), (4, 3, 2)), ((2, 3, 4), (4, 2))),
    *(((3,), (3, 2)), ((2, 3), (3,)), ((3,), (3,)), ((4, 2, 3), (3,)), ((3,), (4, 3, 2))),
]


def image(x, w, bias=True):
    return {"x": normal(30, *x), "w": normal(31, *w)} | ({"b": normal(32, w[0])} if bias else {})


def conv(x, w, bias=False, **attributes):
    names = ["x", "w", *(["b"] if bias else [])]
    second = attributes.pop("second", False)
    return Case(
        node("Conv", names, ["y"], **attributes), image(x, w, bias), " ".join(names), double=False, second=second
    )


def centred(x, axes, epsilon=0.0):
    c = x - x.mean(axes, keepdims=True)
    return c, (c * c).mean(axes, keepdims=True) + epsilon


def group_norm(f):
    c, v = centred(f["x"].reshape(f["x"].shape[0], 2, -1), 2, 1e-5)
    return (c / np.sqrt(v)).reshape(f["x"].shape) * f["s"][:, None] + f["b"][:, None]


def layer_norm(axis):
    def value(f):
        c, v = centred(f["x"], tuple(range(axis, f["x"].ndim)), 1e-5)
        return c / np.sqrt(v) * f["s"] + f.get("b", 0)

    return value


def mean_variance(axes):
    def value(f):
        c, v = centred(f["x"], axes)
        return c / (np.sqrt(v) + 1e-9)

    return value


def reduction(op, axes, keepdims, **attributes):
    names, inits = (["a"], {}) if axes is None else (["a", "ax"], {"ax": np.array(axes, np.int64)})
    n = node(op, names, ["y"], keepdims=keepdims, **attributes)
    return Case(n, [{"a": normal(3, 3, 3, 3)}, {"a": normal(4, 2, 1, 4)}], "a", inits)


NORM = {"x": normal(40, 2, 4, 3), "s": away(41, 4), "b": normal(42, 4)}
SMALL = {"x": normal(40, 2, 2, 2), "s": away(41, 2), "b": normal(42, 2)}
LAST = {"x": normal(43, 2, 3, 4), "s": away(44, 4), "b": normal(45, 4)}
BATCH = NORM | {"m": normal(46, 4), "v": rng(47).uniform(0.5, 2, 4)}
PLANE = {
    "x": normal(48, 3, 2),
    "s": away(49, 2),
    "b": normal(50, 2),
    "m": normal(51, 2),
    "v": rng(52).uniform(0.5, 2, 2),
}
GEMM = {"a": normal(17, 4, 3), "b": normal(18, 2, 4), "c": normal(19, 2)}


def gemm(c, **attributes):
    feeds = {"a": normal(17, 4, 3), "b": normal(18, 2, 4), "c": normal(19, *c)}
    return Case(node("Gemm", ["a", "b", "c"], ["y"], transA=1, transB=1, **attributes), feeds, "a b c")


CASES = {
    **{
        op: Case(node(op, ["a", "b"], ["y"]), pairs(1, *BROADCAST), "a b", second=True)
        for op in ("Add", "Sub", "Mul", "Div")
    },
    "Mul of one": Case(node("Mul", ["a", "b"], ["y"]), pairs(7, ((2, 3), (3,)), ((3,), (2, 3))), "b"),
    **{
        op: Case(
            node(op, ["a"], ["y"]), [{"a": away(9, 2, 3)}, {"a": away(10)}, {"a": away(11, 0, 2)}], "a", second=True
        )
        for op in ("Neg", "Identity", "Relu", "Sigmoid", "Tanh")
    },
    "MatMul": Case(node("MatMul", ["a", "b"], ["y"]), pairs(12, *PRODUCTS), "a b", second=True),
    "Gemm": Case(
        node("Gemm", ["a", "b", "c"], ["y"]),
        {"a": normal(1, 3, 4), "b": normal(2, 4, 2), "c": normal(3, 2)},
        "a b c",
        second=True,
    ),
    **{f"Gemm with C {c}": gemm(c, alpha=0.5, beta=-1.5) for c in ((2,), (3, 2), (3, 1), (1, 2), (1,), ())},
    "Gemm transA": Case(
        node("Gemm", ["a", "b"], ["y"], transA=1, alpha=2.0), {"a": normal(1, 4, 3), "b": normal(2, 4, 2)}, "a b"
    ),
    "Conv": conv((2, 2, 4, 5), (3, 2, 2, 3), True),
    "Conv small": conv((1, 2, 2, 3), (1, 2, 2, 2), second=True),
    "Conv remainder": conv((1, 1, 6, 5), (2, 1, 2, 2), strides=[3, 2], kernel_shape=[2, 2]),
    "Conv everything": conv(
        (1, 4, 6, 7), (4, 2, 2, 2), True, pads=[1, 0, 2, 1], strides=[2, 1], dilations=[1, 2], group=2
    ),
    "Conv depthwise": conv((2, 3, 4, 4), (3, 1, 3, 3), pads=[1, 1, 1, 1], group=3),
    "Conv multiplied": conv((1, 2, 4, 4), (6, 1, 2, 2), group=2, strides=[2, 2]),
    "Conv 1": conv((2, 2, 7), (3, 2, 3), True, strides=[2], pads=[1, 1]),
    "Conv 1 bare": conv((2, 2, 7), (3, 2, 3)),
    "Conv 3": conv((1, 1, 3, 4, 3), (2, 1, 2, 2, 2), strides=[1, 2, 1]),
    "Conv 3 bare": conv((1, 1, 3, 4, 3), (2, 1, 2, 2, 2)),
    **{
        f"Conv {pad}": conv((1, 1, 5, 4), (2, 1, 2, 3), auto_pad=pad, strides=[2, 1])
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID")
    },
    "BatchNormalization": Case(
        node("BatchNormalization", list("xsbmv"), ["y"], epsilon=0.01), [BATCH, PLANE], "x s b m v", second=True
    ),
    "BatchNormalization training": Case(
        node("BatchNormalization", list("xsbmv"), ["y", "m2", "v2"], training_mode=1, epsilon=0.01),
        [BATCH, PLANE],
        "x s b",
        second=True,
    ),
    "GroupNormalization": Case(
        node("GroupNormalization", list("xsb"), ["y"], num_groups=2), NORM, "x s b", oracle=group_norm, second=True
    ),
    "InstanceNormalization": Case(
        node("InstanceNormalization", list("xsb"), ["y"]), SMALL, "x s b", double=False, second=True
    ),
    "LayerNormalization": Case(
        node("LayerNormalization", list("xsb"), ["y"]), LAST, "x s b", oracle=layer_norm(2), second=True
    ),
    "LayerNormalization axis": Case(
        node("LayerNormalization", list("xs"), ["y"], axis=1),
        {"x": normal(53, 2, 3, 4), "s": away(54, 3, 4)},
        "x s",
        oracle=layer_norm(1),
    ),
    "LayerNormalization small scale": Case(
        node("LayerNormalization", list("xs"), ["y"], axis=-2),
        {"x": normal(53, 2, 3, 4), "s": away(54, 3, 1)},
        "x s",
        oracle=layer_norm(1),
    ),
    "RMSNormalization": Case(
        node("RMSNormalization", list("xs"), ["y"], axis=-1),
        {"x": normal(53, 2, 3, 4), "s": away(54, 4)},
        "x s",
        opset=23,
        second=True,
        oracle=lambda f: f["x"] / np.sqrt((f["x"] ** 2).mean(-1, keepdims=True) + 1e-5) * f["s"],
    ),
    "LpNormalization 2": Case(
        node("LpNormalization", ["x"], ["y"], axis=1), {"x": away(55, 3, 4, 2)}, "x", second=True
    ),
    "LpNormalization 1": Case(
        node("LpNormalization", ["x"], ["y"], axis=0, p=1),
        {"x": away(56, 3, 4)},
        "x",
        oracle=lambda f: f["x"] / np.abs(f["x"]).sum(0, keepdims=True),
    ),
    "MeanVarianceNormalization": Case(
        node("MeanVarianceNormalization", ["x"], ["y"]),
        {"x": normal(57, 2, 3, 2, 2)},
        "x",
        double=False,
        oracle=mean_variance((0, 2, 3)),
    ),
    "MeanVarianceNormalization axes": Case(
        node("MeanVarianceNormalization", ["x"], ["y"], axes=[1]),
        {"x": normal(57, 2, 5, 2)},
        "x",
        double=False,
        oracle=mean_variance((1,)),
    ),
    "Reshape": Case(
        node("Reshape", ["a", "to"], ["y"]),
        [{"a": normal(1, 2, 3, 4)}, {"a": normal(2, 5, 2)}],
        "a",
        {"to": np.array([0, -1])},
        second=True,
    ),
    "Reshape zero": Case(
        node("Reshape", ["a", "to"], ["y"], allowzero=1), {"a": normal(1, 3, 0)}, "a", {"to": np.array([0, 7])}
    ),
    "Transpose": Case(
        node("Transpose", ["a"], ["y"]), [{"a": normal(1, 2, 3, 4)}, {"a": normal(2, 5)}], "a", second=True
    ),
    "Transpose perm": Case(node("Transpose", ["a"], ["y"], perm=[2, 0, 1]), {"a": normal(1, 2, 3, 4)}, "a"),
    **{
        f"{op} {axes} {keepdims}": reduction(op, axes, keepdims)
        for op in ("ReduceSum", "ReduceMean")
        for axes in (None, [0, -1], [1], [-2], [2, 0, 1], [])
        for keepdims in (0, 1)
    },
    **{
        f"{op} noop": reduction(op, axes, 1, noop_with_empty_axes=1)
        for op in ("ReduceSum", "ReduceMean")
        for axes in (None, [])
    },
    "ReduceSum given axes": Case(
        node("ReduceSum", ["a", "ax"], ["y"], keepdims=0),
        [{"a": normal(1, 2, 3, 4), "ax": np.array(k)} for k in ([1], [0, 2])],
        "a",
    ),
    "ReduceSum": Case(node("ReduceSum", ["a"], ["y"]), {"a": normal(1, 2, 3)}, "a", second=True),
    "ReduceMean": Case(node("ReduceMean", ["a"], ["y"]), {"a": normal(1, 2, 3)}, "a", second=True),
    "Gather": Case(
        node("Gather", ["a", "i"], ["y"], axis=1),
        [{"a": normal(1, 2, 3), "i": np.array([0, 2, 2], t)} for t in (np.int32, np.int64)],
        "a",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_finite_differences(name):
    case = CASES[name]
    f = case.gradient()
    before = f.SerializeToString(deterministic=True)
    assert before == case.gradient().SerializeToString(deterministic=True)
    forward = case.oracle or primal(case.nodes, case.inits, "y", case.opset)
    for feeds in case.feeds:
        dy = away(7, *np.shape(forward(feeds)))
        wanted = [differences(forward, feeds, x, dy) for x in case.xs]
        for dtype in (np.float64, np.float32) if case.double else (np.float32,):
            given = {k: as_type(v, dtype) for k, v in {**feeds, "dy": dy}.items()}
            for got, w in zip(run(f, given), wanted, strict=True):
                assert got.dtype == dtype
                close(got, w, case.tolerance if dtype == np.float64 else 3e-4)


@pytest.mark.parametrize("name", [k for k, c in CASES.items() if c.second])
def test_second_order(name):
    """The gradient function is a function: its own gradient, against differences of it."""
    case = CASES[name]
    feeds = {**case.feeds[0]}
    f = case.gradient()
    forward = case.oracle or primal(case.nodes, case.inits, "y", case.opset)
    feeds["dy"] = away(7, *np.shape(forward(feeds)))
    second = gradient_of_function(f, [*case.xs, "dy"], f.output[0], case.zs)
    assert list(second.input) == [*case.xs, "dy", *case.zs, "dy_1"]
    assert list(second.output) == [f"grad_{x}" for x in case.xs] + ["grad_dy"]
    weight = away(8, *feeds[case.xs[0]].shape)
    evaluate = run if case.double else run_in_reference
    first = (lambda v: evaluate(f, v)[0]) if not case.double else _session_of(f, feeds)
    for x, got in zip([*case.xs, "dy"], evaluate(second, {**feeds, "dy_1": weight}), strict=True):
        close(got, differences(first, feeds, x, weight), 3e-6)


def _session_of(f, feeds):
    s = session(calling(f, feeds), 0)
    return lambda v: s.run(None, v)[0]
