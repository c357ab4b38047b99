"""Classical machine learning against derivatives written out in numpy, in double precision.

The operators compute in single precision, so finite differences of them tell little; the models of the tests are
written once more in numpy, checked against ONNX Runtime, and differentiated by finite differences there.
"""

import numpy as np
import onnx
import pytest

from onnxad_ir.schema import latest_opset
from onnxad_rules.ruleset import NotDifferentiable
from onnxad_rules.testing import differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal
X = r((3, 4))
DOMAIN = "ai.onnx.ml"


def central(f, x, t, h=1e-5):
    return (f(x + h * t) - f(x - h * t)) / (2 * h)


def check(op, f, inputs, attrs, results=1, result=0, dtype=np.float32, atol=2e-4):
    """Both modes and forward of forward of `op` against finite differences of `f`, a function of every input."""
    single = [x.astype(dtype) for x in inputs]
    feeds = {f"x{i}": x for i, x in enumerate(single)}
    plain = {k: v for k, v in attrs.items() if v is not None}
    ys = run_in_ort(one_node(op, single, plain, results, DOMAIN, 18))(feeds)
    np.testing.assert_allclose(ys[result], f(*inputs), rtol=2e-3, atol=atol)
    p = one_node(op, single, plain, ys, DOMAIN, 18)
    ts, us = ([r(x.shape) for x in inputs] for _ in range(2))

    def derivative(*at):
        return sum(central(lambda x, i=i: f(*at[:i], x, *at[i + 1 :]), at[i], t) for i, t in enumerate(ts))

    want = derivative(*inputs)
    seeds = {f"fwd_x{i}": t.astype(dtype) for i, t in enumerate(ts)}
    forward = differentiate(p, "forward")
    onnx.checker.check_model(forward, full_check=True)
    got = run_in_ort(forward)({**feeds, **seeds})[len(ys)]
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
    seed = r(ys[result].shape)
    gradients = run_in_ort(differentiate(p, "reverse"))({**feeds, f"adj_y{result}": seed.astype(np.float32)})[len(ys) :]
    for x, g in zip(single, gradients, strict=True):
        assert g.dtype == x.dtype and g.shape == x.shape
    pairing = sum(float((g * t).sum()) for g, t in zip(gradients, ts, strict=True))
    assert pairing == pytest.approx(float((seed * want).sum()), rel=5e-3, abs=5e-3)

    second = differentiate(forward, "forward", prefix="d_")
    more = {f"d_x{i}": u.astype(dtype) for i, u in enumerate(us)}
    more |= {f"d_fwd_x{i}": np.zeros_like(x) for i, x in enumerate(single)}
    got = run_in_ort(second)({**feeds, **seeds, **more})[-1]
    h = 1e-3
    up, down = (derivative(*(x + s * h * u for x, u in zip(inputs, us, strict=True))) for s in (1, -1))
    np.testing.assert_allclose(got, (up - down) / (2 * h), rtol=2e-2, atol=2e-2)


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


TRANSFORMS = {"NONE": lambda s: s, "LOGISTIC": sigmoid, "SOFTMAX": softmax, "SOFTMAX_ZERO": softmax}
W, B = r((2, 4)), r(2)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_linear_models(transform):
    def f(x):
        return TRANSFORMS[transform](x @ W.T + B)

    attrs = dict(coefficients=W.ravel().tolist(), intercepts=B.tolist(), post_transform=transform)
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


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_one_score_for_two_classes(transform):
    attrs = dict(coefficients=W[0].tolist(), intercepts=[0.1], classlabels_ints=[0, 1], post_transform=transform)

    def f(x):
        s = x @ W[0] + 0.1
        return np.stack([1 - s, s], 1) if transform == "NONE" else sigmoid(np.stack([-s, s], 1))

    check("LinearClassifier", f, [X], attrs, results=2, result=1)


def test_a_transformed_single_score_is_refused():
    attrs = dict(coefficients=W[0].tolist(), post_transform="LOGISTIC")
    p = one_node("LinearRegressor", [X.astype(np.float32)], attrs, 1, DOMAIN, 18)
    with pytest.raises(NotDifferentiable, match="single score"):
        differentiate(p, "reverse")


def kernel(kind, x, v):
    gamma, shift, degree = 0.5, 0.2, 3
    if kind == "RBF":
        return np.exp(-gamma * np.square(x[:, None] - v).sum(-1))
    dot = x @ v.T
    return {"LINEAR": dot, "POLY": (gamma * dot + shift) ** degree, "SIGMOID": np.tanh(gamma * dot + shift)}[kind]


@pytest.mark.parametrize("kind", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kind):
    v, a = r((3, 4)), r(3)
    attrs = dict(coefficients=a.tolist(), support_vectors=v.ravel().tolist(), n_supports=3, rho=[0.3])
    attrs |= dict(kernel_type=kind, kernel_params=[0.5, 0.2, 3.0])
    check("SVMRegressor", lambda x: (kernel(kind, x, v) @ a + 0.3)[:, None], [X], attrs)


def test_svm_regressor_without_vectors():
    attrs = dict(coefficients=W[0].tolist(), rho=[0.3], kernel_params=[0.0, 0.0, 0.0])
    check("SVMRegressor", lambda x: (x @ W[0] + 0.3)[:, None], [X], attrs)


def test_a_one_class_svm_gives_a_sign():
    attrs = dict(coefficients=W[0].tolist(), rho=[0.3], kernel_params=[0.0, 0.0, 0.0], one_class=1)
    p = one_node("SVMRegressor", [X.astype(np.float32)], attrs, [np.zeros((3, 1), np.float32)], DOMAIN, 18)
    got = run_in_ort(differentiate(p, "reverse"))({"x0": X.astype(np.float32), "adj_y0": np.ones((3, 1), np.float32)})
    assert not got[1].any()


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("sizes", [[2, 3], [2, 1, 2]])
def test_svm_classifier(sizes, transform):
    count = len(sizes)
    v, a, rho = r((5, 4)), r((count - 1, 5)), r(count * (count - 1) // 2)
    starts = np.cumsum([0, *sizes])
    attrs = dict(coefficients=a.ravel().tolist(), support_vectors=v.ravel().tolist(), rho=rho.tolist())
    attrs |= dict(vectors_per_class=sizes, kernel_type="RBF", kernel_params=[0.5, 0.2, 3.0])
    attrs |= dict(classlabels_ints=list(range(count)), post_transform=transform)

    def f(x):
        k, decisions = kernel("RBF", x, v), []
        for i in range(count):
            for j in range(i + 1, count):
                one, two = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
                decisions.append(k[:, one] @ a[j - 1, one] + k[:, two] @ a[i, two] + rho[len(decisions)])
        s = np.stack(decisions, 1)
        return TRANSFORMS[transform](np.concatenate([-s, s], 1) if count == 2 else s)

    if transform == "SOFTMAX" and count == 2:
        p = one_node("SVMClassifier", [X.astype(np.float32)], attrs, 2, DOMAIN, 18)
        with pytest.raises(NotDifferentiable, match="single score"):
            differentiate(p, "forward")
        return
    check("SVMClassifier", f, [X], attrs, results=2, result=1)


def test_svm_probabilities():
    v, a = r((5, 4)), r((1, 5))
    attrs = dict(
        coefficients=a.ravel().tolist(), support_vectors=v.ravel().tolist(), rho=[0.2], prob_a=[-1.1], prob_b=[0.1]
    )
    attrs |= dict(vectors_per_class=[2, 3], kernel_type="RBF", kernel_params=[0.5, 0.2, 3.0], classlabels_ints=[0, 1])

    def f(x):
        p = sigmoid(-(-1.1 * (kernel("RBF", x, v) @ a[0] + 0.2) + 0.1))
        return np.stack([p, 1 - p], 1)

    # ONNX Runtime finds the probabilities by an iteration that stops early
    check("SVMClassifier", f, [X], attrs, results=2, result=1, atol=5e-3)


def test_svm_probabilities_of_three_classes_are_refused():
    attrs = dict(coefficients=[0.5] * 6, support_vectors=[0.5] * 12, rho=[0.1] * 3, prob_a=[-1.0] * 3, prob_b=[0.1] * 3)
    attrs |= dict(vectors_per_class=[1, 1, 1], classlabels_ints=[0, 1, 2], kernel_params=[0.0, 0.0, 0.0])
    p = one_node("SVMClassifier", [X.astype(np.float32)], attrs, 2, DOMAIN, 18)
    with pytest.raises(NotDifferentiable, match="more than two classes"):
        differentiate(p, "reverse")


def test_linear_svm_classifier():
    w = r((3, 4))
    attrs = dict(coefficients=w.ravel().tolist(), rho=[0.3], kernel_params=[0.0, 0.0, 0.0], classlabels_ints=[0, 1, 2])
    check("SVMClassifier", lambda x: x @ w.T + 0.3, [X], attrs, results=2, result=1)


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
