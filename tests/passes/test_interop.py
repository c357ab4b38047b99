"""Passes of onnx_ir and onnxscript among ours, and ours among theirs."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx_ir.passes import InPlacePass, PassError, PassManager, PassResult, Sequential, common, functionalize
from onnxscript import optimizer
from onnxscript.rewriter import RewriteRule, RewriteRuleSet
from small import model, ops, run
from support import evaluate
from test_recorded import load

import onnxad_passes
from onnxad_cli.opt import main
from onnxad_ir.diagnostics import ModelError, UsageError
from onnxad_ir.proto import from_proto
from onnxad_passes import gradient, parse_pipeline, print_pipeline, run_pipeline
from onnxad_passes.gradient import Gradient
from onnxad_passes.interop import (
    OnnxIrPasses,
    OnnxscriptRewrite,
    as_onnx_ir_pass,
    from_onnx_ir_pass,
    onnxscript_rewrite,
)
from onnxad_passes.reverse import Reverse

ROOT = pathlib.Path(__file__).parents[2]
TEXT = """g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> { h = Tanh(x) h2 = Tanh(x)
  p = MatMul(h, w) q = MatMul(h2, w) y = Mul(p, q) }"""
X = np.array([[0.1, 0.2, -0.3], [0.4, -0.5, 0.6]], np.float32)
W = np.arange(1, 7, dtype=np.float32).reshape(3, 2)


def ir_model(text=TEXT):
    return onnx_ir.from_proto(model(text))


# Ours among theirs


def test_a_pipeline_among_passes_of_onnx_ir():
    m = ir_model()
    weight = m.graph.initializers["w"].const_value
    everything = Sequential(
        common.CommonSubexpressionEliminationPass(),
        as_onnx_ir_pass("reverse{inputs=x,w},simplify"),
        PassManager([common.RemoveUnusedNodesPass(), as_onnx_ir_pass(Gradient("s", ("x",)))][:1], steps=2),
        common.NameFixPass(),
    )
    result = everything(m)
    assert result.model is m and result.modified and everything.in_place
    assert [v.name for v in m.graph.outputs] == ["y", "adj_x", "adj_w"]
    assert m.graph.initializers["w"].const_value is weight
    optimizer.optimize_ir(m)
    seed = np.array([[1, -2], [0.5, 3]], np.float32)
    y, adj_x, adj_w = run(onnx_ir.to_proto(m), {"x": X, "adj_y": seed})
    t = np.tanh(X)
    np.testing.assert_allclose(y, (t @ W) ** 2, rtol=1e-5)
    np.testing.assert_allclose(adj_x, (2 * seed * (t @ W)) @ W.T * (1 - t * t), rtol=1e-5)
    np.testing.assert_allclose(adj_w, t.T @ (2 * seed * (t @ W)), rtol=1e-5)


def test_a_functional_pass_leaves_its_argument():
    m = ir_model()
    graph = m.graph
    out = functionalize(as_onnx_ir_pass(Reverse(("x",))))(m)
    assert out.model is not m and m.graph is graph and len(m.graph.outputs) == 1
    assert [v.name for v in out.model.graph.outputs] == ["y", "adj_x"]


def test_modified_is_honest_and_a_pass_manager_comes_to_rest():
    m = onnx_ir.from_proto(onnx.load(ROOT / "tests/recorded/gpt_18.onnx"))  # extents that nobody named
    fold = as_onnx_ir_pass("fold-shapes,cse,dce")
    assert fold(m).modified
    graph, nodes = m.graph, list(m.graph)
    assert not fold(m).modified
    assert m.graph is graph and list(m.graph) == nodes
    runs = []
    original = fold.call
    fold.call = lambda m: runs.append(1) or original(m)
    assert not PassManager([fold], steps=5)(m).modified
    assert len(runs) == 1


def test_a_pass_that_fails_leaves_the_model_as_it_was():
    m = ir_model()
    before, graph = onnx_ir.to_proto(m), m.graph
    p = as_onnx_ir_pass("cse,reverse{inputs=nothing}")
    with pytest.raises(UsageError, match="no value called 'nothing'"):
        p(m)
    with pytest.raises(PassError, match=r"OnnxadPass\('cse,reverse\{inputs=nothing\}'\)") as e:
        Sequential(p)(m)
    assert isinstance(e.value.__cause__, UsageError)
    assert m.graph is graph and onnx_ir.to_proto(m) == before
    with pytest.raises(UsageError, match="no pass called"):
        as_onnx_ir_pass("nothing")


RICH = """<ir_version: 10, opset_import: ["" : 21, "l" : 1], producer_name: "p", producer_version: "1.2",
  domain: "d.e", model_version: 7, doc_string: "about", metadata_props: ["a": "b", "c": "d"]>
g (float[N,2] x, bool b, bool[K] mask, float[2] v) => (float[N,2] y, float[N,?] z)
<float[2] v = {3, 4}, float[2] k = {1, 2}, float s = {0.5}, uint8 zp = {3}, float[2,4] w = {1}, float[N,2] h,
 float[N,2] i> {
  [call] h = l.f<alpha = 2.0>(x)
  [branch] i = If(b) <
    then_branch = t () => (float[N,2] p) <float[2] inner = {5, 6}> { [m] m = Mul(h, v)  [p] p = Add(m, inner) },
    else_branch = e () => (float[N,2] q) { q = Mul(h, k) }>
  [quantize] iq = QuantizeLinear(i, s, zp)
  [dequantize] y = DequantizeLinear(iq, s, zp)
  wide = MatMul(i, w)
  [compress] z = Compress<axis = 1>(wide, mask)
}
<domain: "l", opset_import: ["" : 21], doc_string: "of f"> f <alpha, beta: float = 0.5> (a) => (c) {
  [elu] e = Elu<alpha: float = @alpha>(a) c = Mul(e, e) }"""


@pytest.fixture
def rich(tmp_path):
    """A file with all that a model can say of itself: one weight is external, of 64 MB that nobody wrote."""
    m = onnx.parser.parse_model(RICH)
    g = m.graph
    (weight,) = (t for t in g.initializer if t.name == "w")
    weight.CopyFrom(onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2, 1 << 23], raw_data=b" "))
    onnx.external_data_helper.set_external_data(weight, "w.bin", offset=0, length=1 << 26)
    weight.ClearField("raw_data")
    with open(tmp_path / "w.bin", "wb") as f:
        f.truncate(1 << 26)
    g.doc_string = "a graph"
    then = g.node[1].attribute[0].g
    for thing in (g, g.node[0], g.node[1], g.input[0], then.node[0], m.functions[0], m.functions[0].node[0]):
        thing.metadata_props.add(key="key", value=thing.name)
    for info in (g.input[0], g.output[1], g.value_info[0]):
        info.doc_string = f"this is {info.name}"
    g.node[2].doc_string = "a node"
    for graph, name in ((g, "i"), (then, "m")):  # that of the branch has its scale outside
        q = graph.quantization_annotation.add(tensor_name=name)
        q.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    m.functions[0].value_info.append(onnx.helper.make_tensor_value_info("e", 1, ["N", 2]))
    onnx.save(m, tmp_path / "rich.onnx")
    onnx.checker.check_model(tmp_path / "rich.onnx")
    return onnx_ir.load(tmp_path / "rich.onnx")


def test_a_round_trip_keeps_everything(rich):
    before = onnx_ir.to_proto(rich)
    after = onnx_ir.to_proto(run_pipeline(rich, "onnx-ir{passes=TopologicalSortPass}"))
    assert after == before
    fields = "metadata_props quantization_annotation value_info doc_string functions dim_param external_data".split()
    assert all(f in str(before) for f in fields)  # or the comparison proves nothing


@pytest.mark.parametrize("path", sorted((ROOT / "tests/recorded").rglob("*.onnx")), ids=lambda p: p.stem)
def test_recorded_models_come_back_as_they_were(path):
    m = onnx_ir.load(path)
    for _ in range(2):  # Constant nodes become initializers: the second time there is none
        out = run_pipeline(m, [OnnxIrPasses(("TopologicalSortPass",))])
        before, after = onnx_ir.to_proto(m), onnx_ir.to_proto(out)
        if "Constant" not in {n.op_type for n in onnx_ir.traversal.RecursiveGraphIterator(m.graph)}:
            by_name = [sorted(p.graph.initializer, key=lambda t: t.name) for p in (before, after)]
            assert by_name[0] == by_name[1]
            for p in (before, after):
                del p.graph.initializer[:]
            assert after == before
        m = out


def test_a_derivative_keeps_everything_and_reads_no_weights(rich):
    before = onnx_ir.to_proto(rich)
    weight = rich.graph.initializers["w"].const_value
    assert isinstance(weight, onnx_ir.ExternalTensor)
    everything = Sequential(
        common.IdentityEliminationPass(),
        as_onnx_ir_pass([OnnxIrPasses(("CommonSubexpressionEliminationPass",)), Reverse(("x", "w"), ("z",))]),
        common.RemoveUnusedNodesPass(),
        common.TopologicalSortPass(),
    )
    assert everything(rich).modified
    assert rich.graph.initializers["w"].const_value is weight and weight.raw is None
    after = onnx_ir.to_proto(rich)
    for field in "ir_version producer_name producer_version domain model_version doc_string metadata_props".split():
        assert getattr(after, field) == getattr(before, field)
    assert list(after.graph.input[:4]) == list(before.graph.input)
    assert list(after.graph.output[:2]) == list(before.graph.output)
    assert after.graph.metadata_props == before.graph.metadata_props and after.graph.doc_string == "a graph"
    assert list(after.graph.quantization_annotation) == list(before.graph.quantization_annotation)
    assert [v.name for v in after.graph.input[4:]] == ["adj_z"]
    nodes = {n.name: n for n in after.graph.node}
    for n in before.graph.node[2:4]:
        assert nodes[n.name].doc_string == n.doc_string and nodes[n.name].input == n.input


# Theirs among ours


def test_a_pass_of_onnx_ir_in_our_manager():
    lifted = from_proto(model(TEXT))
    manager = onnxad_passes.PassManager([from_onnx_ir_pass(common.CommonSubexpressionEliminationPass())])
    assert manager.run(lifted)
    assert [n.op_type for n in lifted.graph.nodes] == ["Tanh", "MatMul", "Mul"]
    assert not manager.run(lifted)


@pytest.mark.parametrize("claim", [True, False])
@pytest.mark.parametrize("change", [True, False])
def test_modified_is_what_happened_not_what_is_claimed(claim, change):
    def rename(m):
        if change:
            m.graph.node("h").name = "other"
        return PassResult(m, claim)

    text = TEXT.replace("h =", "[h] h =")
    lifted = from_proto(model(text))
    p = from_onnx_ir_pass(rename)
    assert p.run(lifted) == change
    assert lifted.graph.nodes[0].name == ("other" if change else "h")


@pytest.mark.parametrize("stem", ["mlp_18", "gpt_18", "resnet_18"])
def test_weights_stay_differentiable(stem):
    """onnxscript's optimizer folds weights into each other; the gradients are still those that PyTorch recorded."""
    proto, feeds, out, cotangent, gradients = load(stem)
    y = proto.graph.output[0].name
    for first in ([OnnxscriptRewrite()], [from_onnx_ir_pass(optimizer.optimize_ir)]):
        adjoint = run_pipeline(proto, [*first, Reverse(tuple(gradients))])
        got = evaluate(adjoint, {**feeds, f"adj_{y}": cotangent}, 99)
        assert np.allclose(got[y], out, rtol=1e-4, atol=1e-5)
        for name, want in gradients.items():
            assert np.abs(got[f"adj_{name}"] - want).max() <= 1e-5 * np.abs(want).max()


def gradients_of(text, passes, name, **feeds):
    out = run_pipeline(model(text), [*passes, Gradient(inputs=(name,))])
    onnx.checker.check_model(out, full_check=True)
    return run(out, feeds)[-1]


@pytest.mark.parametrize("fold", [optimizer.fold_constants_ir, optimizer.optimize_ir])
def test_a_weight_that_would_be_folded(fold):
    text = "g () => (float y) <float[2] w = {3, 4}, float[2] k = {5, 6}> { a = Mul(w, k) b = Mul(a, w) y = "
    text += "ReduceSum<keepdims = 0>(b) }"
    passes = [from_onnx_ir_pass(fold)]
    np.testing.assert_allclose(gradients_of(text, passes, "w"), 2 * np.array([3, 4]) * [5, 6])
    np.testing.assert_allclose(gradients_of(text, passes, "k"), [9, 16])
    with pytest.raises(UsageError, match="an earlier pass used its number"):
        gradient(run_pipeline(model(text), passes), inputs=["w"])


def test_a_weight_that_equals_another():
    text = "g () => (float y) <float[2] w = {3, 4}, float[2] k = {3, 4}> { a = Mul(w, w) b = Mul(a, k) y = "
    text += "ReduceSum<keepdims = 0>(b) }"
    share = [from_onnx_ir_pass(common.DeduplicateInitializersPass())]
    np.testing.assert_allclose(gradients_of(text, share, "w"), 2 * np.array([9, 16]))
    np.testing.assert_allclose(gradients_of(text, share, "k"), [9, 16])
    shared = run_pipeline(model(text), share)
    assert [t.name for t in shared.graph.initializer] == ["w"]
    for name in "wk":  # the derivative with respect to both at once is nobody's
        with pytest.raises(UsageError, match="cannot be told any more"):
            gradient(shared, inputs=[name])


@pytest.mark.parametrize("output", [False, True])
def test_an_inner_value_that_equals_another(output):
    text = "g (float x) => (float y%s) { a = Tanh(x) b = Tanh(x) c = Identity(b) y = Mul(a, c) }"
    text = text % (", float a" if output else "")
    share = [OnnxIrPasses(("CommonSubexpressionEliminationPass", "IdentityEliminationPass"))]
    x = np.array(0.5, np.float32)
    for name in "abc":
        out = run_pipeline(model(text), [*share, Gradient("y", (name,))])
        onnx.checker.check_model(out, full_check=True)
        np.testing.assert_allclose(run(out, {"x": x})[-1], np.tanh(x), rtol=1e-6)
        assert [o.name for o in out.graph.output[:-1]] == ["y", "a"][: 1 + output]
        assert not any("onnxad" in v for n in out.graph.node for v in (*n.input, *n.output))
    plain = run_pipeline(model(text), share)
    assert ops(plain).count("Tanh") == 1


def test_an_inner_value_read_in_a_branch():
    text = """g (float x, bool b) => (float y) { a = Tanh(x) c = If(b) <then_branch = t () => (float p) { p = Mul(a, a) },
      else_branch = e () => (float q) { q = Neg(a) }> y = Mul(c, x) }"""
    p = OnnxIrPasses(("onnxscript.optimizer:optimize_ir",))
    x = np.array(0.5, np.float32)
    for flag, want in ((True, 2 * np.tanh(0.5) * 0.5), (False, -0.5)):
        np.testing.assert_allclose(gradients_of(text, [p], "a", x=x, b=np.array(flag)), want, rtol=1e-6)


def test_the_default_of_an_input():
    text = (
        "g (float[2] x, float[2] w) => (float y) <float[2] w = {3, 4}> { a = Mul(x, w) y = ReduceSum<keepdims = 0>(a) }"
    )
    p = OnnxIrPasses(("onnxscript.optimizer:optimize_ir",))
    x = np.array([5, 6], np.float32)
    np.testing.assert_allclose(gradients_of(text, [p], "w", x=x), x)
    out = run_pipeline(model(text), [p, Gradient(inputs=("w",))])
    assert out.graph.initializer[0].name == "w" and [v.name for v in out.graph.input] == ["x", "w"]


def test_what_a_pass_must_leave_alone():
    def rename(m):
        for v in (*m.graph.inputs, *m.graph.outputs):
            v.name = f"{v.name}_"

    text = "g (float x) => (float y) <float w = {2}> { a = Mul(x, w) y = Tanh(a) }"
    for name in "wax":
        with pytest.raises(ModelError, match=rf"rename dropped.* '{name}', which a later pass"):
            run_pipeline(model(text), [from_onnx_ir_pass(rename), Gradient("y_", (name,))])
    assert run_pipeline(model(text), [from_onnx_ir_pass(rename)]).graph.output[0].name == "y_"

    def drop(m):
        m.graph.outputs.pop()

    with pytest.raises(ModelError, match="drop added or dropped outputs"):
        run_pipeline(model(text), [from_onnx_ir_pass(drop), Gradient("y", ("a",))])


class Failing(InPlacePass):
    """Fails."""

    def call(self, model):
        raise KeyError("the reason")


def test_passes_that_cannot_be_done():
    proto = model(TEXT)
    with pytest.raises(ModelError, match="the pass Failing failed: KeyError: 'the reason'"):
        run_pipeline(proto, [from_onnx_ir_pass(Failing())])
    with pytest.raises(ModelError, match="the pass Sequential failed: KeyError: 'the reason'"):
        run_pipeline(proto, [from_onnx_ir_pass(Sequential(Failing()))])
    with pytest.raises(UsageError, match=r"returned a int, not an onnx_ir\.Model"):
        run_pipeline(proto, [from_onnx_ir_pass(lambda m: 3)])
    with pytest.raises(UsageError, match="has nothing to run"):
        run_pipeline(proto, "onnx-ir{passes=}")
    with pytest.raises(UsageError, match=r"NoPass': 'onnx_ir\.passes\.common' has no attribute"):
        run_pipeline(proto, "onnx-ir{passes=NoPass}")
    with pytest.raises(UsageError, match="did you mean 'NameFixPass'"):
        run_pipeline(proto, "onnx-ir{passes=NamesFixPass}")
    with pytest.raises(UsageError, match="cannot be made without arguments"):
        run_pipeline(proto, "onnx-ir{passes=onnx_ir.passes:Sequential,onnxscript.version_converter:ConvertVersionPass}")

    def unsort(m):
        m.graph.insert_before(m.graph[0], onnx_ir.node("Neg", [m.graph[3].outputs[0]]))

    assert ops(run_pipeline(proto, [from_onnx_ir_pass(unsort)])).index("Neg") > 1  # nodes are put in order

    def invalid(m):
        m.graph.append(onnx_ir.node("Tanh", [], outputs=[onnx_ir.Value(name="n")]))

    with pytest.raises(ModelError, match=r"(?s)after pass 'onnx-ir', whose fault this is.*0 operands"):
        run_pipeline(proto, [from_onnx_ir_pass(invalid)])


# Rewrite rules

RULES = """
from onnxscript.rewriter import RewriteRule, RewriteRuleClassBase, RewriteRuleSet

stable = RewriteRule(lambda op, x: op.Log(op.Softmax(x, axis=-1)), lambda op, x: op.LogSoftmax(x, axis=-1), name="s")

class Twice(RewriteRuleClassBase):
    def pattern(self, op, x):
        return op.Neg(op.Neg(x))
    def rewrite(self, op, x):
        return op.Identity(x)

rules = RewriteRuleSet([stable])
both = [Twice, stable]
none = []
text = "stable"
"""
LOG = """g (float[N,3] x) => (float[N,3] y) { a = Softmax<axis = -1>(x) b = Log(a) c = Neg(b) y = Neg(c) }"""


@pytest.fixture
def my_rules(tmp_path, monkeypatch):
    (tmp_path / "my_rules_of_a_test.py").write_text(RULES)
    (tmp_path / "broken_rules_of_a_test.py").write_text("import no_such_module_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    return "my_rules_of_a_test"


@pytest.mark.parametrize(
    "name, left", [("rules", ["LogSoftmax", "Neg", "Neg"]), ("both", ["LogSoftmax", "Identity"]), ("Twice", None)]
)
def test_rules_by_path(my_rules, name, left):
    pipeline = f"onnxscript-rewrite{{rules={my_rules}:{name}}}"
    out = run_pipeline(model(LOG), pipeline)
    assert ops(out) == (left or ["Softmax", "Log", "Identity"])
    onnx.checker.check_model(out, full_check=True)
    lifted = from_proto(model(LOG))
    manager = onnxad_passes.PassManager(parse_pipeline(pipeline))
    assert manager.run(lifted) and not manager.run(lifted)
    assert print_pipeline(manager.passes) == pipeline


def test_rules_as_objects_and_the_derivative_of_what_they_wrote():
    swap = RewriteRule(lambda op, x: op.Log(op.Softmax(x, axis=-1)), lambda op, x: op.LogSoftmax(x, axis=-1))
    x, seed = np.array([[1, 200, -3.5], [0.5, 0, 2]], np.float32), np.array([[1, 2, 3], [-1, 0.5, 0]], np.float32)
    p = np.exp(x - x.max(1, keepdims=True)) / np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)
    for rules in (swap, [swap], RewriteRuleSet([swap])):
        out = run_pipeline(model(LOG), [onnxscript_rewrite(rules), Reverse()])
        got = run(out, {"x": x, "adj_y": seed})[1]  # Log(0) would have made it nan
        np.testing.assert_allclose(got, seed - p * seed.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_the_default_rules():
    text = """g (float[2,3] x) => (float[3,2] y) { a = Cast<to = 1>(x) b = Transpose<perm = [1, 0]>(a)
      c = Transpose<perm = [1, 0]>(b) y = Transpose<perm = [1, 0]>(c) }"""
    for pipeline in ("onnxscript-rewrite", "onnxscript-rewrite{rules=default}", [onnxscript_rewrite()]):
        out = run_pipeline(model(text), pipeline)
        assert ops(out).count("Transpose") == 1 and "Cast" not in ops(out)
        np.testing.assert_array_equal(run(out, {"x": X})[0], X.T)


BAD = [
    ("", "has no rules to apply"),
    ("defaults", r"rules 'defaults' is not written as module:attribute"),
    ("no.such.module:rules", r"there is no module 'no' \(is its folder on PYTHONPATH\?\)"),
    ("my_rules_of_a_test:rule", r"'my_rules_of_a_test' has no attribute 'rule'"),
    ("my_rules_of_a_test:none", r"rules 'my_rules_of_a_test:none' is empty"),
    ("my_rules_of_a_test:text", r"is no onnxscript rewrite rule, no rule set and no list of rules, but a str"),
    ("broken_rules_of_a_test:rules", r"importing 'broken_rules_of_a_test' failed: ModuleNotFoundError: No module"),
]


@pytest.mark.parametrize("rules, message", BAD)
def test_rules_that_are_none(my_rules, rules, message, tmp_path, capsys):
    pipeline = f"onnxscript-rewrite{{rules={rules}}}"
    with pytest.raises(UsageError, match=message):
        run_pipeline(model(LOG), pipeline)
    onnx.save(model(LOG), tmp_path / "m.onnx")
    assert main([str(tmp_path / "m.onnx"), f"--pass={pipeline}", "-o", str(tmp_path / "out.onnx")]) == 2
    assert re.search(message, capsys.readouterr().err) and not (tmp_path / "out.onnx").exists()


def test_on_the_command_line(my_rules, tmp_path):
    onnx.save(model(LOG), tmp_path / "m.onnx")
    pipeline = f"onnxscript-rewrite{{rules={my_rules}:rules}},reverse,onnx-ir{{passes=NameFixPass}}"
    assert (
        main([str(tmp_path / "m.onnx"), f"--pass-pipeline={pipeline}", "-o", str(tmp_path / "out.onnx"), "--check"])
        == 0
    )
    assert "LogSoftmax" in ops(onnx.load(tmp_path / "out.onnx"))
