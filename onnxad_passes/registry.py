"""The passes there are, by name: ours, and what other packages offer as entry points (onnxad.passes)."""

from __future__ import annotations

from dataclasses import MISSING
from functools import cache

from onnxad_ir.diagnostics import UsageError, did_you_mean
from onnxad_passes.manager import Pass


@cache
def all_passes() -> dict[str, type[Pass]]:
    """Every known pass class by name. An entry point may not take the name of another pass."""
    from importlib.metadata import entry_points

    found = dict(_ours())
    for point in entry_points(group="onnxad.passes"):
        try:
            cls = point.load()
        except Exception as e:  # a module of others may raise anything as it is imported
            raise UsageError(f"pass {point.name!r} cannot be loaded from {point.value}: {e}") from None
        if not (isinstance(cls, type) and issubclass(cls, Pass)):
            raise UsageError(f"entry point {point.name!r} of group onnxad.passes is no Pass class: {cls!r}")
        if found.setdefault(cls.name, cls) is not cls:
            raise UsageError(f"two passes are called {cls.name!r}; one comes from the entry point {point.value}")
    return found


@cache
def _ours() -> dict[str, type[Pass]]:
    from onnxad_passes.builtin import BUILTIN

    return {p.name: p for p in BUILTIN}


def lookup(name: str) -> type[Pass]:
    """The pass class of a name; UsageError, with the nearest name, where there is none.

    Entry points are loaded for other names than ours only: a package that is broken breaks nothing else.
    """
    if name in _ours():
        return _ours()[name]
    passes = all_passes()
    if name in passes:
        return passes[name]
    hint = did_you_mean(name, passes)
    raise UsageError(f"there is no pass called {name!r}{hint} (known: {', '.join(sorted(passes))})")


def list_passes() -> str:
    """Every pass with its options and prerequisites, as text for people."""
    from onnxad_passes.pipeline import describe_options, print_value

    blocks = []
    for name, cls in sorted(all_passes().items()):
        summary, options = describe_options(cls)
        lines = [name, *_wrapped(summary, "    ")]
        if cls.requires:
            lines.append(f"    needs: {', '.join(cls.requires)}")
        for o in options:
            told = o.default in (None, (), MISSING) or "default" in o.help
            default = "" if told else f" Default: {print_value(o.default)}."
            lines += _wrapped(f"{o.name}={o.form}  {o.help}{default}".rstrip(), "    ", "        ")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _wrapped(text: str, indent: str, hanging: str | None = None) -> list[str]:
    from textwrap import wrap

    return wrap(text, 100, initial_indent=indent, subsequent_indent=indent if hanging is None else hanging)
