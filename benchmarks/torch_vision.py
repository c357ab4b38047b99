"""Networks of images: blocks of the usual architectures, small; each makes (module, example inputs)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class RelativeAttention(nn.Module):
    """Attention of a square window with a bias looked up by relative position."""

    def __init__(self, width: int, heads: int, side: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(0.3 * torch.randn((2 * side - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        gap = at[:, :, None] - at[:, None] + side - 1
        self.register_buffer("index", gap[0] * (2 * side - 1) + gap[1])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * (c // self.heads) ** -0.5
        scores = scores + self.table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1)
        if mask is not None:
            count = mask.shape[0]
            scores = (scores.view(b // count, count, self.heads, n, n) + mask[:, None]).view(-1, self.heads, n, n)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))


class VisionTransformer(nn.Module):
    """Patches, a class token, positions, one block, the class token's features."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 8, 2, 2), nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 10, 8))
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y = self.first(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return (x + self.mlp(self.second(x)))[:, 0]


class SwinBlock(nn.Module):
    """Attention in windows of an image that is rolled by half a window."""

    def __init__(self, side: int = 4, window: int = 2, shift: int = 1, width: int = 6):
        super().__init__()
        self.side, self.window, self.shift = side, window, shift
        self.norm, self.attention = nn.LayerNorm(width), RelativeAttention(width, 2, window)
        regions = torch.zeros(1, side, side, 1)
        cuts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
        for i, rows in enumerate(cuts):
            for j, columns in enumerate(cuts):
                regions[:, rows, columns] = 3 * i + j
        flat = self.windows(regions).squeeze(-1)
        apart = flat[:, None] != flat[:, :, None]
        self.register_buffer("mask", torch.zeros(apart.shape).masked_fill(apart, -100.0))

    def windows(self, x: Tensor) -> Tensor:
        b, w, n = x.shape[0], self.window, self.side // self.window
        return x.view(b, n, w, n, w, -1).permute(0, 1, 3, 2, 4, 5).reshape(b * n * n, w * w, -1)

    def forward(self, x: Tensor) -> Tensor:
        w, n, shift = self.window, self.side // self.window, (self.shift, self.shift)
        y = self.windows(torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2)))
        y = self.attention(y, self.mask).view(-1, n, n, w, w, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
        return x + torch.roll(y.reshape(-1, self.side, self.side, x.shape[-1]), shift, (1, 2))


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, normalization and MLP over channels, a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(4, 4, 7, padding=3, groups=4), nn.LayerNorm(4)
        self.up, self.down = nn.Linear(4, 16), nn.Linear(16, 4)
        self.gamma = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class InvertedResidual(nn.Module):
    """EfficientNet's block: expansion, depthwise, squeeze and excitation; stochastic depth does nothing here."""

    def __init__(self, activation: type[nn.Module]):
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), activation())
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8), activation())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 2, 1), activation(), nn.Conv2d(2, 8, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(self.expand(x))
        y = self.project(y * self.squeeze(y))
        keep = torch.bernoulli(torch.full((y.shape[0], 1, 1, 1), 0.8)) if self.training else 1.0
        return x + y * keep


class DeformableAttention(nn.Module):
    """Values sampled at learned offsets around reference points, on two levels."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets, self.weights, self.value = nn.Linear(6, 2 * 2 * 3 * 2), nn.Linear(6, 2 * 2 * 3), nn.Linear(6, 6)

    def forward(self, query: Tensor, points: Tensor, fine: Tensor, coarse: Tensor) -> Tensor:
        b, n, _ = query.shape
        offsets = self.offsets(query).view(b, n, 2, 2, 3, 2).tanh() * 0.3
        weights = self.weights(query).view(b, n, 2, 6).softmax(-1).view(b, n, 2, 2, 3)
        found = []
        for level, features in enumerate((fine, coarse)):
            h, w = features.shape[2:]
            value = self.value(features.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(b * 2, 3, h, w)
            grid = 2 * (points[:, :, None, None] + offsets[:, :, :, level]) - 1
            found.append(F.grid_sample(value, grid.transpose(1, 2).flatten(0, 1), align_corners=False))
        sampled = torch.stack(found, -2).flatten(-2)  # batch and heads, channels, queries, levels and points
        return (sampled * weights.transpose(1, 2).reshape(b * 2, 1, n, 6)).sum(-1).view(b, 6, n).transpose(1, 2)


class Mixer(nn.Module):
    """An MLP over tokens, then one over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(6), nn.LayerNorm(6)
        self.tokens = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 5))
        self.channels = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.a(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.b(x))


class UNet(nn.Module):
    """Down, attention in the middle, up again with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.norm, self.attention = nn.GroupNorm(2, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.leave = nn.ConvTranspose2d(8, 4, 2, 2), nn.Conv2d(8, 3, 1)
        self.time = nn.Linear(4, 8)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        a = F.silu(self.enter(x))
        angles = t[:, None] * torch.exp(-torch.arange(2) * 1.5)
        moved = self.down(a) + self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        y = self.norm(moved).flatten(2).transpose(1, 2)
        y = self.attention(y, y, y)[0].transpose(1, 2).reshape(moved.shape)
        return self.leave(torch.cat([a, self.up(moved + y)], 1))


class Dense(nn.Module):
    """A dense block, a grouped and shuffled one, then pooling to a pyramid."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(4 + 2 * i), nn.ReLU(), nn.Conv2d(4 + 2 * i, 2, 3, padding=1)) for i in range(2)
        )
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        x = F.leaky_relu(F.channel_shuffle(self.grouped(x), 2), 0.2)
        return torch.cat([F.adaptive_avg_pool2d(x, s).flatten(1) for s in (1, 2, 3)], 1)


class SpatialTransformer(nn.Module):
    """An affine map found by a network, and the image sampled through it."""

    def __init__(self) -> None:
        super().__init__()
        self.find = nn.Sequential(nn.Conv2d(3, 2, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        theta = 0.2 * self.find(x).view(-1, 2, 3) + torch.eye(2, 3)
        return F.grid_sample(x, F.affine_grid(theta, [2, 3, 4, 5], align_corners=True), align_corners=True)


class Capsules(nn.Module):
    """Routing by agreement, three rounds."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(0.3 * torch.randn(5, 3, 4, 6))

    def forward(self, x: Tensor) -> Tensor:
        votes = torch.einsum("bic,ijdc->bijd", x, self.w.transpose(2, 3).transpose(2, 3))
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            s = (logits.softmax(2)[..., None] * votes).sum(1)
            square = (s * s).sum(-1, keepdim=True)
            v = square / (1 + square) * s / (square + 1e-8).sqrt()
            logits = logits + (votes * v[:, None]).sum(-1)
        return v


class Quantizer(nn.Module):
    """The nearest entry of a codebook, straight through, with its two losses."""

    def __init__(self) -> None:
        super().__init__()
        self.book = nn.Embedding(7, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        far = (x * x).sum(-1, keepdim=True) - 2 * x @ self.book.weight.t() + (self.book.weight**2).sum(1)
        near = self.book(far.argmin(-1))
        return near, F.mse_loss(near, x)


class Gram(nn.Module):
    """Losses of style transfer: Gram matrices, total variation, and structural similarity."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def gram(z: Tensor) -> Tensor:
            z = z.flatten(2)
            return z @ z.transpose(1, 2) / z.shape[2]

        style = F.mse_loss(gram(x), gram(y))
        variation = (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
        window = torch.full((3, 1, 3, 3), 1 / 9)

        def mean(z: Tensor) -> Tensor:
            return F.conv2d(z, window, groups=3)

        a, b = mean(x), mean(y)
        va, vb, cov = mean(x * x) - a * a, mean(y * y) - b * b, mean(x * y) - a * b
        similar = (2 * a * b + 0.01) * (2 * cov + 0.03) / ((a * a + b * b + 0.01) * (va + vb + 0.03))
        return style, variation, similar.mean()


def networks() -> dict[str, Callable[[], Made]]:
    """Every network by name."""
    r = torch.randn
    return {
        "vision_transformer": lambda: (VisionTransformer(), (r(2, 3, 6, 6),)),
        "relative_attention": lambda: (RelativeAttention(6, 2, 3), (r(2, 9, 6),)),
        "swin_block": lambda: (SwinBlock(), (r(2, 4, 4, 6),)),
        "convnext_block": lambda: (ConvNeXtBlock(), (r(2, 4, 5, 6),)),
        "efficientnet_block": lambda: (InvertedResidual(nn.SiLU), (r(2, 4, 5, 6),)),
        "mobilenet_block": lambda: (InvertedResidual(nn.Hardswish), (r(2, 4, 5, 6),)),
        "deformable_attention": lambda: (
            DeformableAttention(),
            (r(2, 4, 6), torch.rand(2, 4, 2), r(2, 6, 5, 4), r(2, 6, 3, 2)),
        ),
        "mlp_mixer": lambda: (Mixer(), (r(2, 5, 6),)),
        "diffusion_unet": lambda: (UNet(), (r(2, 3, 4, 6), torch.rand(2))),
        "dense_block": lambda: (Dense(), (r(2, 4, 6, 6),)),
        "spatial_transformer": lambda: (SpatialTransformer(), (r(2, 3, 6, 6),)),
        "capsules": lambda: (Capsules(), (r(2, 5, 6),)),
        "vector_quantizer": lambda: (Quantizer(), (r(2, 5, 4),)),
        "image_losses": lambda: (Gram(), (r(2, 3, 5, 6), r(2, 3, 5, 6))),
        "spectral_norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)), (r(2, 3, 5, 4),)),
        "weight_norm_conv": lambda: (nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), (r(2, 3, 5, 4),)),
        "orthogonal": lambda: (
            nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), orthogonal_map="cayley"),
            (r(2, 4),),
        ),
    }
