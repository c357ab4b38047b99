"""Recurrent layers: value and weight gradients in ONNX Runtime against PyTorch eager, at several sizes.

    pip install ".[compare]"
    OMP_NUM_THREADS=1 python benchmarks/recurrent.py

One layer over `steps` steps, single precision, one thread; all systems are timed in turn, round by round, and medians
are printed. An LSTM is run in both ways of `onnxad_rules.lstm_adjoint`: with the fused operator, whose gates are
computed again, and by a Scan that keeps them. `*` marks the one that is chosen.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from run_time import session

from onnxad_passes import reverse
from onnxad_rules import lstm_adjoint

torch.set_num_threads(1)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
#: steps, batch, inputs, hidden units
SIZES = [
    (100, 1, 16, 32),
    (100, 1, 64, 128),
    (100, 8, 16, 32),
    (100, 4, 64, 128),
    (100, 16, 64, 128),
    (30, 32, 128, 512),
]
ROUNDS = 40


def layer(kind, steps, batch, width, hidden):
    """A model of one layer without initial state whose weights are initializers, and feeds."""
    rng = np.random.default_rng(0)
    rows = GATES[kind] * hidden
    shapes = {"W": (1, rows, width), "R": (1, rows, hidden), "B": (1, 2 * rows)}
    options = {"linear_before_reset": 1} if kind == "GRU" else {}  # what PyTorch does
    graph = helper.make_graph(
        [helper.make_node(kind, ["X", *shapes], ["Y"], hidden_size=hidden, **options)],
        "layer",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, (steps, batch, width))],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, (steps, 1, batch, hidden))],
        [onnx.numpy_helper.from_array(0.1 * rng.standard_normal(s).astype(np.float32), k) for k, s in shapes.items()],
    )
    feeds = {"X": (steps, batch, width), "adj_Y": (steps, 1, batch, hidden)}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return model, {k: rng.standard_normal(s).astype(np.float32) for k, s in feeds.items()}


def in_torch(kind, feeds, hidden):
    """PyTorch's value and weight gradients."""
    net = getattr(torch.nn, kind)(feeds["X"].shape[-1], hidden)
    x, ct = torch.tensor(feeds["X"]), torch.tensor(feeds["adj_Y"]).squeeze(1)

    def run():
        net.zero_grad()
        net(x)[0].backward(ct)

    return run


def in_onnxruntime(model, feeds):
    """Ours."""
    s = session(reverse(model, inputs=["W", "R", "B"], layout="single"))
    return lambda: s.run(None, feeds)


def main():
    chosen = lstm_adjoint.TAPE_FROM
    print("| layer | steps, batch, inputs, hidden | PyTorch ms | fused / PyTorch | Scan / PyTorch |")
    print("|---|---|---|---|---|")
    for kind in GATES:
        for size in SIZES:
            model, feeds = layer(kind, *size)
            runs = {"torch": in_torch(kind, feeds, size[-1])}
            for name, least in (("fused", 2**62), ("scan", 0)) if kind == "LSTM" else (("fused", chosen),):
                lstm_adjoint.TAPE_FROM = least
                runs[name] = in_onnxruntime(model, feeds)
            times = {name: [] for name in runs}
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    start = time.perf_counter()
                    run()
                    times[name].append(time.perf_counter() - start)
            ms = {name: 1e3 * float(np.median(t)) for name, t in times.items()}
            best = "scan" if kind == "LSTM" and size[1] * size[3] >= chosen else "fused"
            ratios = [f"{ms[k] / ms['torch']:.2f}{' *' * (k == best)}" if k in ms else "-" for k in ("fused", "scan")]
            print(
                f"| {kind} | {', '.join(map(str, size))} | {ms['torch']:.2f} | {ratios[0]} | {ratios[1]} |", flush=True
            )


main()
