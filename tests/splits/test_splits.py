"""Float32 products from narrow parts: parts, order and totals are those of the published recipes."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.splits.split import Group
from fpsim.testing import assert_bits_equal

f32 = np.float32
HALF: Any = 0.5


def numbers(rows: int, columns: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-3, 4, (rows, columns))).astype(f32)


def bf16_triple(x: Any) -> list[Any]:
    """Return the parts of CUTLASS's BF16x9, by ml_dtypes."""
    parts = []
    for _ in range(3):
        parts.append(x.astype(ml_dtypes.bfloat16))
        x = (x - parts[-1].astype(f32)) * f32(256)
    return parts


def test_three_bf16_parts_hold_every_bit() -> None:
    x = numbers(50, 40)
    parts = fp.split_parts(x, "CUTLASS_BF16X9")
    for part, want in zip(parts, bf16_triple(x), strict=True):
        assert_bits_equal(part, want)
    total = sum(part.astype(np.float64) * 2.0 ** (-8 * i) for i, part in enumerate(parts))
    np.testing.assert_array_equal(total, x)


def test_two_fp16_parts_keep_22_75_bits_on_average() -> None:
    """Ootomo and Yokota count them for uniform mantissas; what is lost depends on the lower 14 of the 23 bits."""
    patterns = np.arange(1 << 14, dtype=np.uint32)
    x = (np.uint32(0x3F800000) | patterns).view(f32)
    high, low = (part.astype(np.float64) for part in fp.split_parts(x, "OOTOMO_FP16X2"))
    ulps = np.abs(high + low * 2.0**-11 - x) * 2.0**23  # 0 where all is kept, 1 where the last bit is lost
    assert set(ulps) == {0.0, 1.0}
    assert 23 - ulps.mean() == 22.75


def by_instructions(a: Any, b: Any, pairs: Any, shift: int, unit: str) -> Any:
    """Return CUTLASS's product, instruction by instruction with `fp.dot_add`."""
    terms = fp.unit(unit).terms
    left, right = bf16_triple(a), bf16_triple(b)
    total = np.zeros((len(a), b.shape[1]), f32)
    for start in range(0, a.shape[1], terms):
        k = slice(start, start + terms)
        for m in range(len(a)):
            for n in range(b.shape[1]):
                sums = f32(0)
                for i, j, scaled in pairs:
                    sums = sums * f32(2.0**-shift) if scaled else sums
                    step = fp.dot_add(
                        left[i][m, k].view(np.uint16)[None], right[j][k, n].view(np.uint16)[None],
                        np.array([sums]).view(np.uint32), unit,
                    )  # fmt: skip
                    sums = step.view(f32)[0]
                total[m, n] += sums
    return total


NINE = [
    (2, 2, False), (1, 2, True), (2, 1, False), (0, 2, True), (1, 1, False), (2, 0, False),
    (0, 1, True), (1, 0, False), (0, 0, True),
]  # fmt: skip


@pytest.mark.parametrize(("split", "pairs"), [("CUTLASS_BF16X9", NINE), ("cutlass_bf16x6", NINE[3:])])
def test_bf16x9_adds_instructions_in_cutlass_order(split: str, pairs: Any) -> None:
    a, b = numbers(3, 40, 1), numbers(40, 2, 2)
    assert_bits_equal(fp.split_matmul(a, b, split=split), by_instructions(a, b, pairs, 8, "blackwell_bf16_f32"))


def test_longer_intervals_take_the_steps_of_a_band_in_turns() -> None:
    a, b = numbers(2, 64, 3), numbers(64, 2, 4)
    split = fp.splits.CUTLASS_BF16X6.replace(groups=(Group(fp.splits.CUTLASS_BF16X6.groups[0].bands, interval=2),))
    left, right, unit = bf16_triple(a), bf16_triple(b), "blackwell_bf16_f32"
    want = np.zeros((2, 2), f32)
    for start in (0, 32):
        sums: Any = None
        for band in split.groups[0].bands:
            for first, step in enumerate((start, start + 16)):
                for number, (i, j) in enumerate(band):
                    scaled = sums is not None and not first and not number
                    c: Any = None if sums is None else sums * f32(2.0**-8 if scaled else 1)
                    k = slice(step, step + 16)
                    sums = fp.matmul(left[i][:, k], right[j][k], c, accumulate=unit)
        want = want + sums
    assert_bits_equal(fp.split_matmul(a, b, split=split), want)


def test_ootomo_adds_the_leading_product_outside_and_corrections_inside() -> None:
    a, b = numbers(4, 50, 5), numbers(50, 3, 6)
    high, low = (
        [x.astype(np.float16), ((x - x.astype(np.float16).astype(f32)) * f32(2048)).astype(np.float16)] for x in (a, b)
    )
    unit, terms = "ampere_f16_f32", 8
    total, corrections = np.zeros((2, 4, 3), f32)
    for start in range(0, 50, terms):
        k = slice(start, start + terms)
        total = total + fp.matmul(high[0][:, k], low[0][k], accumulate=unit)
        for i, j in ((1, 0), (0, 1)):
            corrections = fp.matmul(high[i][:, k], low[j][k], corrections, accumulate=unit)
    c = numbers(4, 3, 7)
    assert_bits_equal(fp.split_matmul(a, b, c, split="OOTOMO_FP16X2"), (total + corrections * f32(2.0**-11)) + c)


def test_aie_errors_are_the_published_ones() -> None:
    """AMD UG1603 publishes 56.11, 37.68, 5.36, 0.83 and 0.02 % of products that are 0 to 4 ulps off."""
    x, y = np.random.default_rng(0).random((2, 1, 50_000), f32)
    products = np.concatenate([fp.split_matmul(x[:, [i]], y[:, i : i + 1], split="AIE_BF16X6") for i in range(64)])
    want = x[0, :64] * y[0, :64]
    assert np.abs(products.view(np.int32).ravel() - want.view(np.int32)).max() <= 4
    parts = [[part.astype(f32) for part in fp.split_parts(z[0], "AIE_BF16X6")] for z in (x, y)]
    total = np.zeros(50_000, f32)
    for i, j in fp.splits.AIE_BF16X6.groups[0].pairs:
        total = total + parts[0][i] * parts[1][j]
    assert_bits_equal(products.ravel(), total[:64])
    ulps = np.abs(total.view(np.int32) - (x * y)[0].view(np.int32))
    shares = [100 * float((ulps == n).mean()) for n in range(5)]
    assert np.abs(np.subtract(shares, [56.11, 37.68, 5.36, 0.83, 0.02])).max() < 1.0


def test_splits_recover_float32_accuracy() -> None:
    a, b = numbers(48, 256, 8), numbers(256, 48, 9)
    exact = a.astype(np.float64) @ b

    def error(x: Any) -> float:
        return float(np.linalg.norm(x - exact) / np.linalg.norm(exact))

    chain = error(fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd("fp32")))
    narrow = error(fp.matmul(fp.cast(a, "bf16"), fp.cast(b, "bf16"), accumulate="blackwell_bf16_f32"))
    for name in ("CUTLASS_BF16X9", "CUTLASS_BF16X6", "OOTOMO_FP16X2"):
        assert error(fp.split_matmul(a, b, split=name)) < chain < narrow / 1000


def test_values_beyond_the_range_go_as_the_recipe_says() -> None:
    x = np.array([[1e30, np.inf, 3.4e38]], f32)
    ones = np.ones((3, 1), f32)
    assert not np.isfinite(fp.split_matmul(x, ones, split="OOTOMO_FP16X2")).any()  # beyond FP16
    parts = fp.split_parts(x, "CUTLASS_BF16X9")
    assert float(parts[0][0, 1]) == fp.BF16.max  # saturated, Inf too
    assert fp.split_matmul(np.zeros((0, 3), f32), ones).shape == (0, 1)
    assert fp.split_matmul(np.zeros((2, 0), f32), np.zeros((0, 1), f32)).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: fp.split_matmul(x, x, split="bf16x8"), "split must be one of .*CUTLASS_BF16X9.* got 'bf16x8'"),
        (lambda x: fp.split_matmul(x, x[:1]), r"a must be \(M, K\) and b \(K, N\); got shapes \(2, 2\) and \(1, 2\)"),
        (lambda x: fp.split_matmul(x, x, x[0]), r"c must be of shape \(2, 2\), as the product; got shape \(2,\)"),
        (lambda x: fp.split_parts(np.array([0.1]), "CUTLASS_BF16X9"), "x must hold float32 values"),
        (
            lambda x: fp.splits.OOTOMO_FP16X2.replace(accumulate="hopper_bf16_f32"),
            "must be a unit of FP16 that adds in",
        ),
        (lambda x: fp.splits.OOTOMO_FP16X2.replace(parts=9), "parts must be 2 to 8; got 9"),
        (lambda x: fp.splits.OOTOMO_FP16X2.replace(rounding="stochastic"), "rounding must be deterministic"),
        (lambda x: fp.splits.CUTLASS_BF16X9.replace(groups=(Group((((0, 0),), ((1, 0),))),)), "needs an interval of 1"),
        *(
            (
                lambda x, groups=groups: fp.splits.OOTOMO_FP16X2.replace(groups=groups),
                "groups must be a tuple of fp.splits",
            )
            for groups in (
                5,
                [Group((((0, 0),),))],
                (Group(((0, 0),)),),  # type: ignore[arg-type]
                (Group([[(0, 0)]]),),  # type: ignore[arg-type]
                (Group(3),),  # type: ignore[arg-type]
                (Group(((),)),),
            )
        ),
    ],
)
def test_bad_input_is_said(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(np.ones((2, 2), f32))
    with pytest.raises(TypeError, match=r"must be a matrix unit or fp\.FusedMultiplyAdd"):
        fp.splits.OOTOMO_FP16X2.replace(accumulate=fp.Sequential("fp32"))


# ---- the Ozaki scheme


def ozaki(a: Any, b: Any, slices: int, bits: int) -> list[list[float]]:
    """Return the product by Python's integers, with float64 additions in ozIMMU's order."""

    def cut(line: list[float]) -> tuple[list[list[int]], int]:
        largest = max(map(Fraction, map(abs, line)))
        exponent = 0
        while largest and largest >= Fraction(2) ** exponent:
            exponent += 1
        while largest and largest < Fraction(2) ** (exponent - 1):
            exponent -= 1
        rows = []
        for x in line:
            rest, digits = Fraction(x) / Fraction(2) ** exponent, []
            for _ in range(slices):
                rest *= 1 << bits
                digits.append(int(rest))  # toward zero
                rest -= digits[-1]
            rows.append(digits)
        return rows, exponent

    rows, columns = [cut(list(map(float, line))) for line in a], [cut(list(map(float, line))) for line in b.T]
    result: list[list[float]] = []
    for of_a, e in rows:
        result.append([])
        for of_b, f in columns:
            total = 0.0
            for weight in range(2, slices + 2):
                for i in range(1, weight):
                    sums = sum(x[i - 1] * y[weight - i - 1] for x, y in zip(of_a, of_b, strict=True))
                    assert abs(sums) < 2**31
                    total += sums * 2.0 ** (-bits * weight)
            result[-1].append(total * 2.0 ** (e + f))
    return result


@pytest.mark.parametrize("slices", [1, 3, 9])
def test_ozaki_has_the_bits_of_integers(slices: int) -> None:
    rng = np.random.default_rng(slices)
    a = rng.standard_normal((4, 30)) * 2.0 ** rng.integers(-40, 40, (4, 30))
    b = rng.standard_normal((30, 3))
    a[1] = 0
    a[2, 3] = 5e-324
    assert_bits_equal(fp.ozaki_matmul(a, b, slices=slices), np.array(ozaki(a, b, slices, 7)))


def test_slices_are_as_wide_as_the_sums_allow() -> None:
    from fpsim.splits.ozaki import slice_bits

    for k in (1, 2, 3, 2**17, 2**17 + 1, 2**20, 2**29):
        bits = slice_bits(k)
        assert k * (2**bits - 1) ** 2 < 2**31
        assert bits == 7 or k * 2 ** (2 * bits + 2) > 2**30
    with pytest.raises(ValueError, match=r"K must be at most 2\*\*29"):
        slice_bits(2**29 + 1)


def test_each_slice_of_ozaki_gains_seven_bits_until_float64_is_reached() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 40, 40))
    exact = np.array(
        [[float(sum(Fraction(x) * Fraction(y) for x, y in zip(r, s, strict=True))) for s in b.T] for r in a]
    )
    errors = [float(np.abs(fp.ozaki_matmul(a, b, slices=n) - exact).max()) for n in range(2, 11)]
    steps = [np.log2(x / y) for x, y in pairwise(errors)]
    assert all(5.5 < step < 8.5 for step in steps[:5]), steps
    assert errors[7] < 1e-13


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: fp.ozaki_matmul(x, x, slices=17), "slices must be 1 to 16; got 17"),
        (lambda x: fp.ozaki_matmul(x, x, slices=0), "slices must be an integer >= 1; got 0"),
        (lambda x: fp.ozaki_matmul(x * np.inf, x), "a must be finite, because slices are integers; got inf"),
        (lambda x: fp.ozaki_matmul(x, x[0]), r"a must be \(M, K\) and b \(K, N\)"),
    ],
)
def test_bad_input_to_ozaki_is_said(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(np.ones((2, 2)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shift": 128}, "shift must be 0 to 127, as float32 holds 2**shift; got 128."),
        ({"groups": (fp.splits.Group((((0, 0),),), log2_scale=128),)}, "log2_scale must be -149 to 127; got 128."),
        ({"groups": (fp.splits.Group((((0, 0),),), log2_scale=HALF),)}, "log2_scale must be an integer; got 0.5"),
        ({"groups": (fp.splits.Group((((0, HALF),),)),)}, "pairs must be of 2 parts, 0 to 1; got (0, 0.5)."),
    ],
)
def test_numbers_that_no_product_could_use_are_refused(changes: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        fp.splits.OOTOMO_FP16X2.replace(**changes)


def test_float64_beyond_float32_is_refused_without_a_warning() -> None:
    with pytest.raises(ValueError, match="x must hold float32 values"):
        fp.split_parts(np.array([1e300]), "OOTOMO_FP16X2")
