"""Pipelines as text, both ways: `inline-functions,fold-shapes,reverse{inputs=x,w layout=single},dce`.

Options follow the pass in braces, separated by spaces; their names are the pass's fields with "-" for "_". A
field that is a tuple takes a list separated by commas. A value, or an element of one, that holds a space, a
comma, a brace, an equals sign or a quote is written in double quotes, with backslash escapes.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from onnxad_ir.diagnostics import UsageError, did_you_mean
from onnxad_passes.manager import Pass
from onnxad_passes.registry import lookup

_WORD = re.compile(r"""("(?:[^"\\]|\\.)*"|[^\s,{}="]+)""")


def parse_pipeline(text: str) -> list[Pass]:
    """The passes of a pipeline text.

    Raises UsageError for a text that does not parse, an unknown pass or option (with the nearest name), or a
    value of the wrong type.
    """
    if not isinstance(text, str):
        raise TypeError(f"a pipeline is text, not {text!r}")
    scan = _Scanner(text)
    passes: list[Pass] = []
    scan.skip()
    while not scan.done:
        cls = lookup(scan.word("the name of a pass"))
        options: dict[str, list[str] | None] = {}
        if scan.take("{"):
            scan.skip()
            while not scan.take("}"):
                name = scan.word("the name of an option, or }")
                if name in options:
                    raise UsageError(f"option {name!r} of pass {cls.name!r} is given twice")
                options[name] = scan.values(name) if scan.take("=") else None
                scan.skip()
                if scan.done:
                    raise scan.error("}")
        passes.append(make_pass(cls, options))
        scan.skip()
        if scan.done:
            break
        if not scan.take(","):
            raise scan.error(", between passes")
        scan.skip()
        if scan.done:
            raise scan.error("the name of a pass")
    if not passes:
        raise UsageError("the pipeline is empty; name at least one pass")
    return passes


def print_pipeline(passes: Iterable[Pass]) -> str:
    """The text of a pipeline: what `parse_pipeline` reads back to equal passes. Defaults are left out."""
    out = []
    for p in passes:
        options = []
        for f in options_of(type(p)):
            value = getattr(p, f.name)
            if value != _default(f):
                options.append(f"{f.name.replace('_', '-')}={print_value(value)}")
        out.append(p.name + ("{" + " ".join(options) + "}" if options else ""))
    return ",".join(out)


def options_of(cls: type[Pass]) -> list[Field[Any]]:
    """The fields of a pass that text can set."""
    return [f for f in fields(cls) if f.init and f.metadata.get("option", True)]


@dataclass(frozen=True)
class Option:
    """An option of a pass: its name and form in text, what it means, and its default."""

    name: str
    form: str
    help: str
    default: Any


def describe_options(cls: type[Pass]) -> tuple[str, list[Option]]:
    """What a pass does, and its options, as its docstring and fields tell it.

    Options are explained in a docstring as `name: text`, after the summary.
    """
    doc = inspect.cleandoc(cls.__doc__ or "")
    chosen = options_of(cls)
    starts = {}
    for f in chosen:
        if m := re.search(rf"(?:^|[.)] |\n){re.escape(f.name)}: ", doc):
            starts[f.name] = (m.end() - len(f.name) - 2, m.end())
    cuts = sorted([s for s, _ in starts.values()] + [len(doc)])
    out = []
    for f in chosen:
        text = ""
        if f.name in starts:
            begin = starts[f.name][1]
            text = " ".join(doc[begin : next(c for c in cuts if c >= begin)].split())
        out.append(Option(f.name.replace("_", "-"), _form(str(f.type)), text, _default(f)))
    return " ".join(doc[: cuts[0]].split()), out


def _form(kind: str) -> str:
    if "tuple" in kind:
        return "a,b,..."
    if "bool" in kind:
        return "true|false"
    forms = [form for word, form in (("int", "N"), ("float", "X"), ("str", "text")) if word in kind]
    return "|".join(forms) or "text"


def make_pass(cls: type[Pass], options: Mapping[str, list[str] | None]) -> Pass:
    """A pass from the words of its options; None is a name alone, which is true where the option is true or false."""
    known = {f.name.replace("_", "-"): f for f in options_of(cls)}
    values: dict[str, Any] = {}
    for name, words in options.items():
        f = known.get(name.replace("_", "-"))
        if f is None:
            listed = ", ".join(known) or "none"
            raise UsageError(f"pass {cls.name!r} has no option {name!r}{did_you_mean(name, known)} (options: {listed})")
        values[f.name] = _convert(cls, name, str(f.type), words)
    return cls(**values)


def _convert(cls: type[Pass], name: str, kind: str, words: list[str] | None) -> Any:
    if words is None:
        if "bool" not in kind:
            raise UsageError(f"option {name!r} of pass {cls.name!r} takes a value: {name}={_form(kind)}")
        return True
    if "tuple" in kind:
        return tuple(words)
    if len(words) > 1:
        raise UsageError(f"option {name!r} of pass {cls.name!r} takes one value, not {len(words)}")
    word = words[0] if words else ""
    if "bool" in kind:
        if word.lower() in ("true", "1", "yes"):
            return True
        if word.lower() in ("false", "0", "no"):
            return False
        raise UsageError(f"option {name!r} of pass {cls.name!r} is true or false, not {word!r}")
    number = int if "int" in kind else float if "float" in kind else None
    if number is not None:
        try:
            return number(word)
        except ValueError:
            if "str" not in kind:
                raise UsageError(f"option {name!r} of pass {cls.name!r} is a number, not {word!r}") from None
    return word


def _default(f: Field[Any]) -> Any:
    if f.default is not MISSING:
        return f.default
    return f.default_factory() if f.default_factory is not MISSING else MISSING


def print_value(value: Any) -> str:
    """The value of an option as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(print_value(v) for v in value)
    text = str(value)
    return text if text and _WORD.fullmatch(text) and not text.startswith('"') else json.dumps(text)


class _Scanner:
    def __init__(self, text: str):
        self.text = text
        self.at = 0

    @property
    def done(self) -> bool:
        return self.at >= len(self.text)

    def skip(self) -> None:
        while not self.done and self.text[self.at].isspace():
            self.at += 1

    def take(self, char: str) -> bool:
        if self.text.startswith(char, self.at):
            self.at += 1
            return True
        return False

    def values(self, name: str) -> list[str]:
        """The values of an option; none where nothing follows its equals sign."""
        if _WORD.match(self.text, self.at) is None:
            return []
        found = [self.word(f"a value for {name}")]
        while self.take(","):
            found.append(self.word(f"another value for {name}"))
        return found

    def word(self, expected: str) -> str:
        m = _WORD.match(self.text, self.at)
        if m is None:
            raise self.error('a closing quote "' if self.text.startswith('"', self.at) else expected)
        w = m.group()
        if w.startswith('"'):
            try:
                w = str(json.loads(w, strict=False))
            except ValueError:
                raise self.error(r"a string whose backslashes are escapes (\\ is a backslash)") from None
        self.at = m.end()
        return w

    def error(self, expected: str) -> UsageError:
        rest = self.text[self.at : self.at + 20]
        found = f"{rest!r}" if rest else "the end"
        hint = ' (options go as name=value, separated by spaces: "reverse{inputs=x,w outputs=y}")' * rest.startswith(
            "="
        )
        return UsageError(
            f"the pipeline does not parse at position {self.at}: expected {expected}, found {found}{hint}"
        )
