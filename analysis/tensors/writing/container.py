"""Tensor files whose header is written before the elements: .safetensors and .gguf."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.tensors.files import SAFETENSORS_CODES, SAFETENSORS_DTYPES
from fpsim.arrays import Array

WORDS = {np.dtype(kind): word for word, kind in {**SAFETENSORS_DTYPES, **SAFETENSORS_CODES}.items()}
HEADER_ALIGNMENT = 8  # bytes
GGUF_ALIGNMENT = 32
GGUF_KINDS = {
    "float32": 0, "float16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "int8": 24, "int32": 26,
    "int64": 27, "float64": 28, "bfloat16": 30,
}  # fmt: skip
GGUF_FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7}  # general.file_type of files mostly of a type
GGUF_NAME = 63  # bytes of a tensor's name that ggml keeps
U32, STRING = 4, 8  # numbers of GGUF's value types


class PlacedTensor(NamedTuple):
    """The entry of a tensor in the header of a file to be written.

    Attributes:
      name: the tensor's name in the file.
      kind: the name of the dtype (as the file format calls it) or of the GGUF type.
      shape: the tensor's shape; for GGUF blocks, that of the weight.
      nbytes: the number of bytes of the elements.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    nbytes: int


class TensorFile:
    """A file being written, whose tensors arrive in pieces; several threads may write different tensors at once.

    Args:
      path: the path of the file, which is created.
      header: the bytes before the elements.
      tensors: the tensors, in their order in the file.
      alignment: each tensor begins at a multiple of this many bytes after the header.
    """

    def __init__(self, path: Path, header: bytes, tensors: Sequence[PlacedTensor], alignment: int = 1) -> None:
        self._file = path.open("wb")
        self._lock = threading.Lock()
        self._file.write(header)
        self._places: dict[str, list[int]] = {}  # name -> the next byte to write, the end of the tensor
        begin = len(header)
        for one in tensors:
            self._places[one.name] = [begin, begin + one.nbytes]
            begin = -(-(begin + one.nbytes - len(header)) // alignment) * alignment + len(header)
        self._file.truncate(begin)

    def write(self, name: str, piece: Array) -> None:
        """Write the next elements, the array `piece`, of the tensor called `name`."""
        place = self._places[name]
        data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
        assert place[0] + data.size <= place[1], f"{name} has more elements than its shape"
        with self._lock:
            self._file.seek(place[0])
            self._file.write(data.data)
        place[0] += data.size

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if kind is None:
            short = [name for name, (now, end) in self._places.items() if now != end]
            assert not short, f"{short[0]} has fewer elements than its shape"


def safetensors_header(tensors: Sequence[PlacedTensor], metadata: Mapping[str, str]) -> bytes:
    """Return the start of a .safetensors file: 8 bytes with the header's length, then the header in JSON, padded to a
    multiple of 8 bytes.

    tensors: the entries, in the order of the file. metadata: name -> text; `format: pt` is added unless it has a
    format.
    """
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    begin = 0
    for one in tensors:
        entries[one.name] = {"dtype": one.kind, "shape": list(one.shape), "data_offsets": [begin, begin + one.nbytes]}
        begin += one.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def gguf_header(tensors: Sequence[PlacedTensor], architecture: str, kind: str) -> bytes:
    """Return the header of a little-endian .gguf file of version 3, padded up to its first element.

    tensors: the entries, in the order of the file. architecture: the model's type, stored as metadata. `kind`: the type
    of the quantised blocks, such as "Q8_0".
    """
    pairs = [
        _text("general.architecture") + struct.pack("<I", STRING) + _text(architecture),
        _text("general.quantization_version") + struct.pack("<II", U32, 2),
        _text("general.file_type") + struct.pack("<II", U32, GGUF_FILE_TYPES[kind]),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    begin = 0
    for one in tensors:
        header += _text(one.name) + struct.pack("<I", len(one.shape))
        header += struct.pack(f"<{len(one.shape)}Q", *one.shape[::-1])
        header += struct.pack("<IQ", GGUF_KINDS[one.kind], begin)
        begin = -(-(begin + one.nbytes) // GGUF_ALIGNMENT) * GGUF_ALIGNMENT
    return header + bytes(-len(header) % GGUF_ALIGNMENT)


def _text(text: str) -> bytes:
    """Return a string as GGUF stores it: its length in 8 bytes, then its UTF-8 bytes."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
