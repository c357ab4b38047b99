"""The conventions of docs/conventions.md, row by row: derivatives at kinks, ties and singular points.

PyTorch's values are numbers here; another test computes them again where PyTorch is installed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from support import evaluate

from onnxad_passes import forward, reverse

INF, NAN = np.inf, np.nan


@dataclass(frozen=True)
class Row:
    """One row of the page: `key` is its first two columns, the operator and the point; `grads` the gradients in the operands.

    `torch`: PyTorch's gradients, or None where they are the same; `call`: the same function in PyTorch, if it has one.
    """

    key: str
    body: str
    operands: dict
    grads: list
    call: str = ""
    torch: list | None = None
    seed: list | None = None
    types: dict = field(default_factory=dict)
    #: Operands of the function in PyTorch, where it has fewer.
    wrt: tuple = ()
    #: The newest that ONNX Runtime has kernels of.
    opset: int = 23


def row(key, body, grads, call="", torch=None, seed=None, wrt=(), opset=23, **operands):
    values = {k: np.asarray(v, np.float32) for k, v in operands.items()}
    return Row(key, body, values, grads, call, torch, seed, {}, wrt, opset)


ONE, TWO = [[0.0]], [[0.0, 0.0]]
#: An image of one row.
PIXELS = [1, 2, 4, 8]
IMAGE = "f = Constant<value_ints = [-1]>() s = Constant<value_ints = [1, 1, 1, 4]>() i = Reshape(x, s) "


def sampled(attributes):
    """The image at places, two coordinates each."""
    grid = "t = Constant<value_ints = [1, 1, -1, 2]>() q = Reshape(r, t) "
    return f"{IMAGE} {grid} a = GridSample<{attributes}>(i, q) y = Reshape(a, f)"


def sampled_in_torch(x, r, mode, padding):
    import torch

    places = r.reshape(1, 1, -1, 2)
    image = x.reshape(1, 1, 1, 4)
    return torch.nn.functional.grid_sample(image, places, mode, padding, align_corners=True).reshape(-1)


def aligned(count, attributes=""):
    """One sample of the image in each of some boxes, at its middle: (left + right) / 2 - 1/2 with half pixels."""
    boxes = f"b = Constant<value_ints = {[0] * count}>() t = Constant<value_ints = [{count}, 4]>() q = Reshape(r, t) "
    more = f", {attributes}" if attributes else ""
    return f"{IMAGE} {boxes} a = RoiAlign<sampling_ratio = 1{more}>(i, q, b) y = Reshape(a, f)"


ROWS = [
    row("Relu | 0", "y = Relu(x)", ONE, "F.relu(x)", x=[0]),
    row("LeakyRelu | 0", "y = LeakyRelu<alpha = 0.1>(x)", [[0.1]], "F.leaky_relu(x, 0.1)", x=[0]),
    row("PRelu | 0", "y = PRelu(x, s)", [[0.3], [0]], "F.prelu(x, s)", x=[0], s=[0.3]),
    row("Elu | 0", "y = Elu<alpha = 2.0>(x)", [[2]], "F.elu(x, 2.0)", x=[0]),
    row("Selu | 0", "y = Selu(x)", [[1.7580993]], "F.selu(x)", x=[0]),
    row("Celu | 0", "y = Celu<alpha = 2.0>(x)", [[1]], "F.celu(x, 2.0)", x=[0]),
    row("HardSigmoid | -3, 3", "y = HardSigmoid<alpha = 0.16666667>(x)", TWO, "F.hardsigmoid(x)", x=[-3, 3]),
    row("HardSwish | -3, 3", "y = HardSwish(x)", [[0, 1]], "F.hardswish(x)", x=[-3, 3]),
    row("Shrink | the threshold", "y = Shrink<lambd = 0.5, bias = 0.5>(x)", TWO, "F.softshrink(x, 0.5)", x=[-0.5, 0.5]),
    row("ThresholdedRelu | the threshold", "y = ThresholdedRelu<alpha = 1.0>(x)", ONE, "F.threshold(x, 1.0, 0.0)", x=[1]),
    row("Abs | 0", "y = Abs(x)", ONE, "x.abs()", x=[0]),
    row("Round, Floor, Ceil, Sign | anywhere", "r = Round(x) f = Floor(x) c = Ceil(x) s = Sign(x) y = Sum(r, f, c, s)", [[0, 0, 0]], "x.round() + x.floor() + x.ceil() + x.sign()", x=[0, 0.5, 1.2]),
    row("Sqrt | 0", "y = Sqrt(x)", [[INF]], "x.sqrt()", x=[0]),
    row("Sqrt | 0, cotangent 0", "y = Sqrt(x)", ONE, "x.sqrt()", [[NAN]], [0], x=[0]),
    row("Log | 0", "y = Log(x)", [[INF]], "x.log()", x=[0]),
    row("Log | 0, cotangent 0", "y = Log(x)", ONE, "x.log()", [[NAN]], [0], x=[0]),
    row("Asin, Acos | 1, cotangent 0", "a = Asin(x) b = Acos(x) y = Sub(a, b)", ONE, "x.asin() - x.acos()", [[NAN]], [0], x=[1]),
    row("Pow | base 0, exponent 0", "y = Pow(x, p)", [[0], [0]], "x ** p", x=[0], p=[0]),
    row("Pow | base 0, exponent 1", "y = Pow(x, p)", [[1], [0]], "x ** p", x=[0], p=[1]),
    row("Pow | base 0, exponent above 1", "y = Pow(x, p)", [[0, 0], [0, 0]], "x ** p", x=[0, 0], p=[1.5, 2]),
    row("Pow | base 0, exponent 1/2", "p = Constant<value_float = 0.5>() y = Pow(x, p)", [[INF]], "x ** 0.5", x=[0]),
    row("Mod | at a multiple", "y = Mod<fmod = 1>(x, m)", [[1, 1], [-2, 2]], "torch.fmod(x, m)", x=[6, -6], m=[3, 3]),
    row("Max, Min | two equal", "a = Max(x, z) b = Min(x, z) y = Add(a, b)", [[1], [1]], "torch.maximum(x, z) + torch.minimum(x, z)", x=[1], z=[1]),
    row("Max, Min | three equal", "y = Max(x, z, w)", [[1 / 3], [1 / 3], [1 / 3]], "torch.maximum(torch.maximum(x, z), w)", [[0.25], [0.25], [0.5]], x=[1], z=[1], w=[1]),
    row("ReduceMax | ties", "y = ReduceMax(x)", [[0, 0.5, 0.5]], "x.amax(0, keepdim=True)", x=[1, 2, 2]),
    row("ReduceMin | ties", "y = ReduceMin(x)", [[0.5, 0.5, 0]], "x.amin(0, keepdim=True)", x=[1, 1, 2]),
    row("ReduceL1 | 0", "y = ReduceL1(x)", [[0, 1]], "torch.linalg.vector_norm(x, 1, 0, True)", x=[0, 1]),
    row("ReduceL2 | all zeros", "y = ReduceL2(x)", TWO, "torch.linalg.vector_norm(x, 2, 0, True)", x=[0, 0]),
    row("ReduceProd | one zero", "y = ReduceProd(x)", [[6, 0, 0]], "x.prod(0, keepdim=True)", x=[0, 2, 3]),
    row("ReduceLogSumExp | -inf only", "y = ReduceLogSumExp(x)", TWO, "x.logsumexp(0, True)", [[NAN, NAN]], x=[-INF, -INF]),
    row("ReduceLogSumExp | one -inf", "y = ReduceLogSumExp(x)", [[0, 1]], "x.logsumexp(0, True)", x=[-INF, 1]),
    row("LpNormalization | all zeros", "y = LpNormalization<axis = 0>(x)", TWO, "F.normalize(x, dim=0)", [[1e9, 1e9]], seed=[1e-3, 1e-3], x=[0, 0]),
    row("Clip | at a bound", "l = Constant<value_float = -1.0>() h = Constant<value_float = 1.0>() y = Clip(x, l, h)", [[1, 1, 0]], "x.clamp(-1, 1)", x=[-1, 1, 2]),
    row("Clip's bounds | at a bound", "y = Clip(x, l, h)", [[1], 0, 0], "torch.clamp(x, l, h)", x=[1], l=1, h=1),
    row("Clip | min above max", "y = Clip(x, l, h)", [[0, 0, 0], 0, 3], "torch.clamp(x, l, h)", x=[1, 2.5, 4], l=3, h=2),
    row("Softmax | one -inf", "y = Softmax<axis = 0>(x)", [[0, 0.19661194, -0.19661194]], "x.softmax(0)", seed=[0, 1, 0], x=[-INF, 1, 2]),
    row("Softmax | -inf only", "y = Softmax<axis = 0>(x)", [[NAN, NAN]], "x.softmax(0)", x=[-INF, -INF]),
    row("Softmax | -inf only, thrown away by a Where", "s = Softmax<axis = 0>(x) n = IsNaN(s) z = Constant<value_float = 0.0>() y = Where(n, z, s)", TWO, "torch.where(x.softmax(0).isnan(), 0.0, x.softmax(0))", [[NAN, NAN]], x=[-INF, -INF]),
    row("Attention | a row masked throughout", "y = Attention(x, k, v, m)", [[[[[0, 0]]]], [[[[0, 0], [0, 0]]]], [[[[0, 0], [0, 0]]]]], "F.scaled_dot_product_attention(x, k, v, m)", x=[[[[1, 2]]]], k=[[[[1, 2], [3, 4]]]], v=[[[[1, 2], [3, 5]]]], m=[[[[-INF, -INF]]]], wrt=("x", "k", "v")),
    row("Where | the branch not taken", "z = Constant<value_float = 0.0>() c = Greater(x, z) l = Log(x) y = Where(c, l, z)", [[0, 0, 0.5]], "torch.where(x > 0, x.log(), 0.0)", [[NAN, 0, 0.5]], x=[0, -1, 2]),
    row("Dropout | its ratio", "n = IsNaN(r) t = Not(n) y = Dropout<seed = 3>(x, r, t)", [[2.0]], "", x=[1] * 64, r=0.5, wrt=("r",)),
    row("MaxPool | ties", "s = Constant<value_ints = [1, 1, 4]>() f = Constant<value_ints = [-1]>() a = Reshape(x, s) b = MaxPool<kernel_shape = [2], strides = [2]>(a) y = Reshape(b, f)", [[1, 0, 1, 0]], "F.max_pool1d(x.reshape(1, 1, 4), 2).reshape(-1)", x=[1, 1, 2, 2]),
    row("ScatterElements, ScatterND with max, min | ties", "i = Constant<value_ints = [0, 0]>() y = ScatterElements<reduction = \"max\">(x, i, z)", [[1 / 3, 1], [1 / 3, 1 / 3]], "x.scatter_reduce(0, torch.tensor([0, 0]), z, 'amax')", x=[1, 5], z=[1, 1]),
    row("TopK | ties", "k = Constant<value_ints = [1]>() y, i = TopK(x, k)", [[0, 1, 0]], "x.topk(1)[0]", x=[1, 2, 2]),
    row("Unique | repeated elements", "y = Unique<axis = 0>(x)", [[1, 1, 0]], "", x=[2, 1, 2]),
    row("Range | its limits", "d = Constant<value_float = 1.0>() y = Range(s, l, d)", [3, 0], "", s=0, l=2.5),
    row("OneHot | its depth", "i = Constant<value_ints = [1]>() y = OneHot<axis = 0>(i, d, v)", [[2, 1], 0], "", v=[0, 1], d=3),
    row("Resize | nearest", "n = Constant<value_ints = [3]>() y = Resize<mode = \"nearest\">(x, , , n)", [[2, 1]], "F.interpolate(x.reshape(1, 1, 2), 3).reshape(-1)", x=[1, 2]),
    row("Resize | its region, at a pixel", "n = Constant<value_ints = [1, 4]>() s = Constant<value_ints = [1, 4]>() f = Constant<value_ints = [-1]>() i = Reshape(x, s) a = Resize<mode = \"linear\", coordinate_transformation_mode = \"tf_crop_and_resize\">(i, r, , n) y = Reshape(a, f)", [[1, 1, 1, 1], [0, 11, 0, 22]], "", x=[1, 2, 4, 8], r=[0, 0, 1, 1]),
    row("GridSample | at a pixel", sampled("align_corners = 1"), [[0, 1, 0, 0], [1.5, 0]], "sampled(x, r, 'bilinear', 'zeros')", x=PIXELS, r=[-1 / 3, 0]),
    row("GridSample | at a border and beyond", sampled("align_corners = 1"), [[1, 0, 0, 1], [1.5, 0, -12, 0, 0, 0]], "sampled(x, r, 'bilinear', 'zeros')", x=PIXELS, r=[-1, 0, 1, 0, 2, 0]),
    row("GridSample | at a border and beyond, repeated", sampled("align_corners = 1, padding_mode = \"border\""), [[1, 0, 0, 2], [0, 0, 0, 0, 0, 0]], "sampled(x, r, 'bilinear', 'border')", x=PIXELS, r=[-1, 0, 1, 0, 2, 0]),
    row("GridSample | at a border and beyond, mirrored", sampled("align_corners = 1, padding_mode = \"reflection\""), [[1, 0, 0.75, 1.25], [0, 0, 0, 0, -6, 0]], "sampled(x, r, 'bilinear', 'reflection')", x=PIXELS, r=[-1, 0, 1, 0, 1.5, 0]),
    row("GridSample | nearest", sampled("align_corners = 1, mode = \"nearest\""), [[0, 1, 0, 0], [0, 0]], "sampled(x, r, 'nearest', 'zeros')", x=PIXELS, r=[-0.3, 0]),
    row("DeformConv | whole offsets", IMAGE + "t = Constant<value_ints = [1, 2, 1, 4]>() q = Reshape(r, t) w = Constant<value = float[1, 1, 1, 1] {1.0}>() a = DeformConv(i, w, q) y = Reshape(a, f)", [[1, 1, 1, 1], [-1, -2, -4, -8, 1, 2, 4, -8]], "", x=PIXELS, r=[0] * 8),
    row("RoiAlign | a sample at a pixel", aligned(1), [[0, 1, 0, 0], [1, 0, 1, 0]], "", x=PIXELS, r=[0.5, 0, 2.5, 1]),
    row("RoiAlign | a sample at the first or last pixel, or at most one beyond", aligned(4), [[2, 0, 0, 2], [0] * 16], "", x=PIXELS, r=[-0.5, 0, 1.5, 1, 2.5, 0, 4.5, 1, -2, 0, 1, 1, 3.5, 0, 5.5, 1]),
    row("RoiAlign | a sample further out", aligned(2), [[0] * 4, [0] * 8], "", x=PIXELS, r=[-2.1, 0, 1, 1, 3.6, 0, 5.5, 1]),
    row("RoiAlign | a width of 1 or less without half_pixel", aligned(2, "coordinate_transformation_mode = \"output_half_pixel\""), [[0, 0.5, 1.5, 0], [2, 0, 0, 0, 2, 0, 0, 0]], "", x=PIXELS, r=[1.25, 0, 2.25, 1, 1.25, 0, 1.75, 1]),
    row("RoiAlign | max, ties", aligned(1, "mode = \"max\""), [[0, 0.25, 0.25, 0], [0] * 4], "", x=[1, 2, 2, 8], r=[1, 0, 3, 1]),
    row("MaxRoiPool | ties, and its boxes", IMAGE + "t = Constant<value_ints = [1, 5]>() q = Reshape(r, t) a = MaxRoiPool<pooled_shape = [1, 1]>(i, q) y = Reshape(a, f)", [[0, 0.5, 0.5, 0], [0] * 5], "", opset=18, x=[1, 2, 2, 8], r=[0, 0, 0, 2, 0]),
    row("ArgMax, comparisons, casts to whole numbers | anywhere", "i = ArgMax(x) a = Cast<to = 1>(i) t = Cast<to = 9>(x) b = Cast<to = 1>(t) y = Add(a, b)", TWO, "", x=[1, 2]),
]  # fmt: skip


def gradients(r, mode):
    """The gradients in the operands; in forward mode from a direction per element."""
    kinds = {0: "float", 1: "float[{}]"}
    ins = ", ".join(
        f"{kinds.get(v.ndim, 'float[' + ','.join(map(str, v.shape)) + ']').format(len(v) if v.ndim else '')} {k}"
        for k, v in r.operands.items()
    )
    rank = (
        r.operands[next(iter(r.operands))].ndim
        if r.key.startswith("Attention")
        else 2
        if r.key.startswith("OneHot")
        else 1
    )
    out = ", ".join(f"Y{i}" for i in range(rank))
    text = f'<ir_version: 10, opset_import: ["" : {r.opset}]> m ({ins}) => (float[{out}] y) {{ {r.body} }}'
    model = onnx.parser.parse_model(text)
    names = r.wrt or tuple(r.operands)
    y = evaluate(model, r.operands)["y"]
    seed = np.ones_like(y) if r.seed is None else np.asarray(r.seed, np.float32).reshape(y.shape)
    if mode == "reverse":
        feeds = {**r.operands, "adj_y": seed}
        got = evaluate(reverse(model, names, layout="single", prefix="adj_"), feeds)
        return [got[f"adj_{k}"] for k in names]
    fwd = forward(model, names, layout="single", prefix="fwd_")
    zero = {f"fwd_{k}": np.zeros_like(r.operands[k]) for k in names}
    found = []
    for k in names:
        columns = []
        for e in np.eye(max(1, r.operands[k].size), dtype=np.float32):
            direction = {**zero, f"fwd_{k}": e.reshape(r.operands[k].shape)}
            t = evaluate(fwd, {**r.operands, **direction})["fwd_y"]
            columns.append(np.where(seed == 0, 0, t * seed).sum())
        found.append(np.reshape(columns, r.operands[k].shape))
    return found


@pytest.mark.parametrize("mode", ["reverse", "forward"])
@pytest.mark.parametrize("r", ROWS, ids=lambda r: r.key)
def test_row(r, mode):
    got = gradients(r, mode)
    if r.key == "Dropout | its ratio":  # each element that is kept is x / (1 - ratio)
        kept = evaluate_dropout(r)
        np.testing.assert_allclose(got[0], 4 * kept)
        return
    assert len(got) == len(r.grads)
    for g, want in zip(got, r.grads, strict=True):
        np.testing.assert_allclose(g, np.reshape(want, g.shape), 1e-5, 1e-6)


def evaluate_dropout(r):
    text = f'<ir_version: 10, opset_import: ["" : 23]> m (float[64] x, float r) => (float[64] y) {{ {r.body} }}'
    kept = int((evaluate(onnx.parser.parse_model(text), r.operands)["y"] != 0).sum())
    assert 0 < kept < 64
    return kept


@pytest.mark.parametrize("r", [r for r in ROWS if r.call], ids=lambda r: r.key)
def test_pytorch(r):
    torch = pytest.importorskip("torch")
    values = {k: torch.tensor(v, requires_grad=not r.wrt or k in r.wrt) for k, v in r.operands.items()}
    y = eval(r.call, {"torch": torch, "F": torch.nn.functional, "sampled": sampled_in_torch, **values})
    seed = torch.ones_like(y) if r.seed is None else torch.tensor(r.seed, dtype=y.dtype).reshape(y.shape)
    y.backward(seed)
    for (k, v), want in zip([(k, v) for k, v in values.items() if v.requires_grad], r.torch or r.grads, strict=True):
        found = np.zeros(v.shape) if v.grad is None else v.grad.numpy()
        np.testing.assert_allclose(found, np.reshape(want, found.shape), 1e-5, 1e-6, err_msg=k)


def test_the_page_has_the_same_rows():
    page = (Path(__file__).parents[2] / "docs" / "conventions.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert [f"{a.removeprefix('| ')} | {b}" for a, b, *_ in rows[1:]] == [r.key for r in ROWS]
