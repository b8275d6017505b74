"""Reading and writing of files of test vectors, as text or .npz; damaged files are rejected."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fpsim.errors import shown
from fpsim.files import path_of, write_whole
from fpsim.scaling.file import load as load_arrays
from fpsim.scaling.file import save as save_arrays
from fpsim.testing.conformance.text import VERSION, read, written
from fpsim.testing.conformance.vectors import Vectors, read_line

KIND = "fpsim conformance"
LARGEST = 1 << 28  # bytes of a text


def save(sets: list[Vectors], path: str | os.PathLike[str]) -> None:
    """Write sets of test vectors to a file ending in .txt or .npz; after an error, no partial file is left."""
    target = path_of(path)
    if is_text(target):
        write_whole(target, written(sets))
        return
    arrays = {
        name: np.concatenate([getattr(vectors, name).ravel() for vectors in sets]) for name in ("inputs", "outputs")
    }  # fmt: skip
    save_arrays(target, arrays, {"kind": KIND, "version": VERSION, "sets": [vectors.line for vectors in sets]})


def load(path: str | os.PathLike[str]) -> list[Vectors]:
    """Return the sets of test vectors that a file contains.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the name ends in neither .txt nor .npz, or the file is damaged, edited, or of another kind or version.
    """
    source = path_of(path)
    read_file = _read_text if is_text(source) else _read_arrays
    try:
        return read_file(source)
    except (OSError, ImportError):
        raise
    except ValueError as problem:
        said = str(problem).removeprefix(f"{source}: ").rstrip(".")
        raise ValueError(f"{source}: its vectors cannot be used: {said}. Make the file again.") from None


def is_text(path: Path) -> bool:
    """Return whether the name of a file ends in .txt; raise a ValueError unless it ends in .txt or .npz."""
    if path.suffix.lower() not in (".txt", ".npz"):
        raise ValueError(f"the file's name must end in .txt or .npz; got {shown(path.name)}.")
    return path.suffix.lower() == ".txt"


def _read_text(path: Path) -> list[Vectors]:
    """Return the sets of test vectors in a text file; raise a ValueError that does not name the file if damaged."""
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it must have at most {LARGEST} bytes; got {path.stat().st_size}")
    data = path.read_bytes()
    if not data.isascii():
        raise ValueError("it must be ASCII; it is damaged, or something else")
    return read(data.decode("ascii"))


def _read_arrays(path: Path) -> list[Vectors]:
    """Return the sets of test vectors in a .npz file; raise a ValueError that does not name the file if damaged."""
    arrays, header = load_arrays(path)
    if header.get("kind") != KIND or header.get("version") != VERSION:
        raise ValueError(f"it must be of the kind {KIND!r}, version {VERSION}; got {str(header)[:60]}")
    lines = header.get("sets")
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise ValueError("it must list its sets")
    if arrays.keys() != {"inputs", "outputs"} or any(array.dtype != np.uint64 for array in arrays.values()):
        raise ValueError("it must have the arrays inputs and outputs, uint64")
    sets, start, end = [], 0, 0
    for line in lines:
        vectors, cases = read_line(line)
        wide, narrow = vectors.inputs.shape[1], vectors.outputs.shape[1]
        inputs = arrays["inputs"][start : start + cases * wide]
        outputs = arrays["outputs"][end : end + cases * narrow]
        if inputs.size != cases * wide or outputs.size != cases * narrow:
            raise ValueError(f"it has too few numbers for {vectors.title!r}")
        start, end = start + cases * wide, end + cases * narrow
        sets.append(vectors._replace(inputs=inputs.reshape(cases, wide), outputs=outputs.reshape(cases, narrow)))
    if start != arrays["inputs"].size or end != arrays["outputs"].size:
        raise ValueError("it has more numbers than its sets")
    for vectors in sets:
        for numbers, fields in ((vectors.inputs, vectors.takes), (vectors.outputs, vectors.gives)):
            most = [(1 << field.fmt.bits) - 1 for field in fields for _ in range(field.numbers)]
            if (numbers > np.array(most, np.uint64)).any():
                raise ValueError(f"{vectors.title!r} has numbers that are no codes of their formats")
    return sets
