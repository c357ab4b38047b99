"""Operands whose rank the model does not tell: what the specification fixes, and what only the run knows."""

import numpy as np
import onnx.parser
import pytest

from onnxad_passes import forward, reverse
from onnxad_rules.testing import differentiate, finite_difference, one_node, run_in_ort, run_in_reference, runner

R = np.random.default_rng(0)
r = R.standard_normal


def shape(*dims):
    return np.asarray(dims, np.int64)


GRID = R.uniform(-0.9, 0.9, (2, 3, 2, 2))
VOLUME = R.uniform(-0.9, 0.9, (1, 3, 1, 2, 3))
#: Of each operator that several ranks are left of, a node for each of two ranks.
SEVERAL = {
    "GridSample": [[r((2, 3, 4, 5)), GRID], [r((1, 2, 3, 4, 5)), VOLUME]],
    "Conv": [[r((2, 3, 5)), r((2, 3, 2))], [r((1, 3, 4, 5)), r((2, 3, 2, 3))]],
    "ConvTranspose": [[r((2, 3, 5)), r((3, 2, 2))], [r((1, 3, 4, 5)), r((3, 2, 2, 3))]],
    "DeformConv": [[r((1, 2, 4, 5)), r((2, 2, 2, 2)), R.uniform(-0.4, 0.4, (1, 8, 3, 4))]],
    "Col2Im": [[r((1, 6, 4)), shape(5), shape(2)], [r((2, 8, 12)), shape(4, 5), shape(2, 2)]],
    "Resize": [[r((3, 4)), None, None, shape(5, 2)], [r((1, 2, 3, 4)), None, None, shape(1, 2, 5, 6)]],
}


@pytest.mark.parametrize("op, which", [(op, i) for op, nodes in SEVERAL.items() for i in range(len(nodes))])
def test_order_two_without_ranks(op, which):
    """Forward over both modes of a model that tells no rank, against differences of those."""
    inputs = SEVERAL[op][which]
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    attrs = {"mode": "linear"} if op in ("GridSample", "Resize") else {}
    (y,) = runner(one_node(op, inputs, attrs, 1, "", 22))(feeds)
    model = one_node(op, inputs, attrs, [y], "", 22, "unknown")
    floats = {k: x for k, x in feeds.items() if x.dtype == np.float64}
    feeds |= {f"s_{k}": shape(*x.shape) for k, x in feeds.items()} | {"adj_y0": r(y.shape)}
    feeds |= {f"fwd_{k}": r(x.shape) for k, x in floats.items()}
    for mode in ("forward", "reverse"):
        first = differentiate(model, mode)
        again = mode == "forward" and op not in ("GridSample", "DeformConv")  # the operator itself, on tangents
        assert again != ("If" in {n.op_type for n in first.graph.node})
        second = differentiate(first, "forward", prefix="d_")
        have = {i.name: feeds[i.name] for i in first.graph.input}
        moved = {k: r(v.shape) for k, v in have.items() if v.dtype == np.float64}
        got = runner(second)({**have, **{f"d_{k}": t for k, t in moved.items()}})
        want = finite_difference(runner(first), have, moved, 1e-5)
        smooth = [w for w, o in zip(want, first.graph.output, strict=True) if o.type.tensor_type.elem_type == 11]
        for g, w in zip(got[-len(smooth) :], smooth, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-6)


BRANCHES = """
<ir_version: 10, opset_import: ["" : 20]>
m (double[m, k] data, int64[rank] s, bool c, double[n, p, q, two] grid) => (double[w] y) {
  flat = Constant<value_ints = [-1]>()
  x = Reshape(data, s)
  z = If (c) <
    then_branch = sampled () => (double[u] a) { b = GridSample(x, grid) a = Reshape(b, flat) },
    else_branch = squared () => (double[v] d) { e = Mul(x, x) d = Reshape(e, flat) }
  >
  y = Identity(z)
}
"""


@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("taken, dims", [(True, (1, 2, 3, 4)), (False, (4, 6)), (False, (2, 3, 4))])
def test_what_a_branch_asks_for_does_not_hold_outside_of_it(mode, taken, dims):
    """GridSample has an image; where it is not run, the same value may be anything."""
    model = onnx.parser.parse_model(BRANCHES)
    wrt, layout = ["data", "grid"], "single"
    d = (forward if mode == "forward" else reverse)(model, wrt, layout=layout)
    feeds = {"data": r((4, 6)), "s": shape(*dims), "c": np.asarray(taken), "grid": R.uniform(-0.9, 0.9, (1, 2, 3, 2))}
    t = {k: r(feeds[k].shape) for k in wrt}
    want = finite_difference(runner(model), feeds, t, 1e-5)[0]
    ct = r(want.shape)
    seeds = {f"fwd_{k}": v for k, v in t.items()} if mode == "forward" else {"adj_y": ct}
    got = runner(d)({**feeds, **seeds})[1:]
    if mode == "forward":
        np.testing.assert_allclose(got[0], want, rtol=1e-6, atol=1e-7)
    else:
        pairing = sum(float((g * v).sum()) for g, v in zip(got, t.values(), strict=True))
        assert pairing == pytest.approx(float((ct * want).sum()), rel=1e-6)


def test_a_rank_that_no_choice_has_fails():
    """A Conv of four spatial axes, where nothing tells that it has as many, is not mistaken for another."""
    inputs = [r((1, 1, 2, 2, 2, 2)), r((1, 1, 2, 2, 2, 2))]
    model = one_node("Conv", inputs, {}, [np.zeros((1, 1, 1, 1, 1, 1))], "", 22, "unknown")
    feeds = {f"x{i}": x for i, x in enumerate(inputs)} | {f"s_x{i}": shape(*x.shape) for i, x in enumerate(inputs)}
    with pytest.raises(Exception, match=r"(?i)reshape"):
        run_in_reference(differentiate(model, "reverse"))({**feeds, "adj_y0": np.ones((1, 1, 1, 1, 1, 1))})


def test_fixed_ranks_cost_no_node():
    """RoiAlign has an image and boxes: the derivative is no longer where the model does not say so."""
    inputs = [r((1, 2, 5, 6)), np.asarray([[0.3, 0.6, 4.4, 3.3]]), np.asarray([0])]
    attrs, y = {"sampling_ratio": 2, "output_height": 2, "output_width": 3}, np.zeros((1, 2, 2, 3))
    counts = []
    for shapes in ("symbolic", "unknown"):
        first = differentiate(one_node("RoiAlign", inputs, attrs, [y], "", 18, shapes), "reverse")
        assert "If" not in {n.op_type for n in first.graph.node}
        counts.append(len(first.graph.node))
    assert counts[1] <= counts[0] + 4  # the four that hide the ranks


def single(*dims):
    return r(dims).astype(np.float32)


MS = "com.microsoft"
TABLES = [
    np.cos(np.arange(12.0)).reshape(6, 2).astype(np.float32),
    np.sin(np.arange(12.0)).reshape(6, 2).astype(np.float32),
]
ATTENTION = [single(2, 3, 8), single(2, 5, 8), single(2, 5, 8)]
APART = [single(2, 3, 8), single(2, 2, 5, 4), single(2, 2, 5, 4)]
SEQUENCES = [np.full(2, 2, np.int32), np.asarray(3, np.int32)]
GROUPED = [single(2, 3, 16), single(2, 3, 8), single(2, 3, 8), single(2, 1, 0, 8), single(2, 1, 0, 8), *SEQUENCES]
KEYS = np.asarray([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)


@pytest.mark.parametrize(
    "op, inputs, attrs, outputs",
    [
        ("FusedMatMul", [single(4, 2, 3), single(2, 4, 5)], dict(transA=1, transBatchA=1), 1),
        ("RotaryEmbedding", [single(2, 2, 3, 4), np.asarray([[0, 2, 1], [3, 4, 5]]), *TABLES], {}, 1),
        ("RotaryEmbedding", [single(2, 3, 8), np.asarray([1]), *TABLES], {}, 1),
        ("MultiHeadAttention", ATTENTION, dict(num_heads=2), 1),
        ("MultiHeadAttention", [*ATTENTION, None, KEYS.sum(1).astype(np.int32)], dict(num_heads=2), 1),
        ("MultiHeadAttention", APART, dict(num_heads=2), 1),
        ("Attention", [single(2, 5, 6), single(6, 12), single(12), KEYS], dict(num_heads=2), 1),
        ("GroupQueryAttention", GROUPED, dict(num_heads=2, kv_num_heads=1), 3),
        ("SkipLayerNormalization", [single(2, 3, 4), single(2, 3, 4), single(4)], {}, 1),
    ],
)
def test_operators_of_onnx_runtime(op, inputs, attrs, outputs):
    """Without ranks the same as with them."""
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    ys = run_in_ort(one_node(op, inputs, attrs, outputs, MS, 18))(feeds)
    feeds |= {f"s_{k}": shape(*x.shape) for k, x in feeds.items()} | {
        f"adj_y{i}": single(*y.shape) for i, y in enumerate(ys)
    }
    feeds |= {f"fwd_{k}": single(*x.shape) for k, x in feeds.items() if x.dtype == np.float32}
    for mode in ("forward", "reverse"):
        want, got = (
            run_in_ort(differentiate(one_node(op, inputs, attrs, ys, MS, 18, shapes), mode))(feeds)
            for shapes in ("static", "unknown")
        )
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)
