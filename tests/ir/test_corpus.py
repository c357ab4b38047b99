"""Every model among onnx's own backend test cases goes through the IR unharmed: lifted, verified, printed and
parsed to the same text, written back as a valid model that computes what was recorded."""

from __future__ import annotations

import glob
import os
from functools import lru_cache

import numpy as np
import onnx
import onnx.reference
import onnxruntime
import pytest
from onnx.backend.test.loader import load_model_tests

from onnxad_ir.onnx_ir import from_onnx_ir, to_onnx_ir
from onnxad_ir.parser import parse_model
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.verify import verify

CHUNKS = 32
#: Parts of the names of operators whose results no two runs share.
RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout")


@lru_cache(maxsize=1)
def cases():
    kinds = ("node", "simple", "pytorch-converted", "pytorch-operator")
    with np.errstate(all="ignore"):
        found = [c for kind in kinds for c in load_model_tests(kind=kind)]
    assert len(found) > 1800
    return found


def model_of(case):
    return case.model if case.model is not None else onnx.load(os.path.join(case.model_dir, "model.onnx"))


def data_of(case):
    """Pairs of recorded inputs and outputs."""
    if case.data_sets is not None:
        return case.data_sets

    def read(folder, prefix):
        paths = sorted(glob.glob(f"{folder}/{prefix}_*.pb"), key=lambda p: int(p.split("_")[-1][:-3]))
        return [onnx.numpy_helper.to_array(onnx.load_tensor(p)) for p in paths]

    folders = sorted(glob.glob(f"{case.model_dir}/test_data_set_*"))
    return [(read(f, "input"), read(f, "output")) for f in folders]


def onnxruntime_runner(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=False)))


def reference_runner(model):
    session = onnx.reference.ReferenceEvaluator(model)
    return lambda inputs: session.run(None, dict(zip(session.input_names, inputs, strict=False)))


def results(runner, model, data):
    """The outputs for every recorded data set; an exception says that this runtime cannot run the model."""
    run = runner(model)
    with np.errstate(all="ignore"):
        return [run(list(inputs)) for inputs, _ in data]


def close(found, expected, rtol, atol):
    """True where two results (arrays, lists of results, None) agree."""
    if expected is None or found is None:
        return found is expected
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(
            close(f, e, rtol, atol) for f, e in zip(found, expected, strict=True)
        )
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        return False
    if expected.dtype.kind in "OSU":
        return found.astype(str).tolist() == expected.astype(str).tolist()
    if expected.dtype.kind == "c":
        return np.allclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    as_double = [x.astype(np.float64) for x in (found, expected)]
    return np.allclose(*as_double, rtol=rtol, atol=atol, equal_nan=True)


def through_the_ir(model):
    """`model` lifted, checked and written back."""
    lifted = from_proto(model)
    verify(lifted)
    text = print_model(lifted)
    parsed = parse_model(text)
    verify(parsed)
    assert print_model(parsed) == text
    written = to_proto(lifted)
    onnx.checker.check_model(written)
    assert [i.name for i in written.graph.input] == [i.name for i in model.graph.input]
    assert [o.name for o in written.graph.output] == [o.name for o in model.graph.output]
    again = to_proto(from_proto(written))
    assert again.SerializeToString(deterministic=True) == written.SerializeToString(deterministic=True)
    from_text = to_proto(parsed)
    onnx.checker.check_model(from_text)
    return written, from_text


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_round_trip(chunk):
    mine = cases()[chunk::CHUNKS]
    compared = 0
    for case in mine:
        model = model_of(case)
        written, from_text = through_the_ir(model)
        data = data_of(case)
        for runner in (onnxruntime_runner, reference_runner):
            try:
                original = results(runner, model, data)
            except Exception:
                continue  # This runtime cannot run the model as its author wrote it.
            break
        else:
            continue
        random = any(word in n.op_type for n in model.graph.node for word in RANDOM)
        twice = results(runner, model, data) if random else original  # once they may agree with the record by chance
        for candidate in (written, from_text):
            found = results(runner, candidate, data)
            for was, more, recorded, now in zip(original, twice, data, found, strict=True):
                if all(close(v, recorded[1], case.rtol, case.atol) for v in (was, more)):
                    assert close(now, recorded[1], case.rtol, case.atol), f"{case.name}: not what was recorded"
                elif not random:
                    assert close(now, was, 1e-6, 1e-7), f"{case.name}: not what the original gives"
        compared += 1
    assert compared > 0.75 * len(mine)  # Else nothing is proved: the runtimes run most of the corpus.


@pytest.mark.parametrize("chunk", range(4))
def test_through_onnx_ir(chunk):
    import onnx_ir

    for case in cases()[chunk::4]:
        model = model_of(case)
        lifted = from_onnx_ir(onnx_ir.from_proto(model))
        verify(lifted)
        assert print_model(lifted) == print_model(from_proto(model)), case.name
        onnx.checker.check_model(onnx_ir.to_proto(to_onnx_ir(lifted)))
