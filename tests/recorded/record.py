"""Export small PyTorch models and record their gradients: the references of tests/passes/test_recorded.py.

    pip install torch==2.13.0 onnxscript
    python tests/recorded/record.py

For every model and opset it writes NAME_OPSET.onnx, and per model NAME.npz with the inputs, the output, the cotangent
of the output, every parameter, and autograd's gradient of every floating input and every parameter.
"""

import pathlib
import warnings

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).parent
OPSETS = (18, 23)


class Mlp(nn.Module):
    """Linear layers with ReLU, GELU and SiLU."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(12, 16), nn.Linear(16, 14), nn.Linear(14, 5)

    def forward(self, x):
        return self.c(F.silu(self.b(F.gelu(self.a(F.relu(x))))))


class Block(nn.Module):
    """A residual block, strided where the width changes."""

    def __init__(self, i, o, stride):
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.c2, self.b2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.skip = nn.Conv2d(i, o, 1, stride, bias=False) if stride != 1 or i != o else nn.Identity()

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.skip(x))


class ResNet(nn.Module):
    """Stem, overlapping max pooling, residual blocks, global average pooling."""

    def __init__(self):
        super().__init__()
        self.stem, self.norm, self.pool = nn.Conv2d(3, 4, 5, 2, 2, bias=False), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Block(4, 4, 1), Block(4, 6, 2))
        self.head = nn.Linear(6, 7)

    def forward(self, x):
        x = self.blocks(self.pool(F.relu(self.norm(self.stem(x)))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Depthwise(nn.Module):
    """Depthwise separable convolutions with Hardswish."""

    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, 4, 3, 2, 1), nn.Hardswish()]
        for i, o in ((4, 6), (6, 8)):
            layers += [nn.Conv2d(i, i, 3, 2, 1, groups=i), nn.Hardswish(), nn.Conv2d(i, o, 1), nn.Hardswish()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


class UNet(nn.Module):
    """An encoder and a decoder with ConvTranspose, bilinear Resize and skip connections."""

    def __init__(self):
        super().__init__()
        self.d1, self.d2, self.d3 = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 6, 3, 2, 1), nn.Conv2d(6, 8, 3, 2, 1)
        self.u2, self.m2 = nn.ConvTranspose2d(8, 6, 2, 2), nn.Conv2d(12, 6, 3, 1, 1)
        self.u1, self.m1 = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(10, 2, 3, 1, 1)

    def forward(self, x):
        a = F.silu(self.d1(x))
        b = F.silu(self.d2(a))
        c = F.silu(self.d3(b))
        b = F.silu(self.m2(torch.cat([self.u2(c), b], 1)))
        return self.m1(torch.cat([self.u1(b), a], 1))


class Attention(nn.Module):
    """Multi-head attention and a feed-forward layer; causal before, or with a padding mask after normalization."""

    def __init__(self, d, heads, causal):
        super().__init__()
        self.qkv, self.out, self.heads, self.causal = nn.Linear(d, 3 * d), nn.Linear(d, d), heads, causal
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.f1, self.f2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def attend(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x, mask=None):
        if self.causal:
            x = x + self.attend(self.n1(x), None)
            return x + self.f2(F.gelu(self.f1(self.n2(x))))
        x = self.n1(x + self.attend(x, mask))
        return self.n2(x + self.f2(F.gelu(self.f1(x), approximate="tanh")))


class Gpt(nn.Module):
    """A decoder on tokens."""

    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(30, 16), nn.Parameter(torch.randn(9, 16) * 0.1)
        self.layers, self.norm = nn.Sequential(*[Attention(16, 2, True) for _ in range(2)]), nn.LayerNorm(16)
        self.head = nn.Linear(16, 30)

    def forward(self, tokens):
        return self.head(self.norm(self.layers(self.embed(tokens) + self.position[: tokens.shape[1]])))


class Bert(nn.Module):
    """An encoder on embeddings, with a padding mask and a pooled output."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(12, 3, False) for _ in range(2)])
        self.pool = nn.Linear(12, 4)

    def forward(self, x, keep):
        # a row of the mask per query: ONNX Runtime's Attention does not broadcast it
        mask = torch.where(keep[:, None, None, :], 0.0, -1e4).expand(-1, 1, x.shape[1], -1)
        for layer in self.layers:
            x = layer(x, mask)
        return torch.tanh(self.pool(x[:, 0]))


def zoo():
    """name -> (module, inputs, dynamic axes of the inputs)."""
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=9)
    keep = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
    return {
        "mlp": (Mlp(), (torch.randn(4, 12),), ({0: batch},)),
        "resnet": (ResNet(), (torch.randn(2, 3, 20, 18),), ({0: batch},)),
        "depthwise": (Depthwise(), (torch.randn(2, 3, 17, 16),), None),
        "unet": (UNet(), (torch.randn(2, 3, 8, 12),), ({0: batch},)),
        "gpt": (Gpt(), (torch.randint(0, 30, (3, 7)),), ({0: batch, 1: length},)),
        "bert": (Bert(), (torch.randn(3, 5, 12), keep), ({0: batch, 1: length}, {0: batch, 1: length})),
    }


def clean(model):
    """Drop the exporter's stack traces."""
    for graph in (model.graph, *model.functions):
        _clean_graph(graph)
    return model


def _clean_graph(graph):
    interface = () if isinstance(graph, onnx.FunctionProto) else (*graph.input, *graph.output, *graph.initializer)
    for item in (graph, *graph.node, *graph.value_info, *interface):
        del item.metadata_props[:]
    for node in graph.node:
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                _clean_graph(a.g)


def main():
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    for name, (module, inputs, dynamic) in zoo().items():
        module.eval()
        with torch.no_grad():  # no two parameters equal, so that the exporter cannot merge them
            for p in module.parameters():
                p.add_(0.05 * torch.randn_like(p))
            for b in module.buffers():
                if b.is_floating_point():
                    b.add_(0.2 * torch.rand_like(b))
        xs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        y = module(*xs)
        cotangent = torch.randn_like(y)
        y.backward(cotangent)
        arrays = {f"in_{i}": x.detach().numpy() for i, x in enumerate(inputs)}
        arrays |= {"out": y.detach().numpy(), "cotangent": cotangent.numpy()}
        arrays |= {f"grad_in_{i}": x.grad.numpy() for i, x in enumerate(xs) if x.grad is not None}
        for n, p in module.named_parameters():
            arrays |= {f"grad_{n}": p.grad.numpy(), f"weight_{n}": p.detach().numpy()}
        np.savez_compressed(HERE / f"{name}.npz", **arrays)
        for opset in OPSETS:
            # the exporter's optimizer folds weights away: at one opset every parameter is to be found in the model
            program = torch.onnx.export(
                module,
                inputs,
                dynamo=True,
                opset_version=opset,
                verbose=False,
                dynamic_shapes=dynamic,
                optimize=opset != OPSETS[0],
            )
            onnx.save(clean(program.model_proto), HERE / f"{name}_{opset}.onnx")


if __name__ == "__main__":
    main()
