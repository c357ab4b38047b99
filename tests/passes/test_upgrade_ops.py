"""Every operator whose spelling changed before opset 18: the same numbers before and after.

From opset 7 on the reference is ONNX Runtime running the model as it was written; before that, which it does
not run, it is the operator's text in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, version_converter

from onnxad_ir.diagnostics import ModelError
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import TensorType
from onnxad_passes.upgrade import upgrade_model

Array = np.ndarray[Any, Any]
F = np.float32
#: Operands are inputs, or all but the first are initializers, or they are inputs about which the upgrade is
#: not told the rank, or not even the element type.
WAYS = ("inputs", "constants", "unranked", "untyped")


def rand(*shape: int, seed: int = 0, dtype: Any = F) -> Array:
    return np.asarray(np.random.default_rng(seed + sum(shape)).standard_normal(shape), dtype)


def model(
    op: str,
    ins: Sequence[Array | None],
    opset: int,
    attrs: dict[str, Any],
    outputs: Sequence[str] = ("y0",),
    way: str = "inputs",
    nodes: Sequence[onnx.NodeProto] = (),
) -> onnx.ModelProto:
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(ins)]
    infos, initializers = [], []
    for i, (name, a) in enumerate(zip(names, ins, strict=True)):
        if a is None:
            continue
        if way == "constants" and i:
            initializers.append(onnx.numpy_helper.from_array(a, name))
        else:
            shape = [f"d{i}_{k}" for k in range(a.ndim)] if a.ndim > 1 else a.shape
            infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), shape))
    body = list(nodes) or [helper.make_node(op, names, outputs, name="the/node", **attrs)]
    graph = helper.make_graph(body, "g", infos, [onnx.ValueInfoProto(name=o) for o in outputs if o], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def upgrade(proto: onnx.ModelProto, way: str = "inputs") -> onnx.ModelProto:
    before = [o.name for o in proto.graph.output], [i.name for i in proto.graph.input]
    m = from_proto(proto)
    types = [v.type for v in m.graph.inputs]
    for v in m.graph.inputs:
        if way in ("unranked", "untyped"):
            v.type = None if way == "untyped" or v.dtype is None else TensorType(v.dtype)
    assert upgrade_model(m)
    for v, t in zip(m.graph.inputs, types, strict=True):
        v.type = t
    assert not upgrade_model(m), "it is done once"
    out = to_proto(m)
    assert out.opset_import[0].version == 18 and out.ir_version >= 8
    assert before == ([o.name for o in out.graph.output], [i.name for i in out.graph.input])
    assert [t.name for t in proto.graph.initializer] == [
        t.name for t in out.graph.initializer if t.name in {u.name for u in proto.graph.initializer}
    ]
    typed = onnx.shape_inference.infer_shapes(out, strict_mode=True)
    for o, t in zip(out.graph.output, typed.graph.output, strict=True):
        o.CopyFrom(t)
        t.type.tensor_type.shape.SetInParent()  # the checker asks for one
    onnx.checker.check_model(typed)
    return out


def run(proto: onnx.ModelProto, ins: Sequence[Array | None]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = {i.name for i in session.get_inputs()}
    feeds = {f"x{i}": a for i, a in enumerate(ins) if f"x{i}" in wanted}
    return list(session.run(None, feeds))


def same(got: Sequence[Array], want: Sequence[Array], rtol: float = 1e-6) -> None:
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.dtype == w.dtype and g.shape == w.shape
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), rtol=rtol, atol=1e-6)


def i64(*numbers: int) -> Array:
    return np.asarray(numbers, np.int64)


X = rand(2, 3, 4, 5)
REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]

#: Operator, opset, operands, attributes, number of results.
ORT_CASES: list[tuple[str, int, list[Array | None], dict[str, Any], int]] = [
    # Axes, shapes and counts as attributes.
    ("Squeeze", 7, [rand(1, 3, 1, 2)], {"axes": [0, 2]}, 1),
    ("Squeeze", 11, [rand(1, 3, 1, 2)], {"axes": [-2]}, 1),
    ("Squeeze", 11, [rand(1, 3, 1, 2)], {}, 1),
    ("Unsqueeze", 7, [rand(3, 2)], {"axes": [0, 3]}, 1),
    ("Unsqueeze", 11, [rand(3, 2)], {"axes": [-1]}, 1),
    ("Split", 7, [X], {"axis": 3, "split": [1, 4]}, 2),
    ("Split", 11, [X], {"axis": -2}, 2),
    ("Split", 7, [rand(4, 3)], {}, 2),
    ("Split", 13, [X], {"axis": 2}, 4),
    ("Split", 13, [X, i64(2, 1)], {"axis": 1}, 2),
    ("Slice", 7, [X], {"starts": [1, -3], "ends": [1000, -1], "axes": [1, 3]}, 1),
    ("Slice", 9, [X], {"starts": [0, 1], "ends": [1, 3]}, 1),
    ("Pad", 7, [rand(2, 3)], {"pads": [0, 2, 1, 0]}, 1),
    ("Pad", 7, [rand(2, 3)], {"pads": [1, -1, 0, 2], "value": 1.5}, 1),
    ("Pad", 7, [rand(2, 3, dtype=np.float64)], {"pads": [1, 0, 0, 2], "value": 0.1}, 1),
    ("Pad", 9, [rand(3, 4)], {"pads": [1, 2, 1, 3], "mode": "reflect"}, 1),
    ("Pad", 9, [rand(3, 4)], {"pads": [1, 2, 1, 3], "mode": "edge"}, 1),
    ("TopK", 7, [rand(3, 7)], {"k": 3}, 2),
    ("TopK", 9, [rand(4, 3, 2)], {"k": 2, "axis": 1}, 2),
    ("TopK", 10, [rand(3, 7), i64(4)], {}, 2),
    ("Scatter", 9, [rand(3, 3), np.array([[1, 0, 2]], np.int64), rand(1, 3)], {}, 1),
    ("Scatter", 10, [rand(1, 5), np.array([[1, 3]], np.int64), rand(1, 2)], {"axis": 1}, 1),
    *(
        (f"Reduce{r}", v, [np.abs(X) + F(0.5)], {"axes": a, "keepdims": k}, 1)
        for r in REDUCTIONS
        for v, a, k in ((7, [1, 3], 0), (11, [-2], 1), (17 if r != "Sum" else 12, [0], 0))
    ),
    *((f"Reduce{r}", 9, [np.abs(X) + F(0.5)], {"keepdims": 0}, 1) for r in REDUCTIONS),
    # Operators over a flattened tail.
    *(
        (op, v, [rand(2, 3, 4, seed=v)], a, 1)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for v, a in ((7, {}), (9, {"axis": 0}), (11, {"axis": -2}), (12, {"axis": 2}), (12, {"axis": -1}))
    ),
    # Bounds, ratios.
    ("Clip", 7, [X], {"min": -0.5, "max": 0.25}, 1),
    ("Clip", 7, [np.array([np.inf, -np.inf, 3e38, np.nan], F)], {"min": 0.0}, 1),
    ("Clip", 10, [np.array([np.inf, -np.inf, -1.0], F)], {"max": 6.0}, 1),
    ("Clip", 10, [np.array([np.inf, -np.inf, -1.0], F)], {}, 1),
    ("Dropout", 7, [X], {"ratio": 0.3}, 1),
    ("Dropout", 10, [X], {}, 1),
    # Resampling.
    ("Upsample", 7, [X], {"scales": [1.0, 1.0, 2.0, 3.0]}, 1),
    ("Upsample", 7, [X], {"scales": [1.0, 1.0, 1.5, 2.3], "mode": "linear"}, 1),
    ("Upsample", 9, [X, np.array([1, 1, 1.7, 2.6], F)], {"mode": "nearest"}, 1),
    ("Upsample", 9, [X, np.array([1, 1, 1.7, 2.6], F)], {"mode": "linear"}, 1),
    *(
        ("Resize", 10, [rand(1, 2, 7, 9), np.array([1, 1, *s], F)], {"mode": m}, 1)
        for s in ((1.7, 2.0), (0.6, 0.8), (0.45, 2.3), (1, 0.3), (2.5, 1))
        for m in ("nearest", "linear")
    ),
    *(
        ("Resize", v, [rand(1, 1, 7, 6), np.zeros(0, F), np.array([1, 1, *s], F)], a, 1)
        for v in (11, 13)
        for s in ((0.7, 1.9), (2.0, 3.0))
        for a in (
            {},
            {"mode": "linear"},
            {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
            {"mode": "cubic", "coordinate_transformation_mode": "asymmetric"},
        )
    ),
    ("Resize", 11, [X, np.zeros(0, F), np.zeros(0, F), i64(2, 3, 7, 6)], {"mode": "linear"}, 1),
    (
        "Resize",
        11,
        [X, np.array([0, 0, 0.2, 0.1, 1, 1, 0.7, 1.2], F), np.zeros(0, F), i64(2, 3, 7, 6)],
        {
            "mode": "linear",
            "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 2.0,
        },
        1,
    ),
    *(
        (
            "Resize",
            11,
            [rand(1, 1, 7, 6), np.zeros(0, F), np.array([1, 1, *s], F)],
            {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": how},
            1,
        )
        for s in ((0.7, 1.9), (2.0, 3.0), (0.3, 0.55))
        for how in ("floor", "round_prefer_floor")
    ),
    (
        "RoiAlign",
        10,
        [rand(1, 2, 8, 8), np.array([[0, 0, 5.5, 6.5], [1, 2, 7, 7]], F), i64(0, 0)],
        {"output_height": 3, "output_width": 2, "sampling_ratio": 2},
        1,
    ),
    # Statistics.
    (
        "BatchNormalization",
        7,
        [X, *(rand(3, seed=i) for i in (1, 2, 3)), np.abs(rand(3))],
        {"epsilon": 1e-2},
        1,
    ),
    (
        "BatchNormalization",
        7,
        [X, *(rand(3, 4, 5, seed=i) for i in (1, 2, 3)), np.abs(rand(3, 4, 5)) + F(0.1)],
        {"spatial": 0, "epsilon": 1e-2},
        1,
    ),
    (
        "BatchNormalization",
        9,
        [X, *(rand(3, seed=i) for i in (1, 2, 3)), np.abs(rand(3))],
        {"momentum": 0.7},
        5,
    ),
    ("QuantizeLinear", 10, [rand(3, 4), np.array(0.05, F), np.array(3, np.uint8)], {}, 1),
    ("QuantizeLinear", 10, [rand(3, 4), np.array([0.05], F), np.array([3], np.uint8)], {}, 1),
    ("DequantizeLinear", 10, [np.arange(6, dtype=np.int8).reshape(2, 3), np.array([0.5], F)], {}, 1),
    # Experimental operators.
    ("Affine", 7, [X], {"alpha": 2.0, "beta": -1.0}, 1),
    ("Scale", 7, [X], {"scale": 2.5}, 1),
    ("ScaledTanh", 7, [X], {"alpha": 2.0, "beta": 0.5}, 1),
    ("ParametricSoftplus", 7, [X], {"alpha": 2.0, "beta": 0.5}, 1),
    ("ImageScaler", 7, [X], {"scale": 0.5, "bias": [1.0, 2.0, 3.0]}, 1),
    ("Crop", 7, [X], {"border": [1, 0, 1, 2]}, 1),
    ("Crop", 7, [X], {"border": [1, 2, 0, 0], "scale": [2, 3]}, 1),
    ("MeanVarianceNormalization", 7, [X], {"across_channels": 1, "normalize_variance": 1}, 1),
    ("MeanVarianceNormalization", 7, [X], {"across_channels": 0, "normalize_variance": 0}, 1),
    # Spellings that stay.
    ("ThresholdedRelu", 7, [X], {"alpha": 0.4}, 1),
    ("ArgMax", 11, [X], {"axis": -1, "keepdims": 0}, 1),
    ("MaxPool", 7, [X], {"kernel_shape": [2, 2], "strides": [1, 2], "pads": [0, 1, 1, 0]}, 1),
    ("AveragePool", 7, [X], {"kernel_shape": [2, 3], "pads": [1, 1, 0, 2]}, 1),
    ("DepthToSpace", 7, [rand(1, 8, 2, 3)], {"blocksize": 2}, 1),
    ("Gemm", 7, [rand(2, 3), rand(3, 4), rand(4)], {"alpha": 0.5, "beta": 2.0}, 1),
    ("Flatten", 9, [X], {"axis": 0}, 1),
    ("OneHot", 9, [i64(0, 2, 5), i64(3), np.array([0.5, 2], F)], {}, 1),
]


def _title(case: Any) -> str:
    if isinstance(case, tuple):
        return f"{case[0]}-{case[1]}" + ("" if not case[3] else "-" + "-".join(case[3]))
    return str(case)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", ORT_CASES, ids=_title)
def test_as_before(case: Any, way: str) -> None:
    op, opset, ins, attrs, n = case
    proto = model(op, ins, opset, attrs, [f"y{i}" for i in range(n)], way)
    same(run(upgrade(proto, way), ins), run(proto, ins))


@pytest.mark.parametrize("op", ["Softmax", "Clip", "Pad", "BatchNormalization"])
def test_half_precision(op: str) -> None:
    x = rand(2, 3, 4, dtype=np.float16)
    attrs = {"Clip": {"min": -0.5}, "Pad": {"pads": [0, 1, 0, 0, 0, 2], "value": 0.3}}.get(op, {})
    ins = [x, *(np.abs(rand(3, seed=i, dtype=np.float16)) for i in range(4))] if op == "BatchNormalization" else [x]
    opset = 9 if op == "BatchNormalization" else 7
    out = upgrade(model(op, ins, opset, attrs))
    got = run(out, ins)[0].astype(np.float64)
    wide = [a.astype(F) for a in ins]
    want = run(model(op, wide, opset, attrs), wide)[0]
    np.testing.assert_allclose(got, want, atol=4e-3)


def test_softmax_stays_one_node_where_one_axis_is_long() -> None:
    for shape, axis, expected in (
        ((2, 3), 1, -1),
        ((2, 3, 1, 1), 1, 1),
        ((2, 1, 4, 1), -3, 2),
        ((5, 1), 0, 0),
    ):
        proto = model("Softmax", [rand(*shape)], 9, {"axis": axis})
        proto.graph.input[0].CopyFrom(helper.make_tensor_value_info("x0", TensorProto.FLOAT, shape))
        out = upgrade(proto)
        assert [n.op_type for n in out.graph.node] == ["Softmax"]
        assert out.graph.node[0].attribute[0].i == expected
        same(run(out, [rand(*shape)]), run(proto, [rand(*shape)]))


def test_softmax_of_nothing() -> None:
    proto = model("Softmax", [np.zeros((0, 3, 2), F)], 9, {"axis": 1})
    assert run(upgrade(proto), [np.zeros((0, 3, 2), F)])[0].shape == (0, 3, 2)


# Before opset 7


def _broadcast(f: Callable[[Array, Array], Array], a: Array, b: Array, axis: int) -> Array:
    return f(a, b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim)))


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
}


def _operands(op: str, *shapes: tuple[int, ...]) -> list[Array]:
    xs = [np.abs(rand(*s, seed=i)) + F(0.5) for i, s in enumerate(shapes)]
    if op in ("And", "Or", "Xor"):
        return [np.asarray(x > 1) for x in xs]
    return [np.asarray(x, np.int64) for x in xs] if op == "Equal" else [np.asarray(x) for x in xs]


SHAPES = [((3, 4), 1), ((4, 5), None), ((2,), 0), ((5,), None), ((3,), 1), ((), 0), ((1, 1), 1), ((5,), -1)]


@pytest.mark.parametrize("op, way", [*((op, "inputs") for op in BINARY), *(("Add", way) for way in WAYS[1:])])
@pytest.mark.parametrize("shape, axis", SHAPES)
def test_legacy_broadcast(op: str, shape: tuple[int, ...], axis: int | None, way: str) -> None:
    a, b = _operands(op, (2, 3, 4, 5), shape)
    attrs: dict[str, Any] = {"broadcast": 1} if axis is None else {"broadcast": 1, "axis": axis}
    got = run(upgrade(model(op, [a, b], 6, attrs, way=way), way), [a, b])
    start = 4 - b.ndim if axis is None or axis < 0 else axis
    same(got, [_broadcast(BINARY[op], a, b, start)])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_broadcast_agrees_with_the_version_converter(op: str) -> None:
    a, b = _operands(op, (2, 3, 4), (3, 1))
    proto = model(op, [a, b], 6, {"broadcast": 1, "axis": 1})
    for i, x in enumerate((a, b)):
        kind = helper.np_dtype_to_tensor_dtype(x.dtype)
        proto.graph.input[i].CopyFrom(helper.make_tensor_value_info(f"x{i}", kind, x.shape))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", TensorProto.FLOAT, a.shape))
    same(run(upgrade(proto), [a, b]), run(version_converter.convert_version(proto, 8), [a, b]))


def test_axis_without_broadcast_means_nothing() -> None:
    a, b = rand(2, 3), rand(2, 3, seed=5)
    same(run(upgrade(model("Add", [a, b], 3, {"axis": 1, "consumed_inputs": [0, 0]})), [a, b]), [a + b])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 3])
def test_prelu_has_a_slope_a_channel(size: int, way: str) -> None:
    x, slope = rand(2, 3, 4, 3), rand(size)
    want = np.where(x < 0, x * slope.reshape(-1, 1, 1), x)
    same(run(upgrade(model("PRelu", [x, slope], 6, {}, way=way), way), [x, slope]), [want])


def _bn(x: Array, scale: Array, bias: Array, mean: Array, var: Array, eps: float) -> Array:
    def channel(v: Array) -> Array:
        return v.reshape(-1, 1, 1).astype(np.float64) if v.ndim == 1 else v

    return ((x - channel(mean)) / np.sqrt(channel(var) + eps) * channel(scale) + channel(bias)).astype(F)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("opset, attrs", [(1, {"consumed_inputs": [0] * 5, "is_test": 1}), (6, {"is_test": 1})])
def test_batch_normalization_in_test_mode(opset: int, attrs: dict[str, Any], way: str) -> None:
    ins = [X, *(rand(3, seed=i) for i in (1, 2, 3)), np.abs(rand(3)) + F(0.1)]
    got = run(upgrade(model("BatchNormalization", ins, opset, attrs, way=way), way), ins)
    same(got, [_bn(*ins, 1e-5)], 1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("opset", [6, 7])
@pytest.mark.parametrize("spatial", [0, 1])
def test_batch_normalization_in_training_mode(spatial: int, opset: int, way: str) -> None:
    shape = (3,) if spatial else (3, 4, 5)
    ins = [X, *(rand(*shape, seed=i) for i in (1, 2, 3)), np.abs(rand(*shape)) + F(0.1)]
    attrs = {"spatial": spatial, "momentum": 0.75, "epsilon": 1e-3}
    got = run(upgrade(model("BatchNormalization", ins, opset, attrs, [f"y{i}" for i in range(5)], way), way), ins)
    axes = (0, 2, 3) if spatial else (0,)
    mean, var = X.mean(axes, dtype=np.float64), X.var(axes, dtype=np.float64)
    want = [
        _bn(X, ins[1], ins[2], mean, var, 1e-3),
        (0.75 * ins[3] + 0.25 * mean).astype(F),
        (0.75 * ins[4] + 0.25 * var).astype(F),
        mean.astype(F),
        (1 / np.sqrt(var + 1e-3)).astype(F),
    ]
    same(got, want, 1e-5)


def test_batch_normalization_with_some_results() -> None:
    ins = [X, *(rand(3, seed=i) for i in (1, 2, 3)), np.abs(rand(3)) + F(0.1)]
    proto = model("BatchNormalization", ins, 9, {}, ["", "y1"])
    got = run(upgrade(proto), ins)
    same(got, [(0.9 * ins[3] + 0.1 * X.mean((0, 2, 3), dtype=np.float64)).astype(F)], 1e-5)


def test_dropout_modes_and_masks() -> None:
    for opset, attrs in ((1, {"is_test": 1, "consumed_inputs": [0]}), (6, {"is_test": 1}), (7, {}), (10, {})):
        y, mask = run(upgrade(model("Dropout", [X], opset, {"ratio": 0.25, **attrs}, ["y0", "y1"])), [X])
        np.testing.assert_array_equal(y, X)
        assert mask.dtype == (F if opset < 10 else np.bool_) and mask.all()
    y, mask = run(upgrade(model("Dropout", [X], 6, {"ratio": 0.25}, ["y0", "y1"])), [X])
    assert 0 < mask.sum() < mask.size
    np.testing.assert_allclose(y, X * mask / F(0.75), rtol=1e-6)


TEXT_CASES: list[tuple[str, int, list[Array | None], dict[str, Any], list[Array]]] = [
    ("Cast", 1, [X], {"to": "INT32"}, [X.astype(np.int32)]),
    ("Cast", 5, [X], {"to": "double"}, [X.astype(np.float64)]),
    ("Reshape", 1, [X], {"shape": [0, -1, 5], "consumed_inputs": [0]}, [X.reshape(2, 12, 5)]),
    ("Concat", 1, [X, X], {}, [np.concatenate([X, X], 1)]),
    ("Concat", 3, [X, X], {"axis": 3}, [np.concatenate([X, X], 3)]),
    ("Tile", 1, [rand(2, 3), np.array(3, F), np.array(1, F)], {}, [np.tile(rand(2, 3), (1, 3))]),
    ("Tile", 5, [rand(2, 3), np.array([2], F), np.array([0], F)], {}, [np.tile(rand(2, 3), (2, 1))]),
    ("Split", 1, [X, np.array([3, 1], F)], {"axis": 2}, [X[:, :, :3], X[:, :, 3:]]),
    ("Split", 1, [X], {"axis": 3, "split": [2, 3]}, [X[..., :2], X[..., 2:]]),
    ("Pad", 1, [rand(2, 3)], {"paddings": [1, 0, 0, 2]}, [np.pad(rand(2, 3), ((1, 0), (0, 2)))]),
    ("Clip", 1, [np.array([np.inf, 1, -2], F)], {"min": 0.5}, [np.array([np.inf, 1, 0.5], F)]),
    ("Clip", 5, [np.array([-np.inf, 1, 2], F)], {"max": 1.5}, [np.array([-np.inf, 1, 1.5], F)]),
    (
        "Selu",
        1,
        [X],
        {},
        [(1.0506999 * np.where(X > 0, X, 1.6732 * (np.exp(X.astype(float)) - 1))).astype(F)],
    ),
    ("GlobalLpPool", 1, [X], {"p": 3.0}, [(np.abs(X) ** 3).sum((2, 3), keepdims=True) ** F(1 / 3)]),
    ("Upsample", 1, [X], {"height_scale": 2.0, "width_scale": 3.0}, [X.repeat(2, 2).repeat(3, 3)]),
    ("Relu", 1, [X], {"consumed_inputs": [0]}, [np.maximum(X, 0)]),
    ("Sum", 1, [X, X], {"consumed_inputs": [0, 0]}, [X + X]),
    ("Gemm", 6, [rand(2, 3), rand(3, 4), rand(4)], {"broadcast": 1}, [rand(2, 3) @ rand(3, 4) + rand(4)]),
    ("TopK", 1, [rand(3, 7)], {"k": 2}, [-np.sort(-rand(3, 7))[:, :2], np.argsort(-rand(3, 7))[:, :2]]),
    ("Slice", 1, [X], {"starts": [-2], "ends": [9], "axes": [3]}, [X[..., -2:]]),
    (
        "Softmax",
        1,
        [rand(2, 2, 2)],
        {},
        [np.exp(rand(2, 2, 2)) / np.exp(rand(2, 2, 2)).sum((1, 2), keepdims=True)],
    ),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", TEXT_CASES, ids=_title)
def test_as_the_text_says(case: Any, way: str) -> None:
    op, opset, ins, attrs, want = case
    proto = model(op, ins, opset, attrs, [f"y{i}" for i in range(len(want))], way)
    same(run(upgrade(proto, way), ins), want, 1e-5)


def test_upsample_bilinear_of_opset_1() -> None:
    proto = model("Upsample", [X], 1, {"height_scale": 2.0, "width_scale": 1.5, "mode": "bilinear"})
    later = model("Upsample", [X], 7, {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "linear"})
    same(run(upgrade(proto), [X]), run(later, [X]))


@pytest.mark.parametrize("op, gates", [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_layers(op: str, gates: int) -> None:
    ins = [rand(3, 2, 4), rand(1, gates * 5, 4), rand(1, gates * 5, 5)]
    attrs = {"hidden_size": 5, "output_sequence": 1, **({"direction": "foward"} if op == "GRU" else {})}
    out = upgrade(model(op, ins, 1, attrs, ["y0", "y1"]))
    same(run(out, ins), run(model(op, ins, 7, {"hidden_size": 5}, ["y0", "y1"]), ins))


# What has no modern spelling


@pytest.mark.parametrize(
    "op, opset, attrs, message",
    [
        ("ConstantFill", 3, {}, "no equivalent of ConstantFill"),
        ("GlobalLpPool", 1, {"p": 1.5}, "1.5"),
        ("Cast", 1, {"to": "FLOTA"}, "FLOTA"),
        ("Unsqueeze", 7, {}, "axes"),
    ],
)
def test_errors(op: str, opset: int, attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as e:
        upgrade_model(from_proto(model(op, [X], opset, attrs)))
    assert "the/node" in str(e.value)


def test_half_pixel_for_nearest_has_no_equivalent_of_every_rounding() -> None:
    attrs = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "ceil"}
    proto = model("Resize", [X, np.zeros(0, F), np.array([1, 1, 2, 2], F)], 11, attrs)
    with pytest.raises(ModelError, match="tf_half_pixel_for_nn"):
        upgrade_model(from_proto(proto))
