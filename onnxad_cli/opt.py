"""onnxad-opt: read a model, run passes, write it."""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxad_cli.instruments import Progress
    from onnxad_ir.core import Model
    from onnxad_passes.manager import Pass

OK, FAILED, USAGE = 0, 1, 2

_DESCRIPTION = """\
Read an ONNX model, run passes over it in the order given, and write it.

  onnxad-opt model.onnx --pass=reverse -o adj.onnx
  onnxad-opt model.onnx --pass='gradient{inputs=w,b}' --pass=simplify -o grad.onnx --check
  onnxad-opt model.onnx --pass-pipeline='inline-functions,fold-shapes,reverse{inputs=x,w}' -o adj.onnx

A pass whose result another needs runs by itself before it. Files are read and written by their suffix:
.onnx (binary), .onnxtxt, .json and .oir (the IR's own text). "-" is a pipe: what is read from standard input
is recognised by its first byte, what is written to standard output is binary unless --to says otherwise.
Without -o, the IR is printed for people, big constants left out, unless --check or --report asks for a table.
"""
_EPILOG = """\
Results go to standard output, everything else to standard error. The output file is written whole or not at
all. Exit status: 0 done; 1 the model or the pipeline cannot be done, or --check found a wrong derivative; 2
bad usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    try:
        args = _parser().parse_args(argv)
    except SystemExit as e:
        return int(e.code or 0)
    try:
        return _run(args)
    except BrokenPipeError:  # the reader of our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if args.debug:
            raise
        return _explain(error)


def _explain(error: Exception) -> int:
    from onnxad_ir.diagnostics import OnnxadError, UsageError

    if isinstance(error, UsageError):
        return _fail(str(error), USAGE)
    if isinstance(error, OnnxadError):
        return _fail(str(error), FAILED)
    if isinstance(error, OSError):
        return _fail(f"{error.filename or 'file'}: {error.strerror or error}", FAILED)
    if isinstance(error, MemoryError):
        return _fail("out of memory", FAILED)
    what = f"{type(error).__name__}: {error}".strip()
    return _fail(f"internal error, {what}\nThis is a fault of onnxad; --debug shows where it happened.", FAILED)


def _fail(message: str, status: int) -> int:
    print(f"onnxad-opt: error: {message}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="onnxad-opt",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    formats = ("onnx", "onnxtxt", "json", "oir")
    p.add_argument("model", nargs="?", help='the model to read, "-" for standard input')
    p.add_argument("-o", "--output", metavar="FILE", help='where to write, "-" for standard output')
    p.add_argument("--from", dest="source", choices=formats, help="format of the model read, whatever its suffix")
    p.add_argument("--to", dest="target", choices=formats, help="format of the model written, whatever its suffix")
    p.add_argument(
        "--external-data",
        choices=("keep", "copy", "write"),
        default="keep",
        help="weights in files of their own: refer to them where they are (default), copy them beside the "
        "output, or write all weights to a new file <output>.data",
    )
    p.add_argument("--version", action="store_true", help="print the version")
    p.add_argument("--debug", action="store_true", help="show tracebacks")

    g = p.add_argument_group("passes")
    text = 'a pass, with options in braces: reverse, "reverse{inputs=x,w outputs=y}"; may be repeated'
    g.add_argument("--pass", dest="passes", action="append", default=[], metavar="PASS", help=text)
    g.add_argument("--pass-pipeline", dest="passes", action="append", metavar="TEXT", help="passes separated by commas")
    g.add_argument("--list-passes", action="store_true", help="list the passes and their options")
    g.add_argument(
        "--list-rules",
        nargs="?",
        const="text",
        choices=("text", "markdown"),
        metavar="FORMAT",
        help="list the operators and their derivative rules (as text, or --list-rules=markdown)",
    )

    g = p.add_argument_group("watching (on standard error)")
    g.add_argument("--print-ir-after", action="append", default=[], metavar="PASS", help="print the IR after a pass")
    g.add_argument("--print-ir-after-all", action="store_true", help="after every pass")
    g.add_argument("--print-ir-after-change", action="store_true", help="after every pass that changed the model")
    g.add_argument("--print-ir-after-failure", action="store_true", help="as a failing pass left it")
    g.add_argument("--no-verify-each", action="store_true", help="do not verify the model between passes")
    g.add_argument("--timing", action="store_true", help="print how long each pass took")

    g = p.add_argument_group("derivatives (tables on standard output)")
    g.add_argument(
        "--report",
        action="store_true",
        help="print what is differentiated, what is zero by convention and what is missing",
    )
    g.add_argument(
        "--check",
        action="store_true",
        help="compare each derivative with finite differences in a runtime; without a derivative pass, both "
        "modes of the model",
    )
    g.add_argument("--check-inputs", metavar="FILE", help="a .npz file of inputs to check at (default: random ones)")
    g.add_argument(
        "--check-engine",
        choices=("auto", "onnxruntime", "reference"),
        default="auto",
        help="what runs the models (default: ONNX Runtime, else onnx's reference evaluator)",
    )
    g.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N",
        help="extent of a symbolic dimension to check at",
    )
    return p


def _run(args: argparse.Namespace) -> int:
    if args.version:
        import onnxad_passes

        print(onnxad_passes.__version__)
        return OK
    if args.list_passes:
        from onnxad_passes.registry import list_passes

        print(list_passes())
        return OK
    if args.list_rules:
        from onnxad_rules.coverage import coverage, markdown, text

        print({"text": text, "markdown": markdown}[args.list_rules](coverage()))
        return OK
    if args.model is None:
        return _fail("name a model to read (or - for standard input); --help tells the rest", USAGE)
    from onnxad_passes.api import paused_gc

    with paused_gc(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*format is experimental")  # of onnx, about its text
        return _optimize(args)


def _optimize(args: argparse.Namespace) -> int:
    from onnxad_cli import files, instruments
    from onnxad_ir.diagnostics import UsageError
    from onnxad_passes.manager import PassManager
    from onnxad_passes.pipeline import parse_pipeline
    from onnxad_passes.registry import lookup

    passes = [p for text in args.passes for p in parse_pipeline(text)]
    if args.check and any(p.name == "hessian" for p in passes):
        raise UsageError(
            "--check has no differences of second order; a Hessian is gradient, then jacobian{outputs=grad_x inputs=x}"
        )
    for name in args.print_ir_after:
        lookup(name)
    dims, feeds = _dims(args.dim), files.read_arrays(args.check_inputs) if args.check_inputs else None
    target = files.check_target(args.output, args.target) if args.output else None
    model = files.read(args.model, args.source)

    watchers: list[Any] = []
    timing = instruments.Timing() if args.timing else None
    if timing is not None:
        watchers.append(timing)
    points = instruments.Checkpoints(_is_derivative) if args.check or args.report else None
    if points is not None:
        watchers.append(points)
    watchers.append(
        instruments.PrintIr(
            sys.stderr,
            frozenset(args.print_ir_after),
            args.print_ir_after_all,
            args.print_ir_after_change,
            args.print_ir_after_failure,
        )
    )
    # no verification after a pass means none before the first either: the model is taken as it is
    manager = PassManager(passes, verify_each=not args.no_verify_each, instruments=watchers)
    bar = instruments.Progress(sys.stderr, len(manager.plan())) if instruments.at_terminal() else None
    if bar is not None:
        manager.instruments = (bar, *watchers)
    loaded = _copy(model) if args.check else None
    # tables must not end up in a model that is being piped on
    out = sys.stderr if args.output == files.PIPE else sys.stdout
    start = time.perf_counter()
    try:
        manager.run(model)
    finally:
        if bar is not None:
            bar.clear()
        if timing is not None:
            print(timing.table(time.perf_counter() - start), file=sys.stderr)
        if args.report and points is not None and (points.found or sys.exc_info()[0] is None):
            print(_report(model, points.found), file=out)
    status = OK
    if loaded is not None and points is not None:
        status = _check(args, loaded, model, points.found, dims, feeds, bar, out)
    if status == OK and target is not None:
        files.write(model, args.output, target, args.external_data)
    elif status == OK and not (args.check or args.report):
        _print(model, args.target)
    return status


def _print(model: Model, format: str | None) -> None:
    from onnxad_cli import files
    from onnxad_ir.printer import print_model

    if format is not None:
        files.write(model, files.PIPE, files.check_target(files.PIPE, format), "keep")
    else:
        sys.stdout.write(print_model(model, large="elide"))
        sys.stdout.flush()


def _copy(model: Model) -> Model:
    from onnxad_ir.core import clone_model

    return clone_model(model)


def _is_derivative(p: Pass) -> bool:
    return p.name in ("forward", "reverse", "gradient", "jacobian", "hessian")


def _dims(items: Sequence[str]) -> dict[str, int]:
    from onnxad_ir.diagnostics import UsageError

    out = {}
    for item in items:
        name, sep, number = item.partition("=")
        if not name or not sep or not number.isdecimal():
            raise UsageError(f"--dim takes NAME=N, the extent of a symbolic dimension, not {item!r}")
        out[name] = int(number)
    return out


def _sinks(p: Any) -> tuple[str, ...] | None:
    """The outputs that a derivative pass differentiates, None for its default."""
    if p.name in ("gradient", "hessian"):
        return None if p.output is None else (p.output,)
    outputs: tuple[str, ...] | None = p.outputs
    return outputs


def _report(model: Model, points: list[tuple[Any, Model]]) -> str:
    """The report of each derivative pass, on the model as it found it."""
    from onnxad_passes.report import report_derivative

    if not points:
        from onnxad_passes.manager import PassManager
        from onnxad_passes.registry import lookup

        model = _copy(model)
        PassManager([lookup("fold-shapes")()]).run(model)
        return str(report_derivative(model))
    return "\n\n".join(f"{p.name}: {report_derivative(m, p.inputs, _sinks(p), p.rules)}" for p, m in points)


def _check(
    args: argparse.Namespace,
    loaded: Model,
    final: Model,
    points: list[tuple[Any, Model]],
    dims: dict[str, int],
    feeds: dict[str, Any] | None,
    bar: Progress | None,
    out: Any,
) -> int:
    """Check each derivative pass: the model it found, or the one that was read, against the one it left."""
    from onnxad_passes.check import check_derivatives

    jobs: list[tuple[Model, Model | None, Any]] = [(loaded, None, None)]
    if points:
        befores = [m for _, m in points]
        g, first = loaded.graph, points[0][0]
        named = {*(first.inputs or ()), *(_sinks(first) or ())}
        as_it_was = [v.rank for v in g.inputs] == [v.rank for v in befores[0].graph.inputs]
        if as_it_was and named <= {v.name for v in (*g.inputs, *g.constants, *g.outputs)}:
            befores[0] = loaded  # the author's own model: what ran before the derivative is checked with it
        afters = [m for _, m in points[1:]] + [final]
        jobs = [(b, a, p) for (p, _), b, a in zip(points, befores, afters, strict=True)]
    status = OK
    for before, after, p in jobs:
        report = check_derivatives(
            before,
            after,
            mode=None if p is None else p.name,
            inputs=None if p is None else p.inputs,
            outputs=None if p is None else _sinks(p),
            layout=getattr(p, "layout", "single"),
            feeds=feeds,
            dims=dims,
            engine=args.check_engine,
            progress=None if bar is None else lambda done, total: bar.show("check", done, total),
        )
        if bar is not None:
            bar.clear()
        print(report if p is None or len(jobs) == 1 else f"{p.name}:\n{report}", file=out, flush=True)
        status = status if report.ok else FAILED
    if status != OK:
        print("onnxad-opt: error: a derivative is wrong, so nothing is written", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
