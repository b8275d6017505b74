"""LogFMT: the codes, steps, lows and values of an oracle that compares every element with every level."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fpsim.formats.log_format import LogFMT
from fpsim.scaling.kernels.log import decode_kernel, encode_kernel, round_to_float32
from fpsim.testing import assert_bits_equal
from tests.kit import processor
from tests.kit.processes import python
from tests.kit.sweeps import case, in_turn, sweep
from tests.oracles import log_format

Array = npt.NDArray[Any]
Block = tuple[int, int]

WIDTHS = [*range(3, 13), 16]
REALS = [np.float32, np.float64]


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


def assert_same(got: log_format.Encoded, want: log_format.Encoded) -> None:
    for one, other in zip(got, want, strict=True):
        assert_bits_equal(one, other)


def assert_same_numbers(got: log_format.Encoded, want: log_format.Encoded) -> None:
    """The same but for what is counted."""
    assert_same(got._replace(counts=want.counts), want)


def assert_as_oracle(x: Array, bits: int, block: Block, nan_is_max: bool = False) -> None:
    x = np.ascontiguousarray(x)  # as casts give it; for other layouts the loop would be compiled again
    got = encode(x, bits, block, nan_is_max)
    assert_same(got, log_format.encode(x, bits, block, nan_is_max))
    assert_bits_equal(decode(got, bits, block), log_format.decode(got, bits, block))


def a_tile(*values: Any, real: type = np.float32) -> Array:
    """An array of one row."""
    return np.array([values], real)


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


# ---- the format


def test_the_format_knows_its_codes() -> None:
    assert [(LogFMT(n).level_count, LogFMT(n).sign_bit, LogFMT(n).storage.name) for n in (3, 8, 9, 16)] == [
        (3, 4, "uint8"),
        (127, 128, "uint8"),
        (255, 256, "uint16"),
        (32767, 32768, "uint16"),
    ]
    assert LogFMT(8).name == str(LogFMT(8)) == "LogFMT-8"


def test_formats_are_equal_by_their_bits_and_key_dictionaries() -> None:
    assert LogFMT(8) == LogFMT(np.int64(8)) != LogFMT(10)  # type: ignore[arg-type]
    assert {LogFMT(8): 1}[pickle.loads(pickle.dumps(LogFMT(8)))] == 1
    assert type(LogFMT(np.int64(8)).bits) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [2, 17, -8, 8.0, "8", True, None])
def test_other_widths_are_refused(bits: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^LogFMT takes an integer number of bits in 3 \.\. 16, the sign included; got"
    ):
        LogFMT(bits)


# ---- codes and values


@sweep("every", False, True)
@pytest.mark.parametrize("bits", WIDTHS)
def test_codes_and_values_are_those_of_the_oracle(bits: int, every: bool) -> None:
    """Every sample in tiles of one kind, others for other widths; or in all of them."""
    few = 1 if bits == 16 else 4 if every else 2
    for i, (name, x) in enumerate(SAMPLES.items()):
        tiled = [(x[:few], (1, 128)), (x.T[:, :few], (128, 1)), (x[:17, : 5 * few], (16, 16))]
        for part, block in tiled if every else [tiled[(i + bits) % 3]]:
            with case(name, block):
                assert_as_oracle(part.astype(np.float32), bits, block)
                if bits in (3, 8, 16):
                    assert_as_oracle(part, bits, block)


@pytest.mark.parametrize("bits", [3, 8, 10])
def test_float64_beyond_the_range_of_float32_is_as_the_oracle_says(bits: int) -> None:
    random = np.random.default_rng(3)
    for low, high in (
        (-1074, -1060),
        (-1074, -1000),
        (-200, -140),
        (-170, -130),
        (100, 140),
        (127.9, 128.1),
        (500, 1023),
    ):
        x = np.exp2(random.uniform(low, high, (6, 128)))
        x[:, :2] = 0.0, -np.inf
        assert_as_oracle(x, bits, (1, 128))


@settings(deadline=None, max_examples=50)
@given(
    patterns=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=24),
    shift=st.integers(0, 24),
    bits=st.sampled_from(WIDTHS[:-1]),
    columns=st.integers(1, 24),
    nan_is_max=st.booleans(),
)
def test_any_patterns_encode_as_the_oracle_says(
    patterns: list[int], shift: int, bits: int, columns: int, nan_is_max: bool
) -> None:
    first = patterns[0]
    near = [first ^ (pattern >> shift) for pattern in patterns]  # the larger the shift, the closer the magnitudes
    assert_as_oracle(np.array([near], np.uint32).view(np.float32), bits, (1, columns), nan_is_max)


@in_turn("bits", [3, 5, 8, 10, 12])
@in_turn("spread", [2.0**-20, 2.0**-12, 0.01, 1.0, 9.3, 31.9])
def test_midpoints_go_up_and_the_number_below_goes_down(bits: int, spread: float) -> None:
    ends = [0.7, 0.7 * 2.0**spread]
    levels = levels_of(np.array([ends]), bits)
    middles = (levels[:-1] + levels[1:]) / 2
    inside = np.concatenate([middles, np.nextafter(middles, 0), np.nextafter(middles, 9e9), levels[1:]])
    inside = inside[(inside >= ends[0]) & (inside <= ends[1])][
        :: 1 if bits < 12 else 5
    ]  # many levels are slow to compare
    tile = np.concatenate([ends, inside])[None]
    assert_as_oracle(tile, bits, tile.shape)
    distinct = len(np.unique(levels)) == len(levels)
    if distinct:  # the oracle aside
        k = np.flatnonzero((middles > ends[0]) & (middles < ends[1]))
        tie, before = (np.concatenate([ends, where[k]])[None] for where in (middles, np.nextafter(middles, 0)))
        assert encode(tie, bits, tie.shape).codes[0, 2:].tolist() == (k + 1).tolist()
        assert encode(before, bits, before.shape).codes[0, 2:].tolist() == k.tolist()


def test_16_bits_break_ties_alike() -> None:
    levels = levels_of(a_tile(0.7, 300.0, real=np.float64), 16)
    middles = (levels[1:-1] + levels[2:]) / 2
    middles = middles[(middles > 0.7) & (middles < 300)][::97]
    for shifted in (middles, np.nextafter(middles, 0)):
        tile = np.concatenate([[0.7, 300.0], shifted])[None]
        assert_as_oracle(tile, 16, tile.shape)


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
        from tests.formats.test_log_format import SAMPLES, assert_as_oracle
        for i, x in enumerate(SAMPLES.values()):
            assert_as_oracle(x[:3, :40].astype((np.float32, np.float64)[i % 2]), 5, (2, 16), i % 4 > 1)
        for nan_is_max in (False, True):
            assert_as_oracle(SAMPLES["NaN"][3:4, :16], 5, (1, 16), nan_is_max)
        print("same")
    """
    assert python(script, NUMBA_DISABLE_JIT="1") == "same"
