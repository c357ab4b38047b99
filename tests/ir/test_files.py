"""Models in files: formats, external data, and files that are none."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from itertools import count

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from onnxad_ir.diagnostics import ModelError, UsageError
from onnxad_ir.files import load, save
from onnxad_ir.printer import print_model
from onnxad_ir.proto import from_proto, to_proto

PROTO = parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]>\n'
    "g (float[N,2] x) => (float[N,2] y) <float[2] w = {0.5, 2}> { h = Mul(x, w) y = Softmax<axis = -1>(h) }"
)
W = np.arange(1000, dtype=np.float32).reshape(2, 500)


@pytest.fixture
def external(tmp_path):
    """A model in its own folder whose weight lies beside it."""
    folder = tmp_path / "a"
    folder.mkdir()
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,2] x) => (float[N,500] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(numpy_helper.from_array(W, "w"))
    onnx.save(proto, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


def output(path):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.eye(2, dtype=np.float32)})[0]


@pytest.mark.parametrize("suffix", [".onnx", ".onnxtxt", ".json", ".oir", ".pb"])
def test_formats_by_suffix(tmp_path, suffix):
    m = from_proto(PROTO)
    path = tmp_path / f"m{suffix}"
    save(m, path)
    assert print_model(load(path)) == print_model(m)
    assert os.listdir(tmp_path) == [f"m{suffix}"]


def test_a_binary_model_keeps_its_bytes(tmp_path):
    save(from_proto(PROTO), tmp_path / "m.onnx")
    assert onnx.load(tmp_path / "m.onnx") == to_proto(from_proto(PROTO))
    assert (tmp_path / "m.onnx").stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("format", ["onnx", "onnxtxt", "json", "oir"])
def test_streams(format):
    out = io.BytesIO()
    save(from_proto(PROTO), out, format)
    out.seek(0)
    assert print_model(load(out, format)) == print_model(from_proto(PROTO))


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("m.onnx", b"", "empty"),
        ("m.onnx", b"this is no model", "not an ONNX model"),
        ("m.onnx", PROTO.SerializeToString()[:-20], "not an ONNX model"),
        ("m.onnx", b"\x08\x08", "no graph"),
        ("m.onnxtxt", b"nonsense", "onnxtxt"),
        ("m.json", b"{", "json"),
        ("m.oir", b"nonsense", "expected model"),
        ("m.oir", b"\xff", "not the text of a model"),
    ],
)
def test_what_is_no_model(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelError, match=message) as e:
        load(tmp_path / name)
    assert str(e.value).startswith(f"{tmp_path / name}: ")


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        load(tmp_path / "none.onnx")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "m.onnx"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        save(from_proto(PROTO), path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["m.onnx"]


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        save(from_proto(PROTO), tmp_path / "nowhere" / "m.onnx")


def test_a_pipe_or_a_device_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    save(from_proto(PROTO), pipe)
    reader.join(10)
    assert found == [to_proto(from_proto(PROTO)).SerializeToString(deterministic=True)]
    assert stat.S_ISFIFO(os.stat(pipe).st_mode) and os.listdir(tmp_path) == ["pipe"]
    with pytest.raises(UsageError, match="has no folder"):
        save(from_proto(PROTO), pipe, external_data="write")


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "m.onnx").symlink_to(tmp_path / "there" / "real.onnx")
    for _ in range(2):  # a link to nothing yet, and to a file
        save(from_proto(PROTO), tmp_path / "m.onnx")
        assert (tmp_path / "m.onnx").is_symlink() and os.listdir(tmp_path / "there") == ["real.onnx"]
    assert onnx.load(tmp_path / "there" / "real.onnx") == to_proto(from_proto(PROTO))


def test_a_file_that_was_there_keeps_its_permissions(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    path.chmod(0o600)
    save(from_proto(PROTO), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if os.geteuid() != 0:
        path.chmod(0o400)
        with pytest.raises(UsageError, match="may not be written"):
            save(from_proto(PROTO), path)


# External data


class _Full(io.FileIO):
    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("full, name", [(0, "m.onnx"), (1, "w.bin")])
def test_model_and_data_are_written_together_or_not_at_all(external, tmp_path, monkeypatch, full, name):
    model = load(external)
    (tmp_path / "b").mkdir()
    opened = count()
    fdopen = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda fd, mode: _Full(fd, mode) if next(opened) == full else fdopen(fd, mode))
    with pytest.raises(OSError, match=rf"No space left on device.*{name}"):
        save(model, tmp_path / "b" / "m.onnx", external_data="copy")
    assert os.listdir(tmp_path / "b") == []


def test_external_data_is_not_read_and_stays_where_it_is(external, monkeypatch):
    monkeypatch.setattr(ir.ExternalTensor, "numpy", None)
    monkeypatch.setattr(ir.ExternalTensor, "tobytes", None)
    m = load(external)
    assert isinstance(m.graph.constants[0].const, ir.ExternalTensor)
    copy = external.with_name("copy.onnx")
    save(m, copy)
    assert sorted(os.listdir(external.parent)) == ["copy.onnx", "m.onnx", "w.bin"]
    np.testing.assert_array_equal(output(copy), W)


def test_constants_read_external_data_when_asked(external):
    np.testing.assert_array_equal(load(external).graph.constants[0].numpy(), W)


def test_the_text_refers_to_external_data(external):
    m = load(external)
    save(m, external.with_name("m.oir"))
    assert "external" in external.with_name("m.oir").read_text()
    back = load(external.with_name("m.oir"))
    np.testing.assert_array_equal(back.graph.constants[0].numpy(), W)


@pytest.mark.parametrize("suffix", [".onnx", ".oir"])
def test_another_folder_needs_a_decision(external, tmp_path, suffix):
    other = tmp_path / "b"
    other.mkdir()
    m = load(external)
    with pytest.raises(UsageError, match='external_data="copy"'):
        save(m, other / f"m{suffix}")
    assert os.listdir(other) == []
    save(m, other / f"m{suffix}", external_data="copy")
    assert sorted(os.listdir(other)) == [f"m{suffix}", "w.bin"]
    np.testing.assert_array_equal(load(other / f"m{suffix}").graph.constants[0].numpy(), W)


def test_a_folder_above_refers_downwards(external, tmp_path):
    save(load(external), tmp_path / "m.onnx")
    assert not (tmp_path / "w.bin").exists()
    np.testing.assert_array_equal(output(tmp_path / "m.onnx"), W)


def test_the_folder_may_be_the_current_one(external, monkeypatch):
    monkeypatch.chdir(external.parent)
    save(load("m.onnx"), "n.onnx")
    np.testing.assert_array_equal(output("n.onnx"), W)


def test_weights_in_memory_are_written_outside_when_asked(tmp_path):
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[N,2] x) => (float[N,500] y) <float[1] b = {0}> {\n"
        "  h = MatMul(x, w) k = Mul(v, b) y = Add(h, k) }"
    )
    proto.graph.initializer.extend([numpy_helper.from_array(W, "w"), numpy_helper.from_array(W[:1], "v")])
    save(from_proto(proto), tmp_path / "m.onnx", external_data="write")
    assert sorted(os.listdir(tmp_path)) == ["m.onnx", "m.onnx.data"]
    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert [t.data_location for t in stored.graph.initializer] == [0, 1, 1]
    np.testing.assert_array_equal(output(tmp_path / "m.onnx"), W)
    np.testing.assert_array_equal(load(tmp_path / "m.onnx").graph.constants[2].numpy(), W[:1])


def test_over_two_gigabytes_needs_external_data(tmp_path, monkeypatch):
    monkeypatch.setattr("onnxad_ir.files._PROTO_LIMIT", 1000)
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,2] x) => (float[N,500] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(numpy_helper.from_array(W, "w"))
    with pytest.raises(ModelError, match='external_data="write"'):
        save(from_proto(proto), tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == []
    save(from_proto(proto), tmp_path / "m.onnx", external_data="write")
    np.testing.assert_array_equal(output(tmp_path / "m.onnx"), W)


@pytest.mark.parametrize(
    "location, message",
    [
        ("gone.bin", "does not exist"),
        ("../w.bin", "outside"),
        ("/etc/passwd", "outside"),
        ("b/../../w.bin", "outside"),
    ],
)
def test_bad_locations(external, location, message):
    proto = onnx.load(external, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = location
    external.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=message):
        load(external)


def test_data_files_that_are_too_short(external):
    (external.parent / "w.bin").write_bytes(b"short")
    with pytest.raises(ModelError, match="5 bytes"):
        load(external)


def test_two_data_files_of_one_name(external, tmp_path):
    m = load(external)
    other = tmp_path / "b"
    other.mkdir()
    (other / "w.bin").write_bytes(W.tobytes())
    m.graph.add_constant(
        "v",
        ir.ExternalTensor(
            "w.bin", 0, W.nbytes, ir.DataType.FLOAT, shape=ir.Shape(W.shape), name="v", base_dir=str(other)
        ),
    )
    (tmp_path / "c").mkdir()
    with pytest.raises(UsageError, match="both be copied"):
        save(m, tmp_path / "c" / "m.onnx", external_data="copy")


def test_weights_that_a_model_reads_are_never_written_over(external, tmp_path):
    """Neither by weights that move out of the model, nor by the model, nor by a copy of other weights."""
    model = load(external)
    (tmp_path / "a" / "w.bin").rename(tmp_path / "a" / "m.onnx.data")
    (w,) = model.graph.constants
    w.const = ir.ExternalTensor(
        "m.onnx.data", 0, W.nbytes, ir.DataType.FLOAT, shape=ir.Shape(W.shape), name="w", base_dir=str(external.parent)
    )
    before = (tmp_path / "a" / "m.onnx.data").read_bytes()
    save(model, external, external_data="write")  # nothing moves out of the model
    model.graph.add_constant("v", ir.Tensor(W))
    with pytest.raises(UsageError, match=r"m\.onnx\.data holds weights that the model reads"):
        save(model, external, external_data="write")
    with pytest.raises(UsageError, match=r"m\.onnx\.data holds weights that the model reads"):
        save(model, tmp_path / "a" / "m.onnx.data", "onnx")
    assert (tmp_path / "a" / "m.onnx.data").read_bytes() == before
    save(model, tmp_path / "a" / "other.onnx", external_data="write")
    (tmp_path / "b").mkdir()
    for _ in range(2):  # the same again is the same
        save(model, tmp_path / "b" / "m.onnx", external_data="copy")
    (tmp_path / "b" / "m.onnx.data").write_bytes(b"of another model")
    with pytest.raises(UsageError, match="is there with other weights"):
        save(model, tmp_path / "b" / "m.onnx", external_data="copy")
    assert (tmp_path / "b" / "m.onnx.data").read_bytes() == b"of another model"
