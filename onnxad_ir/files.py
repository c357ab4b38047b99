"""Models in files: binary ONNX, its text and JSON forms, and the IR's own text, by suffix."""

from __future__ import annotations

import filecmp
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

import onnx
import onnx_ir as ir
from google.protobuf import json_format
from google.protobuf.message import DecodeError, EncodeError

from onnxad_ir.core import Graph, Model, Tensor
from onnxad_ir.diagnostics import ModelError, UsageError
from onnxad_ir.parser import parse_model
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto, to_proto

#: Suffix to format; any other suffix is binary ONNX.
FORMATS = {".onnxtxt": "onnxtxt", ".json": "json", ".oir": "oir"}
#: Protobuf refuses messages of this size.
_PROTO_LIMIT = 2**31 - 1
#: With external_data="write", tensors of fewer bytes stay in the model file.
_SMALL = 1024


def format_of(path: str | os.PathLike[str]) -> str:
    """The format a suffix stands for: "onnx", "onnxtxt", "json" or "oir" (the text of `print_model`)."""
    return FORMATS.get(Path(path).suffix.lower(), "onnx")


def load(source: str | os.PathLike[str] | IO[bytes], format: str | None = None, base_dir: str | None = None) -> Model:
    """A model from a file or a binary stream. External data is checked for existence and size, not read.

    `format` is taken from the suffix (binary ONNX for a stream), `base_dir`, the folder of external data,
    from the path (the current folder for a stream). Raises UsageError for a file that cannot be read, ModelError for
    what is no model, and for external data that is missing, too short or outside `base_dir`.
    """
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        format = format or format_of(name)
        base_dir = os.path.dirname(name) if base_dir is None else base_dir
        try:
            data = Path(name).read_bytes()
        except OSError as e:
            raise UsageError(f"{name}: {e.strerror or e}") from None
    else:
        name = str(getattr(source, "name", "the stream"))
        data = source.read()
    try:
        model = _decode(data, format or "onnx", base_dir or "")
        _check_external(model)
    except ModelError as e:
        raise ModelError(f"{name}: {e}") from None
    return model


def save(
    model: Model,
    target: str | os.PathLike[str] | IO[bytes],
    format: str | None = None,
    external_data: str = "keep",
) -> None:
    """Write a model to a file, whole or not at all, or to a binary stream.

    A link is followed, a file that was there keeps its permissions, a device or a named pipe is written to as it is.

    What becomes of external data: "keep" refers to the files where they are, which must lie in the target's
    folder or below (UsageError otherwise); "copy" copies data files that lie elsewhere into it; "write" also
    moves tensors of this process's memory out of the model, into `<target>.data`, which a model over 2 GB
    needs (ModelError).
    """
    if external_data not in ("keep", "copy", "write"):
        raise UsageError(f'external_data is "keep", "copy" or "write", not {external_data!r}')
    if not isinstance(target, str | os.PathLike):
        if external_data == "write":
            raise UsageError("a stream has no folder to write external data to")
        target.write(_encode(model, format or "onnx", _Externals(model, "", "keep", None)))
        return
    path = os.fspath(target)
    if external_data != "keep" and _is_device(path):
        raise UsageError(f"{path} has no folder to write external data to")
    externals = _Externals(model, os.path.dirname(path), external_data, path + ".data")
    data = _encode(model, format or format_of(path), externals)
    externals.check(path)
    with ExitStack() as files:  # what is entered last takes its place first: data, then the model that reads it
        file = files.enter_context(_replacing(path))
        for data_path, write in externals.files():
            with _naming(data_path):
                write(files.enter_context(_replacing(data_path)))
        with _naming(path):
            file.write(data)


def check_external_data(model: Model, target: str | os.PathLike[str], external_data: str) -> None:
    """Raise the UsageError that `save` would raise for the places of external data; nothing is written or read."""
    externals = _Externals(model, os.path.dirname(os.fspath(target)), external_data, None)
    for t in tensors(model):
        if isinstance(t, ir.ExternalTensor):
            externals.location(t)


def save_together(models: Mapping[str, Model]) -> None:
    """Write several models, each in one binary file that holds all its weights: all of them, or none.

    External data is read. Raises UsageError, before anything is written, for a model of over 2 GB.
    """
    for path, model in models.items():
        size = sum(t.nbytes for t in tensors(model))
        if size > _PROTO_LIMIT:
            raise UsageError(f"{path}: {size} bytes of weights are over the 2 GB that one file can hold")
    with ExitStack() as files:  # each file takes its place when the stack is left, after the last one is complete
        for path, model in models.items():
            file = files.enter_context(_replacing(path))
            try:
                data = to_proto(model, external=_read).SerializeToString(deterministic=True)
            except (EncodeError, ValueError) as e:
                raise UsageError(
                    f"{os.fspath(path)}: the model is over the 2 GB that one file can hold ({e})"
                ) from None
            with _naming(path):
                file.write(data)


def _read(t: Tensor) -> Tensor:
    """A tensor in memory in the place of one in a file."""
    return ir.Tensor(t.numpy(), dtype=t.dtype, name=t.name) if isinstance(t, ir.ExternalTensor) else t


def _decode(data: bytes, format: str, base_dir: str) -> Model:
    if not data.strip():
        raise ModelError("the file is empty")
    if format == "oir":
        try:
            return parse_model(data.decode(), base_dir)
        except UnicodeDecodeError:
            raise ModelError("not the text of a model") from None
    if format not in ("onnx", "onnxtxt", "json"):
        raise UsageError(f"there is no format {format!r}")
    try:
        if format == "onnx":
            proto = onnx.ModelProto.FromString(data)
        else:
            proto = onnx.load_model_from_string(data, format=format)
    except (DecodeError, json_format.Error, onnx.parser.ParseError, ValueError) as e:
        if format == "onnx":
            raise ModelError("not an ONNX model, or a truncated one") from None
        why = e.args[0].decode(errors="replace") if e.args and isinstance(e.args[0], bytes) else e
        raise ModelError(f"not a model in {format} form: {why}") from None
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model (it has no graph)")
    return from_proto(proto, base_dir)


def _encode(model: Model, format: str, externals: _Externals) -> bytes:
    if format == "oir":
        return print_model(model, external=externals.place).encode()
    if format not in ("onnx", "onnxtxt", "json"):
        raise UsageError(f"there is no format {format!r}")
    size = sum(t.nbytes for t in externals.in_memory())
    advice = 'save it with external_data="write"'
    if size > _PROTO_LIMIT:
        raise ModelError(f"the model has {size} bytes of weights, over the 2 GB that one file can hold: {advice}")
    proto = to_proto(model, external=externals.place)
    try:
        if format == "onnx":
            return proto.SerializeToString(deterministic=True)
        serializer = onnx.serialization.registry.get(format)
        return serializer.serialize_proto(proto)
    except (EncodeError, ValueError) as e:
        raise ModelError(f"the model cannot be written in one file ({e}): {advice}") from None


def _is_device(path: str) -> bool:
    """True for what is there and is no file: a device, a named pipe, a terminal."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def _replacing(path: str) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` once it is complete; a device is opened as it is."""
    path = os.fspath(path)
    if not os.path.basename(path) or os.path.isdir(path):
        raise UsageError(f"{path!r} is no name for a file" + (": it is a folder" if path else ""))
    if os.path.isfile(path) and not os.access(path, os.W_OK):
        raise UsageError(f"{path}: the file is there and may not be written to")
    real = os.path.realpath(path)
    temporary = None
    try:
        if _is_device(path):
            out: IO[bytes] = open(path, "wb")  # noqa: SIM115  (closed below)
        else:
            prefix = f".{os.path.basename(path)}."
            fd, temporary = tempfile.mkstemp(prefix=prefix, dir=os.path.dirname(real))
            out = os.fdopen(fd, "wb")
    except OSError as e:
        raise UsageError(f"{path}: {e.strerror or e}") from None
    try:
        yield out
        with _naming(path):
            out.close()
            if temporary is not None:
                os.chmod(temporary, _mode(real))  # mkstemp makes files that only the owner can read.
                os.replace(temporary, real)
    except BaseException:
        with suppress(OSError):  # what could not be written is not written now
            out.close()
        if temporary is not None:
            os.unlink(temporary)
        raise


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """An OSError of a write says where to: a full disk is told without a name."""
    try:
        yield
    except OSError as e:
        if e.errno is None or e.filename is not None:
            raise
        raise OSError(e.errno, e.strerror, os.fspath(path)) from None


def _mode(path: str) -> int:
    """The permissions of a file that is there, else those of a new one."""
    if os.path.exists(path):
        return os.stat(path).st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


# External data


def tensors(model: Model) -> Iterator[Tensor]:
    """Every tensor of a model: constants, defaults and attributes."""
    for body in model.bodies():
        for g in body.graphs():
            yield from (v.const for v in g.constants if v.const is not None)
            yield from g.defaults.values()
            for n in g.nodes:
                yield from _in_attributes(n.attributes.values())
    for f in model.functions.values():
        yield from _in_attributes(f.defaults.values())


def _in_attributes(attributes: Iterable[object]) -> Iterator[Tensor]:
    for a in attributes:
        if isinstance(a, tuple):
            yield from _in_attributes(a)
        elif isinstance(a, ir.TensorProtocol) and not isinstance(a, Graph):
            yield a


def _path(t: ir.ExternalTensor) -> str:
    return os.path.join(os.fspath(t.base_dir), str(t.location))


def _inside(location: str) -> bool:
    """True for a relative path that does not leave its folder."""
    where = os.path.normpath(location)
    return not os.path.isabs(where) and where.split(os.sep)[0] != os.pardir


def _check_external(model: Model) -> None:
    sizes: dict[str, int] = {}
    for t in tensors(model):
        if not isinstance(t, ir.ExternalTensor):
            continue
        location = str(t.location)
        what = f'tensor "{t.name}" has its data in {location!r}, which'
        if not _inside(location):
            raise ModelError(f"{what} is outside the model's folder")
        if location not in sizes:
            if not os.path.isfile(_path(t)):
                raise ModelError(f"{what} does not exist in {model.base_dir or '.'!r}")
            sizes[location] = os.path.getsize(_path(t))
        length = t.nbytes if t.length is None else t.length
        if length != t.nbytes or (t.offset or 0) + length > sizes[location]:
            raise ModelError(
                f"{what} has {sizes[location]} bytes, but the tensor takes {t.nbytes} from offset {t.offset or 0}"
            )


class _Externals:
    """Where the tensors of a model go when it is written next to `data_path`."""

    def __init__(self, model: Model, folder: str, mode: str, data_path: str | None):
        self.model = model
        self.folder = folder
        self.mode = mode
        self.data_path = data_path
        self.copies: dict[str, str] = {}  # Location in the new folder to the file it is copied from.
        self.written: dict[int, tuple[Tensor, ir.ExternalTensor]] = {}  # By identity.
        self.size = 0

    def in_memory(self) -> Iterator[Tensor]:
        """The tensors that are written into the model itself."""
        for t in tensors(self.model):
            if not isinstance(t, ir.ExternalTensor) and not self.goes_out(t):
                yield t

    def goes_out(self, t: Tensor) -> bool:
        return self.mode == "write" and t.dtype != ir.DataType.STRING and t.nbytes >= _SMALL

    def place(self, t: Tensor) -> Tensor:
        """The tensor to write in place of `t`: an external one has its location seen from the new folder."""
        if isinstance(t, ir.ExternalTensor):
            location = self.location(t)
            return t if location == t.location else _moved(t, location, t.offset, t.length)
        if not self.goes_out(t):
            return t
        if id(t) not in self.written:
            assert self.data_path is not None
            offset = -(-self.size // 4096) * 4096  # Page alignment lets readers map the data.
            self.size = offset + t.nbytes
            self.written[id(t)] = (t, _moved(t, os.path.basename(self.data_path), offset, t.nbytes))
        return self.written[id(t)][1]

    def location(self, t: ir.ExternalTensor) -> str:
        source = os.path.realpath(_path(t))
        there = os.path.relpath(source, os.path.realpath(self.folder or "."))
        if _inside(there):
            here = os.path.join(self.folder, t.location)
            same = os.path.exists(here) and os.path.samefile(here, source)
            return str(t.location) if same else there.replace(os.sep, "/")
        if _inside(str(t.location)) and os.path.realpath(os.path.join(self.folder, t.location)) == source:
            return str(t.location)  # A link in the folder leads to data outside.
        if self.mode == "keep":
            raise UsageError(
                f'tensor "{t.name}" has its data in {_path(t)!r}, which is outside the folder '
                f"{self.folder or '.'!r} the model is written to: write it next to its data, "
                'or use external_data="copy"'
            )
        location = str(t.location) if _inside(str(t.location)) else os.path.basename(t.location)
        if self.copies.setdefault(location, source) != source:
            raise UsageError(
                f"two data files would both be copied to {location!r}: {self.copies[location]!r}, {source!r}"
            )
        return location

    def check(self, path: str) -> None:
        """Raise UsageError where a file to be written is one that the model, or perhaps another one, reads."""
        read = {os.path.realpath(_path(t)) for t in tensors(self.model) if isinstance(t, ir.ExternalTensor)}
        for target in (path, *([self.data_path] if self.written and self.data_path else ())):
            if os.path.realpath(target) in read:
                raise UsageError(f"{target} holds weights that the model reads: write it under another name")
        for location, source in self.copies.items():
            target = os.path.join(self.folder, location)
            if os.path.exists(target) and not filecmp.cmp(source, target, shallow=False):
                raise UsageError(
                    f"{target} is there with other weights than {source!r}, and may be read by another model: write "
                    "to another folder"
                )

    def files(self) -> Iterator[tuple[str, Callable[[IO[bytes]], None]]]:
        """The data files to write beside the model, and what writes each."""
        for location, source in self.copies.items():
            path = os.path.join(self.folder, location)
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            yield path, partial(_copy, source)
        if self.written:
            assert self.data_path is not None
            yield self.data_path, self._write

    def _write(self, out: IO[bytes]) -> None:
        for t, external in self.written.values():
            out.seek(external.offset or 0)
            out.write(t.tobytes())


def _copy(source: str, out: IO[bytes]) -> None:
    with open(source, "rb") as data:
        shutil.copyfileobj(data, out, 1 << 24)


def _moved(t: Tensor, location: str, offset: int | None, length: int | None) -> ir.ExternalTensor:
    return ir.ExternalTensor(location, offset, length, t.dtype, shape=t.shape, name=t.name or "", base_dir="")
