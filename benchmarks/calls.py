"""What a call takes where the array is short: `python -m benchmarks.calls` prints microseconds of processor time.

Calls take turns, and each shows the shortest of its turns, so that what else runs on the machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fpsim as fp

TURNS, CALLS = 60, 20


def calls() -> dict[str, Callable[[], Any]]:
    """The calls, by what they show."""
    random = np.random.default_rng(0)
    x = random.standard_normal(64, dtype=np.float32)
    tile = random.standard_normal((1, 128), dtype=np.float32)
    square = fp.encode(random.standard_normal((32, 32), dtype=np.float32), fp.E4M3)
    codes, bf16 = fp.encode(x, fp.E4M3), fp.encode(x, fp.BF16)
    sequential, unit = fp.Sequential(fp.BF16), fp.unit("hopper_e4m3_f32")
    return {
        "encode": partial(fp.encode, x, fp.E4M3),
        'encode, "e4m3", "up"': partial(fp.encode, x, "e4m3", rounding="up"),
        "encode, out": partial(fp.encode, x, fp.E4M3, out=codes.copy()),
        "encode float16": partial(fp.encode, x.astype(np.float16), fp.E4M3),
        "encode, stochastic": partial(fp.encode, x, fp.E4M3, rounding="stochastic", seed=1),
        "decode": partial(fp.decode, codes, fp.E4M3),
        "quantize": partial(fp.quantize, x, fp.E4M3),
        "add E4M3": partial(fp.add, codes, codes, fmt=fp.E4M3),
        "add BF16": partial(fp.add, bf16, bf16, fmt=fp.BF16),
        "fma E4M3": partial(fp.fma, codes, codes, codes, fmt=fp.E4M3),
        "less E4M3": partial(fp.less, codes, codes, fmt=fp.E4M3),
        "encode_scaled, a tile": partial(fp.encode_scaled, tile, fp.E4M3, fp.scalings.TILE_1X128),
        "quantize_scaled, a tile": partial(fp.quantize_scaled, tile, fp.E4M3, fp.scalings.TILE_1X128),
        "matmul 32 x 32 x 32, Hopper FP8": partial(fp.matmul, square, square, accumulate=unit),
        "matmul, Sequential BF16": partial(fp.matmul, square, square, accumulate=sequential, fmt=fp.E4M3),
        "sum, Sequential BF16": partial(fp.sum, x, accumulate=sequential),
        "dot_add, a row": partial(fp.dot_add, square[:1], square[:1], None, unit),
    }


def microseconds(call: Callable[[], Any]) -> float:
    """Of one call, in a turn of several."""
    start = time.thread_time_ns()
    for _ in range(CALLS):
        call()
    return (time.thread_time_ns() - start) / CALLS / 1e3


def main() -> None:
    """Print the table."""
    found = calls()
    best = dict.fromkeys(found, float("inf"))
    for _ in range(TURNS):
        for name, call in found.items():
            best[name] = min(best[name], microseconds(call))
    for name, time_taken in best.items():
        print(f"{name:34} {time_taken:6.1f} us")


if __name__ == "__main__":
    main()
