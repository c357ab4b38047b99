"""Attention and RotaryEmbedding against finite differences."""

import numpy as np
import onnx
import pytest

from onnxad_ir import schema
from onnxad_passes import forward, reverse
from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
B, H, S, T, D, E = 2, 4, 3, 5, 4, 3


def qkv(heads=H, keys=T):
    return [r((B, H, S, D)), r((B, heads, keys, D)), r((B, heads, keys, E))]


def check(inputs, attrs=None, **options):
    options = dict(engine=run_in_reference, single=False) | options
    check_rule("Attention", inputs, attrs or {}, **options)


@pytest.mark.parametrize("heads", [H, 2, 1])
@pytest.mark.parametrize(
    "attrs", [dict(), dict(is_causal=1), dict(softcap=0.7, scale=0.3), dict(is_causal=1, softcap=2.0)]
)
def test_four_dimensional(heads, attrs):
    check(qkv(heads), attrs)


@pytest.mark.parametrize("heads", [H, 2, 1])
def test_three_dimensional(heads):
    attrs = dict(q_num_heads=H, kv_num_heads=heads)
    check([r((B, S, H * D)), r((B, T, heads * D)), r((B, T, heads * E))], attrs)


def masked_rows(*shape):
    mask = R.random(shape) > 0.3
    mask[..., 0] = True
    mask[..., 1, :] = False
    return mask


@pytest.mark.parametrize("attrs", [dict(), dict(is_causal=1)])
@pytest.mark.parametrize("shape", [(S, T), (H, S, T), (B, 1, S, T), (B, H, S, T)])
def test_masks(shape, attrs):
    """Boolean and additive masks, with a row that lets nothing through: its derivatives are zero, not NaN."""
    mask = masked_rows(*shape)
    check([*qkv(2), mask], attrs)
    check([*qkv(2), np.where(mask, r(shape), -np.inf)], attrs, wrt=(0, 1, 2), order=1)
    check([*qkv(2), r(shape)], attrs)


def test_masked_rows_are_finite_in_every_order_and_runtime():
    mask = masked_rows(S, T)
    inputs = [x.astype(np.float32) for x in qkv()]
    model = one_node("Attention", [*inputs, mask], {}, 1, "", 23)
    reverse = differentiate(model, "reverse")
    feeds = {f"x{i}": x for i, x in enumerate([*inputs, mask])} | {"adj_y0": r((B, H, S, E)).astype(np.float32)}
    for level in (0, 99):
        _, dq, dk, dv = run_in_ort(reverse, level)(feeds)
        assert all(np.isfinite(d).all() for d in (dq, dk, dv))
        assert (dq[:, :, 1] == 0).all()
    second = differentiate(reverse, "forward", prefix="d_")
    feeds |= {f"d_{k}": r(v.shape).astype(np.float32) for k, v in feeds.items() if v.dtype == np.float32}
    assert all(np.isfinite(y).all() for y in run_in_ort(second)(feeds))


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_past_and_every_result(mode):
    past = [r((B, 2, 2, D)), r((B, 2, 2, E))]
    # onnx's reference evaluator caps the raw scores of mode 0
    attrs = dict(qk_matmul_output_mode=mode) | (dict(softcap=1.5) if mode else {})
    check([*qkv(2), r((S, T + 2)), *past], attrs, outputs=4)
    check([*qkv(2), None, *past], dict(is_causal=1), outputs=3)
    if mode != 2:  # sums with minus infinity have no finite differences
        check([*qkv(2), masked_rows(S, T + 2), *past], attrs, outputs=4)


def test_results_that_are_left_out_stay_so():
    """onnx allows present_key and present_value together only: the derivative asks for none that the author did not."""
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["y", "", "", "s"], q_num_heads=2, kv_num_heads=2)
    of = {name: onnx.helper.make_tensor_value_info(name, 11, None) for name in "ys"}
    inputs = [onnx.helper.make_tensor_value_info(name, 11, [1, 3, 4]) for name in "qkv"]
    graph = onnx.helper.make_graph([node], "g", inputs, [of["y"], of["s"]])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 23)], ir_version=10)
    for derivative in (forward(model, layout="single"), reverse(model, layout="single")):
        onnx.checker.check_model(derivative, full_check=True)
        assert [list(n.output)[1:3] for n in derivative.graph.node if n.op_type == "Attention"] == [["", ""]]


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("keys", [T, T - 1])
def test_padded_keys(causal, keys):
    # five queries but two keys: the first queries see nothing
    seen = np.array([2, 4], np.int64)
    check([*qkv(2), r((S, keys)), None, None, seen], dict(is_causal=causal), opset=24)
    check([*qkv(2), masked_rows(S, keys), None, None, seen], dict(is_causal=causal), opset=24)


@pytest.mark.parametrize("left, right", [(1, -1), (-1, 1), (1, 0), (0, 2)])
def test_windows(left, right):
    attrs = dict(left_window_size=left, right_window_size=right)
    check(qkv(2), attrs, opset=25)
    check(qkv(2), attrs | dict(is_causal=1), opset=25)
    check([*qkv(2), None, r((B, 2, 2, D)), r((B, 2, 2, E))], attrs, outputs=3, opset=25)


def test_softmax_precision():
    check([x.astype(np.float64) for x in qkv()], dict(softmax_precision=11))


def rotated(x, cos, sin, ids, heads, rotary, interleaved):
    """The operator in numpy."""
    y = x if heads is None else np.moveaxis(x.reshape(*x.shape[:2], heads, -1), 2, 1)
    cos, sin = (c if ids is None else c[ids] for c in (cos, sin))
    cos, sin = cos[:, None], sin[:, None]
    turn, keep = (y, y[..., :0]) if not rotary else (y[..., :rotary], y[..., rotary:])
    half = turn.shape[-1] // 2
    a, b = (turn[..., ::2], turn[..., 1::2]) if interleaved else (turn[..., :half], turn[..., half:])
    pair = a * cos - b * sin, a * sin + b * cos
    turn = np.stack(pair, -1).reshape(turn.shape) if interleaved else np.concatenate(pair, -1)
    y = np.concatenate([turn, keep], -1)
    return y if heads is None else np.moveaxis(y, 1, 2).reshape(x.shape)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rotary", [0, 4])
@pytest.mark.parametrize("rank", [3, 4])
def test_rotary_embedding(rank, rotary, interleaved, positions, constant):
    # the operator has no double precision: finite differences are numpy's
    size, heads = 6, H if rank == 3 else None
    x = r((B, S, H * size) if rank == 3 else (B, H, S, size))
    angle = r((7 if positions else B, *(() if positions else (S,)), (rotary or size) // 2))
    ids = np.array([[0, 2, 1], [6, 5, 2]], np.int64) if positions else None
    inputs = [x, np.cos(angle), np.sin(angle)]
    attrs = dict(interleaved=interleaved, rotary_embedding_dim=rotary) | (
        {} if heads is None else dict(num_heads=heads)
    )
    narrow = [v.astype(np.float32) for v in inputs]
    constants = (1, 2) if constant else ()
    operands = [*narrow, ids] if positions else narrow
    model = one_node("RotaryEmbedding", operands, attrs, 1, "", 23, constants=constants)
    wrt = [0] if constant else [0, 1, 2]
    ts = [r(v.shape) if i in wrt else np.zeros(v.shape) for i, v in enumerate(inputs)]
    ct = r(x.shape)
    up, down = (
        rotated(*(v + s * t for v, t in zip(inputs, ts, strict=True)), ids, heads, rotary, interleaved)
        for s in (1e-5, -1e-5)
    )
    tangent = (up - down) / 2e-5
    feeds = {f"x{i}": v for i, v in enumerate(operands)} | {"adj_y0": ct.astype(np.float32)}
    feeds |= {f"fwd_x{i}": t.astype(np.float32) for i, t in enumerate(ts)}
    got = run_in_reference(differentiate(model, "forward"))(feeds)[1]
    assert np.allclose(got, tangent, atol=1e-4)
    back = run_in_reference(differentiate(model, "reverse"))(feeds)[1:]
    dot = sum((b * ts[i]).sum() for b, i in zip(back, wrt, strict=True))
    assert np.isclose(dot, (ct * tangent).sum(), atol=1e-3)


@pytest.mark.skipif(schema.latest("", "LinearAttention") is None, reason="an onnx without opset 27")
@pytest.mark.parametrize("rule", ["linear", "gated", "gated_delta"])
def test_linear_attention(rule):
    attrs = dict(q_num_heads=2, kv_num_heads=2, update_rule=rule)
    inputs = [0.5 * r((1, 3, 4)), 0.5 * r((1, 3, 4)), r((1, 3, 6)), r((1, 2, 2, 3))]
    inputs += [] if rule == "linear" else [-R.random((1, 3, 2))]
    inputs += [R.random((1, 3, 2))] if "delta" in rule else []
    narrow = [x.astype(np.float32) for x in inputs]
    model = one_node("LinearAttention", narrow, attrs, 2, "", 27)
    feeds = {f"x{i}": x for i, x in enumerate(narrow)}
    ts = {f"fwd_x{i}": r(x.shape).astype(np.float32) for i, x in enumerate(narrow)}
    run = run_in_reference(model)
    h = 1e-2
    up, down = (run({k: v + s * ts[f"fwd_{k}"] for k, v in feeds.items()}) for s in (h, -h))
    got = run_in_reference(differentiate(model, "forward"))(feeds | ts)[2:]
    for g, a, b in zip(got, up, down, strict=True):
        assert np.allclose(g, (a - b) / (2 * h), atol=2e-3)
    seeds = {f"adj_y{i}": r(g.shape).astype(np.float32) for i, g in enumerate(got)}
    back = run_in_ort(differentiate(model, "reverse"))(feeds | seeds)[2:]
    left = sum((seeds[f"adj_y{i}"] * g).sum() for i, g in enumerate(got))
    right = sum((d * ts[f"fwd_x{i}"]).sum() for i, d in enumerate(back))
    assert np.isclose(left, right, rtol=1e-3, atol=1e-3)
