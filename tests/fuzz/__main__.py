"""The fuzzer: `make fuzz MINUTES=5 SEED=0`. It ends with 1 where it found something, which `--only` repeats."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.fuzz.junk import call_with_junk
from tests.fuzz.valid import DRAWS

EVERY = {**DRAWS, "junk": call_with_junk}
JUNK_SHARE = 0.9  # of draws: those beside an oracle take longer
MOST = 20  # findings that are shown


class Found(NamedTuple):
    """What one draw came to."""

    number: int
    kind: str
    calls: int
    error: str = ""


def draw(seed: int, number: int) -> Found:
    """Draw `number` of a seed: the same calls each time."""
    rng = np.random.default_rng([seed, number])
    kind = "junk" if rng.random() < JUNK_SHARE else list(DRAWS)[int(rng.integers(len(DRAWS)))]
    try:
        return Found(number, kind, EVERY[kind](rng))
    except Exception as error:
        return Found(number, kind, 1, f"{type(error).__name__}: {error}")


def fuzz(seed: int, seconds: float, show: Callable[[str], None] = print) -> int:
    """Draw until the time is over; how many draws found something."""
    end, calls, draws, findings = time.monotonic() + seconds, dict.fromkeys(EVERY, 0), 0, 0
    while time.monotonic() < end and findings < MOST:
        got = draw(seed, draws)
        draws += 1
        calls[got.kind] += got.calls
        if got.error:
            findings += 1
            show(f"{got.kind} (--seed {seed} --only {got.number}): {got.error}")
    counts = ", ".join(f"{count} {kind}" for kind, count in calls.items())
    show(f"{sum(calls.values())} calls ({counts}), {findings} findings, seed {seed}")
    return findings


def main(words: list[str] | None = None) -> int:
    """Run the command; return 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long to draw (default: 5)")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default: 0)")
    parser.add_argument("--only", type=int, help="repeat this draw of the seed alone")
    options = parser.parse_args(words)
    if options.only is not None:
        got = draw(options.seed, options.only)
        print(got.error or f"draw {options.only}, {got.kind}: nothing found")
        return 1 if got.error else 0
    return 1 if fuzz(options.seed, 60 * options.minutes) else 0


if __name__ == "__main__":
    sys.exit(main())
