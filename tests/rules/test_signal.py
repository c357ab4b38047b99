"""Fourier transforms against finite differences."""

import numpy as np
import pytest

from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort, run_in_reference

R = np.random.default_rng(0)
r = R.standard_normal


def dft(x, length=None, axis=None, opset=20, constants=(), **attrs):
    options = dict(engine=attrs.pop("engine")) if "engine" in attrs else {}
    if opset < 20:
        attrs |= {} if axis is None else dict(axis=axis)
        axis = None
    inputs = [x, *(None if a is None else np.asarray(a, np.int64) for a in (length, axis))]
    while inputs[-1] is None:
        inputs.pop()
    given = [i for i in constants if i < len(inputs) and inputs[i] is not None]
    check_rule("DFT", inputs, attrs, opset=opset, constants=given, single=not options, **options)


CASES = [((2, 5, 3, 2), None, 1), ((2, 5, 3, 1), None, 2), ((2, 5, 3, 2), 7, -2), ((2, 5, 3, 2), 4, 1)]


@pytest.mark.parametrize("constants", [(), (1, 2)])
@pytest.mark.parametrize("opset", [19, 20])
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("dims, length, axis", [*CASES, ((2, 5, 3, 2), None, None)])
def test_dft(dims, length, axis, inverse, opset, constants):
    dft(r(dims), length, axis, opset, constants, inverse=inverse)


@pytest.mark.parametrize("opset", [19, 20])
@pytest.mark.parametrize("length", [None, 7, 4])
def test_one_sided(length, opset):
    dft(r((2, 5, 3, 1)), length, 1, opset, onesided=1)


@pytest.mark.parametrize("constants", [(), (1, 2)])
@pytest.mark.parametrize("length", [None, 8, 7, 5, 12])
def test_inverse_one_sided(length, constants):
    """ONNX Runtime is wrong where the spectrum has not length // 2 + 1 bins; numpy and the specification agree."""
    dft(r((2, 5, 3, 2)), length, 1, constants=constants, onesided=1, inverse=1, engine=run_in_reference)


def test_inverse_one_sided_in_single_precision():
    check_rule("DFT", [r((2, 5, 3, 2)), None, np.asarray(1)], dict(onesided=1, inverse=1), order=1)


@pytest.mark.parametrize("constants", [(), (1, 3)])
@pytest.mark.parametrize("channels, onesided", [(1, 1), (1, 0), (2, 0)])
def test_stft(channels, onesided, constants):
    x, step, attrs = r((2, 11, channels)), np.asarray(3), dict(onesided=onesided)
    check_rule("STFT", [x, step, r((4,))], attrs, constants=[i for i in constants if i < 2])
    check_rule("STFT", [x, step, None, np.asarray(5)], attrs, constants=constants)


def test_a_rule_of_an_old_opset_writes_the_old_spelling():
    p = one_node("DFT", [r((1, 4, 1))], {}, [np.zeros((1, 4, 2))], "", 18)
    first, own = [n for n in differentiate(p, "reverse").graph.node if n.op_type == "DFT"]
    assert len(first.input) == 1 and len(own.input) == 2
    assert {a.name for a in own.attribute} == {"axis"}


@pytest.mark.parametrize("channels, onesided", [(2, 0), (1, 1)])
def test_the_adjoint_is_as_exact_as_the_transform(channels, onesided):
    """ONNX Runtime divides an inverse transform by a length that it rounds to single precision."""
    bins = 4 if onesided else 6
    x, ct, axis = r((1, 6, channels)), r((1, bins, 2)), np.asarray(1)
    p = one_node("DFT", [x, None, axis], dict(onesided=onesided), [np.zeros((1, bins, 2))], "", 20, constants=[2])
    got = run_in_ort(differentiate(p, "reverse"))({"x0": x, "adj_y0": ct})[-1]
    f = np.exp(-2j * np.pi * np.outer(np.arange(bins), np.arange(6)) / 6)
    want = np.conj(f).T @ (ct[0, :, 0] + 1j * ct[0, :, 1])
    np.testing.assert_allclose(got[0], np.stack([want.real, want.imag], -1)[:, :channels], rtol=1e-12, atol=1e-12)
