"""Export recurrent PyTorch modules and control flow, and record their gradients: for tests/passes/test_recorded_recurrent.py.

    pip install torch==2.13.0 onnxscript
    python tests/recorded/record_recurrent.py

It writes recurrent/NAME.onnx, exported without folding weights so that every parameter is to be found in the model, and
recurrent/NAME.npz with the inputs, every output and its cotangent, and autograd's gradient of every input and parameter.
"""

import pathlib
import warnings

import numpy as np
import onnx
import torch
from record import clean
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

HERE = pathlib.Path(__file__).parent / "recurrent"
OPSET = 18


class Flat(nn.Module):
    """A recurrent module whose initial states and final states are tensors one by one."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, *states):
        given = None if not states else states[0] if len(states) == 1 else tuple(states)
        y, ends = self.module(x, given)
        return (y, *ends) if isinstance(ends, tuple) else (y, ends)


class Cond(nn.Module):
    """torch.cond: two branches with weights of their own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x, limit):
        return torch.cond(x.sum() > limit.sum(), lambda x: torch.tanh(self.a(x)) * 2, lambda x: self.b(x * x), (x,))


class While(nn.Module):
    """while_loop: the number of iterations depends on the values."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        def go(i, x):
            return (i < 9) & (x.sum() < 6)

        def step(i, x):
            return i + 1, torch.tanh(self.a(x)) + 0.3 + x

        return while_loop(go, step, (torch.zeros((), dtype=torch.int64), x))[1]


class Scan(nn.Module):
    """scan: a recurrent cell with a state, stacked results, and captured weights."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, h, xs):
        def step(h, x):
            new = torch.tanh(self.a(h) + x)
            return new, self.b(new * x)

        return scan(step, h, xs)


def zoo():
    """Modules with their inputs."""
    r = torch.randn
    return {
        "lstm": (Flat(nn.LSTM(4, 3)), (r(5, 2, 4), r(1, 2, 3), r(1, 2, 3))),
        "lstm_two_layers": (
            Flat(nn.LSTM(4, 3, num_layers=2, bidirectional=True, batch_first=True)),
            (r(2, 5, 4), r(4, 2, 3), r(4, 2, 3)),
        ),
        "lstm_no_states": (Flat(nn.LSTM(4, 3, bidirectional=True)), (r(5, 2, 4),)),
        "gru": (Flat(nn.GRU(4, 3)), (r(5, 2, 4), r(1, 2, 3))),
        "gru_two_layers": (
            Flat(nn.GRU(4, 3, num_layers=2, bidirectional=True, batch_first=True)),
            (r(2, 5, 4), r(4, 2, 3)),
        ),
        "gru_no_bias": (Flat(nn.GRU(4, 3, bias=False)), (r(5, 2, 4),)),
        "rnn": (Flat(nn.RNN(4, 3)), (r(5, 2, 4), r(1, 2, 3))),
        "rnn_two_layers": (
            Flat(nn.RNN(4, 3, num_layers=2, bidirectional=True, batch_first=True)),
            (r(2, 5, 4), r(4, 2, 3)),
        ),
        "rnn_relu": (Flat(nn.RNN(4, 3, nonlinearity="relu", bidirectional=True)), (r(5, 2, 4),)),
        "cond_then": (Cond(), (r(2, 4), torch.tensor([-50.0, 1.0]))),
        "cond_else": (Cond(), (r(2, 4), torch.tensor([50.0, 1.0]))),
        "while": (While(), (r(2, 4),)),
        "scan": (Scan(), (r(2, 4), r(5, 2, 4))),
    }


def main():
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    HERE.mkdir(exist_ok=True)
    for name, (module, inputs) in zoo().items():
        with torch.no_grad():  # no two parameters equal, so that the exporter cannot merge them
            for p in module.parameters():
                p.add_(0.3 * torch.randn_like(p))
        xs = [x.clone().requires_grad_() for x in inputs]
        ys = module(*xs)
        ys = ys if isinstance(ys, tuple) else (ys,)
        cotangents = [torch.randn_like(y) for y in ys]
        torch.autograd.backward(ys, cotangents)
        arrays = {f"in_{i}": x.detach().numpy() for i, x in enumerate(inputs)}
        arrays |= {f"out_{i}": y.detach().numpy() for i, y in enumerate(ys)}
        arrays |= {f"cotangent_{i}": c.numpy() for i, c in enumerate(cotangents)}
        arrays |= {f"grad_in_{i}": x.grad.numpy() for i, x in enumerate(xs) if x.grad is not None}
        arrays |= {f"grad_{n}": p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
        np.savez_compressed(HERE / f"{name}.npz", **arrays)
        program = torch.onnx.export(
            module.eval(), inputs, dynamo=True, opset_version=OPSET, verbose=False, optimize=False
        )
        onnx.save(clean(program.model_proto), HERE / f"{name}.onnx")


if __name__ == "__main__":
    main()
