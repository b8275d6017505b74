"""Arithmetic: the exact result is rounded once, in every mode and format, as exact fractions say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.arithmetic.checks import (
    EIGHT_BITS,
    ODD_WIDTHS,
    P3109_EIGHT_BITS,
    SMALL,
    SOME_P3109,
    UNUSUAL,
    WIDE,
    Formats,
    check,
    check_outcomes,
    check_stochastic,
    columns_of,
    compare_with,
    keywords,
    options_of,
    random_words,
)
from tests.kit import operands
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import arithmetic as ao
from tests.oracles import arithmetic_arrays, casts
from tests.oracles import code_operations as co

Array = npt.NDArray[Any]


FOUR = ("add", "subtract", "multiply", "divide")


NARROW = [*SMALL, *EIGHT_BITS, *SOME_P3109]


SEED = 0x0123456789ABCDEF


narrow = pytest.mark.parametrize("fmt", NARROW, ids=str)


modes = pytest.mark.parametrize("rounding", casts.MODES)


def sampled_pairs(fmt: fp.Format, count: int, seed: int) -> list[Array]:
    """Pairs of any codes of a format."""
    generator = np.random.default_rng(seed)
    return [generator.choice(operands.every_code(fmt), count) for _ in range(2)]


# ---- formats of up to 8 bits


@in_turn("operation", ao.BINARY)
@narrow
def test_pairs_of_narrow_formats_round_as_fractions_say(fmt: fp.Format, operation: str) -> None:
    columns = sampled_pairs(fmt, 150, seed=1) if fmt.bits > 4 else operands.every_pair(fmt)
    check(operation, columns, (fmt, fmt))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [*SMALL, *EIGHT_BITS, *P3109_EIGHT_BITS], ids=str)
def test_every_pair_of_every_8_bit_format_rounds_as_fractions_say_with_its_flags(fmt: fp.Format) -> None:
    columns, fmts = operands.every_pair(fmt), (fmt, fmt)
    for operation in ao.BINARY:
        outcomes = arithmetic_arrays.outcomes(operation, columns, fmts, fmt)
        check_outcomes(outcomes, operation, columns, fmts)
        check_outcomes(outcomes, operation, columns, fmts, flags=True, tininess="after")
        check_outcomes(outcomes, operation, columns, fmts, flags=True, tininess="before", subnormals="flush")


@narrow
def test_triples_of_narrow_formats_round_once(fmt: fp.Format) -> None:
    generator = np.random.default_rng(2)
    columns = [generator.choice(operands.every_code(fmt), 200) for _ in range(3)]
    check("fma", columns, (fmt, fmt, fmt))


@narrow
def test_every_square_root_of_a_narrow_format_rounds_as_fractions_say(fmt: fp.Format) -> None:
    check("sqrt", [operands.every_code(fmt)], (fmt,))


@narrow
def test_stochastic_results_of_narrow_formats_use_the_word_of_their_place(fmt: fp.Format) -> None:
    for number, operation in enumerate(ao.BINARY):
        bits = (32, 1, 8, 23, 31)[number]
        check_stochastic(operation, sampled_pairs(fmt, 40, number), (fmt, fmt), seed=SEED, random_bits=bits)


# ---- wider formats


@in_turn("operation", ao.BINARY)
@in_turn("fmt", WIDE)
def test_edges_of_wide_formats_round_as_fractions_say(fmt: fp.Format, operation: str) -> None:
    check(operation, operands.tuples((fmt, fmt), 160, seed=3), (fmt, fmt))


@in_turn("fmt", [*ODD_WIDTHS, *UNUSUAL])
def test_edges_of_unusual_formats_round_as_fractions_say(fmt: fp.Format) -> None:
    for seed, operation in enumerate(ao.BINARY):
        check(operation, operands.tuples((fmt, fmt), 30, seed), (fmt, fmt))
    check("fma", operands.tuples((fmt,) * 3, 30, seed=9), (fmt,) * 3)
    check("sqrt", [operands.level_one(fmt)[:: 3 + fmt.bits // 5]], (fmt,))


@pytest.mark.parametrize("fmt", WIDE, ids=str)
def test_edge_triples_of_wide_formats_round_once(fmt: fp.Format) -> None:
    check("fma", operands.tuples((fmt,) * 3, 250, seed=4), (fmt,) * 3)


@pytest.mark.slow
@pytest.mark.parametrize("operation", [*ao.BINARY, "fma"])
@pytest.mark.parametrize("fmt", [*WIDE, *ODD_WIDTHS, *UNUSUAL], ids=str)
def test_many_edges_of_wide_formats_round_as_fractions_say_with_their_flags(fmt: fp.Format, operation: str) -> None:
    fmts = (fmt,) * (3 if operation == "fma" else 2)
    for seed, tininess in enumerate(ao.TININESS):
        check(operation, operands.tuples(fmts, 6000, 100 + seed), fmts, flags=True, tininess=tininess)


@in_turn("random_bits", [1, 8, 23, 32])
@in_turn("fmt", [*WIDE, *ODD_WIDTHS[:6]])
@sweep("count", 24, 300)
def test_stochastic_results_of_wide_formats_use_the_word_of_their_place(
    fmt: fp.Format, random_bits: int, count: int
) -> None:
    for number, operation in enumerate((*ao.BINARY, "fma", "sqrt")):
        fmts = (fmt,) * {"fma": 3, "sqrt": 1}.get(operation, 2)
        columns = [column[:count] for column in operands.tuples(fmts, count + 40, 10 * random_bits + number)]
        check_stochastic(operation, columns, fmts, seed=SEED + number, random_bits=random_bits)


def test_the_word_of_an_element_is_that_of_its_place_in_the_broadcast_result() -> None:
    a, b = sampled_pairs(fp.E4M3, 40, seed=5)
    words: dict[str, Any] = {"fmt": fp.E4M3, "rounding": "stochastic", "seed": SEED}
    table = fp.multiply(a[:, None], b[None, :], **words)
    flat = fp.multiply(np.repeat(a, b.size), np.tile(b, a.size), **words)
    assert_bits_equal(table.reshape(-1), flat)
    assert_bits_equal(fp.multiply(np.asfortranarray(np.broadcast_to(a[:, None], (40, 40))), b, **words), table)


# ---- FP64


FP64_PAIRS = ("add", "subtract", *ao.EXTREMA)


@sweep("count", 150, 4000)
def test_edges_of_fp64_round_as_fractions_say_with_their_flags(count: int) -> None:
    for seed, operation in enumerate(FP64_PAIRS):
        roundings = casts.MODES if seed < 2 else ("nearest_even",)
        check(operation, operands.tuples((fp.FP64,) * 2, count, seed), (fp.FP64,) * 2, roundings=roundings, flags=True)
    check("sqrt", [operands.level_one(fp.FP64)[::3]], (fp.FP64,), flags=True)


@in_turn("fmts", [(fp.FP64, fp.FP32), (fp.BF16, fp.FP64), (fp.FP64, fp.E4M3), (fp.FP64, fp.E8M0)])
@in_turn("out", [fp.FP64, fp.FP32, fp.BF16, fp.E4M3, fp.E8M0])
def test_operands_of_fp64_round_once_into_other_formats(fmts: Formats, out: fp.Format) -> None:
    for seed, operation in enumerate(FP64_PAIRS[:4]):
        check(operation, operands.tuples(fmts, 60, seed), fmts, out, flags=True, roundings=casts.MODES[seed % 2 :: 2])
        if out != fp.FP64:
            columns = [column[:32] for column in operands.tuples(fmts, 32, 10 + seed)]
            check_stochastic(operation, columns, fmts, out, seed=SEED, flags=True)
    check("sqrt", [operands.level_one(fp.FP64)[::23]], (fp.FP64,), out, flags=True)


def test_sums_of_fp64_that_nearly_cancel_or_tie_round_once() -> None:
    codes = operands.level_one(fp.FP64)[::7]
    finite = [int(c) for c in codes.tolist() if ao.read(fp.FP64, c).kind == "finite"]
    rows = []
    for code in finite:
        x = operands.exact_value(fp.FP64, code)
        unit = casts.spacing(fp.FP64, abs(x))
        for other in (-x, unit / 2, unit / 4, -unit / 2, unit * 3 / 2, -unit / 4):
            rows += [(code, operands.near(fp.FP64, other, ulps)) for ulps in (-1, 0, 1)]
    columns = [np.array(column, np.uint64) for column in zip(*rows[:: 1 + len(rows) // 500], strict=True)]
    check("add", columns, (fp.FP64,) * 2, flags=True)


def test_numpy_adds_fp64_alike() -> None:
    generator = np.random.default_rng(13)
    edges = operands.tuples((fp.FP64,) * 2, 40_000, seed=13)
    anything = generator.integers(0, 1 << 64, (2, 40_000), np.uint64)
    a, b = operands.as_floats([np.append(*column) for column in zip(edges, anything, strict=True)], np.float64)
    with np.errstate(all="ignore"):
        assert_bits_equal(fp.add(a, b), a + b)
        assert_bits_equal(fp.subtract(a, b), a - b)
        assert_bits_equal(fp.sqrt(a), np.sqrt(a))
        assert_bits_equal(fp.round_to_integral(a), np.rint(a))


@pytest.mark.parametrize("operation", ["multiply", "divide", "remainder", "fma"])
def test_products_and_quotients_of_fp64_are_refused(operation: str) -> None:
    x = np.array([1.5])
    with pytest.raises(ValueError, match=f"{operation} takes formats of up to 32 bits; got FP64"):
        getattr(fp, operation)(*[x] * (3 if operation == "fma" else 2))


# ---- every code of FP16 and BF16


def exact_values(fmt: fp.Format) -> Array:
    """float64 of every code; NaN keeps its sign."""
    values = casts.values(fmt)
    signs: Array = np.where(operands.every_code(fmt) >= casts.sign_of(fmt), -1.0, 1.0)
    return np.asarray(np.copysign(values, signs))


@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_every_square_root_of_a_16_bit_format_rounds_once(fmt: fp.Format) -> None:
    codes, values = operands.every_code(fmt), exact_values(fmt)
    with np.errstate(invalid="ignore"):
        # 53 bits decide: the root of a number of 11 bits is a number of 12 bits, or more than 2**-24 ulp away from one
        roots = np.where(np.isnan(values) | (values < 0), np.nan, np.sqrt(values))
    rows = np.random.default_rng(6).integers(0, codes.size, 60)
    for rounding in casts.MODES:
        want = casts.encode_all(roots, fmt, rounding)
        slow = [ao.compute("sqrt", [int(code)], [fmt], fmt, ao.Options(rounding))[0] for code in codes[rows]]
        assert want[rows].tolist() == slow
        compare_with("sqrt", [codes], {"fmt": fmt, "rounding": rounding}, want)


def integral(values: Array, rounding: str) -> Array:
    """The integers that a mode picks, in float64; what has no fraction stays."""
    below = np.floor(np.abs(values))
    rest = np.abs(values) - below
    odd = below % 2 == 1
    away = {
        "nearest_even": (rest > 0.5) | ((rest == 0.5) & odd),
        "nearest_away": rest >= 0.5,
        "toward_zero": np.zeros(values.shape, np.bool_),
        "up": (rest > 0) & (values > 0),
        "down": (rest > 0) & (values < 0),
        "odd": (rest > 0) & ~odd,
    }[rounding]
    return np.asarray(np.copysign(below + away, values))


def signalling(fmt: fp.Format) -> Array:
    """Whether a code of an IEEE format is a signalling NaN, for every one."""
    found: Array = np.isnan(casts.values(fmt)) & (operands.every_code(fmt) >> (fmt.mantissa_bits - 1) & 1 == 0)
    some = np.append(np.flatnonzero(found)[::9], np.arange(found.size - 2 ** (fmt.mantissa_bits - 1), found.size, 5))
    assert found[some].tolist() == [ao.read(fmt, code).signalling for code in some.tolist()]
    return found


@modes
@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_every_value_of_a_16_bit_format_rounds_to_the_right_integer(fmt: fp.Format, rounding: str) -> None:
    codes, values = operands.every_code(fmt), exact_values(fmt)
    with np.errstate(invalid="ignore"):
        whole = integral(values, rounding)
    want = casts.encode_all(np.where(np.isnan(values), np.nan, whole), fmt)
    flags = np.where(np.isfinite(values) & (whole != values), ao.INEXACT, 0).astype(np.uint8)
    flags[signalling(fmt)] = ao.INVALID
    for row in np.random.default_rng(7).integers(0, codes.size, 60):
        slow = co.round_to_integral(int(codes[row]), fmt, fmt, ao.Options(rounding))
        assert (int(want[row]), int(flags[row])) == slow
    compare_with("round_to_integral", [codes], {"fmt": fmt, "rounding": rounding}, want)
    compare_with("round_to_integral", [codes], {"fmt": fmt, "rounding": rounding}, want, flags)


@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_every_code_of_a_16_bit_format_has_the_right_neighbours(fmt: fp.Format) -> None:
    codes, values = operands.every_code(fmt), casts.values(fmt)
    grid = np.unique(values[~np.isnan(values)])  # both zeros as one
    above = np.append(grid, np.inf)[np.searchsorted(grid, values, side="right")]
    above = np.where(np.isnan(values), np.nan, np.where(above == 0, -0.0, above))  # of IEEE 754's nextUp
    want = casts.encode_all(above, fmt)
    assert want[::97].tolist() == [co.neighbour(code, fmt, True)[0] for code in codes[::97].tolist()]
    compare_with("next_up", [codes], {"fmt": fmt}, want)
    below = np.where(fp.classify(codes, fmt=fmt) < fp.FloatClass.SIGNALING_NAN, want[codes ^ 0x8000] ^ 0x8000, want)
    compare_with("next_down", [codes], {"fmt": fmt}, below.astype(fmt.storage))


@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_signs_of_every_code_of_a_16_bit_format_flip_and_clear(fmt: fp.Format) -> None:
    codes = operands.every_code(fmt)
    compare_with("negative", [codes], {"fmt": fmt}, codes ^ np.uint16(0x8000))
    compare_with("absolute", [codes], {"fmt": fmt}, codes & np.uint16(0x7FFF))


# ---- integers, neighbours, signs in every format


@in_turn("fmt", [*NARROW, *ODD_WIDTHS, *UNUSUAL, *WIDE, fp.FP64])
def test_values_round_to_the_integer_that_the_mode_picks(fmt: fp.Format) -> None:
    codes = operands.level_one(fmt)
    codes = codes[:: 1 + codes.size // 150]
    for number, rounding in enumerate(casts.MODES):
        overflow = ("nonfinite", "saturate", "saturate_finite")[number % 3]
        named = keywords((fmt,), None, {"rounding": rounding, "overflow": overflow})
        rows = [co.round_to_integral(code, fmt, fmt, options_of(named)) for code in codes.tolist()]
        compare_with("round_to_integral", [codes], named, *columns_of(rows, fmt.storage))
    named = keywords((fmt,), None, {"rounding": "stochastic", "seed": SEED, "random_bits": 9})
    words = zip(codes.tolist(), random_words(SEED, codes.size), strict=True)
    rows = [co.round_to_integral(code, fmt, fmt, options_of(named)._replace(word=word)) for code, word in words]
    compare_with("round_to_integral", [codes], named, *columns_of(rows, fmt.storage))


def check_neighbours(codes: Array, fmt: fp.Format, overflows: tuple[str, ...]) -> None:
    for up, operation in ((True, "next_up"), (False, "next_down")):
        for overflow in overflows:
            rows = [co.neighbour(code, fmt, up, ao.Options(overflow=overflow)) for code in codes.tolist()]
            named = keywords((fmt,), None, {"overflow": overflow})
            compare_with(operation, [codes], named, columns_of(rows, fmt.storage)[0])
            compare_with(operation, [codes], named, *columns_of(rows, fmt.storage))


@in_turn("fmt", [*NARROW, *ODD_WIDTHS, *UNUSUAL, *WIDE, fp.FP64])
def test_values_have_the_right_neighbours(fmt: fp.Format) -> None:
    codes = operands.level_one(fmt)
    check_neighbours(codes[:: 1 + codes.size // 120], fmt, ("nonfinite",))
    edge = codes[~np.isfinite(fp.decode(codes, fmt, np.float64)) | (codes <= 2)]
    most = casts.code_of_kind(fmt, "finite")
    assert most is not None
    check_neighbours(np.append(edge, np.array([most, most | casts.sign_of(fmt)], fmt.storage)), fmt, casts.OVERFLOWS)


@in_turn("fmt", [*NARROW, *ODD_WIDTHS, *UNUSUAL, *WIDE, fp.FP64])
def test_signs_flip_and_clear_where_a_format_has_them(fmt: fp.Format) -> None:
    codes = operands.level_one(fmt)
    sign = casts.sign_of(fmt)
    for overflow in ("nonfinite", "saturate"):
        negated, cleared = [], []
        for code in codes.tolist():
            a = ao.read(fmt, code)
            plain = code & ~sign
            keeps = (fmt.nan == "negative_zero" and plain == 0) or (a.kind == "nan" and not fmt.signed)
            keeps = keeps or (a.is_zero and not fmt.negative_zero)
            below = casts.below_code(fmt, overflow) or 0
            negated.append(code if keeps else code ^ sign if fmt.signed else below)
            cleared.append(code if keeps else plain)
        named = keywords((fmt,), None, {})
        compare_with("negative", [codes], named | {"overflow": overflow}, np.array(negated, fmt.storage))
        compare_with("absolute", [codes], named, np.array(cleared, fmt.storage))


def test_empty_lists_are_codes_of_the_named_format_unlike_scaled_arrays() -> None:
    got = fp.add([], [[]], fmt="e4m3")
    assert (got.shape, got.dtype) == ((1, 0), np.uint8)
    assert fp.to_int([], fmt="bf16").shape == (0,)
    scaled = fp.encode_scaled(np.zeros((0, 32), np.float32), "e4m3", fp.scalings.MX)
    with pytest.raises(TypeError, match=r"got Scaled: its \.decode\(\) returns the values"):
        fp.negative(scaled, fmt="e4m3")  # as Scaled arrays with elements are refused


@in_turn("function", [fp.exp, fp.minimum, fp.add, fp.sqrt])
def test_help_describes_the_result_once(function: Any) -> None:
    assert function.__doc__.count("The result has") == 1
