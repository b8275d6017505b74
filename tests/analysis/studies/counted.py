"""Functions that workers call.

The file is imported alone: pytest and pandas would take most of the time of a test of workers.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

CELLS = "cells.jsonl"


def called(folder: Path, name: object) -> None:
    """Leave a mark for one call: workers share nothing but files."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}").touch()


def calls(folder: Path) -> dict[str, int]:
    """Count the calls of each name."""
    counts: dict[str, int] = {}
    for mark in folder.glob("*"):
        name = mark.name.partition("-")[0]
        counts[name] = counts.get(name, 0) + 1
    return counts


def product(a: int, b: float) -> float:
    """Multiply two numbers: a measure that other processes import."""
    return a * b


class Unsayable(Exception):
    """An exception that cannot be read back where it was sent."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


def swept(folder: Path, workers: int = 2) -> None:
    """Sweep 30 cells; cells from the number in the file slow_from on take a minute."""
    import fpsim as fp

    def measure(a: int) -> float:
        called(folder / "marks", a)
        if a >= int((folder / "slow_from").read_text()):
            time.sleep(60)
        return a / 3

    fp.analysis.sweep(measure, {"a": range(30)}, out=folder / "out", workers=workers)
