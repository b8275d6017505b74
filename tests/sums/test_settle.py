"""Sums rounded in float64 and left there: what their codes, decoded, are."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.core.decode import decode_bits_64, decode_fields
from fpsim.core.encode import FULL, encode_bits_64, encode_fields
from fpsim.core.sums.running_sum import DECODING
from fpsim.formats.rounding import Rounding
from fpsim.runtime.compile import kernel
from fpsim.sums.accumulators import Accumulator, Sequential
from fpsim.sums.kernels.settle import SETTLING, settled, settling_fields
from fpsim.sums.kernels.steps import FIXED_MODES
from fpsim.sums.plan import options_of, target

Array = npt.NDArray[Any]
u64 = np.uint64
USUAL = [fp.FP16, fp.BF16, fp.E4M3, fp.E5M2, fp.FP32, fp.E2M1]
UNUSUAL = [
    fp.E4M3FNUZ, fp.Format("powers", 6, 0, infinities=True, nan="top"),
    fp.Format("large", 1, 3, bias=-500),  # 2**-1000 is not a normal float64 in units of its smallest value
]  # fmt: skip
POLICIES: list[dict[str, str]] = [{}, {"overflow": "saturate"}, {"subnormals": "flush"}]


@cache
def both(mode: int) -> Any:
    """The loop `(patterns, random words, target, settled, whether left, decoded codes)`."""

    def run(bits: Any, words: Any, fields: Any, got: Any, left: Any, want: Any) -> None:
        f, g, s = encode_fields(fields), decode_fields(fields[DECODING:]), settling_fields(fields[SETTLING:])
        for i in range(bits.size):
            got[i], left[i] = settled(bits[i], words[i], s, mode)
            want[i] = decode_bits_64(u64(encode_bits_64(bits[i], words[i], f, mode, FULL)), g)

    return kernel(run)


def compared(bits: Array, accumulator: Accumulator) -> tuple[Array, Array, Array]:
    """(settled, whether left to the encoder, codes decoded) of float64 patterns."""
    words = np.random.default_rng(6).integers(0, 1 << 32, bits.size, u64)
    got, left, want = (np.empty(bits.size, u64) for _ in range(3))
    fields = target(options_of(accumulator, accumulator.fmt), True)
    both(int(accumulator.rounding))(bits, words, fields, got, left, want)
    return got, left != 0, want


def about(fmt: fp.Format) -> Array:
    """Float64 patterns about values of a format, midpoints between them and the ends of its range."""
    generator = np.random.default_rng(5)
    exponents = np.arange(fmt.min_exponent - fmt.mantissa_bits - 3, fmt.max_exponent + 3)
    units = generator.integers(0, 1 << (fmt.mantissa_bits + 2), (9, exponents.size)) / (1 << (fmt.mantissa_bits + 1))
    ends = [0.0, fmt.max, fmt.max * 1.03, 2.0**-1000, np.inf, np.nan, *generator.normal(size=200)]
    some = np.concatenate([(np.exp2(exponents) * units).ravel(), np.exp2(exponents), ends]).view(u64)
    near = np.concatenate([some, some + u64(1), np.maximum(some, u64(1)) - u64(1)])
    return np.concatenate([near, near | u64(1 << 63)])


@pytest.mark.parametrize("way", FIXED_MODES)
def test_a_settled_sum_is_its_code_decoded(way: str) -> None:
    for fmt in (*USUAL, *UNUSUAL):
        bits = about(fmt)
        for policy in POLICIES:
            words: dict[str, Any] = {"rounding": Rounding(FIXED_MODES[way]), "seed": 1, "random_bits": 13, **policy}
            accumulator = Sequential(fmt, **words)
            got, left, want = compared(bits, accumulator)
            wrong = np.flatnonzero(got != np.where(left, bits, want))
            assert not wrong.size, f"{accumulator!r}: {bits[wrong[0]]:#x} is {got[wrong[0]]:#x}"


@pytest.mark.parametrize("way", FIXED_MODES)
def test_sums_that_fit_are_settled(way: str) -> None:
    for fmt in USUAL:
        accumulator = Sequential(fmt, rounding=Rounding(FIXED_MODES[way]), seed=1)
        values = np.array([fmt.max, -fmt.max, 1.3, 2.0**fmt.min_exponent / 3, 0.0])
        _, left, _ = compared(values.view(u64), accumulator)
        assert not left.any(), f"{values[left]} are left to the encoder: {accumulator!r}"
