"""Networks of the sciences: fields, graphs, flows, solvers, geometry; each makes (module, example inputs)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_sequences import Made, Of, Of1, Of3

EDGES = torch.tensor([[0, 1, 2, 2, 3, 0], [1, 0, 0, 3, 3, 2]])


class NeRF(nn.Module):
    """Positions encoded by frequencies, an MLP with a skip, and the colour along a ray."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(21, 16), nn.Linear(16 + 21, 16), nn.Linear(16, 4)

    def forward(self, origin: Tensor, direction: Tensor) -> Tensor:
        depth = torch.linspace(0.5, 2.0, 5)
        x = origin[:, None] + depth[:, None] * F.normalize(direction, dim=-1)[:, None]
        angles = (x[..., None] * 2.0 ** torch.arange(3)).flatten(-2)
        x = torch.cat([x, angles.sin(), angles.cos()], -1)
        y = self.out(F.relu(self.second(torch.cat([F.relu(self.first(x)), x], -1))))
        alpha = 1 - torch.exp(-F.softplus(y[..., 3]) * 0.3)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        weights = alpha * through
        return torch.cat([(weights[..., None] * y[..., :3].sigmoid()).sum(1), (weights * depth).sum(1)[:, None]], 1)


class Siren(nn.Module):
    """Sines of sines."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 1)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = torch.sin(5 * layer(x))
        return self.layers[-1](x)


class GraphAttention(nn.Module):
    """Weights by a softmax over the edges into a node."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.a = nn.Linear(3, 4, False), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        h, (source, target) = self.w(x), EDGES
        scores = F.leaky_relu(torch.cat([h[source], h[target]], 1) @ self.a, 0.2)
        top = torch.full((x.shape[0],), float("-inf")).scatter_reduce(0, target, scores, "amax")
        e = torch.exp(scores - top[target])
        total = torch.zeros(x.shape[0]).index_add(0, target, e)
        messages = (e / total[target])[:, None] * h[source]
        return torch.zeros_like(h).scatter_add(0, target[:, None].expand_as(messages), messages)


class GraphConvolution(nn.Module):
    """Normalized by degrees, then the mean and the maximum over a graph's nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        source, target = EDGES
        degree = torch.zeros(4).index_add(0, target, torch.ones(6)) + 1
        scale = degree.rsqrt()
        for layer in (self.w, self.v):
            h = layer(x) * scale[:, None]
            x = F.elu((h + torch.zeros_like(h).index_add(0, target, h[source])) * scale[:, None])
        batch = torch.tensor([0, 0, 1, 1])[:, None].expand(-1, 4)
        empty = torch.zeros(2, 4)
        mean = empty.scatter_reduce(0, batch, x, "mean", include_self=False)
        return mean, empty.scatter_reduce(0, batch, x, "amax", include_self=False)


class Equivariant(nn.Module):
    """Messages along directions, with cross products; one edge is a loop, of length zero."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.weigh = nn.Sequential(nn.Linear(9, 8), nn.SiLU(), nn.Linear(8, 4)), nn.Linear(4, 2)
        self.update = nn.Linear(8, 4)

    def forward(self, h: Tensor, x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        source, target = EDGES
        gap = x[source] - x[target]
        far = torch.linalg.vector_norm(gap, dim=-1, keepdim=True)
        m = self.message(torch.cat([h[source], h[target], far], -1))
        a, b = self.weigh(m).chunk(2, -1)
        step = gap / (far + 1) * a + torch.linalg.cross(gap, v[source]) * b
        x = x + torch.zeros_like(x).index_add(0, target, step)
        return h + self.update(torch.cat([h, torch.zeros_like(h).index_add(0, target, m)], -1)), x


class SchNet(nn.Module):
    """Distances smeared by Gaussians under a smooth cutoff, an energy per molecule."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.filters = (
            nn.Embedding(5, 4),
            nn.Sequential(nn.Linear(6, 4), nn.Softplus(), nn.Linear(4, 4)),
        )
        self.out = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(torch.tensor([0, 3, 3, 1]))
        far = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        smeared = torch.exp(-2 * (far[..., None] - torch.linspace(0, 3, 6)) ** 2)
        cut = torch.where(far < 3, 0.5 * (torch.cos(far * (torch.pi / 3)) + 1), 0.0) * (1 - torch.eye(4))
        h = h + torch.einsum("ijc,jc,ij->ic", self.filters(smeared), h, cut)
        return self.out(h).sum()


class Coupling(nn.Module):
    """Two affine couplings with a permutation between them, and the log-determinant."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        logdet = torch.zeros(x.shape[0])
        for net in self.nets:
            a, b = x.chunk(2, 1)
            s, t = net(a).chunk(2, 1)
            s = 2 * torch.tanh(s / 2)
            x, logdet = torch.cat([b * s.exp() + t, a], 1).flip(1), logdet + s.sum(1)
        return -0.5 * (x**2).sum(1) + logdet


class Spline(nn.Module):
    """A rational-quadratic spline with learned knots."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.h, self.d = (nn.Parameter(torch.randn(n)) for n in (5, 5, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        widths, heights = 0.01 + 0.95 * self.w.softmax(0), 0.01 + 0.95 * self.h.softmax(0)
        left = F.pad(widths.cumsum(0), (1, 0))
        low = F.pad(heights.cumsum(0), (1, 0))
        slopes = F.softplus(self.d) + 0.01
        i = ((x[..., None] >= left).sum(-1) - 1).clamp(0, 4)
        slope, t = (heights / widths)[i], (x - left[i]) / widths[i]
        below = slope + (slopes[i + 1] + slopes[i] - 2 * slope) * t * (1 - t)
        y = low[i] + heights[i] * (slope * t**2 + slopes[i] * t * (1 - t)) / below
        top = slope**2 * (slopes[i + 1] * t**2 + 2 * slope * t * (1 - t) + slopes[i] * (1 - t) ** 2)
        return y, top.log() - 2 * below.log()


class NeuralODE(nn.Module):
    """Four steps of Runge and Kutta; a script, so that the older exporter writes a Loop."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(0.5 * torch.randn(3, 8)), nn.Parameter(0.5 * torch.randn(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return integrate(x, self.w, self.v)


def _rate(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.tanh(x @ w) @ v


@torch.jit.script
def _integrate(x: Tensor, w: Tensor, v: Tensor, steps: int) -> Tensor:
    i = 0
    while i < steps:
        a = torch.tanh(x @ w) @ v
        b = torch.tanh((x + 0.1 * a) @ w) @ v
        x = x + 0.2 * b
        i += 1
    return x


def integrate(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """The midpoint rule in a loop of the script's, then one of Runge and Kutta's steps."""
    x = _integrate(x, w, v, 4) if torch.jit.is_tracing() else _midpoint(x, w, v)
    a = _rate(x, w, v)
    b = _rate(x + 0.1 * a, w, v)
    c = _rate(x + 0.1 * b, w, v)
    return x + 0.2 * (a + 2 * b + 2 * c + _rate(x + 0.2 * c, w, v)) / 6


def _midpoint(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    for _ in range(4):
        x = x + 0.2 * _rate(x + 0.1 * _rate(x, w, v), w, v)
    return x


class FourierOperator(nn.Module):
    """A spectral convolution of the lowest modes beside a pointwise one."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.skip = nn.Parameter(0.5 * torch.randn(2, 2, 3, 2)), nn.Conv1d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.view_as_real(torch.fft.rfft(x, norm="ortho"))[:, :, :3]
        real = torch.einsum("bim,iom->bom", z[..., 0], self.w[..., 0]) - torch.einsum(
            "bim,iom->bom", z[..., 1], self.w[..., 1]
        )
        imaginary = torch.einsum("bim,iom->bom", z[..., 0], self.w[..., 1]) + torch.einsum(
            "bim,iom->bom", z[..., 1], self.w[..., 0]
        )
        full = torch.complex(F.pad(real, (0, 2)), F.pad(imaginary, (0, 2)))
        return F.gelu(torch.fft.irfft(full, n=8, norm="ortho") + self.skip(x))


class Splines(nn.Module):
    """A layer of learned univariate functions: cubic B-splines by recursion, and SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.w = nn.Linear(3, 2), nn.Parameter(torch.randn(2, 3, 6))

    def forward(self, x: Tensor) -> Tensor:
        knots, y = torch.arange(-4, 6) * 0.7, x[..., None]
        b = ((y >= knots[:-1]) & (y < knots[1:])).float()
        for k in range(1, 4):
            rise = (y - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1])
            fall = (knots[k + 1 :] - y) / (knots[k + 1 :] - knots[1:-k])
            b = rise * b[..., :-1] + fall * b[..., 1:]
        return self.base(F.silu(x)) + torch.einsum("bic,oic->bo", b, self.w)


class PointCloud(nn.Module):
    """Features of the three nearest points, the maximum over them."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        far = (x[:, :, None] - x[:, None]).square().sum(-1)
        near = far.topk(3, -1, largest=False)[1]
        around = torch.stack([points[index] for points, index in zip(x, near, strict=True)])
        edges = torch.cat([around - x[:, :, None], x[:, :, None].expand_as(around)], -1)
        return F.leaky_relu(self.w(edges), 0.2).amax(2).mean(1)


def burgers(u: Tensor) -> Tensor:
    """Two steps of a finite-volume scheme with limited slopes, on a periodic line."""
    for _ in range(2):
        back, ahead = u - u.roll(1, -1), u.roll(-1, -1) - u
        slope = torch.where(back * ahead > 0, torch.where(back.abs() < ahead.abs(), back, ahead), 0.0)
        left, right = u + 0.5 * slope, (u - 0.5 * slope).roll(-1, -1)
        speed = torch.maximum(left.abs(), right.abs())
        flux = 0.25 * (left**2 + right**2) - 0.5 * speed * (right - left)
        u = u - 0.1 * (flux - flux.roll(1, -1))
    return u


def heat(u: Tensor, k: Tensor) -> Tensor:
    """Diffusion on a plane by a stencil."""
    stencil = torch.tensor([[[[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]]])
    for _ in range(3):
        u = u + 0.1 * k * F.conv2d(F.pad(u, (1, 1, 1, 1), "replicate"), stencil)
    return u


def lennard_jones(x: Tensor) -> Tensor:
    """In a periodic box, pairs by indices, a cutoff; two atoms are farther apart than it."""
    i, j = torch.triu_indices(4, 4, 1)
    gap = x[i] - x[j]
    gap = gap - 3.0 * torch.round(gap / 3.0)
    square = (gap * gap).sum(-1)
    inside = square < 1.8
    sixth = (0.6 / torch.where(inside, square, 1.0)) ** 3
    return torch.where(inside, 4 * (sixth * sixth - sixth), 0.0).sum()


def hamiltonian(q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Leapfrog on a pendulum chain."""
    for _ in range(5):
        p = p - 0.05 * (q.sin() + F.pad(q[1:] - q[:-1], (1, 0)) - F.pad(q[1:] - q[:-1], (0, 1)))
        q = q + 0.1 * p
        p = p - 0.05 * q.sin()
    return q, 0.5 * (p * p).sum() + (1 - q.cos()).sum()


def rotations(v: Tensor, x: Tensor) -> Tensor:
    """Rodrigues' formula, guarded at the angle zero, which is the first one."""
    v = v * torch.tensor([[0.0], [1.0], [1.0]])
    square = (v * v).sum(-1, keepdim=True)
    small = square < 1e-8
    angle = torch.where(small, 1.0, square).sqrt()
    a = torch.where(small, 1 - square / 6, angle.sin() / angle)
    b = torch.where(small, 0.5 - square / 24, (1 - angle.cos()) / (angle * angle))
    once = torch.linalg.cross(v, x)
    return x + a * once + b * torch.linalg.cross(v, once)


def quaternions(q: Tensor, x: Tensor) -> Tensor:
    """A rotation by a normalized quaternion, and its angles."""
    w, a, b, c = F.normalize(q, dim=-1).unbind(-1)
    rows = [1 - 2 * (b * b + c * c), 2 * (a * b - w * c), 2 * (a * c + w * b)]
    rows += [2 * (a * b + w * c), 1 - 2 * (a * a + c * c), 2 * (b * c - w * a)]
    rows += [2 * (a * c - w * b), 2 * (b * c + w * a), 1 - 2 * (a * a + b * b)]
    m = torch.stack(rows, -1).view(-1, 3, 3)
    angles = torch.stack([torch.atan2(m[:, 2, 1], m[:, 2, 2]), torch.asin(m[:, 2, 0].clamp(-1, 1))], -1)
    return torch.cat([(m @ x[..., None])[..., 0], angles], -1)


def gram_schmidt(x: Tensor) -> Tensor:
    """Six numbers as a rotation."""
    a, b = x[:, :3], x[:, 3:]
    a = F.normalize(a, dim=-1)
    b = F.normalize(b - (a * b).sum(-1, keepdim=True) * a, dim=-1)
    return torch.stack([a, b, torch.linalg.cross(a, b)], -2)


def splatting(means: Tensor, scales: Tensor) -> Tensor:
    """Gaussians of a plane, composed from front to back."""
    grid = torch.stack(torch.meshgrid(torch.arange(4.0), torch.arange(3.0), indexing="ij"), -1)
    gap = (grid[:, :, None] - means) / scales.exp()
    alpha = (0.8 * torch.exp(-0.5 * (gap * gap).sum(-1))).clamp(max=0.79)
    return (alpha * torch.exp(torch.cumsum(torch.log1p(-alpha), -1) - torch.log1p(-alpha))).sum(-1)


def sinkhorn(x: Tensor, y: Tensor) -> Tensor:
    """Optimal transport by a few iterations in logarithms; and the Chamfer distance."""
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    f, g = torch.zeros(x.shape[0]), torch.zeros(y.shape[0])
    for _ in range(4):
        f = -0.5 * ((g - cost) / 0.5).logsumexp(1)
        g = -0.5 * ((f[:, None] - cost) / 0.5).logsumexp(0)
    plan = ((f[:, None] + g - cost) / 0.5).exp()
    return (plan * cost).sum() + cost.min(0)[0].mean() + cost.min(1)[0].mean()


def kalman(x: Tensor, p: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a filter in two dimensions, the inverse written out."""
    a, h = torch.tensor([[1.0, 0.1], [0.0, 1.0]]), torch.eye(2)
    x, p = a @ x, a @ (p @ p.mT) @ a.mT + 0.1 * h
    s = p + 0.5 * h
    det = s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]
    inverse = torch.stack([torch.stack([s[1, 1], -s[0, 1]]), torch.stack([-s[1, 0], s[0, 0]])]) / det
    gain = p @ inverse
    return x + gain @ (z - x), (h - gain) @ p - 0.5 * torch.linalg.det(s) * h


def newton_schulz(x: Tensor) -> Tensor:
    """The orthogonal factor by iteration."""
    x = x / x.norm()
    for _ in range(5):
        x = 1.5 * x - 0.5 * x @ x.mT @ x
    return x


def mixture(x: Tensor, means: Tensor, logits: Tensor) -> Tensor:
    """The log-likelihood under a mixture of Gaussians of learned places."""
    each = -0.5 * ((x[:, None] - means) ** 2).sum(-1) - 0.9189385 * x.shape[1]
    return (each + logits.log_softmax(0)).logsumexp(1)


def networks() -> dict[str, Callable[[], Made]]:
    """Every network by name."""
    r, u = torch.randn, torch.rand
    return {
        "nerf": lambda: (NeRF(), (r(3, 3), r(3, 3))),
        "siren": lambda: (Siren(), (r(5, 2),)),
        "graph_attention": lambda: (GraphAttention(), (r(4, 3),)),
        "graph_convolution": lambda: (GraphConvolution(), (r(4, 3),)),
        "equivariant": lambda: (Equivariant(), (r(4, 4), r(4, 3), r(4, 3))),
        "schnet": lambda: (SchNet(), (r(4, 3),)),
        "coupling_flow": lambda: (Coupling(), (r(3, 4),)),
        "spline_flow": lambda: (Spline(), (u(3, 4),)),
        "neural_ode": lambda: (NeuralODE(), (r(2, 3),)),
        "fourier_operator": lambda: (FourierOperator(), (r(2, 2, 8),)),
        "kan": lambda: (Splines(), (r(4, 3),)),
        "point_cloud": lambda: (PointCloud(), (r(2, 6, 3),)),
        "burgers": lambda: (Of1(burgers), (r(2, 8),)),
        "heat": lambda: (Of(heat), (r(1, 1, 5, 6), u(5, 6))),
        "lennard_jones": lambda: (
            Of1(lennard_jones),
            (torch.tensor([[0.0, 0, 0], [1, 0.1, 0], [2.8, 0, 0.2], [1.4, 1.5, 1.5]]),),
        ),
        "hamiltonian": lambda: (Of(hamiltonian), (r(4), r(4))),
        "rotations": lambda: (Of(rotations), (r(3, 3), r(3, 3))),
        "quaternions": lambda: (Of(quaternions), (r(3, 4), r(3, 3))),
        "gram_schmidt": lambda: (Of1(gram_schmidt), (r(3, 6),)),
        "splatting": lambda: (Of(splatting), (3 * u(5, 2), 0.3 * r(5, 1))),
        "sinkhorn_chamfer": lambda: (Of(sinkhorn), (r(3, 2), r(4, 2))),
        "kalman": lambda: (Of3(kalman), (r(2), r(2, 2), r(2))),
        "newton_schulz": lambda: (Of1(newton_schulz), (r(3, 4),)),
        "gaussian_mixture": lambda: (Of3(mixture), (r(4, 2), r(3, 2), r(3))),
    }
