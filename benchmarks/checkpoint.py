"""Peak memory and time of the gradient of a long Scan and a long Loop, with and without checkpoints.

    python benchmarks/checkpoint.py
    python benchmarks/checkpoint.py --steps 4000 --width 128 --every none,10,auto

The body is a residual cell, h + V tanh(W h + x); its tape is the states and what is in between. Each model runs in a
process of its own; memory is what the peak of its resident set grows by over the run (the model is loaded before).
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
import onnx
import onnxruntime as ort
from onnx import parser

from onnxad_passes import gradient

BODY = """m = MatMul(a, w) s = Add(m, x) t = Tanh(s) r = MatMul(t, v) b = Add(a, r)"""
MODELS = {
    "scan": """g (float[{B},{N}] h, float[{T},{N}] xs, float[{N},{N}] w, float[{N},{N}] v) => (float y) {{
  last = Scan <num_scan_inputs = 1, body = step (float[{B},{N}] a, float[{N}] x) => (float[{B},{N}] b) {{ {BODY} }}>
    (h, xs)
  y = ReduceMean <keepdims = 0> (last)
}}""",
    "loop": """g (float[{B},{N}] h, float[{T},{N}] xs, float[{N},{N}] w, float[{N},{N}] v) => (float y) {{
  one = Constant <value_int = 1> () shape = Shape <start = 0, end = 1> (xs) trips = Squeeze(shape)
  yes = Constant <value = bool {{1}}> ()
  last = Loop (trips, yes, h) <body = step (int64 i, bool go, float[{B},{N}] a) => (bool more, float[{B},{N}] b) {{
    more = Identity(go) x = Gather(xs, i) {BODY} }}>
  y = ReduceMean <keepdims = 0> (last)
}}""",
}


def build(kind, every, steps, batch, width):
    """The gradient with respect to the initial state and the weights."""
    text = MODELS[kind].format(T="T" if steps is None else steps, B=batch, N=width, BODY=BODY)
    primal = parser.parse_model('<ir_version: 10, opset_import: ["" : 18]>' + text)
    return gradient(primal, inputs=["h", "w", "v"], checkpoint=None if every == "none" else every)


def run(kind, every, steps, batch, width):
    """Run one model and print what it took, as JSON."""
    model = build(kind, every, steps, batch, width)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {
        i.name: (rng.standard_normal(i.shape) / i.shape[-1] ** 0.5).astype(np.float32) for i in session.get_inputs()
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    results = session.run(None, feeds)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    check = [float(np.abs(r).sum()) for r in results]
    nodes = sum(1 for _ in _walk(model.graph))
    print(json.dumps({"megabytes": peak / 1024, "seconds": seconds, "nodes": nodes, "check": check}))


def _walk(graph: onnx.GraphProto):
    for n in graph.node:
        yield n
        for a in n.attribute:
            if a.HasField("g"):
                yield from _walk(a.g)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--steps", type=int, default=2000)
    args.add_argument("--batch", type=int, default=32)
    args.add_argument("--width", type=int, default=128)
    args.add_argument("--every", default="none,1,10,auto,200")
    args.add_argument("--kind", default="scan,loop")
    args.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.one:
        run(*args.one, args.steps, args.batch, args.width)
        return
    print("loop  every   nodes   peak MB   ratio  seconds  ratio")
    for kind in args.kind.split(","):
        first = None
        for every in args.every.split(","):
            command = [sys.executable, __file__, "--one", kind, every]
            command += ["--steps", str(args.steps), "--batch", str(args.batch), "--width", str(args.width)]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            first = first or found
            np.testing.assert_allclose(found["check"], first["check"], rtol=1e-3)
            memory, seconds = found["megabytes"], found["seconds"]
            print(
                f"{kind:5s} {every:5s} {found['nodes']:7d} {memory:9.1f} {memory / first['megabytes']:7.3f} "
                f"{seconds:8.2f} {seconds / first['seconds']:6.2f}"
            )


if __name__ == "__main__":
    main()
