"""The epilogue of fp.matmul by a schedule: scales, alpha, bias, C and the cast in a library's order; refusals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules import Schedule
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import sweep
from tests.oracles.schedules import Array, Job
from tests.products.checks import results
from tests.schedules.checks import (
    BASIC,
    BLOCK_SCALED,
    BLOCKWISE,
    CUTLASS,
    HOPPER,
    HOPPER_FP8,
    KINDS,
    LANES,
    NVJET,
    ROWWISE,
    TENSOR_CORES,
    XMMA,
    Case,
    block_scales,
    check,
    first,
    job,
    matrix,
    multiplied,
    spread,
)

f32 = np.float32


s = fp.schedules


PLAIN = s.cublas("sm_90")


def cutlass(**fields: Any) -> Schedule:
    """Return the schedule of cuBLAS's CUTLASS kernels."""
    return s.cublas("sm_90", family="cutlass", **fields)


# ---- the composition


def finishes(x: Job, kinds: tuple[str, ...]) -> Iterator[Job]:
    """Jobs with every kind of epilogue: bias and C, and of alpha and scales what `kinds` names."""
    m, n = x.shape
    c, of_a, of_b = matrix(m, n, 3), np.abs(matrix(m, 1, 4)), np.abs(matrix(1, n, 5))
    bias = matrix(1, n, 6)[0]
    words_of_all: list[dict[str, Any]] = [
        {}, {"bias": bias}, {"bias": bias.astype(np.float16)}, {"bias": fp.cast(bias, fp.BF16)},
        {"c": c}, {"c": c, "bias": bias}, {"c": c, "beta": 1.0}, {"c": c, "beta": -0.3, "bias": bias},
    ]  # fmt: skip
    if "alpha" in kinds:
        words_of_all += [{"alpha": 0.7}, {"alpha": -1e-20}, {"alpha": 0.7, "bias": bias}, {"alpha": 0.7, "c": c},
                  {"alpha": 1.3, "beta": 0.1, "c": c, "bias": bias}, {"alpha": 1, "beta": 2, "c": c}]  # fmt: skip
    if "tensor" in kinds:
        one, other = f32(0.37), np.full((1, 1), 1.7, f32)
        words_of_all += [{"scale_a": one}, {"scale_b": one, "bias": bias}, {"scale_a": one, "scale_b": other},
                  {"scale_a": other, "scale_b": one, "c": c, "beta": 0.6}, {"scale_a": one, "scale_b": one, "c": c},
                  {"scale_a": f32(1e-30), "scale_b": f32(3e-9)}, {"scale_a": f32(-2), "alpha": 0.3},
                  {"scale_a": one, "scale_b": other, "alpha": 1.3, "beta": -2.0, "c": c, "bias": bias}]  # fmt: skip
    if "row" in kinds:
        words_of_all += [{"scale_a": of_a, "scale_b": of_b}, {"scale_a": of_a, "bias": bias},
                  {"scale_a": of_a, "scale_b": f32(0.3), "bias": bias, "c": c, "beta": 0.4}]  # fmt: skip
    for words in words_of_all:
        yield replace(x, **words)


FORMATS = (fp.FP32, fp.FP16, fp.BF16, fp.E4M3)


@pytest.mark.parametrize(("case", "unit"), first(TENSOR_CORES))
@sweep("whole", False, True)
def test_an_epilogue_is_its_composition(case: Case, unit: MatrixUnit, whole: bool) -> None:
    every = list(itertools.product(enumerate(FORMATS), ((3, 7), (7, 3))))
    number = [each.schedule for each in TENSOR_CORES].index(
        case.schedule
        # neighbours among the cases have one family; together they see every pair
    )
    for turn, ((i, fmt), (m, n)) in enumerate(every if whole else (every[number % 8], every[(number + 5) % 8])):
        x = job(unit, spread, (m, 200, n), seed=i, out_fmt=fmt)
        of_all = finishes(x, ("alpha", "tensor", "row"))
        for each in of_all if whole else itertools.islice(of_all, (turn + number // 8) % 2, None, 2):
            check(each, case)


@pytest.mark.parametrize(("case", "unit"), first(LANES))
def test_an_epilogue_without_tensor_cores_is_its_composition(case: Case, unit: MatrixUnit) -> None:
    for each in finishes(job(unit, spread, (1, 37, 5), out_fmt=fp.FP16), ("alpha",)):
        check(each, case)


@pytest.mark.parametrize(("case", "unit"), first(ROWWISE))
def test_an_epilogue_of_rowwise_scales_is_its_composition(case: Case, unit: MatrixUnit) -> None:
    for fmt in (fp.FP32, fp.BF16):
        for each in finishes(job(unit, spread, (3, 200, 7), out_fmt=fmt), ("row",)):
            check(each, case)


@pytest.mark.parametrize(("case", "unit"), first([*BLOCKWISE, *BLOCK_SCALED]))
def test_an_epilogue_of_scales_per_block_is_its_composition(case: Case, unit: MatrixUnit) -> None:
    for fmt in (fp.FP32, fp.FP16, fp.BF16):
        for m, n in ((3, 7), (7, 3)):
            x = job(unit, spread, (m, 200, n), out_fmt=fmt)
            for each in finishes(block_scales(x, "1d", "2d"), ("alpha",)):
                check(each, case)


@pytest.mark.parametrize(("case", "unit"), first([BASIC[0], BASIC[1], NVJET[2], CUTLASS[3], CUTLASS[5], XMMA[3]]))
def test_an_epilogue_takes_every_kind_of_number(case: Case, unit: MatrixUnit) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45, -1e-40, 65504], f32)
    c, bias = np.tile(special, (5, 1)), special[::-1].copy()
    for kind in KINDS:
        for fmt in (fp.FP32, fp.FP16, fp.E4M3):
            x = job(unit, kind, (5, 200, 9), out_fmt=fmt)
            for words in ({"c": c}, {"bias": bias}, {"c": c, "beta": -1e-3, "alpha": 1e10, "bias": bias}):
                check(replace(x, **words), case)


# ---- one operation at a time


def ones(unit: str = HOPPER, m: int = 16, k: int = 32, n: int = 16, value: float = 1.0) -> tuple[Array, Array]:
    """(M, K) of a value and (K, N) ones."""
    of_a, of_b = fp.unit(unit).a.fmt, fp.unit(unit).b.fmt
    return fp.cast(np.full((m, k), value, f32), of_a), fp.cast(np.ones((k, n), f32), of_b)


def first_of(unit: str, schedule: Schedule | None, **words: Any) -> float:
    """Element (0, 0) of the product of ones, which is 32 before the epilogue."""
    a, b = ones(unit)
    c = words.pop("c", None)
    c = None if c is None else np.full((16, 16), c, f32)
    bias = words.pop("bias", None)
    bias = None if bias is None else np.full(16, bias, f32)
    return float(fp.matmul(a, b, c, accumulate=unit, schedule=schedule, bias=bias, **words)[0, 0])


def test_cublas_multiplies_its_scales_first() -> None:
    # RN(RN(sa * sb) * 32) and not RN(RN(32 * sa) * sb)
    one, other = f32(1 + 2.0**-23), f32(1.5)
    x = first_of(HOPPER_FP8, PLAIN, scale_a=one, scale_b=other, alpha=1.5)
    assert x == float(f32(f32(f32(one * other) * f32(1.5)) * f32(32)))
    assert x != float(f32(one * f32(other * f32(1.5))) * 32)


def test_nvjet_adds_the_bias_before_c_and_cutlass_after_it() -> None:
    # numbers about 2**30 are multiples of 128
    assert first_of(HOPPER, PLAIN, c=48.0, bias=2.0**30) == 2.0**30  # (32 + 2**30) + 48
    assert first_of(HOPPER, cutlass(), c=48.0, bias=2.0**30) == 2.0**30 + 128  # (32 + 48) + 2**30


def test_cutlass_kernels_round_beta_c_first() -> None:
    beta, c = 1 + 2.0**-12, 1 + 2.0**-12  # beta * c = 1 + 2**-11 + 2**-24
    alpha = -(1 + 2.0**-11) / 32  # cancels all but 2**-24, which RN(beta * c) has lost
    assert first_of(HOPPER, cutlass(), c=c, beta=beta, alpha=alpha) == 0.0
    assert first_of(HOPPER, PLAIN, c=c, beta=beta, alpha=alpha) == 2.0**-24
    assert first_of(HOPPER, s.cutlass_2xacc(), c=c, beta=beta, alpha=alpha) == 2.0**-24


def test_2xacc_fuses_alpha_and_bias() -> None:
    # 48 * (1 + 2**-23) is a tie in float32
    a, b = ones(value=1.5)
    words: dict[str, Any] = {"accumulate": HOPPER, "alpha": 1 + 2.0**-23, "bias": np.full(16, -48, f32)}
    for schedule in (s.cutlass_2xacc(), s.cutlass_blockwise()):
        assert float(fp.matmul(a, b, schedule=schedule, **words)[0, 0]) == 1.5 * 2.0**-18
    for schedule in (PLAIN, s.FLAT):
        assert float(fp.matmul(a, b, schedule=schedule, **words)[0, 0]) == 2.0**-17


def test_block_scaled_sums_are_cast_before_c_joins() -> None:
    a, b = ones(HOPPER_FP8)
    c = np.full((16, 16), 2.0**-6, f32)
    schedule = s.cublas("sm_90", family="block_scaled")
    # 32 + 1/8 is a tie in BF16 and goes to 32; 2**-6 more would have lifted it
    got = fp.matmul(a, b, c, accumulate=HOPPER_FP8, schedule=schedule, bias=np.full(16, 0.125, f32), out_fmt=fp.BF16)
    assert float(got[0, 0]) == 32.0
    nvjet = fp.matmul(a, b, c, accumulate=HOPPER_FP8, schedule=PLAIN, bias=np.full(16, 0.125, f32), out_fmt=fp.BF16)
    assert float(nvjet[0, 0]) == 32.25


def test_fp8_results_saturate_and_others_do_not() -> None:
    assert first_of(HOPPER, PLAIN, alpha=1e30, out_fmt=fp.E4M3) == 448.0
    assert first_of(HOPPER, PLAIN, alpha=-np.inf, out_fmt=fp.E5M2) == -57344.0
    assert first_of(HOPPER, PLAIN, alpha=1e30, out_fmt=fp.FP16) == np.inf
    assert np.isnan(first_of(HOPPER, PLAIN, alpha=np.nan, out_fmt=fp.E4M3))


@pytest.mark.parametrize("schedule", [s.FLAT, s.cutlass_2xacc(), PLAIN, s.cublas("sm_90", split_k=2),
                                      cutlass(split_k=2, merge=0),
                                      cutlass()], ids=str)  # fmt: skip
def test_beta_zero_leaves_c_out(schedule: Schedule) -> None:
    # cuBLAS: "if beta is zero, C does not have to be valid"; CUTLASS: is_source_needed() is beta != 0
    assert first_of(HOPPER, schedule, c=np.nan, beta=0.0, bias=1.0) == 33.0
    assert first_of(HOPPER, schedule, c=np.inf, beta=-0.0) == 32.0


def test_nothing_is_multiplied_without_scales_and_alpha() -> None:
    # -0 of a fused chain of products that underflow
    a, b = fp.cast(np.full((1, 8), -(2.0**-100), f32), fp.BF16), fp.cast(np.full((8, 8), 2.0**-100, f32), fp.BF16)

    def code(**words: Any) -> int:
        accumulate = fp.FusedMultiplyAdd(fp.FP32)
        return int(results(fp.matmul(a, b, accumulate=accumulate, schedule=PLAIN, strict=False, **words))[0, 0])

    zero = np.zeros(8, f32)
    assert code() == code(alpha=1) == 0x80000000
    assert code(alpha=2.0) == code(bias=zero) == 0  # fma(2, -0, +0)
    assert code(bias=-zero) == 0x80000000
    assert code(scale_a=f32(1), scale_b=f32(2)) == 0


def test_scales_have_many_shapes() -> None:
    unit = fp.unit(HOPPER_FP8)
    x = job(unit, spread, (16, 256, 32))
    numbers: list[Any] = [0.37, f32(0.37), np.float64(f32(0.37)), np.array(0.37, f32), np.full((1, 1), 0.37, f32)]
    want = multiplied(replace(x, scale_a=np.full((16, 1), 0.37, f32), scale_b=np.full((1, 32), 2, f32)), PLAIN)
    for number in numbers:
        got = fp.matmul(x.a, x.b, accumulate=unit, schedule=PLAIN, scale_a=number, scale_b=2.0)
        assert_bits_equal(got, want)
    wide: dict[str, Any] = {"scale_a": np.abs(matrix(16, 2)), "scale_b": np.abs(matrix(2, 1, 1))}
    got = fp.matmul(x.a, x.b, accumulate=unit, schedule=s.deepgemm(), **wide)
    same: dict[str, Any] = {"scale_a": wide["scale_a"], "scale_b": np.repeat(wide["scale_b"], 32, axis=1)}
    assert_bits_equal(got, fp.matmul(x.a, x.b, accumulate=unit, schedule=s.deepgemm(), **same))


def test_c_of_an_epilogue_may_be_narrow() -> None:
    x, c = job(fp.unit(HOPPER), spread, (3, 40, 8)), matrix(3, 8)
    for fmt in (fp.FP16, fp.BF16, fp.E4M3):
        narrow = fp.cast(c, fmt)
        got = multiplied(replace(x, c=narrow), PLAIN)
        assert_bits_equal(got, multiplied(replace(x, c=narrow.astype(f32)), PLAIN))


def test_the_dtype_of_a_result_is_that_of_its_format() -> None:
    import ml_dtypes

    a, b = ones()
    for fmt, dtype in ((None, f32), ("fp32", f32), ("float16", np.float16), (fp.BF16, ml_dtypes.bfloat16),
                       (ml_dtypes.bfloat16, ml_dtypes.bfloat16), ("e4m3", ml_dtypes.float8_e4m3fn)):  # fmt: skip
        assert fp.matmul(a, b, accumulate=HOPPER, schedule=PLAIN, out_fmt=fmt).dtype == dtype
    assert fp.matmul(a, b, accumulate="hopper_f16_f16", schedule=s.FLAT).dtype == np.float16
    assert fp.matmul(a, b, accumulate="hopper_f16_f16", schedule=s.cutlass_2xacc()).dtype == f32


@pytest.mark.parametrize("unit", ["hopper_f16_f32", "hopper_f16_f16"])
@pytest.mark.parametrize("words", [{}, {"promote": 16}, {"scale_a": 0.5}, {"alpha": 3.0}], ids=str)
def test_float32_sums_are_converted_to_fp64(unit: str, words: dict[str, Any]) -> None:
    """Results once had float32 bits in the memory of float64 numbers."""
    a = np.array([[np.nan, 1], [np.inf, -np.inf], [1e-7, 6e4], [-0.0, 0]], np.float16)
    b = np.array([[1, 1, 3], [1, -1, 0.1]], np.float16)
    want = fp.matmul(a, b, accumulate=unit, out_fmt="fp32", **words).astype(np.float64)
    for out in (None, np.zeros((8, 6))[::2, ::2], np.zeros((3, 4)).T):
        got = fp.matmul(a, b, accumulate=unit, out_fmt="fp64", out=out, **words)
        assert_bits_equal(got, want)
        assert {int(code) for code in np.ascontiguousarray(got).view(np.uint64)[np.isnan(got)]} == {0x7FFFFFFFFFFFFFFF}
    stack = fp.matmul(np.stack([a, a]), b, accumulate=unit, out_fmt="fp64", **words)
    assert_bits_equal(stack, np.stack([want, want]))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [1e300, -1e39, 1 << 128, 2.0**128 - 2.0**103, np.float64(3.5e38), 10**400])
def test_factors_beyond_float32_are_refused(number: float) -> None:
    one = np.ones((1, 1), np.float16)
    for words in ({"alpha": number}, {"beta": number, "c": np.ones((1, 1), np.float32)}):
        with pytest.raises(ValueError, match=r"(alpha|beta) must be a number that float32 holds, below 2\*\*128; got"):
            fp.matmul(one, one, accumulate="hopper_f16_f32", **words)


@pytest.mark.parametrize("sign", [1, -1])
def test_integer_factors_are_rounded_once(sign: int) -> None:
    one = np.ones((1, 1), np.float16)
    number: Any
    for number, want in (
        (2**60 + 2**36 + 1, 2**60 + 2**37), (2**60 + 2**36, 2**60), (2**100 + 2**76 + 1, 2**100 + 2**77),
        (np.int64(2**62 + 2**38 + 1), 2**62 + 2**39), (2**128 - 2**103 - 1, 2**128 - 2**104),
    ):  # fmt: skip
        got = fp.matmul(one, one, accumulate="hopper_f16_f32", alpha=sign * number)
        assert got.tolist() == [[float(sign * want)]]


def test_factors_up_to_the_largest_float32_are_taken() -> None:
    one = np.ones((1, 1), np.float16)
    number: Any
    for number in (
        2.0**128 - 2.0**103 - 2.0**75,
        np.finfo(np.float32).max,
        np.float16(2),
        np.int8(3),
        -(1 << 127),
        np.inf,
    ):
        got = fp.matmul(one, one, accumulate="hopper_f16_f32", alpha=number)
        assert_bits_equal(got, np.array([[number]], np.float32))


def test_the_first_slice_in_place_starts_at_a_c_that_belongs_to_the_sum() -> None:
    """Its sum was rounded to the output before C was added, as by an epilogue that adds C."""
    a, b = np.zeros((1, 16), np.float16), np.zeros((16, 1), np.float16)
    a[0, 0] = b[0, 0] = 1
    c, alpha = np.array([[-(2.0**-9)]], np.float32), 1 + 2.0**-8 + 2.0**-9  # alpha + c: a tie of BF16, rounds to 1
    for merge in ("in_place", "float32"):
        slicing: Any = fp.schedules.Slicing(2, merge=merge)
        schedule = Schedule("own", slicing=slicing, epilogue=fp.schedules.Epilogue(source="after_cast"))
        product = fp.matmul(a, b, c, accumulate="ampere_f16_f32", schedule=schedule, alpha=alpha, out_fmt="bf16")
        assert float(product[0, 0]) == 1, merge
