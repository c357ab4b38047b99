"""Operators in terms of others: the same results."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser
from small import model, ops, same

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import run_pipeline
from onnxad_passes.decompose import Decompose

X = np.linspace(-1, 2, 12, dtype=np.float32).reshape(2, 6)
FEEDS = {"x": X, "p": np.array(True), "t": np.array([1, 4])}


@pytest.mark.parametrize(
    "op, text",
    [
        ("Softmax", "g (float[2,6] x) => (float[2,6] y) { y = Softmax<axis = 0>(x) }"),
        ("Celu", "g (float[2,6] x) => (float[2,6] y) { y = Celu<alpha = 0.5>(x) }"),
        ("HardSwish", "g (float[A,B] x) => (float[A,B] y) { y = HardSwish(x) }"),
        (
            "ReduceL2",
            "g (float[2,6] x) => (float[2,1] y) { k = Constant<value_ints = [1]>() y = ReduceL2(x, k) }",
        ),
        (
            "SoftmaxCrossEntropyLoss",
            "g (float[2,6] x, int64[2] t) => (float l) { l = SoftmaxCrossEntropyLoss(x, t) }",
        ),
        (
            "LayerNormalization",
            """g (float[2,6] x) => (float[2,6] y) <float[6] s = {1, 2, 3, 4, 5, 6}> {
              h = Exp(x) y = LayerNormalization(h, s) }""",
        ),
    ],
)
def test_by_the_specification_or_by_ours(op, text):
    out = same(text, [Decompose(ops=(op,))], FEEDS)
    assert op not in ops(out) and len(ops(out)) > 1


def test_a_body_whose_range_takes_vectors():
    text = """<ir_version: 8, opset_import: ["" : 20]>
        g (float[2,2,3] x) => (float[2,4,5,2] y) <int64[4] k = {2, 1, 4, 5}> { y = AffineGrid(x, k) }"""
    out = same(parser.parse_model(text), [Decompose(("AffineGrid",))], {"x": X.reshape(2, 2, 3)})
    assert "AffineGrid" not in ops(out)


def test_inside_regions_and_next_to_others():
    out = same(
        """g (float[2,6] x, bool p) => (float[2,6] y) {
          a = Celu(x)
          y = If (p) < then_branch = t1 () => (float[2,6] u) { b = Celu(a) u = Elu(b) },
                       else_branch = e () => (float[2,6] v) { v = Celu(x) } > }""",
        [Decompose(ops=("Celu",))],
        FEEDS,
    )
    inner = [n.op_type for a in out.graph.node[-1].attribute for n in a.g.node]
    assert "Celu" not in inner + ops(out) and inner.count("Elu") >= 1


def test_only_what_is_named():
    out = same(
        "g (float[2,6] x) => (float[2,6] y) { a = Softplus(x) y = Softmax(a) }",
        [Decompose(("Softmax",))],
        FEEDS,
    )
    assert ops(out)[0] == "Softplus"


def test_by_default_what_is_differentiated_so():
    proto = model("g (float[2,6] x) => (float[2,6] y) { y = Tanh(x) }")
    assert ops(run_pipeline(proto, [Decompose()])) == ["Tanh"]


def test_what_has_no_composition():
    proto = model("g (float[2,6] x) => (float[2,6] y) { y = Tanh(x) }")
    for op in ("Tanh", "Sofmax"):
        with pytest.raises(UsageError, match=f"no composition for operator '{op}'"):
            run_pipeline(proto, [Decompose((op,))])
