"""Inputs of checks of float formats, and the right results for them."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fpsim.arrays import FORMAT_OF, Array, distinct, words
from fpsim.casts.cast import decode, encode
from fpsim.errors import shown
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.testing.boundary_points import further_points, points
from fpsim.testing.quantizers.rounder import SplitInputs, Words, taken_apart, words_of
from fpsim.testing.quantizers.search import KnownModels


def inputs_for(fmt: Format, source: Any = None) -> Array:
    """Return the inputs of a check of a format, (n,), each bit pattern once, in the order of the patterns.

    source: dtype of the inputs; None for float64 if the format is FP32 or has values that float32 cannot represent,
    else for float32.
    """
    dtype: Any = source or (np.float32 if FP32.holds(fmt) and fmt != FP32 else np.float64)
    both = np.concatenate([points(fmt, dtype), further_points(fmt, dtype)])
    bits = both.view(f"u{both.itemsize}")
    first = words(np.array([np.inf, -np.inf], dtype)) + 1  # NaNs that become Inf where bits are cut off; they signal
    return distinct(np.concatenate([bits, first.astype(bits.dtype)])).view(dtype)


def source_dtype(source: Any, fmt: Format) -> np.dtype[Any]:
    """Return the NumPy dtype of the inputs that a caller names by `source`, a dtype or its name.

    Raises:
      ValueError: source is neither float32, float64 nor an integer dtype, or cannot represent the format's values.
    """
    dtype = dtype_of(source)
    if dtype is not None and np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize <= 8 and fmt.bits <= 32:
        return np.dtype(dtype)
    if dtype is None or dtype not in (np.float32, np.float64):
        raise ValueError(f"source must be float32 or float64, or an integer dtype; got {shown(source)}.")
    if not FORMAT_OF[np.dtype(dtype)].holds(fmt):
        raise ValueError(f"source must hold {fmt}, which float32 does not; got {shown(source)}. Use float64.")
    return np.dtype(dtype)


def smallest_normal_of(x: Array) -> float:
    """Return the smallest normal value of the dtype of an array of floats."""
    return float(FORMAT_OF[x.dtype].smallest_normal)


def rounded_words(x: Array, options: CastOptions) -> Words:
    """Return an array x rounded as `options` say, as bit patterns of float64, with one pattern for all NaNs."""
    codes = encode(
        x, options.fmt, rounding=options.rounding, overflow=options.overflow, subnormals=options.subnormals,
        seed=options.seed,
    )  # fmt: skip
    return words_of(np.asarray(decode(codes, options.fmt, np.float64)))


@functools.lru_cache(maxsize=8)
def inputs_of(fmt: Format, source: Any = None) -> tuple[Array, SplitInputs, KnownModels]:
    """Return (inputs of a check of a format, the same split into signs and magnitudes, cache of models' results).

    source: dtype of the inputs; None for float64 if the format is FP32 or has values that float32 cannot represent,
    else for float32.
    """
    x = inputs_for(fmt, source)
    apart = taken_apart(x)
    return x, apart, KnownModels(apart)


@functools.lru_cache(maxsize=8)
def right_words(options: CastOptions, source: Any = None) -> Words:
    """Return the right results for the inputs that `inputs_of` returns, as bit patterns of float64.

    options: the promised cast. source: dtype of the inputs, as for `inputs_of`.
    """
    return rounded_words(inputs_of(options.fmt, source)[0], options)
