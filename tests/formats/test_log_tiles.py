"""LogFMT: tiles, special values, round trips, and where the loops run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fpsim.scaling.kernels.log import round_to_float32
from fpsim.testing import assert_bits_equal
from tests.formats.log_cases import SAMPLES, decode, encode, levels_of
from tests.kit import processor
from tests.kit.processes import python
from tests.kit.sweeps import in_turn
from tests.oracles import log_format

Array = npt.NDArray[Any]


WIDTHS = [*range(3, 13), 16]


REALS = [np.float32, np.float64]


def assert_same(got: log_format.Encoded, want: log_format.Encoded) -> None:
    for one, other in zip(got, want, strict=True):
        assert_bits_equal(one, other)


def assert_same_numbers(got: log_format.Encoded, want: log_format.Encoded) -> None:
    """The same but for what is counted."""
    assert_same(got._replace(counts=want.counts), want)


def a_tile(*values: Any, real: type = np.float32) -> Array:
    """An array of one row."""
    return np.array([values], real)


def test_three_bits_spelt_out() -> None:
    x = a_tile(1, 4, 1.5, 1.4999999, 3, 2.9999998, -4, -1, 0.0, -0.0)
    got = encode(x, 3, (1, 16))
    assert (got.steps.item(), got.lows.item()) == (1.0, 0.0)
    assert levels_of(x, 3).tolist() == [0, 1, 2, 4]
    assert got.codes[0].tolist() == [1, 3, 2, 1, 3, 2, 4 + 3, 4 + 1, 0, 4]


def test_below_the_lowest_level_the_nearer_of_it_and_zero_is_taken() -> None:
    lowest = 2.0**-32
    x = a_tile(1.0, lowest / 2, np.nextafter(np.float32(lowest / 2), np.float32(0)), -lowest / 2, -1e-30, lowest)
    got = encode(x, 8, (1, 8))
    assert got.lows.item() == -32
    assert got.codes[0].tolist() == [127, 1, 0, 128 + 1, 128, 1]


def test_a_tile_of_equal_magnitudes_uses_level_one() -> None:
    got = encode(a_tile(8, -8, 0, -0.0, np.inf), 8, (1, 8))
    assert got.codes[0].tolist() == [1, 129, 0, 128, 1]
    assert (got.steps.item(), got.lows.item()) == (0.0, 3.0)


def test_a_tile_without_finite_magnitudes_has_no_step_and_the_level_one() -> None:
    got = encode(a_tile(0.0, -0.0), 8, (1, 8))
    assert (got.codes[0].tolist(), got.steps.item(), got.lows.item()) == ([0, 128], 0.0, 0.0)
    assert_bits_equal(decode(got, 8, (1, 8)), a_tile(0.0, -0.0))
    infinite = encode(a_tile(0.0, -np.inf), 8, (1, 8))
    assert_bits_equal(decode(infinite, 8, (1, 8)), a_tile(0.0, -1.0))


def test_infinities_take_the_largest_level_and_move_none() -> None:
    with_infinity, without = a_tile(1, 3, np.inf, -np.inf), a_tile(1, 3, 3, -3)
    assert_same_numbers(encode(with_infinity, 8, (1, 8)), encode(without, 8, (1, 8)))


def test_a_nan_makes_its_tile_nan_and_no_other() -> None:
    x = SAMPLES["normal"].astype(np.float32)
    spoilt = x.copy()
    spoilt[2, 140] = -np.nan
    got, want = encode(spoilt, 8, (1, 128)), encode(x, 8, (1, 128))
    assert np.isnan(got.steps[2, 1])
    assert np.isnan(got.lows[2, 1])
    assert not got.codes[2, 128:].any()
    values = decode(got, 8, (1, 128))
    assert np.isnan(values[2, 128:]).all()
    values[2, 128:] = decode(want, 8, (1, 128))[2, 128:]
    assert_bits_equal(values, decode(want, 8, (1, 128)))


def test_a_nan_that_is_an_element_only_becomes_the_largest_level() -> None:
    got = encode(a_tile(1, -3, np.nan, -np.nan), 8, (1, 8), nan_is_max=True)
    assert_same_numbers(got, encode(a_tile(1, -3, 3, 3), 8, (1, 8)))


def test_no_level_exceeds_float32() -> None:
    largest = np.finfo(np.float32).max
    tiles: list[Array] = [a_tile(1, largest), a_tile(1e300, 1e308, np.inf, real=np.float64)]
    for x in tiles:
        values = decode(encode(x, 8, (1, 8)), 8, (1, 8))
        assert values[0, -1] == largest
    smallest = np.linspace(1e30, 3e38, 3000)
    x = np.stack([smallest, np.full(3000, largest)], axis=1).astype(np.float32)  # top levels on either side of 2**128
    assert np.isfinite(decode(encode(x, 3, (1, 2)), 3, (1, 2))).all()


@in_turn("bits", WIDTHS)
def test_levels_are_finite_and_never_descend(bits: int) -> None:
    for low, high in ((2.0**-149, 2.0**-130), (1.0, 1.0000001), (0.3, 5.0), (1e37, 3.4028235e38)):
        levels = levels_of(a_tile(low, high), bits)
        assert np.isfinite(levels).all()
        assert (np.diff(levels) >= 0).all()


@pytest.mark.parametrize("real", REALS)
def test_an_array_that_is_a_view_gives_the_same_codes(real: type) -> None:
    x: Array = SAMPLES["ragged"].astype(real)
    wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]), real)
    wide[::2, ::3] = x
    for view in (wide[::2, ::3], np.asfortranarray(x)):
        assert_same(encode(view, 8, (1, 128)), encode(x, 8, (1, 128)))


@pytest.mark.parametrize("bits", [3, 8, 10])
def test_a_transposed_array_gives_the_transposed_codes(bits: int) -> None:
    x = SAMPLES["ragged"].astype(np.float32)
    along_rows, along_columns = encode(x, bits, (1, 16)), encode(np.ascontiguousarray(x.T), bits, (16, 1))
    assert_same(along_rows, log_format.Encoded(*(part.T for part in along_columns)))


@in_turn("name", SAMPLES)
def test_float32_and_float64_of_the_same_numbers_agree(name: str) -> None:
    x = SAMPLES[name].astype(np.float32)
    assert_same(encode(x, 8, (4, 32)), encode(x.astype(np.float64), 8, (4, 32)))


def test_rounding_to_float32_is_that_of_numpy() -> None:
    random = np.random.default_rng(1)
    numbers = []
    for exponent in range(-155, 128):
        dropped = min(29 + max(-126 - exponent, 0), 53)  # bits of the significand that float32 has no place for
        half = 1 << (dropped - 1)
        for rest in (0, 1, half - 1, half, half + 1, 2 * half - 1):
            for kept in random.integers(0, 1 << 52, 4):
                significand = int(kept) >> dropped << dropped | rest | 1 << 52
                numbers.append(significand * 2.0 ** (exponent - 52))
    x = np.array(numbers)
    got = np.array([round_to_float32(value) for value in x])
    assert_bits_equal(got, np.minimum(x, 3.4028235e38).astype(np.float32).astype(np.float64))


# ---- encoding what was decoded


@in_turn("bits", range(3, 13))
def test_codes_come_back_where_a_tile_uses_its_outermost_levels(bits: int) -> None:
    for name in ("normal", "ragged", "powers of two", "small integers", "zeros", "all equal"):
        got = encode(SAMPLES[name].astype(np.float32), bits, (1, 128))
        again = encode(decode(got, bits, (1, 128)), bits, (1, 128))
        assert_bits_equal(again.codes, got.codes)


def test_codes_need_not_come_back_where_the_lowest_level_is_not_used() -> None:
    x = a_tile(1.0, 2.0**-20, 2.0**-40)  # 2**-40 makes -32 the lowest level, and is rounded to 0
    got = encode(x, 8, (1, 8))
    again = encode(decode(got, 8, (1, 8)), 8, (1, 8))
    assert (got.lows.item(), got.codes[0].tolist()) == (-32.0, [127, 48, 0])
    assert again.codes[0].tolist() == [127, 1, 0]


# ---- quality


@pytest.mark.parametrize(("bits", "decibels"), [(8, 37.0), (10, 49.2)])
def test_signal_to_noise_of_normal_numbers_in_tiles_of_128(bits: int, decibels: float) -> None:
    x = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)
    error = decode(encode(x, bits, (1, 128)), bits, (1, 128)).astype(np.float64) - x
    signal = np.square(x, dtype=np.float64).sum()
    assert 10 * np.log10(signal / np.square(error).sum()) == pytest.approx(decibels, abs=0.1)


# ---- where it runs


@pytest.mark.skipif(not processor.IS_SUPPORTED, reason="sets the state of x86 processors")
@pytest.mark.parametrize("state", processor.STATES)
def test_the_processors_state_changes_no_result(state: str) -> None:
    names = ("normal", "wide", "float32's subnormals", "across the smallest normal", "largest", "close")
    inputs = [SAMPLES[name].astype(real) for name in names for real in REALS]
    inputs.append(np.exp2(np.linspace(-1074, -1030, 128))[None])
    want = [encode(x, 8, (1, 128)) for x in inputs]
    values = [decode(encoded, 8, (1, 128)) for encoded in want]
    with processor.processor_state(processor.STATES[state]):
        got = [encode(x, 8, (1, 128)) for x in inputs]
        got_values = [decode(encoded, 8, (1, 128)) for encoded in want]
    for one, other in zip(got, want, strict=True):
        assert_same(one, other)
    for value, other_value in zip(got_values, values, strict=True):
        assert_bits_equal(value, other_value)


def test_the_loops_run_without_compilation() -> None:
    script = """
        import numpy as np
        from tests.formats.log_cases import SAMPLES
        from tests.formats.test_log_format import assert_as_oracle
        for i, x in enumerate(SAMPLES.values()):
            assert_as_oracle(x[:3, :40].astype((np.float32, np.float64)[i % 2]), 5, (2, 16), i % 4 > 1)
        for nan_is_max in (False, True):
            assert_as_oracle(SAMPLES["NaN"][3:4, :16], 5, (1, 16), nan_is_max)
        print("same")
    """
    assert python(script, NUMBA_DISABLE_JIT="1") == "same"
