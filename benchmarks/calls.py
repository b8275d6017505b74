"""Small calls, which dispatch and checks cost, and the checks of the kit for tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import methodcaller

import ml_dtypes
import numpy as np

import fpsim as fp
from benchmarks.race import Work, again
from benchmarks.row import RaceRow

TIMES = 200
UNIT = "hopper_e4m3_f32"


def rows() -> Iterator[RaceRow]:
    """Yield every race of this file; rates are in calls a second, and reports show microseconds a call."""
    for name, (work, wanted) in calls().items():
        yield RaceRow(
            f"call: {name}", {"fpsim": again(work, TIMES)}, {}, 1e6 / wanted if wanted else None, TIMES, "call"
        )
    yield from kit_rows()


def calls() -> dict[str, tuple[Work, float | None]]:
    """Return calls on short arrays by name, each with its target in microseconds, or None."""
    random = np.random.default_rng(0)
    x, tile = random.standard_normal(64, np.float32), random.standard_normal((1, 128), np.float32)
    square = fp.encode(random.standard_normal((32, 32), np.float32), fp.E4M3)
    codes, bf16 = fp.encode(x, fp.E4M3), fp.encode(x, fp.BF16)
    sequential, unit = fp.Sequential(fp.BF16), fp.unit(UNIT)
    return {
        "encode": (partial(fp.encode, x, fp.E4M3), 5),
        'encode, "e4m3", "up"': (partial(fp.encode, x, "e4m3", rounding="up"), 5),
        "encode, out": (partial(fp.encode, x, fp.E4M3, out=codes.copy()), 5),
        "encode float16": (partial(fp.encode, x.astype(np.float16), fp.E4M3), None),
        "encode, stochastic": (partial(fp.encode, x, fp.E4M3, rounding="stochastic", seed=1), None),
        "decode": (partial(fp.decode, codes, fp.E4M3), None),
        "quantize": (partial(fp.quantize, x, fp.E4M3), None),
        "add E4M3": (partial(fp.add, codes, codes, fmt=fp.E4M3), 10),
        "add BF16": (partial(fp.add, bf16, bf16, fmt=fp.BF16), 10),
        "multiply E4M3": (partial(fp.multiply, codes, codes, fmt=fp.E4M3), 10),
        "fma E4M3": (partial(fp.fma, codes, codes, codes, fmt=fp.E4M3), 10),
        "less E4M3": (partial(fp.less, codes, codes, fmt=fp.E4M3), 10),
        "encode_scaled, a tile": (partial(fp.encode_scaled, tile, fp.E4M3, fp.scalings.TILE_1X128), 15),
        "quantize_scaled, a tile": (partial(fp.quantize_scaled, tile, fp.E4M3, fp.scalings.TILE_1X128), 15),
        "matmul 32^3, Hopper FP8": (partial(fp.matmul, square, square, accumulate=unit), 15),
        "matmul 32^3, Sequential BF16": (partial(fp.matmul, square, square, accumulate=sequential, fmt=fp.E4M3), 15),
        "sum, Sequential BF16": (partial(fp.sum, x, accumulate=sequential), None),
        "dot_add, a row": (partial(fp.dot_add, square[:1], square[:1], None, unit), None),
    }


def kit_rows() -> Iterator[RaceRow]:
    """Yield checks of a correct quantizer and a correct kernel, and probes of a sum and a unit."""
    to_e4m3 = methodcaller("astype", ml_dtypes.float8_e4m3fn)
    kernel = partial(fp.matmul, accumulate=UNIT)
    checks: dict[str, tuple[Work, float]] = {
        "check_quantizer, E4M3": (partial(fp.testing.check_quantizer, to_e4m3, "e4m3", overflow="ml_dtypes"), 3.0),
        "check_kernel, Hopper FP8": (partial(fp.testing.check_kernel, kernel, a="e4m3", accumulate=UNIT), 10.0),
        "probe of 4,096 terms": (partial(fp.probe.sum, np.sum, 4096), 3.0),
        "probe of a unit": (partial(fp.probe.matmul, kernel, 256, a="e4m3"), 5.0),
    }
    if fp.cpu.available():
        checks["validate, each instruction of the CPU"] = partial(fp.cpu.validate, values=10_000), 5.0
    for name, (work, wanted) in checks.items():
        yield RaceRow(name, {"fpsim": work}, {}, 1 / wanted, 1, "call")
