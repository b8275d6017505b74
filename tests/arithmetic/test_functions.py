"""Arithmetic: the exact result is rounded once, in every mode and format, as exact fractions say."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
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
    subnormals_of,
)
from tests.kit import operands
from tests.kit.samples import exactly
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import arithmetic as ao
from tests.oracles import casts

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
        found = ao.outcomes(operation, columns, fmts, fmt)
        check_outcomes(found, operation, columns, fmts)
        check_outcomes(found, operation, columns, fmts, flags=True, tininess="after")
        check_outcomes(found, operation, columns, fmts, flags=True, tininess="before", subnormals="flush")


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
        slow = ao.round_to_integral(int(codes[row]), fmt, fmt, ao.Options(rounding))
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
    assert want[::97].tolist() == [ao.neighbour(code, fmt, True)[0] for code in codes[::97].tolist()]
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
        rows = [ao.round_to_integral(code, fmt, fmt, options_of(named)) for code in codes.tolist()]
        compare_with("round_to_integral", [codes], named, *columns_of(rows, fmt.storage))
    named = keywords((fmt,), None, {"rounding": "stochastic", "seed": SEED, "random_bits": 9})
    words = zip(codes.tolist(), random_words(SEED, codes.size), strict=True)
    rows = [ao.round_to_integral(code, fmt, fmt, options_of(named)._replace(word=word)) for code, word in words]
    compare_with("round_to_integral", [codes], named, *columns_of(rows, fmt.storage))


def check_neighbours(codes: Array, fmt: fp.Format, overflows: tuple[str, ...]) -> None:
    for up, operation in ((True, "next_up"), (False, "next_down")):
        for overflow in overflows:
            rows = [ao.neighbour(code, fmt, up, ao.Options(overflow=overflow)) for code in codes.tolist()]
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


# ---- mixed formats, and every word


MIXED: list[tuple[Formats, fp.Format]] = [
    ((fp.E4M3, fp.E5M2), fp.BF16),
    ((fp.E4M3, fp.E5M2), fp.E4M3),
    ((fp.E5M2, fp.E4M3), fp.E5M2),
    ((fp.E5M2, fp.E5M2), fp.E2M1),
    ((fp.FP16, fp.BF16), fp.FP32),
    ((fp.BF16, fp.FP16), fp.FP16),
    ((fp.FP32, fp.FP32), fp.E4M3),
    ((fp.FP32, fp.FP32), fp.BF16),
    ((fp.FP32, fp.TF32), fp.FP16),
    ((fp.FP16, fp.FP16), fp.E8M0),
    ((fp.BF16, fp.E8M0), fp.BF16),
    ((fp.E2M1, fp.E8M0), fp.FP16),
    ((fp.E4M3FNUZ, fp.E5M2FNUZ), fp.FP16),
    ((fp.E5M2, fp.FP16), fp.E4M3FNUZ),
    ((fp.FP16, fp.E3M4), fp.format("p3109_k8p3ue")),
    ((fp.format("p3109_k8p1se"), fp.E5M2), fp.format("p3109_k8p4sf")),
    ((fp.format("p3109_k16p9ue"), fp.BF16), fp.TF32),
    ((fp.E4M3, fp.FP32), fp.FP64),
    ((fp.BF16, fp.FP32), fp.FP64),
]
mixed = pytest.mark.parametrize(("fmts", "out"), MIXED, ids=lambda x: str(x) if isinstance(x, fp.Format) else None)


@mixed
def test_operands_of_two_formats_round_once_into_a_third(fmts: Formats, out: fp.Format) -> None:
    for seed, operation in enumerate((*ao.BINARY, *ao.EXTREMA)):
        check(operation, operands.tuples(fmts, 80, seed), fmts, out)
    three = (*fmts, fmts[0])
    check("fma", operands.tuples(three, 120, seed=20), three, out)
    check("sqrt", [operands.level_one(fmts[0])[::9]], fmts[:1], out)


@mixed
def test_operands_of_two_formats_round_stochastically_into_a_third(fmts: Formats, out: fp.Format) -> None:
    if out == fp.FP64:
        return  # rounds deterministically only
    for seed, operation in enumerate(ao.BINARY):
        check_stochastic(operation, [c[:50] for c in operands.tuples(fmts, 50, seed)], fmts, out, seed=seed)


@in_turn("fmt", [*NARROW, *ODD_WIDTHS[:6:2], *UNUSUAL[:7:2], fp.FP16, fp.FP32])
def test_every_overflow_word_means_what_it_means_in_casts(fmt: fp.Format) -> None:
    for seed, operation in enumerate(("subtract", "multiply", "divide")):
        columns = [column[:50] for column in operands.tuples((fmt, fmt), 50, 30 + seed)]
        roundings = ("nearest_even", ("up", "down", "odd")[seed])
        for overflow in casts.OVERFLOWS:
            check(operation, columns, (fmt, fmt), overflow=overflow, roundings=roundings)


@in_turn("out", [*SMALL, *EIGHT_BITS, *SOME_P3109, fp.FP16])
def test_every_overflow_word_decides_what_a_narrow_format_cannot_hold(out: fp.Format) -> None:
    columns = [column[:80] for column in operands.tuples((fp.BF16, fp.BF16), 80, seed=40)]
    for overflow in casts.OVERFLOWS:
        check("multiply", columns, (fp.BF16,) * 2, out, overflow=overflow, roundings=("nearest_even", "toward_zero"))


@pytest.mark.parametrize("fmt", [*NARROW[1::2], *ODD_WIDTHS[:6:2], *UNUSUAL[::3], *WIDE], ids=str)
def test_subnormals_are_flushed_on_the_way_in_and_on_the_way_out(fmt: fp.Format) -> None:
    for seed, operation in enumerate((*ao.BINARY, "fma", "sqrt", "minimum")):
        fmts = (fmt,) * {"fma": 3, "sqrt": 1}.get(operation, 2)
        columns = [column[:50] for column in operands.tuples(fmts, 50, 50 + seed)]
        for inward, outward in (("flush", "keep"), ("flush", "flush"), ("keep", "flush")):
            if outward in subnormals_of(fmt):
                roundings = casts.MODES[seed % 3 :: 3]
                check(operation, columns, fmts, roundings=roundings, subnormals=outward, input_subnormals=inward)


def test_a_division_by_zero_raises_that_alone_even_below_an_unsigned_format() -> None:
    for out in (fp.E8M0, fp.format("p3109_k8p3ue"), fp.format("p3109_k8p7uf"), fp.E2M1, fp.E4M3):
        for overflow in casts.OVERFLOWS:
            columns = [np.array([0xBF80, 0x3F80], np.uint16), np.array([0, 0], np.uint16)]
            check("divide", columns, (fp.BF16, fp.BF16), out, flags=True, overflow=overflow)


# ---- second witnesses


@in_turn("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn,
                   ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e3m4, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e4m3,
                   ml_dtypes.float8_e4m3b11fnuz])  # fmt: skip
def test_numpy_and_ml_dtypes_agree_on_arrays_of_their_dtypes(dtype: type) -> None:
    fmt = fp.format(dtype)
    generator = np.random.default_rng(8)
    edges = operands.tuples((fmt, fmt), 20_000, seed=60)
    anything = generator.integers(0, 1 << fmt.bits, (2, 20_000)).astype(fmt.storage)
    a, b = operands.as_floats([np.append(*column) for column in zip(edges, anything, strict=True)], dtype)
    for ours, theirs in ((fp.add, np.add), (fp.subtract, np.subtract), (fp.multiply, np.multiply),
                         (fp.divide, np.divide)):  # fmt: skip
        with np.errstate(all="ignore"):
            want = theirs(a, b)
        assert_bits_equal(ours(a, b), want)
    with np.errstate(all="ignore"):
        assert_bits_equal(fp.sqrt(a), np.sqrt(a))


@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16, fp.FP32], ids=str)
def test_pythons_remainder_agrees(fmt: fp.Format) -> None:
    a, b = operands.as_floats(operands.tuples((fmt, fmt), 4000, seed=61), fmt.dtype)
    x, y = exactly(a).tolist(), exactly(b).tolist()
    bad = [math.isnan(u) or math.isnan(v) or math.isinf(u) or v == 0 for u, v in zip(x, y, strict=True)]
    rest = [math.nan if skip else math.remainder(u, v) for u, v, skip in zip(x, y, bad, strict=True)]
    assert fmt.dtype is not None
    assert_bits_equal(fp.remainder(a, b), np.array(rest).astype(fmt.dtype))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_numpys_neighbours_agree(dtype: type) -> None:
    (x,) = operands.as_floats([operands.level_one(fp.format(dtype))], dtype)
    for ours, target in ((fp.next_up, np.inf), (fp.next_down, -np.inf)):
        with np.errstate(all="ignore"):
            want = np.nextafter(x, dtype(target))
        got = ours(x)
        zero = got == 0  # nextUp(-2**-24) is -0 in IEEE 754 and in C
        assert_bits_equal(got[~zero], want[~zero])
        assert (np.signbit(got[zero]) == (target > 0)).all()


# ---- laws


@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E5M2FNUZ, fp.FP16, fp.BF16, fp.FP32], ids=str)
def test_arithmetic_keeps_its_laws(fmt: fp.Format) -> None:
    a, b = operands.tuples((fmt, fmt), 20_000, seed=62)
    for operation in (fp.add, fp.multiply):
        assert_bits_equal(operation(a, b, fmt=fmt), operation(b, a, fmt=fmt))
    number = fp.classify(b, fmt=fmt) < fp.FloatClass.SIGNALING_NAN
    got, want = fp.subtract(a, b, fmt=fmt), fp.add(a, fp.negative(b, fmt=fmt), fmt=fmt)
    zero = fp.equal(b, np.zeros_like(b), fmt=fmt)
    assert_bits_equal(got[number & ~zero], want[number & ~zero])
    one = np.full_like(a, operands.near(fmt, Fraction(1)))
    plain = ~fp.equal(a, np.zeros_like(a), fmt=fmt) if not fmt.negative_zero else np.ones(a.size, np.bool_)
    assert_bits_equal(fp.fma(a, one, b, fmt=fmt)[plain], fp.add(a, b, fmt=fmt)[plain])
    assert_bits_equal(
        fp.divide(a, one, fmt=fmt)[number], fp.convert(fp.multiply(a, one, fmt=fmt), fmt, fmt=fmt)[number]
    )


# ---- arrays


def test_float_arrays_give_arrays_of_their_dtype_and_codes_give_codes() -> None:
    x = np.array([448, 0.0625], ml_dtypes.float8_e4m3fn)
    assert fp.add(x, x).dtype == x.dtype
    assert fp.add(x.view(np.uint8), x.view(np.uint8), fmt="e4m3").dtype == np.uint8
    assert_bits_equal(fp.add(x, x).view(np.uint8), fp.add(x.view(np.uint8), x.view(np.uint8), fmt="e4m3"))
    wide = fp.multiply(np.array([3, 0.5], np.float16), np.array([2, 0.5], np.float16), out_fmt=fp.FP32)
    assert_bits_equal(wide, np.array([6, 0.25], np.float32))


def test_results_fill_out_and_may_replace_an_operand() -> None:
    a, b = sampled_pairs(fp.E4M3, 1000, seed=63)
    want = fp.add(a, b, fmt="e4m3")
    out = np.zeros_like(a)
    assert fp.add(a, b, fmt="e4m3", out=out) is out
    assert_bits_equal(out, want)
    fp.add(a, b, fmt="e4m3", out=a)
    assert_bits_equal(a, want)


@pytest.mark.parametrize("size", [0, 1, 3, 4095, 4097, 100_003])
def test_every_length_and_layout_gives_the_same_codes(size: int) -> None:
    a, b = (np.resize(column, size) for column in operands.tuples((fp.FP16, fp.FP16), 5000, seed=64))
    want = fp.multiply(a, b, fmt=fp.FP16)
    assert want.shape == (size,)
    strided = fp.multiply(np.repeat(a, 2)[::2], b[::-1].copy()[::-1], fmt=fp.FP16)
    assert_bits_equal(strided, want)
    assert_bits_equal(fp.multiply(a.view(np.float16), b.view(np.float16)).view(np.uint16), want)
    some = slice(0, min(size, 50))
    for x, y, z in zip(a[some].tolist(), b[some].tolist(), want[some].tolist(), strict=True):
        assert z == ao.compute("multiply", (x, y), (fp.FP16,) * 2, fp.FP16)[0]
