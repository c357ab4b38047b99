"""RNN, GRU and LSTM, whose equations are differentiated in double precision and whose fused kernels in single."""

import numpy as np
import pytest
from onnx import TensorProto
from orders import check_model, close
from recurrent_models import VARIANTS, label, recurrent
from support import evaluate

from onnxad_passes import forward, reverse, run_pipeline

SMOOTH = [v for v in VARIANTS if "clip" not in v[1]]


@pytest.mark.parametrize("variant", SMOOTH, ids=map(label, SMOOTH))
def test_equations_against_finite_differences(variant):
    op, options = variant
    m, feeds = recurrent(op, dtype=np.float64, **options)
    order = 2 if options.get("direction") == "reverse" or "peepholes" in options else 1
    check_model(run_pipeline(m, "lower-rnn"), feeds, order=order, tolerance=1e-6)


def narrow(feeds):
    return {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in feeds.items()}


@pytest.mark.parametrize("variant", VARIANTS, ids=map(label, VARIANTS))
def test_fused_operator_against_the_equations(variant):
    """Both modes and forward of reverse of the float operator against those of the equations in double."""
    op, options = variant
    m, _ = recurrent(op, **options)
    exact, feeds = recurrent(op, dtype=np.float64, **options)
    exact = run_pipeline(exact, "lower-rnn")
    rng = np.random.default_rng(5)
    base = evaluate(exact, feeds, 0)
    seeds = {f"adj_{k}": rng.standard_normal(v.shape) for k, v in base.items()}
    tangents = {f"fwd_{k}": rng.standard_normal(v.shape) for k, v in feeds.items() if v.dtype != np.int32}
    feeds = {**feeds, **seeds, **tangents}
    models = {}
    for mode in (forward, reverse):
        got, want = mode(m, layout="single"), mode(exact, layout="single")
        assert op in {n.op_type for n in got.graph.node}  # its value still comes from the kernel
        models[mode] = got, want
    got, want = models[reverse]
    xs = [i.name for i in got.graph.input if i.type.tensor_type.elem_type == TensorProto.FLOAT]
    second = {f"d_{x}": rng.standard_normal(feeds[x].shape) for x in xs}
    models["second"] = tuple(forward(g, xs, layout="single", prefix="d_") for g in (got, want))
    for name, (got, want) in models.items():
        expected = evaluate(want, {**feeds, **second}, 0)
        for level in (0, 99):
            found = evaluate(got, narrow({**feeds, **second}), level)
            for k, v in expected.items():
                close(found[k], v, 1e-4 if name == "second" else 2e-5, (name, level, k))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_the_sweep_back_holds_the_recurrence_only(op):
    m, _ = recurrent(op, outputs=["Y"])
    adj = reverse(m, layout="single")
    for n in adj.graph.node:
        if n.op_type == "Scan":
            body = next(a.g for a in n.attribute if a.name == "body")
            products = sum(i.op_type in ("MatMul", "Gemm") for i in body.node)
            assert products <= (2 if op == "GRU" else 1)
            assert not {"Tanh", "Sigmoid"} & {i.op_type for i in body.node}


def test_symbolic_batch_and_length():
    for op in ("RNN", "GRU", "LSTM"):
        m, feeds = recurrent(op)
        for i in m.graph.input:
            dims = i.type.tensor_type.shape.dim
            if i.name == "X":
                dims[0].dim_param, dims[1].dim_param = "T", "B"
            if i.name in ("h0", "c0"):
                dims[1].dim_param = "B"
        still, _ = recurrent(op)
        base = evaluate(m, feeds, 0)
        seeds = {f"adj_{k}": np.ones_like(v) for k, v in base.items()}
        got = evaluate(reverse(m, layout="single"), {**feeds, **seeds})
        for k, v in evaluate(reverse(still, layout="single"), {**feeds, **seeds}).items():
            close(got[k], v, 1e-5, (op, k))


def test_gradients_are_those_of_torch():
    torch = pytest.importorskip("torch")
    m, feeds = recurrent("LSTM", steps=5, batch=3)
    net = torch.nn.LSTM(3, 4)  # its rows are input, forget, cell, output; those of ONNX input, output, forget, cell

    def torch_rows(x):
        i, o, f, c = np.split(x, 4)
        return torch.tensor(np.concatenate([i, f, c, o]))

    with torch.no_grad():
        net.weight_ih_l0.copy_(torch_rows(feeds["W"][0]))
        net.weight_hh_l0.copy_(torch_rows(feeds["R"][0]))
        net.bias_ih_l0.copy_(torch_rows(feeds["B"][0, :16]))
        net.bias_hh_l0.copy_(torch_rows(feeds["B"][0, 16:]))
    x, h, c = (torch.tensor(feeds[k], requires_grad=True) for k in ("X", "h0", "c0"))
    y, (hn, cn) = net(x, (h, c))
    seeds = {"adj_Y": np.ones((5, 1, 3, 4)), "adj_Yh": 2 * np.ones((1, 3, 4)), "adj_Yc": -np.ones((1, 3, 4))}
    (y.sum() + 2 * hn.sum() - cn.sum()).backward()
    got = evaluate(reverse(m, layout="single"), narrow({**feeds, **seeds}))
    for k, v in (("X", x), ("h0", h), ("c0", c)):
        close(got[f"adj_{k}"], v.grad.numpy(), 1e-5, k)
    blocks = np.split(net.weight_hh_l0.grad.numpy(), 4)
    want = np.concatenate([blocks[i] for i in (0, 3, 1, 2)])
    close(got["adj_R"][0], want, 1e-5, "R")
