"""Jacobians and Hessians with respect to an input: ONNX Runtime against torch.func, one thread.

    pip install ".[compare]"
    OMP_NUM_THREADS=1 python benchmarks/dense.py

torch.func differentiates in both modes; the faster one counts. Medians in milliseconds, timed in turn.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from run_time import export, median_times, session
from torch import func, nn

from onnxad_passes import hessian, jacobian


class Last(nn.Module):
    """The last output of a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(8, 16)

    def forward(self, x):
        return self.layer(x)[0][-1]


class Energy(nn.Module):
    """The sum of squares of a network's outputs."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x).pow(2).sum()


class Pairs(nn.Module):
    """Lennard-Jones energies, one per particle."""

    def forward(self, x):
        apart = x[:, None] - x[None]
        square = (apart * apart).sum(-1) + 10 * torch.eye(x.shape[0])
        return (square**-6 - square**-3).sum(-1)


def networks():
    """(module, input) by name."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 16))
    images = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(8 * 100, 10))
    return {
        "dense layers": (dense, torch.randn(1, 32)),
        "convolution": (images, torch.randn(1, 3, 10, 10)),
        "recurrent layer": (Last(), torch.randn(12, 1, 8)),
        "pairs": (Pairs(), torch.randn(20, 3)),
    }


def compare(name, model, output, theirs, x):
    """Print the times of a model and of the fastest of some functions."""
    run = session(model)
    feeds = {model.graph.input[0].name: x.numpy()}
    want = theirs[0](x).detach().numpy()
    got = run.run([output], feeds)[0]
    error = np.abs(got.reshape(want.shape) - want).max() / np.abs(want).max()
    *others, ours = median_times([*[lambda f=f: f(x) for f in theirs], lambda: run.run([output], feeds)], 7, 1.0)
    best = min(others)
    print(f"{name:26s} {got.size:8d} {best:9.2f} {ours:9.2f} {ours / best:7.2f}   {error:.0e}", flush=True)


def main():
    print(f"{'':26s} {'elements':>8s} {'torch':>9s} {'onnxad':>9s} {'ratio':>7s}   error")
    for name, (module, x) in networks().items():
        module.eval()
        model = export(module, (x,), 20)
        source, sink = model.graph.input[0].name, model.graph.output[0].name
        dense = jacobian(model, [source])
        compare(f"{name}: Jacobian", dense, f"jac_{sink}_{source}", [func.jacrev(module), func.jacfwd(module)], x)
        energy = Energy(module)
        model = export(energy, (x,), 20)
        source = model.graph.input[0].name
        theirs = [func.hessian(energy), func.jacrev(func.jacrev(energy))]
        compare(f"{name}: Hessian", hessian(model), f"hess_{source}_{source}", theirs, x)


if __name__ == "__main__":
    main()
