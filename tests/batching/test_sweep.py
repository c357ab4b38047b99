"""What the rules have in common: unknown ranks, few and no entries, empty values, what cannot be batched, own rules."""

import numpy as np
import onnx
import pytest
from batched import check_batched, node_model
from support import evaluate

from onnxad_ir.diagnostics import UsageError
from onnxad_passes import UnsupportedOperator, reverse, run_pipeline, vectorize
from onnxad_passes.vectorize import Vectorize
from onnxad_rules.batching import Same, batch_rules, batched
from onnxad_rules.kinds import declarations, elementwise
from onnxad_rules.ruleset import default_rules

RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.uniform(0.2, 0.9, shape).astype(np.float32)


def ints(*values):
    return np.array(values, np.int64)


def parse(text):
    return onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + text)


UNKNOWN = [
    ("Mul", [floats(2, 3), floats(3)], {}, [[0], [1], [0, 1]]),
    ("Mul", [floats(), floats(2, 1)], {}, [[0], [1], [0, 1]]),
    ("Where", [np.array([[True], [False]]), floats(3), floats(4, 1, 3)], {}, [[0], [1], [2], [1, 2]]),
    ("Clip", [floats(2, 3), floats(), floats()], {}, [[0], [1], [0, 2]]),
    ("MatMul", [floats(2, 3), floats(3, 4)], {}, [[0], [1], [0, 1]]),
    ("MatMul", [floats(3), floats(2, 3, 4)], {}, [[0], [1], [0, 1]]),
    ("MatMul", [floats(5, 2, 3), floats(3)], {}, [[0], [1], [0, 1]]),
    ("MatMul", [floats(3), floats(3)], {}, [[0], [1], [0, 1]]),
    ("Einsum", [floats(2, 3), floats(3)], {"equation": "...i,i->..."}, [[0], [1], [0, 1]]),
    ("Einsum", [floats(5, 2, 3), floats(5, 3, 4)], {"equation": "...ij,...jk->...ik"}, [[0], [0, 1]]),
    ("Gemm", [floats(2, 3), floats(3, 4), floats(4)], {}, [[0], [1], [2], [0, 2], [0, 1, 2]]),
    ("Gemm", [floats(2, 3), floats(3, 4), floats()], {"beta": 0.5}, [[2], [1, 2]]),
    ("PRelu", [floats(2, 3), floats(3)], {}, [[0]]),
    ("Reshape", [floats(2, 6), ints(3, 4)], {}, [[0]]),
    ("Expand", [floats(3, 1), ints(2, 1, 4)], {}, [[0]]),
    ("Expand", [floats(2, 3, 4), ints(1)], {}, [[0]]),
    ("Squeeze", [floats(2, 1, 3), ints(1)], {}, [[0]]),
    ("Squeeze", [floats(2, 1, 3)], {}, [[0]]),
    ("Unsqueeze", [floats(2, 3), ints(-1, 0)], {}, [[0]]),
    ("Concat", [floats(2, 3), floats(2, 1)], {"axis": 1}, [[0], [0, 1]]),
    ("Slice", [floats(4, 5), ints(1, -1), ints(4, -9), ints(0, -1), ints(2, -1)], {}, [[0]]),
    ("Slice", [floats(4, 5), ints(1, 1), ints(3, 4)], {}, [[0]]),
    ("Pad", [floats(2, 3), ints(1, 0, 0, 2)], {}, [[0]]),
    ("Gather", [floats(3, 4), ints(2, 0)], {"axis": 1}, [[0]]),
    ("Softmax", [floats(3, 4)], {"axis": 0}, [[0]]),
    ("Transpose", [floats(3, 4)], {"perm": [1, 0]}, [[0]]),
    ("CumSum", [floats(3, 4), np.array(1)], {}, [[0]]),
    ("Shape", [floats(3, 4)], {}, [[0]]),
]


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "which"), UNKNOWN, ids=[f"{c[0]}-{i}" for i, c in enumerate(UNKNOWN)]
)
def test_unknown_ranks(op, operands, attrs, which):
    model = node_model(op, operands, attrs, hide=("rank",))
    for choice in which:
        feeds = {f"x{i}": np.asarray(x) for i, x in enumerate(operands)}
        check_batched(model, feeds, [f"x{i}" for i in choice], tolerance=1e-5)


FEW_RANKS = [
    ("Attention", [floats(2, 3, 4), floats(2, 5, 4), floats(2, 5, 4)], {"q_num_heads": 2, "kv_num_heads": 2}, 23),
    ("GridSample", [floats(2, 3, 4, 5), floats(2, 6, 7, 2)], {}, 22),
    ("DeformConv", [floats(1, 2, 4, 5), floats(3, 2, 2, 2), floats(1, 8, 3, 4)], {"kernel_shape": [2, 2]}, 22),
    ("RoiAlign", [floats(2, 3, 6, 7), np.float32([[0, 0, 4, 4], [1, 1, 5, 3]]), ints(0, 1)], {"output_width": 2}, 18),
    ("RotaryEmbedding", [floats(2, 3, 4, 6), floats(2, 4, 3), floats(2, 4, 3)], {}, 23),
    ("Conv", [floats(2, 3, 5, 6), floats(4, 3, 2, 2)], {}, 21),
]


@pytest.mark.parametrize(("op", "operands", "attrs", "opset"), FEW_RANKS, ids=[c[0] for c in FEW_RANKS])
def test_unknown_ranks_of_operators_that_have_few(op, operands, attrs, opset):
    """Their compositions are for one rank each: where the run alone tells which, the operator itself has to do."""
    feeds = {f"x{i}": x for i, x in enumerate(operands)}
    floating = [k for k, x in feeds.items() if x.dtype == np.float32]
    for chosen in ([floating[0]], floating[1:], floating):
        if op == "RoiAlign" and "x1" in chosen:
            feeds["x1*"] = np.stack([operands[1], operands[1][::-1], operands[1] / 2])
        check_batched(node_model(op, operands, attrs, opset=opset, hide=("rank",)), feeds, chosen, scan=None)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_entries_and_none(n):
    text = """ g (float[B,3] x, float[3,2] w, float[2] b) => (float[B,2] y, float[2] s) {
      m = MatMul(x, w) a = Add(m, b) y = Tanh(a) z = Constant<value = int64[1] {0}>() s = ReduceSum<keepdims = 0>(y, z)
    }"""
    feeds = {"x": floats(4, 3), "w": floats(3, 2), "b": floats(2)}
    vectorized = vectorize(parse(text), ["x"], dim="N")
    entries = floats(n, 4, 3)
    for level in (0, 99):
        got = evaluate(vectorized, {**feeds, "x": entries}, level)
        assert got["y"].shape == (n, 4, 2) and got["s"].shape == (n, 2)
        np.testing.assert_allclose(got["y"], np.tanh(entries @ feeds["w"] + feeds["b"]), rtol=1e-5)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_values(shape):
    for op, more, attrs in (
        ("Add", [floats(shape[1])], {}),
        ("ReduceSum", [ints(1)], {}),
        ("Transpose", [], {"perm": [1, 0]}),
        ("MatMul", [floats(shape[1], 2)], {}),
        ("Concat", [floats(1, shape[1])], {"axis": 0}),
        ("Gemm", [floats(shape[1], 2), floats(2)], {}),
    ):
        for hide in ((), ("dims",), ("rank",)):
            if "rank" in hide and op == "Gemm":
                continue
            operands = [floats(*shape), *more]
            model = node_model(op, operands, attrs, hide=hide)
            check_batched(model, {f"x{i}": x for i, x in enumerate(operands)}, ["x0"])


def test_what_does_not_depend_on_the_inputs_stays():
    text = """ g (float[3] x, float[3] w) => (float[3] y, float[3] z, float[3] same) {
      e = Exp(w) y = Mul(x, e) z = Neg(e) same = Identity(x) }"""
    model = vectorize(parse(text), ["x"], dim="N")
    shapes = {o.name: [d.dim_param or d.dim_value for d in o.type.tensor_type.shape.dim] for o in model.graph.output}
    assert shapes == {"y": ["N", 3], "z": [3], "same": ["N", 3]}
    assert [i.name for i in model.graph.input] == ["x", "w"]
    assert [n.op_type for n in model.graph.node] == ["Exp", "Mul", "Neg", "Identity"]


def test_every_input_by_default():
    model = vectorize(parse(" g (float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }"))
    assert [i.type.tensor_type.shape.dim[0].dim_param for i in model.graph.input] == ["batch", "batch"]


def test_an_input_with_a_default_loses_it():
    model = parse(" g (float[3] x, float[3] w = {1, 2, 3}) => (float[3] y) { y = Add(x, w) }")
    vectorized = vectorize(model, ["w"], dim="N")
    assert not vectorized.graph.initializer


ADD = " g (float[N,3] x, float[3] w) => (float[N,3] y) { y = Add(x, w) }"


def test_requests_that_make_no_sense():
    with pytest.raises(UsageError, match=r"no input called 'v' \(its inputs: x, w\)"):
        vectorize(parse(ADD), ["v"], dim="M")
    with pytest.raises(UsageError, match="a dimension called 'N' already"):
        vectorize(parse(ADD), ["x"], dim="N")
    with pytest.raises(UsageError, match="no input to vectorize"):
        vectorize(parse(ADD), [], dim="M")


@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        ("NonZero(x)", "float[3] x"),
        ("Unique(x)", "float[3] x"),
        ("Compress<axis = 0>(w, x)", "bool[3] x, float[3] w"),
        ("Resize(w, , , x)", "int64[1] x, float[3] w"),
    ],
)
def test_results_of_another_extent_for_every_entry(node, inputs):
    with pytest.raises(UnsupportedOperator, match="has a result of another shape for every entry"):
        vectorize(parse(f" g ({inputs}) => (y) {{ y = {node} }}"), ["x"])


def own_operator():
    model = parse(" g (float[3] x) => (float[3] y) { y = my.Cube(x) }")
    model.opset_import.append(onnx.helper.make_opsetid("my", 1))
    return model


def test_rules_for_operators_of_ones_own():
    with declarations() as mine:
        elementwise("Cube", domain="my", input_0=lambda op, n: 3 * (n.input_0 * n.input_0))
    with batch_rules() as how:

        @batched("Cube", domain="my", any_rank=True)
        def _(op, n, b):
            return b.again(b.input_0)

    rules = default_rules().merge(mine).with_batching(how)
    (node,) = vectorize(own_operator(), rules=rules).graph.node
    assert node.op_type == "Cube" and node.domain == "my"
    (scan,) = vectorize(own_operator()).graph.node
    assert scan.op_type == "Scan"
    adjoint = run_pipeline(reverse(own_operator(), layout="single", rules=rules), [Vectorize(("adj_y",), "N", rules)])
    assert all(n.op_type != "Scan" for n in adjoint.graph.node)


def test_a_rule_in_place_of_a_built_in_one():
    with batch_rules() as how:

        @batched("Exp")
        def _(op, n, b):
            return op.Reciprocal(op.Exp(op.Neg(b.input)))

        @batched("Relu")
        def _(op, n, b):
            return NotImplemented

        @batched("Sign")
        def _(op, n, b):
            return Same(op.const(np.ones(3, np.float32)))

    rules = default_rules().with_batching(how)
    model = parse(" g (float[3] x) => (float[3] y, float[3] z, float[3] s) { y = Exp(x) z = Relu(x) s = Sign(x) }")
    vectorized = vectorize(model, rules=rules)
    kinds = [n.op_type for n in vectorized.graph.node]
    assert "Reciprocal" in kinds and "Relu" not in kinds and "Scan" not in kinds
    assert len(vectorized.graph.output[2].type.tensor_type.shape.dim) == 1
    assert not default_rules().batching


def test_a_composition_that_reads_its_own_result():
    from onnxad_rules.kinds import decompose

    with declarations() as mine:

        @decompose("Double", domain="my")
        def _(op, n):
            return op.Add(n.input_0, op.Sub(n.output_0, n.input_0))

    model = parse(" g (float[3] x) => (float[3] y) { y = my.Double(x) }")
    model.opset_import.append(onnx.helper.make_opsetid("my", 1))
    (scan,) = vectorize(model, rules=default_rules().merge(mine)).graph.node
    assert scan.op_type == "Scan"


def test_rules_are_declared_once():
    with batch_rules(), pytest.raises(TypeError, match="Neg has a batching rule already"):
        batched("Neg")(lambda op, n, b: None)
        batched("Neg")(lambda op, n, b: None)
