"""Tensors of torch as NumPy chunks: from files that torch.save wrote, and from tensors in memory."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fpsim.analysis.tensors.reading import refuse_changed
from fpsim.analysis.tensors.tensor import CODES, Tensor, TensorFileError
from fpsim.arrays import Array, from_torch
from fpsim.display.optional import load

# torch's names of the floats that are read.
FLOATS = (
    "float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "float8_e8m0fnu",
)  # fmt: skip

# Files are untrusted: a few bytes can refer to one object any number of times, and a container can hold itself.
DEPTH_LIMIT = 64  # containers inside each other
NAMES_LIMIT = 30_000_000  # objects in containers plus characters of their names: some seconds of work
SHARED_LIMIT = 64  # limit of the bytes of all tensors / bytes of the file: views may share some memory


def read_torch(path: Path) -> tuple[list[Tensor], list[str]]:
    """Return (tensors of a file of torch.save that hold floats or may hold codes, a sentence for each other tensor).

    Only tensors and containers are unpickled. Names of nested containers are joined with dots.

    Raises:
      TensorFileError: the file is damaged, or has other objects than tensors and containers.
      ImportError: torch is not installed.
    """
    torch = load("torch", f"reading {path.suffix} files")
    if _is_script(path):
        raise TensorFileError(
            f"{path}: holds a TorchScript program. Save only its tensors: "
            f"torch.save(torch.jit.load({str(path)!r}).state_dict(), ...)"
        )
    try:
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as problem:
            if "mmap" not in str(problem):
                raise
            content = torch.load(path, map_location="cpu", weights_only=True)  # torch's format before 1.6
    except Exception as problem:  # torch raises many types for damaged files
        if "weights_only" in str(problem).lower() or "Unsupported" in str(problem):
            fault = "holds pickled objects. Save only tensors: torch.save(model.state_dict(), ...)"
        else:
            fault = "damaged or not a file of torch.save"
        raise TensorFileError(f"{path}: {fault}") from problem
    try:
        return _tensors_of(content, path)
    except TensorFileError:
        raise
    except Exception as problem:  # torch raises many types for tensors with contradictory sizes
        raise TensorFileError(f"{path}: damaged, a tensor in it cannot be read") from problem


def _is_script(path: Path) -> bool:
    """Return whether a file was written by torch.jit.save, and so contains code."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.partition("/")[2] == "constants.pkl" for name in archive.namelist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False  # torch.load raises a better error


def _tensors_of(content: Any, path: Path) -> tuple[list[Tensor], list[str]]:
    """Return (the tensors of a file that hold floats or may hold codes, a sentence for each other tensor).

    content: the nested containers of tensors that torch.load returned. path: the file, for messages.
    """
    tensors: list[Tensor] = []
    notes: list[str] = []
    room = SHARED_LIMIT * path.stat().st_size
    first_of: dict[Any, str] = {}
    for name, x in _flatten(content, path):
        problem, dtype = _unreadable(x), str(x.dtype).removeprefix("torch.")
        left_out = f"{path}: {name} left out, {problem or f'it holds {dtype}'}"
        if problem:
            notes.append(left_out)
            continue
        room -= max(1, x.numel() * x.element_size())
        if room < 0:
            raise TensorFileError(
                f"{path}: its tensors are together more than {SHARED_LIMIT} times as large as the file. Save them "
                "without sharing memory: x.clone()"
            )
        tied = first_of.setdefault(place_of(x), name)
        if tied != name:
            notes.append(f"{path}: {name} left out, it is the same memory as {tied}")
            continue
        one = torch_tensor(name, x, str(path), codes=True)
        tensors.append(replace(one, left_out=left_out) if dtype in CODES else one)
    return tensors, notes


def _unreadable(x: Any) -> str:
    """Return the reason why a torch tensor, x, cannot be read; "" if it can."""
    import torch

    dtype = str(x.dtype).removeprefix("torch.")
    if x.is_nested or x.layout != torch.strided:
        return f"it holds {dtype}, {'nested' if x.is_nested else 'sparse'}"
    if x.is_quantized or x.device.type != "cpu" or dtype not in (*FLOATS, *CODES):
        return f"it holds {dtype}"
    stored = x.untyped_storage().nbytes() // x.element_size()
    last = x.storage_offset() + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
    if x.numel() > stored or (x.numel() and last >= stored):
        return f"it has {x.numel():,} elements and storage for {stored:,}; save x.clone()"
    return ""


def _flatten(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) for the tensors in nested mappings and sequences, `content`.

    A name is the keys and indices joined with dots; a tensor outside of containers gets the name of the file. Raises a
    TensorFileError if containers are nested too deep, or contain too many objects, which is possible even in a small
    file with references.
    """
    import torch

    left = NAMES_LIMIT
    stack = [("", content, 0)]
    while stack:
        name, item, depth = stack.pop()
        if isinstance(item, torch.Tensor):
            yield name or path.stem, item
        if not isinstance(item, (dict, list, tuple)):
            continue
        if depth == DEPTH_LIMIT:
            raise TensorFileError(f"{path}: containers are nested deeper than {DEPTH_LIMIT}, or hold themselves")
        pairs = item.items() if isinstance(item, dict) else enumerate(item)
        held = [(key, value) for key, value in pairs if isinstance(value, (torch.Tensor, dict, list, tuple))]
        left -= len(item) + len(held) * len(name)  # known before there is a name for each
        if left < 0:
            raise TensorFileError(
                f"{path}: containers hold too many objects for a file of tensors. Save a flat state_dict"
            )
        inner = [(f"{name}.{_key(key)}" if name else _key(key), value, depth + 1) for key, value in held]
        left -= sum(len(item_name) - len(name) for item_name, _, _ in inner)
        stack += reversed(inner)


def place_of(x: Any) -> Any:
    """Return a key of a torch tensor: tensors that share the same elements in memory (tied weights) have equal keys.

    Keys of tensors without elements in memory equal no other key.
    """
    if x.is_meta or str(x.layout) != "torch.strided" or not x.numel():
        return object()
    return x.data_ptr(), tuple(x.shape), x.stride(), str(x.dtype)


def _key(key: Any) -> str:
    """Return the key of a mapping as text: the text or number itself, else the name of its type in angle brackets."""
    return str(key) if isinstance(key, (str, int, float)) else f"<{type(key).__name__}>"


def torch_tensor(name: str, x: Any, source: str = "", codes: bool = False) -> Tensor:
    """Return a dense torch tensor as a named `Tensor`; a non-contiguous one is copied when it is read.

    Args:
      name: name of the tensor.
      x: the torch tensor.
      source: path of the file; "" for a tensor in memory.
      codes: whether integers, which may be codes of a weight, are accepted.

    Raises:
      TypeError: x does not hold floats that fpsim rounds, or has no elements in memory.
    """
    if x.is_meta:
        raise TypeError(f"{name} must have elements; got a torch tensor on the meta device. Make it on the CPU.")
    if str(x.layout) != "torch.strided":
        raise TypeError(f"{name} must be a dense tensor; got one of layout {x.layout}. Use {name}.to_dense().")
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in (*FLOATS, *(CODES if codes else ())):
        raise TypeError(f"{name} must be a tensor of floats; got {x.dtype}. Convert with {name}.float().")

    length = Path(source).stat().st_size if source else 0

    def read(size: int) -> Iterator[Array]:
        _refuse_changed(source, length)
        flat = x.reshape(-1)  # in C order, as tiles run along the last axis
        for start in range(0, flat.shape[0], size):
            _refuse_changed(source, length)
            yield from_torch(flat[start : start + size].detach().contiguous())

    shape = tuple(int(n) for n in x.shape)
    assert math.prod(shape) == x.numel()
    return Tensor(name, shape, dtype, read, source)


def _refuse_changed(source: str, length: int) -> None:
    """Raise a TensorFileError if the file at the path `source` has another size than `length`, in bytes.

    torch maps files into memory, and the system ends a process that reads mapped bytes after the end of the file. A
    deleted file can still be read, and for "", no file, nothing is checked.
    """
    with suppress(FileNotFoundError):
        if source:
            refuse_changed(Path(source), length)
