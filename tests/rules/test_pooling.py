"""Pools against finite differences, at every geometry."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal


def apart(shape):
    """Numbers no two of which are close: no maximum changes hands within a finite difference."""
    return (R.permutation(int(np.prod(shape))).reshape(shape) - 7) * 0.1


GEOMETRIES = [
    ((7,), dict(kernel_shape=[3])),
    ((7,), dict(kernel_shape=[3], strides=[2], pads=[1, 0])),
    ((6, 5), dict(kernel_shape=[2, 2], strides=[2, 2])),
    ((6, 5), dict(kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1])),
    ((5, 6), dict(kernel_shape=[3, 2], pads=[1, 1, 2, 0])),
    ((6, 5), dict(kernel_shape=[3, 2], auto_pad="SAME_UPPER", strides=[2, 2])),
    ((6, 5), dict(kernel_shape=[3, 2], auto_pad="SAME_LOWER")),
    ((6, 5), dict(kernel_shape=[2, 3], auto_pad="VALID", strides=[3, 1])),
    ((3, 4, 3), dict(kernel_shape=[2, 2, 1], strides=[1, 2, 2])),
]
CEIL = [
    ((6, 8), dict(kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1)),
    ((6, 5), dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 1], ceil_mode=1)),
]
DILATED = [((7, 6), dict(kernel_shape=[2, 3], dilations=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]))]


@pytest.mark.parametrize("extents, attrs", GEOMETRIES + CEIL + DILATED)
def test_max_pool(extents, attrs):
    check_rule("MaxPool", [apart((2, 3, *extents))], attrs)


@pytest.mark.parametrize("order", [0, 1])
def test_max_pool_with_indices(order):
    check_rule("MaxPool", [apart((2, 3, 5, 6))], dict(kernel_shape=[2, 3], storage_order=order), outputs=2)


@pytest.mark.parametrize("extents, attrs", GEOMETRIES + CEIL + DILATED)
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(extents, attrs, include):
    check_rule("AveragePool", [r((2, 3, *extents))], {**attrs, "count_include_pad": include})


@pytest.mark.parametrize("extents, attrs", [g for g in GEOMETRIES if g[1].get("auto_pad") != "SAME_UPPER"] + DILATED)
@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pool(extents, attrs, p):
    x = r((2, 2, *extents))
    check_rule("LpPool", [x + np.sign(x)], {**attrs, "p": p})


class GlobalMaxPool(OpRun):
    """onnx's own evaluator reduces the wrong axes but in rank 4."""

    op_domain = ""

    def _run(self, x):
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):
    """onnx's own evaluator has none."""

    op_domain = ""

    def _run(self, x, p=2):
        return ((np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


def engine(proto):
    """The reference evaluator with the operators above."""
    evaluator = ReferenceEvaluator(proto, new_ops=[GlobalMaxPool, GlobalLpPool])
    names = {i.name for i in proto.graph.input}
    return lambda feeds: [np.asarray(y) for y in evaluator.run(None, {k: v for k, v in feeds.items() if k in names})]


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 2), (2, 1, 2, 3, 2)])
def test_global_pools(shape):
    check_rule("GlobalAveragePool", [r(shape)])
    check_rule("GlobalMaxPool", [apart(shape)], engine=engine)
    x = r(shape)
    for p in (1, 2, 3):
        check_rule("GlobalLpPool", [x + np.sign(x)], dict(p=p), engine=engine, opset=18)


def test_norm_pools_of_zeros_have_derivative_zero():
    zeros = np.zeros((1, 2, 3, 4), np.float32)
    for op, attrs in (("GlobalLpPool", dict(p=2)), ("LpPool", dict(p=3, kernel_shape=[2, 2]))):
        primal = one_node(op, [zeros], attrs, 1, "", 18)
        for mode, seed in (("forward", "fwd_x0"), ("reverse", "adj_y0")):
            m = differentiate(primal, mode)
            shape = [d.dim_value for d in next(i for i in m.graph.input if i.name == seed).type.tensor_type.shape.dim]
            got = run_in_ort(m)({"x0": zeros, seed: np.ones(shape, np.float32)})[1]
            assert np.array_equal(got, np.zeros_like(got))


PLACES = np.array([[[[0, 3, 5], [14, 16, 23]], [[25, 26, 34], [43, 39, 46]]]], np.int64)
UNPOOL = dict(kernel_shape=[2, 2], strides=[2, 2])


def test_max_unpool():
    check_rule("MaxUnpool", [r((1, 2, 2, 3)), PLACES], UNPOOL)
    # runtimes disagree about places where output_shape differs from the shape inferred; each is differentiated as it is
    x = r((1, 2, 2, 3))
    shape = np.array([1, 2, 5, 7], np.int64)
    check_rule("MaxUnpool", [x, PLACES, shape], UNPOOL, constants=(2,), single=False)
    check_rule("MaxUnpool", [x, PLACES, shape], UNPOOL, single=False)
    t, ct = r(x.shape).astype(np.float32), r(shape).astype(np.float32)
    primal = one_node("MaxUnpool", [t, PLACES, shape], UNPOOL, 1, "", 22)
    feeds = {"x0": t, "x1": PLACES, "x2": shape, "adj_y0": ct}
    unpooled, back = run_in_ort(differentiate(primal, "reverse"))(feeds)
    assert np.isclose((unpooled * ct).sum(), (back * t).sum(), rtol=1e-5)
