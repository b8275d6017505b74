"""The oracle of arithmetic: its fast half says what its slow half says, and both know published results."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from tests.arithmetic.checks import EIGHT_BITS, ODD_WIDTHS, SMALL, SOME_P3109, UNUSUAL, WIDE, subnormals_of
from tests.kit import operands
from tests.kit.samples import any_float, formats
from tests.kit.sweeps import in_turn
from tests.oracles import arithmetic as ao
from tests.oracles import arithmetic_arrays, casts
from tests.oracles.arithmetic import DIVIDE_BY_ZERO, INEXACT, INVALID, OVERFLOW, UNDERFLOW, Options


@in_turn("fmt", [*SMALL, *EIGHT_BITS, *SOME_P3109, *ODD_WIDTHS, *UNUSUAL, *WIDE])
def test_the_fast_half_rounds_as_the_slow_half_does(fmt: fp.Format) -> None:
    for seed, operation in enumerate(ao.BINARY):
        columns = operands.tuples((fmt, fmt), 24, seed)
        outcomes = arithmetic_arrays.outcomes(operation, columns, (fmt, fmt), fmt)
        rows = list(zip(*[column.tolist() for column in columns], strict=True))[:400]
        for number, rounding in enumerate(casts.MODES):
            overflow = casts.OVERFLOWS[(seed + number) % len(casts.OVERFLOWS)]
            options = Options(rounding, overflow, casts.SUBNORMALS[seed % 2], tininess=ao.TININESS[number % 2])
            codes, flags = arithmetic_arrays.deliver_all(outcomes, fmt, options)
            want = [ao.compute(operation, row, (fmt, fmt), fmt, options) for row in rows]
            assert list(zip(codes.tolist(), flags.tolist(), strict=True))[:400] == want


@settings(max_examples=60)
@given(st.data())
def test_results_are_delivered_as_the_oracle_of_casts_encodes_them(data: st.DataObject) -> None:
    fmt = data.draw(formats() | st.sampled_from([*SMALL, *EIGHT_BITS, *SOME_P3109, *WIDE]))
    words = Options(
        rounding=data.draw(st.sampled_from([*casts.MODES, "stochastic"])),
        overflow=data.draw(st.sampled_from(casts.OVERFLOWS)),
        subnormals=data.draw(st.sampled_from(subnormals_of(fmt))),
        random_bits=data.draw(st.integers(1, 32)),
        word=data.draw(st.integers(0, 2**32 - 1)),
    )
    for x in data.draw(st.lists(any_float(fmt), min_size=1, max_size=8)):
        exact = ao.as_result(ao.read(fp.FP64, int(np.float64(x).view(np.uint64))))
        want = casts.encode(x, fmt, words.rounding, words.overflow, words.subnormals, words.word, words.random_bits)
        assert ao.deliver(exact, fmt, words)[0] == want


@given(st.integers(1, 2**100), st.integers(0, 60))
def test_the_square_root_lies_between_the_squares_of_its_neighbours(numerator: int, places: int) -> None:
    square = Fraction(numerator, 2**places)
    found = ao.root(square)
    unit = casts.power(casts.exponent_of(found) - 150)
    below = found // unit * unit
    assert below**2 <= square < (below + unit) ** 2
    assert (found == below) == (below**2 == square)


# From IEEE 754's rules and the tables of OFP8, worked out by hand: operation, codes, format, rounding, code, flags.
BY_HAND: list[tuple[str, tuple[int, ...], fp.Format, str, int, int]] = [
    ("add", (0x7E, 0x7E), fp.E4M3, "nearest_even", 0x7F, OVERFLOW | INEXACT),
    ("subtract", (0xFE, 0x7E), fp.E4M3, "nearest_even", 0xFF, OVERFLOW | INEXACT),  # -448 - 448: NaN with its sign
    ("add", (0x7E, 0x58), fp.E4M3, "nearest_even", 0x7E, INEXACT),  # 464 is a tie that goes back to 448
    ("subtract", (0x38, 0x38), fp.E4M3, "nearest_even", 0x00, 0),
    ("subtract", (0x38, 0x38), fp.E4M3, "down", 0x80, 0),
    ("add", (0x80, 0x80), fp.E4M3, "up", 0x80, 0),
    ("add", (0x00, 0x80), fp.E4M3, "down", 0x80, 0),
    ("divide", (0x38, 0x80), fp.E4M3, "nearest_even", 0xFF, DIVIDE_BY_ZERO),
    ("divide", (0x3C, 0x00), fp.E5M2, "toward_zero", 0x7C, DIVIDE_BY_ZERO),
    ("divide", (0x00, 0x00), fp.E5M2, "nearest_even", 0x7E, INVALID),
    ("multiply", (0x00, 0x7C), fp.E5M2, "nearest_even", 0x7E, INVALID),
    ("add", (0x7C, 0xFC), fp.E5M2, "nearest_even", 0x7E, INVALID),
    ("add", (0x7D, 0x3C), fp.E5M2, "nearest_even", 0x7E, INVALID),  # 0x7D is signalling
    ("add", (0xFE, 0x3C), fp.E5M2, "nearest_even", 0x7E, 0),
    ("multiply", (0x01, 0x30), fp.E4M3, "nearest_even", 0x00, INEXACT | UNDERFLOW),  # half of the smallest: a tie
    ("multiply", (0x01, 0x30), fp.E4M3, "up", 0x01, INEXACT | UNDERFLOW),
    ("multiply", (0x02, 0x30), fp.E4M3, "nearest_even", 0x01, 0),  # tiny, but exact
    ("sqrt", (0xB8,), fp.E4M3, "nearest_even", 0x7F, INVALID),
    ("sqrt", (0x80,), fp.E4M3, "nearest_even", 0x80, 0),
    ("sqrt", (0x40,), fp.E4M3, "nearest_even", 0x3B, INEXACT),
    ("fma", (0x00, 0x7C, 0x7E), fp.E5M2, "nearest_even", 0x7E, INVALID),
    ("fma", (0x3C, 0x3C, 0xBC), fp.E5M2, "down", 0x80, 0),
    ("remainder", (0x45, 0x40), fp.E4M3, "nearest_even", 0xB4, 0),  # 3.25 = 2 * 2 - 0.75
    ("remainder", (0x44, 0x40), fp.E4M3, "nearest_even", 0xB8, 0),  # 3 / 2 is a tie: n = 2
    ("remainder", (0xC0, 0x38), fp.E4M3, "nearest_even", 0x80, 0),
    ("minimum", (0x00, 0x80), fp.E4M3, "nearest_even", 0x80, 0),
    ("maximum_number", (0x7F, 0x38), fp.E4M3, "nearest_even", 0x38, 0),
    ("maximum", (0x7F, 0x38), fp.E4M3, "nearest_even", 0x7F, 0),
    ("subtract", (0x7F, 0x80), fp.E8M0, "nearest_even", 0xFF, INVALID),  # 1 - 2 is negative
    ("subtract", (0x80, 0x80), fp.E8M0, "nearest_even", 0xFF, INVALID),  # 0 is no value of E8M0
    ("add", (0x7F, 0x80), fp.E8M0, "nearest_even", 0x81, INEXACT),  # 3 is a tie that goes to 4
    ("divide", (0x6, 0x0), fp.E2M1, "nearest_even", 0x7, DIVIDE_BY_ZERO),
    ("divide", (0x0, 0x0), fp.E2M1, "nearest_even", 0x7, INVALID),
    ("remainder", (0x80, 0x38), fp.E4M3, "down", 0x80, 0),
    ("divide", (0x88, 0x08), fp.E4M3, "nearest_even", 0xB8, 0),
    ("multiply", (0x80, 0x38), fp.E4M3FNUZ, "nearest_even", 0x80, 0),  # 0x80 is the one NaN
]  # fmt: skip


@in_turn("operation, codes, fmt, rounding, code, flags", BY_HAND)
def test_the_oracle_knows_results_worked_out_by_hand(
    operation: str, codes: tuple[int, ...], fmt: fp.Format, rounding: str, code: int, flags: int
) -> None:
    assert ao.compute(operation, codes, (fmt,) * len(codes), fmt, Options(rounding)) == (code, flags)


def test_tininess_after_rounding_lets_a_result_reach_the_smallest_normal_value() -> None:
    largest_subnormal, just_above_one = 0x03FF, 0x3C01
    after, before = (
        ao.compute("multiply", (largest_subnormal, just_above_one), (fp.FP16,) * 2, fp.FP16, Options(tininess=word))
        for word in ao.TININESS
    )
    assert after == (0x0400, INEXACT)  # Berkeley TestFloat prints the same
    assert before == (0x0400, INEXACT | UNDERFLOW)


def test_level_one_holds_the_edges_of_every_format() -> None:
    for fmt in [*EIGHT_BITS, *ODD_WIDTHS, *WIDE]:
        codes = set(operands.level_one(fmt).tolist())
        most = casts.code_of_kind(fmt, "finite")
        assert most is not None
        edges = {0, 1, 2**fmt.mantissa_bits, 2**fmt.mantissa_bits - 1, most, most - 1}
        assert edges <= codes
        assert {edge | casts.sign_of(fmt) for edge in edges} <= codes
        kinds = {ao.read(fmt, int(code)).kind for code in operands.level_one(fmt)}
        assert kinds == {"finite"} | ({"infinity"} if fmt.infinities else set()) | ({"nan"} if fmt.has_nan else set())
        assert np.unique(operands.level_one(fmt)).size == operands.level_one(fmt).size
