"""Named tensors that are read in chunks, made from arrays in memory and from files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fpsim.analysis.tensors.chunks import flat_chunks
from fpsim.analysis.tensors.layouts.joining import joined
from fpsim.analysis.tensors.roles import ROLES
from fpsim.analysis.tensors.tensor import CODES, Tensor, TensorFileError
from fpsim.arrays import float_array, is_torch, without_gradient
from fpsim.errors import unknown
from fpsim.lazy import deferred

torch_file = deferred("fpsim.analysis.tensors.torch_file")


def tensor(name: str, x: npt.ArrayLike, *, role: str = "", layer: str = "", step: int | None = None) -> Tensor:
    """Return an array in memory as a named Tensor, which functions of `fp.analysis` accept.

    Args:
      name: name of the tensor in tables and figures.
      x: a NumPy or torch array of floats.
      role: "matrix", "embedding", "bias", "norm", "statistics", "optimizer_state", "scalar", "activation" or
        "gradient"; "" to infer it from name and shape.
      layer, step: the layer and the training step that the tensor comes from; tensors of equal names and several steps
        are judged together.
    Raises:
      TypeError: x does not hold floats.
      ValueError: the role is unknown.

    Example:
      >>> import fpsim as fp
      >>> t = fp.analysis.tensor("w", np.float32([[1, 2], [3, 4]]), role="matrix", step=10)
      >>> t.size, t.role, t.step
      (4, 'matrix', 10)
    """
    if not isinstance(role, str) or (role and role not in ROLES):
        raise unknown("role", role, list(ROLES))
    if is_torch(x):
        one: Tensor = torch_file().torch_tensor(name, cast("Any", x).detach())
        return replace(one, role=role, layer=layer, step=step)
    array, _ = float_array(without_gradient(x), name)
    read = partial(flat_chunks, array)
    return Tensor(name, array.shape, array.dtype.name, read, role=role, layer=layer, step=step)


@dataclass(frozen=True)
class Collection:
    """The tensors of a list of files.

    Attributes:
      tensors: float tensors, in the order of the files, with distinct names.
      notes: a sentence for each tensor that was left out, with the reason.
      problems: a sentence for each file that cannot be read, or has no float tensor.
    """

    tensors: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def open_tensors(paths: Sequence[str | Path]) -> Collection:
    """Return the tensors of files; only headers are read, and elements when a tensor's `chunks` is called.

    paths: .npy, .npz, .safetensors, .pt, .pth, .bin, .onnx and .gguf files; a folder stands for the files directly in
    it. Scales may be in another file than their codes. A name that occurs in two files is prefixed with the file's
    name.
    """
    from fpsim.analysis.tensors.files import no_floats, read_stored, tensor_files

    tensors: list[Tensor] = []
    told: list[tuple[Path, str, list[str]]] = []  # for each file: its problem or "", and lines for tensors left out
    seen: set[Path] = set()
    for path in paths:
        try:
            files = tensor_files(Path(path))
        except TensorFileError as problem:
            told.append((Path(path), str(problem), []))
            continue
        for file in files:
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                stored, skipped = read_stored(file)
            except TensorFileError as problem:
                told.append((file, str(problem), []))
                continue
            tensors += stored
            told.append((file, "", skipped))
    kept, more = joined(tensors)  # scales may be in another file than their codes
    stored_in = Counter(one.source for one in tensors)
    notes: list[str] = []
    problems: list[str] = []
    for file, wrong, skipped in told:
        left_out = [line for line in more if line.startswith(f"{file}: ")]
        if wrong:
            problems.append(wrong)
        elif stored_in[str(file)] > len(left_out):
            notes += [*skipped, *left_out]
        else:
            problems.append(str(no_floats(file, [*skipped, *left_out])))
    return Collection(_distinct(kept), tuple(notes), tuple(problems))


def _distinct(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors with distinct names, such as "file:name" for a name that occurs twice.

    If the file's name is not enough, its path is used, and then also a number.
    """
    wordings: tuple[Callable[[int, Tensor], str], ...] = (
        lambda i, t: t.name,
        lambda i, t: f"{Path(t.source).stem}:{t.name}",
        lambda i, t: f"{t.source}:{t.name}",
        lambda i, t: f"{t.source}:{t.name}#{i}",
    )
    names = [t.name for t in tensors]
    for wording in wordings:
        often = Counter(names)
        names = [
            wording(i, t) if often[name] > 1 else name for i, (t, name) in enumerate(zip(tensors, names, strict=True))
        ]
    return tuple(replace(t, name=name) for t, name in zip(tensors, names, strict=True))


def from_mapping(arrays: Mapping[str, Any]) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """Return (the float tensors and decoded weights in a mapping, a sentence for each value that is left out).

    arrays: name -> NumPy or torch array, such as a state dict; lists and floats are converted. Raises a TypeError or
    ValueError if no array holds floats, or a value is not an array.
    """
    stored: list[Tensor] = []
    notes: list[str] = []
    first_of: dict[Any, str] = {}
    for name, x in arrays.items():
        x = np.asarray(x) if isinstance(x, (list, float)) else x
        tied = first_of.setdefault(torch_file().place_of(x) if is_torch(x) else object(), str(name))
        if tied != str(name):
            notes.append(f"{name} left out, it is the same memory as {tied}")
            continue
        kind = dtype_name(x)
        if len(arrays) > 1 and re.fullmatch(r"u?int\d+|bool|long|short", kind):
            left_out = f"{name} left out, it holds {kind} and not floats"
            if kind in CODES:
                stored.append(replace(integer_tensor(str(name), x), left_out=left_out))
            else:
                notes.append(left_out)
        else:
            stored.append(tensor(str(name), x))
    kept, more = joined(stored)
    if not kept:
        raise TypeError(f"tensors must hold floats; got {len(arrays)} arrays of integers. Convert them first.")
    return tuple(kept), (*notes, *more)


def dtype_name(x: Any) -> str:
    """Return the name of an array's or torch tensor's dtype in native byte order, such as "int32"; "" without one."""
    dtype = getattr(x, "dtype", "")
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


def integer_tensor(name: str, x: Any) -> Tensor:
    """Return a NumPy or torch array of integers, which may be the codes of a weight, as a Tensor called `name`."""
    if is_torch(x):
        one: Tensor = torch_file().torch_tensor(name, x.detach(), codes=True)
        return one
    array = np.asarray(x)
    return Tensor(name, array.shape, array.dtype.newbyteorder("=").name, partial(flat_chunks, array))
