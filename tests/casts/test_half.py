"""The processor's own conversions to and from FP16 return the bits of the integer bodies."""

from __future__ import annotations

import ctypes
import platform
import sys

import numpy as np
import pytest

import fpsim as fp
from fpsim.casts import half
from fpsim.casts.loops import decode_kernel, encode_kernel
from fpsim.casts.pipelines import LARGE
from fpsim.core.layouts import decode_plan, encode_plan
from fpsim.formats.rounding import Rounding
from fpsim.runtime import processor
from fpsim.runtime.stream import BLOCK
from fpsim.runtime.threads import thread_count
from fpsim.testing import assert_bits_equal

PLAN = encode_plan(fp.FP16, 32, Rounding.NEAREST_EVEN, "nonfinite", "keep", 32)
STEP = 1 << 24  # patterns compared at a time

pytestmark = pytest.mark.skipif(not half.has_conversion(), reason="this processor has no float16 conversion")


def codes(bits: np.ndarray, kernel: object) -> np.ndarray:
    out = np.empty(bits.size, np.uint16)
    kernel(bits, out, PLAN.layout)  # type: ignore[operator]
    return out


def integer_body(bits: np.ndarray) -> np.ndarray:
    return codes(bits, encode_kernel(32, int(Rounding.NEAREST_EVEN), PLAN.kind))


def test_both_agree_on_every_exponent_and_around_every_float16_and_midpoint() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    middles = halves + np.uint32(0x1000)
    near = np.concatenate([base + np.uint32(d % 2**32) for base in (halves, middles) for d in (-1, 0, 1)])
    patterns = np.concatenate([near, np.arange(0, 1 << 32, 4093, dtype=np.uint64).astype(np.uint32)])
    assert_bits_equal(codes(patterns, half.half_kernel(False)), integer_body(patterns))


def test_the_streamed_loop_returns_the_same_bits() -> None:
    patterns = np.random.default_rng(0).integers(0, 1 << 32, 64 * BLOCK, dtype=np.uint32)
    space = np.empty(patterns.size + 32, np.uint16)
    out = space[-space.ctypes.data % 64 // 2 :][: patterns.size]
    half.half_kernel(True)(patterns, out, PLAN.layout)
    assert_bits_equal(out, integer_body(patterns))


ROUND_UP = 0x800  # FE_UPWARD of x86


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="names x86's rounding modes")
def test_the_processors_rounding_mode_changes_nothing() -> None:
    libm = ctypes.CDLL("libm.so.6")
    x = np.linspace(-3, 3, LARGE * thread_count(), dtype=np.float32)  # every thread gets a long part
    formats = [fp.FP16, fp.BF16, fp.E4M3, fp.E8M0]
    want = [fp.encode(x, fmt) for fmt in formats]
    before = libm.fegetround()
    try:
        assert libm.fesetround(ROUND_UP) == 0
        assert not processor.rounds_to_nearest()
        got = [fp.encode(x, fmt) for fmt in formats]
        values = fp.quantize(x[:1000], fp.E5M2)
    finally:
        libm.fesetround(before)
    assert processor.rounds_to_nearest()
    for g, w in zip(got, want, strict=True):
        assert_bits_equal(g, w)
    assert_bits_equal(values, fp.quantize(x[:1000], fp.E5M2))


@pytest.mark.parametrize("streamed", [False, True])
def test_every_code_has_the_float_of_the_integer_body(streamed: bool) -> None:
    plan = decode_plan(fp.FP16, 32)
    assert plan is not None
    every, got, want = np.arange(1 << 16, dtype=np.uint16), np.empty(1 << 16, np.uint32), np.empty(1 << 16, np.uint32)
    half.half_decode_kernel(streamed)(every, got, plan.layout)
    decode_kernel(32)(every, want, plan.layout)
    assert_bits_equal(got, want)
    assert_bits_equal(fp.decode(every, fp.FP16).view(np.uint32), want)  # the way that a cast of so many takes


@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16, fp.Format("same", 5, 10, nan="top", infinities=False)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_code_of_any_format_of_16_bits_has_the_value_of_its_table(fmt: fp.Format, dtype: type) -> None:
    values = fp.decode(np.arange(1 << 16, dtype=np.uint16), fmt, dtype)
    np.testing.assert_array_equal(values, fmt.table())  # NaN equals NaN


@pytest.mark.slow
def test_both_agree_on_all_float32_patterns() -> None:
    for start in range(0, 1 << 32, STEP):
        patterns = np.arange(start, start + STEP, dtype=np.uint64).astype(np.uint32)
        assert_bits_equal(codes(patterns, half.half_kernel(False)), integer_body(patterns))


@pytest.mark.parametrize(
    ("fmt", "rounding", "overflow", "subnormals"),
    [
        (fp.FP16, "up", "nonfinite", "keep"),
        (fp.FP16, "nearest_even", "saturate", "keep"),
        (fp.FP16, "nearest_even", "nonfinite", "flush"),
        (fp.BF16, "nearest_even", "nonfinite", "keep"),
    ],
)
def test_other_policies_are_left_to_the_integer_body(
    fmt: fp.Format, rounding: str, overflow: str, subnormals: str
) -> None:
    mode = Rounding[rounding.upper()]
    assert not half.serves(encode_plan(fmt, 32, mode, overflow, subnormals, 32), fmt, mode)
    assert half.serves(PLAN, fp.FP16, Rounding.NEAREST_EVEN)
