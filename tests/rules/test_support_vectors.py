"""Support vector machines against the same functions in numpy, in double precision; one result against ONNX Runtime."""

from itertools import combinations

import numpy as np
import pytest
from classical_models import DOMAIN, TRANSFORMS, X, central, check, probit, sigmoid, softmax

from onnxad_rules.ruleset import NotDifferentiable
from onnxad_rules.testing import differentiate, one_node, run_in_ort

KERNELS = ["LINEAR", "POLY", "RBF", "SIGMOID"]
R = np.random.default_rng(1)
r = R.standard_normal
W = r((3, 4))


def kernel(kind, x, v, degree=3):
    gamma, shift = 0.5, 0.2
    if kind == "RBF":
        return np.exp(-gamma * np.square(x[:, None] - v).sum(-1))
    dot = x @ v.T
    return {"LINEAR": dot, "POLY": (gamma * dot + shift) ** degree, "SIGMOID": np.tanh(gamma * dot + shift)}[kind]


# --- regression


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])  # the runtime ignores it
@pytest.mark.parametrize("kind", KERNELS)
def test_regressor(kind, transform):
    v, a = r((3, 4)), r(3)
    attrs = dict(coefficients=a.tolist(), support_vectors=v.ravel().tolist(), n_supports=3, rho=[0.3])
    attrs |= dict(kernel_type=kind, kernel_params=[0.5, 0.2, 3.0], post_transform=transform)
    check("SVMRegressor", lambda x: (kernel(kind, x, v) @ a + 0.3)[:, None], [X], attrs)


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_polynomials_of_low_degree(degree):
    attrs = dict(coefficients=[1.5], support_vectors=W[0].tolist(), n_supports=1, rho=[0.3])
    attrs |= dict(kernel_type="POLY", kernel_params=[0.5, 0.2, float(degree)])
    check("SVMRegressor", lambda x: kernel("POLY", x, W[:1], degree) * 1.5 + 0.3, [X], attrs)


def test_regressor_without_vectors():
    attrs = dict(coefficients=W[0].tolist(), rho=[0.3], kernel_params=[0.0, 0.0, 0.0])
    check("SVMRegressor", lambda x: (x @ W[0] + 0.3)[:, None], [X], attrs)


def test_one_class_gives_a_sign():
    attrs = dict(coefficients=W[0].tolist(), rho=[0.3], kernel_params=[0.0, 0.0, 0.0], one_class=1)
    p = one_node("SVMRegressor", [X.astype(np.float32)], attrs, [np.zeros((3, 1), np.float32)], DOMAIN, 18)
    got = run_in_ort(differentiate(p, "reverse"))({"x0": X.astype(np.float32), "adj_y0": np.ones((3, 1), np.float32)})
    assert not got[1].any()


# --- scores


def machine(sizes, kind="RBF", transform="NONE", scale=1.0, shift=0.0):
    """The attributes of a classifier, and its scores of pairs of classes as a function of the examples."""
    count, total = len(sizes), sum(sizes)
    rng = np.random.default_rng(count)
    v, a = rng.standard_normal((total, 4)), scale * rng.standard_normal((count - 1, total))
    rho = shift + scale * rng.standard_normal(count * (count - 1) // 2)
    starts = np.cumsum([0, *sizes])
    attrs = dict(coefficients=a.ravel().tolist(), support_vectors=v.ravel().tolist(), rho=rho.tolist())
    attrs |= dict(vectors_per_class=sizes, kernel_type=kind, kernel_params=[0.5, 0.2, 3.0])
    attrs |= dict(classlabels_ints=list(range(count)), post_transform=transform)

    def scores(x):
        k, decisions = kernel(kind, x, v), []
        for i, j in combinations(range(count), 2):
            one, two = slice(starts[i], starts[i + 1]), slice(starts[j], starts[j + 1])
            decisions.append(k[:, one] @ a[j - 1, one] + k[:, two] @ a[i, two] + rho[len(decisions)])
        return np.stack(decisions, 1)

    return attrs, scores


@pytest.mark.parametrize("kind", KERNELS)
def test_kernels(kind):
    attrs, scores = machine([2, 1, 2], kind)
    check("SVMClassifier", scores, [X], attrs, results=2, result=1)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_transforms_of_many_scores(transform, dtype):
    attrs, scores = machine([2, 1, 2], "RBF", transform, *((0.1, 0.5) if transform == "PROBIT" else ()))
    check("SVMClassifier", lambda x: TRANSFORMS[transform](scores(x)), [X], attrs, results=2, result=1, dtype=dtype)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
def test_one_score_for_two_classes(transform):
    attrs, scores = machine([2, 3], "RBF", transform)

    def f(x):
        s = scores(x)
        if transform == "LOGISTIC":
            return sigmoid(np.concatenate([-s, s], 1))
        return np.concatenate([-s if transform == "NONE" else 1 - s, s], 1)

    check("SVMClassifier", f, [X], attrs, results=2, result=1)


def test_probit_of_one_score_for_two_classes_leaves_the_second_column_alone():
    attrs, scores = machine([2, 3], "RBF", "PROBIT", 0.1, 0.5)
    x, t = X.astype(np.float32), r(X.shape).astype(np.float32)
    p = one_node("SVMClassifier", [x], attrs, [np.zeros(3, np.int64), np.zeros((3, 2), np.float32)], DOMAIN, 18)
    got = run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": t})
    np.testing.assert_allclose(got[1][:, 0], probit(scores(X))[:, 0], rtol=1e-3)
    want = central(lambda x: probit(scores(x)), X, t)
    np.testing.assert_allclose(got[2], np.concatenate([want, np.zeros_like(want)], 1), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [1, 3])
def test_linear_classifier(classes, transform):
    w = 0.05 * W[:classes]
    attrs = dict(coefficients=w.ravel().tolist(), rho=[0.4], kernel_params=[0.0, 0.0, 0.0], post_transform=transform)
    attrs |= dict(classlabels_ints=list(range(classes)))
    applied = TRANSFORMS[transform if classes > 1 or transform == "PROBIT" else "NONE"]
    check("SVMClassifier", lambda x: applied(x @ w.T + 0.4), [X], attrs, results=2, result=1)


def test_a_score_of_zero_stays_out_of_softmax_zero():
    w = np.array([[1.0, 0.5], [2.0, 1.5], [-0.5, 0.5]])
    x, t = np.array([[0.4, 0.4]], np.float32), np.array([[0.7, -0.2]], np.float32)
    attrs = dict(coefficients=w.ravel().tolist(), rho=[0.0], kernel_params=[0.0, 0.0, 0.0], classlabels_ints=[0, 1, 2])
    attrs |= dict(post_transform="SOFTMAX_ZERO")
    p = one_node("SVMClassifier", [x], attrs, [np.zeros(1, np.int64), np.zeros((1, 3), np.float32)], DOMAIN, 18)
    got = run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": t})
    np.testing.assert_allclose(got[1][0], [*softmax(x[0] @ w[:2].T), 0], rtol=1e-6)
    want = central(lambda x: softmax(x @ w[:2].T), x[0].astype(np.float64), t[0])
    np.testing.assert_allclose(got[2][0], [*want, 0], rtol=1e-5)


def test_a_single_class_is_refused():
    attrs = dict(coefficients=[1.0], support_vectors=W[0].tolist(), vectors_per_class=[1], rho=[0.1])
    p = one_node("SVMClassifier", [X.astype(np.float32)], dict(attrs, classlabels_ints=[0]), 2, DOMAIN, 18)
    with pytest.raises(NotDifferentiable, match="single class"):
        differentiate(p, "forward")


# --- probabilities


def probabilities(scores, a, b, count):
    """Of classes, from scores of pairs: the minimum of sum (r_ji p_i - r_ij p_j)^2, as a least squares problem."""
    pairs = np.clip(1 / (1 + np.exp(scores * a + b)), 1e-7, 1 - 1e-7)
    rows = []
    for one in pairs:
        equations = np.zeros((len(one), count))
        for k, (i, j) in enumerate(combinations(range(count), 2)):
            equations[k, i], equations[k, j] = 1 - one[k], -one[k]
        # the last class has what is left of 1
        reduced, right = equations[:, :-1] - equations[:, -1:], -equations[:, -1]
        p = np.linalg.lstsq(reduced, right, rcond=None)[0]
        rows.append([*p, 1 - p.sum()])
    return np.array(rows)


def fitted(sizes, transform="NONE", sharp=1.0, scale=1.0):
    attrs, scores = machine(sizes, "RBF", transform, scale)
    pairs = len(attrs["rho"])
    rng = np.random.default_rng(pairs)
    a, b = -sharp * (0.5 + rng.random(pairs)), 0.3 * rng.standard_normal(pairs)
    attrs |= dict(prob_a=a.tolist(), prob_b=b.tolist())
    return attrs, lambda x: probabilities(scores(x), a, b, len(sizes))


@pytest.mark.parametrize("sizes", [[2, 3], [2, 1, 2], [1, 2, 1, 1, 3]])
def test_probabilities(sizes):
    attrs, f = fitted(sizes)
    # ONNX Runtime finds them by an iteration that stops early
    check("SVMClassifier", f, [X], attrs, results=2, result=1, atol=3e-3)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("sizes", [[2, 3], [2, 1, 2]])
def test_transforms_of_probabilities(sizes, transform):
    attrs, f = fitted(sizes, transform)
    check("SVMClassifier", lambda x: TRANSFORMS[transform](f(x)), [X], attrs, results=2, result=1, atol=1e-2)


def test_probabilities_against_differences_of_the_runtime():
    """Its iteration is off by a few thousandths, as a smooth function of the examples in between two stops."""
    attrs, _ = fitted([2, 1, 2], scale=3.0)
    x, t = X.astype(np.float32), np.random.default_rng(3).standard_normal(X.shape).astype(np.float32)
    p = one_node("SVMClassifier", [x], attrs, [np.zeros(3, np.int64), np.zeros((3, 3), np.float32)], DOMAIN, 18)
    run = run_in_ort(p)
    got = run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": t})[2]
    want = central(lambda x: run({"x0": x.astype(np.float32)})[1], x, t, 2e-2)
    np.testing.assert_allclose(got, want, atol=3e-3)
    assert np.abs(want).max() > 0.3


def test_certain_pairs():
    """Probabilities of pairs that are cut at 1e-7 do not move; with all of them cut, nothing does."""
    attrs, f = fitted([2, 1, 2], sharp=1000.0)
    x, t = X.astype(np.float32), r(X.shape).astype(np.float32)
    p = one_node("SVMClassifier", [x], attrs, [np.zeros(3, np.int64), np.zeros((3, 3), np.float32)], DOMAIN, 18)
    _, value, got = run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": t})
    np.testing.assert_allclose(value, f(X), atol=3e-3)
    np.testing.assert_array_equal(got, 0)


def test_small_probabilities_keep_their_digits():
    attrs, f = fitted([2, 1, 2], sharp=8.0)
    x, t = X.astype(np.float32), r(X.shape).astype(np.float32)
    p = one_node("SVMClassifier", [x], attrs, [np.zeros(3, np.int64), np.zeros((3, 3), np.float32)], DOMAIN, 18)
    got = run_in_ort(differentiate(p, "forward"))({"x0": x, "fwd_x0": t})[2]
    np.testing.assert_allclose(got, central(f, x.astype(np.float64), t), rtol=1e-4, atol=1e-9)
