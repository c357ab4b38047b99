"""Models of one recurrent node."""

import numpy as np
from onnx import TensorProto, helper

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent(
    op, steps=3, batch=2, width=3, hidden=4, bias=True, lengths=False, initial=True, peepholes=False, outputs=None,
    dtype=np.float32, **attrs,
):  # fmt: skip
    """A model of RNN, GRU or LSTM and feeds for it, every operand an input."""
    rng = np.random.default_rng(3)
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    rows = GATES[op] * hidden
    x = rng.standard_normal((steps, batch, width))
    states = [rng.standard_normal((directions, batch, hidden)) for _ in range(2)]
    if attrs.get("layout"):
        x, states = x.swapaxes(0, 1), [s.swapaxes(0, 1) for s in states]
    feeds = {
        "X": x,
        "W": rng.standard_normal((directions, rows, width)) * 0.5,
        "R": rng.standard_normal((directions, rows, hidden)) * 0.5,
    }
    names = ["X", "W", "R", "", "", "", "", ""]
    if bias:
        names[3] = "B"
        feeds["B"] = rng.standard_normal((directions, 2 * rows)) * 0.3
    if lengths:
        names[4] = "L"
        feeds["L"] = np.array(([steps, 2, 1] * batch)[:batch], np.int32)
    if initial:
        names[5] = "h0"
        feeds["h0"] = states[0]
        if op == "LSTM":
            names[6] = "c0"
            feeds["c0"] = states[1]
    if peepholes:
        names[7] = "P"
        feeds["P"] = rng.standard_normal((directions, 3 * hidden)) * 0.5
    while not names[-1]:
        names.pop()
    feeds = {k: np.ascontiguousarray(v if v.dtype == np.int32 else v.astype(dtype)) for k, v in feeds.items()}
    results = ["Y", "Yh", "Yc"] if op == "LSTM" else ["Y", "Yh"]
    outputs = outputs or results
    kind = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
    node = helper.make_node(op, names, [r if r in outputs else "" for r in results], hidden_size=hidden, **attrs)
    graph = helper.make_graph(
        [node],
        "recurrent",
        [helper.make_tensor_value_info(k, TensorProto.INT32 if k == "L" else kind, v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(o, kind, None) for o in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), feeds


VARIANTS = [
    *[(op, {"direction": d}) for op in GATES for d in ("forward", "reverse", "bidirectional")],
    *[(op, {"bias": False}) for op in GATES],
    *[(op, {"initial": False}) for op in GATES],
    *[(op, {"lengths": True, "direction": "bidirectional"}) for op in GATES],
    *[(op, {"clip": 0.4}) for op in GATES],
    *[(op, {"outputs": ["Yh"]}) for op in GATES],
    ("GRU", {"linear_before_reset": 1}),
    ("GRU", {"linear_before_reset": 1, "bias": False, "direction": "bidirectional"}),
    ("LSTM", {"peepholes": True}),
    ("LSTM", {"peepholes": True, "direction": "bidirectional", "clip": 0.5}),
    ("LSTM", {"input_forget": 1}),
    ("LSTM", {"outputs": ["Yc"]}),
    *[
        ("RNN", {"activations": [a]})
        for a in ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus")
    ],
    ("RNN", {"activations": ["LeakyRelu", "Elu"], "activation_alpha": [0.3, 0.7], "direction": "bidirectional"}),
    ("RNN", {"activations": ["Affine"], "activation_alpha": [0.8], "activation_beta": [0.1]}),
    ("GRU", {"activations": ["HardSigmoid", "Softsign"]}),
    (
        "LSTM",
        {
            "activations": ["HardSigmoid", "ScaledTanh", "Softsign"],
            "activation_alpha": [0.3, 0.7],
            "activation_beta": [0.4, 0.9],
        },
    ),
]


def label(variant):
    """A readable test id."""
    op, options = variant
    return "-".join([op, *(f"{k}={v}" for k, v in options.items())])
