"""Small networks that together use many of the operators PyTorch exports; each makes (module, example inputs)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
import torch_control
import torch_science
import torch_sequences
import torch_vision
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Of(nn.Module):
    """A function as a module."""

    def __init__(self, f: Callable[..., object]):
        super().__init__()
        self.f = f

    def forward(self, *xs: torch.Tensor) -> object:
        return self.f(*xs)


class WithWeights(nn.Module):
    """A function of inputs and parameters."""

    def __init__(self, f: Callable[..., object], *shapes: tuple[int, ...]):
        super().__init__()
        self.f = f
        self.w = nn.ParameterList([nn.Parameter(torch.randn(s)) for s in shapes])

    def forward(self, *xs: torch.Tensor) -> object:
        return self.f(*xs, *self.w)


class SelfAttention(nn.Module):
    """nn.MultiheadAttention of a sequence with itself, or with another."""

    def __init__(self, mask: bool = False):
        super().__init__()
        self.attention, self.mask = nn.MultiheadAttention(8, 2, batch_first=True), mask

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.ones(x.shape[1], y.shape[1], dtype=torch.bool).triu(1) if self.mask else None
        return self.attention(x, y, y, attn_mask=mask)


class First(nn.Module):
    """The first result of a module."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        return self.inner(*xs)[0]


def networks() -> dict[str, Callable[[], Made]]:
    """Every network by name."""
    r = torch.randn
    image, line, volume = (lambda: r(2, 4, 7, 6)), (lambda: r(2, 4, 9)), (lambda: r(1, 2, 5, 6, 4))
    index = torch.tensor([[0, 2, 1], [1, 1, 0]])

    def of(f: Callable[..., object], *xs: torch.Tensor) -> Callable[[], Made]:
        return lambda: (Of(f), xs)

    def weighted(
        f: Callable[..., object], xs: tuple[torch.Tensor, ...], *shapes: tuple[int, ...]
    ) -> Callable[[], Made]:
        return lambda: (WithWeights(f, *shapes), xs)

    layer = dict(d_model=8, nhead=2, dim_feedforward=12, dropout=0.0, batch_first=True)
    found: dict[str, Callable[[], Made]] = {
        "transformer": lambda: (nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2), (r(2, 5, 8),)),
        "transformer_gelu_norm_first": lambda: (
            nn.TransformerEncoderLayer(**layer, activation="gelu", norm_first=True),
            (r(2, 5, 8),),
        ),
        "transformer_decoder": lambda: (nn.TransformerDecoderLayer(**layer), (r(2, 5, 8), r(2, 3, 8))),
        "attention": lambda: (SelfAttention(), (r(2, 5, 8), r(2, 3, 8))),
        "attention_causal": lambda: (SelfAttention(True), (r(2, 4, 8), r(2, 4, 8))),
        "sdpa": of(F.scaled_dot_product_attention, r(2, 3, 4, 5), r(2, 3, 6, 5), r(2, 3, 6, 7)),
        "sdpa_causal": of(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            r(2, 3, 4, 5),
            r(2, 3, 4, 5),
            r(2, 3, 4, 5),
        ),
        "group_norm": lambda: (nn.GroupNorm(2, 4), (image(),)),
        "instance_norm": lambda: (nn.InstanceNorm2d(4, affine=True), (image(),)),
        "layer_norm": lambda: (nn.LayerNorm([7, 6]), (image(),)),
        "rms_norm": lambda: (nn.RMSNorm(6), (image(),)),
        "batch_norm": lambda: (nn.Sequential(nn.Conv2d(4, 3, 3, bias=False), nn.BatchNorm2d(3)), (image(),)),
        "conv1d": lambda: (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), (line(),)),
        "conv2d_same": lambda: (nn.Conv2d(4, 6, (3, 2), padding="same"), (image(),)),
        "conv2d_reflect": lambda: (nn.Conv2d(4, 6, 3, padding=2, padding_mode="reflect"), (image(),)),
        "conv3d": lambda: (nn.Conv3d(2, 3, (2, 3, 2), stride=(1, 2, 1), padding=1), (volume(),)),
        "conv_transpose": lambda: (
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            (image(),),
        ),
        "embedding": lambda: (nn.Embedding(5, 3), (index,)),
        "embedding_bag": lambda: (nn.EmbeddingBag(5, 3, mode="mean"), (index,)),
        "embedding_bag_sum": lambda: (nn.EmbeddingBag(5, 3, mode="sum"), (index,)),
        "grid_sample": of(
            lambda x, g: F.grid_sample(x, g, align_corners=False), image(), torch.rand(2, 3, 5, 2) * 2.2 - 1.1
        ),
        "grid_sample_border_bicubic": of(
            lambda x, g: F.grid_sample(x, g, mode="bicubic", padding_mode="border", align_corners=True),
            image(),
            torch.rand(2, 3, 5, 2) * 2.2 - 1.1,
        ),
        "affine_grid": of(
            lambda x, t: F.grid_sample(x, F.affine_grid(t, [2, 4, 5, 3], align_corners=False), align_corners=False),
            image(),
            0.3 * r(2, 2, 3) + torch.eye(2, 3),
        ),
        "pixel_shuffle": of(lambda x: F.pixel_shuffle(x, 2), image()),
        "pixel_unshuffle": of(lambda x: F.pixel_unshuffle(x, 2), r(2, 3, 4, 6)),
        "unfold": of(lambda x: F.unfold(x, (2, 3), padding=1, stride=2), image()),
        "fold": of(lambda x: F.fold(x, (4, 5), (2, 2)), r(2, 8, 12)),
        "cumsum": of(lambda x: x.cumsum(1), r(2, 5, 3)),
        "cumprod": of(lambda x: x.cumprod(1), r(2, 5, 3)),
        "cummax": of(lambda x: x.cummax(1)[0], r(2, 5, 3)),
        "logcumsumexp": of(lambda x: x.logcumsumexp(1), r(2, 5, 3)),
        "einsum": of(lambda a, b: torch.einsum("bij,bkj->bik", a, b), r(2, 3, 4), r(2, 5, 4)),
        "einsum_diagonal": of(lambda a, b: torch.einsum("bii,bij->bj", a, b), r(2, 3, 3), r(2, 3, 4)),
        "scatter_add": of(lambda x, s: x.scatter_add(1, index, s), r(2, 4), r(2, 3)),
        "scatter": of(lambda x, s: x.scatter(1, torch.tensor([[0, 2, 1], [1, 3, 0]]), s), r(2, 4), r(2, 3)),
        "scatter_reduce_max": of(lambda x, s: x.scatter_reduce(1, index, s, "amax"), r(2, 4), r(2, 3)),
        "scatter_reduce_prod": of(lambda x, s: x.scatter_reduce(1, index, s, "prod"), r(2, 4), r(2, 3)),
        "index_add": of(lambda x, s: x.index_add(0, torch.tensor([0, 2, 0]), s), r(4, 3), r(3, 3)),
        "index_put": of(lambda x, s: x.index_put((torch.tensor([0, 2]),), s), r(4, 3), r(2, 3)),
        "index_put_accumulate": of(
            lambda x, s: x.index_put((torch.tensor([0, 2, 0]),), s, accumulate=True), r(4, 3), r(3, 3)
        ),
        "gather": of(lambda x: x.gather(1, index), r(2, 4)),
        "index_select": of(lambda x: x.index_select(1, torch.tensor([2, 0, 2])), r(2, 4)),
        "fancy_index": of(lambda x: x[:, [0, 2], [1, 1]], r(2, 4, 3)),
        "masked_fill": of(lambda x: x.masked_fill(torch.tensor([True, False, True]), -1e9).softmax(-1), r(2, 3)),
        "take_along_dim": of(lambda x: torch.take_along_dim(x, x.argsort(1), 1), r(2, 4)),
        "topk": of(lambda x: x.topk(2, 1)[0], r(3, 5)),
        "sort": of(lambda x: x.sort(1, descending=True)[0], r(3, 5)),
        "where": of(lambda x, y: torch.where(x > 0, x * y, y.exp()), r(3, 4), r(4)),
        "min_max": of(lambda x: (x.max(1)[0], x.min(1)[0], x.amax((0, 2))), r(3, 4, 2)),
        "clamp": of(lambda x: x.clamp(-0.5, 0.7), r(3, 4)),
        "maximum": of(lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)), r(3, 4), r(4)),
        "norms": of(lambda x: (x.norm(dim=1), x.norm(p=1, dim=0), x.norm()), r(3, 4)),
        "normalize": of(lambda x: F.normalize(x, dim=1), r(3, 4)),
        "cosine_similarity": of(lambda x, y: F.cosine_similarity(x, y, dim=1), r(3, 4), r(3, 4)),
        "pairwise_distance": of(lambda x, y: F.pairwise_distance(x, y), r(3, 4), r(3, 4)),
        "cdist": of(lambda x, y: torch.cdist(x, y), r(2, 3, 4), r(2, 5, 4)),
        "logsumexp": of(lambda x: x.logsumexp(1), r(3, 4)),
        "log_softmax": of(lambda x: F.log_softmax(x, 1), r(3, 4, 2)),
        "cross_entropy": of(lambda x: F.cross_entropy(x, torch.tensor([0, 3, 1])), r(3, 4)),
        "cross_entropy_smoothed": of(
            lambda x: F.cross_entropy(x, torch.tensor([0, 3, -100]), label_smoothing=0.1), r(3, 4)
        ),
        "bce_with_logits": of(F.binary_cross_entropy_with_logits, r(3, 4), torch.rand(3, 4)),
        "kl_div": of(lambda x, y: F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"), r(3, 4), r(3, 4)),
        "prod": of(lambda x: x.prod(1), r(3, 4)),
        "var_std": of(lambda x: (x.var(1), x.std(0), x.var((0, 1), correction=0)), r(3, 4, 2)),
        "mean_median": of(lambda x: (x.mean((1, 2)), x.mean()), r(3, 4, 2)),
        "bicubic": of(lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic", align_corners=False), image()),
        "bicubic_corners": of(lambda x: F.interpolate(x, size=(5, 9), mode="bicubic", align_corners=True), image()),
        "bilinear": of(lambda x: F.interpolate(x, size=(11, 4), mode="bilinear", align_corners=False), image()),
        "bilinear_corners": of(lambda x: F.interpolate(x, size=(11, 4), mode="bilinear", align_corners=True), image()),
        "bilinear_antialias": of(lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True), image()),
        "trilinear": of(lambda x: F.interpolate(x, size=(4, 8, 5), mode="trilinear"), volume()),
        "nearest": of(lambda x: F.interpolate(x, scale_factor=2.5, mode="nearest"), image()),
        "nearest_exact": of(lambda x: F.interpolate(x, size=(5, 9), mode="nearest-exact"), image()),
        "adaptive_avg_pool": of(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), r(2, 4, 6, 6)),
        "adaptive_avg_pool_uneven": of(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), image()),
        "adaptive_max_pool": of(lambda x: F.adaptive_max_pool2d(x, (3, 2)), r(2, 4, 6, 6)),
        "avg_pool": of(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), image()),
        "max_pool": of(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), image()),
        "max_pool_dilated": of(lambda x: F.max_pool2d(x, 2, 1, 0, 2), image()),
        "max_pool3d": of(lambda x: F.max_pool3d(x, 2), volume()),
        "lp_pool": of(lambda x: F.lp_pool2d(x.abs(), 2, 2), image()),
        "pads": of(
            lambda x: (F.pad(x, (1, 2, 2, 0), "reflect"), F.pad(x, (1, 2), "replicate"), F.pad(x, (-1, 2), value=3.0)),
            r(2, 4, 7),
        ),
        "circular_pad": of(lambda x: F.pad(x, (1, 2), "circular"), r(2, 4, 7)),
        "roll_flip": of(lambda x: x.roll(2, 1) * x.flip(0, 2), r(2, 5, 3)),
        "repeat": of(lambda x: x.repeat(2, 1, 3) + x.repeat_interleave(2, 0).repeat(1, 1, 3), r(2, 5, 3)),
        "expand_stack": of(lambda x, y: torch.stack([x, y.expand(3, 4)], 1), r(3, 4), r(4)),
        "cat_split": of(lambda x, y: torch.cat([*x.split([1, 3], 1), y], 1), r(3, 4), r(3, 2)),
        "chunk_unbind": of(
            lambda x: sum(a * b for a, b in zip(x.chunk(2, 2), x.unbind(0)[0].chunk(2, 1), strict=True)), r(2, 3, 4)
        ),
        "slices": of(lambda x: x[:, 1:-1:2] * x[:, :2], r(2, 6, 3)),
        "slice_assign": of(_assign, r(4, 5), r(2, 5)),
        "tril": of(lambda x: x.tril() @ x.triu(1), r(4, 4)),
        "diag": of(lambda x: torch.diag(x) * torch.diagonal(x, 0), r(4, 4)),
        "trace_outer": of(lambda x, y: torch.outer(x, y) + torch.kron(x, y).reshape(4, 3), r(4), r(3)),
        "det_inverse": of(lambda x: torch.det(x), r(3, 3, 3)),
        "baddbmm": of(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0), r(2, 3, 5), r(2, 3, 4), r(2, 4, 5)),
        "addmm_mv": of(lambda c, a, v: torch.addmv(c, a, v), r(3), r(3, 4), r(4)),
        "matmul_vector": of(lambda a, b: a @ b, r(4), r(2, 4, 3)),
        "bilinear_layer": lambda: (nn.Bilinear(3, 4, 5), (r(2, 3), r(2, 4))),
        "atan2": of(lambda x, y: torch.atan2(x, y), r(3, 4), r(3, 4)),
        "remainder_fmod": of(lambda x, y: torch.remainder(x, y) + torch.fmod(x, y), 3 * r(3, 4), r(4).abs() + 0.5),
        "glu": of(lambda x: F.glu(x, 1), r(3, 4)),
        "prelu": lambda: (nn.PReLU(4), (image(),)),
        "local_response_norm": lambda: (nn.LocalResponseNorm(3), (image(),)),
        "softmax2d": lambda: (nn.Softmax2d(), (image(),)),
        "one_hot_matmul": weighted(lambda i, w: F.one_hot(i, 5).float() @ w, (index,), (5, 3)),
        "fft": of(lambda x: torch.view_as_real(torch.fft.rfft(x)), r(2, 8)),
        "stft": of(
            lambda x: torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True, center=False).abs(),
            r(2, 24),
        ),
        "lstm": lambda: (First(nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)), (r(2, 5, 3),)),
        "gru": lambda: (First(nn.GRU(3, 4, 2, bidirectional=True)), (r(5, 2, 3),)),
        "rnn": lambda: (First(nn.RNN(3, 4, nonlinearity="relu")), (r(5, 2, 3),)),
        "lstm_cell": lambda: (nn.LSTMCell(3, 4), (r(2, 3),)),
        "channel_shuffle": of(lambda x: F.channel_shuffle(x, 2), image()),
        "weight_norm": lambda: (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (r(2, 4),)),
        "bucketize_mask": of(lambda x: x * torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), r(3, 4)),
        "nan_to_num": of(lambda x: torch.nan_to_num(x / x.sign()), r(3, 4)),
    }
    singles = (
        "sin cos tan atan sinh cosh asinh expm1 erf erfc exp2 square sigmoid tanh round floor frac sign abs neg relu "
        "elu selu celu silu mish softplus softsign hardsigmoid hardswish hardtanh relu6 leaky_relu hardshrink gelu "
        "tanhshrink softshrink logsigmoid"
    )
    for name in singles.split():
        found[name] = of(_function(name), 2 * r(3, 4))
    for name in "asin acos atanh logit".split():
        found[name] = of(_function(name), 0.8 * torch.rand(3, 4) + 0.1)
    for name in "log log1p log2 log10 sqrt rsqrt reciprocal acosh".split():
        found[name] = of(_function(name), torch.rand(3, 4) + 1.1)
    for name in "mse_loss huber_loss smooth_l1_loss l1_loss".split():
        found[name] = of(_function(name), r(3, 4), r(3, 4))
    found |= {
        "gelu_tanh": of(lambda x: F.gelu(x, approximate="tanh"), r(3, 4)),
        "celu_2": of(lambda x: F.celu(x, 2.0), r(3, 4)),
        "lerp": of(lambda x, y: torch.lerp(x, y, 0.3), r(3, 4), r(3, 4)),
        "addcmul": of(lambda x, y: torch.addcmul(x, x, y, value=0.5), r(3, 4), r(3, 4)),
        "addcdiv": of(lambda x, y: torch.addcdiv(x, y, y.exp()), r(3, 4), r(3, 4)),
        "cube": of(lambda x: x**3, r(3, 4)),
        "pow": of(lambda x, y: x.abs() ** y, r(3, 4), r(4)),
        "power_of_two": of(lambda x: 2**x, r(3, 4)),
        "xlogy": of(torch.xlogy, r(3, 4), torch.rand(3, 4) + 0.5),
        "logaddexp": of(torch.logaddexp, r(3, 4), r(3, 4)),
    }
    found |= {
        "conv_transpose1d": lambda: (nn.ConvTranspose1d(4, 6, 4, 3, 1, groups=2, dilation=2), (line(),)),
        "conv_transpose3d": lambda: (nn.ConvTranspose3d(2, 4, (2, 3, 2), (1, 2, 2), (0, 1, 0), (0, 1, 0)), (volume(),)),
        "conv2d_same_even": lambda: (nn.Conv2d(4, 6, (4, 2), padding="same", dilation=(1, 2)), (image(),)),
        "conv2d_circular": lambda: (nn.Conv2d(4, 4, 3, 2, (1, 2), groups=4, padding_mode="circular"), (image(),)),
        "conv3d_grouped": lambda: (nn.Conv3d(2, 4, 2, dilation=(2, 1, 1), groups=2, bias=False), (volume(),)),
        "conv_of_conv": of(lambda x, w: F.conv2d(x, F.conv2d(w, w, padding=1)), image(), r(4, 4, 3, 3)),
        "batch_norm_training": weighted(
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), (image(),), (4,), (4,)
        ),
        "batch_norm_1d": lambda: (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ELU()), (r(5, 4),)),
        "instance_norm_1d": lambda: (nn.InstanceNorm1d(4), (line(),)),
        "instance_norm_tracked": lambda: (nn.InstanceNorm3d(2, affine=True, track_running_stats=True), (volume(),)),
        "group_norm_3d": lambda: (nn.GroupNorm(2, 4), (r(2, 4, 3, 2, 2),)),
        "layer_norm_plain": of(lambda x: F.layer_norm(x, (6,)), image()),
        "rrelu": of(lambda x: F.rrelu(x, 0.1, 0.3), r(3, 4)),
        "dropouts": lambda: (nn.Sequential(nn.Dropout(0.3), nn.Dropout2d(0.2), nn.AlphaDropout(0.2)), (image(),)),
        "avg_pool1d": of(lambda x: F.avg_pool1d(x, 3, 2, 1), line()),
        "avg_pool3d": of(lambda x: F.avg_pool3d(x, (2, 3, 2), (1, 2, 1), (1, 1, 0), ceil_mode=True), volume()),
        "avg_pool_divisor": of(lambda x: F.avg_pool2d(x, 2, divisor_override=3), image()),
        "max_pool1d": of(lambda x: F.max_pool1d(x, 3, 2, 1), line()),
        "max_unpool": of(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), r(2, 3, 4, 6)),
        "adaptive_pools": of(
            lambda x, y: (F.adaptive_avg_pool1d(x, 3), F.adaptive_max_pool1d(x, 1), F.adaptive_avg_pool3d(y, 1)),
            line(),
            volume(),
        ),
        "lp_pool_3": of(lambda x: F.lp_pool1d(x, 3, 2), line().abs()),
        "linear_interpolation": of(lambda x: F.interpolate(x, 13, mode="linear", align_corners=True), line()),
        "bilinear_down": of(lambda x: F.interpolate(x, scale_factor=(0.6, 1.3), mode="bilinear"), image()),
        "area": of(lambda x: F.interpolate(x, (2, 3), mode="area"), r(2, 3, 4, 6)),
        "nearest_3d": of(lambda x: F.interpolate(x, (4, 9, 3), mode="nearest"), volume()),
        "bicubic_antialias": of(lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True), image()),
        "grid_sample_3d": of(
            lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True),
            volume(),
            torch.rand(1, 2, 3, 2, 3) * 2.2 - 1.1,
        ),
        "grid_sample_reflection": of(
            lambda x, g: F.grid_sample(x, g, padding_mode="reflection", align_corners=False),
            image(),
            torch.rand(2, 3, 5, 2) * 3 - 1.5,
        ),
        "unfold_fold": of(lambda x: F.fold(F.unfold(x, 3, padding=1), (7, 6), 3, padding=1), image()),
        "windows": of(lambda x: x.unfold(1, 3, 2).amax(-1) + x.unfold(1, 3, 2).std(-1), r(2, 7, 3)),
        "as_strided": of(lambda x: torch.as_strided(x, (2, 3, 2), (6, 2, 1), 1), r(3, 6)),
        "pad_modes": of(
            lambda x: (
                F.pad(x, (1, 2, 2, 1), "reflect"),
                F.pad(x, (1, 0, 0, 3), "replicate"),
                F.pad(x, (-1, 2, 1, -2)),
            ),
            image(),
        ),
        "cummin_product": of(lambda x: x.cummin(1)[0] * x.flip(1).cumsum(1).flip(1), r(2, 5, 3)),
        "scatter_reduce_mean": of(lambda x, s: x.scatter_reduce(1, index, s, "mean"), r(2, 4), r(2, 3)),
        "scatter_reduce_amin_alone": of(
            lambda x, s: x.scatter_reduce(1, index, s, "amin", include_self=False), r(2, 4), r(2, 3)
        ),
        "index_reduce": of(lambda x, s: x.index_copy(0, torch.tensor([2, 0]), s), r(4, 3), r(2, 3)),
        "index_fill": of(lambda x: x.index_fill(1, torch.tensor([0, 2]), 1.5), r(3, 4)),
        "masked_scatter_select": of(lambda x: x.masked_select(x > 0.1), r(3, 4)),
        "boolean_index": of(lambda x: x[x.sum(1) > 0] ** 2, r(5, 4)),
        "boolean_assign": of(_assign_where, r(3, 4), r(3, 4)),
        "kthvalue_median": of(lambda x: (x.kthvalue(2, 1)[0], x.median(1)[0], x.mode(1)[0]), r(3, 5)),
        "quantile": of(lambda x: x.quantile(0.3, 1), r(3, 5)),
        "sort_gather": of(lambda x, y: y.gather(1, x.argsort(1)) * x.sort(1)[0], r(3, 5), r(3, 5)),
        "topk_smallest": of(lambda x: x.topk(2, 0, largest=False, sorted=True)[0], r(5, 3)),
        "argmax_mask": of(lambda x: x * F.one_hot(x.argmax(1), 5), r(3, 5)),
        "masked_rows": of(
            lambda x: torch.where(torch.tensor([[True], [False]]), x.masked_fill(x > 9, 0.0).log_softmax(1), 0.0),
            r(2, 3),
        ),
        "safe_sqrt": of(lambda x: torch.where(x > 0, x.clamp(min=1e-12).sqrt(), torch.zeros_like(x)), r(3, 4)),
        "safe_division": of(lambda x, y: torch.where(y != 0, x / torch.where(y == 0, 1.0, y), 0.0), r(4), r(4).relu()),
        "norm_at_zero": of(lambda x: torch.linalg.vector_norm(x * torch.tensor([[0.0], [1.0]]), dim=1), r(2, 3)),
        "norms_of_kinds": of(
            lambda x: (x.norm(3, 1), x.norm(float("inf"), 1), torch.linalg.matrix_norm(x), x.renorm(2, 0, 0.5)), r(3, 4)
        ),
        "einsum_outer": of(lambda a, b: torch.einsum("bi,cj->bcij", a, b), r(2, 3), r(2, 4)),
        "einsum_ellipsis": of(lambda a, b: torch.einsum("...ij,...jk->...ki", a, b), r(2, 3, 4), r(2, 4, 5)),
        "einsum_three": of(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), r(2, 3), r(3, 4), r(4, 2)),
        "einsum_trace": of(lambda a, b: torch.einsum("ii->", a) * torch.einsum("ij->j", b), r(3, 3), r(2, 4)),
        "einsum_attention": of(lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b), r(2, 3, 2, 4), r(2, 5, 2, 4)),
        "tensordot": of(lambda a, b: torch.tensordot(a, b, ([1, 2], [1, 0])), r(2, 3, 4), r(4, 3, 5)),
        "matrix_power": of(lambda x: torch.linalg.matrix_power(x, 3) + x.trace(), r(3, 3)),
        "inverse": of(lambda x: torch.linalg.inv(x), r(3, 3) + 3 * torch.eye(3)),
        "cholesky_solve": of(lambda x, y: torch.linalg.solve(x, y), r(3, 3) + 3 * torch.eye(3), r(3, 2)),
        "slogdet": of(lambda x: torch.linalg.slogdet(x)[1], r(3, 3) + 3 * torch.eye(3)),
        "cross_cosine": of(
            lambda a, b: torch.linalg.cross(a, b) / (a * b).sum(1, keepdim=True).exp(), r(3, 3), r(3, 3)
        ),
        "cov_corrcoef": of(lambda x: (torch.cov(x), torch.corrcoef(x)), r(3, 5)),
        "vander": of(lambda x: torch.linalg.vander(x, N=4), r(4)),
        "diff_trapezoid": of(
            lambda x: (torch.diff(x, dim=1), torch.trapezoid(x, dim=1), torch.cumulative_trapezoid(x)), r(3, 5)
        ),
        "polar": of(lambda a, b: (torch.hypot(a, b), torch.atan2(a, b), torch.sinc(a)), r(3, 4), r(3, 4)),
        "hypergeometric": of(
            lambda x: (torch.special.expit(x), torch.special.entr(x.sigmoid()), torch.erfinv(x.tanh())), r(3, 4)
        ),
        "gamma": of(lambda x: torch.lgamma(x), torch.rand(3, 4) + 0.5),
        "float_power_fix": of(lambda x: x.float_power(2).float() + x.trunc(), r(3, 4)),
        "threshold": of(
            lambda x: (F.threshold(x, 0.1, -1.0), F.hardtanh(x, -0.3, 0.4), F.softplus(x, 2.0, 1.0)), r(3, 4)
        ),
        "softmin_gumbel": of(lambda x: (F.softmin(x, 1), F.softmax(x, 0), F.log_softmax(x, -1)), r(3, 4)),
        "half": of(lambda x: (x.half() * 2).float() + x.double().exp().float(), r(3, 4)),
        "fft2": of(lambda x: torch.view_as_real(torch.fft.fft2(torch.complex(x, 2 * x))), r(2, 3, 4)),
        "fft_filter": of(lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.linspace(1, 0, 5), n=8), r(2, 8)),
        "istft_like": of(lambda x: torch.fft.ifft(torch.fft.fft(x, norm="ortho")).real, r(2, 6)),
        "power_spectrum": of(lambda x: torch.fft.rfft(x).abs().square().log1p(), r(2, 9)),
        "vmap": of(torch.vmap(lambda a, b: (a @ b).softmax(-1)), r(2, 3, 4), r(2, 4, 3)),
        "meshgrid": of(lambda a, b: torch.stack(torch.meshgrid(a, b, indexing="xy")).prod(0), r(3), r(4)),
        "block_diag": of(
            lambda a, b: torch.block_diag(a, b) @ torch.cat([a.flatten(), b.flatten()])[:5], r(2, 3), r(2, 2)
        ),
        "rot90_transpose": of(lambda x: x.rot90(1, (1, 2)) * x.movedim(0, 1).swapaxes(0, 1)[:, :3, :3], r(2, 3, 3)),
        "tile_narrow": of(lambda x: x.tile(2, 2).narrow(1, 1, 5) + x.select(1, 2)[0], r(2, 3)),
        "triangular": of(lambda x: x[torch.tril_indices(4, 4)[0], torch.tril_indices(4, 4)[1]].cumsum(0), r(4, 4)),
        "tri_mask": of(lambda x: (x * torch.ones(4, 4).tril()).logsumexp(1) + x.tril(-1).sum(0), r(4, 4)),
    }
    return (
        found
        | torch_vision.networks()
        | torch_sequences.networks()
        | torch_science.networks()
        | torch_control.networks()
    )


def _function(name: str) -> Callable[..., object]:
    return getattr(torch, name, None) or getattr(F, name)  # type: ignore[no-any-return]


def _assign_where(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[y > 0] = 2.0
    z[:, 0] *= y[:, 1]
    return z


def _assign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[1:3] = y * x[1:3]
    return z
