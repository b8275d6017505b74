"""Files of arrays and a header, .npz and .safetensors: written completely or not at all, checked when read.

safetensors has no checksum, and a zip file's checksums cover one array each. So the header carries a SHA-256 over
itself and over every array's name, dtype, shape and bytes. Files are untrusted: nothing is unpickled, and sizes are
checked before memory is allocated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import reprlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.files import naming, path_of, sweep

VERSION = 1  # of the layout: one envelope of JSON text with the arrays
ENVELOPE = "__fpsim__"  # name of the envelope: a member of the npz, a key of the safetensors metadata
DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
)  # fmt: skip  # both kinds of file hold these
BYTES_AT_ONCE = 1 << 24  # bytes of a read, so that a file is not in memory twice

Envelope = dict[str, Any]  # version, sha256, header


class ScaledFileError(ValueError):
    """A file that cannot be loaded; the message is one line that starts with the file's path."""


def save(path: str | os.PathLike[str], arrays: Mapping[str, Array], header: Mapping[str, Any]) -> None:
    """Write arrays and a header to a file, completely or not at all: on failure the old file stays.

    The same content gives the same bytes. Plain `numpy.load` or `safetensors` read the arrays under their names.

    Args:
      path: ends in .npz or .safetensors, which decides the kind of file. A file of that name is replaced.
      arrays: names (identifiers that do not begin with two underscores) and arrays of bool, integers up to 64 bits,
        float16, float32 or float64, of any shape and in native byte order.
      header: a dict that JSON restores unchanged.

    Raises:
      ValueError: the path has another ending; there is no array; or the file cannot hold a name or the header.
      TypeError: an array has another dtype.
      FileNotFoundError: the folder does not exist.
      PermissionError: there is a file of that name, and it is read-only.
      ImportError: .safetensors without the safetensors package.
      OSError: the file cannot be written, for example because the disk is full.

    Example:
      >>> import tempfile
      >>> from fpsim.scaling.file import load, save
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     save(f"{folder}/x.npz", {"scales": np.float32([1, -0.0])}, {"block": [1, 128]})
      ...     load(f"{folder}/x.npz")
      ({'scales': array([ 1., -0.], dtype=float32)}, {'block': [1, 128]})
    """
    path = path_of(path)
    _, write = _kind(path)
    if not arrays:
        raise ValueError("there must be an array to save; got none. Files of a header alone are JSON files.")
    contents = {name: _checked_array(name, arrays[name]) for name in sorted(arrays, key=str)}
    plain = _checked_header(header)
    envelope = {"version": VERSION, "sha256": _digest(plain, contents), "header": plain}
    with _replacing(path) as draft:
        write(draft, json.dumps(envelope), contents)


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the arrays and the header of a file that `save` wrote, bit for bit.

    Returns:
      The arrays by name, as copies in memory, and the header.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the path ends in neither .npz nor .safetensors; or the file is damaged, cut short, not written by
        fpsim, or of a later version.
      ImportError: .safetensors without the safetensors package.

    Example:
      >>> from fpsim.scaling.file import load
      >>> load("weights.bin")
      Traceback (most recent call last):
      ValueError: the file's name must end in .npz or .safetensors; got 'weights.bin'. Use 'weights.npz'.
    """
    path = path_of(path)
    read, _ = _kind(path)
    with path.open("rb") as opened:  # a missing or unreadable file raises its own error
        empty = not opened.read(1)
    try:
        if empty:
            raise ValueError("the file is empty")
        envelope, arrays = read(path)
        header = envelope["header"]
        if type(header) is not dict or envelope["sha256"] != _digest(header, arrays):
            raise ValueError("its content differs from its checksum")
    except (ScaledFileError, ImportError, MemoryError):
        raise
    except Exception as problem:  # zipfile, NumPy and safetensors raise many kinds for damaged files
        raise ScaledFileError(
            f"{path}: damaged, or of another kind than {path.suffix}; wanted a file as fpsim saved it "
            f"({_one_line(problem)}). Take another copy of it, or save it again."
        ) from problem
    return arrays, header


def _kind(path: Path) -> tuple[Reader, Writer]:
    """Return (the function that reads, the function that writes) files with this path's ending.

    Raises:
      ValueError: the ending is neither .npz nor .safetensors.
    """
    functions = KINDS.get(path.suffix.lower())
    if functions is None:
        example = path.with_suffix(".npz").name if path.stem else "codes.npz"
        raise ValueError(f"the file's name must end in {' or '.join(KINDS)}; got {shown(path.name)}. Use {example!r}.")
    return functions


def _checked_array(name: str, x: Array) -> Array:
    """Return the array x in C order, after checking that a file can hold it under the name `name`.

    Raises:
      ValueError: the name is not an ASCII identifier, or begins with two underscores.
      TypeError: the dtype is not one that both kinds of file hold, in native byte order.
    """
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("__"):
        raise ValueError(
            f"names of arrays must be ASCII identifiers that do not begin with two underscores; got {shown(name)}. "
            "Use a name such as 'codes'."
        )
    array = np.asarray(x, order="C")
    if array.dtype.name not in DTYPES or not array.dtype.isnative:
        raise TypeError(
            f"{name} must be one of {', '.join(DTYPES)}, in native byte order; got {array.dtype}. "
            "View other types of one or two bytes as uint8 or uint16."
        )
    return array


def _checked_header(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header after it has been written to JSON and read back; raise a ValueError if that changes it."""
    try:
        plain = json.loads(json.dumps(header, allow_nan=False))
    except (TypeError, ValueError) as problem:
        plain, reason = None, f" ({_one_line(problem)})"
    else:
        reason = ""
    if not isinstance(plain, dict) or plain != header:
        raise ValueError(
            f"the header must come back from JSON as it is; got {reprlib.repr(header)}{reason}. "
            "Use a dict with text keys, lists instead of tuples, Python's own numbers, and neither NaN nor infinity."
        )
    return plain


def _digest(header: dict[str, Any], arrays: Mapping[str, Array]) -> str:
    """Return the SHA-256, in hex, of the header and of each array's name, dtype, shape and bytes.

    It covers json.dumps([VERSION, header]), and then for each array, sorted by name, json.dumps([name, dtype.str,
    shape]) and the elements in C order. Texts are in UTF-8.
    """
    digest = hashlib.sha256(json.dumps([VERSION, header]).encode())
    for name, x in sorted(arrays.items()):
        digest.update(json.dumps([name, x.dtype.str, x.shape]).encode())
        digest.update(_bytes(x))
    return digest.hexdigest()


def _bytes(x: Array) -> memoryview:
    """Return a view of the bytes of x, an array in C order."""
    return x.reshape(-1).view(np.uint8).data


def _opened(path: Path, text: bytes | str) -> Envelope:
    """Return the envelope (a dict of version, sha256 and header) of a file from its JSON text.

    path: the file's path, for the message.

    Raises:
      ScaledFileError: a later version of fpsim wrote the file.
      ValueError: the text is no JSON, the version is not an integer of at least 1, or the keys are not
        version, sha256 and header.
    """
    envelope = json.loads(text)
    version = envelope.get("version") if isinstance(envelope, dict) else None
    if type(version) is not int or version < 1:
        raise ValueError(f"its version is {version!r}")
    if version > VERSION:
        raise ScaledFileError(
            f"{path}: wanted a file of version {VERSION}, got one of version {version}, which a later fpsim wrote. "
            "Update this one: git pull in its checkout."
        )
    if envelope.keys() != {"version", "sha256", "header"}:
        raise ValueError(f"its header holds {', '.join(envelope)}")
    return dict(envelope)


def _foreign(path: Path, names: list[str], instead: str) -> ScaledFileError:
    """Return the error for a file that fpsim did not save.

    path: the file. names: the names of its arrays. instead: the function to read it with, such as "numpy.load".
    """
    held = reprlib.repr(sorted(names)) if names else "nothing"
    return ScaledFileError(
        f"{path}: wanted a file that fpsim saved, got one without its header {ENVELOPE!r} (it holds {held}). "
        f"Read plain arrays with {instead}."
    )


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces `path` when the block ends, and is removed if the block raises.

    Raises:
      FileNotFoundError: the folder does not exist.
      PermissionError: `path` exists and is read-only.
    """
    target = Path(os.path.realpath(path))  # of a link, the file to which it leads is replaced
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{path} cannot be saved: there is no folder {str(target.parent)!r}. Create it first, for example with "
            f"Path({str(target.parent)!r}).mkdir(parents=True)."
        )
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{path} is read-only and stays as it is. Choose another name, or make it writable.")
    sweep(target.parent, ".writing-*")
    with naming(path):
        drafts = tempfile.TemporaryDirectory(prefix=".writing-", dir=target.parent)
    with drafts as folder:
        draft = Path(folder) / target.name
        draft.touch()
        mode = (target if target.exists() else draft).stat().st_mode
        yield draft
        with draft.open("r+b") as written:
            os.fsync(written.fileno())  # else a power cut may leave the new name without its content
        draft.chmod(mode)  # safetensors makes files that only their owner can read
        with naming(path):
            os.replace(draft, target)


def _write_npz(path: Path, text: str, arrays: Mapping[str, Array]) -> None:
    """Write the arrays, and `text` as one more member of bytes (uint8), to the uncompressed .npz file `path`.

    text: the envelope (version, sha256, header) as JSON. `numpy.savez` is not used, because an array named "file" would
    collide with its parameter.
    """
    members = {ENVELOPE: np.frombuffer(text.encode(), np.uint8), **arrays}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, x in members.items():
            # a ZipInfo has a fixed date
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, x, version=(1, 0), allow_pickle=False)


def _read_npz(path: Path) -> tuple[Envelope, dict[str, Array]]:
    """Return the envelope (a dict of version, sha256 and header) and the arrays by name of the .npz file `path`.

    Raises:
      ScaledFileError: fpsim did not write the file.
      ValueError: the file is damaged; zipfile and NumPy raise errors of their own too.
    """
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if ENVELOPE not in members:
            raise _foreign(path, list(members), "numpy.load")
        size = path.stat().st_size
        envelope = _opened(path, bytes(_member(archive, members.pop(ENVELOPE), size)))
        return envelope, {name: _member(archive, info, size) for name, info in sorted(members.items())}


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> Array:
    """Return one array of a .npz file.

    archive: the open file. info: the entry of the array. limit: the file's size in bytes, which no array may exceed.

    Raises:
      ValueError: the array is compressed, too long, of another dtype or order than `save` writes, or cut short.
    """
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > limit:
        raise ValueError(f"{info.filename} is compressed, or longer than the file")
    with archive.open(info) as stream:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError(f"{info.filename} is not in version 1.0 of the npy format")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        if fortran or dtype.name not in DTYPES or not dtype.isnative:
            raise ValueError(f"{info.filename} holds {dtype}")
        if math.prod(shape) * dtype.itemsize != info.file_size - stream.tell():
            raise ValueError(f"{info.filename} has another size than its shape {shape}")
        array = np.empty(shape, dtype)
        _fill(_bytes(array), stream)
    return array


def _fill(memory: memoryview, stream: IO[bytes]) -> None:
    """Fill `memory` with bytes from a stream, or raise a ValueError if the stream ends too early."""
    for start in range(0, len(memory), BYTES_AT_ONCE):
        part = memory[start : start + BYTES_AT_ONCE]
        data = stream.read(len(part))
        if len(data) != len(part):
            raise ValueError("the file ends before its last element")
        part[:] = data


def _safetensors() -> Any:
    """Return the safetensors package, or raise an ImportError that says how to install it."""
    try:
        import safetensors
        import safetensors.numpy
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "safetensors":
            raise  # the package is installed, but a module that it imports is not
        raise ImportError(
            ".safetensors files need safetensors, which is not installed: pip install safetensors "
            "(.npz files need nothing)"
        ) from None
    return safetensors


def _write_safetensors(path: Path, text: str, arrays: Mapping[str, Array]) -> None:
    """Write the arrays to the .safetensors file `path`, with `text` as its metadata; raise an OSError if that fails.

    text: the envelope (version, sha256, header) as JSON.
    """
    safetensors = _safetensors()
    try:
        safetensors.numpy.save_file(dict(arrays), path, metadata={ENVELOPE: text})
    except safetensors.SafetensorError as problem:  # such as a full disk, which is no OSError here
        raise OSError(f"the file cannot be written ({_one_line(problem)})") from problem


def _read_safetensors(path: Path) -> tuple[Envelope, dict[str, Array]]:
    """Return the envelope (a dict of version, sha256, header) and the arrays by name of the .safetensors file `path`.

    Raises:
      ScaledFileError: fpsim did not write the file.
      ImportError: the safetensors package is not installed.
    """
    with _safetensors().safe_open(path, framework="numpy") as opened:
        metadata = opened.metadata() or {}
        names = sorted(opened.keys())
        if ENVELOPE not in metadata:
            raise _foreign(path, names, "safetensors.numpy.load_file")
        envelope = _opened(path, metadata[ENVELOPE])
        return envelope, {name: opened.get_tensor(name) for name in names}


def _one_line(problem: BaseException) -> str:
    """Return the first line of the text of the error `problem`, without full stop; without text, its class's name."""
    text = str(problem).strip()
    return text.splitlines()[0].rstrip(".") if text else type(problem).__name__


Reader = Callable[[Path], tuple[Envelope, dict[str, Array]]]
Writer = Callable[[Path, str, Mapping[str, Array]], None]
KINDS: dict[str, tuple[Reader, Writer]] = {
    ".npz": (_read_npz, _write_npz),
    ".safetensors": (_read_safetensors, _write_safetensors),
}
