"""GGUF files: floats come back as stored, blocks as the gguf package decodes them, and damage gives one line."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.tensors.files import read_file
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from tests.analysis.tensors.test_tensors import values

gguf = pytest.importorskip("gguf", reason="files are written with gguf")
VALUES = np.random.default_rng(0).standard_normal((4, 512)).astype(np.float32)
KINDS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0"]  # those that gguf writes too


def write(path: Path, arrays: dict[str, Any], kinds: dict[str, str] | None = None, **settings: Any) -> Path:
    """A file of the gguf package; `kinds` quantises some."""
    writer = gguf.GGUFWriter(path, "test", **settings)
    writer.add_string("general.description", "words" * 100)
    writer.add_array("tokenizer.ggml.tokens", [f"token{i}" for i in range(100)])
    writer.add_array("numbers", [1.5, 2.5])
    for name, x in arrays.items():
        if kinds and name in kinds:
            kind = gguf.GGMLQuantizationType[kinds[name]]
            data = x if x.dtype == np.uint8 else gguf.quants.quantize(x, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        else:
            writer.add_tensor(name, x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(path: Path) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in read_file(path)[0]}


def test_floats_come_back_as_stored_and_integers_are_left_out(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "a": VALUES,
        "b": VALUES.astype(np.float16),
        "c": VALUES.astype(np.float64),
        "d": VALUES[0, :7].copy(),
    }
    path = write(tmp_path / "m.gguf", {**arrays, "ids": np.arange(5, dtype=np.int32)})
    tensors, notes = read_file(path)
    assert [(t.name, t.shape, t.dtype) for t in tensors] == [(n, x.shape, x.dtype.name) for n, x in arrays.items()]
    for tensor in tensors:
        assert values(tensor, 100).tobytes() == arrays[tensor.name].tobytes()
        assert values(tensor).tobytes() == arrays[tensor.name].tobytes()
    assert notes == [f"{path}: ids left out, it holds int32 and not floats"]


def test_bfloat16_comes_back(tmp_path: Path) -> None:
    x = VALUES.astype(ml_dtypes.bfloat16)
    tensor = tensors_of(write(tmp_path / "m.gguf", {"w": x.view(np.uint8)}, {"w": "BF16"}))["w"]
    assert (tensor.shape, tensor.dtype) == ((4, 512), "bfloat16")
    assert values(tensor, 300).tobytes() == x.tobytes()


def test_big_endian_floats_come_back(tmp_path: Path) -> None:
    writer = {"endianess": gguf.GGUFEndian.BIG}
    path = write(tmp_path / "m.gguf", {"w": VALUES, "h": VALUES.astype(np.float16)}, **writer)
    np.testing.assert_array_equal(values(tensors_of(path)["w"]), VALUES.reshape(-1))
    np.testing.assert_array_equal(values(tensors_of(path)["h"]), VALUES.astype(np.float16).reshape(-1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [5, 32, 100, 1000, 100_000])
def test_blocks_come_back_as_gguf_decodes_them(tmp_path: Path, kind: str, size: int) -> None:
    path = write(tmp_path / "m.gguf", {"w": VALUES, "v": VALUES}, {"w": kind})
    number = gguf.GGMLQuantizationType[kind]
    want = gguf.quants.dequantize(gguf.quants.quantize(VALUES, number), number)
    tensor = tensors_of(path)["w"]
    assert (tensor.shape, tensor.dtype) == ((4, 512), kind.lower())
    assert values(tensor, size).tobytes() == want.astype(np.float32).tobytes()


def test_every_type_of_gguf_is_decoded_or_left_out_with_a_reason(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for kind in gguf.GGMLQuantizationType:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        if elements == 1:
            continue
        blocks = rng.integers(0, 256, (2, 512 // elements * size), dtype=np.uint8)
        path = write(tmp_path / f"{kind.name}.gguf", {"w": blocks, "v": VALUES}, {"w": kind.name})
        tensors, notes = read_file(path)
        try:
            with np.errstate(all="ignore"):
                want = gguf.quants.dequantize(blocks, kind)
        except NotImplementedError:
            assert [tensor.name for tensor in tensors] == ["v"]
            assert notes[0].startswith(
                f"{path}: w left out, it holds {kind.name.lower()}, which the installed gguf does"
            )
            continue
        assert notes == []
        assert values(tensors[0], 1000).tobytes() == want.astype(np.float32).tobytes()


def test_quantised_tensors_without_gguf_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.gguf", {"w": VALUES, "q": VALUES, "v": VALUES}, {"w": "TQ1_0", "q": "Q8_0"})
    from fpsim.analysis.tensors import gguf_file

    monkeypatch.setattr(gguf_file.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    tensors, notes = read_file(path)
    assert [tensor.name for tensor in tensors] == ["q", "v"]  # fpsim knows the blocks of Q8_0 itself
    assert notes == [
        f"{path}: w left out, it holds ggml type 34, and quantised types need gguf, which is not installed: "
        "pip install gguf"
    ]


def test_every_cut_reads_or_gives_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": VALUES[0, :32].copy(), "b": VALUES[1, :32].copy()}, {"b": "Q4_0"})
    whole = path.read_bytes()
    for end in range(0, len(whole) - 16, 11):  # the last block is padded by 14 bytes
        path.write_bytes(whole[:end])
        with pytest.raises(TensorFileError) as caught:
            read_file(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


def test_every_flipped_header_byte_reads_or_gives_one_line(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"a": VALUES[0, :32].copy(), "b": VALUES[1, :32].copy()}, {"b": "Q4_0"})
    good = path.read_bytes()
    said = []
    for flip in (0x01, 0x80, 0xFF):
        for i in [*range(40), *random.Random(0).sample(range(len(good)), 300)]:
            path.write_bytes(good[:i] + bytes([good[i] ^ flip]) + good[i + 1 :])
            try:
                for tensor in read_file(path)[0]:
                    list(tensor.chunks(5))
            except TensorFileError as problem:
                said.append(str(problem))
    assert len(said) > 50
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in said)


def header(*, tensors: int = 1, pairs: int = 0, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs) + body


def entry(name: bytes = b"w", dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return struct.pack("<Q", len(name)) + name + sizes + struct.pack("<IQ", kind, offset)


def nested(depth: int) -> bytes:
    return struct.pack("<Qc", 1, b"k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * depth


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GGML" + bytes(60), "it does not begin with GGUF"),
        (header(version=1), r"version 1; wanted 2 or 3"),
        (header(tensors=1 << 60, body=bytes(64)), "it ends early|a name occurs twice"),
        (header(tensors=0, pairs=1 << 60), "it ends early"),
        (header(body=struct.pack("<Q", 1 << 60)), "a name of 1152921504606846976 bytes"),
        (header(body=struct.pack("<Q", 2) + b"\xff\xff" + bytes(40)), "a name that is not UTF-8"),
        (header(body=entry(dims=(1,) * 9)), "9 dimensions of 'w'"),
        (header(body=entry(dims=(1 << 63, 4)) + bytes(64)), "shape of 'w'"),
        (header(body=entry(dims=(1 << 31, 1 << 31)) + bytes(64)), "shape of 'w'"),
        (header(body=entry(offset=3) + bytes(64)), "offset of 'w'"),
        (header(body=entry(offset=1 << 63) + bytes(64)), "offset of 'w'"),
        (header(body=entry(dims=(1000,)) + bytes(64)), "damaged, 'w' ends at"),
        (header(body=entry(dims=(33,), kind=2) + bytes(99)), "not one of whole blocks"),
        (header(tensors=2, body=entry() + entry() + bytes(64)), "a name occurs twice"),
        (header(tensors=2, body=entry() + entry(b"v") + bytes(64)), "overlaps another tensor"),
        (header(pairs=1, body=nested(1000) + bytes(64)), "a value of type 9"),
        (header(pairs=1, body=struct.pack("<QcI", 1, b"k", 77) + bytes(64)), "a value of type 77"),
        (header(pairs=1, body=struct.pack("<QcIIQ", 1, b"k", 9, 12, 1 << 61) + bytes(64)), "it ends early"),
    ],
)
def test_hostile_headers_are_refused_at_once(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "m.gguf").write_bytes(data)
    tracemalloc.start()
    with pytest.raises(TensorFileError, match=said):
        read_file(tmp_path / "m.gguf")
    size = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size < 10_000_000


def test_a_file_that_shrinks_while_it_is_read_gives_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": VALUES, "v": VALUES}, {"v": "Q8_0"})
    tensors = tensors_of(path)
    path.write_bytes(path.read_bytes()[:-10_000])
    for tensor in tensors.values():
        with pytest.raises(TensorFileError, match="the file has changed since it was opened"):
            list(tensor.chunks(64))


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        path = write(tmp_path / f"{count}.gguf", {"w": np.ones((1, count), np.float32)}, {"w": "Q8_0"})
        tracemalloc.start()
        total = sum(float(chunk.sum()) for chunk in tensors_of(path)["w"].chunks(10_000))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert abs(total / count - 1) < 1e-3
        return size

    peak(32_000)
    assert peak(3_200_000) < peak(160_000) + 200_000


def test_the_study_takes_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"w": VALUES, "v": VALUES}, {"w": "Q4_0"})
    report = fp.analysis.study(path, formats="e4m3", roundings="nearest_even", scalings=None)
    assert [row.tensor for row in report.recommendations] == ["w", "v"]
