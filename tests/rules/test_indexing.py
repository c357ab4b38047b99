import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxad_rules.testing import check_rule, differentiate, one_node, run_in_ort

R = np.random.default_rng(0)
r = R.standard_normal


def ints(a):
    return np.asarray(a, np.int64)


def either(op, xs, attrs=None, at=(1,), **more):
    """With the operands `at` known only at run time, and as constants."""
    check_rule(op, xs, attrs, **more)
    check_rule(op, xs, attrs, constants=at, **more)


def distinct(shape, offset=0.0):
    """Numbers in random order, no two closer than 0.1; nor than 0.02 to those of another offset, 0.022."""
    n = int(np.prod(shape))
    return (R.permutation(n) * 0.1 - n * 0.05 + 0.03 + offset).reshape(shape)


# --- picking


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(
    "index", [2, -1, [1], [0, 2, 2, -3], [1, 2], [-2, -1], [[0, 1], [2, 0], [-1, -1]], [], np.zeros((2, 0))]
)
def test_gather(axis, index):
    either("Gather", [r((4, 3, 5)), ints(index)], {"axis": axis})


def test_gather_from_a_vector_and_int32():
    either("Gather", [r((4,)), ints(1)])
    either("Gather", [r((4,)), ints([[3, 3], [0, -1]])])
    either("Gather", [r((4, 2)), np.asarray([1, 1, 0], np.int32)])


def test_gather_from_empty_axes():
    either("Gather", [r((4, 0)), ints([[1, 2], [2, 2]])])
    either("Gather", [r((0, 3, 2)), ints([[1, 2], [2, 2]])], {"axis": 1})


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements(axis):
    shape = [2, 2, 2]
    shape[axis] = 4
    either("GatherElements", [r((2, 3, 2)), R.integers(-2, 2, shape)], {"axis": axis})


def test_gather_elements_of_fewer_rows():
    either("GatherElements", [r((3, 4)), ints([[0, -1], [2, 2]])], {"axis": 1})


@pytest.mark.parametrize(
    "shape, indices, batch",
    [
        ((3, 4), [[0, 1], [2, -1], [0, 1]], 0),
        ((3, 4, 2), [[0, 1], [2, -1], [0, 1]], 0),
        ((3, 4, 2), [[[2]], [[-1]], [[2]]], 0),
        ((3, 4), [1, 2], 0),
        ((3, 4, 2), [1], 0),
        ((2, 3, 4), [[1], [-2]], 1),
        ((2, 3, 4), [[[1, 0], [1, 0], [2, -1]], [[0, 3], [0, 0], [1, 1]]], 1),
        ((2, 2, 3, 2), [[[1], [1]], [[0], [-1]]], 2),
    ],
)
def test_gather_nd(shape, indices, batch):
    either("GatherND", [r(shape), ints(indices)], {"batch_dims": batch})


@pytest.mark.parametrize("axis", [None, 0, 1, -1, -3])
@pytest.mark.parametrize("condition", [[True, False, True], [False, True], [False, False]])
def test_compress(axis, condition):
    either("Compress", [r((3, 4, 3)), np.asarray(condition)], {} if axis is None else {"axis": axis})


@pytest.mark.parametrize("shape, index", [((4,), [1, 1, 3]), ((2, 4), [[3, 0, 3]]), ((2, 3, 4), [2, 1])])
def test_array_feature_extractor(shape, index):
    either("ArrayFeatureExtractor", [r(shape), ints(index)], domain="ai.onnx.ml")


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("srt", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_unique(outputs, srt, axis):
    attrs = {"sorted": srt} | ({} if axis is None else {"axis": axis})
    why = "every entry has its own number of different elements"
    check_rule("Unique", [distinct((3, 4))], attrs, outputs=outputs, ragged=why)


# --- putting


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(axis, reduction):
    index = ints([[[1, 0], [2, 1]], [[0, -1], [1, 0]]]) if axis != -1 else ints([[[1, 0], [0, 1]]])
    if reduction != "none":
        index[...] = index.reshape(-1)[0]
    xs = [distinct((4, 3, 2)), index, distinct(index.shape, 0.022)]
    either("ScatterElements", xs, {"axis": axis, "reduction": reduction})


@pytest.mark.parametrize(
    "data, updates",
    [([2.0, 3, 4], [0.0, 5, 6, 7]), ([2.0, 0, 4], [0.0, 5, 0, 7]), ([2.0, 3, 4], [0.0, 0, 0, 7])],
)
def test_scatter_product_with_zeros(data, updates):
    either("ScatterElements", [np.array(data), ints([0, 1, 0, 0]), np.array(updates)], {"reduction": "mul"})
    xs = [np.array(data), ints([[0], [1], [0], [0]]), np.array(updates)]
    either("ScatterND", xs, {"reduction": "mul"})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize(
    "shape, indices",
    [
        ((3, 4), [[0, 1], [2, -1], [1, 1]]),
        ((3, 4, 2), [[0, 1], [2, -1], [1, 1]]),
        ((4, 3), [[[1], [0]], [[3], [2]]]),
        ((4, 2), [[2], [-1]]),
        ((3, 4), [2, 1]),
    ],
)
@pytest.mark.parametrize("twice", [False, True])
def test_scatter_nd(shape, indices, reduction, twice):
    indices = ints(indices)
    if twice:
        if reduction == "none" or indices.ndim < 2:
            pytest.skip("needs a reduction and two places")
        indices[1] = indices[0]
    updates = distinct(indices.shape[:-1] + shape[indices.shape[-1] :], 0.022)
    either("ScatterND", [distinct(shape), indices, updates], {"reduction": reduction})


def ort_gradients(op, inputs, attrs, seed):
    """The gradients of all floating operands in ONNX Runtime."""
    names = [f"x{i}" for i in range(len(inputs))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attrs)],
        "one",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in zip(names, inputs, strict=True)
        ],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, seed.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    feeds = dict(zip(names, inputs, strict=True)) | {"adj_y": seed}
    return run_in_ort(differentiate(model, "reverse"))(feeds)[1:]


@pytest.mark.parametrize("op", ["ScatterElements", "ScatterND"])
def test_ties_share(op):
    index = ints([0, 0, 1, 2]) if op == "ScatterElements" else ints([[0], [0], [1], [2]])
    data, updates = np.array([3.0, 1, 9]), np.array([3.0, 3, 2, 9])
    d, u = ort_gradients(op, [data, index, updates], {"reduction": "max"}, np.array([6.0, 5, 8]))
    np.testing.assert_allclose(d, [2, 0, 4])
    np.testing.assert_allclose(u, [2, 2, 5, 4])


def test_many_duplicates_on_many_threads_lose_nothing():
    """ONNX Runtime's ScatterND with a reduction does lose terms here."""
    import onnxruntime as ort

    index = R.integers(0, 3, (3000,))
    for op, i in (("Gather", index), ("GatherND", index[:, None])):
        graph = helper.make_graph(
            [helper.make_node(op, ["x", "i"], ["y"])],
            "one",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, (50, 256)),
                helper.make_tensor_value_info("i", TensorProto.INT64, i.shape),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3000, 256))],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 4
        session = ort.InferenceSession(
            differentiate(model, "reverse").SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        x, seed = np.zeros((50, 256), np.float32), np.ones((3000, 256), np.float32)
        got = session.run(None, {"x": x, "i": i, "adj_y": seed})[1]
        want = np.bincount(index, minlength=50)
        np.testing.assert_array_equal(got, np.broadcast_to(want[:, None], got.shape))


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("shape, axis", [((2, 3, 5, 4), -2), ((2, 5, 4), 1), ((2, 3, 5), -1), ((2, 5), 1)])
@pytest.mark.parametrize("given", [False, True])
def test_tensor_scatter(mode, shape, axis, given):
    small = list(shape)
    small[axis] = 2
    xs = [r(shape), r(small)] + ([ints([3, 1] if mode == "linear" else [4, 1])] if given else [])
    check_rule("TensorScatter", xs, {"mode": mode, "axis": axis}, single=False)


# --- making


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_one_hot(axis):
    xs = [ints([[1, -1, 0], [7, 3, 1]]), ints(4), np.array([0.3, -1.2])]
    either("OneHot", xs, {"axis": axis})
    check_rule("OneHot", [ints([[1, -1, 0]]), np.array(4.0), xs[2]], {"axis": axis}, wrt=[2], order=1)


@pytest.mark.parametrize("limits", [(0.3, 4.9, 1.1), (2.0, -1.05, -0.7), (1.0, 0.5, 2.0)])
def test_range(limits):
    check_rule("Range", [np.array(v) for v in limits])
    check_rule("Range", [np.array(v) for v in limits], constants=[1])


@pytest.mark.parametrize(
    "op, indices, attrs",
    [
        ("Gather", [0, 2, 0], {}),
        ("Gather", [[1, -1], [1, 0]], {"axis": 1}),
        ("GatherElements", [[0, 1, 1, 0], [1, 1, 0, 0]], {"axis": 1}),
        ("GatherND", [[0, 1], [2, 3], [0, 1]], {}),
        ("GatherND", [[0], [2], [0]], {}),
    ],
)
def test_half_precision(op, indices, attrs):
    """ONNX Runtime adds up no half precision numbers where it scatters them."""
    x = r((3, 4)).astype(np.float16)
    index = np.array(indices, np.int64)
    (y,) = run_in_ort(one_node(op, [x, index], attrs, 1, "", 22))({"x0": x, "x1": index})
    ct = r(y.shape).astype(np.float16)
    found = {}
    for kind in (np.float16, np.float32):
        model = differentiate(one_node(op, [x.astype(kind), index], attrs, 1, "", 22), "reverse")
        for level in (0, 99):
            feeds = {"x0": x.astype(kind), "x1": index, "adj_y0": ct.astype(kind)}
            found[kind] = run_in_ort(model, level)(feeds)[1]
            assert found[kind].dtype == kind
    np.testing.assert_allclose(found[np.float16], found[np.float32], rtol=2e-3, atol=2e-3)
