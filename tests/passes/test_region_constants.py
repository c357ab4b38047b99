"""Weights that stand inside of branches and bodies can be differentiated like those of the main graph."""

import numpy as np
import onnx
import pytest
from support import session

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import forward, reverse

TEXT = """
<ir_version: 10, opset_import: ["" : 18]>
g (bool c, float[2] x) => (float[2] y) {
  y = If (c) <
    then_branch = t () => (float[2] a) { w = Constant <value = float[2] {2, 3}> () a = Mul (x, w) },
    else_branch = e () => (float[2] b) { v = Constant <value = float[2] {5, 7}> () s = Mul (v, v) b = Add (x, s) }
  >
}
"""


@pytest.mark.parametrize("taken", [True, False])
def test_both_modes(taken):
    m = onnx.parser.parse_model(TEXT)
    x, u = np.array([1, 10], np.float32), np.array([1, 2], np.float32)
    feeds = {"c": np.array(taken), "x": x}
    adjoint = reverse(m, inputs=["x", "w", "v"], layout="single")
    onnx.checker.check_model(adjoint, full_check=True)
    y, _, adj_w, adj_v = session(adjoint).run(None, {**feeds, "adj_y": u})
    np.testing.assert_allclose(y, [2, 30] if taken else [26, 59])
    np.testing.assert_allclose(adj_w, [1, 20] if taken else [0, 0])
    np.testing.assert_allclose(adj_v, [0, 0] if taken else [10, 28])
    tangent = forward(m, inputs=["w", "v"], layout="single")
    got = session(tangent).run(None, {**feeds, "fwd_w": u, "fwd_v": 3 * u})[1]
    np.testing.assert_allclose(got, [1, 20] if taken else [30, 84])


def test_one_name_for_two_is_said():
    m = onnx.parser.parse_model(TEXT.replace("v = Const", "w = Const").replace("(v, v)", "(w, w)"))
    with pytest.raises(UsageError, match="several branches or bodies have a constant called 'w'"):
        reverse(m, inputs=["w"], layout="single")
