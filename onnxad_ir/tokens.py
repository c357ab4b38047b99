"""The tokens of the IR's text."""

from __future__ import annotations

import base64
import json
import re
from typing import NoReturn

from onnxad_ir.diagnostics import ModelError

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
    |(?P<value>%(?:"[^"\\]*(?:\\.[^"\\]*)*"|(?:[A-Za-z0-9_.$/-]|::)+))
    |(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")
    |(?P<number>-inf\b|-?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<unknown>\?[A-Za-z0-9_]*)
    |(?P<mark>[<>\[\](){}=:,.@*])""",
    re.VERBOSE,
)


class Tokens:
    """The tokens of a text and how far they have been read."""

    def __init__(self, text: str):
        self.text = text
        self.kinds: list[str] = []
        self.words: list[str] = []
        self.starts: list[int] = []
        at = 0
        for m in _TOKEN.finditer(text):
            if m.start() != at:
                break
            at = m.end()
            kind = m.lastgroup or ""
            if kind != "space":
                self.kinds.append(kind)
                self.words.append(m.group())
                self.starts.append(m.start())
        self.at = len(self.words)
        self.words += ["", ""]
        self.kinds += ["end", "end"]
        self.starts += [at, at]
        if at != len(text):
            self.fail("unknown character")
        self.at = 0

    def fail(self, message: str) -> NoReturn:
        """Raise ModelError, with the line that is being read."""
        start = self.starts[self.at]
        line = self.text.count("\n", 0, start) + 1
        found = self.words[self.at][:40] or "the end of the text"
        raise ModelError(f"line {line}: {message}, at {found}")

    def accept(self, word: str) -> bool:
        """Step over a mark or keyword if it comes next."""
        if self.words[self.at] == word and self.kinds[self.at] in ("mark", "word"):
            self.at += 1
            return True
        return False

    def expect(self, word: str) -> None:
        """Step over a mark or keyword that has to come next."""
        if not self.accept(word):
            self.fail(f"expected {word}")

    def token(self, kind: str) -> str:
        """The next token, which has to be of this kind."""
        if self.kinds[self.at] != kind:
            self.fail(f"expected a {kind}")
        self.at += 1
        return self.words[self.at - 1]

    def string(self) -> str:
        """A string literal."""
        text = self.words[self.at]
        if self.kinds[self.at] != "string":
            self.fail("expected a string")
        try:
            value: str = json.loads(text)
        except ValueError:
            self.fail("bad string")
        self.at += 1
        return value

    def binary(self) -> bytes:
        """Bytes, in base64."""
        at = self.at
        text = self.string()
        try:
            return base64.b64decode(text, validate=True)
        except ValueError:
            self.at = at
            self.fail("bad base64")

    def word(self) -> str:
        """A plain word or a quoted one."""
        return self.string() if self.kinds[self.at] == "string" else self.token("word")

    def integer(self) -> int:
        """A whole number."""
        text = self.token("number")
        try:
            return int(text)
        except ValueError:
            self.at -= 1
            self.fail("expected an integer")

    def value_name(self) -> str:
        """The name of a value, without its % and quotes."""
        text = self.token("value")[1:]
        if text.startswith('"'):
            return json.loads(text)
        return text

    def pairs(self) -> dict[str, str]:
        """Strings by string, in braces."""
        out: dict[str, str] = {}
        self.expect("{")
        while not self.accept("}"):
            key = self.string()
            self.expect(":")
            out[key] = self.string()
            self.accept(",")
        return out

    def opset(self) -> dict[str, int]:
        """Versions by domain, in braces."""
        out: dict[str, int] = {}
        self.expect("{")
        while not self.accept("}"):
            key = self.string()
            self.expect(":")
            out[key] = self.integer()
            self.accept(",")
        return out
