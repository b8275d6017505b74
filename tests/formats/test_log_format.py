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
from fpsim.testing import assert_bits_equal
from tests.formats.log_cases import SAMPLES, decode, encode, levels_of
from tests.kit.sweeps import case, in_turn, sweep
from tests.oracles import log_format

Array = npt.NDArray[Any]


Block = tuple[int, int]


WIDTHS = [*range(3, 13), 16]


def assert_same(got: log_format.Encoded, want: log_format.Encoded) -> None:
    for one, other in zip(got, want, strict=True):
        assert_bits_equal(one, other)


def assert_as_oracle(x: Array, bits: int, block: Block, nan_is_max: bool = False) -> None:
    x = np.ascontiguousarray(x)  # as casts give it; for other layouts the loop would be compiled again
    got = encode(x, bits, block, nan_is_max)
    assert_same(got, log_format.encode(x, bits, block, nan_is_max))
    assert_bits_equal(decode(got, bits, block), log_format.decode(got, bits, block))


def a_tile(*values: Any, real: type = np.float32) -> Array:
    """An array of one row."""
    return np.array([values], real)


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
