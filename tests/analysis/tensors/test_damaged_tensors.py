"""Damaged, hostile and long files of tensors: one line with the path, or the right numbers."""

from __future__ import annotations

import os
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpsim.analysis.tensors import torch_file
from fpsim.analysis.tensors.files import read_file
from fpsim.analysis.tensors.opening import open_tensors
from fpsim.analysis.tensors.tensor import TensorFileError
from tests.analysis.tensors.tensor_cases import nested, only, write_safetensors
from tests.kit.sweeps import sweep

VALUES = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def save_truncated(path: Path, part: float = 0.7) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])


def test_cut_files_give_one_line_with_their_path(tmp_path: Path) -> None:
    big = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    np.save(tmp_path / "a.npy", big)
    np.savez(tmp_path / "b.npz", big)
    write_safetensors(tmp_path / "c.safetensors", {"w": big})
    files = [tmp_path / name for name in ("a.npy", "b.npz", "c.safetensors")]
    try:
        import torch

        torch.save({"w": torch.from_numpy(big)}, tmp_path / "d.pt")
        files.append(tmp_path / "d.pt")
    except ImportError:
        pass
    for file in files:
        read_file(file)
        save_truncated(file)
        with pytest.raises(TensorFileError) as caught:
            read_file(file)
        message = str(caught.value)
        assert message.startswith(f"{file}: damaged")
        assert "\n" not in message


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.safetensors", "a.pt"])
@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 50, b"not a tensor file at all", b"\xff" * 500, b"PK\x03\x04" + b"\x07" * 80]
)
def test_garbage_gives_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    if name == "a.pt":
        pytest.importorskip("torch")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TensorFileError) as caught:
        read_file(tmp_path / name)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(caught.value)


def test_every_flipped_header_byte_reads_or_gives_one_line(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": VALUES, "v": VALUES[0]})
    good = path.read_bytes()
    header = 8 + int.from_bytes(good[:8], "little")
    for i in range(header):
        path.write_bytes(good[:i] + bytes([good[i] ^ 0x15]) + good[i + 1 :])
        try:
            for tensor in read_file(path)[0]:
                list(tensor.chunks(5))
        except TensorFileError:
            pass


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1 << 70], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]},
        {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]},
        {"dtype": 7, "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1]},
        "F32",
    ],
    ids=str,
)
def test_contradicting_safetensors_headers_are_refused(tmp_path: Path, entry: Any) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {}, {"w": entry}, tail=b"\0" * 4)
    with pytest.raises(TensorFileError, match=r"damaged"):
        read_file(path)


def test_overlaps_and_duplicates_in_safetensors_are_refused(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    path = write_safetensors(tmp_path / "m.safetensors", {}, {"a": entry, "b": entry}, tail=b"\0" * 4)
    with pytest.raises(TensorFileError, match="starts at 0, not at 4"):
        read_file(path)
    text = b'{"a": 1, "a": 2}'
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(TensorFileError, match="a name occurs twice"):
        read_file(path)


@pytest.mark.parametrize("metadata", [{"a": 1}, ["a"], 3])
def test_metadata_of_safetensors_that_are_no_texts_are_refused(tmp_path: Path, metadata: Any) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    path = write_safetensors(tmp_path / "m.safetensors", {}, {"a": entry, "__metadata__": metadata}, tail=b"\0" * 4)
    with pytest.raises(TensorFileError, match="__metadata__ must hold texts"):
        read_file(path)
    write_safetensors(path, {}, {"a": entry, "__metadata__": None}, tail=b"\0" * 4)
    assert [one.name for one in read_file(path)[0]] == ["a"]


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(TensorFileError, match=r"no float tensor in it; .*it holds objects and not floats"):
        read_file(tmp_path / "o.npy")
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(TensorFileError, match=r"holds pickled objects. Save only tensors"):
        read_file(tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "s.pt", "w") as archive:  # what lies in a file of torch.jit.save
        for name in ("s/data.pkl", "s/code/__torch__.py", "s/constants.pkl", "s/version"):
            archive.writestr(name, b"")
    with pytest.raises(TensorFileError, match=r"holds a TorchScript program\. .*torch\.jit\.load\('.*s\.pt'\)"):
        read_file(tmp_path / "s.pt")


def itself(x: Any) -> dict[str, Any]:
    """A dictionary that holds itself."""
    content: dict[str, Any] = {"w": x}
    content["self"] = content
    return content


@sweep("limit", 3_000_000, torch_file.NAMES_LIMIT)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda x: nested(x, 10, 9), "are together more than 64 times as large as the file"),
        (lambda x: nested([], 10, 9), "containers hold too many objects for a file of tensors"),
        (lambda x: [{"k" * 1_000_000: [x] * 100}] * 1000, "containers hold too many objects for a file of tensors"),
        (lambda x: nested(x, 1, 65), "containers are nested deeper than 64, or hold themselves"),
        (itself, "containers are nested deeper than 64, or hold themselves"),
    ],
)
def test_torch_files_that_repeat_themselves_are_refused(
    tmp_path: Path, content: Any, words: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_file, "NAMES_LIMIT", limit)
    torch = pytest.importorskip("torch")
    torch.save(content(torch.ones(2)), tmp_path / "m.pt")
    np.save(tmp_path / "w.npy", VALUES)
    tensors = open_tensors([tmp_path / "m.pt", tmp_path / "w.npy"])
    assert [tensor.name for tensor in tensors.tensors] == ["w"]
    assert len(tensors.problems) == 1
    assert tensors.problems[0].startswith(f"{tmp_path / 'm.pt'}: ")
    assert words in tensors.problems[0]


def test_long_npy_headers_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        length = 50_000_000
        archive.writestr("w.npy", b"\x93NUMPY\x02\x00" + length.to_bytes(4, "little") + b" " * length)
    tracemalloc.start()
    with pytest.raises(TensorFileError, match=r"header \(length 50000000\)"):
        read_file(tmp_path / "m.npz")
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 5_000_000


def test_arrays_packed_into_next_to_nothing_are_refused(tmp_path: Path) -> None:
    """Found by a user: a file of one megabyte kept a study busy for over a minute."""
    path = tmp_path / "m.npz"
    np.savez_compressed(path, large=np.zeros(1 << 25, np.float32), small=np.zeros(1 << 10, np.float32))
    with pytest.raises(
        TensorFileError, match=r"large unpacks to 134217856 bytes from \d+, more than 100 times as many"
    ):
        read_file(path)
    np.savez_compressed(path, small=np.zeros(1 << 10, np.float32))
    tensors, _ = read_file(path)
    assert [tensor.name for tensor in tensors] == ["small"]


def test_npz_archives_that_numpy_does_not_write_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", VALUES)
    with zipfile.ZipFile(tmp_path / "bombs.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(tmp_path / "w.npy", "w.npy")
    with pytest.raises(TensorFileError, match="w has a compression that NumPy does not write"):
        read_file(tmp_path / "bombs.npz")
    with zipfile.ZipFile(tmp_path / "twice.npz", "w") as archive:
        archive.write(tmp_path / "w.npy", "w.npy")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.write(tmp_path / "w.npy", "w.npy")
    with pytest.raises(TensorFileError, match="a name occurs twice"):
        read_file(tmp_path / "twice.npz")


def test_a_flipped_bit_in_an_npz_is_found_while_reading(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", w=np.ones(1000, np.float32))
    data = bytearray((tmp_path / "m.npz").read_bytes())
    data[2000] ^= 1
    (tmp_path / "m.npz").write_bytes(bytes(data))
    with pytest.raises(TensorFileError, match=r"w.npy is damaged \(Bad CRC"):
        list(only(tmp_path / "m.npz").chunks())


def test_a_file_that_shrinks_while_it_is_read_gives_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(1000))
    tensor = only(tmp_path / "w.npy")
    save_truncated(tmp_path / "w.npy")
    with pytest.raises(TensorFileError, match="the file has changed since it was opened"):
        list(tensor.chunks(10))


def test_npz_sizes_that_contradict_shapes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(1000))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        archive.writestr("w.npy", (tmp_path / "w.npy").read_bytes()[:-8])
    with pytest.raises(TensorFileError, match="the size of w does not fit its shape"):
        read_file(tmp_path / "m.npz")


def test_a_file_of_torch_that_becomes_shorter_is_an_error_and_no_crash(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(1 << 18)}, path)
    tensor = only(path)
    pieces = tensor.chunks(1 << 10)
    next(pieces)
    os.truncate(path, 5000)
    with pytest.raises(TensorFileError, match="the file has changed since it was opened"):
        next(pieces)
    with pytest.raises(TensorFileError, match="the file has changed since it was opened"):
        next(tensor.chunks())
