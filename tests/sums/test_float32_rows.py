"""Sums of accumulators by loops in float32: the bits of those in 64-bit words, which take each operation by itself."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.runtime.vectors import has_avx2, has_avx512
from fpsim.sums import accumulate, float32_plan
from fpsim.sums.accumulate import SumProblem
from fpsim.sums.accumulators import Accumulator, Chunked, FusedMultiplyAdd, Pairwise, Sequential
from fpsim.sums.float32_plan import StripWay, float32_sums
from fpsim.sums.kernels.float32_rows import ROUNDED, STRIP, rows_kernel
from fpsim.sums.plan import seedless
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.sums.checks import assert_same, ranges

Array = npt.NDArray[Any]


def way_of(accumulator: Accumulator, formats: tuple[fp.Format, fp.Format]) -> StripWay | None:
    plan = float32_sums(seedless(accumulator), formats)
    return None if plan is None else plan.way


FAST = [
    Sequential("fp32"), FusedMultiplyAdd("fp32"), Sequential("bf16"), Sequential("fp16"), FusedMultiplyAdd("bf16"),
    FusedMultiplyAdd("fp16"), Sequential(fp.Format("eleven_bits", 5, 9)), Sequential("tf32"),
    Chunked("bf16", chunk=64, outer="fp32"), Chunked("fp16", chunk=8, outer="tf32"), Chunked("fp32", chunk=12),
    Sequential("bf16", rounding="up"), Sequential("bf16", rounding="down"), Sequential("fp16", rounding="toward_zero"),
    Sequential("fp16", rounding="down"), Sequential("fp32", rounding="down"), Sequential("tf32", rounding="up"),
    FusedMultiplyAdd("fp32", rounding="toward_zero"), FusedMultiplyAdd("fp32", rounding="up"),
    Chunked("bf16", chunk=8, outer="fp32", rounding="down"), Chunked("fp32", chunk=12, rounding="toward_zero"),
    Pairwise("fp32"), Pairwise("bf16"), Pairwise("fp16"), Pairwise(fp.Format("eleven_bits", 5, 9)),
    Pairwise("bf16", rounding="toward_zero"), Pairwise("fp16", rounding="down"), Pairwise("fp32", rounding="down"),
]  # fmt: skip


@pytest.mark.parametrize("accumulator", FAST, ids=repr)
@sweep("whole", False, True)
def test_sums_in_float32_are_those_in_words(accumulator: Accumulator, whole: bool) -> None:
    generator = np.random.default_rng(10)
    largest = accumulator.result_format.max
    left, right, start = (ranges(generator, shape, largest) for shape in ((19, 150), (150, 150), (19, 150)))
    for i, (name, x) in enumerate(left.items()):
        for j, formats in enumerate(((fp.BF16, fp.BF16), (fp.FP32, fp.FP16), (fp.FP16, fp.E5M2))):
            if way_of(accumulator, formats) is None:
                continue
            a, b = fp.encode(x, formats[0]), fp.encode(right[name], formats[1])
            some = fp.encode(start[name], accumulator.result_format)
            some[0, :3] = accumulator.result_format.sign_bit  # -0
            starts = np.zeros((0, 0), some.dtype), some
            for c in starts if whole else (starts[(i + j) % 2],):
                problem = SumProblem(a, b, c, formats)
                got = accumulate.accumulated(accumulator, problem)
                assert_same(got, accumulate._in_words(accumulator, problem), accumulator, f"{name}, {formats}")


@pytest.mark.parametrize("fmt", [fp.BF16, fp.FP16, fp.TF32], ids=str)
def test_products_of_all_significands_are_rounded_once(fmt: fp.Format) -> None:
    for other in (fp.BF16, fp.FP16):
        # of two binades, so that products just above and below a power of two are among them
        a, b = (fp.encode(np.arange(1, 4, 2.0**-x.mantissa_bits), x) for x in (fp.BF16, other))
        got = fp.matmul(a[:, None], b[None, :], accumulate=Sequential(fmt), fmt=(fp.BF16, other))
        want = fp.multiply(a[:, None], b[None, :], fmt=(fp.BF16, other), out_fmt=fmt)
        assert_bits_equal(fp.encode(fp.decode(got, fmt), fmt), want)


@pytest.mark.parametrize("accumulator", [Sequential("fp16"), Chunked("fp16", chunk=36, outer="fp32")], ids=str)
@pytest.mark.parametrize("vectors", ["avx512", "avx2"])
def test_rows_in_vectors_have_the_bits_of_the_loops(
    accumulator: Accumulator, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not {"avx512": has_avx512, "avx2": has_avx2}[vectors]():
        pytest.skip(f"this processor, or numba's target, has no {vectors}")
    generator, way = np.random.default_rng(12), way_of(accumulator, (fp.FP16, fp.FP16))
    assert way is not None
    assert way.how == ROUNDED
    for width in (1, 16, 33, 64, 80, 128, 150):
        for terms in (1, 2, 33, 100):
            # some products are subnormal in FP16, and some zeros of either sign
            values = (
                np.exp2(generator.integers(-9, 3, s)) * generator.normal(size=s) for s in ((7, terms), (terms, width))
            )
            a, b = (fp.encode(np.where(generator.random(x.shape) < 0.1, 0 * x, x), fp.FP16) for x in values)
            c = fp.encode(generator.normal(size=(7, width)), accumulator.result_format)
            problem = SumProblem(a, b, c, (fp.FP16, fp.FP16))
            got = []
            for kernel in (rows_kernel(ROUNDED, vectors), rows_kernel(ROUNDED)):
                taken = Mock(return_value=kernel)
                with monkeypatch.context() as patch:
                    patch.setattr(float32_plan, "strips_kernel", taken)
                    got.append(accumulate.accumulated(accumulator, problem))
                taken.assert_called_with(ROUNDED)
            assert_same(got[0], got[1], accumulator, f"{terms} x {width}")


@pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)
def test_sums_about_powers_of_two_and_ties_are_rounded_once(fmt: fp.Format) -> None:
    b = np.arange(int(fp.encode(2.0**-40, fmt)), int(fp.encode(2.0, fmt)), dtype=fmt.storage)  # from 0 on in FP16
    b = np.concatenate([b, b | fmt.storage.type(fmt.sign_bit)])[None, :]
    one = int(fp.encode(1.0, fmt))
    starts = np.array([[one - 2], [one - 1], [one], [one + 1], [one + 2], [one + 77], [int(fp.encode(64.0, fmt))]])
    ones = np.full((len(starts), 1), one, fmt.storage)
    c = np.repeat(starts.astype(fmt.storage), b.shape[1], axis=1)
    got = fp.matmul(ones, b, c, accumulate=Sequential(fmt), fmt=fmt)
    assert_bits_equal(fp.encode(fp.decode(got, fmt), fmt), fp.add(c, b, fmt=fmt))


@pytest.mark.parametrize("rounding", ["nearest_even", "down", "up"])
def test_trees_of_any_length_in_float32_are_those_in_words(rounding: str) -> None:
    generator = np.random.default_rng(16)
    for terms in (1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 77):
        # powers of two and zeros of both signs, so that zeros and ties are frequent
        a, b = (
            fp.encode(np.exp2(generator.integers(-9, 3, shape)) * generator.choice([-1, -0.0, 1], shape), fp.FP16)
            for shape in ((5, terms), (terms, 33))
        )
        a[0], a[1], b[:, 0] = 0, 0x8000, 0x8000
        for fmt in (fp.FP16, fp.BF16, fp.FP32):
            accumulator = Pairwise(fmt, rounding=rounding)
            assert way_of(accumulator, (fp.FP16, fp.FP16)) is not None
            problem = SumProblem(a, b, np.zeros((0, 0), fmt.storage), (fp.FP16, fp.FP16))
            got = accumulate.accumulated(accumulator, problem)
            assert_same(got, accumulate._in_words(accumulator, problem), accumulator, f"{terms} terms")


@pytest.mark.parametrize("rounding", ["nearest_even", "up"])
def test_pairs_whose_products_round_up_to_subnormals_overflow_as_in_words(rounding: str) -> None:
    # a thousand products of just over half a place, or of a hundredth of one, round to more than the largest value
    fmt = fp.format("p3109_k10p8se")
    tiny = (0.51 if rounding == "nearest_even" else 0.01) * fmt.smallest_subnormal
    terms = np.repeat([tiny, 0.0, -0.3 * fmt.max], [1100, 948, 1])
    a = fp.encode(np.tile(terms, (2, 1)), fp.BF16)
    b = np.full((terms.size, 3), fp.encode(1.0, fp.BF16))
    accumulator = Pairwise(fmt, rounding=rounding)
    assert way_of(accumulator, (fp.BF16, fp.BF16)) is not None
    got = accumulate.accumulated(accumulator, SumProblem(a, b, np.zeros((0, 0), np.uint16), (fp.BF16, fp.BF16)))
    assert_bits_equal(got, np.full((2, 3), fmt.infinity_code, np.uint16))


def test_the_loops_in_float32_are_taken_and_mostly_kept() -> None:
    generator = np.random.default_rng(11)
    a, b = (fp.encode(generator.normal(size=shape), fp.BF16) for shape in ((64, 256), (256, 256)))
    for accumulator in FAST:
        way = way_of(accumulator, (fp.BF16, fp.BF16))
        assert way is not None
        (left, of_a), (right, of_b) = (float32_plan.codes_of(codes, fp.BF16) for codes in (a, b))
        operands = float32_plan.panels_of(left, right, (of_a, of_b), way.padding)
        given_up = np.zeros(-(-len(operands.a) // STRIP) * len(operands.panels), np.uint8)
        nothing, out = np.zeros((0, 0), np.uint32), np.empty((64, 256), np.uint32)
        float32_plan.run_strips(way, operands, nothing, out, given_up, 0, given_up.size)
        assert not given_up.any(), f"{accumulator!r} gave up {given_up.sum()} of {given_up.size} strips"


@in_turn("fmt", [fp.BF16, fp.FP16, fp.Format("eleven_bits", 5, 9), fp.Format("nine_bits", 6, 8)])
@in_turn("formats", [(fp.BF16, fp.BF16), (fp.FP16, fp.BF16), (fp.FP16, fp.FP16), (fp.E5M2, fp.FP16)])
def test_every_significand_and_tie_is_rounded_in_float32_as_in_words(
    fmt: fp.Format, formats: tuple[fp.Format, fp.Format]
) -> None:
    """Products of all significands of both sides, around and below the smallest normal value and near 1."""
    left, right = (np.arange(2**found.mantissa_bits, 2**found.precision) for found in formats)
    for scale in (0, fmt.min_exponent - 2 if fmt.min_exponent > -100 else -20):
        rows = left[:: max(len(left) // 128, 1), None] * 2.0 ** -formats[0].mantissa_bits
        columns = right[None] * 2.0 ** (scale - formats[1].mantissa_bits)
        a = fp.encode(np.concatenate([rows, -rows / 2], axis=1), formats[0])
        b = fp.encode(np.concatenate([columns, columns[:, ::-1]]), formats[1])
        for terms in (1, 2):
            problem = SumProblem(a[:, :terms], b[:terms], np.zeros((0, 0), fmt.storage), formats)
            assert way_of(Sequential(fmt), formats) is not None
            got = accumulate.accumulated(Sequential(fmt), problem)
            assert_same(got, accumulate._in_words(Sequential(fmt), problem), Sequential(fmt), f"{scale}, {terms} terms")


@pytest.mark.parametrize("fmt", [fp.BF16, fp.FP16], ids=str)
def test_rows_far_above_float32s_square_root_may_meet_columns_far_below(fmt: fp.Format) -> None:
    far = np.exp2([[127.0, 112, 111, 110, 109]])
    a, b = fp.encode(np.repeat(far, 5, axis=0), fp.BF16), fp.encode(np.repeat(1 / far.T, 16, axis=1), fp.BF16)
    problem = SumProblem(a, b, np.zeros((0, 0), fmt.storage), (fp.BF16, fp.BF16))
    assert_bits_equal(accumulate.accumulated(Sequential(fmt), problem), fp.encode(np.full((5, 16), 5.0), fmt))
