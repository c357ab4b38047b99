"""RNN, GRU and LSTM written out are what ONNX Runtime's kernels compute."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from orders import close
from recurrent_models import GATES, VARIANTS, label, recurrent
from support import evaluate

from onnxad_passes import run_pipeline


@pytest.mark.parametrize("variant", VARIANTS, ids=map(label, VARIANTS))
def test_equal_to_the_kernels(variant):
    op, options = variant
    m, feeds = recurrent(op, **options)
    lowered = run_pipeline(m, "lower-rnn")
    onnx.checker.check_model(lowered, full_check=True)
    assert not GATES.keys() & {n.op_type for n in lowered.graph.node}
    want = evaluate(m, feeds, 0)
    for level in (0, 99):
        got = evaluate(lowered, feeds, level)
        for k, v in want.items():
            close(got[k], v, 2e-6, (level, k))


@pytest.mark.parametrize("op", GATES)
def test_batch_first_layout(op):
    """ONNX Runtime has no kernel for it: the same as the sequence-first layout, transposed."""
    m, feeds = recurrent(op, layout=1)
    plain, plain_feeds = recurrent(op)
    got, want = evaluate(run_pipeline(m, "lower-rnn"), feeds, 0), evaluate(plain, plain_feeds, 0)
    close(got["Y"], want["Y"].transpose(2, 0, 1, 3), 2e-6, "Y")
    close(got["Yh"], want["Yh"].swapaxes(0, 1), 2e-6, "Yh")


def test_reference_evaluator_agrees():
    m, feeds = recurrent("LSTM", outputs=["Y"], dtype=np.float64)
    got = ReferenceEvaluator(run_pipeline(m, "lower-rnn")).run(None, feeds)[0]
    close(got, ReferenceEvaluator(m).run(None, feeds)[0], 1e-12, "Y")
