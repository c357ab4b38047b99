"""Sequences, optionals, and loops whose shapes or sequences change from iteration to iteration."""

import numpy as np
import pytest
from onnx import parser
from orders import check_model

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape)


def model(text):
    return parser.parse_model('<ir_version: 8, opset_import: ["": 18]>\n' + text)


@pytest.mark.parametrize("k", [0, 1, -1, -2])
def test_construct_insert_erase_at_and_concat(k):
    m = model("""g (double[2] a, double[3] b, int64 k) => (double[5] y) {
      s = SequenceConstruct(a, b)
      last = Constant<value = int64 {-1}>()
      t = SequenceInsert(s, a, last)
      u = SequenceInsert(t, b)
      e = SequenceErase(u, k)
      f = SequenceAt(e, k)
      p = SequenceAt(e, last)
      p2 = Mul(p, p)
      r = ReduceSum<keepdims = 0>(p2)
      sf = ReduceSumSquare<keepdims = 0>(f)
      v = Mul(sf, r)
      c = ConcatFromSequence<axis = 0>(s)
      c2 = Mul(c, c)
      y = Add(c2, v)
    }""")
    check_model(m, {"a": normal(2), "b": normal(3), "k": np.array(k)})


def test_split_map_and_stack():
    m = model("""g (double[2,5] a) => (double[2] y, double[2,5] z) {
      n = Constant<value = int64[3] {1, 3, 1}>()
      s = SplitToSequence<axis = 1>(a, n)
      k = Constant<value = int64 {1}>()
      p = SequenceAt(s, k)
      ax = Constant<value = int64[1] {1}>()
      q = Mul(p, p)
      y = ReduceSum<keepdims = 0>(q, ax)
      t = SplitToSequence<axis = 1, keepdims = 0>(a)
      u = SequenceMap<body = b (double[2] e) => (double[2] f) { f = Mul(e, e) }>(t)
      z = ConcatFromSequence<axis = 1, new_axis = 1>(u)
    }""")
    check_model(m, {"a": normal(2, 5)})


def test_concat_of_elements_of_different_extents_on_a_negative_axis():
    m = model("""g (double[2,3] a, double[2,1] b) => (double[2,4] y) {
      s = SequenceConstruct(a, b)
      c = ConcatFromSequence<axis = -1>(s)
      y = Tanh(c)
    }""")
    check_model(m, {"a": normal(2, 3), "b": normal(2, 1)})


def test_map_over_elements_of_different_shapes_with_a_tensor_and_a_captured_value():
    m = model("""g (double[2] a, double[3] b, double k, double w) => (double[5] y) {
      s = SequenceConstruct(a, b)
      u = SequenceMap<body = f (double[N] e, double ki) => (double[N] o) { o1 = Mul(e, ki) o2 = Mul(o1, w) o = Tanh(o2) }>(s, k)
      y = ConcatFromSequence<axis = 0>(u)
    }""")
    check_model(m, {"a": normal(2), "b": normal(3), "k": np.array(0.7), "w": np.array(-1.2)})


@pytest.mark.parametrize("trips", [1, 3])
def test_loop_that_builds_a_sequence(trips):
    m = model("""g (int64 m, double[2] h, double[2] w) => (double[n] y) {
      c = Constant<value = bool {1}>()
      empty = SequenceEmpty<dtype = 11>()
      hf, q = Loop<body = b (int64 i, bool ci, double[2] s, seq(double[2]) t)
          => (bool ci, double[2] so, seq(double[2]) to) {
        a = Mul(s, w) so = Tanh(a) to = SequenceInsert(t, so) }>(m, c, h, empty)
      y = ConcatFromSequence<axis = 0>(q)
    }""")
    check_model(m, {"m": np.array(trips), "h": normal(2), "w": normal(2)})


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_loop_whose_state_grows(trips):
    m = model("""g (int64 m, double[2] h, double[2] w) => (double[n] y) {
      c = Constant<value = bool {1}>()
      y = Loop<body = b (int64 i, bool ci, double[k] s) => (bool ci, double[l] so) {
        t = Tanh(s) a = Mul(w, w) so = Concat<axis = 0>(t, a) }>(m, c, h)
    }""")
    check_model(m, {"m": np.array(trips), "h": normal(2), "w": normal(2)})


def test_loop_that_needs_values_of_different_shapes():
    m = model("""g (int64 m, double[4] h) => (double[4] y) {
      c = Constant<value = bool {1}>()
      z = Constant<value = int64[1] {0}>()
      one = Constant<value = int64[1] {1}>()
      y = Loop<body = b (int64 i, bool ci, double[4] s) => (bool ci, double[4] so) {
        i1 = Unsqueeze(i, z) e = Add(i1, one) p = Slice(s, z, e) q0 = Sqrt(p) q2 = Softmax(p) q1 = Mul(q0, q2)
        q = ReduceSum<keepdims = 1>(q1) r = Sin(s) so = Add(r, q) }>(m, c, h)
    }""")
    check_model(m, {"m": np.array(3), "h": np.abs(normal(4)) + 0.5})


def test_optional():
    m = model("""g (double[2] a, double[2] b) => (double[2] y) {
      o = Optional(a)
      e = OptionalGetElement(o)
      s = Mul(e, b)
      d = OptionalGetElement(o)
      y = Mul(s, d)
    }""")
    check_model(m, {"a": normal(2), "b": normal(2)})


def test_what_a_region_computes_is_not_taken_from_elsewhere():
    """The slopes of Sin(b) and Cos(b) are what the region of SequenceMap computes: parts of other derivatives there."""
    m = model("""g (double[2] x, double[2] b) => (double[4] y, double[2] u, double[2] w) {
      u = Sin(b)
      s = SequenceConstruct(x, b)
      r = SequenceMap<body = f (double[2] e) => (double[2] p) { t = Cos(b) q = Sin(b) h = Mul(e, t) p = Add(h, q) }>(s)
      y = ConcatFromSequence<axis = 0>(r)
      w = Cos(b)
    }""")
    check_model(m, {"x": normal(2), "b": normal(2)})
