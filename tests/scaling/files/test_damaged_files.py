"""Files of scaled arrays that are damaged, hostile or cut short are refused."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from fpsim.arrays import Array
from fpsim.scaling import file as scaled_file
from fpsim.scaling.file import KINDS, load, save
from tests.kit.sweeps import sweep
from tests.scaling.files.cases import SMALL, assert_same, small

NANS = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x7F800000, 1], np.uint32).view(np.float32)


every_kind = pytest.mark.parametrize("suffix", list(KINDS))


def assert_noticed_or_harmless(path: Path, data: bytes, where: str) -> bool:
    """Whether loading the changed file fails as it should; else it must give the very same content."""
    path.write_bytes(data)
    try:
        got = load(path)
    except ValueError as problem:
        message = str(problem)
    else:
        assert_same(got, (SMALL, {"block": [1, 3]}))
        return False
    assert message.startswith(f"{path}: "), where
    assert "\n" not in message, where
    return True


@every_kind
@sweep("flips", 1, 4)
def test_every_changed_byte_is_noticed(tmp_path: Path, suffix: str, flips: int) -> None:
    data = small(tmp_path / f"x{suffix}")
    harmless = set()
    for i in range(len(data)):
        for flip in range(i, i + flips):
            mask = (0x01, 0x20, 0x80, 0xFF)[flip % 4]
            damaged = data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :]
            if not assert_noticed_or_harmless(tmp_path / f"d{suffix}", damaged, f"byte {i} ^ {mask:#x}"):
                harmless.add(i)
    assert len(harmless) < len(data) / 3  # dates of a zip, and what it says twice


@every_kind
def test_every_truncation_is_noticed(tmp_path: Path, suffix: str) -> None:
    data = small(tmp_path / f"x{suffix}")
    for length in range(len(data)):
        assert assert_noticed_or_harmless(tmp_path / f"d{suffix}", data[:length], f"{length} bytes")


@every_kind
def test_bytes_behind_the_end_change_nothing(tmp_path: Path, suffix: str) -> None:
    data = small(tmp_path / f"x{suffix}")
    for more in (b"\0", b"PK\5\6", data):
        assert_noticed_or_harmless(tmp_path / f"d{suffix}", data + more, f"{len(more)} more")


@every_kind
def test_damage_says_what_to_do(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(small(path)[:100])
    with pytest.raises(ValueError, match=rf"x{suffix}: damaged, or of another kind than .*wanted a file .*copy"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="the file is empty"):
        load(path)


def test_a_changed_scale_of_a_safetensors_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(small(path).replace(np.float32(0.5).tobytes(), np.float32(0.25).tobytes()))
    with pytest.raises(ValueError, match="\\(its content differs from its checksum"):
        load(path)


@pytest.mark.parametrize(("old", "new"), [(b'"U8"', b'"I8"'), (b"[2,3]", b"[3,2]"), (b'"codes"', b'"edocs"')])
def test_a_changed_description_of_a_safetensors_file_is_noticed(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "x.safetensors"
    data = small(path)
    assert old in data
    path.write_bytes(data.replace(old, new))
    assert safetensors.numpy.load_file(path)  # which notices nothing
    with pytest.raises(ValueError, match=r"\(its content differs from its checksum"):
        load(path)


def rewritten(path: Path, change: dict[str, Any], arrays: dict[str, Array] = SMALL) -> None:
    """A file as `save` writes it, with other entries in its envelope, or arrays that `save` refuses."""
    envelope = {"version": 1, "sha256": scaled_file._digest({}, arrays), "header": {}, **change}
    KINDS[path.suffix][1](path, json.dumps(envelope), arrays)


@pytest.mark.parametrize("dtype", ["complex64", ">f4"])
def test_dtypes_that_save_refuses_are_noticed(tmp_path: Path, dtype: str) -> None:
    rewritten(tmp_path / "x.npz", {}, {"x": np.zeros(3, dtype)})
    with pytest.raises(ValueError, match=f"x.npy holds {dtype}"):
        load(tmp_path / "x.npz")


@every_kind
def test_a_later_version_says_to_update(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    rewritten(path, {})
    assert_same(load(path), (SMALL, {}))
    rewritten(path, {"version": 2, "something": "new"})
    with pytest.raises(ValueError, match=r"wanted a file of version 1, got one of version 2.*git pull in its checkout"):
        load(path)


@every_kind
@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("version", 0),
        ("version", "1"),
        ("version", None),
        ("version", True),
        ("header", []),
        ("header", {"a": 1}),
        ("sha256", None),
        ("sha256", ""),
        ("more", 1),
    ],
)
def test_a_wrong_envelope_is_noticed(tmp_path: Path, suffix: str, entry: str, value: Any) -> None:
    rewritten(tmp_path / f"x{suffix}", {entry: value})
    with pytest.raises(ValueError, match="damaged"):
        load(tmp_path / f"x{suffix}")


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3))
    with pytest.raises(ValueError, match=r"wanted a file that fpsim saved.*holds \['a', 'b'\].*numpy\.load\."):
        load(tmp_path / "x.npz")
    for metadata in (None, {"format": "pt"}):
        safetensors.numpy.save_file({"a": np.zeros(3)}, tmp_path / "x.safetensors", metadata=metadata)
        with pytest.raises(ValueError, match=r"wanted a file that fpsim saved.*holds \['a'\].*safetensors\.numpy"):
            load(tmp_path / "x.safetensors")
    for suffix in KINDS:
        (tmp_path / f"y{suffix}").write_text("a letter of ordinary length, and no arrays at all")
        with pytest.raises(ValueError, match=f"damaged, or of another kind than {suffix};"):
            load(tmp_path / f"y{suffix}")


class Trap:
    """An object whose unpickling is noticed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("sprung",)


def member(dtype: str, shape: str, data: bytes = b"") -> bytes:
    """A member of an npz file with any header."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + data


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("pickle", "x.npy holds object"),
        ("text", "x.npy holds <U2"),
        ("huge", "x.npy has another size than its shape"),
        ("negative", "negative dimensions"),
        ("not npy", "magic string"),
        ("compressed", "x.npy is compressed"),
        ("longer than the file", "longer than the file"),
    ],
)
def test_hostile_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    pickled = io.BytesIO()
    np.save(pickled, np.array([Trap()], object), allow_pickle=True)
    content = {
        "pickle": pickled.getvalue(),
        "huge": member("<f4", "(1000000000, 1000000000)"),
        "negative": member("<f4", "(-1, -2)", bytes(8)),
        "text": member("<U2", "(1,)", bytes(8)),
        "not npy": b"hello",
        "compressed": member("|u1", "(9,)", bytes(9)),
        "longer than the file": member("|u1", "(1000000000000000,)", bytes(9)),
    }
    save("x.npz", {"y": NANS}, {})
    compression = zipfile.ZIP_DEFLATED if kind == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile("x.npz", "a", compression) as archive:
        archive.writestr("x.npy", content[kind])
        if kind == "longer than the file":
            archive.infolist()[-1].file_size += 10**15 - 9
    with pytest.raises(ValueError, match=f"damaged.*{reason}"):
        load("x.npz")
    assert not Path("sprung").exists()


@every_kind
def test_a_missing_file_is_missing(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"x{suffix}"):
        load(tmp_path / f"x{suffix}")


@every_kind
def test_a_missing_folder_is_named(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*gone'\. Create it first.*mkdir"):
        save(tmp_path / "gone" / f"x{suffix}", SMALL, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x.pt", "x", "npz", ".npz", "x.npz.gz"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    wanted = rf"must end in \.npz or \.safetensors; got '{name}'\. Use '.*\.npz'\."
    with pytest.raises(ValueError, match=wanted):
        save(tmp_path / name, SMALL, {})
    with pytest.raises(ValueError, match=wanted):
        load(tmp_path / name)
    assert not list(tmp_path.iterdir())
