"""What the command watches a pipeline with: dumps, timing, progress, and the models in between."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from onnxad_ir.core import Model, clone_model
from onnxad_ir.printer import print_model
from onnxad_passes.manager import Pass, Watcher


def count_nodes(model: Model) -> int:
    """The nodes of a model, those of regions and functions included."""
    return sum(1 for body in model.bodies() for _ in body.walk())


class PrintIr(Watcher):
    """Print the IR, big constants left out, after passes.

    `names`: after these; `every`: after all; `change`: after those that changed the model; `failure`: as a
    failing pass left it.
    """

    def __init__(self, out: TextIO, names: frozenset[str], every: bool, change: bool, failure: bool):
        self.out = out
        self.names = names
        self.every = every
        self.change = change
        self.failure = failure

    def after(self, p: Pass, model: Model, modified: bool, seconds: float) -> None:
        if self.every or p.name in self.names or (self.change and modified):
            self._print(f"IR after {p.name}" + ("" if modified else " (no change)"), model)

    def failed(self, p: Pass, model: Model, error: Exception) -> None:
        if self.failure:
            self._print(f"IR after {p.name} failed", model)

    def _print(self, title: str, model: Model) -> None:
        try:
            text = print_model(model, large="elide")
        except Exception as e:  # a pass that failed may leave anything behind; its own error is the one to show
            text = f"// the model cannot be printed: {e}\n"
        print(f"// ----- {title} -----\n{text}", file=self.out, flush=True)


class Timing(Watcher):
    """Seconds and node counts of each pass, verification not included."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float, int, int, bool]] = []
        self._nodes = 0

    def before(self, p: Pass, model: Model) -> None:
        self._nodes = count_nodes(model)

    def after(self, p: Pass, model: Model, modified: bool, seconds: float) -> None:
        self.rows.append((p.name, seconds, self._nodes, count_nodes(model), modified))

    def table(self, wall: float) -> str:
        """The times as text; `wall` is how long the whole pipeline took."""
        total = sum(r[1] for r in self.rows)
        rows: list[tuple[str, ...]] = [("pass", "seconds", "%", "nodes", "after", "us/node", "")]
        for name, seconds, old, new, modified in self.rows:
            share = 100 * seconds / total if total else 0.0
            each = f"{1e6 * seconds / old:.1f}" if old else "-"
            note = "" if modified else "no change"
            rows.append((name, f"{seconds:.4f}", f"{share:.1f}", str(old), str(new), each, note))
        rows.append(("total", f"{total:.4f}", "", "", "", "", f"{wall:.4f} s with verification"))
        return columns(rows, right=(1, 2, 3, 4, 5))


class Blame(Watcher):
    """Remembers which pass failed."""

    def __init__(self) -> None:
        self.culprit: Pass | None = None

    def failed(self, p: Pass, model: Model, error: Exception) -> None:
        self.culprit = p


class Progress(Watcher):
    """A bar on a terminal that shows which pass is running, once a pipeline takes long. Erases itself."""

    def __init__(self, out: TextIO, total: int, patience: float = 0.5):
        self.out = out
        self.total = total
        self.done = 0
        self.start = time.perf_counter()
        self.patience = patience
        self.shown = False

    def before(self, p: Pass, model: Model) -> None:
        self.show(p.name, self.done, self.total)

    def after(self, p: Pass, model: Model, modified: bool, seconds: float) -> None:
        self.done += 1

    def failed(self, p: Pass, model: Model, error: Exception) -> None:
        self.clear()

    def show(self, what: str, done: int, total: int) -> None:
        """Draw the bar, if the work has been going on for a while."""
        if time.perf_counter() - self.start < self.patience:
            return
        width = 24
        full = width * done // max(1, total)
        bar = "#" * full + "." * (width - full)
        self.out.write(f"\r\x1b[K[{bar}] {done}/{total} {what}")
        self.out.flush()
        self.shown = True

    def clear(self) -> None:
        """Take the bar off the screen."""
        if self.shown:
            self.out.write("\r\x1b[K")
            self.out.flush()
            self.shown = False


class Checkpoints(Watcher):
    """Copies of the model before each pass that `wanted` chooses; tensors are shared, not copied."""

    def __init__(self, wanted: Callable[[Pass], bool]):
        self.wanted = wanted
        self.found: list[tuple[Pass, Model]] = []

    def before(self, p: Pass, model: Model) -> None:
        if self.wanted(p):
            self.found.append((p, clone_model(model)))


def columns(rows: list[tuple[str, ...]], right: tuple[int, ...] = ()) -> str:
    """Rows of text as aligned columns; `right` are the positions of columns aligned to the right."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    lines = []
    for r in rows:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(r, widths, strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def at_terminal() -> bool:
    """True where a person reads standard error as it comes."""
    return sys.stderr.isatty()
