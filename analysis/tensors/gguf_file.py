"""Tensors of .gguf files: floats as stored, and quantised blocks as the values that they represent.

The layout is that of ggml's docs/gguf.md. fpsim reads headers itself, because a file is untrusted and the gguf package
maps the file and trusts its counts. Blocks of the types IQ1, IQ2, IQ3 and TQ are decoded by that package.
"""

from __future__ import annotations

import importlib.util
import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.layouts.gguf_blocks import KINDS, BlockKind
from fpsim.analysis.tensors.layouts.gguf_large_blocks import LARGE_KINDS
from fpsim.analysis.tensors.operand import pieces_of
from fpsim.analysis.tensors.reading import BYTES_LIMIT, Found, one_line, read_fully, reader
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.arrays import Array
from fpsim.display.optional import load

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, unless the file's metadata have another
NAME_LIMIT = 65_535  # bytes of a key, as in the specification; tensors' names are shorter
DIMENSIONS_LIMIT = 8  # ggml has 4
DEPTH_LIMIT = 4  # levels of arrays in arrays, more than any program writes
STRING, ARRAY = 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # type of a value -> its size
FLOATS: dict[int, Any] = {0: np.float32, 1: np.float16, 28: np.float64, 30: ml_dtypes.bfloat16}
INTEGERS = {24: "int8", 25: "int16", 26: "int32", 27: "int64"}


class _Entry(NamedTuple):
    """A tensor as the header of the file describes it.

    name: its name. shape: slowest axis first. kind: number of its type in ggml. offset: its first byte, counted from
    `_Header.data`.
    """

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def read_gguf(path: Path) -> Found:
    """Return (the tensors of a .gguf file, a sentence for each tensor left out).

    Quantised tensors are read as the float32 values of their blocks.

    Raises:
      TensorFileError: the file is damaged, or has an unknown version.
    """
    with path.open("rb") as opened:
        header = _Header(opened, path)
        entries = header.read()
    tensors: list[Tensor] = []
    notes: list[str] = []
    ends: list[tuple[int, int, str]] = []
    available = path.stat().st_size
    for entry in entries:
        blocks = None if entry.kind in FLOATS else _blocks(entry.kind)
        size = _size(entry, blocks, path)
        if size is not None:
            begin = header.data + entry.offset
            if begin + size > available:
                raise TensorFileError(
                    f"{path}: damaged, {entry.name!r} ends at {begin + size}, the file at {available}"
                )
            ends.append((begin, begin + size, entry.name))
        read = _read_of(entry, blocks, header, path)
        if isinstance(read, str):
            notes.append(f"{path}: {entry.name} left out, {read}")
        else:
            bits = None if blocks is None else 8 * blocks.bytes / blocks.elements
            layout = "" if blocks is None else f"gguf:{blocks.name}"
            dtype = str(np.dtype(FLOATS[entry.kind]).name) if blocks is None else blocks.name.lower()
            tensors.append(Tensor(entry.name, entry.shape, dtype, read, str(path), bits=bits, layout=layout))
    last = 0
    for begin, end, name in sorted(ends):
        if begin < last and end > begin:  # else a small file could hold any number of large tensors
            raise TensorFileError(f"{path}: damaged .gguf header ({name!r} overlaps another tensor)")
        last = max(last, end)
    return tensors, notes


class _Header:
    """A reader of the header of a .gguf file; after `read`, `data` is the position of the elements in the file.

    Args:
      opened: the open file, at its start.
      path: its path, for messages.
    """

    def __init__(self, opened: IO[bytes], path: Path) -> None:
        self.opened = opened
        self.path = path
        self.left = os.fstat(opened.fileno()).st_size
        self.order = "<"
        self.alignment = ALIGNMENT
        self.data = 0

    def read(self) -> list[_Entry]:
        """Read the header from its start, and return the entry of every tensor."""
        if self._take(4) != MAGIC:
            raise TensorFileError(f"{self.path}: damaged or not a .gguf file (it does not begin with GGUF)")
        version = self._number("I")
        if version & 0xFFFF == 0:  # written on a machine of the other byte order
            self.order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in VERSIONS:
            raise TensorFileError(f"{self.path}: .gguf version {version}; wanted {' or '.join(map(str, VERSIONS))}")
        tensors, pairs = self._number("Q"), self._number("Q")
        for _ in range(pairs):  # each takes bytes of the file, so that this ends
            key, kind = self._text(), self._number("I")
            if key == "general.alignment" and kind == 4:
                self.alignment = self._number("I")
            else:
                self._skip_value(kind, 0)
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise self._damaged(f"alignment {self.alignment}")
        entries = [self._entry() for _ in range(min(tensors, self.left))]
        if len(entries) < tensors:
            raise self._damaged(f"{tensors} tensors")
        if len({entry.name for entry in entries}) < len(entries):
            raise self._damaged("a name occurs twice")
        self.data = -(-self.opened.tell() // self.alignment) * self.alignment
        return entries

    def _entry(self) -> _Entry:
        """Read and return the next entry of the header: name, shape, type and offset of a tensor."""
        name, count = self._text(), self._number("I")
        if count > DIMENSIONS_LIMIT:
            raise self._damaged(f"{count} dimensions of {name!r}")
        shape = tuple(self._number("Q") for _ in range(count))[::-1]  # the file has the fastest first
        kind, offset = self._number("I"), self._number("Q")
        if any(n >= BYTES_LIMIT for n in shape) or math.prod(shape) >= BYTES_LIMIT:
            raise self._damaged(f"shape of {name!r}")
        if offset % self.alignment or offset >= BYTES_LIMIT:
            raise self._damaged(f"offset of {name!r}")
        return _Entry(name, shape, kind, offset)

    def _skip_value(self, kind: int, depth: int) -> None:
        """Skip one metadata value; `kind`: number of its type, `depth`: number of arrays that contain it."""
        if kind in SCALAR_BYTES:
            self._skip(SCALAR_BYTES[kind])
        elif kind == STRING:
            self._skip(self._number("Q"))
        elif kind == ARRAY and depth < DEPTH_LIMIT:
            inner, count = self._number("I"), self._number("Q")
            if inner in SCALAR_BYTES:
                self._skip(count * SCALAR_BYTES[inner])
                return
            for _ in range(count):
                self._skip_value(inner, depth + 1)
        else:
            raise self._damaged(f"a value of type {kind}")

    def _text(self) -> str:
        """Read and return the next string: its length in 8 bytes, then its UTF-8 bytes."""
        length = self._number("Q")
        if length > NAME_LIMIT:
            raise self._damaged(f"a name of {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as problem:
            raise self._damaged("a name that is not UTF-8") from problem

    def _number(self, kind: str) -> int:
        """Read and return the next number; `kind`: its format character in the module `struct`, such as "Q"."""
        return int(struct.unpack(f"{self.order}{kind}", self._take(struct.calcsize(f"={kind}")))[0])

    def _take(self, count: int) -> bytes:
        """Read and return the next `count` bytes; raise a TensorFileError if the file ends before."""
        self._record(count)
        data = read_fully(self.opened, count)
        if len(data) < count:
            raise self._damaged("it ends early")
        return data

    def _skip(self, count: int) -> None:
        """Skip the next `count` bytes; raise a TensorFileError if fewer are left."""
        self._record(count)
        self.opened.seek(count, os.SEEK_CUR)

    def _record(self, count: int) -> None:
        """Record that the next `count` bytes are read; raise a TensorFileError if the file has fewer left."""
        self.left -= count
        if self.left < 0:
            raise self._damaged("it ends early")

    def _damaged(self, problem: str) -> TensorFileError:
        """Return the error for a damaged header; `problem`: text that says how it is damaged."""
        return TensorFileError(f"{self.path}: damaged .gguf header ({problem})")


def _size(entry: _Entry, blocks: BlockKind | None, path: Path) -> int | None:
    """Return the size of a tensor in bytes; None if it holds neither floats nor a known quantised type.

    entry: the tensor's entry in the header. blocks: the blocks of a known quantised type, else None. Raises a
    TensorFileError if rows do not consist of whole blocks.
    """
    if entry.kind in FLOATS:
        return math.prod(entry.shape) * int(np.dtype(FLOATS[entry.kind]).itemsize)
    if blocks is None:
        return None
    if blocks.elements > 1 and (not entry.shape or entry.shape[-1] % blocks.elements):
        raise TensorFileError(f"{path}: damaged .gguf header (the shape of {entry.name!r} is not one of whole blocks)")
    return math.prod(entry.shape) // blocks.elements * blocks.bytes


def _blocks(kind: int) -> BlockKind | None:
    """Return the BlockKind (name, sizes, decoder) of ggml's type number `kind`; None if it is not known.

    The package gguf, if it is installed, is asked for types that fpsim does not decode itself.
    """
    known = KINDS.get(kind) or LARGE_KINDS.get(kind)
    if known is not None or importlib.util.find_spec("gguf") is None:
        return known
    gguf = load("gguf", "quantised tensors of .gguf files")
    try:
        number = gguf.GGMLQuantizationType(kind)
        elements, size = gguf.GGML_QUANT_SIZES[number]
    except (ValueError, KeyError):
        return None
    # one long row, which gguf decodes in one go
    return BlockKind(number.name, size, lambda data: gguf.quants.dequantize(data.reshape(1, -1), number), elements)


def _read_of(
    entry: _Entry, blocks: BlockKind | None, header: _Header, path: Path
) -> Callable[[int], Iterator[Array]] | str:
    """Return a function read(size) that yields a tensor's elements in chunks, or the reason why it is left out.

    entry: the tensor's entry in the header. blocks: the blocks of a known quantised type, else None. header: the
    header, already read, of the file `path`.
    """
    begin, count = header.data + entry.offset, math.prod(entry.shape)
    if entry.kind in FLOATS:
        dtype = np.dtype(FLOATS[entry.kind])
        if header.order == ">" and dtype == ml_dtypes.bfloat16:
            return "it holds bfloat16 in a big-endian file"
        return reader(path, begin, dtype, count, header.order)
    if entry.kind in INTEGERS:
        return f"it holds {INTEGERS[entry.kind]} and not floats"
    if blocks is None:
        held = f"it holds ggml type {entry.kind}"
        if importlib.util.find_spec("gguf") is None:
            return f"{held}, and quantised types need gguf, which is not installed: pip install gguf"
        return f"{held}, which the installed gguf does not know"
    if header.order == ">":
        return f"it holds {blocks.name.lower()} in a big-endian file"
    try:
        _decoded(np.zeros(blocks.bytes, np.uint8), blocks)
    except Exception as problem:  # NotImplementedError, or another type in later versions of gguf
        return f"it holds {blocks.name.lower()}, which the installed gguf does not decode ({one_line(problem)})"

    stored = reader(path, begin, np.dtype(np.uint8), count // blocks.elements * blocks.bytes)

    def read(size: int) -> Iterator[Array]:
        bands = stored(max(1, size // blocks.elements) * blocks.bytes)
        return pieces_of((_decoded(data, blocks) for data in bands), size)

    return read


def _decoded(data: Array, blocks: BlockKind) -> Array:
    """Return the values of whole blocks as a flat float32 array; data: their bytes. blocks: the type of the blocks."""
    with np.errstate(all="ignore"):  # scales may be Inf and NaN
        values = blocks.decode(data.reshape(-1, blocks.bytes))
    return np.ascontiguousarray(values, np.float32).reshape(-1)
