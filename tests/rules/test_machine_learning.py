"""Linear models and preprocessing against the same functions in numpy, in double precision."""

import numpy as np
import onnx
import pytest
from classical_models import DOMAIN, TRANSFORMS, X, check, probit, r, sigmoid

from onnxad_ir.schema import latest_opset
from onnxad_rules.ruleset import NotDifferentiable
from onnxad_rules.testing import differentiate, one_node, run_in_ort

W, B = r((2, 4)), r(2)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_models(transform):
    w, b = (0.05 * W, np.array([0.4, 0.7])) if transform == "PROBIT" else (W, B)

    def f(x):
        return TRANSFORMS[transform](x @ w.T + b)

    attrs = dict(coefficients=w.ravel().tolist(), intercepts=b.tolist(), post_transform=transform)
    check("LinearRegressor", f, [X], dict(attrs, targets=2))
    check("LinearClassifier", f, [X], dict(attrs, classlabels_ints=[3, 5]), results=2, result=1)
    check("LinearClassifier", f, [X], dict(attrs, classlabels_ints=[3, 5]), results=2, result=1, dtype=np.float64)


def test_probit():
    """The derivative of the quantile function is one over the density."""
    x = np.asarray([[0.2], [0.7]], np.float32)
    attrs = dict(coefficients=[1.0], post_transform="PROBIT")
    y = run_in_ort(one_node("LinearRegressor", [x], attrs, 1, DOMAIN, 18))({"x0": x})[0]
    p = one_node("LinearRegressor", [x], attrs, [y], DOMAIN, 18)
    got = run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": np.ones_like(x)})[1]
    # Phi^-1(0.2) = -0.841621, Phi^-1(0.7) = 0.524401
    want = np.sqrt(2 * np.pi) * np.exp(np.square([[-0.841621], [0.524401]]) / 2)
    np.testing.assert_allclose(got, want, rtol=5e-4)  # the runtime approximates the quantile


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_one_score_for_two_classes(transform):
    attrs = dict(coefficients=W[0].tolist(), intercepts=[0.1], classlabels_ints=[0, 1], post_transform=transform)

    def f(x):
        s = x @ W[0] + 0.1
        return sigmoid(np.stack([-s, s], 1)) if transform == "LOGISTIC" else np.stack([1 - s, s], 1)

    check("LinearClassifier", f, [X], attrs, results=2, result=1)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_single_score_is_transformed_by_probit_only(transform):
    w = 0.05 * W[:1]
    attrs = dict(coefficients=w[0].tolist(), intercepts=[0.4], post_transform=transform)

    def f(x):
        s = x @ w.T + 0.4
        return probit(s) if transform == "PROBIT" else s

    check("LinearRegressor", f, [X], attrs)
    check("LinearClassifier", f, [X], attrs, results=2, result=1)


def test_probit_of_one_score_for_two_classes_is_refused():
    attrs = dict(coefficients=W[0].tolist(), intercepts=[0.1], classlabels_ints=[0, 1], post_transform="PROBIT")
    p = one_node("LinearClassifier", [X.astype(np.float32)], attrs, 2, DOMAIN, 18)
    with pytest.raises(NotDifferentiable, match="one score for two classes"):
        differentiate(p, "reverse")


NORMS = {
    "MAX": lambda x: x / x.max(-1, keepdims=True),
    "L1": lambda x: x / np.abs(x).sum(-1, keepdims=True),
    "L2": lambda x: x / np.sqrt(np.square(x).sum(-1, keepdims=True)),
}


@pytest.mark.parametrize("norm", NORMS)
def test_normalizer(norm):
    x = np.asarray([[0.5, -1.5, 2.0], [-0.7, 0.9, 0.4]])
    check("Normalizer", NORMS[norm], [x], dict(norm=norm))
    check("Normalizer", NORMS[norm], [x[0]], dict(norm=norm), dtype=np.float64)


@pytest.mark.parametrize("norm", NORMS)
def test_normalizer_keeps_zeros(norm):
    x = np.zeros((1, 3), np.float32)
    t = np.asarray([[1, 2, 3]], np.float32)
    p = one_node("Normalizer", [x], dict(norm=norm), [x], DOMAIN, 18)
    np.testing.assert_array_equal(run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": t})[1], t)
    np.testing.assert_array_equal(run_in_ort(differentiate(p, "reverse"))({"x0": x, "adj_y0": t})[1], t)


@pytest.mark.parametrize("scale, offset", [([2.0], [1.0]), ([2.0, 3, 4, 5], [1.0, 2, 3, 4])])
def test_scaler(scale, offset):
    check("Scaler", lambda x: (x - np.asarray(offset)) * np.asarray(scale), [X], dict(scale=scale, offset=offset))


@pytest.mark.parametrize("sizes", [[4, 2], [3, 3]])
def test_feature_vectorizer(sizes):
    def f(a, b):
        return np.concatenate(
            [np.pad(x[:, :n], ((0, 0), (0, max(0, n - x.shape[1])))) for x, n in zip((a, b), sizes, strict=True)], 1
        )

    check("FeatureVectorizer", f, [X, X[:, :2] + 1], dict(inputdimensions=sizes))


def test_feature_vectorizer_of_vectors():
    check(
        "FeatureVectorizer", lambda a, b: np.concatenate([a, b])[None], [X[0], X[1, :2]], dict(inputdimensions=[4, 2])
    )


@pytest.mark.parametrize("missing", [-1.0, np.nan])
def test_imputer(missing):
    x, t = X.astype(np.float32), np.ones((3, 4), np.float32)
    x[0, 1] = x[2, 3] = missing
    p = one_node("Imputer", [x], dict(imputed_value_floats=[9.0], replaced_value_float=missing), [x], DOMAIN, 18)
    t[0, 1] = t[2, 3] = 0
    ones = np.ones_like(t)
    np.testing.assert_array_equal(run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": ones})[1], t)
    np.testing.assert_array_equal(run_in_ort(differentiate(p, "reverse"))({"x0": x, "adj_y0": ones})[1], t)


def test_a_model_of_this_domain_alone_gets_an_import_of_the_default_one():
    p = one_node("Scaler", [X.astype(np.float32)], dict(scale=[2.0], offset=[0.0]), [X.astype(np.float32)], DOMAIN, 18)
    del p.opset_import[0]
    assert [o.domain for o in p.opset_import] == [DOMAIN]
    d = differentiate(p, "reverse")
    assert {o.domain: o.version for o in d.opset_import} == {DOMAIN: latest_opset(DOMAIN), "": 18}
    onnx.checker.check_model(d, full_check=True)
