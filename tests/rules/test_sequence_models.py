"""Fused operators of sequence models. Those that have no double precision are compared in single."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxad_passes import forward, reverse
from onnxad_rules.testing import check_rule, differentiate, finite_difference, one_node, run_in_reference, runner

R = np.random.default_rng(0)
r = R.standard_normal
PREVIEW = "ai.onnx.preview"


def region(name, lines):
    return onnx.parser.parse_graph(f"{name} (double[B,H,L,S] s) => (double[B,H,L,S] out) {{ {lines} }}")


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
@pytest.mark.parametrize("attrs", [{}, dict(scale=0.3), dict(softmax_precision=int(TensorProto.DOUBLE))])
def test_flex_attention(heads, attrs):
    q, k, v = r((2, heads[0], 3, 4)), r((2, heads[1], 5, 4)), r((2, heads[1], 5, 2))
    options = dict(domain=PREVIEW, engine=run_in_reference, single=False)
    check_rule("FlexAttention", [q, k, v], attrs, **options)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_flex_attention_with_modifiers(heads):
    q, k, v = r((1, heads[0], 3, 4)), r((1, heads[1], 5, 4)), r((1, heads[1], 5, 2))
    attrs = dict(score_mod=region("cap", "out = Tanh(s)"), prob_mod=region("square", "out = Mul(s, s)"))
    options = dict(domain=PREVIEW, engine=run_in_reference, single=False, symbolic=False)
    check_rule("FlexAttention", [q, k, v], attrs, **options)


def test_a_modifier_that_reads_a_differentiated_value():
    """Of a value from outside the region: y = softmax(q k + b) v, against the same in numpy."""
    q, k, v, b = r((1, 2, 3, 4)), r((1, 2, 5, 4)), r((1, 2, 5, 2)), r((5,))
    node = helper.make_node(
        "FlexAttention", ["q", "k", "v"], ["y"], domain=PREVIEW, score_mod=region("bias", "out = Add(s, b)")
    )
    names = dict(q=q, k=k, v=v, b=b)
    ins = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, x.shape) for n, x in names.items()]
    out = helper.make_tensor_value_info("y", TensorProto.DOUBLE, (1, 2, 3, 2))
    graph = helper.make_graph([node], "g", ins, [out])
    imports = [helper.make_opsetid("", 26), helper.make_opsetid(PREVIEW, 1)]
    d = differentiate(helper.make_model(graph, opset_imports=imports, ir_version=12), "reverse")
    seed = r((1, 2, 3, 2))
    keep = [n for n in d.graph.node if n.op_type != "FlexAttention"]  # nobody runs it; the derivative does not need it
    del d.graph.node[:]
    d.graph.node.extend(keep)
    del d.graph.output[0]
    got = run_in_reference(d)({**names, "adj_y": seed})

    def f(q, k, v, b):
        s = q @ k.swapaxes(2, 3) / 2 + b
        p = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
        return float((p @ v * seed).sum())

    for (name, x), g in zip(names.items(), got, strict=True):
        t, h = r(x.shape), 1e-5
        want = (f(**{**names, name: x + h * t}) - f(**{**names, name: x - h * t})) / (2 * h)
        assert float((g * t).sum()) == pytest.approx(want, rel=1e-7), name


@pytest.mark.parametrize("flex_first", [True, False])
def test_what_a_modifier_computes_is_not_taken_from_elsewhere(flex_first):
    """The slope of Sin(b) is Cos(b), which the region computes as well: it is a part of another derivative there."""
    names = dict(q=r((1, 2, 3, 4)), k=r((1, 2, 5, 4)), v=r((1, 2, 5, 2)), b=r((5,)))
    mods = dict(
        score_mod=region("bias", "t = Cos(b) out = Add(s, t)"), prob_mod=region("p", "t = Cos(b) out = Mul(s, t)")
    )
    nodes = [
        helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain=PREVIEW, **mods),
        helper.make_node("Sin", ["b"], ["z"]),
    ]
    ins = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, x.shape) for n, x in names.items()]
    outs = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in (("y", (1, 2, 3, 2)), ("z", (5,)))]
    graph = helper.make_graph(nodes if flex_first else nodes[::-1], "g", ins, outs)
    imports = [helper.make_opsetid("", 26), helper.make_opsetid(PREVIEW, 1)]
    primal = helper.make_model(graph, opset_imports=imports, ir_version=12)

    def f(q, k, v, b):
        p = np.exp(q @ k.swapaxes(2, 3) / 2 + np.cos(b))
        return p / p.sum(-1, keepdims=True) * np.cos(b) @ v

    def run(m, feeds):
        """The model with the value of FlexAttention, which nobody runs and no derivative computes again, put in."""
        assert sum(n.op_type == "FlexAttention" for n in m.graph.node) == 1
        keep = [n for n in m.graph.node if n.op_type != "FlexAttention"]
        del m.graph.node[:]
        m.graph.node.extend(keep)
        m.graph.initializer.append(onnx.numpy_helper.from_array(f(*(feeds[k] for k in names)), "y"))
        return dict(zip([o.name for o in m.graph.output], run_in_reference(m)(feeds), strict=True))

    t, h = {n: r(x.shape) for n, x in names.items()}, 1e-5
    seeds = {"adj_y": r((1, 2, 3, 2)), "adj_z": r((5,))}
    up, down = ({n: x + s * t[n] for n, x in names.items()} for s in (h, -h))
    want = (f(**up) - f(**down)) / (2 * h)
    got = run(forward(primal, layout="single"), {**names, **{f"fwd_{n}": x for n, x in t.items()}})
    np.testing.assert_allclose(got["fwd_y"], want, rtol=1e-6, atol=1e-8)
    adj = reverse(primal, layout="single")
    second = forward(adj, list(names), [f"adj_{n}" for n in names], prefix="d_", layout="single")
    a, b = (run(onnx.ModelProto.FromString(adj.SerializeToString()), {**x, **seeds}) for x in (up, down))
    got = run(second, {**names, **seeds, **{f"d_{n}": x for n, x in t.items()}})
    along = sum(float((got[f"adj_{n}"] * x).sum()) for n, x in t.items())
    expected = float((want * seeds["adj_y"]).sum() + (seeds["adj_z"] * np.cos(names["b"]) * t["b"]).sum())
    assert along == pytest.approx(expected, rel=1e-6)
    for n in names:
        differences = (a[f"adj_{n}"] - b[f"adj_{n}"]) / (2 * h)
        np.testing.assert_allclose(got[f"d_adj_{n}"], differences, rtol=1e-5, atol=1e-7)


def check_single(op, inputs, attrs, outputs=2):
    """Reverse and forward against finite differences in single precision."""
    single = [None if x is None else x.astype(np.float32) for x in inputs]
    feeds = {f"x{i}": x for i, x in enumerate(single) if x is not None}
    run = runner(one_node(op, single, attrs, outputs, "", 28))
    ys = run(feeds)
    p = one_node(op, single, attrs, ys, "", 28)
    ts = {k: r(x.shape).astype(np.float32) for k, x in feeds.items()}
    want = finite_difference(run, feeds, ts, 1e-2)
    got = runner(differentiate(p, "forward"))({**feeds, **{f"fwd_{k}": t for k, t in ts.items()}})
    for g, w in zip(got[len(ys) :], want, strict=True):
        np.testing.assert_allclose(g, w, rtol=5e-3, atol=5e-3)
    seeds = {f"adj_y{i}": r(y.shape).astype(np.float32) for i, y in enumerate(ys)}
    back = runner(differentiate(p, "reverse"))({**feeds, **seeds})[len(ys) :]
    pairing = sum(float((g * t).sum()) for g, t in zip(back, ts.values(), strict=True))
    expected = sum(float((s * w).sum()) for s, w in zip(seeds.values(), want, strict=True))
    assert pairing == pytest.approx(expected, rel=5e-3, abs=5e-3)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_linear_attention(rule, heads):
    batch, steps, dk, dv = 1, 3, 2, 3
    q, k, v = (r((batch, steps, n)) * 0.5 for n in (heads[0] * dk, heads[1] * dk, heads[1] * dv))
    state = r((batch, heads[1], dk, dv))
    decay = -np.abs(r((batch, steps, heads[1]))) if "gated" in rule else None
    beta = R.uniform(0.2, 0.8, (batch, steps, heads[1])) if "delta" in rule else None
    inputs = [q, k, v, state, decay, beta]
    while inputs[-1] is None:
        inputs.pop()
    check_single("LinearAttention", inputs, dict(q_num_heads=heads[0], kv_num_heads=heads[1], update_rule=rule))


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("optional", [True, False])
def test_causal_convolution(activation, optional):
    inputs = [r((2, 3, 5)), r((3, 1, 4))] + ([r((3,)), r((2, 3, 3))] if optional else [])
    check_single("CausalConvWithState", inputs, dict(activation=activation))
