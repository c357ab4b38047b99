"""Recurrent layers: one kernel where the entries share the weights, a Scan over time where they do not."""

import numpy as np
import pytest
from batched import check_batched, node_model

RNG = np.random.default_rng(0)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def floats(*shape):
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def operands(op, directions, layout=0):
    steps, batch, width, hidden, gates = 4, 3, 2, 2, GATES[op]
    x = floats(batch, steps, width) if layout else floats(steps, batch, width)
    state = [floats(batch, directions, hidden) if layout else floats(directions, batch, hidden)]
    return [
        x,
        floats(directions, gates * hidden, width),
        floats(directions, gates * hidden, hidden),
        floats(directions, 2 * gates * hidden),
        np.array([4, 1, 3], np.int32),
        *state * (2 if op == "LSTM" else 1),
    ]


def check(op, which, fused, **attrs):
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    values = operands(op, directions)
    for hide in ((), ("dims",)):
        outputs = 3 if op == "LSTM" else 2
        model = node_model(op, values, {"hidden_size": 2, **attrs}, outputs, hide=hide)
        feeds = {f"x{i}": v for i, v in enumerate(values)}
        for choice in which:
            vectorized = check_batched(model, feeds, [f"x{i}" for i in choice], scan=not fused, tolerance=1e-5)
            assert any(n.op_type == op for n in vectorized.graph.node) == fused


@pytest.mark.parametrize("op", GATES)
def test_the_same_weights(op):
    last = len(operands(op, 1)) - 1
    check(op, [[0], [4], [last], [0, last], [0, 4, 5]], True)
    check(op, [[0], [0, last]], True, direction="bidirectional")


@pytest.mark.parametrize("op", GATES)
def test_weights_of_every_entry(op):
    check(op, [[1], [0, 2], [3]], False, direction="reverse")
