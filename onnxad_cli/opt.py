"""onnxad-opt: read a model, run passes, write it."""

from __future__ import annotations

import argparse
import io
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

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

A pass whose result another needs runs by itself before it. Files are read and written by their suffix: .onnx
and .pb (binary), .onnxtxt, .json and .oir (the IR's own text). "-" is a pipe: what is read from standard input
is recognised by how it begins, what is written to standard output is binary unless --to says otherwise.
Without -o, the IR is printed for people, big constants left out, unless --check or --report asks for a table.
"""
_EPILOG = """\
Results go to standard output, everything else to standard error. The output file is written whole or not at
all. Exit status: 0 done; 1 the model or the pipeline cannot be done, or --check found a wrong derivative; 2
bad usage: an option, a pass, a file or a value that is not there.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    debug = "--debug" in (sys.argv if argv is None else argv)
    if sys.stderr is None:  # closed: talk is lost, rather than told to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull)  # noqa: SIM115  (what is written to it fails, and says so)
    try:
        status = _run(_parse(argv))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of our output has seen enough
        _abandon_stdout()
        return FAILED
    except KeyboardInterrupt:
        return 130
    except SystemExit as e:  # --help
        return int(e.code or 0)
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _explain(error)


def _abandon_stdout() -> None:
    """Have nothing that is still to be written raise once more when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _explain(error: Exception) -> int:
    from onnxad_ir.diagnostics import OnnxadError, UsageError

    if isinstance(error, UsageError):
        return _fail(str(error), USAGE)
    if isinstance(error, OnnxadError):
        return _fail(str(error), FAILED)
    if isinstance(error, io.UnsupportedOperation):
        return _fail("standard output is closed", FAILED)
    if isinstance(error, OSError):
        if error.filename is None:
            _abandon_stdout()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror or error}", FAILED)
    if isinstance(error, MemoryError):
        return _fail("out of memory", FAILED)
    whose = "onnxad"
    inside = ""
    if isinstance(error, _PassFailed):
        module = type(error.culprit).__module__
        whose = "onnxad" if module.startswith("onnxad_") else module
        inside = f" in pass {error.culprit.name!r}"
        error = error.error
    what = f"{type(error).__name__}: {error}".strip()
    return _fail(
        f"internal error{inside}, {what}\nThis is a fault of {whose}; --debug shows where it happened.", FAILED
    )


class _PassFailed(Exception):
    """A pass raised what no pass should."""

    def __init__(self, culprit: Pass, error: Exception):
        super().__init__(str(error))
        self.culprit = culprit
        self.error = error


def _fail(message: str, status: int) -> int:
    print(f"onnxad-opt: error: {message}", file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """Errors in one line, raised like all others."""

    def error(self, message: str) -> NoReturn:
        from onnxad_ir.diagnostics import UsageError

        raise UsageError(f"{message} (--help lists the options)")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments. Raises UsageError for those that are unknown, or say nothing together."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    for word in rest:
        if not word.startswith("-"):
            parser.error(f"one model is read, {args.model!r}, so what is {word!r}? -o FILE names the output")
        known = [s for a in parser._actions for s in a.option_strings if s.startswith("--")]
        parser.error(f"unrecognized arguments: {word}{_near(word.partition('=')[0], known)}")
    if not args.check:
        for option in ("dim", "check_inputs", "check_engine"):
            if getattr(args, option):
                parser.error(f"--{option.replace('_', '-')} says how to check: add --check")
    if args.external_data is not None and args.output is None:
        parser.error("--external-data says how to write: add -o FILE")
    return args


def _near(option: str, known: Sequence[str]) -> str:
    from onnxad_ir.diagnostics import did_you_mean

    return did_you_mean(option, known)


def _parser() -> argparse.ArgumentParser:
    p = _Parser(
        prog="onnxad-opt",
        usage="onnxad-opt [options] [model]",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    formats = ("onnx", "onnxtxt", "json", "oir")
    p.add_argument("model", nargs="?", help='the file to read, "-" for standard input')
    p.add_argument("-o", "--output", metavar="FILE", help='where to write, "-" for standard output')
    p.add_argument("--from", dest="source", choices=formats, help="format of the model read, whatever its suffix")
    p.add_argument("--to", dest="target", choices=formats, help="format of the model written, whatever its suffix")
    p.add_argument(
        "--external-data",
        choices=("keep", "copy", "write"),
        help="weights in files of their own: keep (default) refers to them where they are, which is the output's "
        "folder or below; copy puts copies there; write does, and moves large weights out of the model, "
        "into <output>.data",
    )
    p.add_argument("--version", action="store_true", help="print the version")
    p.add_argument("--debug", action="store_true", help="show the traceback of an error")

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
    g.add_argument(
        "--print-ir-after",
        action="append",
        default=[],
        metavar="PASS",
        help="print the IR after a pass; may be repeated",
    )
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
        help="compare each derivative with finite differences of the model in a runtime; without a derivative pass, "
        "those of both modes, after the passes that there are",
    )
    g.add_argument("--check-inputs", metavar="FILE", help="a .npz file of inputs to check at (default: random ones)")
    g.add_argument(
        "--check-engine",
        choices=("auto", "onnxruntime", "reference"),
        help="what runs the models (default: auto, in double precision where ONNX Runtime or else onnx's reference "
        "evaluator can)",
    )
    g.add_argument(
        "--dim",
        action="append",
        default=[],
        metavar="NAME=N",
        help="extent of a symbolic dimension to check at; may be repeated",
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
    from onnxad_ir.diagnostics import OnnxadError, UsageError
    from onnxad_passes.manager import PassManager
    from onnxad_passes.pipeline import parse_pipeline
    from onnxad_passes.registry import lookup

    passes = [p for text in args.passes for p in parse_pipeline(text)]
    if args.check and any(p.name == "hessian" for p in passes):
        raise UsageError(
            "--check has no differences of second order; a Hessian is gradient, then jacobian{outputs=grad_x inputs=x}"
        )
    if args.check and any(getattr(p, "straight_through", ()) for p in passes):
        raise UsageError(
            "--check compares with finite differences, which see the steps that straight-through skips: leave one out"
        )
    dims, feeds = _dims(args.dim), files.read_arrays(args.check_inputs) if args.check_inputs else None
    target = None if args.output is None else files.check_target(args.output, args.target, args.external_data)

    blame = instruments.Blame()
    watchers: list[Any] = [blame]
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
    plan = list(dict.fromkeys(p.name for p in manager.plan()))
    for name in args.print_ir_after:
        if lookup(name).name not in plan:
            raise UsageError(f"--print-ir-after: no pass {name!r} runs ({', '.join(plan) or 'the pipeline is empty'})")
    model = files.read(args.model, args.source)
    if target is not None:
        files.check_data(model, args.output, args.external_data)
    bar = instruments.Progress(sys.stderr, len(manager.plan())) if instruments.at_terminal() else None
    if bar is not None:
        manager.instruments = (bar, *watchers)
    loaded = _copy(model) if args.check else None
    # tables must not end up in a model that is being piped on
    out = sys.stderr if args.output == files.PIPE else sys.stdout
    start = time.perf_counter()
    try:
        manager.run(model)
    except (OnnxadError, OSError, MemoryError):
        raise
    except Exception as error:
        raise error if blame.culprit is None else _PassFailed(blame.culprit, error) from error
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
        files.write(model, files.PIPE, files.check_target(files.PIPE, format))
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
    return p.outputs


def _report(model: Model, points: list[tuple[Any, Model]]) -> str:
    """The report of each derivative pass, on the model as it found it."""
    from onnxad_passes.report import report_derivative
    from onnxad_rules.straight_through import straight_through

    if not points:
        from onnxad_passes.manager import PassManager
        from onnxad_passes.registry import lookup

        model = _copy(model)
        PassManager([lookup("fold-shapes")()]).run(model)
        return str(report_derivative(model))
    return "\n\n".join(
        f"{p.name}: {report_derivative(m, p.inputs, _sinks(p), straight_through(p.straight_through, p.rules))}"
        for p, m in points
    )


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
    from onnxad_passes.forward import Forward
    from onnxad_passes.reverse import Reverse

    jobs: list[tuple[Model, Model | None, Any]] = [(loaded, None, None)]
    if not points and args.passes:  # derivatives of the model they left, which should be those of the model before
        before = loaded if _same_signature(loaded, final) else final
        jobs = [(before, _derived(final, p), p) for p in (Forward(), Reverse())]
    elif points:
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
            engine=args.check_engine or "auto",
            progress=None if bar is None else lambda done, total: bar.show("check", done, total),
        )
        if bar is not None:
            bar.clear()
        print(report if p is None or len(jobs) == 1 else f"{p.name}:\n{report}", file=out, flush=True)
        status = status if report.ok else FAILED
    if status != OK:
        _fail("a derivative is wrong" + ("" if args.output is None else ", so nothing is written"), FAILED)
    return status


def _same_signature(a: Model, b: Model) -> bool:
    """True where two models take and give values of the same names and ranks."""
    ends = [[(v.name, v.rank) for v in (*m.graph.inputs, *m.graph.outputs)] for m in (a, b)]
    return ends[0] == ends[1]


def _derived(model: Model, p: Pass) -> Model:
    from onnxad_passes.manager import PassManager

    model = _copy(model)
    PassManager([p]).run(model)
    return model


if __name__ == "__main__":
    sys.exit(main())
