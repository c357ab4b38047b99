"""Fourier transforms against finite differences."""

import numpy as np
import pytest

from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_reference

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
    assert {a.name for a in own.attribute} == {"axis", "inverse"}
