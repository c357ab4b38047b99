"""Whole models of old opsets: recorded outputs, names, regions, functions, overridable initializers, work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, defs, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from support import steps

from onnxad_ir.core import Model
from onnxad_ir.diagnostics import ModelError
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.verify import verify
from onnxad_passes.upgrade import upgrade_graph, upgrade_model
from onnxad_passes.upgrade.registry import adapters_at

F = np.float32
FLOAT = TensorProto.FLOAT


def run(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def rand(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(F)


def info(name: str, *shape: Any, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def build(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    opset: int,
    initializers: list[onnx.TensorProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
    ir_version: int = 8,
    domains: tuple[onnx.OperatorSetIdProto, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers or [])
    opsets = [helper.make_opsetid("", opset), *domains]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version, functions=functions or [])


def upgraded(proto: onnx.ModelProto, full_check: bool = True) -> tuple[onnx.ModelProto, Model]:
    m = from_proto(proto)
    assert upgrade_model(m)
    verify(m)
    out = to_proto(m)
    onnx.checker.check_model(out, full_check=full_check)
    return out, m


# The models that the onnx package ships


def _opset(proto: onnx.ModelProto) -> int:
    return next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)


def _recorded(case: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Pairs of recorded inputs and outputs."""
    if case.data_sets is not None:
        yield from case.data_sets
        return
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        data: list[list[Any]] = []
        for kind in ("input", "output"):
            paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[-1]))
            data.append([numpy_helper.to_array(onnx.load_tensor(p)) for p in paths])
        yield data[0], data[1]


@pytest.mark.parametrize(
    "kind, least", [("pytorch-converted", 75), ("pytorch-operator", 30), ("simple", 15), ("node", 500)]
)
def test_models_of_the_onnx_package_give_their_recorded_outputs(kind: str, least: int) -> None:
    ran, wrong = 0, []
    with np.errstate(all="ignore"):
        cases = load_model_tests(kind=kind)
    for case in cases:
        proto = case.model if case.model is not None else onnx.load(Path(case.model_dir) / "model.onnx")
        if not 0 < _opset(proto) < 18:
            continue
        try:
            out, _ = upgraded(proto, _passes(onnx.checker.check_model, proto, full_check=True))
            initial = {t.name for t in proto.graph.initializer}
            names = [i.name for i in proto.graph.input if i.name not in initial]
            for inputs, outputs in _recorded(case):
                try:
                    got = run(out, dict(zip(names, inputs, strict=True)))
                except Exception:
                    if _passes(run, proto, dict(zip(names, inputs, strict=True))):
                        raise
                    continue  # nor could the original
                ran += 1
                for g, want in zip(got, outputs, strict=True):
                    if isinstance(want, np.ndarray) and want.dtype != object:
                        size = max([1.0, *np.abs(want.astype(np.float64)).ravel()]) if want.dtype.kind == "f" else 1
                        np.testing.assert_allclose(g, want, rtol=1e-3, atol=1e-5 * size)
        except Exception as e:
            wrong.append(f"{case.name}: {type(e).__name__} {str(e).strip()[:300]}")
    assert not wrong, f"{len(wrong)} cases:\n" + "\n".join(wrong)
    assert ran >= least


def _passes(f: Callable[..., Any], *args: Any, **options: Any) -> bool:
    try:
        f(*args, **options)
    except Exception:
        return False
    return True


# Nothing is forgotten


def _incompatible(old: defs.OpSchema, new: defs.OpSchema) -> str:
    """How a node in the old spelling breaks the new schema, or means something else by it."""
    for k, a in old.attributes.items():
        if k == "consumed_inputs":
            continue
        if k not in new.attributes:
            return f"attribute {k} is gone"
        b = new.attributes[k]
        if a.type != b.type or (not a.required and a.default_value != b.default_value):
            return f"attribute {k} has another type or default"
    for k, b in new.attributes.items():
        if b.required and not (k in old.attributes and old.attributes[k].required):
            return f"attribute {k} is required"
    if old.min_input < new.min_input or old.max_input > new.max_input or old.max_output > new.max_output:
        return "another number of operands or results"
    return "deprecated" if new.deprecated else ""


def test_every_incompatible_schema_has_an_adapter() -> None:
    """At the first and at the last opset that has it."""
    versions: dict[str, set[int]] = {}
    for s in defs.get_all_schemas_with_history():
        if not s.domain and s.since_version <= 18:
            versions.setdefault(s.name, {18}).add(s.since_version)
    missing, found = [], 0
    for name, since in versions.items():
        new = defs.get_schema(name, 18, "")
        for first, following in pairwise(sorted(since)):
            old = defs.get_schema(name, first, "")
            why = "" if old.deprecated else _incompatible(old, new)
            found += bool(why)
            if why and not all(name in adapters_at(v) for v in (first, following - 1)):
                missing.append(f"{name}-{first}: {why}")
    assert not missing, missing
    assert found > 80


# Names


def test_names_and_types_stay_when_an_operator_becomes_several() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["soft"], name="first", axis=1),
        helper.make_node("Softmax", ["x"], ["soft2"], name="second", axis=1),
        helper.make_node("Add", ["soft", "soft2"], ["inner"]),
        helper.make_node("Dropout", ["inner"], ["y", "mask"], name="third"),
    ]
    outputs = [info("soft", 2, 3, 4), info("y", 2, 3, 4), info("mask", 2, 3, 4), info("soft2", 2, 3, 4)]
    proto = build(nodes, [info("x", 2, 3, 4)], outputs, 8)
    proto.graph.node[0].doc_string = "kept"
    out, m = upgraded(proto)
    assert [o.name for o in out.graph.output] == ["soft", "y", "mask", "soft2"]
    assert out.graph.output[2].type.tensor_type.elem_type == FLOAT
    made = {n.output[0]: n for n in out.graph.node}
    assert made["soft"].name == "first" and made["soft"].doc_string == "kept" and made["soft2"].name == "second"
    assert {n.name for n in m.graph.nodes if n.op_type == "Flatten"} == {"upgrade(first)", "upgrade(second)"}
    x = rand(2, 3, 4)
    e = np.exp(x) / np.exp(x).sum((1, 2), keepdims=True)
    got = run(out, {"x": x})
    np.testing.assert_allclose(got[0], e, rtol=1e-5)
    np.testing.assert_allclose(got[1], 2 * e, rtol=1e-5)
    np.testing.assert_allclose(got[3], e, rtol=1e-5)


def test_an_operand_or_a_constant_that_is_the_result() -> None:
    """The scaling by 1 vanishes and the constant is folded; the outputs keep their names."""
    nodes = [
        helper.make_node("Scale", ["x"], ["y"], scale=1.0),
        helper.make_node("Affine", ["c"], ["z"], alpha=2.0, beta=1.0),
    ]
    c = numpy_helper.from_array(np.array([1, 2], F), "c")
    out, _ = upgraded(build(nodes, [info("x", 2)], [info("y", 2), info("z", 2)], 7, [c]))
    y, z = run(out, {"x": np.array([5, 6], F)})
    assert y.tolist() == [5, 6] and z.tolist() == [3, 5]


# Initializers


def test_initializers_that_are_inputs_can_still_be_given() -> None:
    nodes = [
        helper.make_node("Upsample", ["x", "s"], ["u"]),
        helper.make_node("Mul", ["u", "w"], ["m"]),
        helper.make_node("Clip", ["m"], ["y"], min=-0.5, max=0.5),
    ]
    initializers = [
        numpy_helper.from_array(np.array([1, 1, 2, 2], F), "s"),
        numpy_helper.from_array(np.array(3, F), "w"),
    ]
    inputs = [info("x", 1, 1, 2, 3), info("s", 4), info("w")]
    proto = build(nodes, inputs, [info("y", 1, 1, "h", "w_")], 9, initializers, ir_version=3)
    out, _ = upgraded(proto)
    assert out.ir_version == 8 and [i.name for i in out.graph.input] == ["x", "s", "w"]
    assert {"s", "w"} <= {t.name for t in out.graph.initializer}
    x = rand(1, 1, 2, 3)
    np.testing.assert_allclose(run(out, {"x": x})[0], np.clip(x.repeat(2, 2).repeat(2, 3) * 3, -0.5, 0.5))
    feeds = {"x": x, "s": np.array([1, 1, 1, 3], F), "w": np.array(-1, F)}
    np.testing.assert_allclose(run(out, feeds)[0], np.clip(-x.repeat(3, 3), -0.5, 0.5))


# What is left alone


@pytest.mark.parametrize("opset", [18, 21, 23])
def test_modern_models_are_not_touched(opset: int) -> None:
    proto = build([helper.make_node("Relu", ["x"], ["y"])], [info("x", 2)], [info("y", 2)], opset)
    m = from_proto(proto)
    before = to_proto(m).SerializeToString()
    assert not upgrade_model(m)
    assert to_proto(m).SerializeToString() == before


def test_other_domains_are_not_touched() -> None:
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0]),
        helper.make_node("Softmax", ["s"], ["t"], domain="somebody"),
        helper.make_node("ReduceMax", ["t"], ["y"], axes=[0], keepdims=0),
    ]
    domains = (helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("somebody", 3))
    m = from_proto(build(nodes, [info("x", 2, 3)], [info("y", 3)], 11, domains=domains))
    assert upgrade_model(m)
    assert m.opset == {"": 18, "ai.onnx.ml": 1, "somebody": 3}
    assert [n.op_type for n in m.graph.nodes] == ["Scaler", "Softmax", "ReduceMax"]
    only = build([nodes[0]], [info("x", 2, 3)], [info("s", 2, 3)], 11, domains=domains[:1])
    del only.opset_import[0]
    assert not upgrade_model(from_proto(only))


# Regions


def test_regions_are_upgraded_too() -> None:
    """A Loop with an If inside, both with old spellings that use values of outer graphs."""
    branch = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["b"], axis=1), helper.make_node("Add", ["b", "s_in"], ["then"])],
        "then",
        [],
        [info("then", 2, 3, 2)],
    )
    other = helper.make_graph(
        [helper.make_node("Clip", ["s_in"], ["else"], max=0.3)], "else", [], [info("else", 2, 3, 2)]
    )
    body = helper.make_graph(
        [
            helper.make_node("Equal", ["i", "one"], ["odd"]),
            helper.make_node("If", ["odd"], ["s_out"], then_branch=branch, else_branch=other),
            helper.make_node("ReduceSum", ["s_out"], ["r"], axes=[1, 2], keepdims=0),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [info("i", kind=TensorProto.INT64), info("go", kind=TensorProto.BOOL), info("s_in", 2, 3, 2)],
        [info("on", kind=TensorProto.BOOL), info("s_out", 2, 3, 2), info("r", 2)],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "rs"], body=body)
    initializers = [
        numpy_helper.from_array(np.array(3, np.int64), "n"),
        numpy_helper.from_array(np.array(1, np.int64), "one"),
    ]
    proto = build([node], [info("x", 2, 3, 2)], [info("y", 2, 3, 2), info("rs", "k", 2)], 10, initializers)
    out, m = upgraded(proto)
    assert not any("axes" in n.attributes for n in m.graph.walk())
    for got, want in zip(run(out, {"x": rand(2, 3, 2)}), run(proto, {"x": rand(2, 3, 2)}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def _scan8(lengths: bool, directions: list[int] | None) -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["h", "w"], ["hw"]),
            helper.make_node("Add", ["hw", "a"], ["h1"]),
            helper.make_node("Mul", ["h1", "b"], ["out"]),
        ],
        "body",
        [info("h", 3), info("a", 3), info("b", 3)],
        [info("h1", 3), info("out", 3)],
    )
    attrs: dict[str, Any] = {} if directions is None else {"directions": directions}
    ins = ["lengths" if lengths else "", "h0", "xa", "xb"]
    node = helper.make_node("Scan", ins, ["hn", "ys"], body=body, num_scan_inputs=2, **attrs)
    inputs = [info("h0", "B", 3), info("xa", "B", "T", 3), info("xb", "B", "T", 3), info("w", 3)]
    if lengths:
        inputs.append(info("lengths", "B", kind=TensorProto.INT64))
    return build([node], inputs, [info("hn", "B", 3), info("ys", "B", "T", 3)], 8, ir_version=3)


@pytest.mark.parametrize("directions", [None, [0, 1], [1, 1]])
@pytest.mark.parametrize("lengths", [None, [4, 2]])
def test_scan_with_a_batch_axis(lengths: list[int] | None, directions: list[int] | None) -> None:
    proto = _scan8(lengths is not None, directions)
    out, m = upgraded(proto)
    feeds = {"h0": rand(2, 3), "xa": rand(2, 4, 3, seed=1), "xb": rand(2, 4, 3, seed=2), "w": rand(3)}
    hn, ys = np.empty((2, 3), F), np.zeros((2, 4, 3), F)
    for k in range(2):
        length, h = (lengths or [4, 4])[k], feeds["h0"][k]
        a, b = (
            feeds[name][k, :length][:: -1 if back else 1]
            for name, back in zip(("xa", "xb"), directions or [0, 0], strict=True)
        )
        for t in range(length):
            h = h * feeds["w"] + a[t]
            ys[k, t] = h * b[t]
        hn[k] = h
    if lengths is not None:
        feeds["lengths"] = np.asarray(lengths, np.int64)
    got = run(out, feeds)
    np.testing.assert_allclose(got[0], hn, rtol=1e-5)
    np.testing.assert_allclose(got[1], ys, rtol=1e-5)
    if lengths is None:
        for g, w in zip(got, run(proto, feeds), strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-6)
    assert m.graph.nodes[-1].op_type == "Scan"


# Functions


def _function(opset: int, attribute: bool) -> onnx.FunctionProto:
    axis: dict[str, Any] = {} if attribute else {"axis": 1}
    node = helper.make_node("Softmax", ["a"], ["s"], name="in the function", **axis)
    if attribute:
        a = node.attribute.add(name="axis", ref_attr_name="k", type=onnx.AttributeProto.INT)
        assert a.ref_attr_name
    nodes = [node, helper.make_node("Clip", ["s"], ["b"], max=0.2), helper.make_node("Relu", ["b"], ["c"])]
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_function("own", "Soft", ["a"], ["c"], nodes, opsets, ["k"] if attribute else [])


@pytest.mark.parametrize("opset", [9, 12, 18])
def test_functions_have_opsets_of_their_own(opset: int) -> None:
    node = helper.make_node("Soft", ["x"], ["y"], domain="own")
    domains = (helper.make_opsetid("own", 1),)
    inputs, outputs = [info("x", 2, 3, 4)], [info("y", 2, 3, 4)]
    proto = build([node], inputs, outputs, opset, functions=[_function(9, False)], domains=domains)
    m = from_proto(proto)
    assert upgrade_model(m)
    verify(m)
    assert m.opset[""] == 18 and all(f.opset[""] == 18 for f in m.functions.values())
    x = rand(2, 3, 4)
    want = np.minimum(np.exp(x) / np.exp(x).sum((1, 2), keepdims=True), F(0.2))
    np.testing.assert_allclose(run(to_proto(m), {"x": x})[0], want, rtol=1e-5)


def test_a_reference_to_an_attribute_of_the_function() -> None:
    node = helper.make_node("Soft", ["x"], ["y"], domain="own", k=1)
    domains = (helper.make_opsetid("own", 1),)
    functions = [_function(9, True)]
    proto = build([node], [info("x", 2, 3)], [info("y", 2, 3)], 9, functions=functions, domains=domains)
    with pytest.raises(ModelError, match="inline-functions") as e:
        upgrade_model(from_proto(proto))
    assert "in the function" in str(e.value)


def test_a_single_body() -> None:
    m = from_proto(build([helper.make_node("Squeeze", ["x"], ["y"], axes=[0])], [info("x", 1, 2)], [info("y", 2)], 9))
    upgrade_graph(m, m.graph, m.opset)
    assert m.graph.nodes[0].inputs[1] is not None and not m.graph.nodes[0].attributes


def test_every_unknown_operator_is_named_and_nothing_is_done() -> None:
    nodes = [
        helper.make_node("Squeeze", ["x"], ["a"], axes=[0]),
        helper.make_node("ATen", ["a"], ["b"], name="one"),
        helper.make_node("GivenTensorFill", [], ["c"], name="two"),
        helper.make_node("ATen", ["b"], ["y"], name="three"),
    ]
    m = from_proto(build(nodes, [info("x", 1, 2)], [info("y", 2)], 9))
    with pytest.raises(ModelError, match="ATen, GivenTensorFill") as e:
        upgrade_model(m)
    assert all(f'"{n}"' in str(e.value) for n in ("one", "two", "three"))
    assert m.opset[""] == 9 and m.graph.nodes[0].attributes


# Work


def _chain(n: int) -> Model:
    nodes = []
    for i in range(0, n, 4):
        nodes += [
            helper.make_node("Relu", [f"v{i}"], [f"a{i}"]),
            helper.make_node("Softmax", [f"a{i}"], [f"b{i}"], axis=1),
            helper.make_node("Clip", [f"b{i}"], [f"c{i}"], min=0.1),
            helper.make_node("ReduceMean", [f"c{i}"], [f"v{i + 4}"], axes=[1]),
        ]
    return from_proto(build(nodes, [info("v0", 2, 3, 4)], [info(f"v{n}", 2, 1, 4)], 9))


def test_work_is_linear() -> None:
    upgrade_model(_chain(4))  # what is looked up once
    small, large = (steps(upgrade_model, _chain(n)) for n in (200, 1000))
    assert large < 5.2 * small
