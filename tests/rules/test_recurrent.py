"""RNN, GRU and LSTM, whose equations are differentiated in double precision and whose fused kernels in single."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser, printer
from orders import check_model, close
from recurrent_models import VARIANTS, label, recurrent
from support import evaluate

from onnxad_passes import forward, reverse, run_pipeline
from onnxad_passes.reverse import Reverse
from onnxad_rules import lstm_adjoint

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
    against_the_equations(*variant, kept=(forward, reverse))


STANDARD_LSTM = [v for v in VARIANTS if v[0] == "LSTM" and v[1].keys() <= {"direction", "bias", "init", "outputs"}]


@pytest.mark.parametrize("variant", STANDARD_LSTM, ids=map(label, STANDARD_LSTM))
def test_lstm_that_keeps_its_gates(variant, monkeypatch):
    """What a larger LSTM becomes: a Scan in its place, whose gates are kept for the way back."""
    monkeypatch.setattr(lstm_adjoint, "TAPE_FROM", 0)
    against_the_equations(*variant, kept=(forward,))


def against_the_equations(op, options, kept):
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
        # its value still comes from the kernel, or it is gone altogether
        assert (op in {n.op_type for n in got.graph.node}) == (mode in kept)
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


@pytest.mark.parametrize("taped", [False, True])
def test_symbolic_batch_and_length(taped, monkeypatch):
    monkeypatch.setattr(lstm_adjoint, "TAPE_FROM", 0 if taped else 10**9)
    for op in ("LSTM",) if taped else ("RNN", "GRU", "LSTM"):
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


IN_REGIONS = """<ir_version: 8, opset_import: ["": 18, "own": 1]>
g (float[3,2,3] x, float[1,16,3] w, float[1,16,4] r, float[1,2,4] h0, bool c) => (float[1,2,4] out, float[3,1,2,4] y) {
  n = Constant <value = int64 {2}> ()
  out = Loop (n, c, h0) <body = body (int64 i, bool on, float[1,2,4] h) => (bool again, float[1,2,4] ho) {
    again = Identity (on)
    z, ho = LSTM <hidden_size = 4> (x, w, r, "", "", h)
  }>
  y = If (c) <then_branch = yes () => (float[3,1,2,4] a) { a = own.cell (x, w, r) },
              else_branch = no () => (float[3,1,2,4] b) { s = Neg (x)
                                                         b = own.cell (s, w, r) }>
}
<domain: "own", opset_import: ["": 18]>
cell (x, w, r) => (y) { y = LSTM <hidden_size = 4> (x, w, r) }
"""


@pytest.mark.parametrize("options", [{}, {"functions": "keep"}, {"checkpoint": "1"}], ids=str)
@pytest.mark.parametrize("taken", [True, False])
def test_lstm_that_keeps_its_gates_in_regions_and_functions(options, taken, monkeypatch):
    m = parser.parse_model(IN_REGIONS)
    rng = np.random.default_rng(9)
    shapes = {"x": (3, 2, 3), "w": (1, 16, 3), "r": (1, 16, 4), "h0": (1, 2, 4), "adj_out": (1, 2, 4)}
    feeds = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    feeds |= {"adj_y": rng.standard_normal((3, 1, 2, 4)).astype(np.float32), "c": np.array(taken)}
    found = {}
    for size in (0, 10**9):
        monkeypatch.setattr(lstm_adjoint, "TAPE_FROM", size)
        adj = run_pipeline(m, [Reverse(**options)])
        assert ("= LSTM <" in printer.to_text(adj)) == bool(size)
        found[size] = evaluate(adj, feeds)
    for k, v in found[0].items():
        close(v, found[10**9][k], 2e-5, k)


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("taped", [False, True])
def test_the_rank_of_what_a_branch_reads_is_its_own_affair(op, rank, taped, monkeypatch):
    """Where the branch is not taken, the operand of the operator inside may have any rank."""
    monkeypatch.setattr(lstm_adjoint, "TAPE_FROM", 0 if taped else 10**9)
    k = {"RNN": 4, "GRU": 12, "LSTM": 16}[op]
    text = f"""<ir_version: 10, opset_import: ["": 18]>
    g (float[n] x0, int64[k] s0, float[1,{k},3] w, float[1,{k},4] r, bool c) => (float u, float q) {{
      x = Reshape (x0, s0)
      u = If (c) <then_branch = t () => (float a) {{
                    y, yh = {op} <hidden_size = 4> (x, w, r) p = Mul (yh, yh) a = ReduceSum <keepdims = 0> (p) }},
                  else_branch = e () => (float b) {{
                    one = Constant <value = int64[1] {{1}}> () d = Sin (x) f = ReduceSum (d, one)
                    i = Mul (f, x) b = ReduceSum <keepdims = 0> (i) }}>
      v = Softmax (x) z = Mul (v, x) q = ReduceSum <keepdims = 0> (z)
    }}"""
    shape = (4, 2, 3)[-rank:]
    rng = np.random.default_rng(3)
    feeds = {"x0": rng.standard_normal(int(np.prod(shape))), "w": rng.standard_normal((1, k, 3)) / 2}
    feeds |= {"r": rng.standard_normal((1, k, 4)) / 2, "adj_u": 1.5, "adj_q": 0.5}
    feeds = {name: np.asarray(v, np.float32) for name, v in feeds.items()}
    given = feeds | {"c": np.array(rank == 3), "s0": np.array(shape)}
    hidden = parser.parse_model(text)
    text = text.replace("float[n] x0, int64[k] s0", f"float{list(shape)} x").replace("x = Reshape (x0, s0)", "")
    known = parser.parse_model(text)
    if rank == 2:  # the branch is not valid for an operand that is known to be a matrix
        for a in known.graph.node[0].attribute:
            if a.name == "then_branch":
                a.g.CopyFrom(next(b.g for b in known.graph.node[0].attribute if b.name == "else_branch"))
    want = evaluate(reverse(known, layout="single"), {**given, "x": given["x0"].reshape(shape)})
    got = evaluate(reverse(hidden, layout="single"), given)
    for name, v in (("adj_x0", want["adj_x"].reshape(-1)), ("u", want["u"])):
        close(got[name], v, 1e-5, (op, name))
    if rank == 3:
        close(got["adj_w"], want["adj_w"], 1e-5, op)
    fwd = {**given, **{f"fwd_{n}": given[n] for n in ("x0", "w", "r")}}
    other = {**given, "x": given["x0"].reshape(shape), "fwd_x": given["x0"].reshape(shape)}
    other |= {f"fwd_{n}": given[n] for n in ("w", "r")}
    got, want = (evaluate(forward(m, layout="single"), f) for m, f in ((hidden, fwd), (known, other)))
    close(got["fwd_u"], want["fwd_u"], 1e-5, op)


UNRANKED = [*((op, o) for op in ("RNN", "GRU", "LSTM") for o in ({}, {"lengths": True})), ("LSTM", {"peepholes": True})]


@pytest.mark.parametrize("variant", UNRANKED, ids=map(label, UNRANKED))
def test_operands_of_unknown_rank(variant):
    op, options = variant
    m, feeds = recurrent(op, **options)
    hidden = onnx.ModelProto()
    hidden.CopyFrom(m)
    for v in (*hidden.graph.input, *hidden.graph.output):
        v.type.tensor_type.ClearField("shape")
    base = evaluate(m, feeds, 0)
    seeds = {f"adj_{k}": np.ones_like(v) for k, v in base.items()}
    seeds |= {f"fwd_{k}": np.ones_like(v) for k, v in feeds.items() if v.dtype != np.int32}
    for mode in (forward, reverse):
        want = evaluate(mode(m, layout="single"), {**feeds, **seeds}, 0)
        for level in (0, 99):
            got = evaluate(mode(hidden, layout="single"), {**feeds, **seeds}, level)
            for k, v in want.items():
                close(got[k], v, 1e-5, (op, level, k))
