"""Processor time of a training step by recipe, compared with float32 in the same trainer and by torch.

python -m benchmarks.training [RECIPE...]

Shares of a step: products (with their casts, attention's too), and the specified operations, the optimizer's included.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.machine import describe
from fpsim.torch import linear_products
from fpsim.train import Settings, Trainer, recipes
from fpsim.train.operations import operations as functions
from fpsim.train.operations.operations import AttentionProducts
from fpsim.train.optimizer import AdamW

STEPS, ROUNDS, WARM = 10, 3, 3
WANTED = {"DEEPSEEK_V3": 4.0, "FP32": 10.0}  # at most this multiple of the time of float32, specified and torch's
OTHERS = 6.0  # of every other recipe of 8 and 16 bits
MOST = 0.25  # of a step, in specified operations
FUNCTIONS = ("Embedding", "RootMeanSquareNorm", "CausalSoftmax", "CrossEntropy")


class Timed(NamedTuple):
    """The functions of products and of operations whose time is measured, each as (object, name of its attribute)."""

    products: tuple[tuple[Any, str], ...]
    operations: tuple[tuple[Any, str], ...]


TIMED = Timed(
    ((linear_products, "quantized"), (linear_products, "multiply"), (AttentionProducts, "multiply")),
    (
        *((getattr(functions, name), way) for name in FUNCTIONS for way in ("forward", "backward")),
        (functions, "swiglu"), (functions, "swiglu_slopes"), (AdamW, "clip"), (AdamW, "update"),
    ),
)  # fmt: skip


def main(arguments: list[str]) -> int:
    """Print a row for each recipe; return 1 if one misses its target, else 0."""
    os.environ["FPSIM_NUM_THREADS"] = "1"
    machine = describe()
    print(f"{machine['processor']}, one core, {machine['date']}; 0.33 M weights, 512 tokens a step:")
    names = [name for name in arguments or recipes.ROWS if name != "FP32"]
    baseline, plain = _trainer("FP32"), _trainer("FP32", "torch")
    missed = False
    columns = ("x FP32", "x torch", "wanted", "products", "operations")
    print(f"{'recipe':26s} {'ms':>7s} " + " ".join(f"{column:>10s}" for column in columns))
    for name in (*names, "FP32"):
        trainer = baseline if name == "FP32" else _trainer(name)
        rounds = [(_time(baseline), _time(plain), _time(trainer)) for _ in range(ROUNDS)]
        base, by_torch, step = (min(column) for column in zip(*rounds, strict=True))
        with _clock(TIMED.products) as products:
            whole = sum(_steps(trainer))
        with _clock(TIMED.operations) as operations:
            other = sum(_steps(trainer))
        shares = products[0] / whole, operations[0] / other
        wanted = WANTED.get(name, OTHERS)
        missed |= max(step / base, step / by_torch if name in WANTED else 0) > wanted or shares[1] > MOST
        figures = f"{step / base:10.2f} {step / by_torch:10.2f} {wanted:10.1f} {shares[0]:10.0%} {shares[1]:10.0%}"
        print(f"{name:26s} {1e3 * step:7.1f} {figures}", flush=True)
    print(f"{'FP32, by torch':26s} {1e3 * _time(plain):7.1f}")
    return int(missed)


def _trainer(name: str, arithmetic: str = "specified") -> Trainer:
    trainer = Trainer(recipes.ROWS[name], Settings(measure=0, steps=10**6, arithmetic=arithmetic))
    for _ in range(WARM):
        trainer.step()
    return trainer


def _steps(trainer: Trainer) -> list[float]:
    """Return the processor's seconds of some steps."""
    seconds = []
    for _ in range(STEPS):
        began = time.process_time()
        trainer.step()
        seconds.append(time.process_time() - began)
    return seconds


def _time(trainer: Trainer) -> float:
    """Return the median seconds of a step."""
    return float(statistics.median(_steps(trainer)))


@contextmanager
def _clock(timed: tuple[tuple[Any, str], ...]) -> Iterator[list[float]]:
    """Yield a list with the processor's seconds that some functions take inside the block."""
    spent, whole = [0.0], [(place, name, place.__dict__[name]) for place, name in timed]

    def clocked(function: Any) -> Any:
        def run(*values: Any, **keywords: Any) -> Any:
            began = time.process_time()
            try:
                return function(*values, **keywords)
            finally:
                spent[0] += time.process_time() - began

        return run

    for place, name, function in whole:
        is_static = isinstance(function, staticmethod)
        setattr(place, name, staticmethod(clocked(function.__func__)) if is_static else clocked(function))
    try:
        yield spent
    finally:
        for place, name, function in whole:
            setattr(place, name, function)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
