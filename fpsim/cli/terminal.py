"""Helpers shared by commands: text and numbers for a terminal, names of scalings, folders for results."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fpsim
from fpsim.display.wording import short
from fpsim.errors import unknown


def shown(text: str, width: int = 10_000) -> str:
    """Return untrusted text made safe for a terminal, cut to `width` characters."""
    return short(text, width)


def figure(words: Callable[[float], str], value: float) -> str:
    """Return `value` as text, formatted by the function `words`; a dash for NaN."""
    return "–" if math.isnan(value) else words(value)


def refuse_bad_folder(out: Path) -> None:
    """Raise a ValueError if results cannot be written to the folder `out`, which need not exist yet."""
    there = next(folder for folder in (out, *out.resolve().parents) if folder.exists())
    if not there.is_dir():
        raise ValueError(f"--out must be a folder; got {out}, where {there} is a file. Choose another.")
    if not os.access(there, os.W_OK):
        raise ValueError(f"--out must be a folder that can be written; got {out}. Choose another.")


def scaling_named(word: str) -> Any:
    """Return the scaling that `word` names: None for "none", "amax" for "amax", else one of fp.scalings.

    Capitals do not matter.

    Raises:
      ValueError: there is no such scaling.
    """
    if word.lower() in ("none", "amax"):
        return None if word.lower() == "none" else "amax"
    names = [name for name in dir(fpsim.scalings) if name.isupper()]
    if word.upper() not in names:
        spellings = {name.lower(): name for name in names}
        raise unknown("scaling", word, ["none", "amax", *names], spellings, listing="docs/scaling.md")
    return getattr(fpsim.scalings, word.upper())
