"""Operands that never fit each other are an error that names the node, where inference meets them."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxad_ir.diagnostics import ModelError
from onnxad_ir.infer import Inference
from onnxad_ir.proto import from_proto


def infer(text):
    m = from_proto(parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g ({text}'))
    Inference(m).graph(m.graph)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "float[3] a, float[4] b) => (float[3] y) { y = Add(a, b) }",
            r"Add .*: shapes \[3\] and \[4\] do not broadcast",
        ),
        ("float[N,3] a, float[N,2] b) => (float[3] y) { y = Sum(b, b, a) }", "Sum .*: shapes .* do not broadcast"),
        ("float[2,3] a, bool[3,1] b) => (float[2,3] y) { y = Where(b, a, a) }", "Where .*: shapes .* do not broadcast"),
        (
            "float[N,3] a, float[4,2] b) => (float[N,2] y) { y = MatMul(a, b) }",
            r"MatMul .*: shapes \[N,3\] and \[4,2\] do not multiply",
        ),
        ("float[5,2,3] a, float[4] b) => (float[5,2] y) { y = MatMul(a, b) }", "MatMul .*: .* do not multiply"),
        ("float[5,2,3] a, float[4,3,1] b) => (float[5,2,1] y) { y = MatMul(a, b) }", "MatMul .*: .* do not broadcast"),
        ("float[2,3] a, float[3,2] b) => (float[2,2] y) { y = Gemm<transB = 1>(a, b) }", "Gemm .*: .* do not multiply"),
        (
            "float[2,3] a, float[2,4] b) => (float[4,3] y) { y = Concat<axis = 0>(a, b) }",
            "Concat .*: .* differ in an axis other than 0",
        ),
        (
            "float[N,4,5,5] a, float[4,1,3,3] b) => (float[N,4,3,3] y) { y = Conv<group = 2>(a, b) }",
            r"Conv .*: an image \[N,4,5,5\] does not fit a kernel \[4,1,3,3\] in 2 groups",
        ),
        ("float[2,3] a, float[4] b) => (float[2,3] y) { y = Conv(a, b) }", "does not fit a kernel"),
        ("float[1,2,5] a, float[3,2,3] b) => (float[1,2,7] y) { y = ConvTranspose(a, b) }", "does not fit a kernel"),
    ],
)
def test_what_never_fits(text, message):
    with pytest.raises(ModelError, match=message):
        infer(text)


@pytest.mark.parametrize(
    "text",
    [
        "float[N,3] a, float[M,3] b) => (float[N,3] y) { y = Add(a, b) }",
        "float[N,3] a, float[1,1] b) => (float[N,3] y) { y = Add(a, b) }",
        "float[0,3] a, float[1,3] b) => (float[0,3] y) { y = Add(a, b) }",
        "float[N,K] a, float[4,2] b) => (float[N,2] y) { y = MatMul(a, b) }",
        # of a branch that is not taken, say: no runtime minds before it runs
        "float[2,3] a) => (float[4,3] y) <int64[2] s = {4, 3}> { y = Reshape(a, s) }",
        "float[0,3] a) => (float[0,5] y) <int64[2] s = {0, 5}> { y = Reshape<allowzero = 1>(a, s) }",
        "float[0,3] a) => (float[0,3] y) <int64[2] s = {-1, 3}> { y = Reshape(a, s) }",
        "float[N,3] a) => (float[4,3] y) <int64[2] s = {4, 3}> { y = Reshape(a, s) }",
        "float[N,4,5,5] a, float[6,2,3,3] b) => (float[N,6,3,3] y) { y = Conv<group = 2>(a, b) }",
        "float[2,N] a, float[3,4] b) => (float[5,4] y) { y = Concat<axis = 0>(a, b) }",
    ],
)
def test_what_may_fit(text):
    infer(text)
