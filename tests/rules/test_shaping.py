import numpy as np
import pytest

from onnxad_rules.testing import check_rule, differentiate, one_node

R = np.random.default_rng(0)
r = R.standard_normal


def ints(*a):
    return np.asarray(a, np.int64)


def either(op, xs, attrs=None, at=(1,), **more):
    """With the operands `at` known only at run time, and as constants."""
    check_rule(op, xs, attrs, **more)
    check_rule(op, xs, attrs, constants=at, **more)


def test_identity():
    check_rule("Identity", [r((2, 3))])
    check_rule("Identity", [r(())])


@pytest.mark.parametrize("target", [(6, 4), (-1, 3), (0, 12), (2, 0, -1), (24,), (0, -1, 2)])
def test_reshape(target):
    either("Reshape", [r((2, 3, 4)), ints(*target)])


def test_reshape_allowzero_and_empty():
    either("Reshape", [r((2, 0, 4)), ints(0, 3)], {"allowzero": 1})
    either("Reshape", [r((1, 1)), ints()])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, 3])
def test_flatten(axis):
    check_rule("Flatten", [r((2, 3, 4))], {"axis": axis})


@pytest.mark.parametrize("perm", [None, (2, 0, 1), (0, 2, 1)])
def test_transpose(perm):
    check_rule("Transpose", [r((2, 3, 4))], {} if perm is None else {"perm": perm})


@pytest.mark.parametrize("axes", [None, (1,), (-1, 1)])
def test_squeeze(axes):
    x = r((2, 1, 3, 1))
    if axes is None:
        check_rule("Squeeze", [x], unknown_rank=True)
    else:
        either("Squeeze", [x, ints(*axes)])


@pytest.mark.parametrize("axes", [(0,), (1, -1)])
def test_unsqueeze(axes):
    either("Unsqueeze", [r((2, 3)), ints(*axes)])


@pytest.mark.parametrize("shape, target", [((2, 1), (3, 2, 4)), ((3,), (2, 3)), ((2, 3), (1, 1)), ((), (2, 2))])
def test_expand(shape, target):
    either("Expand", [r(shape), ints(*target)])


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, 1, -2])
def test_trilu(upper, k):
    xs = [r((2, 3, 5))] + ([] if k is None else [np.asarray(k, np.int64)])
    either("Trilu", xs, {"upper": upper}, at=range(1, len(xs)))


@pytest.mark.parametrize("batch, time", [(1, 0), (0, 1)])
def test_reverse_sequence(batch, time):
    x = r((4, 3, 2)) if batch else r((3, 4, 2))
    either("ReverseSequence", [x, ints(1, 4, 3)], {"batch_axis": batch, "time_axis": time})


@pytest.mark.parametrize("axis", [0, -2])
def test_concat(axis):
    xs = [r((2, 3)), r((1, 3)), r((4, 3))]
    check_rule("Concat", xs, {"axis": axis})
    for only in range(3):
        check_rule("Concat", xs, {"axis": axis}, wrt=[only])
    check_rule("Concat", xs, {"axis": axis}, wrt=[0, 2], constants=[1])


def test_concat_of_one_and_of_empty():
    check_rule("Concat", [r((2, 3))], {"axis": 1})
    check_rule("Concat", [r((2, 0)), r((2, 3))], {"axis": 1})


def test_split():
    check_rule("Split", [r((2, 6))], {"axis": 1, "num_outputs": 3}, outputs=3)
    check_rule("Split", [r((7, 2))], {"num_outputs": 3}, outputs=3)
    either("Split", [r((2, 7)), ints(1, 4, 2)], {"axis": -1}, outputs=3)
    either("Split", [r((7,)), ints(1, 0, 6)], outputs=3)


@pytest.mark.parametrize("repeats", [(2, 1, 3), (1, 1, 1), (1, 4, 1)])
def test_tile(repeats):
    either("Tile", [r((2, 3, 1)), ints(*repeats)])


def test_tile_none():
    either("Tile", [r((2, 3)), ints(2, 0)])
    check_rule("Tile", [r(()), ints()], constants=[1])


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_blocks(mode):
    check_rule("DepthToSpace", [r((2, 12, 2, 3))], {"blocksize": 2, "mode": mode})
    check_rule("SpaceToDepth", [r((2, 3, 4, 2))], {"blocksize": 2, "mode": mode}, single=mode == "DCR")


def test_space_to_depth_without_a_mode():
    check_rule("SpaceToDepth", [r((2, 3, 4, 2))], {"blocksize": 2}, opset=18)


@pytest.mark.parametrize("axes, shape", [(None, (5, 2)), ((1,), (7,)), ((0, -1), (3, 6)), ((1, 0), (2, 6))])
def test_center_crop_pad(axes, shape):
    attrs = {} if axes is None else {"axes": axes}
    either("CenterCropPad", [r((4, 5)), ints(*shape)], attrs, unknown_rank=axes is None or -1 not in axes)


# --- how much is emitted


def emitted(op, xs, attrs=None, outputs=1, wrt=None, constants=(), mode="reverse"):
    """The operators that a derivative adds to a model of one node."""
    model = one_node(op, xs, attrs or {}, outputs, "", 18, constants=constants)
    names = [f"x{i}" for i in (range(len(xs)) if wrt is None else wrt)]
    model = differentiate(model, mode, wrt=names)
    found = [n.op_type for n in model.graph.node if n.op_type != "Identity"]
    found.remove(op)
    return found


def test_few_nodes_are_emitted():
    x, y = r((2, 3)), r((4, 3))
    assert emitted("Concat", [x, y], {"axis": 0}, wrt=[1], constants=[0]) == ["Slice"]
    assert emitted("Concat", [x, y], {"axis": 0}) == ["Split"]
    assert emitted("Concat", [x, y], {"axis": 0}, mode="forward") == ["Concat"]
    assert emitted("Slice", [y, ints(1), ints(3)], wrt=[0], constants=[1, 2]) == ["Pad"]
    assert emitted("Pad", [x, ints(1, 0, 0, 2)], wrt=[0], constants=[1]) == ["Slice"]
    assert emitted("Gather", [y, ints(2, 3)], wrt=[0], constants=[1]) == ["Pad"]
    assert emitted("Split", [y, ints(1, 3)], outputs=2, wrt=[0], constants=[1]) == ["Concat"]
    assert emitted("Reshape", [y, ints(3, 4)], wrt=[0], constants=[1]) == ["Reshape"]
    assert emitted("Tile", [y, ints(1, 5)], wrt=[0], constants=[1]) == ["Reshape", "ReduceSum"]
    assert emitted("MatMul", [r((5, 2, 3)), r((3, 4))], wrt=[1]) == ["Reshape", "Reshape", "Gemm"]
