"""Tensor files: what comes out is what was saved, damage gives one line, and nothing of a file's size is allocated."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.files import SAFETENSORS_DTYPES, read_file
from fpsim.analysis.tensors.opening import from_mapping, open_tensors, tensor
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from tests.analysis.tensors.tensor_cases import nested, only, write_safetensors

VALUES = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)


def values(tensor: Tensor, size: int = 5) -> Any:
    """All elements, read in small chunks."""
    parts = list(tensor.chunks(size))
    assert all(part.size == size for part in parts[:-1])
    assert all(part.dtype.isnative for part in parts)
    return np.concatenate(parts)


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", ">f8"])
def test_npy_comes_back(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "w.npy", VALUES.astype(dtype))
    tensor = only(tmp_path / "w.npy")
    assert (tensor.name, tensor.shape, tensor.size) == ("w", (3, 4), 12)
    np.testing.assert_array_equal(values(tensor), VALUES.reshape(-1))
    np.testing.assert_array_equal(values(tensor, 100), VALUES.reshape(-1))


@pytest.mark.parametrize("shape", [(12,), (3, 4), (4, 3), (2, 3, 2), (2, 1, 3, 2), (1, 12), (0, 4)])
def test_arrays_saved_in_fortran_order_are_read_in_c_order(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    codes = np.arange(256, dtype=np.int8).reshape(2, 128)
    np.save(tmp_path / "w.npy", np.asfortranarray(x))
    np.savez(tmp_path / "m.npz", w=np.asfortranarray(x), long=np.asfortranarray(np.array([[1, 2], [3, 4]], np.float64)))
    quantized: Any = {"up.weight": np.asfortranarray(codes), "up.weight_scale": np.array([1], np.float32)}
    np.savez(tmp_path / "q.npz", **quantized)
    for file in ("w.npy", "m.npz"):
        stored = read_file(tmp_path / file)[0][0]
        got = np.concatenate([np.empty(0, np.float32), *stored.chunks(5)])
        np.testing.assert_array_equal(got.reshape(stored.shape), x)
        np.testing.assert_array_equal(fp.analysis.open(tmp_path / file)["w"], x)
    assert fp.analysis.open(tmp_path / "m.npz")["long"].tolist() == [[1, 2], [3, 4]]
    np.testing.assert_array_equal(fp.analysis.open(tmp_path / "q.npz")["up.weight"], codes)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_comes_back_without_its_integers(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "m.npz", w=VALUES, b=VALUES[0].astype(np.float64), ids=np.arange(3))
    tensors, notes = read_file(tmp_path / "m.npz")
    assert [tensor.name for tensor in tensors] == ["w", "b"]
    np.testing.assert_array_equal(values(tensors[0]), VALUES.reshape(-1))
    assert notes == [f"{tmp_path / 'm.npz'}: ids left out, it holds int64 and not floats"]


@pytest.mark.parametrize("dtype", SAFETENSORS_DTYPES.values(), ids=SAFETENSORS_DTYPES)
def test_every_float_dtype_of_safetensors_comes_back(tmp_path: Path, dtype: Any) -> None:
    codes = np.arange(48, dtype=np.uint8)
    x = codes.view(dtype)
    tensor = only(write_safetensors(tmp_path / "m.safetensors", {"w": x}))
    assert values(tensor).tobytes() == x.tobytes()
    assert tensor.dtype == np.dtype(dtype).name


def test_files_of_the_safetensors_library_come_back(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.numpy")
    library.save_file({"a": VALUES, "b": np.arange(3)}, tmp_path / "m.safetensors", {"format": "np"})
    tensors, notes = read_file(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(values(tensors[0]), VALUES.reshape(-1))
    assert len(notes) == 1


def test_torch_files_come_back_flattened(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = torch.from_numpy(VALUES.copy())
    content = {
        "model": {"w": w, "wt": w.T, "half": w.to(torch.bfloat16), "fp8": w.to(torch.float8_e4m3fn)},
        "list": [w[:, 1], torch.arange(3)],
        "step": 3,
    }
    torch.save(content, tmp_path / "m.pt")
    tensors, notes = read_file(tmp_path / "m.pt")
    assert [t.name for t in tensors] == ["model.w", "model.wt", "model.half", "model.fp8", "list.0"]
    assert notes == [f"{tmp_path / 'm.pt'}: list.1 left out, it holds int64"]
    for one in (tensors[0], *tensors[2:4]):
        np.testing.assert_array_equal(values(one).astype(np.float32), VALUES.reshape(-1))
    np.testing.assert_array_equal(values(tensors[1]), VALUES.T.reshape(-1))  # the elements' order, not the memory's
    np.testing.assert_array_equal(values(tensors[4]), VALUES[:, 1])
    assert [t.dtype for t in tensors[2:4]] == ["bfloat16", "float8_e4m3fn"]


def test_a_single_torch_tensor_and_the_old_format_come_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(VALUES.copy()), tmp_path / "one.pt", _use_new_zipfile_serialization=False)
    assert only(tmp_path / "one.pt").name == "one"
    np.testing.assert_array_equal(values(only(tmp_path / "one.pt")), VALUES.reshape(-1))


def test_torch_tensors_in_memory_may_require_gradients() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 2, dtype=torch.bfloat16, requires_grad=True)
    assert values(tensor("x", x)).dtype == ml_dtypes.bfloat16
    with pytest.raises(TypeError, match=r"got torch.int64. Convert with x.float\(\)"):
        tensor("x", torch.arange(3))
    with pytest.raises(TypeError, match="x must have elements; got a torch tensor on the meta device"):
        tensor("x", torch.ones(3, device="meta"))
    with pytest.raises(TypeError, match=r"x must be a dense tensor; got one of layout torch.sparse_coo"):
        tensor("x", torch.ones(3, 3).to_sparse())


def test_weights_beside_long_lists_of_numbers_come_back(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = torch.from_numpy(VALUES.copy())
    torch.save(nested({"embedding": w, "head": w.clone(), "losses": [0.5] * 100_000}, 1, 60), tmp_path / "m.pt")
    assert [tensor.name[-9:] for tensor in read_file(tmp_path / "m.pt")[0]] == ["embedding", ".0.0.head"]


def test_more_elements_than_storage_are_left_out(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    few = torch.ones(1000)
    content = {
        "strided": torch.as_strided(few, (1 << 38,), (0,)),
        "expanded": few[:1].expand(1 << 20, 1 << 20),
        "overlapping": torch.as_strided(few, (999, 2), (1, 1)),
        "part": few[10:20],
        "empty": torch.as_strided(few, (0, 1 << 40), (1, 1)),
    }
    torch.save(content, tmp_path / "m.pt")
    tensors, notes = read_file(tmp_path / "m.pt")
    assert [tensor.name for tensor in tensors] == ["part", "empty"]
    assert [len(values(tensor)) for tensor in tensors[:1]] == [10]
    said = ["274,877,906,944 elements", "1,099,511,627,776 elements", "1,998 elements and storage for 1,000"]
    assert len(notes) == len(said)
    for note, words in zip(notes, said, strict=True):
        assert words in note


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_tensors_without_elements_of_their_own_are_left_out(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = torch.ones(2)
    content = {"nested": torch.nested.nested_tensor([w, w]), "meta": w.to("meta"), "sparse": w.to_sparse(), "w": w}
    torch.save(content, tmp_path / "m.pt")
    tensors, notes = read_file(tmp_path / "m.pt")
    assert [tensor.name for tensor in tensors] == ["w"]
    assert [note.partition(" left out, ")[2] for note in notes] == [
        "it holds float32, nested", "it holds float32", "it holds float32, sparse",
    ]  # fmt: skip


def test_what_torch_raises_for_its_tensors_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")

    def fail(self: Any) -> int:
        raise RuntimeError("Internal error")

    monkeypatch.setattr(torch.Tensor, "storage_offset", fail)
    with pytest.raises(TensorFileError, match=r"m\.pt: damaged, a tensor in it cannot be read$"):
        read_file(tmp_path / "m.pt")


def test_keys_of_torch_files_become_words(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    w = torch.ones(2)
    torch.save({3: w, ("a", (1,)): w.clone(), None: w.clone()}, tmp_path / "m.pt")
    assert [tensor.name for tensor in read_file(tmp_path / "m.pt")[0]] == ["3", "<tuple>", "<NoneType>"]


def test_saved_ml_dtypes_say_what_to_do(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", q=VALUES.astype(ml_dtypes.float8_e4m3fn), w=VALUES)
    _, notes = read_file(tmp_path / "m.npz")
    assert "raw bytes" in notes[0]
    assert "Save it with safetensors" in notes[0]


def test_shards_folders_and_equal_names(tmp_path: Path) -> None:
    for i in (1, 2):
        arrays = {"shared": VALUES, f"own{i}": VALUES}
        write_safetensors(tmp_path / f"model-0000{i}-of-00002.safetensors", arrays)
    (tmp_path / "config.json").write_text("{}")
    tensors = open_tensors([tmp_path, tmp_path / "model-00001-of-00002.safetensors"])
    assert [tensor.name for tensor in tensors.tensors] == [
        "model-00001-of-00002:shared", "own1", "model-00002-of-00002:shared", "own2",
    ]  # fmt: skip
    assert not tensors.problems
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "w.npy").write_bytes(b"")
    np.save(tmp_path / "w.npy", VALUES)
    np.save(tmp_path / "other" / "w.npy", VALUES)
    twice = open_tensors([tmp_path / "w.npy", tmp_path / "other"])
    assert [t.name for t in twice.tensors] == [f"{tmp_path / 'w.npy'}:w", f"{tmp_path / 'other' / 'w.npy'}:w"]


def test_every_bad_path_gives_a_problem_and_the_others_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", VALUES)
    np.save(tmp_path / "i.npy", np.arange(3))
    (tmp_path / "empty.npy").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").write_text("x")
    names = ["w.npy", "i.npy", "empty.npy", "folder", "a.txt", "absent.pt"]
    tensors = open_tensors([tmp_path / name for name in names])
    assert [tensor.name for tensor in tensors.tensors] == ["w"]
    said = ["no float tensor", "empty file", "no tensor file in this folder", "unknown file extension", "no such file"]
    assert len(tensors.problems) == len(said)
    for problem, words in zip(tensors.problems, said, strict=True):
        assert words in problem


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    def peak(count: int) -> int:
        x = np.ones(count, np.float32)
        path = tmp_path / f"{count}.{kind}"
        if kind == "npy":
            np.save(path, x)
        elif kind == "npz":
            np.savez_compressed(path, x)
        else:
            write_safetensors(path, {"w": x})
        del x
        tracemalloc.start()
        total = sum(float(chunk.sum()) for chunk in only(path).chunks(10_000))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == count
        return size

    peak(20_000)
    assert peak(2_000_000) < peak(100_000) + 200_000


@pytest.mark.parametrize("kind", ["file", "state dict"])
def test_tied_tensors_count_once(kind: str, tmp_path: Path) -> None:
    """Found on a real model, whose output layer has the memory of its table."""
    torch = pytest.importorskip("torch")
    model = torch.nn.ModuleDict({"wte": torch.nn.Embedding(8, 4), "head": torch.nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["wte"].weight
    state = model.state_dict()
    assert list(state) == ["wte.weight", "head.weight"]
    if kind == "file":
        torch.save(state, tmp_path / "m.pt")
        outcome = open_tensors([tmp_path / "m.pt"])
        tensors, notes = outcome.tensors, outcome.notes
    else:
        tensors, notes = from_mapping(state)
    assert [one.name for one in tensors] == ["wte.weight"]
    assert [note.removeprefix(f"{tmp_path / 'm.pt'}: ") for note in notes] == [
        "head.weight left out, it is the same memory as wte.weight"
    ]
