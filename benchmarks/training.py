"""Seconds of a training step by recipe, compared with float32 in the same trainer, and the share of products.

python -m benchmarks.training [RECIPE...]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.machine import describe
from fpsim.torch import linear
from fpsim.train import Settings, Trainer, recipes

STEPS, ROUNDS, WARM = 10, 3, 3
WANTED = {"DEEPSEEK_V3": 4.0}  # at most this multiple of the seconds of float32
OTHERS = 6.0  # of every other recipe of 8 and 16 bits


def main(arguments: list[str]) -> int:
    """Print a row for each recipe; return 1 if one is slower than its target, else 0."""
    machine = describe()
    print(f"{machine['processor']}, {machine['cores']} cores, {machine['date']}; 0.33 M weights, 512 tokens a step:")
    names = arguments or [name for name in recipes.ROWS if name != "FP32"]
    baseline = _trainer("FP32")
    missed = False
    print(f"{'recipe':26s} {'steps/s':>8s} {'x FP32':>7s} {'wanted':>7s} {'in products':>12s}")
    for name in names:
        trainer = _trainer(name)
        ratios, steps, shares = [], [], []
        for _ in range(ROUNDS):
            plain = _median(baseline)
            with _clock() as spent:
                began = time.perf_counter()
                seconds = _median(trainer)
                shares.append(spent[0] / (time.perf_counter() - began))
            ratios.append(seconds / plain)
            steps.append(1 / seconds)
        ratio, wanted = min(ratios), WANTED.get(name, OTHERS)
        missed |= ratio > wanted
        print(f"{name:26s} {max(steps):8.1f} {ratio:7.2f} {wanted:7.1f} {statistics.median(shares):12.0%}", flush=True)
    print(f"{'FP32':26s} {1 / _median(baseline):8.1f} {1:7.2f}")
    return int(missed)


def _trainer(name: str) -> Trainer:
    trainer = Trainer(recipes.ROWS[name], Settings(measure=0, steps=10**6))
    for _ in range(WARM):
        trainer.step()
    return trainer


def _median(trainer: Trainer) -> float:
    """Return the median seconds of a step."""
    return float(statistics.median(trainer.step()["seconds"] for _ in range(STEPS)))


@contextmanager
def _clock() -> Iterator[list[float]]:
    """Yield a list with the seconds spent on quantising and multiplying operands inside the block."""
    spent = [0.0]
    names = ("quantized", "multiply")
    whole = {name: getattr(linear, name) for name in names}

    def timed(function: Any) -> Any:
        def run(*values: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*values)
            finally:
                spent[0] += time.perf_counter() - began

        return run

    for name in names:
        setattr(linear, name, timed(whole[name]))
    try:
        yield spent
    finally:
        for name in names:
            setattr(linear, name, whole[name])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
