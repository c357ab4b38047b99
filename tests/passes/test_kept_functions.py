"""Local functions that are kept: their derivatives are those of the inlined model, and are written once."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import helper, parser

import onnxad_passes as ad
from onnxad_ir.diagnostics import ModelError, UsageError
from onnxad_passes import run_pipeline
from tests.support import evaluate, to_double

HEAD = '<ir_version: 10, opset_import: ["" : 18, "f" : 1]>\n'
F = '<domain: "f", opset_import: ["" : 18, "f" : 1]>'
RNG = np.random.default_rng(7)


def feeds_of(model, seed=3):
    rng = np.random.default_rng(seed)
    feeds = {}
    for v in model.graph.input:
        t = v.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else 4 for d in t.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(t.elem_type)
        feeds[v.name] = (
            np.asarray(rng.uniform(0.3, 1.2, shape)).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
        )
    return feeds


def nodes_in(model):
    """The number of nodes of the main graph and all functions, regions included."""

    def count(nodes):
        return sum(1 + sum(count(a.g.node) for a in n.attribute if a.HasField("g")) for n in nodes)

    return count(model.graph.node) + sum(count(f.node) for f in model.functions)


def same_as_inlined(text, pipelines=("reverse", "forward"), levels=(0, 99), options=""):
    """Derivatives with functions kept, which must agree with those of the inlined model; the last one is returned."""
    primal = parser.parse_model(HEAD + text) if isinstance(text, str) else text
    kept = None
    for pipeline in pipelines:
        inlined = run_pipeline(primal, ",".join(f"{p}{{{options}}}" if options else p for p in pipeline.split("+")))
        kept = run_pipeline(primal, ",".join(f"{p}{{functions=keep {options}}}" for p in pipeline.split("+")))
        onnx.checker.check_model(kept)
        assert [v.name for v in kept.graph.input] == [v.name for v in inlined.graph.input]
        assert [v.name for v in kept.graph.output] == [v.name for v in inlined.graph.output]
        feeds = feeds_of(inlined)
        for level in levels:
            got, want = evaluate(kept, feeds, level), evaluate(inlined, feeds, level)
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=1e-6, err_msg=f"{pipeline} {name}")
    return kept


NESTED = f"""g (float[3] x, float[3] w) => (float[3] y) {{ t = f.outer(x, w) u = f.outer(t, w) y = f.outer(u, w) }}
    {F} outer (a, w) => (b) {{ m = f.inner(a) n = Mul(m, w) b = f.inner(n) }}
    {F} inner (a) => (b) {{ s = Sin(a) t = Tanh(a) b = Mul(s, t) }}"""


def test_nested_calls():
    kept = same_as_inlined(NESTED)
    assert sorted(f.name for f in kept.functions) == ["inner_fwd", "outer_fwd"]
    kept = same_as_inlined(NESTED, ["reverse"])
    assert sorted(f.name for f in kept.functions) == ["inner", "inner_adj", "outer", "outer_adj"]


@pytest.mark.parametrize("pipeline", ["reverse", "forward", "reverse+forward", "reverse+reverse"])
def test_functions_stand_behind_those_that_they_call(pipeline):
    """Without that onnx's reference evaluator does not load them."""
    kept = same_as_inlined(NESTED, [pipeline])
    seen = set()
    for f in kept.functions:
        assert {n.op_type for n in f.node if n.domain == "f"} <= seen
        seen.add(f.name)
    assert {"inner", "outer"} & {name.split("_")[0] for name in seen}
    feeds = feeds_of(kept)
    want = evaluate(kept, feeds, 0)
    for y, got in zip(want, onnx.reference.ReferenceEvaluator(kept).run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want[y], rtol=1e-5, atol=1e-6)


def test_against_finite_differences():
    model = to_double(parser.parse_model(HEAD + NESTED))
    feeds = {k: v.astype(np.float64) for k, v in feeds_of(model).items()}
    ct = RNG.standard_normal(3)
    for v in ("x", "w"):
        step = RNG.standard_normal(3)
        up, down = ({**feeds, v: feeds[v] + s * 1e-6 * step} for s in (1, -1))
        difference = (evaluate(model, up)["y"] - evaluate(model, down)["y"]) / 2e-6
        adjoint = ad.reverse(model, layout="single", functions="keep")
        got = evaluate(adjoint, {**feeds, "adj_y": ct})[f"adj_{v}"] @ step
        np.testing.assert_allclose(got, ct @ difference, rtol=1e-7)
        tangent = ad.forward(model, layout="single", functions="keep", inputs=[v])
        np.testing.assert_allclose(evaluate(tangent, {**feeds, f"fwd_{v}": step})["fwd_y"], difference, rtol=1e-6)


@pytest.mark.parametrize(
    "pipeline",
    ["reverse+forward", "forward+reverse", "reverse+reverse", "forward+forward", "reverse+reverse+forward"],
)
def test_higher_orders(pipeline):
    same_as_inlined(NESTED, [pipeline], levels=(0,))


def test_inlined_after_all():
    """A derivative made with functions kept is differentiated again with its functions inlined."""
    model = parser.parse_model(HEAD + NESTED)
    want = run_pipeline(model, "reverse,forward")
    got = run_pipeline(model, "reverse{functions=keep},forward")
    assert not got.functions
    feeds = feeds_of(want)
    for name, value in evaluate(want, feeds, 0).items():
        np.testing.assert_allclose(evaluate(got, feeds, 0)[name], value, rtol=1e-5, atol=1e-6)


def test_size_does_not_grow_with_calls():
    def layers(count):
        body = "".join(f"h{i + 1} = f.outer(h{i}, w) " for i in range(count))
        text = NESTED.split("\n", 1)[1]
        return parser.parse_model(
            HEAD + f"g (float[3] x, float[3] w) => (float[3] y) {{ h0 = Exp(x) {body} y = Neg(h{count}) }}\n" + text
        )

    for mode in ("reverse", "forward"):
        sizes = [nodes_in(run_pipeline(layers(n), mode + "{functions=keep}")) for n in (4, 24)]
        assert sizes[1] - sizes[0] <= 20 * 3  # a call, its adjoint, and the sum of what w receives
        inlined = [nodes_in(run_pipeline(layers(n), mode)) for n in (4, 24)]
        assert inlined[1] - inlined[0] >= 20 * 15


def test_attributes_defaults_and_overloads():
    same_as_inlined(
        f"""g (float[2,3] x) => (float[2,3] y) {{
          a = f.act <axis = 0, slope = 0.25> (x)
          b = f.act <axis = 1> (a)
          c = f.act <axis = 1> (b)
          y = f.act <axis = 0, slope = 0.25> (c)
        }}
        {F} act <axis, slope: float = 0.5> (a) => (b) {{
          n = Neg(a)
          s = Softmax <axis: int = @axis> (n)
          t = f.leak <slope: float = @slope> (n)
          b = Sub(s, t)
        }}
        {F} leak <slope: float = 0.1> (a) => (b) {{ b = LeakyRelu <alpha: float = @slope> (a) }}"""
    )
    model = parser.parse_model(
        HEAD
        + f"""g (float[3] x) => (float[3] y) {{ t = f.act(x) y = f.act(t) }}
        {F} act (a) => (b) {{ b = Sin(a) }}
        {F} act (a) => (b) {{ b = Exp(a) }}"""
    )
    model.functions[1].overload = "other"
    model.graph.node[1].overload = "other"
    kept = run_pipeline(model, "reverse{functions=keep}")
    assert len({(f.domain, f.name, f.overload) for f in kept.functions}) == len(kept.functions)
    x, ct = np.array([0.2, 0.5, -1], np.float32), np.array([1, 2, 3], np.float32)
    got = run_pipeline(kept, "inline-functions")
    np.testing.assert_allclose(
        evaluate(got, {"x": x, "adj_y": ct}, 0)["adj_x"], ct * np.exp(np.sin(x)) * np.cos(x), rtol=1e-6
    )


def test_different_active_operands_and_results():
    """Each combination has a derivative of its own; what nobody reads is not differentiated."""
    text = f"""g (float[3] x, float[3] w) => (float[3] y, float[3] z) {{
          a, b = f.two(x, w)
          c, d = f.two(b, a)
          e, unused = f.two(d, w)
          k = f.two(w, w)
          y = Mul(c, e)
          z = Add(k, y)
        }}
        {F} two (p, q) => (r, s) {{ r = Mul(p, q) t = Sin(p) s = Div(t, q) }}"""
    same_as_inlined(text)
    same_as_inlined(text, options="inputs=x")
    same_as_inlined(text, options="inputs=w outputs=y")


def test_results_without_derivative_and_operands_passed_through():
    same_as_inlined(
        f"""g (float[3] x, float[3] w) => (float[3] y) {{
          a, n, p, same = f.many(x, w)
          k = Cast <to = 1> (n)
          m = Mul(a, k)
          v = Mul(p, same)
          y = Add(m, v)
        }}
        {F} many (p, q) => (r, n, first, twice) {{
          r = Exp(q) n = Shape(p) first = Identity(p) twice = Identity(r)
        }}"""
    )


def test_no_path_from_operands_to_results():
    kept = same_as_inlined(
        f"""g (float[3] x) => (float[3] y) {{ a = f.steps(x) b = Exp(x) y = Mul(a, b) }}
        {F} steps (p) => (r) {{ r = Floor(p) }}"""
    )
    assert [f.name for f in kept.functions] == ["steps"]


def test_one_function_of_several_types():
    text = f"""g (float[2,3] x, float[3] v, float[2,3] w) => (float[2,3] y) {{
          a = f.scaled(x, v)
          b = f.scaled(a, v)
          c = f.scaled(b, w)
          one = Constant <value_float = 1.0> ()
          y = f.scaled(c, one)
        }}
        {F} scaled (p, q) => (r) {{ t = Mul(p, q) r = Sin(t) }}"""
    kept = same_as_inlined(text)
    assert len(kept.functions) == 3
    kept = same_as_inlined(text, ["reverse"])
    assert len(kept.functions) == 6


def test_symbolic_extents_are_shared():
    """Calls on N and on M rows are one function; shapes it needs are read at run time."""
    text = f"""g (float[N,3] x, float[M,3] z) => (float y) {{
          a = f.norm(x) b = f.norm(z) s = ReduceSum <keepdims = 0> (a) t = ReduceSum <keepdims = 0> (b) y = Mul(s, t)
        }}
        {F} norm (p) => (r) {{
          axes = Constant <value_ints = [0]> () m = ReduceMean <keepdims = 1> (p, axes)
          d = Sub(p, m) e = Mul(d, d) f = ReduceMax <keepdims = 1> (e, axes) r = Mul(f, p)
        }}"""
    kept = same_as_inlined(text, ["forward", "reverse"])
    assert len(kept.functions) == 2


def test_shapes_specialize_a_function_and_numbers_of_layers_do_not():
    layers = "".join(
        f"i{k} = Constant <value_int = {k}> () h{k + 1} = f.layer(h{k}, ws, i{k}, shape) " for k in range(4)
    )
    kept = same_as_inlined(
        f"""g (float[2,3] x, float[4,6] ws) => (float[2,3] y) {{
          shape = Constant <value_ints = [2, 3]> () h0 = Identity(x) {layers} y = Neg(h4)
        }}
        {F} layer (h, ws, i, shape) => (r) {{
          w = Gather(ws, i) v = Reshape(w, shape) m = Mul(h, v) s = Sin(m) r = Add(s, h)
        }}""",
        ["reverse"],
    )
    assert len(kept.functions) == 2
    (adjoint,) = [f for f in kept.functions if f.name.endswith("adj")]
    assert "Shape" not in [n.op_type for n in adjoint.node if n.input and n.input[0] != "ws"]


def test_omitted_operands():
    same_as_inlined(
        f"""g (float[3] x, float[3] w) => (float[3] y) {{
          a = f.clipped(x, , w) b = f.clipped(a) y = f.clipped(b, , w)
        }}
        {F} clipped (p, low, high) => (r) {{ s = Sin(p) t = Clip(s, low) u = Exp(t) r = Mul(u, p) }}"""
    )


def test_constants_of_functions():
    """Small ones are repeated in the adjoint, large ones are handed to it."""
    weights = np.asarray(np.random.default_rng(1).standard_normal((11, 11)), np.float32)
    text = f"""g (float[11] x) => (float[11] y) {{ a = f.dense(x) y = f.dense(a) }}
        {F} dense (p) => (r) {{ half = Constant <value_float = 0.5> () t = MatMul(p, p2) s = Sin(t) r = Mul(s, half) }}"""
    text = text.replace("p2)", "w)").replace("t = MatMul", "w = Constant <value_float = 1.0> () t = MatMul")
    model = parser.parse_model(HEAD + text)
    (f,) = model.functions
    (w,) = [n for n in f.node if n.output[0] == "w"]
    w.CopyFrom(helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(weights)))
    kept = same_as_inlined(model, ["reverse"])
    large = [n for f in kept.functions for n in f.node if n.op_type == "Constant" and n.attribute[0].t.dims == [11, 11]]
    assert len(large) == 1


LARGE = [
    "y, i = MaxPool <kernel_shape = [2], strides = [2]> (x)",
    "k = Constant <value_ints = [3]> () y, i = TopK <axis = 2> (x, k)",
    "i = Constant <value = int64[1,1] {0}> () y = GatherND(x, i)",
    "i = Constant <value = int64[1,1,3] {0, 5, 0}> () y = GatherElements <axis = 2> (x, i)",
    "y = If (c) <then_branch = t () => (a) { a = Sin(x) }, else_branch = e () => (b) { b = Floor(x) }>",
]


@pytest.mark.parametrize("body", LARGE)
def test_large_constants_of_an_adjoint_are_its_own(body):
    """Zeros of many elements, which nothing of the function itself has to do with."""
    text = f"""g (float[1,3,40] x, bool c) => (float[k,m,n] y) {{ y = f.pick(x, c) }}
        {F} pick (x, c) => (y) {{ {body} }}"""
    kept = same_as_inlined(text, ["reverse", "reverse+reverse"])
    (pick,) = [f for f in kept.functions if f.name == "pick"]
    assert "Constant" not in [n.op_type for n in pick.node if n.output[0] in pick.output]


def test_control_flow_in_functions():
    """An If, with a call and an attribute reference in its branches, and a Scan that captures a weight."""
    branches = """b = If (c) <then_branch = yes () => (p) { s = Sin(a) p = LeakyRelu <alpha: float = @slope> (s) },
        else_branch = no () => (q) { t = f.square(a) q = Mul(t, w) }>"""
    text = f"""g (float[3] x, float[3] w, bool c) => (float[3] y) {{
          n = Not(c)
          t = f.choose <slope = 0.5> (x, w, c) u = f.choose <slope = 0.5> (t, w, n) y = f.choose(u, w, c)
        }}
        {F} choose <slope: float = 0.25> (a, w, c) => (b) {{ {branches} }}
        {F} square (a) => (b) {{ b = Mul(a, a) }}"""
    same_as_inlined(text)
    same_as_inlined(text, ["reverse+forward"], levels=(0,))
    same_as_inlined(
        f"""g (float[3] x, float[4,3] w) => (float[3] y, float[4,3] z) {{
          t, s = f.run(x, w) y, z = f.run(t, s)
        }}
        {F} run (h, xs) => (last, all) {{
          last, all = Scan <num_scan_inputs = 1, body = step (float[3] i, float[3] e) => (float[3] o, float[3] k) {{
            m = f.square(i) n = Mul(m, e) d = Mul(n, h) o = Tanh(d) k = Identity(n)
          }}> (h, xs)
        }}
        {F} square (a) => (b) {{ b = Sin(a) }}"""
    )


def test_branches_that_contradict_what_a_caller_declares():
    """What the call declares is not seen by the branches that are not taken: a runtime would refuse to load them."""
    text = f"""g (float[2,3] x, bool c) => (float[2,3] y) {{ y = f.pick(x, c) }}
        {F} pick (x, c) => (y) {{ y = If (c) <
            then_branch = t () => (a) {{ a = Mul(x, x) }},
            else_branch = e () => (b) {{ b = If (c) <
                then_branch = u () => (d) {{ p = Exp(x) q = Transpose(p) d = MatMul(p, q) }},
                else_branch = v () => (f) {{ f = Concat <axis = 0> (x, x) }}> }}> }}"""
    same_as_inlined(text, ["reverse", "reverse+forward", "forward+reverse"])


def test_calls_in_regions():
    """A call in the body of a Loop and in a branch: what its adjoint needs is kept for every iteration."""
    text = f"""g (float[3] x, float[3] w, bool c) => (float[3] y) {{
          n = Constant <value_int = 3> ()
          yes = Constant <value = bool {{1}}> ()
          z = Loop (n, yes, x) <body = step (int64 i, bool go, float[3] h) => (bool more, float[3] o) {{
            more = Identity(go)
            o = If (c) <then_branch = a () => (float[3] p) {{ p = f.cell(h, w) }},
                        else_branch = b () => (float[3] q) {{ q = f.cell(w, h) }}>
          }}>
          y = f.cell(z, w)
        }}
        {F} cell (a, b) => (r) {{ t = Sin(a) r = Mul(t, b) }}"""
    same_as_inlined(text)
    same_as_inlined(text, ["forward+reverse"], levels=(0,))


def test_names_that_are_taken():
    kept = same_as_inlined(
        f"""g (float[3] x) => (float[3] y) {{ t = f.cell(x) u = f.cell_adj(t) y = f.cell_fwd(u) }}
        {F} cell (a) => (r) {{ r = Sin(a) }}
        {F} cell_adj (a) => (r) {{ r = Exp(a) }}
        {F} cell_fwd (a) => (r) {{ r = Cos(a) }}""",
        ["reverse"],
    )
    assert len({f.name for f in kept.functions}) == len(kept.functions) >= 6


def test_names_of_constants_do_not_freeze_those_of_the_model():
    """A number of a function has nothing to do with a weight of the model that has its name."""
    model = parser.parse_model(
        HEAD
        + f"""g (float[3] x) => (float[3] y) <float k = {{2.0}}> {{ t = f.scaled(x) y = Mul(t, k) }}
        {F} scaled (a) => (r) {{ k = Constant <value_float = 1.0> () m = Mul(a, k) r = Pow(m, k) }}"""
    )
    once = run_pipeline(model, "reverse{functions=keep}")
    again = run_pipeline(once, "reverse{functions=keep inputs=k outputs=y}")
    x = np.array([1, 2, 3], np.float32)
    assert evaluate(again, {"x": x, "adj_y": x, "adj2_y": x}, 0)["adj2_k"] == pytest.approx(14)


def test_old_opsets():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 16, "f" : 1]>
        g (float[2,3] x) => (float[2,1] y) { y = f.total(x) }
        <domain: "f", opset_import: ["" : 16]> total (a) => (r) { s = Sin(a) r = ReduceMean <axes = [1]> (s) }"""
    )
    same_as_inlined(model)


def test_recursion_is_an_error():
    model = parser.parse_model(
        HEAD
        + f"""g (float[3] x) => (float[3] y) {{ y = f.ping(x) }}
        {F} ping (a) => (r) {{ r = f.pong(a) }}
        {F} pong (a) => (r) {{ r = f.ping(a) }}"""
    )
    with pytest.raises(ModelError, match="no recursion"):
        run_pipeline(model, "reverse{functions=keep}", verify_each=False)


def test_missing_rules_are_named():
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "f" : 1, "strange" : 1]>'
        + f"""g (float[3] x) => (float[3] y) {{ t = f.odd(x) y = Exp(t) }}
        {F.replace('"f" : 1', '"strange" : 1')} odd (a) => (r) {{ r = strange.Thing(a) }}"""
    )
    with pytest.raises(ad.UnsupportedOperator, match=r"strange\.Thing"):
        run_pipeline(model, "reverse{functions=keep}")


def test_unknown_option():
    with pytest.raises(UsageError, match="inline or keep"):
        run_pipeline(parser.parse_model(HEAD + NESTED), "reverse{functions=kept}")


def test_gradient():
    model = parser.parse_model(
        HEAD
        + f"""g (float[3] x) => (float y) {{ t = f.cell(x) u = f.cell(t) y = ReduceSum <keepdims = 0> (u) }}
        {F} cell (a) => (r) {{ t = Sin(a) r = Mul(t, a) }}"""
    )
    same_as_inlined(model, ["gradient"])
    assert len(ad.gradient(model, functions="keep").functions) == 2


def test_a_result_that_does_not_depend_on_an_operand_is_not_active():
    """No rule is needed behind it."""
    same_as_inlined(
        f"""g (float[3] x, float[3] w) => (float[3] y) {{
          a, b, c = f.parts(x, w) d = Relu(b) k = Floor(c) m = Mul(k, d) y = Add(m, a)
        }}
        {F} parts (p, q) => (a, b, c) {{ a, b = f.two(p, q) c = Floor(p) }}
        {F} two (p, q) => (a, b) {{ a = Mul(p, q) b = Exp(q) }}
        """,
        options="inputs=x",
    )
    model = parser.parse_model(
        HEAD.replace('"f" : 1', '"f" : 1, "strange" : 1')
        + f"""g (float[3] x) => (float[3] y) {{ a, b = f.parts(x) c = strange.Thing(b) y = Mul(a, c) }}
        {F} parts (p) => (a, b) {{ a = Exp(p) b = Floor(p) }}"""
    )
    adjoint = run_pipeline(model, "reverse{functions=keep}")
    assert [o.name for o in adjoint.graph.output] == ["y", "adj_x"]


def test_random_numbers_of_a_function_in_a_loop_are_kept():
    """What a function draws without looking at its operands is not drawn again on the way back."""
    model = parser.parse_model(
        HEAD
        + f"""g (float[3] x) => (float[3] y, float[4,3] rs) {{
          n = Constant <value_int = 4> () yes = Constant <value = bool {{1}}> ()
          y, rs = Loop (n, yes, x) <body = step (int64 i, bool go, float[3] h) => (bool m, float[3] o, float[3] s) {{
            m = Identity(go) r = f.noise() e = Exp(r) s = Identity(e) o = Mul(h, e)
          }}>
        }}
        {F} noise () => (r) {{ r = RandomNormal <shape = [3]> () }}"""
    )
    adjoint = run_pipeline(model, "reverse{functions=keep outputs=y}")
    feeds = {"x": np.ones(3, np.float32), "adj_y": np.ones(3, np.float32)}
    got = evaluate(adjoint, feeds, 0)
    np.testing.assert_allclose(got["adj_x"], got["rs"].prod(0), rtol=1e-5)


SINGULAR = {
    "a zero cut off before a call of infinite slope": (
        "a = Relu(x) y = f.root(a)",
        "root (a) => (r) { r = Sqrt(a) }",
    ),
    "a call that cuts off, before infinite slope": (
        "a = f.cut(x) y = Sqrt(a)",
        "cut (a) => (r) { r = Relu(a) }",
    ),
    "two calls": (
        "a = f.cut(x) y = f.root(a)",
        "cut (a) => (r) { b = Neg(a) c = Neg(b) r = Relu(c) } ; root (a) => (r) { b = Identity(a) r = Sqrt(b) }",
    ),
    "a division whose result is thrown away": (
        "k = Constant <value_float = 0.0> () a = f.inverse(x) c = Greater(x, k) y = Where(c, a, k)",
        "inverse (a) => (r) { one = Constant <value_float = 1.0> () r = Div(a, a) }",
    ),
    "a call that throws away": (
        "k = Constant <value_float = 0.0> () a = Div(x, x) y = f.choose(a, x, k)",
        "choose (a, x, k) => (r) { c = Greater(x, k) n = Neg(a) r = Where(c, n, k) }",
    ),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_no_zero_times_infinity_across_calls(name):
    main, functions = SINGULAR[name]
    functions = "\n".join(F + " " + f.strip() for f in functions.split(";"))
    model = parser.parse_model(HEAD + f"g (float[3] x) => (float[3] y) {{ {main} }}\n{functions}")
    x = np.array([0, -1, 4], np.float32)
    for mode, seed in (("reverse", "adj_y"), ("forward", "fwd_x")):
        kept = evaluate(
            run_pipeline(model, f"{mode}{{functions=keep}}"), {"x": x, seed: np.array([0, 1, 1], np.float32)}, 0
        )
        inlined = evaluate(run_pipeline(model, mode), {"x": x, seed: np.array([0, 1, 1], np.float32)}, 0)
        (result,) = [n for n in kept if n.startswith(("adj", "fwd"))]
        assert np.isfinite(inlined[result][1:]).all()
        np.testing.assert_allclose(kept[result], inlined[result], rtol=1e-6)
