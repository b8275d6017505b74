"""Runs as JSON: what another machine needs to train the same run again, and what its digests were."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.operators import torch
from fpsim.train import checkpoint
from fpsim.train.settings import Recompute, Settings

KIND, VERSION = "fpsim training run", 1
# Variables that change bits of torch, MKL, oneDNN or the C library.
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "GLIBC_TUNABLES", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
)  # fmt: skip


def machine() -> dict[str, str]:
    """Return what decides the bits of torch's own operations on this machine, as texts by name.

    Example:
      >>> from fpsim.train.replays.saved_run import machine
      >>> machine().keys() >= {"NumPy", "processor", "system", "torch", "torch's CPU capability"}
      True
    """
    words = {
        "system": f"{platform.system()} {platform.machine()}", "processor": _processor(), "torch": torch.__version__,
        "NumPy": np.__version__, "torch's CPU capability": torch.backends.cpu.get_cpu_capability(),
        "fpsim": version("fpsim-numerics"),
    }  # fmt: skip
    return words | {name: os.environ[name] for name in VARIABLES if name in os.environ}


def _processor() -> str:
    """Return the processor's name; "" where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def save(run: Any, path: str | os.PathLike[str]) -> None:
    """Write a Run as JSON, whole or not at all."""
    fields = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    fields["recipe"], fields["settings"] = run.recipe.to_plain(), dataclasses.asdict(run.settings)
    text = fields["settings"]["text"]
    fields["settings"]["text"] = None if text is None else str(text)
    fields["checkpoint"] = None if run.checkpoint is None else str(run.checkpoint)
    write_whole(path_of(path), json.dumps({"kind": KIND, "version": VERSION, **to_json(fields)}, indent=1) + "\n")


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of a Run that `save` wrote, or of one that is kept in a folder.

    Raises:
      ValueError: the file or folder cannot be read, or holds something else.
    """
    file = path_of(path)
    if file.is_dir():
        return _kept(file)
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ValueError(f"path must be a file that Run.save wrote; got {shown(str(file))}: {reason}.") from None
    if not isinstance(saved, Mapping) or saved.get("kind") != KIND or saved.get("version") != VERSION:
        raise ValueError(
            f"path must be a file that Run.save wrote, of version {VERSION}; got {shown(str(file))}, which holds "
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


def _kept(folder: Path) -> dict[str, Any]:
    """Return the fields of the run whose newest checkpoint a folder holds; its text and machine are not known."""
    saved = checkpoint.load(folder)
    if saved is None or "identity" not in saved.facts:
        raise ValueError(f"path must be a file that Run.save wrote, or the folder of a run; got {shown(str(folder))}.")
    identity, state = saved.facts["identity"], saved.facts["state"]
    known = {field.name for field in dataclasses.fields(Settings)}
    settings = {name: value for name, value in identity["settings"].items() if name in known}
    if "recompute" in settings:
        settings["recompute"] = Recompute(**settings["recompute"])
    rows = state["rows"]
    return {
        "recipe": Recipe.from_plain(identity["recipe"]), "settings": Settings(**settings), "rows": rows,
        "losses": [row["loss"] for row in rows], "validation_loss": math.nan, "measured": state["measured"],
        "changes": [], "stopped": state["stopped"], "checkpoint": folder, "data": identity["data"],
    }  # fmt: skip
