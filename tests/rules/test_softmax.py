import numpy as np
import pytest
from onnx import parser

from onnxad_rules.testing import check_rule, differentiate, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("attrs", [{}, {"axis": 0}, {"axis": -2}, {"axis": 2}])
def test_softmax(op, attrs):
    check_rule(op, [r((2, 3, 4))], attrs)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_vector(op):
    check_rule(op, [r((5,))])


def test_masked_places():
    """Minus infinity has weight zero, and so has its derivative."""
    x = np.array([[0.5, -np.inf, 1]])
    p = np.array([[1 / (1 + np.exp(0.5)), 0, 1 / (1 + np.exp(-0.5))]])
    ct = np.array([[2.0, 3, 5]])
    for op, want in (("Softmax", p * (ct - (p * ct).sum())), ("LogSoftmax", ct - p * ct.sum())):
        model = parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 18]> g (double[1,3] x) => (double[1,3] y) {{ y = {op}(x) }}'
        )
        got = run_in_reference(differentiate(model, "reverse"))({"x": x, "adj_y": ct})[1]
        np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("how", ["n = IsNaN(p)  y = Where(n, zero, p)", "y = Where(all, zero, p)"])
def test_fully_masked_rows(how):
    """A row without a softmax that the model replaces by zeros, as exporters write it."""
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]> g (float[2,3] s, bool[2,3] mask) => (float[2,3] y)'
        " <float zero = {0}, float low = {-inf}, int64[1] last = {1}> {"
        "x = Where(mask, s, low)  none = Not(mask)  i = Cast<to = 6>(none)  j = ReduceMin(i, last)"
        f"all = Cast<to = 9>(j)  p = Softmax(x)  {how} }}".replace("-inf", "-3.4e38")
    )
    # the text format has no infinity
    low = next(t for t in model.graph.initializer if t.name == "low")
    low.float_data[:] = [-np.inf]
    s, ct = np.float32(r((2, 3))), np.float32(r((2, 3)))
    mask = np.array([[False] * 3, [True, False, True]])
    p = np.exp(s[1]) * mask[1] / (np.exp(s[1]) * mask[1]).sum()
    want = [np.zeros(3), p * (ct[1] - (p * ct[1]).sum())]
    d = differentiate(model, "reverse", wrt=["s"])
    for run in (run_in_ort(d), run_in_ort(d, 99)):
        np.testing.assert_allclose(run({"s": s, "mask": mask, "adj_y": ct})[1], want, rtol=1e-5, atol=1e-7)
