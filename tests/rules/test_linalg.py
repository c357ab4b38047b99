import numpy as np
import pytest

from onnxad_rules.testing import check_rule

R = np.random.default_rng(0)
r = R.standard_normal


@pytest.mark.parametrize(
    "a, b",
    [((3, 4), (4, 2)), ((4,), (4,)), ((4,), (4, 2)), ((3, 4), (4,)), ((5, 3, 4), (4, 2)), ((3, 4), (5, 4, 2)),
     ((2, 1, 3, 4), (5, 4, 2)), ((4,), (5, 4, 2)), ((5, 3, 4), (4,)), ((1, 3, 4), (5, 4, 2))],
)  # fmt: skip
def test_matmul(a, b):
    check_rule("MatMul", [r(a), r(b)], unknown_rank=False)


@pytest.mark.parametrize("ta", [0, 1])
@pytest.mark.parametrize("tb", [0, 1])
@pytest.mark.parametrize("c", [(3, 2), (2,), (1,), (3, 1), (), None])
def test_gemm(ta, tb, c):
    a, b = r((4, 3) if ta else (3, 4)), r((2, 4) if tb else (4, 2))
    check_rule("Gemm", [a, b] + ([r(c)] if c is not None else []), dict(transA=ta, transB=tb, alpha=0.7, beta=1.3))
