"""Value and gradient in ONNX Runtime against PyTorch eager and against onnx-ad: one thread, same weights, one run.

    pip install ".[compare]"
    OMP_NUM_THREADS=1 python benchmarks/run_time.py [--models mlp,gpt] [--opset 18]

The gradient is that of every parameter (of the inputs, where a model has none) against a fixed cotangent. PyTorch and
ONNX Runtime are timed in turn, round by round; printed are medians in milliseconds, the ratios, and the largest
relative error against autograd.
"""

import argparse
import importlib.util
import os
import time
import warnings
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
import torch  # noqa: E402
from models import zoo  # noqa: E402

torch.set_num_threads(1)


def export(module, inputs, opset):
    """The module as an ONNX model."""
    program = torch.onnx.export(module, inputs, dynamo=True, opset_version=opset, verbose=False, optimize=False)
    return program.model_proto


def session(model):
    """An ONNX Runtime session with one thread and all optimizations."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ours(model, wrt, feeds, seed):
    """The reverse model of onnxad, and its feeds."""
    from onnxad_passes import reverse

    y = model.graph.output[0].name
    return reverse(model, inputs=wrt, layout="single"), {**feeds, f"adj_{y}": seed}


def theirs(model, wrt, feeds, seed):
    """The reverse model of onnx-ad, which differentiates inputs only: the parameters are made inputs."""
    import onnx_ad

    promoted = onnx.ModelProto()
    promoted.CopyFrom(model)
    kept = [t for t in promoted.graph.initializer if t.name not in wrt]
    values = {}
    for t in promoted.graph.initializer:
        if t.name in wrt:
            values[t.name] = onnx.numpy_helper.to_array(t)
            promoted.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    del promoted.graph.initializer[:]
    promoted.graph.initializer.extend(kept)
    y = model.graph.output[0].name
    return onnx_ad.reverse(promoted, inputs=wrt, layout="onnx"), {**feeds, **values, f"adj_{y}": seed[..., None]}


def median_times(functions, rounds, seconds=3.0):
    """The median time of each function in milliseconds, timed in turn, in so many rounds and seconds at least."""
    for f in functions:
        f()
    times = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while len(times[0]) < rounds or time.perf_counter() < end:
        for f, ts in zip(functions, times, strict=True):
            start = time.perf_counter()
            f()
            ts.append(time.perf_counter() - start)
    return [1e3 * float(np.median(ts)) for ts in times]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="")
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    systems = {"onnxad": ours}
    if importlib.util.find_spec("onnx_ad") is not None:
        systems["onnx-ad"] = theirs
    print(
        f"{'model':10s} {'system':8s} {'torch ms':>9s} {'primal ms':>9s} {'ms':>9s} {'x torch':>8s} {'error':>8s}",
        "nodes",
    )
    models = zoo()
    for name in args.models.split(",") if args.models else models:
        module, inputs = models[name]
        module.eval()
        with torch.no_grad():  # no two parameters equal, so that the exporter cannot merge them
            for p in module.parameters():
                p.add_(0.01 * torch.randn_like(p))
        parameters = dict(module.named_parameters())
        xs = [x.clone().requires_grad_(not parameters and x.is_floating_point()) for x in inputs]
        with torch.no_grad():
            cotangent = torch.randn_like(module(*inputs))

        def autograd(module=module, xs=xs, parameters=parameters, cotangent=cotangent):
            for p in (*parameters.values(), *xs):
                p.grad = None
            module(*xs).backward(cotangent)

        model = export(module, inputs, args.opset)
        names = [i.name for i in model.graph.input]
        feeds = dict(zip(names, [x.numpy() for x in inputs], strict=True))
        primal = session(model)
        initializers = {t.name for t in model.graph.initializer}
        wrt = [n for n in parameters if n in initializers] or names
        autograd()
        want = {n: (parameters[n] if parameters else xs[names.index(n)]).grad.numpy() for n in wrt}
        for system, derive in systems.items():
            try:
                adjoint, full = derive(model, wrt, feeds, cotangent.numpy())
                run = session(adjoint)
                full = {k: v for k, v in full.items() if k in {i.name for i in run.get_inputs()}}
                outputs = [f"adj_{n}" for n in wrt]
                got = run.run(outputs, full)
            except Exception as error:  # a system that cannot do a model says why, the others go on
                print(f"{name:10s} {system:8s} {type(error).__name__}: {str(error).splitlines()[0][:90]}", flush=True)
                continue
            error = max(
                float(np.abs(g.reshape(want[n].shape) - want[n]).max() / (np.abs(want[n]).max() + 1e-12))
                for n, g in zip(wrt, got, strict=True)
            )
            t_torch, t_primal, t_ours = median_times(
                [autograd, partial(primal.run, None, feeds), partial(run.run, outputs, full)], args.rounds
            )
            nodes = f"{len(adjoint.graph.node)}/{len(model.graph.node)}"
            print(
                f"{name:10s} {system:8s} {t_torch:9.2f} {t_primal:9.2f} {t_ours:9.2f} {t_ours / t_torch:8.2f} "
                f"{error:8.1e} {nodes}",
                flush=True,
            )


if __name__ == "__main__":
    main()
