import itertools

import numpy as np
import pytest
from onnx import parser

from onnxad_rules.testing import check_rule, differentiate, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal
N, C = 4, 3
LABELS = {(): np.array([0, 2, 1, 2]), (2,): R.integers(0, C, (N, 2)), (2, 3): R.integers(0, C, (N, 2, 3))}
# (with the ignored label -1, onnx.reference divides by the wrong count)
CASES = list(itertools.product(LABELS, ["none", "sum", "mean"], [False, True], [None, 2, -2]))


def operands(tail, ignore):
    labels = LABELS[tail].copy()
    if ignore is not None and ignore < 0:
        labels.reshape(-1)[::3] = ignore
    return r((N, C, *tail)), labels


@pytest.mark.parametrize("tail, reduction, weighted, ignore", CASES)
def test_nll(tail, reduction, weighted, ignore):
    x, labels = operands(tail, ignore)
    attrs = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    weights = [R.uniform(0.5, 2, C)] if weighted else []
    check_rule("NegativeLogLikelihoodLoss", [x, labels, *weights], attrs, engine=run_in_reference)


@pytest.mark.parametrize("tail, reduction, weighted, ignore", CASES)
def test_cross_entropy(tail, reduction, weighted, ignore):
    x, labels = operands(tail, ignore)
    attrs = {"reduction": reduction} | ({} if ignore is None else {"ignore_index": ignore})
    weights = [R.uniform(0.5, 2, C)] if weighted else []
    outputs = 1 + (len(tail) + weighted) % 2
    check_rule("SoftmaxCrossEntropyLoss", [x, labels, *weights], attrs, outputs=outputs, engine=run_in_reference)


@pytest.mark.parametrize("op", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_label_types(op, kind):
    x, labels = operands((), None)
    check_rule(op, [x, labels.astype(kind)], {"ignore_index": 1}, engine=run_in_reference, order=1)


def test_log_probabilities_of_the_primal_are_used():
    """The primal is made to return them, and LogSoftmax is not taken again."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[N,7] x, int64[N] l) => (float y)'
        " { y = SoftmaxCrossEntropyLoss(x, l) }"
    )
    d = differentiate(model, "reverse")
    assert "LogSoftmax" not in {n.op_type for n in d.graph.node}
    assert len(d.graph.node[0].output) == 2
    x, labels = np.float32(r((5, 7))), R.integers(0, 7, 5)
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    want = (p - np.eye(7)[labels]) / 5 * 2
    got = run_in_ort(d, 99)({"x": x, "l": labels, "adj_y": np.array(2, np.float32)})[1]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
