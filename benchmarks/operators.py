"""Operators one by one: value and gradient in ONNX Runtime against PyTorch eager, to find those that cost too much.

    pip install ".[compare]"
    OMP_NUM_THREADS=1 python benchmarks/operators.py [names]

Each is differentiated with respect to its floating operands and its weights. PyTorch and ONNX Runtime are timed in
turn, round by round; printed are medians in milliseconds of PyTorch, of the value alone and of value and gradient in
ONNX Runtime, the ratio of the gradients, and the largest error relative to the largest element of autograd's gradient.
The slowest relative to PyTorch come last. Where the value alone is slow, the runtime's kernel is.
"""

import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from run_time import export, median_times, ours, session
from torch import nn

ROUNDS, SECONDS = 15, 0.3


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *operands):
        return self.f(*operands)


class First(nn.Module):
    """The first result of a module that has several."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *operands):
        return self.module(*operands)[0]


def operators():
    """(module, operands) by name."""
    torch.manual_seed(0)
    r, ints = torch.randn, torch.randint
    image, small, rows = r(4, 32, 56, 56), r(4, 16, 28, 28), r(4096, 64)
    tokens, sequence = r(8, 128, 256), r(40, 16, 64)
    layers = {
        "conv 3x3": (nn.Conv2d(32, 64, 3, padding=1), image),
        "conv 3x3 stride 2": (nn.Conv2d(32, 64, 3, stride=2, padding=1), image),
        "conv 1x1": (nn.Conv2d(32, 64, 1), image),
        "conv 3x3 dilated": (nn.Conv2d(32, 32, 3, dilation=2, padding=2), image),
        "conv 3x3 in groups": (nn.Conv2d(32, 64, 3, groups=4, padding=1), image),
        "depthwise 3x3": (nn.Conv2d(32, 32, 3, groups=32, padding=1), image),
        "depthwise 3x3 stride 2": (nn.Conv2d(32, 32, 3, groups=32, padding=1, stride=2), image),
        "depthwise 7x7": (nn.Conv2d(32, 32, 7, groups=32, padding=3), image),
        "conv 1d": (nn.Conv1d(64, 64, 5, padding=2), r(8, 64, 200)),
        "depthwise 1d": (nn.Conv1d(64, 64, 5, padding=2, groups=64), r(8, 64, 200)),
        "conv 3d": (nn.Conv3d(8, 16, 3, padding=1), r(2, 8, 12, 24, 24)),
        "transposed conv": (nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), r(4, 32, 28, 28)),
        "batch norm": (nn.BatchNorm2d(32), image),
        "batch norm, of the batch": (nn.BatchNorm2d(32, track_running_stats=False), image),
        "group norm": (nn.GroupNorm(8, 32), image),
        "instance norm": (nn.InstanceNorm2d(32, affine=True), image),
        "layer norm": (nn.LayerNorm(256), tokens),
        "rms norm": (nn.RMSNorm(256), tokens),
        "prelu": (nn.PReLU(32), image),
        "linear": (nn.Linear(256, 256), r(512, 256)),
        "linear of rank 3": (nn.Linear(256, 256), r(8, 64, 256)),
        "bilinear": (nn.Bilinear(32, 32, 32), r(64, 32), r(64, 32)),
        "embedding": (nn.Embedding(5000, 128), ints(0, 5000, (16, 64))),
        "attention layer": (First(nn.MultiheadAttention(128, 8, batch_first=True)), *[r(4, 64, 128) for _ in range(3)]),
        "encoder layer": (nn.TransformerEncoderLayer(128, 8, 256, dropout=0.0, batch_first=True), r(4, 64, 128)),
        "lstm": (First(nn.LSTM(64, 64)), sequence),
        "gru": (First(nn.GRU(64, 64)), sequence),
        "rnn": (First(nn.RNN(64, 64)), sequence),
    }
    functions = {
        "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), image),
        "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), image),
        "global average pool": (lambda x: F.adaptive_avg_pool2d(x, 1), image),
        "upsample nearest": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), small),
        "upsample bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), small),
        "upsample bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), small),
        "grid sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), small, r(4, 28, 28, 2) * 0.5),
        "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), image),
        "unfold": (lambda x: F.unfold(x, 3, padding=1), small),
        "fold": (lambda x: F.fold(x, (28, 28), 3, padding=1), r(2, 144, 784)),
        "pad": (lambda x: F.pad(x, (2, 2, 2, 2)), image),
        "pad reflect": (lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect"), image),
        "softmax": (lambda x: F.softmax(x, -1), r(64, 8, 64, 64)),
        "log softmax": (lambda x: F.log_softmax(x, -1), r(512, 1000)),
        "cross entropy": (lambda x, t: F.cross_entropy(x, t, reduction="none"), r(512, 1000), ints(0, 1000, (512,))),
        "attention": (F.scaled_dot_product_attention, *[r(4, 8, 128, 32) for _ in range(3)]),
        "matmul": (torch.matmul, r(16, 64, 64), r(16, 64, 64)),
        "matmul, one for all": (torch.matmul, r(16, 64, 64), r(64, 64)),
        "einsum": (lambda a, b: torch.einsum("bijc,bjd->bicd", a, b), r(8, 32, 32, 16), r(8, 32, 16)),
        "cumsum": (lambda x: x.cumsum(-1), r(64, 1000)),
        "sum": (lambda x: x.sum(1), image),
        "max": (lambda x: x.amax(1), image),
        "product": (lambda x: x.prod(-1), rows),
        "norm": (lambda x: x.norm(dim=-1), rows),
        "normalize": (lambda x: F.normalize(x, dim=-1), rows),
        "logsumexp": (lambda x: x.logsumexp(-1), rows),
        "variance": (lambda x: x.var(-1), rows),
        "gather elements": (lambda x, i: x.gather(1, i), r(512, 1000), ints(0, 1000, (512, 200))),
        "rows by index": (lambda x, i: x.index_select(0, i), r(5000, 64), ints(0, 5000, (2000,))),
        "columns by index": (lambda x, i: x.index_select(1, i), r(64, 200, 64), ints(0, 200, (300,))),
        "scatter add": (lambda x, i, u: x.scatter_add(0, i, u), r(1000, 64), ints(0, 1000, (4000, 64)), r(4000, 64)),
        "slice with steps": (lambda x: x[:, :, 3:40, ::2], image),
        "concat": (lambda a, b: torch.cat([a, b], 1), image, image * 2),
        "gated chunks": (lambda x: (lambda a, b: a * torch.sigmoid(b))(*x.chunk(2, 1)), image),
        "transpose": (lambda x: x.permute(0, 2, 3, 1).contiguous(), image),
        "where": (lambda x: torch.where(x > 0, x * 2, x * 0.1), image),
        "clamp": (lambda x: x.clamp(-1, 1), image),
        "bias of channels": (lambda x, b: x + b[None, :, None, None], image, r(32)),
        "scale of channels": (lambda x, b: x * b[None, :, None, None], image, r(32)),
        "pair distances": (lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1), r(200, 16), r(200, 16)),
        "sort": (lambda x: x.sort(-1)[0], r(512, 200)),
        "top k": (lambda x: x.topk(20, -1)[0], r(512, 200)),
        "roll": (lambda x: torch.roll(x, (3, 3), (2, 3)), image),
        "rotary": (
            lambda x, c, s: x * c + torch.cat([-x[..., 16:], x[..., :16]], -1) * s,
            r(4, 8, 128, 32),
            r(128, 32),
            r(128, 32),
        ),
        "div": (lambda x: 1 / (x * x + 1), image),
        "power": (lambda x: x**3, image),
    }
    for f in (F.relu, F.gelu, F.silu, F.elu, F.softplus, F.mish, F.hardswish, F.sigmoid, F.tanh, F.leaky_relu):
        functions[f.__name__] = (f, image)
    for f in (torch.exp, torch.sin, torch.abs):
        functions[f.__name__] = (f, image)
    calls = {name: (Call(f), *operands) for name, (f, *operands) in functions.items()}
    return {name: (module.eval(), operands) for name, (module, *operands) in (layers | calls).items()}


def measure(module, operands):
    """(times of PyTorch, of the value and of the gradient in ONNX Runtime, the error)."""
    parameters = dict(module.named_parameters())
    xs = [x.clone().requires_grad_(x.is_floating_point()) for x in operands]
    cotangent = torch.randn_like(module(*xs))

    def autograd():
        for p in (*parameters.values(), *xs):
            p.grad = None
        module(*xs).backward(cotangent)

    model = export(module, tuple(operands), 20)
    names = [i.name for i in model.graph.input]
    feeds = dict(zip(names, [x.numpy() for x in operands], strict=True))
    floating = {n: x for n, x in zip(names, xs, strict=True) if x.requires_grad}
    weights = {n: p for n, p in parameters.items() if n in {t.name for t in model.graph.initializer}}
    wanted = {**floating, **weights}
    adjoint, full = ours(model, list(wanted), feeds, cotangent.numpy())
    primal, run = session(model), session(adjoint)
    full = {k: v for k, v in full.items() if k in {i.name for i in run.get_inputs()}}
    autograd()
    error = 0.0
    for p, got in zip(wanted.values(), run.run([f"adj_{n}" for n in wanted], full), strict=True):
        want = p.grad.numpy()
        error = max(error, float(np.abs(got - want).max() / (np.abs(want).max() + 1e-12)))
    calls = [autograd, lambda: primal.run(None, feeds), lambda: run.run(None, full)]
    return (*median_times(calls, ROUNDS, SECONDS), error)


def main():
    found = operators()
    rows = []
    for name in sys.argv[1:] or found:
        t_torch, t_value, t_ours, error = measure(*found[name])
        rows.append((t_ours / t_torch, f"{name:26s} {t_torch:8.2f} {t_value:8.2f} {t_ours:8.2f}", error))
    print(f"{'operator':26s} {'torch':>8s} {'value':>8s} {'onnxad':>8s} {'ratio':>6s}   error")
    for ratio, text, error in sorted(rows):
        print(f"{text} {ratio:6.2f}   {error:.0e}")


if __name__ == "__main__":
    main()
