"""Accumulators: every rounding in its place, against exact fractions and against fpsim's own operations one by one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.products.reduce import dot
from fpsim.products.reduce import sum as fp_sum
from fpsim.runtime import threads
from fpsim.sums import accumulate
from fpsim.sums.accumulate import SumProblem
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential
from fpsim.sums.product import accumulator_product
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import casts
from tests.oracles import sums as accumulator_oracle
from tests.oracles.arithmetic import read
from tests.sums.checks import assert_same, check_product, drawn, encoded, ranges, rule_of

Array = npt.NDArray[Any]


KINDS: list[Callable[..., Accumulator]] = [Sequential, FusedMultiplyAdd, Pairwise, Chunked, Exact]


MODES = [*casts.MODES, "stochastic"]


UNSIGNED = fp.format("p3109_k8p3ue")


WIDE_RANGE = fp.Format("wide_range", 11, 4)  # products and sums beyond float64


FORMATS = [
    fp.E4M3, fp.E5M2, fp.E2M1, fp.BF16, fp.FP16, fp.TF32, fp.FP32, fp.E4M3FNUZ, UNSIGNED, fp.format("p3109_k8p4se"),
    WIDE_RANGE, fp.Format("powers", 6, 0, infinities=True, nan="top"),
]  # fmt: skip


OPERANDS = [(fp.E4M3, fp.E5M2), (fp.BF16, fp.BF16), (fp.FP16, fp.E2M1), (fp.FP32, fp.FP32), (UNSIGNED, fp.E4M3FNUZ)]


def floats(values: Any) -> Array:
    """A float32 array."""
    return np.array(values, np.float32)


def made(kind: Callable[..., Accumulator], fmt: fp.Format, rounding: str, **words: Any) -> Accumulator:
    """An accumulator, with a seed where it needs one."""
    if rounding == "stochastic":
        words["seed"] = 0x123456789
    if kind is Chunked:
        words.setdefault("chunk", 4)
    return kind(fmt, rounding=rounding, **words)


# ---- against the oracle


@in_turn("fmt", FORMATS)
@in_turn("kind", KINDS)
def test_every_rounding_of_a_product_is_the_oracles(kind: Callable[..., Accumulator], fmt: fp.Format) -> None:
    generator = np.random.default_rng(len(fmt.name))
    for number, rounding in enumerate(MODES):
        formats = OPERANDS[(number + fmt.bits) % len(OPERANDS)]
        m, n, k = ((2, 3, 11), (3, 2, 6), (1, 4, 9))[number % 3]
        a, b = drawn(formats[0], (m, k), generator), drawn(formats[1], (k, n), generator)
        c = drawn(fmt, (m, n), generator) if number % 2 else None
        check_product(made(kind, fmt, rounding), a, b, c, formats)


@in_turn("overflow", ["saturate", "saturate_finite"])
@in_turn("kind", KINDS)
def test_policies_hold_at_every_step(kind: Callable[..., Accumulator], overflow: str) -> None:
    generator = np.random.default_rng(5)
    for fmt in (fp.E4M3, fp.FP16, fp.E2M1, UNSIGNED):
        for rounding in ("nearest_even", "down", "stochastic"):
            words = {"overflow": overflow, "subnormals": "flush", "random_bits": 9}
            a, b = drawn(fp.E5M2, (2, 7), generator, 0.5), drawn(fp.E4M3, (7, 2), generator, 0.5)
            check_product(made(kind, fmt, rounding, **words), a, b, None, (fp.E5M2, fp.E4M3))


@in_turn("outer", [fp.FP32, fp.BF16, fp.E5M2, UNSIGNED])
@in_turn("fmt", [fp.FP16, fp.E4M3, fp.FP32])
def test_totals_of_runs_join_a_sum_in_another_format(fmt: fp.Format, outer: fp.Format) -> None:
    generator = np.random.default_rng(6)
    for rounding in ("nearest_even", "up", "stochastic"):
        a, b = drawn(fp.FP16, (2, 10), generator), drawn(fp.FP16, (10, 2), generator)
        c = drawn(outer, (2, 2), generator)
        check_product(made(Chunked, fmt, rounding, chunk=3, outer=outer), a, b, c, (fp.FP16, fp.FP16))


@pytest.mark.parametrize("fmt", [fp.BF16, fp.FP32, fp.E4M3], ids=str)
def test_no_term_is_lost_where_rows_columns_and_terms_are_few_or_none(fmt: fp.Format) -> None:
    generator = np.random.default_rng(7)
    for kind in KINDS:
        for m, n, k in ((1, 1, 1), (1, 1, 0), (0, 3, 2), (2, 0, 1), (3, 2, 0), (1, 70, 2), (5, 1, 3)):
            a, b = drawn(fp.E5M2, (m, k), generator), drawn(fp.E5M2, (k, n), generator)
            for c in (None, drawn(fmt, (m, n), generator, 0.5)):
                check_product(made(kind, fmt, "stochastic"), a, b, c, (fp.E5M2, fp.E5M2))
                check_product(made(kind, fmt, "nearest_even"), a, b, c, (fp.E5M2, fp.E5M2))


@sweep("whole", False, True)
def test_all_pairs_of_small_codes_are_added_as_the_oracle_adds_them(whole: bool) -> None:
    for fmt, result in ((fp.E2M1, fp.E2M1), (fp.E2M3, fp.E4M3), (fp.E3M2, fp.E2M1)):
        codes = np.arange(1 << fmt.bits, dtype=fmt.storage)
        x, y = (grid.reshape(-1) for grid in np.meshgrid(codes, codes))
        pairs = np.stack([x, y])  # (2, all pairs)
        kinds, roundings = (Sequential, Pairwise, Exact), ("nearest_even", "nearest_away", "down")
        # of the 4,096 pairs of larger codes each kind takes another rounding
        every = whole or fmt == fp.E2M1
        cases = itertools.product(kinds, roundings) if every else zip(kinds, roundings, strict=True)
        for kind, rounding in cases:
            accumulator = made(kind, result, rounding)
            got = fp_sum(pairs, accumulate=accumulator, fmt=fmt, axis=0).view(np.uint8)
            rule, values = rule_of(accumulator), [read(fmt, int(code)) for code in codes]
            want = [accumulator_oracle.total(rule, [values[p], values[q]], None) for p, q in pairs.T]
            assert_same(got, np.array(want, np.uint8), accumulator, f"pairs of {fmt}")


# ---- against fpsim's operations, one by one


def composed(accumulator: Accumulator, a: Array, b: Array, c: Array, formats: tuple[fp.Format, fp.Format]) -> Array:
    """The sum by fp.multiply, fp.add and fp.fma."""
    words: dict[str, Any] = {"rounding": accumulator.rounding}
    fmt, outer = accumulator.fmt, accumulator.result_format
    pairs = [(a[:, k, None], b[None, k, :]) for k in range(a.shape[1])]

    def product(k: int) -> Array:
        return np.asarray(fp.multiply(*pairs[k], fmt=formats, out_fmt=fmt, **words))

    def added(x: Array, y: Array, into: fp.Format = fmt) -> Array:
        return np.asarray(fp.add(x, y, fmt=(into, fmt), out_fmt=into, **words))

    total = c
    if isinstance(accumulator, Sequential):
        for k in range(len(pairs)):
            total = added(total, product(k))
    elif isinstance(accumulator, FusedMultiplyAdd):
        for x, y in pairs:
            total = fp.fma(x, y, total, fmt=(*formats, fmt), out_fmt=fmt, **words)
    elif isinstance(accumulator, Chunked):
        for start in range(0, len(pairs), accumulator.chunk):
            inner = np.zeros(c.shape, fmt.storage)
            for k in range(start, min(start + accumulator.chunk, len(pairs))):
                inner = added(inner, product(k))
            total = added(total, inner, outer)
    else:
        level = [product(k) for k in range(len(pairs))]
        while len(level) > 1:
            odd = level[-1:] if len(level) % 2 else []
            level = [added(x, y) for x, y in zip(level[::2], level[1::2], strict=False)] + odd
        total = added(c, level[0])
    return total


@pytest.mark.parametrize("rounding", casts.MODES)
@pytest.mark.parametrize("fmt", [fp.FP32, fp.BF16, fp.FP16, fp.E4M3FNUZ], ids=str)
def test_a_sum_is_its_operations_one_after_the_other(fmt: fp.Format, rounding: str) -> None:
    generator = np.random.default_rng(8)
    for formats, wild in (((fp.BF16, fp.FP16), 0.0), ((fp.FP32, fp.FP32), 0.01)):
        a, b = drawn(formats[0], (5, 70), generator, wild), drawn(formats[1], (70, 67), generator, wild)
        for kind in KINDS[:4]:
            outer = {"outer": fp.FP32, "chunk": 16} if kind is Chunked else {}
            accumulator = made(kind, fmt, rounding, **outer)
            c = drawn(accumulator.result_format, (5, 67), generator, 0.1)
            got = accumulator_product(a, b, c, accumulator, formats=formats)
            assert_same(got, composed(accumulator, a, b, c, formats), accumulator, f"{formats}, wild {wild}")


def test_double_precision_is_the_processors() -> None:
    generator = np.random.default_rng(9)
    a, b = generator.normal(size=(3, 40)), generator.normal(size=(40, 65))
    totals, runs = np.zeros((3, 65)), np.zeros((3, 65))
    for k in range(40):
        totals += a[:, k, None] * b[k]
    for start in range(0, 40, 7):
        inner = np.zeros((3, 65))
        for k in range(start, min(start + 7, 40)):
            inner += a[:, k, None] * b[k]
        runs += inner
    codes = a.view(np.uint64), b.view(np.uint64)
    for accumulator, want in ((Sequential("fp64"), totals), (Chunked("fp64", chunk=7), runs)):
        got = accumulator_product(*codes, None, accumulator, formats=(fp.FP64, fp.FP64))
        assert_bits_equal(got.view(np.float64), want)
    for other in (FusedMultiplyAdd("fp64"), Pairwise("fp64"), Exact("fp64", rounding="up")):
        check_product(other, codes[0][:2, :9], codes[1][:9, :2], None, (fp.FP64, fp.FP64))
    mixed = Chunked("bf16", chunk=5, outer="fp64")
    x, y = drawn(fp.FP16, (2, 12), generator), drawn(fp.FP16, (12, 2), generator)
    check_product(mixed, x, y, None, (fp.FP16, fp.FP16))
    x, y = drawn(fp.FP32, (2, 12), generator), drawn(fp.FP16, (12, 2), generator)
    for fmt, outer in ((fp.FP64, fp.FP32), (UNSIGNED, fp.FP64), (WIDE_RANGE, fp.FP64), (fp.FP32, fp.FP64)):
        check_product(Chunked(fmt, chunk=5, outer=outer), x, y, None, (fp.FP32, fp.FP16))


# ---- exact sums in floats against those by digits


@pytest.mark.parametrize(
    "accumulator",
    [Exact("fp32"), Exact("bf16", rounding="down"), Exact("fp16", rounding="sr", seed=2), Exact("fp64", rounding="up")],
    ids=repr,
)
def test_exact_sums_in_floats_are_those_by_digits(accumulator: Exact, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(15)
    fmt = accumulator.result_format
    left, right, start = (ranges(generator, shape, 2.0**40) for shape in ((67, 70), (70, 65), (67, 65)))
    pairs = ((fp.BF16, fp.BF16), (fp.FP32, fp.FP16), (fp.E4M3, fp.E5M2))
    for i, (name, x) in enumerate(left.items()):
        for j, formats in enumerate(pairs):
            a, b = fp.encode(x, formats[0]), fp.encode(right[name], formats[1])
            a[3] = 0  # sums of zeros of both signs
            a[5, ::2] = a[5, 1::2]
            b[::2, 7] = b[1::2, 7] ^ formats[1].storage.type(formats[1].sign_bit)
            c = encoded(start[name], fmt) if (i + j) % 2 else np.zeros((0, 0), fmt.storage)
            if c.size:
                c[0, :3] = fmt.sign_bit, fmt.infinity_code, fmt.nan_code
            problem = SumProblem(a, b, c, formats, first=9)
            assert accumulate._fits_bins(problem)
            got = accumulate.accumulated(accumulator, problem)
            with monkeypatch.context() as patch:
                patch.setattr(accumulate, "_fits_bins", lambda _: False)
                want = accumulate.accumulated(accumulator, problem)
            assert_same(got, want, accumulator, f"{name}, {formats}")


@pytest.mark.parametrize("terms", [64, 1024])
def test_two_floats_hold_every_sum_of_their_range(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, doublings = np.random.default_rng(terms), (terms - 1).bit_length()
    monkeypatch.setattr(accumulate, "FEW_PRODUCTS", 0)
    for highest in range(100 - 2 * doublings, 110 - 2 * doublings):
        unit = 1 << (highest + doublings - 50)  # of the first sum: what it leaves of a product should be half of that
        odd = [(1 << 24) - 1 - 2 * int(n) for n in generator.integers(0, 1 << 22, 3000)]
        x = max(odd, key=lambda y: (y * odd[0]) % unit if (y * odd[0]) % unit < unit // 2 else 0)
        large = highest - 2
        a, b = np.full((1, terms), float(odd[0])), np.full((terms, 1), float(x))
        a[0, :2] = 2.0 ** (large // 2) * np.array([1, -1])  # which cancel, so that the last bit shows
        b[:2] = 2.0 ** (large - large // 2)
        codes = a.astype(np.float32).view(np.uint32), b.astype(np.float32).view(np.uint32)
        problem = SumProblem(*codes, np.zeros((0, 0), np.uint64), (fp.FP32, fp.FP32))
        got = accumulate.accumulated(Exact("fp64"), problem)
        with monkeypatch.context() as patch:
            patch.setattr(accumulate, "_fits_bins", lambda _: False)
            assert_same(got, accumulate.accumulated(Exact("fp64"), problem), Exact("fp64"), f"2**{highest}")


# ---- what results do not depend on


@pytest.mark.parametrize(
    "accumulator",
    [
        Sequential("bf16"), Sequential("fp16", rounding="sr", seed=3), Pairwise("bf16", rounding="sr", seed=3),
        Chunked("fp32", chunk=8, rounding="sr", seed=3), Exact("bf16", rounding="sr", seed=3), Sequential("e2m1"),
    ],
    ids=repr,
)  # fmt: skip
def test_results_do_not_depend_on_the_number_of_threads(
    accumulator: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(12)
    a, b = (fp.encode(generator.normal(size=shape), fp.E4M3) for shape in ((33, 21), (21, 200)))
    monkeypatch.setattr(threads, "SMALLEST", 1)
    results = []
    for count in ("1", "3"):
        monkeypatch.setenv("FPSIM_NUM_THREADS", count)
        results.append(accumulator_product(a, b, None, accumulator, formats=(fp.E4M3, fp.E4M3)))
    assert_bits_equal(results[0], results[1])


def test_layout_and_byte_order_change_nothing() -> None:
    generator = np.random.default_rng(13)
    a, b = generator.normal(size=(6, 9)).astype(np.float32), generator.normal(size=(9, 5)).astype(np.float32)
    for accumulator in (Sequential("bf16"), Exact("fp16"), Pairwise("e4m3"), Sequential("fp32", rounding="sr", seed=1)):
        want = accumulator_product(a.view(np.uint32), b.view(np.uint32), None, accumulator, formats=(fp.FP32, fp.FP32))
        strange = np.asfortranarray(a).view(), np.repeat(b, 2, axis=1)[:, ::2]
        codes = [np.asarray(x).view(np.uint32) if x.flags.c_contiguous else x.copy().view(np.uint32) for x in strange]
        codes[1] = np.repeat(b.view(np.uint32), 2, axis=1)[:, ::2]
        assert_bits_equal(accumulator_product(codes[0], codes[1], None, accumulator, formats=(fp.FP32, fp.FP32)), want)
        swapped = a.astype(">f4"), b.astype(">f4")
        assert_bits_equal(
            dot(swapped[0], swapped[1].T[0], accumulate=accumulator), dot(a, b.T[0], accumulate=accumulator)
        )


def test_a_given_array_is_filled() -> None:
    ones = np.full((2, 3), 0x38, np.uint8)
    c = fp.encode(floats([[1, 2], [3, 4]]), "fp16")
    want = accumulator_product(ones, ones.T, c, Sequential("fp16"), formats=(fp.E4M3, fp.E4M3))
    got = accumulator_product(ones, ones.T, c, Sequential("fp16"), formats=(fp.E4M3, fp.E4M3), out=c)
    assert got is c
    assert_bits_equal(c, want)
