"""Networks of sequences: attention, recurrences written out, losses; each makes (module, example inputs)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


def rotate(x: Tensor, at: Tensor) -> Tensor:
    """Rotary positions in their usual real spelling, halves side by side."""
    angles = at[:, None] * 10000.0 ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Llama(nn.Module):
    """A decoder block: RMS norm, grouped queries with rotary positions and a cache, a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(8), nn.RMSNorm(8)
        self.q, self.k, self.v = nn.Linear(8, 8, False), nn.Linear(8, 4, False), nn.Linear(8, 4, False)
        self.out, self.gate, self.up, self.down = (
            nn.Linear(a, b, False) for a, b in ((8, 8), (8, 12), (8, 12), (12, 8))
        )

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, n, _ = x.shape
        past = keys.shape[2]
        y = self.first(x)
        at = torch.arange(past, past + n).float()
        q = rotate(self.q(y).view(b, n, 4, 2).transpose(1, 2), at)
        keys = torch.cat([keys, rotate(self.k(y).view(b, n, 2, 2).transpose(1, 2), at)], 2)
        values = torch.cat([values, self.v(y).view(b, n, 2, 2).transpose(1, 2)], 2)
        mask = torch.full((n, past + n), float("-inf")).triu(past + 1)
        scores = q @ keys.repeat_interleave(2, 1).transpose(2, 3) / 2**0.5 + mask
        y = scores.softmax(-1) @ values.repeat_interleave(2, 1)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, 8))
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y)), keys, values


class Mamba(nn.Module):
    """A selective state space: a causal depthwise convolution, then a scan written as a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 12, False), nn.Linear(6, 4, False)
        self.conv, self.select = nn.Conv1d(6, 6, 3, padding=2, groups=6), nn.Linear(6, 2 + 2 * 3, False)
        self.step = nn.Linear(2, 6)
        self.log_a, self.d = nn.Parameter(torch.rand(6, 3)), nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        u, z = self.enter(x).chunk(2, -1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        dt, b, c = self.select(u).split([2, 3, 3], -1)
        dt = F.softplus(self.step(dt))
        decay, feed = torch.exp(dt[..., None] * -self.log_a.exp()), (dt * u)[..., None] * b[:, :, None]
        state, ys = torch.zeros(x.shape[0], 6, 3), []
        for i in range(x.shape[1]):
            state = decay[:, i] * state + feed[:, i]
            ys.append((state * c[:, i, None]).sum(-1))
        return self.leave((torch.stack(ys, 1) + u * self.d) * F.silu(z))


class Experts(nn.Module):
    """The two best of four experts, by indices, with the loss that balances them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 4)
        self.up, self.down = nn.Parameter(0.5 * torch.randn(4, 4, 6)), nn.Parameter(0.5 * torch.randn(4, 6, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        odds = self.gate(x).softmax(-1)
        best, index = odds.topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        hidden = F.gelu(torch.einsum("nd,nkdh->nkh", x, self.up[index]))
        y = torch.einsum("nkh,nkhd,nk->nd", hidden, self.down[index], best)
        share = F.one_hot(index, 4).float().mean((0, 1))
        return y, 4 * (share * odds.mean(0)).sum()


class Routed(nn.Module):
    """Experts that see the tokens routed to them only, found with nonzero and put back with index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 2), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        best, index = self.gate(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            at = (index == i).nonzero()[:, 0]
            y = y.index_add(0, at, expert(x[at]) * best[at, None])
        return y


class ConvLSTM(nn.Module):
    """Gates by convolution, over a few steps."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 + 3, 12, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], 3, *x.shape[3:])
        for i in range(3):
            a, f, o, g = self.gates(torch.cat([x[:, i], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + a.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class LoRA(nn.Module):
    """A frozen layer and a low-rank correction, with weights tied at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.base = nn.Embedding(7, 6), nn.Linear(6, 6)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(6, 2))

    def forward(self, tokens: Tensor, noise: Tensor) -> Tensor:
        x = self.embedding(tokens) + noise
        x = self.base(x) + F.linear(F.linear(F.dropout(x, 0.1, self.training), self.a), self.b) * 0.5
        return F.linear(x, self.embedding.weight).log_softmax(-1)


class WaveNet(nn.Module):
    """Causal dilated convolutions with gates, skips added up."""

    def __init__(self) -> None:
        super().__init__()
        self.dilated = nn.ModuleList(nn.Conv1d(4, 8, 2, dilation=2**i) for i in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for i, (conv, skip) in enumerate(zip(self.dilated, self.skips, strict=True)):
            a, b = conv(F.pad(x, (2**i, 0))).chunk(2, 1)
            y = skip(a.tanh() * b.sigmoid())
            total, x = total + y, x + y
        return F.relu(total)


class Conformer(nn.Module):
    """A convolution module with GLU, and attention with relative positions by shifting."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.LayerNorm(6), nn.Conv1d(6, 12, 1), nn.Conv1d(6, 6, 1)
        self.conv, self.batch = nn.Conv1d(6, 6, 3, padding=1, groups=6), nn.BatchNorm1d(6)
        self.u, self.v, self.qkv = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6)), nn.Linear(6, 18)
        self.positions = nn.Parameter(torch.randn(9, 6))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        y = F.glu(self.enter(self.norm(x).transpose(1, 2)), 1)
        x = x + self.leave(F.silu(self.batch(self.conv(y)))).transpose(1, 2)
        q, k, v = self.qkv(x).split(6, -1)
        apart = F.pad((q + self.v) @ self.positions.t(), (1, 0)).view(b, 2 * n, n)[:, 1:].reshape(b, n, -1)[..., :n]
        return x + (((q + self.u) @ k.transpose(1, 2) + apart) * 0.4).softmax(-1) @ v


class Pointer(nn.Module):
    """Additive attention that decodes a few steps with a GRU cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.a, self.b, self.v = nn.GRUCell(4, 4), nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 1, False)

    def forward(self, x: Tensor, start: Tensor) -> Tensor:
        h, read, found = start, x.mean(1), []
        for _ in range(3):
            h = self.cell(read, h)
            scores = self.v(torch.tanh(self.a(x) + self.b(h)[:, None]))[..., 0]
            read = torch.bmm(scores.softmax(1)[:, None], x)[:, 0]
            found.append(scores.log_softmax(1))
        return torch.stack(found, 1)


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal, by cumulative sums."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    kv = torch.einsum("bnd,bne->bnde", k, v).cumsum(1)
    return torch.einsum("bnd,bnde->bne", q, kv) / torch.einsum("bnd,bnd->bn", q, k.cumsum(1))[..., None]


def retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention without softmax, weights that decay."""
    gap = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
    decay = torch.where(gap >= 0, 0.8 ** gap.clamp(min=0).float(), 0.0)
    return F.group_norm(((q @ k.transpose(1, 2)) * decay @ v).transpose(1, 2), 2).transpose(1, 2)


def masked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With slopes per head, a window, and a query that may see nothing at all."""
    gap = torch.arange(4)[:, None] - torch.arange(4)
    seen = (gap >= 0) & (gap < 2)
    seen[2] = False
    scores = q @ k.transpose(2, 3) - gap.abs() * torch.tensor([0.5, 0.25]).view(2, 1, 1)
    scores = scores.masked_fill(~seen, float("-inf"))
    return torch.where(seen.any(1)[:, None], torch.nan_to_num(scores.softmax(-1)) @ v, torch.zeros(()))


def crf(emissions: Tensor, transitions: Tensor) -> Tensor:
    """The log-likelihood of tags in a linear chain."""
    tags = torch.tensor([[0, 2, 1, 1], [2, 2, 0, 1]])
    alpha = emissions[:, 0]
    for i in range(1, emissions.shape[1]):
        alpha = (alpha[:, :, None] + transitions).logsumexp(1) + emissions[:, i]
    score = emissions.gather(2, tags[..., None]).sum((1, 2)) + transitions[tags[:, :-1], tags[:, 1:]].sum(1)
    return score - alpha.logsumexp(1)


def soft_dtw(x: Tensor, y: Tensor) -> Tensor:
    """Soft dynamic time warping of two short sequences."""
    far = ((x[:, None] - y[None]) ** 2).sum(-1)
    big = torch.tensor(1e4)
    rows = [[big] * (y.shape[0] + 1) for _ in range(x.shape[0] + 1)]
    rows[0][0] = torch.tensor(0.0)
    for i in range(x.shape[0]):
        for j in range(y.shape[0]):
            before = torch.stack([rows[i][j], rows[i + 1][j], rows[i][j + 1]])
            rows[i + 1][j + 1] = far[i, j] - 0.5 * (-before / 0.5).logsumexp(0)
    return rows[-1][-1]


def contrastive(x: Tensor, y: Tensor) -> Tensor:
    """CLIP's symmetric loss."""
    logits = F.normalize(x, dim=1) @ F.normalize(y, dim=1).t() / 0.2
    return (F.cross_entropy(logits, torch.arange(4)) + F.cross_entropy(logits.t(), torch.arange(4))) / 2


def sparsemax(x: Tensor) -> Tensor:
    """The projection onto the simplex."""
    z = x.sort(-1, descending=True)[0]
    total = z.cumsum(-1) - 1
    count = torch.arange(1, x.shape[-1] + 1)
    support = (count * z > total).sum(-1, keepdim=True)
    return F.relu(x - total.gather(-1, support - 1) / support)


def focal(x: Tensor, y: Tensor) -> Tensor:
    """The focal loss, and a dice loss."""
    p = x.sigmoid()
    ce = F.binary_cross_entropy_with_logits(x, y, reduction="none", pos_weight=torch.tensor(2.0))
    return (ce * (1 - (p * y + (1 - p) * (1 - y))) ** 2).mean() + 1 - 2 * (p * y).sum() / (p.sum() + y.sum() + 1)


def quantiles(x: Tensor, y: Tensor) -> Tensor:
    """The pinball loss at three levels, and log-cosh."""
    gap = y[:, None] - x
    level = torch.tensor([0.1, 0.5, 0.9])
    return torch.maximum(level * gap, (level - 1) * gap).mean() + (gap + F.softplus(-2 * gap)).mean()


class Of(nn.Module):
    """A function of several inputs as a module."""

    def __init__(self, f: Callable[..., object]):
        super().__init__()
        self.f = f

    def forward(self, x: Tensor, y: Tensor) -> object:
        return self.f(x, y)


class Of1(Of):
    """A function of one input."""

    def forward(self, x: Tensor) -> object:  # type: ignore[override]
        return self.f(x)


class Of3(Of):
    """A function of three inputs."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> object:  # type: ignore[override]
        return self.f(x, y, z)


def networks() -> dict[str, Callable[[], Made]]:
    """Every network by name."""
    r, signs = torch.randn, torch.tensor([1.0, -1.0, 1.0])

    def one(f: Callable[..., object], *shape: int) -> Callable[[], Made]:
        return lambda: (Of1(f), (r(shape),))

    def two(f: Callable[..., object], x: tuple[int, ...], y: tuple[int, ...]) -> Callable[[], Made]:
        return lambda: (Of(f), (r(x), r(y)))

    def three(f: Callable[..., object], *shape: int) -> Callable[[], Made]:
        return lambda: (Of3(f), (r(shape), r(shape), r(shape)))

    return {
        "llama": lambda: (Llama(), (r(2, 3, 8), r(2, 2, 4, 2), r(2, 2, 4, 2))),
        "mamba": lambda: (Mamba(), (r(2, 5, 4),)),
        "experts": lambda: (Experts(), (r(5, 4),)),
        "experts_routed": lambda: (Routed(), (r(5, 4),)),
        "conv_lstm": lambda: (ConvLSTM(), (r(2, 3, 2, 4, 5),)),
        "lora": lambda: (LoRA(), (torch.tensor([[0, 3, 3], [6, 1, 2]]), 0.1 * r(2, 3, 6))),
        "wavenet": lambda: (WaveNet(), (r(2, 4, 11),)),
        "conformer": lambda: (Conformer(), (r(2, 5, 6),)),
        "pointer": lambda: (Pointer(), (r(2, 5, 4), r(2, 4))),
        "linear_attention": three(linear_attention, 2, 5, 4),
        "retention": three(retention, 2, 5, 4),
        "masked_attention": three(masked_attention, 2, 2, 4, 3),
        "crf": two(crf, (2, 4, 3), (3, 3)),
        "soft_dtw": two(soft_dtw, (3, 2), (4, 2)),
        "contrastive": two(contrastive, (4, 6), (4, 6)),
        "sparsemax": one(sparsemax, 3, 5),
        "focal_dice": lambda: (Of(focal), (r(3, 4), torch.rand(3, 4))),
        "quantiles": two(quantiles, (4, 3), (4,)),
        "triplet": three(F.triplet_margin_loss, 3, 4),
        "margin_ranking": two(lambda x, y: F.margin_ranking_loss(x, y, signs, 0.5), (3,), (3,)),
        "cosine_embedding": two(lambda x, y: F.cosine_embedding_loss(x, y, signs, 0.1), (3, 4), (3, 4)),
        "hinge_embedding": one(lambda x: F.hinge_embedding_loss(x, signs, 2.0), 3),
        "soft_margin": one(lambda x: F.soft_margin_loss(x, signs), 3),
        "multi_margin": one(lambda x: F.multi_margin_loss(x, torch.tensor([0, 3, 1])), 3, 4),
        "multilabel_soft_margin": lambda: (Of(F.multilabel_soft_margin_loss), (r(3, 4), torch.rand(3, 4).round())),
        "poisson_nll": lambda: (Of(F.poisson_nll_loss), (r(3, 4), torch.rand(3, 4))),
        "gaussian_nll": lambda: (Of3(F.gaussian_nll_loss), (r(3, 4), r(3, 4), torch.rand(3, 4) + 0.1)),
        "nll_weighted": lambda: (
            Of1(lambda x: F.nll_loss(x.log_softmax(1), torch.tensor([[0, 2], [1, 1]]), torch.rand(3) + 0.5)),
            (r(2, 3, 2),),
        ),
        "kl_divergences": two(
            lambda x, y: (
                F.kl_div(x.log_softmax(1), y.log_softmax(1), log_target=True, reduction="sum"),
                -0.5 * (1 + y - x**2 - y.exp()).sum(1).mean(),
            ),
            (3, 4),
            (3, 4),
        ),
        "reparameterize": three(lambda m, s, e: (m + e * (0.5 * s).exp()).tanh(), 3, 4),
        "gumbel_softmax": lambda: (
            Of(lambda x, u: ((x - (-(u.log())).log()) / 0.7).softmax(1)),
            (r(3, 4), torch.rand(3, 4) * 0.9 + 0.05),
        ),
        "policy_losses": three(
            lambda new, old, gain: torch.min((new - old).exp() * gain, (new - old).exp().clamp(0.8, 1.2) * gain).mean(),
            3,
            4,
        ),
    }
