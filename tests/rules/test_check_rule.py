"""check_rule itself: rules of a user's own, and what it has to notice of entries that are evaluated together."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxad_rules import default_rules
from onnxad_rules.batching import Same, batch_rules, batched
from onnxad_rules.batching.core import shift
from onnxad_rules.kinds import declarations, decompose, elementwise
from onnxad_rules.testing import check_rule

X = np.random.default_rng(0).standard_normal((2, 3))


class Cube(OpRun):
    op_domain = "my.ops"

    def _run(self, x):
        return (x**3,)


class Along(OpRun):
    op_domain = "my.ops"

    def _run(self, x, w, axis=None):
        return (np.moveaxis(np.moveaxis(x, axis, -1) * w, -1, axis),)


def run_mine(proto):
    evaluator = ReferenceEvaluator(proto, new_ops=[Cube, Along])
    names = {i.name for i in proto.graph.input}
    return lambda feeds: evaluator.run(None, {k: v for k, v in feeds.items() if k in names})


def check_mine(op, inputs, attrs=None, how=None):
    """By rules for the user's own operators, and batching rules where there are any."""
    with declarations() as mine:
        elementwise("Cube", domain="my.ops", input_0=lambda op, n: 3 * (n.input_0 * n.input_0))

        @decompose("Along", domain="my.ops")
        def _(op, n):
            after = n.input_0.rank - 1 - n.axis
            return n.input_0 * (op.Unsqueeze(n.input_1, list(range(1, 1 + after))) if after else n.input_1)

    rules = default_rules().merge(mine)
    rules = rules if how is None else rules.with_batching(how)
    ranks = op == "Cube"
    check_rule(op, inputs, attrs, domain="my.ops", engine=run_mine, single=False, unknown_rank=ranks, rules=rules)


def batching(along):
    with batch_rules() as how:

        @batched("Cube", domain="my.ops", any_rank=True)
        def _(op, n, b):
            return b.again(b.input_0)

        batched("Along", domain="my.ops")(along)
    return how


def along(op, n, b):
    if not b.only("input_0"):
        return NotImplemented
    return b.again(b.input_0, n.input_1, axis=n.axis + 1)


@pytest.mark.parametrize("how", [None, batching(along)], ids=["scan", "rule"])
def test_operators_of_ones_own(how):
    check_mine("Cube", [X], how=how)
    check_mine("Along", [X, X[:, 0]], {"axis": 0}, how)
    check_mine("Along", [X, X[0]], {"axis": 1}, how)


def test_a_batching_rule_of_ones_own_along_the_wrong_axis():
    wrong = batching(lambda op, n, b: b.again(b.input_0, n.input_1) if b.only("input_0") else NotImplemented)
    x = np.random.default_rng(1).standard_normal((2, 2, 2))  # nothing fails: all extents are that of the entries
    with declarations() as mine:

        @decompose("Along", domain="my.ops")
        def _(op, n):
            return n.input_0 * op.Unsqueeze(n.input_1, [1, 2])

    rules = default_rules().merge(mine).with_batching(wrong)
    options = dict(domain="my.ops", engine=run_mine, single=False, unknown_rank=False, rules=rules)
    with pytest.raises(AssertionError, match="Along: forward with static shapes, batched, entry 0 of result 0: off by"):
        check_rule("Along", [x, x[0, 0]], {"axis": 0}, wrt=[0], **options)


def built_in(op, rule):
    with batch_rules() as how:
        batched(op, any_rank=True)(rule)
    return default_rules().with_batching(how)


WRONG = {
    "the axis of entries": ("Softmax", [X], {"axis": 0}, lambda op, n, b: b.again(b.input)),
    "as of the first entry": (
        "Tanh",
        [X],
        {},
        lambda op, n, b: op.Expand(op.Tanh(op.Slice(b.input, [0], [1], [0])), op.Shape(b.input)),
    ),
    "entries exchanged": ("Tanh", [X], {}, lambda op, n, b: op.Tanh(op.Slice(b.input, [-1], [-9], [0], [-1]))),
    "the same for all": (
        "Sigmoid",
        [X],
        {},
        lambda op, n, b: Same(op.Squeeze(op.Slice(op.Sigmoid(b.X), [0], [1], [0]), [0])),
    ),
    "seeds of the first entry": (
        "Transpose",
        [X],
        {"perm": [1, 0]},
        lambda op, n, b: op.Expand(
            op.Transpose(op.Slice(b.data, [0], [1], [0]), perm=[0, *(shift(p) for p in n.perm)]),
            op.Gather(op.Shape(b.data), op.const([0, 2, 1]), axis=0),
        ),
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_batching_rules_are_noticed(fault):
    op, inputs, attrs, rule = WRONG[fault]
    check_rule(op, inputs, attrs)
    with pytest.raises(AssertionError, match=r"batched, entry \d of result \d"):
        check_rule(op, inputs, attrs, rules=built_in(op, rule))


def test_an_operand_that_has_entries_alone():
    """Where only the right operand has entries, or only ranks that the run tells are aligned wrongly."""

    def left(op, n, b):
        return b.again(b.A, n.B if b.B is None else b.B) if b.A is not None else op.Mul(n.A, op.Abs(b.B))

    x = np.abs(X) + 0.5
    with pytest.raises(AssertionError, match="Mul: forward in x1 alone, batched, entry"):
        check_rule("Mul", [x, -x], rules=built_in("Mul", left))


def test_what_cannot_be_batched_is_said():
    with pytest.raises(
        AssertionError, match=r"NonZero: forward with static shapes cannot be batched: .* another shape for every entry"
    ):
        check_rule("NonZero", [X], order=1)
    check_rule("NonZero", [X], order=1, ragged="every entry has its own number of elements that are not zero")
    with pytest.raises(
        AssertionError, match="Tanh: forward with static shapes can be batched, but it was said that it is ragged"
    ):
        check_rule("Tanh", [X], ragged="it is ragged")


def test_random_numbers_are_not_compared():
    check_rule("RandomUniformLike", [X], {"seed": 1.0}, order=1, single=False)
