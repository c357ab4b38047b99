"""The public functions: kinds of models, errors, purity, and what a derivative model is made of."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import onnx_ir
import pytest
from small import model, ops, run

import onnxad_passes
from onnxad_ir.core import Model
from onnxad_ir.diagnostics import UsageError
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto
from onnxad_passes import forward, gradient, reverse, run_pipeline
from onnxad_passes.cse import Cse
from onnxad_passes.dce import Dce

TEXT = """g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> { h = Tanh(x) y =
  MatMul(h, w) }"""
X = np.array([[0.1, 0.2, -0.3], [0.4, -0.5, 0.6]], np.float32)
SEED = np.array([[1, -2], [0.5, 3]], np.float32)


@pytest.mark.parametrize("f", [forward, reverse])
def test_the_kind_that_comes_in_goes_out(f):
    proto = model(TEXT)
    lifted = from_proto(proto)
    as_proto = f(proto, layout="single")
    as_ir = f(onnx_ir.from_proto(proto), layout="single")
    as_model = f(lifted, layout="single")
    assert isinstance(as_proto, onnx.ModelProto)
    assert isinstance(as_ir, onnx_ir.Model)
    assert isinstance(as_model, Model)
    assert ops(onnx_ir.to_proto(as_ir)) == ops(as_proto) == [n.op_type for n in as_model.graph.nodes]


def test_the_argument_is_not_changed():
    proto = model(TEXT)
    before = proto.SerializeToString()
    lifted, ir_model = from_proto(proto), onnx_ir.from_proto(proto)
    text = print_model(lifted)
    for m in (proto, lifted, ir_model):
        forward(m, ["x", "w"], layout="single")
        reverse(m, ["w"], layout="single")
        run_pipeline(m, "decompose,simplify,cse,dce")
    assert proto.SerializeToString() == before
    assert print_model(lifted) == text
    assert onnx_ir.to_proto(ir_model).graph.node[0].op_type == "Tanh" and len(ir_model.graph) == 2
    assert not lifted.variables


def test_what_is_no_model():
    for thing in ("model.onnx", 3, None):
        with pytest.raises(TypeError, match=r"expected an onnx\.ModelProto"):
            reverse(thing, layout="single")


def test_the_default_layout_is_casadi():
    for f in (forward, reverse):
        assert f(model(TEXT)) == f(model(TEXT), layout="casadi") != f(model(TEXT), layout="single")


def test_forward_against_reverse():
    proto = model(TEXT)
    t = np.array([[1, 0.5, -1], [2, -2, 0.25]], np.float32)
    jvp = run(forward(proto, layout="single"), {"x": X, "fwd_x": t})[1]
    vjp = run(reverse(proto, layout="single"), {"x": X, "adj_y": SEED})[1]
    np.testing.assert_allclose((jvp * SEED).sum(), (vjp * t).sum(), rtol=1e-5)


def test_pipelines_as_text_and_objects():
    proto = model(TEXT)
    assert run_pipeline(proto, "cse,dce") == run_pipeline(proto, [Cse(), Dce()])
    with pytest.raises(UsageError, match="no pass called 'dc'"):
        run_pipeline(proto, "dc")


def test_same_bytes_every_time():
    a, b = (reverse(model(TEXT), ["x", "w"], layout="single").SerializeToString(deterministic=True) for _ in range(2))
    assert a == b


def test_small_models():
    """A chain of MatMul, Add, Relu: at most 2.4 times the nodes, none of them dead, a copy or a duplicate."""
    n = 20
    lines, weights = [], []
    for i in range(n):
        weights += [f"float[3,3] w{i} = {{{', '.join(str((i + k) % 5 - 2) for k in range(9))}}}"]
        weights += [f"float[3] b{i} = {{{i}, 1, -1}}"]
        a = f"h{i - 1}" if i else "x"
        lines += [f"m{i} = MatMul({a}, w{i})", f"s{i} = Add(m{i}, b{i})", f"h{i} = Relu(s{i})"]
    lines[-1] = lines[-1].replace(f"h{n - 1} =", "y =")
    proto = model(f"g (float[2,3] x) => (float[2,3] y) <{', '.join(weights)}> {{ {' '.join(lines)} }}")
    adj = reverse(proto, layout="single")
    assert len(adj.graph.node) <= 2.4 * len(proto.graph.node)
    used = {i for node in adj.graph.node for i in node.input} | {o.name for o in adj.graph.output}
    assert all(any(o in used for o in node.output) for node in adj.graph.node)
    assert all(t.name in used for t in adj.graph.initializer)
    assert "Identity" not in ops(adj)
    keys = [(m.op_type, tuple(m.input), tuple(a.SerializeToString() for a in m.attribute)) for m in adj.graph.node]
    assert len(keys) == len(set(keys))


def test_orders_compose():
    proto = model("g (float x) => (float y) { a = Tanh(x) y = Exp(a) }")
    third = gradient(gradient(gradient(proto), "grad_x"), "grad2_x")
    x = 0.3
    with_64 = np.linspace(-3e-2, 3e-2, 7)
    f = np.exp(np.tanh(x + with_64))
    p = np.polynomial.Polynomial.fit(with_64, f, 6)
    got = run(third, {"x": np.array(x, np.float32)})
    want = [p(0), p.deriv(1)(0), p.deriv(2)(0), p.deriv(3)(0)]
    np.testing.assert_allclose([float(g) for g in got], want, rtol=1e-3)


def test_public_names():
    for name in onnxad_passes.__all__:
        assert getattr(onnxad_passes, name).__doc__, name


def test_import_loads_no_runtime():
    code = (
        "import sys, onnxad_passes\n"
        "print([m for m in ('onnxruntime', 'networkx', 'onnxscript', 'torch', 'onnx.reference') if m in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
