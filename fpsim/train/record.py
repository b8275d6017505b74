"""The record of a run: a digest after each step, and a JSON file from which another machine can repeat the run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.cpu.processor import described
from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole
from fpsim.lazy import public
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.operators import torch
from fpsim.train import checkpoint
from fpsim.train.monitors import LevelChange
from fpsim.train.operations.trace import canonical
from fpsim.train.settings import Recompute, Settings

VERSION = 1  # of a step's arithmetic; whoever changes bits raises it, and describes the change in CHANGES
CHANGES: dict[int, str] = {}  # version -> its change and the first release with it, as in CHANGELOG.md
DIGITS = 32
KIND, FILE_VERSION = "fpsim training run", 1
# Variables that change bits of torch, MKL, oneDNN or the C library.
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "GLIBC_TUNABLES", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


def next_digest(before: str, step: int, loss: float, arrays: Iterable[tuple[str, Array]]) -> str:
    """Return the digest after a step: the version of training's arithmetic, a hyphen, and 32 hexadecimal digits.

    The digits are the first 16 bytes of a SHA-256. It covers the text "digest-before step loss", with the loss as
    float.hex writes it ("nan" for every NaN). Then it covers, for each array, the text "name shape" and its float32
    elements in C order, low byte first, every NaN as 0x7FC00000. Texts end with a line feed.

    Args:
      before: the digest before the step, "" before the first one.
      step: the number of the step, from 0.
      loss: the step's loss.
      arrays: (name, float32 array) of the weights, moments and compensation after the step.

    Example:
      >>> from fpsim.train.record import next_digest
      >>> next_digest("", 0, 1.5, [("w", np.float32([1, 2]))])
      '1-ff5beef639e50647eba0a6ba0b5484cd'
    """
    digest = hashlib.sha256()
    digest.update(f"{before} {step} {'nan' if math.isnan(loss) else loss.hex()}\n".encode())
    for name, array in arrays:
        digest.update(f"{name} {array.shape}\n".encode())
        digest.update(canonical(array).tobytes())
    return f"{VERSION}-{digest.hexdigest()[:DIGITS]}"


def require_version(digest: str) -> None:
    """Raise a ValueError unless a digest is of this version of training's arithmetic; the message lists the changes.

    digest: a text that identifies the state after a training step: the version of the arithmetic, a hyphen and 32
    hexadecimal digits. A text of another form raises a ValueError too.
    """
    version, _, digits = digest.partition("-")
    if not version.isdigit() or int(version) < 1 or len(digits) != DIGITS:
        raise ValueError(f"a digest must be a version, a hyphen and 32 hexadecimal digits; got {digest!r}.")
    if int(version) == VERSION:
        return
    wanted = f"digests must be of version {VERSION} of the arithmetic of training; got one of version {version}"
    if int(version) > VERSION:
        raise ValueError(f"{wanted}, which a later fpsim made. Install that one, or train again.")
    changed = [CHANGES[number] for number in sorted(CHANGES) if int(version) < number <= VERSION]
    raise ValueError(
        f"{wanted}. Its bits differ since {'; '.join(changed)}. Train again, or install the fpsim that made it."
    )


def state_arrays(optimizer: Mapping[str, Array], weights: Mapping[str, Array]) -> list[tuple[str, Array]]:
    """Return (name, array) of all that a digest covers, sorted: the optimizer's arrays, then the model's weights.

    optimizer, weights: {name: array}. Names of weights are prefixed by "model/".
    """
    return [*sorted(optimizer.items()), *sorted((f"model/{name}", array) for name, array in weights.items())]


# ---- the run as JSON


def machine() -> dict[str, str]:
    """Return {property: text} of this machine: everything that decides the bits of torch's own operations on it.

    It lists system, processor, versions, torch's CPU capability, and environment variables of torch, MKL and oneDNN
    that are set.

    Example:
      >>> from fpsim.train.record import machine
      >>> machine().keys() >= {"NumPy", "processor", "system", "torch", "torch's CPU capability"}
      True
    """
    words = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": described().get("brand") or platform.processor(), "torch": torch.__version__,
        "NumPy": np.__version__, "torch's CPU capability": torch.backends.cpu.get_cpu_capability(),
        "fpsim": str(public().__version__),  # it need not be installed
    }  # fmt: skip
    return words | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def save(run: Any, path: str | os.PathLike[str]) -> None:
    """Write a `Run` as a JSON file, completely or not at all; weights are not included."""
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    fields["recipe"], fields["settings"] = run.recipe.to_plain(), run.settings.to_plain()
    fields["checkpoint"] = None if run.checkpoint is None else str(run.checkpoint)
    write_whole(path_of(path), json.dumps({"kind": KIND, "version": FILE_VERSION, **to_json(fields)}, indent=1) + "\n")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return {field: value} of a `Run`, from a file that `save` wrote or from a run's checkpoint folder.

    Raises:
      ValueError: the file or folder cannot be read, or holds something else.
    """
    file = path_of(path)
    if file.is_dir():
        return _kept(file)
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        why = reason.strerror if isinstance(reason, OSError) else "it holds no JSON"
        raise ValueError(f"path must be a file that Run.save wrote; got {shown(str(file))}: {why}.") from None
    if not isinstance(saved, Mapping) or saved.get("kind") != KIND or saved.get("version") != FILE_VERSION:
        raise ValueError(
            f"path must be a file that Run.save wrote, of version {FILE_VERSION}; got {shown(str(file))}, which holds "
            "something else."
        )
    fields = from_json({name: value for name, value in saved.items() if name not in ("kind", "version")})
    try:
        settings = fields["settings"]
        settings["recompute"] = Recompute(**settings["recompute"])
        fields["settings"], fields["recipe"] = Settings(**settings), Recipe.from_plain(fields["recipe"])
        fields["checkpoint"] = None if fields["checkpoint"] is None else Path(fields["checkpoint"])
    except (KeyError, TypeError, ValueError) as reason:
        raise ValueError(f"{shown(str(file))} does not hold a whole run: {reason}.") from None
    return dict(fields)


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved run's {setting: value} with the present names of settings: `accumulate` became `micro_batches`."""
    return {"micro_batches" if name == "accumulate" else name: value for name, value in settings.items()}


def _kept(folder: Path) -> dict[str, Any]:
    """Return {field: value} of the `Run` whose newest checkpoint a folder holds; a ValueError if there is none.

    The text's path and the machine are missing; the validation loss is NaN.
    """
    saved = checkpoint.load(folder)
    if saved is None or "identity" not in saved.facts:
        runs = folder / "runs"  # of a comparison
        first = min((one for one in runs.iterdir() if one.is_dir()), default=None) if runs.is_dir() else None
        hint = "" if first is None else f" Its runs have folders of their own, such as {shown(str(first))}."
        raise ValueError(
            f"path must be a file that Run.save wrote, or the folder of a run; got {shown(str(folder))}.{hint}"
        )
    identity, state = saved.facts["identity"], saved.facts["state"]
    log = [] if state["levels"] is None else state["levels"]["log"]
    known = {field.name for field in dataclasses.fields(Settings)}
    settings = {name: value for name, value in renamed(identity["settings"]).items() if name in known}
    if "recompute" in settings:
        settings["recompute"] = Recompute(**settings["recompute"])
    rows = state["rows"]
    return {
        "recipe": Recipe.from_plain(identity["recipe"]), "settings": Settings(**settings), "rows": rows,
        "losses": [row["loss"] for row in rows], "validation_loss": math.nan, "measured": state["measured"],
        "changes": [LevelChange(*change)._asdict() for change in log], "stopped": state["stopped"],
        "seconds": math.fsum(row["seconds"] for row in rows), "checkpoint": folder, "data": identity["data"],
        "world": identity.get("world", 1),
    }  # fmt: skip
