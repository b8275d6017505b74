"""Long arrays as flat chunks that stay in the cache, and the rounding of one chunk as part of a longer array."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import float_array, words
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.named import DTYPES, FP32, FP64

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
CHUNK = 1 << 16  # elements: a float64 temporary of a chunk takes 512 KiB, so a few of them stay in the cache


def flat_chunks(x: Array, size: int = CHUNK) -> Iterator[Array]:
    """The elements of x in C order and native byte order, in contiguous 1-d arrays of `size` (the last: the rest)."""
    native = x.dtype.newbyteorder("=")
    flat = x.reshape(-1) if x.flags.c_contiguous else x.flat  # a flatiter copies one slice at a time
    for start in range(0, x.size, size):
        yield np.ascontiguousarray(flat[start : start + size], native)


def as_float64(x: Array) -> Floats:
    """The exact values of a chunk; a new array."""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return x.astype(np.float64)


def quantize_chunk(x: Array, options: CastOptions, first: int) -> Array:
    """What `fpsim.quantize` returns for elements first .. first + x.size of a flat array, as float32 or float64.

    The flat index matters to stochastic rounding alone. The result is float64 where float32 cannot hold the format.
    """
    from fpsim.casts import pipelines
    from fpsim.runtime.pipeline import run_stages

    _, source_fmt = float_array(x)
    wide = source_fmt == FP64 or not FP32.holds(options.fmt)
    target_fmt = FP64 if wide else FP32
    result = np.empty(x.shape, DTYPES[target_fmt])
    run_stages(pipelines.quantizing(source_fmt, target_fmt, options), words(x), words(result), first)
    return result
