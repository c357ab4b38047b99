"""Where the command reads its model and where it writes it: suffixes, pipes, formats."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from onnxad_ir.diagnostics import OnnxadError, UsageError, did_you_mean

if TYPE_CHECKING:
    from onnxad_ir.core import Model

#: Suffix to format. `oir` is the IR's own text.
SUFFIXES = {".onnx": "onnx", ".pb": "onnx", ".onnxtxt": "onnxtxt", ".json": "json", ".oir": "oir"}
FORMATS = ("onnx", "onnxtxt", "json", "oir")
PIPE = "-"


def format_for(path: str, option: str) -> str:
    """The format that the suffix of a path stands for; UsageError for a suffix that stands for none."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    found = f"suffix {suffix!r} says" if suffix else "a name without a suffix says"
    hint = did_you_mean(suffix, SUFFIXES)
    raise UsageError(
        f"{path}: {found} nothing about the format{hint} (known: {', '.join(SUFFIXES)}); say it with {option}"
    )


def read(path: str, format: str | None) -> Model:
    """The model of a file, or of standard input for "-", whose format its first byte tells.

    Raises UsageError for what is no file, ModelError for what is no model.
    """
    from onnxad_ir.files import load

    if path == PIPE:
        if sys.stdin is None:
            raise UsageError("standard input is closed")
        return _from_pipe(sys.stdin.buffer, "standard input", format)
    if not path:
        raise UsageError("the name of the model is empty")
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder")
    if _is_device(path) or path.startswith("/dev/"):  # /dev/stdin may be a file
        try:
            with open(path, "rb") as f:
                return _from_pipe(f, path, format)
        except OSError as e:
            raise UsageError(f"{path}: {e.strerror or e}") from None
    if not os.path.exists(path):
        raise UsageError(f"{path}: No such file")
    return load(path, format or format_for(path, "--from"))


def _from_pipe(source: IO[bytes], name: str, format: str | None) -> Model:
    import io

    from onnxad_ir.files import load

    data = io.BytesIO(source.read())
    data.name = name
    return load(data, format or sniff(data.getvalue()))


def _is_device(path: str) -> bool:
    """True for what is there and is neither a file nor a folder: a device or a named pipe."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def sniff(data: bytes) -> str:
    """The format of a model by its start: no binary model begins as one of the texts does."""
    head = data[:4096].lstrip()
    if head.startswith((b"model", b"//")):
        return "oir"
    if head.startswith(b"{"):
        return "json"
    return "onnxtxt" if head.startswith(b"<") else "onnx"


def check_target(path: str, format: str | None, external_data: str | None = None) -> str:
    """The format to write a path in. UsageError where it is plain beforehand that it cannot be written.

    A long pipeline should not run first and fail then.
    """
    if not path:
        raise UsageError("the name of the output is empty")
    if path == PIPE or _is_device(path):
        if external_data is not None:
            raise UsageError("--external-data is for a file: a pipe has no folder")
        if (format or "onnx") == "onnx" and path == PIPE and sys.stdout.isatty():
            raise UsageError("a binary model is not for a terminal: redirect it, or choose a text with --to")
        return format or "onnx"
    found = format or format_for(path, "--to")
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder")
    if not os.path.isdir(folder):
        raise UsageError(f"{path}: there is no folder {folder!r}")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{path}: the folder {folder!r} cannot be written to")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise UsageError(f"{path}: the file is there and may not be written to")
    return found


def check_data(model: Model, path: str, external_data: str | None) -> None:
    """UsageError where the data files of a model, as it was read, cannot be those of a model written to `path`."""
    from onnxad_ir.files import check_external_data

    with _in_words_of_the_command(path):
        check_external_data(model, "" if path == PIPE else path, external_data or "keep")


def write(model: Model, path: str, format: str, external_data: str | None = None) -> None:
    """Write a model to a file, whole or not at all, or to standard output for "-"."""
    import io

    from onnxad_ir.files import save

    target = io.BytesIO() if path == PIPE else path
    with _in_words_of_the_command(path):
        save(model, target, format, external_data or "keep")
    if isinstance(target, io.BytesIO):
        sys.stdout.buffer.write(target.getvalue())
        sys.stdout.buffer.flush()


@contextmanager
def _in_words_of_the_command(path: str) -> Iterator[None]:
    """Errors of `save` name the option of the command, not the argument of the function."""
    try:
        yield
    except OnnxadError as e:
        option = re.sub(r'external_data="(\w+)"', r"--external-data=\1", str(e))
        if path == PIPE:
            option += " (a pipe has no folder: write to a file for that)"
        raise type(e)(option) from None


def read_arrays(path: str) -> dict[str, Any]:
    """The arrays of a .npz file by name; UsageError where it is none."""
    import zipfile

    import numpy as np

    try:
        data = np.load(path, allow_pickle=False)
        if isinstance(data, np.ndarray):
            raise UsageError(f"{path}: one array without a name; expected a .npz file of arrays by name")
        with data:
            return {k: data[k] for k in data.files}
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}") from None
    except UsageError:
        raise
    except (ValueError, zipfile.BadZipFile, EOFError):
        raise UsageError(f"{path}: not a .npz file of arrays by name") from None
