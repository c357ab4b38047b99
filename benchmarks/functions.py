"""What keeping local functions saves: nodes, bytes and build time of derivatives, inlined and kept.

    python benchmarks/functions.py                     48 layers, every mode
    python benchmarks/functions.py --layers 12,96 --runs 5

The model is a transformer encoder whose layer is one local function, called once per layer with weights of its own;
it is differentiated with respect to its input and every weight. The last column is the time of one evaluation in ONNX
Runtime (one thread), which writes functions out as it loads a model.
"""

import argparse
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper, parser

from onnxad_passes import run_pipeline

HEADS, WIDTH, TOKENS, BATCH = 4, 64, 16, 2
LAYER = """<domain: "layers", opset_import: ["" : 18]>
layer (x, n1, qkv, out, n2, up, up_b, down) => (y) {
  zero = Constant <value_float = 0.0> ()
  a = LayerNormalization <axis = -1> (x, n1)
  p = MatMul (a, qkv)
  heads = Constant <value_ints = [0, 0, 3, HEADS, -1]> ()
  r = Reshape (p, heads)
  t = Transpose <perm = [2, 0, 3, 1, 4]> (r)
  q3, k3, v3 = Split <num_outputs = 3, axis = 0> (t)
  first = Constant <value_ints = [0]> ()
  q = Squeeze (q3, first)
  k = Squeeze (k3, first)
  v = Squeeze (v3, first)
  kt = Transpose <perm = [0, 1, 3, 2]> (k)
  s = MatMul (q, kt)
  scale = Constant <value_float = 0.25> ()
  scaled = Mul (s, scale)
  w = Softmax <axis = -1> (scaled)
  o = MatMul (w, v)
  back = Transpose <perm = [0, 2, 1, 3]> (o)
  flat = Constant <value_ints = [0, 0, -1]> ()
  joined = Reshape (back, flat)
  projected = MatMul (joined, out)
  h = Add (x, projected)
  b = LayerNormalization <axis = -1> (h, n2)
  u = MatMul (b, up)
  ub = Add (u, up_b)
  root = Constant <value_float = 0.70710678> ()
  e = Mul (ub, root)
  erf = Erf (e)
  one = Constant <value_float = 1.0> ()
  f = Add (erf, one)
  g = Mul (ub, f)
  d = MatMul (g, down)
  y = Add (h, d)
}""".replace("HEADS", str(HEADS))
SHAPES = {
    "n1": (WIDTH,), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "n2": (WIDTH,),
    "up": (WIDTH, 4 * WIDTH), "up_b": (4 * WIDTH,), "down": (4 * WIDTH, WIDTH),
}  # fmt: skip


def encoder(layers):
    """The model: ReduceSum of `layers` calls of the layer."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(layers):
        names = []
        for name, shape in SHAPES.items():
            names.append(f"{name}_{i}")
            array = np.ones(shape) if len(shape) == 1 else rng.standard_normal(shape) / shape[0] ** 0.5
            weights.append(numpy_helper.from_array(array.astype(np.float32), names[-1]))
        nodes.append(helper.make_node("layer", [f"x{i}", *names], [f"x{i + 1}"], domain="layers", name=f"layer_{i}"))
    nodes.append(helper.make_node("ReduceSum", [f"x{layers}"], ["loss"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info("x0", onnx.TensorProto.FLOAT, [BATCH, TOKENS, WIDTH])],
        [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])],
        weights,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("layers", 1)]
    functions = [parser.parse_function(LAYER)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def measure(model, pipeline, runs):
    """Seconds to build (the best of `runs`), nodes, kilobytes besides the weights, and milliseconds to run."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        derivative = run_pipeline(model, pipeline, verify_each=False)
        best = min(best, time.perf_counter() - start)
    nodes = len(derivative.graph.node) + sum(len(f.node) for f in derivative.functions)
    size = derivative.ByteSize() - sum(t.ByteSize() for t in derivative.graph.initializer)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(derivative.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    times = []
    for _ in range(5):
        start = time.perf_counter()
        results = session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return best, nodes, len(derivative.functions), size / 1024, min(times) * 1e3, results


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--layers", default="48")
    args.add_argument("--runs", type=int, default=3)
    args = args.parse_args()
    print("layers mode      functions   nodes (functions)       kB  build s  run ms")
    for layers in map(int, args.layers.split(",")):
        model = encoder(layers)
        weights = ",".join(["x0", *(t.name for t in model.graph.initializer)])
        print(f"{layers:6d} {'primal':9s} {'':9s} {len(model.graph.node) + len(model.functions[0].node):7d} {1:11d}")
        for mode, inputs in (("reverse", weights), ("gradient", weights), ("forward", "x0")):
            results = {}
            for kept in ("inline", "keep"):
                pipeline = f"{mode}{{inputs={inputs} functions={kept}}}"
                seconds, nodes, count, size, ms, results[kept] = measure(model, pipeline, args.runs)
                print(f"{layers:6d} {mode:9s} {kept:9s} {nodes:7d} {count:11d} {size:8.0f} {seconds:8.3f} {ms:7.1f}")
            for a, b in zip(results["inline"], results["keep"], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())


if __name__ == "__main__":
    main()
