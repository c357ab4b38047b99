"""What makes no sense is refused in one sentence, by a TypeError or ValueError, before anything is written."""

import os

import numpy as np
import pytest
from onnx import helper
from small import model

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import (
    PassManager,
    check_derivatives,
    family,
    forward,
    gradient,
    gradient_of_function,
    gradient_of_nodes,
    hessian,
    jacobian,
    parse_pipeline,
    reverse,
    run_pipeline,
    unroll,
    vectorize,
)
from onnxad_passes.dce import Dce

M = model("g (double[N,3] x, int64[N] t) => (double[N,3] y, double l) { y = Tanh(x) l = ReduceSum<keepdims = 0>(y) }")
LAYER = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
FEED = np.ones((2, 3))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: forward(M, inputs=[M.graph.input[0]]), "a list of str, but there is a ValueInfoProto in it"),
        (lambda: jacobian(M, inputs=3), "a list of str, not a int"),
        (lambda: vectorize(M, inputs=[None]), "a list of str, but there is a NoneType in it"),
        (lambda: family(M, "f.onnx", outputs=[0]), "a list of str, but there is a int in it"),
        (lambda: reverse(M, straight_through=[len]), "a list of str"),
        (lambda: gradient(M, output=["l"]), "output is a str, not a list"),
        (lambda: hessian(M, output=M.graph.output[0]), "output is a str, not a ValueInfoProto"),
        (lambda: forward(M, prefix=2), "prefix is a str, not a int"),
        (lambda: reverse(M, rules=[]), r"rules is a Ruleset, not a list; default_rules\(\).merge\(...\) makes one"),
        (lambda: run_pipeline(M, ["reverse"]), "'reverse' is no Pass but a str; `parse_pipeline` makes passes"),
        (lambda: run_pipeline(M, [Dce]), r"is no Pass but a class: make one with \(\)"),
        (lambda: run_pipeline(M, None), "a pipeline is text or a list of passes, not None"),
        (lambda: parse_pipeline(3), "a pipeline is text, not 3"),
        (lambda: PassManager("dce"), "'dce' is text; `parse_pipeline` makes passes from it"),
        (
            lambda: PassManager([Dce()]).run(M),
            "runs on an onnxad_ir Model, not on a ModelProto; `run_pipeline` takes all",
        ),
        (lambda: gradient_of_nodes(LAYER[0], ["x", "w"], [], ["x"], "y"), "nodes are a list of NodeProto"),
        (lambda: gradient_of_nodes(LAYER, ["x", "w"], ["w"], ["x"], "y"), "initializers are a list of TensorProto"),
        (
            lambda: gradient_of_nodes(LAYER, ["x"], [], ["x"], "y", registry={"Tanh": 1}),
            r"by \(domain, operator\), not",
        ),
        (lambda: gradient_of_function(M, ["x"], "y"), "expected a FunctionProto, not a ModelProto"),
    ],
)
def test_arguments_of_a_wrong_kind(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: unroll(M, limit="many"), "limit is a number of nodes, not 'many'"),
        (
            lambda: check_derivatives(M, mode="both"),
            "no mode 'both' to check; the modes that are built are forward, reverse",
        ),
        (lambda: check_derivatives(M, mode="gradient"), "no mode 'gradient' to check; the modes that are built are"),
        (
            lambda: check_derivatives(M, forward(M), mode="tangent"),
            "the modes are forward, reverse, gradient, jacobian",
        ),
        (lambda: check_derivatives(M, layout="diagonal"), "no layout 'diagonal'"),
        (lambda: check_derivatives(M, dims={"N": -1}), "the extent of 'N' is a number from 0, not -1"),
    ],
)
def test_values_that_make_no_sense(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_one_name_stands_for_itself(tmp_path):
    two = model("g (double[3] xx, double[3] z) => (double[3] yy, double[3] w) { yy = Mul(xx, z) w = Exp(z) }")
    assert [os.path.basename(p) for p in family(two, tmp_path / "f.onnx", inputs="xx", outputs="yy")][1] == "adj_f.onnx"
    assert check_derivatives(two, inputs="xx", outputs="yy").ok
    assert [v.name for v in vectorize(two, "xx").graph.input] == ["xx", "z"]


@pytest.mark.parametrize("path", ["", "folder", "folder/"])
def test_a_family_in_the_place_of_a_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("folder")
    with pytest.raises(UsageError, match="is no name for a file"):
        family(M, path)
    assert os.listdir() == ["folder"] and not os.listdir("folder")
