"""Tensor files that NumPy and safetensors write, read in place: the header is checked, elements are read in chunks.

Files are untrusted: nothing is unpickled, every size is checked against the file's before anything is allocated, and
elements are read rather than mapped, so that a truncated file causes an error and not a bus error.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.analysis.tensors.layouts.joining import joined
from fpsim.analysis.tensors.operand import by_columns, pieces_of
from fpsim.analysis.tensors.reading import BYTES_LIMIT, Found, one_line, read_fully, reader, refuse_changed, stream
from fpsim.analysis.tensors.tensor import CODES, Tensor, TensorFileError
from fpsim.arrays import FORMAT_OF, Array
from fpsim.lazy import deferred

torch_file = deferred("fpsim.analysis.tensors.torch_file")
onnx_file = deferred("fpsim.analysis.tensors.onnx_file")
gguf_file = deferred("fpsim.analysis.tensors.gguf_file")

HEADER_LIMIT = 100_000_000  # bytes of a safetensors header, as in the safetensors library
NPY_HEADER_LIMIT = 10_000  # bytes of a .npy header, as in NumPy, which reads up to 4 GiB before it compares
COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # NumPy's; others expand a few bytes to any size
PACKED_BYTES, PACKED_TIMES = 1 << 26, 100  # larger arrays that are compressed more than this are refused as traps

# safetensors' names of float dtypes -> dtypes.
SAFETENSORS_DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
# safetensors' names of integer dtypes, which may be codes.
SAFETENSORS_CODES: dict[str, Any] = {
    "U8": np.uint8, "I8": np.int8, "I32": np.int32, "U32": np.uint32, "I64": np.int64,
}  # fmt: skip
OTHER_BITS = {
    "BOOL": 8, "U16": 16, "I16": 16, "U64": 64, "C64": 64, "C128": 128, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


def tensor_files(path: Path) -> list[Path]:
    """Return the tensor files at a path: the file itself, or all files of known extensions in a folder, sorted by name.

    Raises:
      TensorFileError: there is no such file, its extension is unknown, or the folder has no tensor file.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in READERS and file.is_file())
        if not files:
            raise TensorFileError(f"{path}: no tensor file in this folder; wanted {', '.join(READERS)}")
        return files
    if not path.exists():
        raise TensorFileError(f"{path}: no such file")
    if path.suffix.lower() not in READERS:
        raise TensorFileError(f"{path}: unknown file extension; wanted {', '.join(READERS)}")
    return [path]


def read_file(path: Path) -> Found:
    """Return (the tensors of a file, with quantised weights decoded; a sentence for each tensor left out).

    Raises:
      TensorFileError: the file cannot be read, is damaged, or has no float tensor.
    """
    stored, notes = read_stored(path)
    tensors, more = joined(stored)
    if not tensors:
        raise no_floats(path, [*notes, *more])
    return tensors, [*notes, *more]


def read_stored(path: Path) -> Found:
    """Return (the tensors of a file, with codes and scales as separate tensors; a sentence for each left out).

    Raises:
      TensorFileError: the file cannot be read, or is damaged.
    """
    try:
        if path.stat().st_size == 0:
            raise TensorFileError(f"{path}: empty file")
        return READERS[path.suffix.lower()](path)
    except TensorFileError:
        raise
    except (OSError, ImportError) as problem:
        raise TensorFileError(f"{path}: {one_line(problem)}") from problem


def no_floats(path: Path, notes: Sequence[str]) -> TensorFileError:
    """Return the error that the file `path` has no float tensor; notes: why each of its tensors was left out."""
    first = f"; {notes[0].removeprefix(f'{path}: ')}" if notes else ""
    more = f", and {len(notes) - 1} more" if len(notes) > 1 else ""
    return TensorFileError(f"{path}: no float tensor in it{first}{more}")


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is that of floats which fpsim can round, in any byte order."""
    return dtype.newbyteorder("=") in FORMAT_OF


# ---- .npy and .npz


def _npy_header(opened: IO[bytes], path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a .npy header at the position of the open file `opened`; return (shape, is in Fortran order, dtype).

    Raises a TensorFileError if the header is damaged. path: the file, for messages.
    """
    try:
        version = np.lib.format.read_magic(opened)
        if version not in ((1, 0), (2, 0)):  # 3.0 exists for the field names of structured arrays
            raise TensorFileError(f"{path}: .npy version {version[0]}.{version[1]}; wanted 1.0 or 2.0")
        prefix = read_fully(opened, 2 if version == (1, 0) else 4)
        length = int.from_bytes(prefix, "little")
        if length > NPY_HEADER_LIMIT:
            raise TensorFileError(f"{path}: damaged .npy header (length {length})")
        header = io.BytesIO(prefix + read_fully(opened, length))
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(header)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(header)
    except TensorFileError:
        raise
    except Exception as problem:  # NumPy's parser raises many types for damaged headers
        raise TensorFileError(f"{path}: damaged .npy header ({one_line(problem)})") from problem
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 0 for n in shape):
        raise TensorFileError(f"{path}: damaged .npy header (shape {shape})")
    return shape, fortran, dtype


def _in_c_order(read: Callable[[int], Iterator[Array]], shape: tuple[int, ...]) -> Callable[[int], Iterator[Array]]:
    """Return a function like `read` that yields the elements of an array in C order; the file has Fortran order.

    read: read(size) yields the elements in the order of the file, `size` at a time. shape: shape of the array.
    """
    if len(shape) < 2 or not all(shape):
        return read
    inner = math.prod(shape[1:])
    by_rows = by_columns(read, inner, shape[0])  # the file has a column for each index along the first axis
    axes = (0, *range(len(shape) - 1, 0, -1))

    def read_rows(size: int) -> Iterator[Array]:
        bands = by_rows(max(CHUNK // inner, 1) * inner)
        return pieces_of((band.reshape(-1, *shape[:0:-1]).transpose(axes).reshape(-1) for band in bands), size)

    return read_rows


def _left_out(path: Path, name: str, dtype: np.dtype[Any]) -> str:
    """Return the sentence that says why an array called `name`, of this dtype, in the file `path` is left out."""
    if dtype.kind == "V" and not dtype.names and dtype.itemsize <= 2:
        return (
            f"{path}: {name} holds raw bytes ({dtype.str}), as NumPy saves ml_dtypes arrays. Save it with safetensors "
            "or as x.astype(np.float32)"
        )
    kind = "objects" if dtype.hasobject else dtype.name
    return f"{path}: {name} left out, it holds {kind} and not floats"


def _read_npy(path: Path) -> Found:
    """Return ([the tensor of a .npy file], []) if it holds floats, else ([], [a sentence that says why not])."""
    with path.open("rb") as opened:
        shape, fortran, dtype = _npy_header(opened, path)
        offset = opened.tell()
    if not is_float(dtype):
        return [], [_left_out(path, path.stem, dtype)]
    count = math.prod(shape)
    size_in_file = path.stat().st_size - offset
    if size_in_file != count * dtype.itemsize:
        raise TensorFileError(f"{path}: damaged, wanted {count * dtype.itemsize} bytes of elements, got {size_in_file}")
    read = reader(path, offset, dtype, count, dtype.byteorder)
    return [Tensor(path.stem, shape, dtype.name, _in_c_order(read, shape) if fortran else read, str(path))], []


def _read_npz(path: Path) -> Found:
    """Return (the tensors of a .npz file that hold floats or may hold codes, a sentence for each other array)."""
    tensors, notes = [], []
    try:
        with zipfile.ZipFile(path) as archive:
            if len(set(archive.namelist())) < len(archive.namelist()):
                raise TensorFileError(f"{path}: damaged .npz archive (a name occurs twice)")
            for member in archive.infolist():
                if not member.filename.endswith(".npy"):
                    notes.append(f"{path}: {member.filename} left out, it is not a .npy array")
                    continue
                name = member.filename.removesuffix(".npy")
                if member.compress_type not in COMPRESSIONS:
                    raise TensorFileError(f"{path}: {name} has a compression that NumPy does not write. Save it again")
                if member.file_size > max(PACKED_BYTES, PACKED_TIMES * member.compress_size):
                    raise TensorFileError(
                        f"{path}: {name} unpacks to {member.file_size} bytes from {member.compress_size}, more than "
                        f"{PACKED_TIMES} times as many. If that is right, save it uncompressed, with np.savez"
                    )
                with archive.open(member) as opened:
                    shape, fortran, dtype = _npy_header(opened, path)
                    offset = opened.tell()
                left_out = "" if is_float(dtype) else _left_out(path, name, dtype)
                if left_out and dtype.newbyteorder("=").name not in CODES:
                    notes.append(left_out)
                    continue
                if member.file_size - offset != math.prod(shape) * dtype.itemsize:
                    raise TensorFileError(f"{path}: damaged, the size of {name} does not fit its shape {shape}")
                read = _npz_reader(path, member.filename, shape, dtype)
                read = _in_c_order(read, shape) if fortran else read
                tensors.append(Tensor(name, shape, dtype.name, read, str(path), left_out=left_out))
    except TensorFileError:
        raise
    except Exception as problem:  # zipfile raises a dozen types for damaged archives
        raise TensorFileError(f"{path}: damaged or not an .npz archive ({one_line(problem)})") from problem
    return tensors, notes


def _npz_reader(
    path: Path, member: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[int], Iterator[Array]]:
    """Return a function read(size) that yields the elements of one array of a .npz file, at most `size` at a time.

    path: the file. member: name of the array's file in the archive. shape, dtype: those of the array, as its header
    says. The elements are in the order of the file.
    """

    length = path.stat().st_size

    def read(size: int) -> Iterator[Array]:
        refuse_changed(path, length)
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as opened:
                _npy_header(opened, path)
                yield from stream(opened, dtype, math.prod(shape), size, path)
                opened.read(1)  # reaching the end checks the CRC
        except (TensorFileError, GeneratorExit):
            raise
        except Exception as problem:
            raise TensorFileError(f"{path}: {member} is damaged ({one_line(problem)})") from problem

    return read


# ---- .safetensors: 8 bytes of header length, the header in JSON, the elements


def safetensors_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a .safetensors file, name -> text; {} without metadata.

    Raises:
      TensorFileError: the file's header is damaged.
    """
    metadata = _safetensors_header(path)[0].get("__metadata__", {})
    return {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


def _safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return (header of a .safetensors file, tensor name -> entry; its length in bytes).

    Raises:
      TensorFileError: the file is damaged.
    """
    with path.open("rb") as opened:
        header_bytes = int.from_bytes(opened.read(8), "little")
        available = path.stat().st_size - 8
        if available < 2 or not 2 <= header_bytes <= min(available, HEADER_LIMIT):
            raise TensorFileError(f"{path}: damaged .safetensors header (length {header_bytes})")
        text = opened.read(header_bytes)
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as problem:
        raise TensorFileError(f"{path}: damaged .safetensors header ({one_line(problem)})") from problem
    if not isinstance(header, dict):
        raise TensorFileError(f"{path}: damaged .safetensors header (not an object)")
    return header, header_bytes


def _read_safetensors(path: Path) -> Found:
    """Return (tensors of a .safetensors file that hold floats or may hold codes, a sentence for each other tensor)."""
    header, header_bytes = _safetensors_header(path)
    available = path.stat().st_size - 8
    metadata = header.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):  # which the safetensors package refuses
        raise TensorFileError(f"{path}: damaged .safetensors header (__metadata__ must hold texts)")
    rows = [(name, *_checked_entry(path, name, entry)) for name, entry in header.items()]
    end = 0
    for name, _, _, begin, stop in sorted(rows, key=lambda row: row[3:]):
        if begin != end:  # the format allows neither gaps nor overlaps
            raise TensorFileError(f"{path}: damaged .safetensors header ({name!r} starts at {begin}, not at {end})")
        end = stop
    if end != available - header_bytes:
        raise TensorFileError(f"{path}: damaged, wanted {end} bytes of elements, got {available - header_bytes}")
    tensors, notes = [], []
    for name, dtype_name, shape, begin, _ in rows:
        left_out = "" if dtype_name in SAFETENSORS_DTYPES else f"{path}: {name} left out, it holds {dtype_name}"
        known = SAFETENSORS_DTYPES.get(dtype_name, SAFETENSORS_CODES.get(dtype_name))
        if known is None:
            notes.append(left_out)
            continue
        dtype = np.dtype(known)
        read = reader(path, 8 + header_bytes + begin, dtype, math.prod(shape))
        tensors.append(Tensor(name, shape, dtype.name, read, str(path), left_out=left_out))
    return tensors, notes


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return (name, value) pairs as a dictionary; raise a ValueError if a name occurs twice."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _checked_entry(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    """Return (name of the dtype, shape, first byte, byte after the last) of a tensor, from its entry in the header.

    path: the file, for messages. entry: the value that the header's JSON has for the tensor's name.

    Raises a TensorFileError if a field is missing or wrong, or if shape and dtype need another number of bytes.
    """

    def damaged(problem: str) -> TensorFileError:
        return TensorFileError(f"{path}: damaged .safetensors header ({problem} of {name!r})")

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise damaged("entry")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if (
        not isinstance(shape, list)
        or not all(type(n) is int and 0 <= n < BYTES_LIMIT for n in shape)
        or len(shape) > 64
    ):
        raise damaged("shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
        raise damaged("data_offsets")
    if not isinstance(dtype, str):
        raise damaged("dtype")
    known = SAFETENSORS_DTYPES.get(dtype, SAFETENSORS_CODES.get(dtype))
    bits = 8 * np.dtype(known).itemsize if known is not None else OTHER_BITS.get(dtype)
    if bits is not None and -(-math.prod(shape) * bits // 8) != offsets[1] - offsets[0]:
        raise damaged("size")
    if offsets[1] < offsets[0]:
        raise damaged("data_offsets")
    return dtype, tuple(shape), offsets[0], offsets[1]


# ---- all kinds; some have separate modules, which load on first use


READERS: dict[str, Callable[[Path], Found]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".pt", ".pth", ".bin"), lambda path: torch_file().read_torch(path)),
    ".onnx": lambda path: onnx_file().read_onnx(path),
    ".gguf": lambda path: gguf_file().read_gguf(path),
}
