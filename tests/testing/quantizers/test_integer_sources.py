"""Casts of integers: one rounding of the exact integer passes, detours are named."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.testing.quantizers.integer_sources import odd_float64

Array = Any
BF16 = ml_dtypes.bfloat16


def report(fn: Any, fmt: str, source: Any, **keywords: Any) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, source=source, raises=False, **keywords)


def once(x: Array, fmt: str = "bf16", **keywords: Any) -> Array:
    return fp.encode(odd_float64(x), fmt, **keywords)


def nearest_bf16(integer: int) -> int:
    """Return the nearest integer of eight bits times a power of two, ties to even."""
    unit = 1 << max(abs(integer).bit_length() - 8, 0)
    return round(Fraction(integer, unit)) * unit


def test_what_is_right_is_one_rounding_of_the_integer() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-(1 << 63), 1 << 63, 500, dtype=np.int64) >> rng.integers(0, 63, 500)
    x = np.concatenate([x, [16973823, -16973823, (1 << 62) + (1 << 54) + 1, (1 << 62) + (1 << 54), -(1 << 63)]])
    values = fp.decode(once(x), "bf16", np.float64)
    assert [int(value) for value in values] == [nearest_bf16(int(integer)) for integer in x]


@pytest.mark.parametrize("source", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_one_rounding_passes(source: str) -> None:
    for fmt in ("bf16", "e4m3"):
        checked = report(lambda x, fmt=fmt: once(x, fmt), fmt, source)
        assert checked.ok, checked
        assert checked.covered.dtypes == (source,)
        assert checked.covered.sizes[1] > 1 << 16


@pytest.mark.parametrize(
    ("fn", "source", "cause"),
    [
        (lambda x: x.astype(BF16), "int64", "rounds to FP32 first"),
        (lambda x: x.astype(np.float32).astype(BF16), "int32", "rounds to FP32 first"),
        (lambda x: fp.encode(x.astype(np.float64), "bf16"), "int64", "rounds to FP64 first"),
        (lambda x: once(x, rounding="toward_zero"), "int32", "rounds toward zero"),
        (lambda x: once(x.astype(np.int32)), "int64", "keeps 32 bits of the integer"),
    ],
)
def test_detours_are_named(fn: Any, source: str, cause: str) -> None:
    checked = report(fn, "bf16", source)
    assert (checked.causes, checked.unexplained) == ((cause,), 0), checked
    assert checked.broken[0].paste.startswith("fn(np.array([")


@pytest.mark.usefixtures("of_a_million")
def test_what_is_wrong_beyond_an_index_is_found() -> None:
    def fn(x: Array) -> Array:
        codes = once(x)
        codes[1 << 20 :] = 0
        return codes

    (broken,) = report(fn, "bf16", "int32").broken
    assert broken.property == "size"
