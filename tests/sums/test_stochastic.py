"""Stochastic sums of blocks of terms: the bits of the oracle, and of the integer core for larger products."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.core.sums.sum_order import ChainOrder, Rows, SumTile, Targets, number_levels
from fpsim.runtime.compile import kernel
from fpsim.runtime.processor import has_control, has_fma
from fpsim.sums import accumulate
from fpsim.sums.accumulate import SumProblem
from fpsim.sums.accumulators import Accumulator, Chunked, FusedMultiplyAdd, Pairwise, Sequential
from fpsim.sums.kernels.steps import TILE_COLUMNS
from fpsim.sums.kernels.stochastic import (
    BLOCK,
    GROUP,
    PairsAhead,
    WordsAhead,
    blocks_ahead,
    largest_of_tiles,
    subtree_ahead,
)
from fpsim.sums.plan import options_of, randomness, target
from tests.kit.sweeps import in_turn
from tests.sums.checks import assert_same, check_product

Array = npt.NDArray[Any]
u64 = np.uint64

SHORT = fp.Format("short", 5, 3)
LONG = fp.Format("long", 4, 11)
FORMATS = (fp.FP16, fp.BF16, fp.TF32, fp.E5M2, SHORT, LONG)
KINDS = (Sequential, FusedMultiplyAdd, Chunked, Pairwise)


def made(kind: Any, fmt: fp.Format, **words: Any) -> Accumulator:
    """A stochastic accumulator."""
    accumulator: Accumulator = kind(fmt, rounding="stochastic", **{"seed": 0x1234567890ABCDEF, **words})
    return accumulator


def codes(values: npt.ArrayLike, fmt: fp.Format) -> Array:
    """Codes of values."""
    found: Array = fp.encode(np.asarray(values, np.float64), fmt)
    return found


def operands(shape: tuple[int, int, int], exponent: int, fmt: fp.Format, seed: int = 0) -> tuple[Array, Array]:
    """Codes whose products lie about 2**exponent, some of them zeros of either sign."""
    m, n, k = shape
    rng = np.random.default_rng(seed)

    def values(size: tuple[int, int], exponent: int) -> Array:
        drawn = rng.standard_normal(size) * np.exp2(rng.integers(-3, 4, size) + exponent)
        return codes(np.where(rng.random(size) < 0.1, drawn * 0.0, drawn), fmt)

    return values((m, k), exponent // 2), values((k, n), exponent - exponent // 2)


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_blocks_are_the_oracles_from_subnormals_to_the_largest_values(fmt: fp.Format) -> None:
    rng = np.random.default_rng(3)
    source = fp.BF16 if fmt.min_exponent < -30 else fp.E5M2 if fmt is not fp.FP16 else fp.FP16
    least, most = max(fmt.min_exponent, 2 * source.min_exponent), min(fmt.max_exponent, 2 * source.max_exponent)
    for number, exponent in enumerate((least - 3, least + 2, 0, most - 9, most - 2)):
        m, n, k = 1, 9 + number, 37
        a, b = operands((m, n, k), exponent, source, number)
        c = codes(rng.standard_normal((m, n)) * 2.0**exponent, fmt) if number % 2 else None
        for kind in (KINDS[number % 3], Pairwise):
            words = {"chunk": 4 * number + 2} if kind is Chunked else {}
            check_product(made(kind, fmt, **words), a, b, c, (source, source))


def test_sums_in_pairs_of_any_length_have_the_integer_cores_bits() -> None:
    """The words of a level begin anywhere within a counter, and the last terms make no whole subtree."""
    for terms in (
        BLOCK,
        BLOCK + 1,
        2 * BLOCK - 1,
        2 * BLOCK,
        2 * BLOCK + 6,
        3 * BLOCK + 3,
        5 * BLOCK + 4,
        8 * BLOCK + 13,
    ):
        a, b = operands((2, 11, terms), 0, fp.FP16, terms)
        compared(made(Pairwise, fp.FP16), a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_keep_their_signs(kind: Any) -> None:
    a = codes(np.array([[-0.0] * 9, [0.0] * 9]), fp.FP16)
    b = codes(np.tile(np.array([0.0, -0.0, 1.0, -1.0, 2.0**-24, -(2.0**-24)]), (9, 2)), fp.FP16)
    for start in (0.0, -0.0):
        check_product(made(kind, fp.FP16), a, b, codes(np.full((2, 12), start), fp.FP16), (fp.FP16, fp.FP16))


@pytest.mark.parametrize("kind", KINDS)
def test_infinities_nan_and_overflow_in_some_columns_or_blocks_go_step_by_step(kind: Any) -> None:
    shape = (2, 300, 70)
    a, b = operands(shape, 0, fp.FP16)
    a[0, 40], a[1, 50] = codes(np.array([60000.0, np.inf]), fp.FP16)
    b[40, 10:20], b[33, 270] = codes(np.full(10, 30.0), fp.FP16), codes(np.float64(np.nan), fp.FP16)
    compared(made(kind, fp.FP16), a, b)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_that_overflow_by_rounding_alone_go_step_by_step(kind: Any) -> None:
    """28 terms of 1792 are 50176, which roundings up by 4096 take beyond 61440 and four terms would bring back."""
    a, b = codes(np.ones((1, BLOCK)), fp.FP16), codes(np.full((BLOCK, 199), 1792.0), fp.FP16)
    b[28:] ^= np.uint16(fp.FP16.sign_bit)
    compared(made(kind, SHORT), a, b)


@in_turn("fmt", FORMATS)
@in_turn("kind", KINDS)
def test_larger_products_have_the_integer_cores_bits(kind: Any, fmt: fp.Format) -> None:
    a, b = operands((3, 2 * TILE_COLUMNS + 5, 3 * BLOCK + 7), 0, fp.E5M2)
    compared(made(kind, fmt), a, b, fp.E5M2)


def test_draws_of_sums_far_along_have_their_numbers() -> None:
    """Counters that reach beyond 32 bits within a tile, as those of the last outputs of a very large result do."""
    a, b = operands((2, 40, 48), 0, fp.FP16)
    for first in ((1 << 32) // 24 - 20, (1 << 62) // 96):
        for kind in (Sequential, Pairwise):
            compared(made(kind, fp.FP16), a, b, first=first)


def test_draws_of_fewer_bits_and_policies_have_the_integer_cores_bits() -> None:
    a, b = operands((2, 40, 48), -20, fp.FP16)
    for words in ({"random_bits": 31}, {"random_bits": 1}, {"subnormals": "flush"}, {"overflow": "saturate"}):
        for kind in (Sequential, Pairwise):
            compared(made(kind, fp.FP16, **words), a, b)


def test_operands_too_small_to_be_scaled_keep_their_bits() -> None:
    """Products of the size of FP16's subnormals, of factors that lie a hundred binades apart."""
    a, b = operands((2, 20, 40), -20, fp.FP32)
    a, b = (codes(np.ldexp(fp.decode(x, fp.FP32), shift), fp.FP32) for x, shift in ((a, -128), (b, 128)))
    for kind in (Sequential, Pairwise):
        compared(made(kind, fp.FP16), a, b, fp.FP32)


@pytest.mark.parametrize("kind", [Sequential, FusedMultiplyAdd])
def test_a_sum_just_below_a_value_is_cut_where_the_draw_is_zero(kind: Any) -> None:
    """1 less 2**-100 is 1 to the nearest float64, which no draw would take below."""
    seed, first, step = 0x5EED, 1575800229, 2  # whose word for this sum is 0
    a, b = np.zeros((2, 4)), np.ones((4, 1))
    a[:, step] = -(2.0**-100)
    problem = SumProblem(codes(a, fp.BF16), codes(b, fp.BF16), codes(np.ones((2, 1)), fp.BF16), (fp.BF16, fp.BF16))
    got = accumulate.accumulated(kind(fp.BF16, rounding="stochastic", seed=seed), problem._replace(first=first))
    assert fp.decode(got, fp.BF16).tolist() == [[1 - 2.0**-8], [1.0]]  # the other output has another word


def compared(accumulator: Accumulator, a: Array, b: Array, fmt: fp.Format = fp.FP16, first: int = 0) -> None:
    """Fail unless the sums are those in integers."""
    problem = SumProblem(a, b, np.zeros((0, 0), accumulator.result_format.storage), (fmt, fmt), first=first)
    got, want = accumulate.accumulated(accumulator, problem), accumulate._generic(accumulator, problem, "core", "core")
    assert_same(got, want, accumulator, f"{a.shape} x {b.shape}")


@cache
def ahead() -> Any:
    """The loop `(a, b, out, fused, f, r, t, words)`: how many terms of the first tile go ahead, from the first on."""

    def run(a: Any, b: Any, out: Any, fused: Any, f: Targets, r: Any, t: Any, words: WordsAhead) -> Any:
        x = Rows(a, b, 0, b)
        largest_of_tiles(b, words.largest)
        tile, chain = SumTile(0, 0, out.shape[1], u64(0)), ChainOrder(a.shape[1], True, fused)
        return blocks_ahead(x, tile, chain, 0, a.shape[1], f, r, t, words)

    return kernel(run)


@pytest.mark.skipif(not has_control(), reason="the rounding of this processor cannot be set")
def test_blocks_go_ahead_where_no_sum_can_overflow() -> None:
    accumulator = made(Sequential, fp.FP16)
    fields = target(options_of(accumulator, fp.FP16), True)
    random = np.zeros((4, TILE_COLUMNS), np.uint32)
    words = WordsAhead(random, random, random, np.zeros((8, TILE_COLUMNS), u64), np.zeros(1, u64))
    for largest, terms, want in ((1.0, 70, BLOCK), (1.0, 7, 4), (1.0, 3, 0), (65504.0, 70, 0), (np.nan, 70, 0)):
        a, b = np.full((1, terms), largest).view(u64), np.ones((terms, 5)).view(u64)
        f = Targets(fields, fields, fields, fields)
        for fused in (False, True):
            t = np.zeros((3, TILE_COLUMNS), u64)
            done = ahead()(a, b, np.zeros((1, 5), u64), fused, f, randomness(accumulator, terms), t, words)
            assert done == (0 if fused and not has_fma() else want)
            assert np.array_equal(t[0, :5].view(np.float64), np.full(5, float(done)))  # sums of ones are exact


@cache
def subtree() -> Any:
    """The loop `(a, b, out, f, r, stack, words)`: whether the first terms of the first tile go ahead, to stack[1]."""

    def run(a: Any, b: Any, out: Any, f: Targets, r: Any, stack: Any, words: PairsAhead) -> Any:
        x, numbers = Rows(a, b, 0, b), np.zeros(8, np.int64)
        number_levels(numbers, a.shape[1])
        largest_of_tiles(b, words.largest)
        return subtree_ahead(x, SumTile(0, 0, out.shape[1], u64(0)), 0, f, r, stack, 1, numbers, words)

    return kernel(run)


@pytest.mark.skipif(not has_control(), reason="the rounding of this processor cannot be set")
def test_subtrees_go_ahead_where_no_sum_can_overflow() -> None:
    accumulator = made(Pairwise, fp.FP16)
    fields = target(options_of(accumulator, fp.FP16), True)
    random = np.zeros((4, TILE_COLUMNS), np.uint32)
    fours, totals = np.zeros((12, TILE_COLUMNS), u64), np.zeros((BLOCK // GROUP, TILE_COLUMNS), u64)
    words = PairsAhead(random, random, fours, totals, np.zeros(1, u64))
    f = Targets(fields, fields, fields, fields)
    cases = ((1.0, 70, True), (1.0, BLOCK, True), (1.0, BLOCK - 1, False), (65504.0, 70, False), (np.nan, 70, False))
    for largest, terms, want in cases:
        a, b = np.full((1, terms), largest).view(u64), np.ones((terms, 5)).view(u64)
        stack = np.zeros((3, TILE_COLUMNS), u64)
        done = subtree()(a, b, np.zeros((1, 5), u64), f, randomness(accumulator, terms), stack, words)
        assert done == want
        assert np.array_equal(stack[1, :5].view(np.float64), np.full(5, BLOCK * done))  # sums of ones are exact
        assert not stack[[0, 2]].any()
