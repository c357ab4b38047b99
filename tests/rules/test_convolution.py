"""Conv and ConvTranspose against finite differences, at every geometry."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxad_rules.families import convolution
from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal


class ConvTranspose(OpRun):
    """The specification, by scattering: onnx's own evaluator is wrong for groups of several channels."""

    op_domain = ""

    def _run(
        self, X, W, B=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, output_padding=None,
        output_shape=None, pads=None, strides=None,
    ):  # fmt: skip
        n, d = X.ndim - 2, X.shape[2:]
        k = W.shape[2:]
        strides, dilations = strides or [1] * n, dilations or [1] * n
        extra = output_padding or [0] * n
        full = [strides[i] * (d[i] - 1) + extra[i] + (k[i] - 1) * dilations[i] + 1 for i in range(n)]
        same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
        if output_shape is None and same:
            output_shape = [d[i] * strides[i] for i in range(n)]
        if output_shape is not None:
            total = [max(0, full[i] - output_shape[-n:][i]) for i in range(n)]
            begin = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total]
            out = list(output_shape[-n:])
        else:
            pads = pads if pads and auto_pad != "VALID" else [0] * (2 * n)
            begin, out = pads[:n], [full[i] - pads[i] - pads[n + i] for i in range(n)]
        g, mg = group, W.shape[1]
        room = [max(f, b + o) for f, b, o in zip(full, begin, out, strict=True)]
        y = np.zeros((X.shape[0], g * mg, *room), X.dtype)
        for t in np.ndindex(*k):
            w = W[(slice(None), slice(None), *t)].reshape(g, -1, mg)
            x = X.reshape(X.shape[0], g, -1, *d)
            part = np.einsum("ngc...,gcm->ngm...", x, w).reshape(X.shape[0], g * mg, *d)
            at = tuple(
                slice(t[i] * dilations[i], t[i] * dilations[i] + (d[i] - 1) * strides[i] + 1, strides[i])
                for i in range(n)
            )
            y[(slice(None), slice(None), *at)] += part
        y = y[(slice(None), slice(None), *(slice(b, b + o) for b, o in zip(begin, out, strict=True)))]
        return (y if B is None else y + B.reshape(-1, *[1] * n),)


def engine(proto: onnx.ModelProto):
    """The reference evaluator with a right ConvTranspose: ONNX Runtime has no convolution in double precision."""
    evaluator = ReferenceEvaluator(proto, new_ops=[ConvTranspose])
    names = {i.name for i in proto.graph.input}
    return lambda feeds: [np.asarray(y) for y in evaluator.run(None, {k: v for k, v in feeds.items() if k in names})]


def check(op, inputs, attrs, **options):
    check_rule(op, inputs, attrs, engine=engine, **options)


CONV = [
    # spatial extents, kernel, attributes
    ((5,), (3,), dict()),
    ((7,), (3,), dict(pads=[1, 2], strides=[2])),
    ((8,), (2,), dict(dilations=[3], pads=[0, 1])),
    ((4, 5), (3, 2), dict()),
    ((5, 6), (3, 2), dict(pads=[0, 1, 2, 0], strides=[2, 1])),
    ((6, 7), (2, 3), dict(pads=[1, 0, 0, 3], strides=[2, 3], dilations=[2, 1])),
    ((6, 5), (1, 1), dict()),
    ((6, 5), (1, 1), dict(strides=[2, 3])),
    ((4, 5), (1, 1), dict(pads=[0, 1, 1, 0])),
    ((5, 4), (3, 3), dict(auto_pad="SAME_UPPER")),
    ((5, 4), (2, 3), dict(auto_pad="SAME_LOWER", strides=[2, 3])),
    ((6, 5), (2, 3), dict(auto_pad="SAME_UPPER", strides=[2, 3])),
    ((5, 4), (3, 2), dict(auto_pad="VALID", strides=[2, 1])),
    ((3, 4, 3), (2, 2, 3), dict(pads=[1, 0, 0, 0, 1, 1], strides=[1, 2, 1])),
]


@pytest.mark.parametrize("extents, kernel, attrs", CONV)
@pytest.mark.parametrize("inside, outside, group", [(3, 2, 1), (4, 6, 2)])
def test_conv(extents, kernel, attrs, inside, outside, group):
    x, w, b = r((2, inside, *extents)), r((outside, inside // group, *kernel)), r((outside,))
    check("Conv", [x, w, b], {**attrs, "group": group, "kernel_shape": list(kernel)})
    check("Conv", [x, w], {**attrs, "group": group})


TRANSPOSE = [
    ((4,), (3,), dict()),
    ((4,), (3,), dict(strides=[2], pads=[0, 2], output_padding=[1])),
    ((3, 4), (3, 2), dict(strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 2])),
    ((3, 3), (2, 2), dict(dilations=[3, 2], strides=[1, 1], output_padding=[2, 1])),
    ((3, 3), (3, 3), dict(strides=[3, 2], output_shape=[10, 8])),
    ((3, 2), (3, 3), dict(strides=[2, 2], output_shape=[5, 4], auto_pad="SAME_UPPER")),
    ((3, 2), (3, 3), dict(strides=[2, 2], output_shape=[6, 3])),
    ((3, 4), (3, 4), dict(strides=[2, 1], auto_pad="SAME_UPPER")),
    ((3, 4), (3, 4), dict(strides=[2, 1], auto_pad="SAME_LOWER")),
    ((3, 4), (1, 1), dict(strides=[2, 1])),
    ((4,), (3,), dict(output_padding=[0])),  # an attribute that alone tells how many axes there are, as the next
    ((3, 4), (3, 2), dict(output_shape=[5, 4])),
    ((2, 3, 2), (2, 3, 2), dict(strides=[1, 2, 2], pads=[0, 1, 0, 1, 0, 1])),
]


@pytest.mark.parametrize("extents, kernel, attrs", TRANSPOSE)
@pytest.mark.parametrize("inside, outside, group", [(3, 2, 1), (4, 6, 2)])
def test_conv_transpose(extents, kernel, attrs, inside, outside, group):
    x, w, b = r((2, inside, *extents)), r((inside, outside // group, *kernel)), r((outside,))
    single = max(attrs.get("output_padding", [0])) < min(attrs.get("strides", [9]))  # ONNX Runtime refuses more
    check("ConvTranspose", [x, w, b], {**attrs, "group": group, "kernel_shape": list(kernel)}, single=single)
    check("ConvTranspose", [x, w], {**attrs, "group": group}, single=single)


CHANNELS = [(1, 1, 1), (2, 3, 1), (4, 2, 2), (3, 3, 3), (2, 6, 2)]
SPELLINGS = [
    ((6, 7), (3, 2), dict(pads=[1, 0, 2, 1])),
    ((6, 7), (3, 2), dict(pads=[1, 0, 2, 1], strides=[2, 3])),
    ((6, 7), (1, 1), dict()),
    ((6, 7), (5, 5), dict(pads=[2, 2, 2, 2])),
    ((6, 7), (3, 2), dict(auto_pad="SAME_LOWER", strides=[2, 3])),
]


@pytest.mark.parametrize("inside, outside, group", CHANNELS)
@pytest.mark.parametrize("extents, kernel, attrs", SPELLINGS)
def test_spellings(extents, kernel, attrs, inside, outside, group):
    """Every spelling of a kernel's gradient, by numbers of channels and taps."""
    x, w = r((2, inside, *extents)), r((outside, inside // group, *kernel))
    check("Conv", [x, w], {**attrs, "group": group}, symbolic=False)


@pytest.mark.parametrize("outside", [12, 5])
@pytest.mark.parametrize("attrs", [{}, {"strides": [2, 2], "pads": [1, 0, 2, 1]}, {"dilations": [1, 2]}])
def test_fewer_places_than_channels(attrs, outside):
    """Windows of many channels: the smaller of windows and kernel is transposed."""
    x, w = r((1, 9, 4, 4)), r((outside, 9, 3, 2))
    check("Conv", [x, w], attrs, symbolic=False)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("attrs", [{}, {"strides": [2, 1]}, {"pads": [1, 0, 2, 1]}, {"dilations": [1, 2]}])
@pytest.mark.parametrize("inside, outside", [(2, 3), (3, 2), (3, 3)])
def test_constant_kernel(op, attrs, inside, outside):
    """A constant kernel is flipped in advance; the derivative is that of a kernel that the run tells."""
    x, w = r((2, inside, 6, 7)).astype(np.float32), r((3, 3, 3, 2)).astype(np.float32)
    w = w[:outside, :inside] if op == "Conv" else w[:inside, :outside]
    feeds = {"x0": x, "x1": w}
    feeds["adj_y0"] = r(run_in_ort(one_node(op, [x, w], attrs, 1, "", 22))(feeds)[0].shape).astype(np.float32)
    want = run_in_ort(differentiate(one_node(op, [x, w], attrs, 1, "", 22), "reverse"))(feeds)[1]
    model = one_node(op, [x, w], attrs, 1, "", 22, constants=[1])
    got = run_in_ort(differentiate(model, "reverse"))(feeds)[1]
    assert np.allclose(got, want, rtol=1e-5, atol=1e-5)


def with_dims(model, shape):
    """The model with other extents for its first input and its result."""
    for i in (model.graph.input[0], model.graph.output[0]):
        dims = i.type.tensor_type.shape.dim
        for d, new in zip(
            dims, shape if i is model.graph.input[0] else [f"o{k}" for k in range(len(dims))], strict=True
        ):
            d.Clear()
            if isinstance(new, str):
                d.dim_param = new
            else:
                d.dim_value = new
    return model


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("extents, kernel, attrs", SPELLINGS)
@pytest.mark.parametrize(
    "shape", [("n", 4, 6, 7), (2, 4, "h", "w"), ("n", 4, "h", "w"), ("n", "c", "h", "w"), ("n", "c", 6, 7)]
)
def test_partly_symbolic(op, group, extents, kernel, attrs, shape):
    """Extents that only the run knows, beside a kernel of known shape."""
    x = r((2, 4, *extents)).astype(np.float32)
    w = r((4, 4 // group, *kernel)).astype(np.float32)
    attrs = {**attrs, "group": group}
    model = one_node(op, [x, w], attrs, 1, "", 22)
    feeds = {"x0": x, "x1": w}
    y = run_in_ort(model)(feeds)[0]
    feeds["adj_y0"] = r(y.shape).astype(np.float32)
    want = run_in_ort(differentiate(model, "reverse"))(feeds)
    got = run_in_ort(differentiate(with_dims(model, shape), "reverse"))(feeds)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("batch", [0, "n"])
@pytest.mark.parametrize("group", [1, 2])
def test_empty_batch(op, batch, group):
    x, w = np.zeros((0, 4, 5, 6), np.float32), r((4, 4 // group, 3, 2)).astype(np.float32)
    model = with_dims(one_node(op, [x, w], dict(strides=[2, 1], group=group), 1, "", 22), (batch, 4, 5, 6))
    reverse = differentiate(model, "reverse")
    y = (0, 4, 2, 5) if op == "Conv" else (0, 4, 11, 7)
    _, dx, dw = run_in_ort(reverse)({"x0": x, "x1": w, "adj_y0": np.zeros(y, np.float32)})
    assert dx.shape == x.shape and np.array_equal(dw, np.zeros_like(w))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("inside, outside, group", CHANNELS)
def test_against_torch(stride, inside, outside, group):
    torch = pytest.importorskip("torch")
    x, w = r((2, inside, 7, 6)).astype(np.float32), r((outside, inside // group, 3, 3)).astype(np.float32)
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    y = torch.nn.functional.conv2d(tx, tw, None, stride, 1, 1, group)
    ct = r(tuple(y.shape)).astype(np.float32)
    y.backward(torch.tensor(ct))
    model = one_node("Conv", [x, w], dict(strides=[stride] * 2, pads=[1] * 4, group=group), 1, "", 22)
    _, dx, dw = run_in_ort(differentiate(model, "reverse"), 99)({"x0": x, "x1": w, "adj_y0": ct})
    assert np.allclose(dx, tx.grad, atol=1e-4) and np.allclose(dw, tw.grad, atol=1e-4)


@pytest.mark.parametrize("shape", [None, ("n", 4, 9, 8), (2, 4, "h", 8), ("n", 4, "h", "w"), ("n", "c", "h", "w")])
@pytest.mark.parametrize("out", [4, 8])
@pytest.mark.parametrize("taps, pads, dilations", [((3, 3), [1, 1, 1, 1], [1, 1]), ((2, 5), [0, 2, 3, 1], [3, 1])])
def test_windows_row_by_row(monkeypatch, shape, out, taps, pads, dilations):
    """What large images are given, for kernels that work on one channel alone."""
    x, w = r((2, 4, 9, 8)), r((out, 1, *taps))
    attrs = {"group": 4, "pads": pads, "dilations": dilations}
    x32, w32 = x.astype(np.float32), w.astype(np.float32)
    model = one_node("Conv", [x32, w32], attrs, 1, "", 22)
    want = run_in_ort(differentiate(model, "reverse"))
    monkeypatch.setattr(convolution, "MANY_ELEMENTS", 1)
    monkeypatch.setattr(convolution, "MANY_PLACES", 1)
    check("Conv", [x, w], attrs, symbolic=False)
    derivative = differentiate(with_dims(model, shape) if shape else model, "reverse")
    assert sum(n.op_type == "MatMul" for n in derivative.graph.node) == taps[0]
    feeds = {"x0": x32, "x1": w32}
    feeds["adj_y0"] = r(run_in_ort(model)(feeds)[0].shape).astype(np.float32)
    for a, b in zip(run_in_ort(derivative)(feeds), want(feeds), strict=True):
        assert a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-4)
