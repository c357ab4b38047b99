"""The networks whose gradients are timed; each is (module, example inputs)."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.skip = nn.Conv2d(i, o, 1, stride, bias=False) if stride != 1 or i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2), Block(128, 256, 2))
        self.head = nn.Linear(256, 100)

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class Depthwise(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.Hardswish()]
        for i, o in ((16, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(i, i, 3, 2, 1, groups=i), nn.Hardswish(), nn.Conv2d(i, o, 1), nn.Hardswish()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.d3 = nn.Conv2d(3, 16, 3, 1, 1), nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 64, 3, 2, 1)
        self.u2, self.m2 = nn.ConvTranspose2d(64, 32, 2, 2), nn.Conv2d(64, 32, 3, 1, 1)
        self.u1, self.m1 = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(48, 8, 3, 1, 1)

    def forward(self, x):
        a = F.silu(self.d1(x))
        b = F.silu(self.d2(a))
        c = F.silu(self.d3(b))
        b = F.silu(self.m2(torch.cat([self.u2(c), b], 1)))
        return self.m1(torch.cat([self.u1(b), a], 1))


class Layer(nn.Module):
    def __init__(self, d, heads, causal):
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = nn.Linear(d, 3 * d), nn.Linear(d, d), heads, causal
        self.n1, self.n2, self.f1, self.f2 = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class Gpt(nn.Module):
    def __init__(self, words=1000, d=256, layers=4, length=128):
        super().__init__()
        self.embed, self.position = nn.Embedding(words, d), nn.Parameter(torch.randn(length, d) * 0.02)
        self.layers = nn.Sequential(*[Layer(d, 8, True) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, words)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.embed(tokens) + self.position)))


class Bert(nn.Module):
    def __init__(self, d=192, layers=3):
        super().__init__()
        self.layers, self.head = nn.Sequential(*[Layer(d, 6, False) for _ in range(layers)]), nn.Linear(d, 16)

    def forward(self, x):
        return self.head(self.layers(x)[:, 0])


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(64, 128), nn.Linear(128, 8)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


class Pairwise(nn.Module):
    """An energy of particles from their distances; its gradient is the forces."""

    def forward(self, r):
        delta = r.unsqueeze(0) - r.unsqueeze(1)
        eye = torch.eye(r.shape[0])
        squared = (delta * delta).sum(-1) + eye
        sixth = 1 / (squared * squared * squared)
        return (4 * (sixth * sixth - sixth) * (1 - eye)).sum() / 2


def zoo():
    """name -> (module, inputs)."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
    return {
        "mlp": (mlp, (torch.randn(64, 784),)),
        "resnet": (ResNet(), (torch.randn(8, 3, 64, 64),)),
        "depthwise": (Depthwise(), (torch.randn(8, 3, 64, 64),)),
        "unet": (UNet(), (torch.randn(2, 3, 64, 64),)),
        "gpt": (Gpt(), (torch.randint(0, 1000, (4, 128)),)),
        "bert": (Bert(), (torch.randn(8, 64, 192),)),
        "lstm": (Lstm(), (torch.randn(100, 16, 64),)),
        "pairwise": (Pairwise(), (torch.randn(128, 3),)),
    }
