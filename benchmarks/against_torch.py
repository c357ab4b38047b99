"""Derivatives of networks exported from PyTorch against autograd, by either exporter and at several opsets.

    pip install ".[compare]"
    python benchmarks/against_torch.py [--only PART] [--exporters dynamo-18,legacy-13-dynamic]

A network is exported, differentiated in both modes with respect to every floating input and parameter, run in ONNX
Runtime, and compared with autograd: reverse mode element by element, forward mode by its inner product with the
cotangent. A network that the exporter cannot export is said to be that.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime as ort  # noqa: E402
import torch  # noqa: E402
from torch_networks import Of, WithWeights, networks  # noqa: E402

from onnxad_passes import forward, reverse  # noqa: E402

torch.set_num_threads(1)
TOLERANCE = 2e-3
EXPORTERS = "dynamo-18,dynamo-20,dynamo-23,dynamo-18-dynamic,legacy-11,legacy-17,legacy-13-dynamic"


class ExportedWrong(Exception):
    """The exported model computes something else than the module, or nothing in this runtime."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Nothing is printed inside, by C++ either."""
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), 1)
        os.dup2(null.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        for to, fd in enumerate(kept, 1):
            os.dup2(fd, to)
            os.close(fd)


def export(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], exporter: str) -> onnx.ModelProto:
    """The module as an ONNX model: `dynamo-<opset>` or `legacy-<opset>`, `-dynamic` behind it for free extents."""
    kind, opset, *free = exporter.split("-")
    with quiet():
        if kind == "dynamo":
            shapes = tuple(dict.fromkeys(range(x.ndim), torch.export.Dim.AUTO) for x in inputs) if free else None
            if shapes is not None and isinstance(module, Of | WithWeights):
                shapes = (shapes,)  # of the one variadic argument
            program = torch.onnx.export(
                module, inputs, dynamo=True, opset_version=int(opset), verbose=False, dynamic_shapes=shapes
            )
            return program.model_proto
        buffer = io.BytesIO()
        names = [f"x{i}" for i in range(len(inputs))]
        axes = {n: dict(enumerate(f"{n}_{k}" for k in range(x.ndim))) for n, x in zip(names, inputs, strict=True)}
        torch.onnx.export(
            module,
            inputs,
            buffer,
            dynamo=False,
            opset_version=int(opset),
            do_constant_folding=False,
            input_names=names,
            dynamic_axes=axes if free else None,
        )
        return onnx.load_from_string(buffer.getvalue())


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray], names: list[str]) -> list[np.ndarray]:
    """Results by name, in ONNX Runtime."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    have = {i.name for i in session.get_inputs()}
    return session.run(names, {k: v for k, v in feeds.items() if k in have})


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference against the largest element, or against one where all are smaller."""
    if a.shape != b.shape:
        return float("inf")
    error = np.abs(a.astype(np.float64) - b).max(initial=0) / max(1.0, np.abs(b).max(initial=0))
    return float(np.nan_to_num(error, nan=np.inf))


def faithful(
    module: torch.nn.Module,
    inputs: tuple[torch.Tensor, ...],
    model: onnx.ModelProto,
    parameters: dict[str, torch.nn.Parameter],
    feeds: dict[str, np.ndarray],
    outputs: dict[str, int],
) -> dict[str, torch.nn.Parameter]:
    """Those parameters through which the model is the module's: a use of the others was folded by the exporter."""

    def agrees(names: list[str]) -> bool:
        moved = onnx.ModelProto()
        moved.CopyFrom(model)
        with torch.no_grad():
            away = {n: parameters[n] + 0.05 * torch.randn_like(parameters[n]) for n in names}
            ys = flat(torch.func.functional_call(module, away, inputs))
        for t in moved.graph.initializer:
            if t.name in away:
                t.CopyFrom(onnx.numpy_helper.from_array(away[t.name].numpy(), t.name))
        got = run(moved, feeds, list(outputs))
        return all(difference(g, ys[i].numpy()) < TOLERANCE for g, i in zip(got, outputs.values(), strict=True))

    if not parameters or agrees(list(parameters)):
        return parameters
    return {n: p for n, p in parameters.items() if agrees([n])}


def flat(ys: object) -> list[torch.Tensor]:
    """The tensors among a module's results."""
    return [y for y in (ys if isinstance(ys, tuple | list) else [ys]) if isinstance(y, torch.Tensor)]


def compare(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], model: onnx.ModelProto) -> tuple[float, float]:
    """Errors of forward and reverse mode."""
    parameters = {k: p for k, p in module.named_parameters() if p.requires_grad}
    xs = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    ys = flat(module(*xs))
    floating = [i for i, y in enumerate(ys) if y.is_floating_point()]
    torch.manual_seed(1)
    cotangents = [torch.randn_like(ys[i]) for i in floating]
    outputs = [o.name for o in model.graph.output]
    values = [ys[i].detach().numpy() for i in floating]
    initializers = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    fed = [i.name for i in model.graph.input if i.name not in initializers]
    kept = dict(zip(fed, xs, strict=True))
    feeds = {n: x.detach().numpy() for n, x in kept.items()}
    try:
        found = run(model, feeds, [outputs[i] for i in floating])
    except Exception as error:
        raise ExportedWrong("ONNX Runtime does not run the model") from error
    if max(map(difference, found, values)) > TOLERANCE:
        raise ExportedWrong("the model computes something else")
    wanted = {n: x for n, x in kept.items() if x.requires_grad}
    # (a weight into which the exporter has folded others keeps its name)
    named = {n: p for n, p in parameters.items() if np.array_equal(initializers.get(n), p.detach().numpy())}
    wanted |= faithful(module, inputs, model, named, feeds, {outputs[i]: i for i in floating})
    grads = torch.autograd.grad([ys[i] for i in floating], list(wanted.values()), cotangents, allow_unused=True)
    want = [np.zeros(tuple(v.shape)) if g is None else g.numpy() for v, g in zip(wanted.values(), grads, strict=True)]
    seeds = {f"adj_{outputs[i]}": c.numpy() for i, c in zip(floating, cotangents, strict=True)}
    names = list(wanted)
    got = run(reverse(model, inputs=names, layout="single"), {**feeds, **seeds}, [f"adj_{n}" for n in names])
    back = max(map(difference, got, want), default=0.0)
    rng = np.random.default_rng(0)
    ts = {n: rng.standard_normal(tuple(v.shape)).astype(np.float32) for n, v in wanted.items()}
    pushed = run(
        forward(model, inputs=names, layout="single"),
        {**feeds, **{f"fwd_{n}": t for n, t in ts.items()}},
        [f"fwd_{outputs[i]}" for i in floating],
    )
    terms = [w.astype(np.float64) * ts[n] for n, w in zip(names, want, strict=True)]
    expected = sum(float(t.sum()) for t in terms)
    product = sum(float(np.vdot(p.astype(np.float64), c.numpy())) for p, c in zip(pushed, cotangents, strict=True))
    size = max(1.0, abs(expected), float(np.sqrt(sum((t * t).sum() for t in terms))))
    return float(np.nan_to_num(abs(product - expected) / size, nan=np.inf)), back


def main() -> int:
    """Print a line per network and exporter; the exit status is the number of wrong or refused ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--exporters", default=EXPORTERS)
    parser.add_argument("-q", "--quiet", action="store_true", help="only what is not right")
    args = parser.parse_args()
    bad = right = 0
    torch.manual_seed(0)
    for name, make in networks().items():
        if args.only not in name:
            continue
        torch.manual_seed(0)
        module, inputs = make()
        module.eval()
        with torch.no_grad():  # no two parameters equal, so that the exporter cannot merge them
            for p in module.parameters():
                p.add_(0.01 * torch.randn_like(p))
        for exporter in args.exporters.split(","):
            start = time.perf_counter()
            try:
                model = export(module, inputs, exporter)
            except Exception as error:
                if not args.quiet:
                    print(f"{name:28s} {exporter:17s} not exported: {type(error).__name__}", flush=True)
                continue
            try:
                errors = compare(module, inputs, model)
            except ExportedWrong as error:
                if not args.quiet:
                    print(f"{name:28s} {exporter:17s} not exported: {error}", flush=True)
                continue
            except Exception as error:  # a network that cannot be done must not hide the others
                bad += 1
                what = " ".join(str(error).split())[:230]
                print(f"{name:28s} {exporter:17s} {type(error).__name__}: {what}", flush=True)
                continue
            ok = max(errors) <= TOLERANCE
            bad, right = bad + (not ok), right + ok
            if not ok or not args.quiet:
                spent = time.perf_counter() - start
                print(
                    f"{name:28s} {exporter:17s} {len(model.graph.node):4d} nodes {errors[0]:8.1e} {errors[1]:8.1e} "
                    f"{spent:5.1f} s {'ok' if ok else 'WRONG'}",
                    flush=True,
                )
    print(f"{right} right, {bad} wrong or refused")
    return bad


if __name__ == "__main__":
    sys.exit(main())
