"""Tiles of LogFMT that several tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.formats.log_format import LogFMT
from fpsim.scaling.kernels.log import decode_kernel, encode_kernel
from tests.oracles import log_format

Array = npt.NDArray[Any]


Block = tuple[int, int]


def encode(x: Array, bits: int, block: Block, nan_is_max: bool = False) -> log_format.Encoded:
    """Codes, steps and lows of a two-dimensional array, by the kernel."""
    fmt = LogFMT(bits)
    codes = np.empty(x.shape, fmt.storage)
    steps, lows = np.empty((2, *log_format.grid(x.shape, block)), np.float32)
    counts = np.zeros(5, np.int64)
    encode_kernel(8 * x.itemsize)(x, codes, steps, lows, counts, *block, fmt.level_count, nan_is_max)
    return log_format.Encoded(codes, steps, lows, counts)


def decode(encoded: log_format.Encoded, bits: int, block: Block) -> Array:
    """float32 values, by the kernel."""
    values = np.empty(encoded.codes.shape, np.float32)
    decode_kernel()(encoded.codes, encoded.steps, encoded.lows, values, *block, LogFMT(bits).level_count)
    return values


def levels_of(tile: Array, bits: int) -> Array:
    """Every level that one tile has, 0 first, as float64."""
    _, step, low, counts = encode(tile, bits, (1, tile.size))
    codes = np.arange(1 << (bits - 1)).astype(LogFMT(bits).storage)[None]
    levels: Array = decode(log_format.Encoded(codes, step, low, counts), bits, (1, codes.size))[0].astype(np.float64)
    return levels


def samples() -> dict[str, Array]:
    """float64 arrays with something in every tile; float32 holds most of them."""
    random = np.random.default_rng(7)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape)

    def pick(values: list[float], *shape: int) -> Array:
        picked: Array = random.choice(np.array(values), shape) * random.choice([-1.0, 1.0], shape)
        return picked

    sparse = normal(32, 128)
    sparse[random.random(sparse.shape) < 0.8] = 0.0
    sparse[4:8] = 0.0
    sparse *= random.choice([-1.0, 1.0], sparse.shape)  # zeros of both signs
    special = normal(16, 160)
    special[random.random(special.shape) < 0.02] = np.inf
    special[random.random(special.shape) < 0.02] = -np.inf
    with_nan = special.copy()
    with_nan[random.random(special.shape) < 0.004] = np.nan
    with_nan[3, 5] = -np.nan
    only_special = pick([0.0, np.inf], 16, 16)
    return {
        "normal": normal(32, 256),
        "ragged": normal(21, 147),
        "narrower than a tile": normal(5, 3),
        "wide": np.exp2(random.uniform(-60, 60, (32, 128))) * pick([1.0], 32, 128),
        "exactly 32 octaves": pick([1.0, 2.0**-31, 2.0**-32, 2.0**-33, 2.0**-33.5, 2.0**-34], 16, 128),
        "float32's subnormals": normal(32, 128) * 2.0**-140,
        "across the smallest normal": np.exp2(random.uniform(-149.9, -120, (32, 128))),
        "largest": pick([3.4028234663852886e38, 3.4e38, 1e38, 2.0**127, 1e30], 16, 128),
        "zeros": sparse,
        "infinite": special,
        "NaN": with_nan,
        "only zeros and Inf": only_special,
        "only zeros": pick([0.0], 16, 128),
        "all equal": pick([3.0], 16, 128),
        "equal, one per row": np.repeat(normal(16, 1), 128, axis=1),
        "almost equal": 1.1 + random.integers(0, 4, (16, 128)) * 2.0**-23,
        "close": 1.1 + random.integers(0, 400, (16, 128)) * 2.0**-23,
        "one element": normal(1, 1),
        "powers of two": np.exp2(random.integers(-8, 8, (32, 128)).astype(np.float64)) * pick([1.0], 32, 128),
        "small integers": pick([0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0], 32, 128),
    }


SAMPLES = samples()
