"""Elements of untrusted files, read in chunks of bounded memory; and errors in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.arrays import Array

Found = tuple[list[Tensor], list[str]]  # tensors, and a sentence for each tensor left out

BYTES_LIMIT = 1 << 62  # bytes of one tensor; keeps products of untrusted shapes in the range of file offsets


def one_line(problem: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if the message is empty."""
    text = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
    return text.strip().splitlines()[0] if text.strip() else type(problem).__name__


def stream(opened: IO[bytes], dtype: np.dtype[Any], count: int, size: int, path: Path) -> Iterator[Array]:
    """Yield `count` elements from an open file as 1-d arrays of `size` elements; the last may be shorter.

    opened: the file, at its first element. dtype: dtype in the file; the arrays have native byte order. path: the file,
    for messages.

    Raises:
      TensorFileError: the file ends early.
    """
    for start in range(0, count, size):
        wanted = min(size, count - start) * dtype.itemsize
        data = read_fully(opened, wanted)
        if len(data) < wanted:
            raise TensorFileError(f"{path}: the file ends before its last element")
        array = np.frombuffer(data, dtype)
        yield array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def read_fully(opened: IO[bytes], wanted: int) -> bytes:
    """Read and return the next `wanted` bytes of the open file `opened`, or all that are left if these are fewer.

    If one call of `opened.read` returns fewer bytes than it was asked for, it is called again.
    """
    parts = []
    while wanted and (part := opened.read(wanted)):
        parts.append(part)
        wanted -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def reader(
    path: Path, offset: int, dtype: np.dtype[Any], count: int, order: str = "<"
) -> Callable[[int], Iterator[Array]]:
    """Return a function read(size) that yields `count` elements of a file from byte `offset` on, `size` at a time.

    path: the file. dtype: dtype of the elements. order: byte order in the file, "<" or ">"; arrays have native order.
    """
    stored = dtype.newbyteorder(order) if dtype.itemsize > 1 else dtype  # type: ignore[arg-type]  # "<" or ">"
    length = path.stat().st_size

    def read(size: int) -> Iterator[Array]:
        with path.open("rb") as opened:
            refuse_changed(path, length)
            opened.seek(offset)
            yield from stream(opened, stored, count, size, path)

    return read


def refuse_changed(path: Path, length: int) -> None:
    """Raise a TensorFileError if a file has another size than `length`, its bytes when its header was read.

    Another program has written it since then, so that tensors may be at other places.
    """
    if path.stat().st_size != length:
        raise TensorFileError(f"{path}: the file has changed since it was opened. Open it again")
