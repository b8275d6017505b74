"""A checkpoint as a mapping of tensor names to real values, in whatever layout its weights are stored."""

from __future__ import annotations

import difflib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.joining import joined
from fpsim.analysis.tensors.layouts.naming import PLAIN
from fpsim.analysis.tensors.layouts.unpacking import rounded_like, values_of
from fpsim.analysis.tensors.reading import one_line
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError, dtype_of
from fpsim.arrays import Array
from fpsim.display.wording import are
from fpsim.errors import require_word, shown
from fpsim.files import path_of

INDEX = ".index.json"
INDEX_BYTES = 1 << 28
WEIGHTS = (".safetensors", ".gguf")  # files that hold a folder's weights if it also has other tensor files
DTYPES = ("float32", "bfloat16", "float16")


class CheckpointTensors(Mapping[str, Array]):
    """The tensors of a checkpoint, with the names and shapes that they have in the unquantised model.

    A tensor is read and decoded whenever it is looked up, and is not cached. If another process truncates a file,
    reading causes an error and not a crash.

    Args:
      path: the path of the checkpoint.
      tensors: its tensors, with quantised weights joined from their codes and scales.
      notes: a sentence for each stored tensor that is left out.
      dtype: "float32", or "bfloat16" or "float16", to which quantised weights are rounded.

    Attributes:
      path: the path that was passed.
      layout: the name of the layout of its quantised weights, such as "compressed-tensors:nvfp4"; "plain" without any;
        names joined by " + " where there are several.
      layouts: name of each tensor -> its layout, "plain" for those that are not quantised.
      notes: a sentence for each stored tensor that is left out, with the reason.
    """

    def __init__(self, path: Path, tensors: Sequence[Tensor], notes: Sequence[str], dtype: str) -> None:
        self.path = path
        self.notes = tuple(notes)
        self._tensors = {one.name: one for one in tensors}
        self._dtype = dtype
        self.layouts = {one.name: one.layout or PLAIN for one in tensors}
        used = dict.fromkeys(layout for layout in self.layouts.values() if layout != PLAIN)
        self.layout = " + ".join(sorted(used)) or PLAIN

    def __getitem__(self, name: str) -> Array:
        """Return the values of a tensor as float32, in the shape that the unquantised model has.

        Raises:
          KeyError: the checkpoint has no tensor of that name; the message suggests the nearest.
          TensorFileError: its file ends early, or changed since it was opened.
        """
        one = self.tensor(name)
        flat, start = np.empty(one.size, np.float32), 0
        for piece in one.chunks():
            flat[start : start + piece.size] = values_of(piece)
            start += piece.size
        if one.layout and self._dtype != "float32":
            flat = rounded_like(flat, dtype_of(self._dtype))
        values = flat.reshape(one.shape)
        return np.ascontiguousarray(np.swapaxes(values, -1, -2)) if one.exchanged else values

    def __contains__(self, name: object) -> bool:
        """Return whether the checkpoint has a tensor of that name, without reading it."""
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        """Yield the tensors' names, in the order of the files."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors in the checkpoint."""
        return len(self._tensors)

    def tensor(self, name: str) -> Tensor:
        """Return a tensor to be read in chunks; its last two axes are in the order in which the file stores them.

        Raises:
          KeyError: the checkpoint has no tensor of that name; the message suggests the nearest.
        """
        if name not in self._tensors:
            near = difflib.get_close_matches(name, list(self._tensors), 1) if isinstance(name, str) else []
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(list(self._tensors)[:3])}, ..."
            raise KeyError(f"{self.path} has no tensor {shown(name)}. {hint}")
        return self._tensors[name]

    def __repr__(self) -> str:
        """Return a text: path, layout, number of tensors, number of values, and bits per value."""
        values = math.fsum(one.size for one in self._tensors.values())
        bits = math.fsum(one.size * one.stored_bits for one in self._tensors.values())
        size = f"{len(self)} tensors, {int(values):,} values of {bits / max(values, 1):.4g} bits"
        return f"Checkpoint({str(self.path)!r}, layout={self.layout!r}, {size})"


def open(path: str | Path, dtype: str = "float32") -> CheckpointTensors:
    """Open a checkpoint, quantised or not, as a mapping of the unquantised model's tensor names to real values.

    Only headers and small tensors of settings are read; a tensor's values are read and decoded when it is looked up.
    Values are equal in bits to those that the library of the layout reads. Layouts: DeepSeek's FP8, compressed-tensors,
    ModelOpt, GPTQ, AWQ, gpt-oss's MXFP4, torchao, bitsandbytes, HQQ and GGUF; docs/layouts.md has the table.

    Args:
      path: a .safetensors, .gguf, .pt, .bin, .npz or .npy file, a `.index.json` of shards, or a folder of these.
      dtype: dtype of the model into which the weights are loaded: "float32", or "bfloat16" or "float16", to which
        quantised weights are rounded as by their library. The arrays are float32 in any case.

    Returns:
      A mapping of names to float32 arrays, with `.layout`, `.layouts`, `.notes` and `.tensor(name)`.

    Raises:
      TensorFileError (a ValueError): there is no such file, it is damaged or cut short, or a shard is missing.
      ValueError: dtype is not one of those above.

    Example:
      >>> import tempfile
      >>> path = f"{tempfile.mkdtemp()}/up.npz"
      >>> np.savez(path, **{"up.weight": np.int8([[1, -2]]), "up.weight_scale": np.float32([[0.5]])})
      >>> checkpoint = fp.analysis.open(path)
      >>> checkpoint.layout, checkpoint["up.weight"].tolist()
      ('compressed-tensors:int8', [[0.5, -1.0]])
    """
    require_word("dtype", dtype, DTYPES)
    target = path_of(path)
    stored, notes = stored_tensors(target)
    tensors, more = joined(stored)
    often = [name for name, count in Counter(one.name for one in tensors).items() if count > 1]
    if often:
        files = {one.source for one in tensors if one.name == often[0]}
        where = (
            "is in several files of the folder. Pass one file, or an index" if len(files) > 1 else "occurs twice in it"
        )
        raise TensorFileError(f"{target}: {often[0]} {where}")
    if not tensors:
        first = [*notes, *more]
        why = f"; {first[0].partition(': ')[2]}" if first else ""
        raise TensorFileError(f"{target}: no tensor of floats in it{why}")
    return CheckpointTensors(target, tensors, [*notes, *more], dtype)


def stored_tensors(path: Path) -> tuple[list[Tensor], list[str]]:
    """Return (the tensors of a checkpoint, with codes and scales as separate tensors; a sentence for each left out).

    Raises:
      TensorFileError: a file is missing or damaged, or lacks a tensor that the index assigns to it.
    """
    from fpsim.analysis.tensors.files import read_stored

    files, index = checkpoint_files(path)
    tensors: list[Tensor] = []
    notes: list[str] = []
    for file in files:
        stored, skipped = read_stored(file)
        tensors += stored
        notes += skipped
        left_out = {line.removeprefix(f"{file}: ").partition(" left out")[0] for line in skipped}
        lost = index.get(file.name, set()) - {one.name for one in stored} - left_out
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            text = f"{min(lost)}{more} {are(len(lost))} missing, although the index names this file"
            raise TensorFileError(f"{file}: {text}")
    return tensors, notes


def checkpoint_files(path: Path) -> tuple[list[Path], dict[str, set[str]]]:
    """Return (the tensor files of a checkpoint, file name -> names of the tensors that its index assigns to the file).

    path: a tensor file, an `.index.json` of shards, or a folder. The dict is empty if there is no index. Raises a
    TensorFileError if there is no tensor file, or a shard of the index is missing.
    """
    from fpsim.analysis.tensors.files import tensor_files

    index = path if path.name.endswith(INDEX) else None
    if path.is_dir():
        indexes = sorted(path.glob(f"*{INDEX}"))
        preferred = [one for one in indexes if ".safetensors" in one.name] or indexes
        index = preferred[0] if preferred else None
    if index is None:
        files = tensor_files(path)
        kinds = [file for file in files if file.suffix.lower() in WEIGHTS]
        return (kinds or files) if path.is_dir() else files, {}
    if not index.exists():
        raise TensorFileError(f"{index}: no such file")
    names: dict[str, set[str]] = {}
    for name, file in _weight_map(index).items():
        names.setdefault(file, set()).add(name)
    missing = [file for file in names if not (index.parent / file).is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise TensorFileError(
            f"{index}: its shard {missing[0]}{more} {are(len(missing))} missing; wanted {len(names)} files in the same "
            "folder"
        )
    return [found for file in names for found in tensor_files(index.parent / file)], names


def _weight_map(index: Path) -> dict[str, str]:
    """Return tensor name -> name of its file, read from the index of shards at the path `index`.

    Raises:
      TensorFileError: the index is damaged, or names a file outside its folder.
    """
    try:
        if index.stat().st_size > INDEX_BYTES:
            raise TensorFileError(f"{index}: damaged, an index of more than {INDEX_BYTES:,} bytes")
        content: Any = json.loads(index.read_text(encoding="utf-8"))
        entries = content["weight_map"].items()
    except TensorFileError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise TensorFileError(f"{index}: damaged or not an index of shards ({one_line(problem)})") from problem
    if not entries or not all(isinstance(file, str) and Path(file).name == file and file for _, file in entries):
        raise TensorFileError(f"{index}: damaged, its weight_map must name files of the same folder")
    return dict(entries)
