"""Helpers shared by commands: text, numbers and tables for a terminal, names of scalings, folders for results."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

import fpsim
from fpsim.display.wording import short
from fpsim.errors import unknown


def shown(text: str, width: int = 10_000) -> str:
    """Return untrusted text made safe for a terminal, cut to `width` characters."""
    return short(text, width)


def echo_lines(text: str) -> None:
    """Print untrusted text line by line."""
    for line in text.splitlines():
        typer.echo(shown(line))


def print_line(console: Console, line: str, style: str = "") -> None:
    """Print one line of untrusted text to rich's console in a style, such as "bold"; the terminal wraps the line."""
    console.print(Text(shown(line), style=style), soft_wrap=True)


def new_table() -> Table:
    """Return an empty table with a line below its heads."""
    return Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


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
