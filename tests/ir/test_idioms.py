"""Idioms that are right for any rank."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from support import evaluate

from onnxad_ir.builder import Builder
from onnxad_ir.proto import from_proto, to_proto


def applied(idiom, x, known):
    """What an idiom makes of an operand whose rank is known, or is not."""
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape if known else None)
    graph = helper.make_graph([], "g", [info], [])
    model = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    op = Builder(model, model.graph)
    y = idiom(op, op.var(model.graph.inputs[0]))
    assert (y.rank is not None) == known
    model.graph.set_outputs([op.place_identity(y.value, "y")])
    return evaluate(to_proto(model), {"x": x}, 0)["y"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (0, 3, 4), (2, 0, 4), (2, 3, 0)])
@pytest.mark.parametrize("middle, end", [(1, None), (1, 2), (1, -1), (-1, None), (-2, -1)])
def test_exchange(middle, end, shape, known):
    rank = len(shape)
    first, last = middle % rank, rank if end is None else end % rank if end < 0 else end
    order = [*range(first, last), *range(first), *range(last, rank)]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    got = applied(lambda op, x: op.exchange(x, middle, end), x, known)
    assert np.array_equal(got, x.transpose(order))


@pytest.mark.parametrize(
    ("of", "like"), [((2, 3), (2, 3)), ((2, 3), (1, 3)), ((2, 3), (3,)), ((3,), (2, 3)), ((), (2,))]
)
def test_fit_sums_or_repeats(of, like):
    x = np.random.default_rng(0).standard_normal(of).astype(np.float32)
    got = applied(lambda op, x: op.fit(x, op.const(np.zeros(like, np.float32))), x, True)
    want = {(1, 3): x.sum(0, keepdims=True), (3,): x.sum(0)}.get(like) if of == (2, 3) and like != of else x
    np.testing.assert_allclose(got, np.broadcast_to(want, like), rtol=1e-6)
    assert got.shape == like
