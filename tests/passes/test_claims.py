"""What inference says of values (extents, equal symbols, contents) is what a run of the model gives."""

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from random_models import Drawn

from onnxad_ir import dims
from onnxad_ir.names import name_model
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import TensorType
from onnxad_passes import run_pipeline
from onnxad_passes.forward import Forward
from onnxad_passes.reverse import Reverse


def number(d, symbols):
    """An extent with symbols replaced; None where one is not known."""
    if isinstance(d, int):
        return d
    atoms = {a for m in dims.terms(d) for a in m}
    if not atoms <= symbols.keys():
        return None
    return sum(c * int(np.prod([symbols[a] for a in m], initial=1)) for m, c in dims.terms(d).items())


def check_claims(model, feeds):
    """Compare every type and content in the main graph with a run; how many extents were compared."""
    names, proto = name_model(model), to_proto(model)
    results = [v for n in model.graph.nodes for v in n.outputs if v.users]
    outputs = {o.name for o in proto.graph.output}
    proto.graph.output.extend(helper.make_empty_tensor_value_info(names[v]) for v in results if names[v] not in outputs)
    run = dict(zip([o.name for o in proto.graph.output], ReferenceEvaluator(proto).run(None, feeds), strict=True))
    arrays = [(v, np.asarray({**feeds, **run}[names[v]])) for v in (*model.graph.inputs, *results)]
    arrays = [(v, a) for v, a in arrays if isinstance(v.type, TensorType)]
    symbols = {}
    for v, a in arrays:
        assert v.shape is None or len(v.shape) == a.ndim, (v.producer, v.shape, a.shape)
        for d, extent in zip(v.shape or (), a.shape, strict=False):
            if isinstance(d, str) and not isinstance(d, dims.Expr):
                assert symbols.setdefault(d, extent) == extent, (v.producer, v.shape, a.shape)
    compared = 0
    for v, a in arrays:
        for d, extent in zip(v.shape or (), a.shape, strict=False):
            claimed = number(d, symbols)
            assert claimed is None or claimed == extent, (v.producer, v.shape, a.shape)
            compared += claimed is not None
        if v.content is not None:
            assert a.ndim <= 1 and len(v.content) == a.size, (v.producer, v.content, a)
            assert all(number(d, symbols) in (None, x) for d, x in zip(v.content, a.flat, strict=True)), v.producer
    return compared


@pytest.mark.parametrize("start", range(0, 150, 50))
def test_claims_hold(start):
    compared = 0
    for seed in range(start, start + 50):
        drawn = Drawn(seed)
        model, names, _ = drawn.model()
        lifted, names = from_proto(model), None if names is None else tuple(names)
        rng, known = np.random.default_rng(seed), {**drawn.values, **drawn.weights}
        for p in ("fold-shapes", [Forward(names)], [Reverse(names)]):
            out = run_pipeline(lifted, p)
            seeds = [v.name for v in out.graph.inputs[len(drawn.inputs) :]]
            compared += check_claims(
                out, {**drawn.inputs, **{k: rng.standard_normal(known[k[4:]].shape) for k in seeds}}
            )
    assert compared > 2000
