"""Networks with loops and branches that the exporters write as such; each makes (module, example inputs).

`scan`, `while_loop` and `cond` are exported by the newer exporter, scripts by the older one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch_sequences import Made


class Weighted(nn.Module):
    """A square weight and a bias, called `w` and `b`."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(0.5 * torch.randn(3, 3)), nn.Parameter(torch.randn(3))


class Recurrence(Weighted):
    """A scan of two states, a forgetting one and a sum."""

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        def step(state: tuple[Tensor, Tensor], x: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            h, total = state
            h = torch.tanh(h @ self.w + x)
            return (h, total + h * self.b), h * x

        (h, total), ys = scan(step, (h, torch.zeros_like(h)), x)
        return h + total, ys


class Backwards(Weighted):
    """A scan from the end, with two sequences."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        def step(h: Tensor, xs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            h = 0.9 * h + xs[0] * xs[1]
            return h, h.sin() @ self.w

        return scan(step, self.b, (x, y), reverse=True)  # type: ignore[no-any-return]


class Branch(Weighted):
    """A branch on the input's sign."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda a: torch.tanh(a @ self.w), lambda a: a * self.b.sum(), (x,))  # type: ignore


class BranchInScan(Weighted):
    """A branch in every iteration of a scan."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.cond(x.sum() > 0, lambda h, x: torch.tanh(h @ self.w + x), lambda h, x: 0.5 * h * x, (h, x))
            return h, h * 2

        return scan(step, h, x)[1]  # type: ignore[no-any-return]


class While(Weighted):
    """A loop with a count, and one that ends when the state is small."""

    def forward(self, x: Tensor) -> Tensor:
        start = torch.tensor(0)
        _, y = while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, torch.tanh(a @ self.w) + self.b), (start, x))
        return while_loop(lambda i, a: a.abs().max() > 0.2, lambda i, a: (i + 1, 0.6 * a), (start, y))[1]  # type: ignore


@torch.jit.script
def _collect(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    found: list[Tensor] = []
    h = torch.zeros_like(b)
    for i in range(x.size(0)):
        h = torch.tanh(h @ w + x[i])
        if bool(h.sum() > 0):
            h = h * b
        found.append(h * x[i])
    return torch.stack(found)


@torch.jit.script
def _contract(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    i = 0
    while bool(x.abs().max() > 0.3) and i < 20:
        x = 0.7 * torch.sin(x @ w * 0.3) + 0.05 * b
        i += 1
    return x


@torch.jit.script
def _triangle(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros_like(b)
    for i in range(x.size(0)):
        y = x[i]
        for _ in range(i):
            y = torch.cos(y @ w) * b
        total = total + y
    return total


class Script(Weighted):
    """A script of an input and both weights."""

    def __init__(self, f: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        return self.f(x, self.w, self.b)


def networks() -> dict[str, Callable[[], Made]]:
    """Every network by name."""
    r = torch.randn
    return {
        "scan": lambda: (Recurrence(), (r(4, 3), r(3))),
        "scan_backwards": lambda: (Backwards(), (r(4, 3), r(4, 3))),
        "cond": lambda: (Branch(), (r(2, 3),)),
        "cond_in_scan": lambda: (BranchInScan(), (r(5, 3), r(3))),
        "while_loop": lambda: (While(), (r(2, 3),)),
        "script_list": lambda: (Script(_collect), (r(4, 3),)),
        "script_while": lambda: (Script(_contract), (r(2, 3),)),
        "script_nested": lambda: (Script(_triangle), (r(4, 3),)),
    }
