"""Small calls, which dispatch and checks cost, and the checks of the kit for tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import methodcaller

import ml_dtypes
import numpy as np

import fpsim as fp
from benchmarks.race import Work, again
from benchmarks.row import Row

TIMES = 200
UNIT = "hopper_e4m3_f32"


def rows() -> Iterator[Row]:
    """Every race of this file: calls a second, of which the microseconds of a call are shown."""
    random = np.random.default_rng(0)
    few, tile = random.standard_normal(8, np.float32), random.standard_normal((1, 128), np.float32)
    codes = fp.encode(few, fp.E4M3)
    a, b = (fp.encode(random.standard_normal((32, 32), np.float32), fp.E4M3) for _ in range(2))
    small: dict[str, tuple[Work, float]] = {
        "encode, 8 values": (partial(fp.encode, few, fp.E4M3), 5e-6),
        "add, 8 values": (partial(fp.add, codes, codes, fmt=fp.E4M3), 10e-6),
        "multiply, 8 values": (partial(fp.multiply, codes, codes, fmt=fp.E4M3), 10e-6),
        "matmul, 32^3": (partial(fp.matmul, a, b, accumulate=UNIT), 15e-6),
        "encode_scaled, a tile": (partial(fp.encode_scaled, tile, fp.E4M3, fp.scalings.TILE_1X128), 15e-6),
    }
    for name, (work, wanted) in small.items():
        yield Row(f"call: {name}", {"fpsim": again(work, TIMES)}, {}, 1 / wanted, TIMES, "call")
    yield from kit_rows()


def kit_rows() -> Iterator[Row]:
    """The checks of kernels and casts, each of a right one, and the probe of a unit."""
    to_e4m3 = methodcaller("astype", ml_dtypes.float8_e4m3fn)
    kernel = partial(fp.matmul, accumulate=UNIT)
    checks: dict[str, tuple[Work, float]] = {
        "check_quantizer, E4M3": (partial(fp.testing.check_quantizer, to_e4m3, "e4m3"), 3.0),
        "check_kernel, Hopper FP8": (partial(fp.testing.check_kernel, kernel, a="e4m3", accumulate=UNIT), 10.0),
        "probe of 4,096 terms": (partial(fp.probe.sum, np.sum, 4096), 3.0),
        "probe of a unit": (partial(fp.probe.matmul, kernel, 256, a="e4m3"), 5.0),
    }
    for name, (work, wanted) in checks.items():
        yield Row(name, {"fpsim": work}, {}, 1 / wanted, 1, "call")
