"""Checkpoints: arrays and facts of a training step, in a folder that appears whole or not at all.

    run/step-000120/arrays.safetensors   the arrays, bit for bit
    run/step-000120/state.json           the facts, the SHA-256 of the arrays, and a SHA-256 of these two

A folder is written under a temporary name, and renamed once the disk holds all of it; older checkpoints are removed
after that. So whenever the process is killed or the power fails, the new checkpoint or the one before it is whole.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, format_of, refuse_masked, words
from fpsim.display.optional import load as load_package
from fpsim.errors import require_integer, shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import lock, path_of, require_folder, sweep, sync

VERSION = 1
ARRAYS, STATE, LOCK = "arrays.safetensors", "state.json", ".lock"
DRAFTS = ".writing-"
NAMES = re.compile(r"step-(\d{6,})(?:-(\d+))?")  # step-000120-2: step 120 saved once more
AS_THEY_ARE = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
)  # fmt: skip  # dtypes that every version of safetensors has for NumPy
SHOWN = 3  # most differences that an error message lists


class Checkpoint(NamedTuple):
    """A saved step of training.

    Attributes:
      step: the number of steps that the run had taken when the checkpoint was saved.
      arrays: name -> array, each in separate memory, in the order in which they were passed to `save`.
      facts: name -> a number, text, list or dict, as passed to `save`.
    """

    step: int
    arrays: dict[str, Array]
    facts: dict[str, Any]


class Checkpoints:
    """A folder of checkpoints to which only this process may write until `close`.

    Args:
      folder: the folder; it is created if it does not exist.
    Raises:
      ValueError: the folder cannot be written to, or another process writes checkpoints to it.

    Example:
      >>> import tempfile
      >>> from fpsim.train.checkpoint import Checkpoints, load
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with Checkpoints(folder) as kept:
      ...         for step in (10, 20):
      ...             _ = kept.save(step, {"w": np.float32([0.1, -0.0])}, {"loss": float("nan")})
      ...     load(folder)
      Checkpoint(step=20, arrays={'w': array([ 0.1, -0. ], dtype=float32)}, facts={'loss': nan})
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = require_folder(folder)
        self._file = (self.folder / LOCK).open("ab")
        try:
            self._alone = lock(
                self._file,
                f"folder must be one that no other process writes checkpoints to; got {shown(str(self.folder))}, which "
                "one does at the moment. Wait for it, or name another.",
            )
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock of the folder, after which other processes may write checkpoints to it."""
        self._file.close()

    def save(self, step: int, arrays: Mapping[str, Array], facts: Mapping[str, Any], *, keep: int = 1) -> Path:
        """Write a checkpoint to the disk, then remove all but the last `keep - 1` earlier ones.

        Args:
          step: the number of steps taken so far; a step that was saved already gets a second folder.
          arrays: name -> array of bool, integers of up to 64 bits, float16, float32, float64 or a float dtype of
            ml_dtypes; of any shape. NaNs keep their payloads.
          facts: name -> a value that `fpsim.exact_json.to_json` accepts; Inf and NaN keep their bits.
          keep: the number of checkpoints that remain, this one included. Checkpoints of later steps are never removed.

        Returns:
          The path of the checkpoint's folder.

        Raises:
          TypeError, ValueError: the step, a name, an array or a fact cannot be saved.
          ImportError: safetensors is not installed.
          OSError: the disk is full, or fails; older checkpoints are unchanged.
        """
        require_integer("step", step, 0)
        require_integer("keep", keep, 1)
        if self._file.closed:
            raise ValueError("the folder of checkpoints is closed; save before that.")
        content, dtypes = _packed(arrays)
        digest = hashlib.sha256(content).hexdigest()
        state = {"step": int(step), "arrays": digest, "dtypes": dtypes, "facts": to_json(dict(facts), "facts")}
        self._clear()
        room = Path(tempfile.mkdtemp(prefix=DRAFTS, dir=self.folder))
        try:
            draft = room / "new"
            draft.mkdir()
            _write(draft / ARRAYS, content)
            checksum = hashlib.sha256(json.dumps(state).encode()).hexdigest()
            _write(draft / STATE, json.dumps({"version": VERSION, "sha256": checksum, "state": state}).encode())
            sync(draft)
            last = max((_rank(path)[1] for at, path in _found(self.folder) if at == step), default=0)
            target = self.folder / (f"step-{int(step):06d}-{last + 1}" if last else f"step-{int(step):06d}")
            draft.rename(target)
            sync(self.folder)
            for old in [path for _, path in _found(self.folder) if _rank(path) < _rank(target)][: -keep + 1 or None]:
                old.rename(room / old.name)  # so that a partly removed folder is not taken for a checkpoint
        finally:
            shutil.rmtree(room, ignore_errors=True)
        return target

    def _clear(self) -> None:
        """Remove unfinished folders that killed processes left in the folder of checkpoints."""
        if not self._alone:
            sweep(self.folder, f"{DRAFTS}*")
            return
        for left in self.folder.glob(f"{DRAFTS}*"):
            shutil.rmtree(left, ignore_errors=True)


def save(
    folder: str | Path, step: int, arrays: Mapping[str, Array], facts: Mapping[str, Any], *, keep: int = 1
) -> Path:
    """Save a checkpoint as a new folder within `folder`, and return the new folder's path.

    step, arrays, facts, keep: as for `Checkpoints.save`. `folder` is locked for other processes during this call only.

    Example:
      >>> import tempfile
      >>> from fpsim.train.checkpoint import save, steps
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     print(save(folder, 120, {"w": np.zeros(3)}, {"seed": 0}).name, steps(folder))
      step-000120 [120]
    """
    with Checkpoints(folder) as kept:
        return kept.save(step, arrays, facts, keep=keep)


def load(folder: str | Path, step: int | None = None) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a folder; other processes may write to it at the same time.

    Damaged checkpoints are skipped, with a warning that names each.

    Args:
      folder: the folder of the checkpoints, which need not exist.
      step: load the newest undamaged checkpoint of this step; None for the newest of any step.
    Returns:
      The checkpoint; None if `step` is None and the folder holds no undamaged checkpoint.
    Raises:
      ValueError: there is no undamaged checkpoint of `step`, or a checkpoint's file version is not this fpsim's.
      ImportError: safetensors is not installed.
    """
    path = path_of(folder, "folder")
    if step is not None:
        require_integer("step", step, 0)
    while True:
        there = [folder_of_step for at, folder_of_step in _found(path) if step is None or at == step]
        checkpoint, gone = _newest(there)
        if not gone:
            break
    if checkpoint is None and step is not None:
        raise ValueError(
            f"step must have an undamaged checkpoint in {shown(str(path))}; got {step}, and there are steps "
            f"{shown(steps(path))}."
        )
    return checkpoint


def steps(folder: str | Path) -> list[int]:
    """Return the steps of a folder's checkpoints in ascending order; damaged checkpoints are listed too."""
    return sorted({step for step, _ in _found(path_of(folder, "folder"))})


def require_same(fields: Mapping[str, Any], wanted: Mapping[str, Any], noun: str = "recipe") -> None:
    """Raise a ValueError unless a checkpoint's fields equal the wanted fields, bit for bit.

    Args:
      fields, wanted: dicts, nested or not, of values that `Checkpoints.save` accepts as facts.
      noun: the word of the error message for what the fields describe.

    Example:
      >>> from fpsim.train.checkpoint import require_same
      >>> require_same({"lr": 0.003, "model": {"layers": 2}}, {"lr": 0.003, "model": {"layers": 4}, "seed": 1})
      Traceback (most recent call last):
      ValueError: a checkpoint must be of the same recipe; got one with model.layers 2 instead of 4, and no seed instead
      of 1. Use the recipe that it was saved with, or another folder.
    """
    left, right = _flat(fields), _flat(wanted)
    names = dict.fromkeys([*right, *left])
    different = [name for name in names if left.get(name) != right.get(name)]
    if not different:
        return
    listed = [f"{_said(name, left)} instead of {_said(name, right, named=False)}" for name in different[:SHOWN]]
    if len(different) > SHOWN:
        listed.append(f"{len(different) - SHOWN} more differences")
    text = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])}, and {listed[-1]}"
    raise ValueError(
        f"a checkpoint must be of the same {noun}; got one with {text}. Use the {noun} that it was saved with, or "
        "another folder."
    )


def _flat(fields: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """Return nested dicts as one dict: dotted name -> value as JSON text that keeps every bit.

    before: the prefix of all names, such as "model.".
    """
    flat: dict[str, str] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{before}{name}.")
        else:
            flat[f"{before}{name}"] = json.dumps(to_json(value, f"{before}{name}"))
    return flat


def _said(name: str, fields: Mapping[str, str], named: bool = True) -> str:
    """Return the text on a field for an error: "NAME VALUE", or "no NAME" if `fields` lacks it.

    fields: dotted name -> value as JSON text. named: False for "VALUE", or "none" if the field is missing.
    """
    if name not in fields:
        return f"no {name}" if named else "none"
    value = shown(from_json(json.loads(fields[name])))
    return f"{name} {value}" if named else value


# ---- folders


def _rank(path: Path) -> tuple[int, int]:
    """Return (step, number of this step's save, from 1) of a checkpoint's folder; (-1, 0) for other folder names.

    "step-000120-2" gives (120, 2). Later checkpoints have larger pairs.
    """
    match = NAMES.fullmatch(path.name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


def _found(folder: Path) -> list[tuple[int, Path]]:
    """Return (step, path) of each checkpoint in a folder, the oldest first; [] if the folder does not exist."""
    if not folder.is_dir():
        return []
    paths = sorted((path for path in folder.iterdir() if NAMES.fullmatch(path.name)), key=_rank)
    return [(_rank(path)[0], path) for path in paths]


def _newest(paths: list[Path]) -> tuple[Checkpoint | None, bool]:
    """Return (the newest undamaged checkpoint among `paths`, or None; whether to list the folder again).

    paths: folders of checkpoints, oldest first. The second element is True if another process removed a checkpoint
    before it was read. A warning names each damaged checkpoint.
    """
    for path in reversed(paths):
        try:
            return _read(path), False
        except _Damaged as reason:
            if not path.exists():
                return None, True
            warnings.warn(f"{path} is damaged and not loaded: {reason}.", stacklevel=3)
    return None, False


# ---- files


class _Damaged(Exception):
    """The error raised if a checkpoint cannot be loaded; its text is the reason."""


def _write(path: Path, content: bytes) -> None:
    """Write a file, and wait until it is on the disk."""
    path.write_bytes(content)
    sync(path)


def _read(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder.

    Raises:
      _Damaged: a file is missing or differs from its checksum.
      ValueError: the checkpoint has another file version than this fpsim writes.
    """
    state = _state(path)
    try:
        content = (path / ARRAYS).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise _Damaged(f"{ARRAYS} is missing") from None
    if hashlib.sha256(content).hexdigest() != state["arrays"]:
        raise _Damaged(f"{ARRAYS} differs from its checksum")
    if state["step"] != _rank(path)[0]:
        raise _Damaged(f"{STATE} is of step {state['step']}")
    return Checkpoint(state["step"], _unpacked(content, state["dtypes"]), from_json(state["facts"]))


def _state(path: Path) -> dict[str, Any]:
    """Return the state in a checkpoint's state.json, its version and checksum checked.

    Raises:
      _Damaged: the file is missing, is not the JSON of a checkpoint, or differs from its checksum.
      ValueError: it has another file version than this fpsim writes.
    """
    try:
        envelope = json.loads((path / STATE).read_bytes())
        version, digest, state = envelope["version"], envelope["sha256"], envelope["state"]
    except (FileNotFoundError, NotADirectoryError):
        raise _Damaged(f"{STATE} is missing") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _Damaged(f"{STATE} is no JSON of a checkpoint") from None
    if version != VERSION:
        raise ValueError(
            f"a checkpoint must have version {VERSION}; got {path}, of version {shown(version)}. Load it with the "
            "fpsim that saved it."
        )
    if hashlib.sha256(json.dumps(state).encode()).hexdigest() != digest:
        raise _Damaged(f"{STATE} differs from its checksum")
    fields: dict[str, Any] = state
    return fields


def _packed(arrays: Mapping[str, Array]) -> tuple[bytes, dict[str, str]]:
    """Return arrays as the bytes of a safetensors file, and the dtype of each array by name.

    Dtypes of ml_dtypes that safetensors lacks are stored as integer codes.

    Raises:
      TypeError, ValueError: a name or a dtype that cannot be stored, or a masked array.
    """
    stored, dtypes = {}, {}
    for name, x in arrays.items():
        if not isinstance(name, str) or name == "__metadata__":
            raise ValueError(f"names of arrays must be texts other than '__metadata__'; got {shown(name)}.")
        refuse_masked(x, name)
        known = isinstance(x, np.ndarray) and x.dtype.isnative
        dtypes[name] = str(getattr(x, "dtype", ""))
        if known and x.dtype.name not in AS_THEY_ARE and format_of(x.dtype) is not None:
            x = words(x)
        if not known or x.dtype.name not in AS_THEY_ARE:
            raise TypeError(
                f"{name} must be a NumPy array of bool, integers, float16, float32, float64 or a float dtype of "
                f"ml_dtypes, in native byte order; got {shown(x)}."
            )
        stored[name] = np.asarray(x, order="C")
    content: bytes = _safetensors().save(stored)
    return content, dtypes


def _unpacked(content: bytes, dtypes: Mapping[str, str]) -> dict[str, Array]:
    """Return name -> array from the bytes of a safetensors file; dtypes: name -> dtype that the array gets."""
    import ml_dtypes

    stored = _safetensors().load(content)
    return {name: stored[name].copy().view(getattr(ml_dtypes, dtype, dtype)) for name, dtype in dtypes.items()}


def _safetensors() -> Any:
    """Return the module safetensors.numpy; raise an ImportError if it is not installed."""
    return load_package("safetensors.numpy", "a checkpoint")
