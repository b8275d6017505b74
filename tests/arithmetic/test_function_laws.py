"""Arithmetic on mixed formats, overflow, other libraries, algebraic laws, and arrays."""

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
    SMALL,
    SOME_P3109,
    UNUSUAL,
    WIDE,
    Formats,
    check,
    check_stochastic,
    subnormals_of,
)
from tests.kit import operands
from tests.kit.samples import exactly
from tests.kit.sweeps import in_turn
from tests.oracles import arithmetic as ao
from tests.oracles import casts

Array = npt.NDArray[Any]


NARROW = [*SMALL, *EIGHT_BITS, *SOME_P3109]


def sampled_pairs(fmt: fp.Format, count: int, seed: int) -> list[Array]:
    """Pairs of any codes of a format."""
    generator = np.random.default_rng(seed)
    return [generator.choice(operands.every_code(fmt), count) for _ in range(2)]


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
