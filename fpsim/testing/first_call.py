"""Compiling of the Numba loops ("kernels") that tests need, before the first test starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Unpack

import numpy as np

from fpsim.casts.cast import decode, encode, quantize
from fpsim.errors import shown
from fpsim.formats.cast_options import CastKeywords, FormatLike, options_of, with_cast_keywords
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32

USUAL = (E4M3, E5M2, FP16, BF16)


@with_cast_keywords
def warm_up(*formats: FormatLike, calls: Iterable[Callable[[], object]] = (), **keywords: Unpack[CastKeywords]) -> None:
    """Compile the Numba loops that tests need, or load them from disk, so that the first test is as fast as others.

    Args:
      formats: formats that the tests cast to and from, by name, dtype or object; if none are given, E4M3, E5M2, FP16
        and BF16.
      calls: functions without arguments, each called once; each should call, on small arrays, something else that the
        tests use.
      rounding, overflow, subnormals, seed, random_bits: keywords of the casts, as in `fpsim.encode`. Each rounding has
        separate loops.

    Raises:
      ValueError: an unknown format, or an unknown value of a keyword.
      TypeError: an unknown keyword; or calls is not iterable, or contains something that is not callable.

    Example:
      >>> import fpsim as fp
      >>> x = np.ones((2, 32), np.float32)
      >>> fp.testing.warm_up("e4m3", calls=[lambda: fp.encode_scaled(x, "e4m3", fp.scalings.MX)])
    """
    wanted = "calls must be functions without arguments, such as [lambda: fp.add(x, x)]"
    try:
        functions = list(calls)
    except TypeError:
        raise TypeError(f"{wanted}; got {shown(calls)}.") from None
    for function in functions:
        if not callable(function):
            raise TypeError(f"{wanted}; got one of {type(function).__name__}.")
    for fmt in [options_of(warm_up, spec, keywords).fmt for spec in formats or USUAL]:
        for dtype in (np.float32, np.float64):
            x = np.ones(1, dtype)
            codes = encode(x, fmt, **keywords)
            if dtype == np.float64 or FP32.holds(fmt):
                decode(codes, fmt, dtype)
                quantize(x, fmt, **keywords)
    for function in functions:
        function()
