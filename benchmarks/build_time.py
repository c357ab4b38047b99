"""How long (in processor time) it takes to build a derivative model, and how large it is, against the primal's size.

    python benchmarks/build_time.py                       ours, and onnx-ad where it is installed, in one run
    python benchmarks/build_time.py --sizes 1000,100000 --system onnxad --mode forward

The primal is a chain of MatMul, Add, Relu blocks of width 16, differentiated with respect to its input.
"""

import argparse
import importlib.util
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def chain(count):
    """A model of about `count` nodes."""
    rng = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(count // 3):
        weights.append(numpy_helper.from_array((rng.standard_normal((16, 16)) / 4).astype(np.float32), f"w{i}"))
        weights.append(numpy_helper.from_array(np.zeros(16, np.float32), f"b{i}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]))
        nodes.append(helper.make_node("Relu", [f"a{i}"], [f"r{i}"]))
        x = f"r{i}"
    nodes.append(helper.make_node("ReduceSum", [x], ["y"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def derive(system, mode, model):
    """The derivative model of a system."""
    if system == "onnxad":
        import onnxad_passes

        return getattr(onnxad_passes, mode)(model, layout="single")
    import onnx_ad

    return getattr(onnx_ad, mode)(model, layout="onnx")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--system", default="onnxad,onnx-ad")
    parser.add_argument("--mode", default="reverse", choices=["reverse", "forward"])
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(f"{'system':8s} {'nodes':>8s} {'us/node':>8s} {'derivative nodes/node':>22s}")
    for size in map(int, args.sizes.split(",")):
        model = chain(size)
        for system in args.system.split(","):
            if system == "onnx-ad" and importlib.util.find_spec("onnx_ad") is None:
                continue
            best = float("inf")
            for _ in range(args.repeat):
                start = time.process_time()
                result = derive(system, args.mode, model)
                best = min(best, time.process_time() - start)
            count = len(model.graph.node)
            ratio = len(result.graph.node) / count
            print(f"{system:8s} {count:8d} {1e6 * best / count:8.0f} {ratio:22.2f}", flush=True)
            onnx.checker.check_model(result)


if __name__ == "__main__":
    main()
