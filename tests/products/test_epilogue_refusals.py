"""Epilogues: calls that libraries refuse, their results with strict=False, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules import Schedule
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles import cublas
from tests.oracles import schedules as written
from tests.oracles.schedules import Array
from tests.schedules.checks import HOPPER, HOPPER_FP8, MIXED, Case, block_scales, check, job, spread

f32 = np.float32


s = fp.schedules


PLAIN = s.cublas("sm_90")


def cutlass(**fields: Any) -> Schedule:
    """Return the schedule of cuBLAS's CUTLASS kernels."""
    return s.cublas("sm_90", family="cutlass", **fields)


def gemv(**fields: Any) -> Schedule:
    """Return the schedule of cuBLAS's kernels for vectors."""
    return s.cublas("sm_90", family="gemv", **fields)


# ---- one operation at a time


def ones(unit: str = HOPPER, m: int = 16, k: int = 32, n: int = 16, value: float = 1.0) -> tuple[Array, Array]:
    """(M, K) of a value and (K, N) ones."""
    of_a, of_b = fp.unit(unit).a.fmt, fp.unit(unit).b.fmt
    return fp.cast(np.full((m, k), value, f32), of_a), fp.cast(np.ones((k, n), f32), of_b)


# ---- what libraries refuse, and what strict=False makes of it

FP8 = ones(HOPPER_FP8)


BLOCKS = s.cublas("sm_90", family="block_scaled")


GRID = np.full((1, 1), 0.7, f32)


def call(unit: str, a: Array, b: Array, schedule: Schedule, **words: Any) -> Callable[..., Array]:
    """Return a product that takes `strict`."""
    return lambda strict=True: fp.matmul(a, b, accumulate=unit, schedule=schedule, strict=strict, **words)


half, vector = ones(m=2), ones(m=1, n=8449)


REFUSED = {
    "half in tf32": (call(HOPPER, *half, s.cublas(family="cutlass_tf32")), "kernels take TF32; got hopper_f16_f32"),
    "half in fp32": (call(HOPPER, *half, s.cublas(family="cutlass_fp32")), r"Pass accumulate=fp\.FusedMultiply"),
    "xmma m": (call("ada_e4m3_f32", FP8[0][:15], FP8[1], s.cublas("sm_89")), r"M, N and K are .*15 x 16 x 32"),
    "fp8 n": (call(HOPPER_FP8, FP8[0], FP8[1][:, :8], PLAIN), r"multiples of 16 .*16 x 8 x 32\. Pad with zeros"),
    "fp8 k": (call(HOPPER_FP8, FP8[0][:, :17], FP8[1][:17], PLAIN), r"multiples of 16 .*16 x 16 x 17"),
    "xmma k": (call("ada_e4m3_f32", FP8[0][:, :17], FP8[1][:17], s.cublas("sm_89")), r"multiples of 16"),
    "block m": (call(HOPPER_FP8, FP8[0][:6], FP8[1], BLOCKS), r"wants M % 4, N % 8 and K % 16 to be 0 .*6 x 16 x 32"),
    "2d x 2d": (call(HOPPER_FP8, *FP8, BLOCKS, scale_a=GRID, scale_b=GRID), r"no product of 128x128 by 128x128"),
    "fast": (call(HOPPER_FP8, *FP8, s.cublas("sm_90", family="block_scaled", fast_accum=True)),
             r"no fast accumulation with block scaling .*Leave fast_accum out"),
    "fp8 out": (call(HOPPER_FP8, *FP8, BLOCKS, out_fmt=fp.E4M3), r"in FP16, BF16 or FP32 .*got out_fmt E4M3"),
    "e5m2": (call("hopper_e5m2_f32", *ones("hopper_e5m2_f32"), PLAIN), r"does not multiply E5M2 by E5M2"),
    "e5m2 rowwise": (call("hopper_e5m2_f32", *ones("hopper_e5m2_f32"), s.torch_rowwise()), r"E5M2 by E5M2 on CUDA"),
    "rowwise n": (call(HOPPER_FP8, FP8[0], FP8[1][:, :8], s.torch_rowwise()), r"N and K to be multiples of 16"),
    "arch": (call("ampere_f16_f32", *half, PLAIN), r"runs on hopper; got ampere_f16_f32\. Take a unit"),
    "blackwell": (call(HOPPER, *half, s.cublas("sm_100")), r"cublas\('sm_100'\) runs on blackwell; got hopper_f16_f32"),
    "deepgemm arch": (call("ada_e4m3_f32", *FP8, s.deepgemm()), r"runs on hopper; got ada_e4m3_f32"),
    "deepgemm f16": (call(HOPPER, *half, s.deepgemm()), r"takes FP8 .*got hopper_f16_f32"),
    "cutlass fp8": (call(HOPPER_FP8, *FP8, cutlass()), r"cutlass kernels take FP16 or BF16"),
    "magma fp8": (call(HOPPER_FP8, *FP8, s.cublas(family="magma")), r"magma kernels take FP16 or BF16"),
    "xmma f16": (call("ada_f16_f32", *half, s.cublas("sm_89")), r"xmma kernels take FP8 .*got ada_f16_f32"),
    "tf32": (call("hopper_tf32_f32", np.ones((8, 8), f32), np.ones((8, 8), f32), PLAIN), r"take FP16 or BF16 or FP8"),
    "f16 sums": (call("hopper_f16_f16", *half, PLAIN), r"float32 sums alone, CUBLAS_COMPUTE_32F"),
    "f16 scales": (call(HOPPER, *half, PLAIN, scale_a=f32(2)), r"scales for FP8 operands only"),
    "gemv": (call(HOPPER, *half, gemv(option=10)), r"gemv kernels need M = 1 or N = 1 .*got 2 x 16"),
    "dot": (call(HOPPER, *half, s.cublas(family="dot")), r"dot kernels need M = 1 or N = 1"),
    "gemv 10": (call(HOPPER, *vector, gemv(option=10)), r"for up to 8448 outputs.*got 8449"),
}  # fmt: skip


@in_turn("name", REFUSED)
def test_what_a_library_refuses_is_refused_unless_it_is_not_strict(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(ValueError, match=f"{words}.* strict=False computes it all the same"):
        call()
    got = call(strict=False)
    assert np.all(got.astype(f32) == got.astype(f32)[0, 0])


def test_what_is_computed_all_the_same_is_the_composition() -> None:
    fp8, e5m2 = fp.unit(HOPPER_FP8), fp.unit("hopper_e5m2_f32")
    fast = s.cublas("sm_90", family="block_scaled", fast_accum=True)
    check(job(fp8, spread, (15, 333, 17)), Case(PLAIN, cublas.nvjet))
    check(job(e5m2, spread, (16, 333, 16)), Case(PLAIN, cublas.nvjet))
    check(job(e5m2, spread, (16, 333, 16)), Case(s.torch_rowwise(), written.torch_rowwise))
    x = block_scales(job(fp8, spread, (4, 400, 8)), "1d", "2d")
    check(x, Case(fast, partial(written.block_scaled, order="product")))


def test_aligned_operands_are_not_refused() -> None:
    for unit, schedule in ((HOPPER_FP8, PLAIN), (MIXED, PLAIN), (HOPPER_FP8, BLOCKS),
                           ("ada_e4m3_f32", s.cublas("sm_89")),
                           ("blackwell_e4m3_f32", s.cublas("sm_100")), (HOPPER_FP8, s.deepgemm()),
                           (HOPPER_FP8, s.torch_rowwise()), (HOPPER, PLAIN)):  # fmt: skip
        a, b = ones(unit)
        assert float(fp.matmul(a, b, accumulate=unit, schedule=schedule)[0, 0]) == 32.0
    a, b = ones(m=1)
    for family in ("gemv", "dot", "cutlass", "magma", "gemm_sn"):
        schedule = s.cublas(family=family, option=10) if family == "gemv" else s.cublas(family=family)
        assert float(fp.matmul(a, b, accumulate=HOPPER, schedule=schedule)[0, 0]) == 32.0


def test_fp8_on_hopper_takes_any_number_of_rows() -> None:
    """An H200 multiplied one row, for which cuBLASLt names nvjet kernels."""
    got = fp.matmul(FP8[0][:1], FP8[1], accumulate=HOPPER_FP8, schedule=PLAIN)
    assert got.tobytes() == fp.matmul(FP8[0], FP8[1], accumulate=HOPPER_FP8, schedule=PLAIN)[:1].tobytes()


def test_nvjet_without_alignment_is_computed_with_a_warning() -> None:
    a, b = ones(k=9)
    with pytest.warns(UserWarning, match=r"multiples of 8; for K = 9, N = 16 it takes a CUTLASS"):
        got = fp.matmul(a, b, accumulate=HOPPER, schedule=PLAIN)
    assert float(got[0, 0]) == 9.0
    with pytest.warns(UserWarning, match=r"for K = 32, N = 15 .* These are the bits of cublas\('sm_90'\)"):
        fp.matmul(ones()[0], ones()[1][:, :15], accumulate=HOPPER, schedule=PLAIN)
    named = s.cublas("sm_90", family="nvjet")  # which cuBLAS takes for other layouts
    assert float(fp.matmul(a, b, accumulate=HOPPER, schedule=named)[0, 0]) == 9.0


# ---- bad input

A, B = ones()


C, BIAS = np.ones((16, 16), f32), np.ones(16, f32)


def product(**words: Any) -> Array:
    """Return the product of ones by nvjet, or by other arguments."""
    return fp.matmul(A, B, **{"accumulate": HOPPER, "schedule": PLAIN, **words})


BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "list": (lambda: product(accumulate=None, schedule=[0, 1]), TypeError, r"one of fp\.schedules, .*got \[0, 1\]"),
    "word": (lambda: product(schedule="cublas"), TypeError, r"schedule must be one of fp\.schedules, .*got 'cublas'"),
    "promote": (lambda: product(promote=128), ValueError, r"promote is part of the schedule, cublas.*got both"),
    "order": (lambda: product(scale_order="product"), ValueError, r"scale_order is part of the schedule"),
    "beta": (lambda: product(beta=1.0), ValueError, r"beta multiplies c; got no c\. Pass c, or leave beta out"),
    "plain beta": (lambda: product(schedule=None, beta=1.0), ValueError, r"beta multiplies c; got no c"),
    "alpha": (lambda: product(alpha="1"), TypeError, r"alpha must be a number, .*got '1'"),
    "true": (lambda: product(c=C, beta=True), TypeError, r"beta must be a number, .*got True"),
    "bias": (lambda: product(bias=BIAS[:3]), ValueError, r"one number per column, shape \(16,\); got \(3,\)"),
    "bias f64": (lambda: product(bias=np.ones(16)), TypeError, r"float32, float16 or bfloat16; got float64"),
    "c": (lambda: product(c=C[:3]), ValueError, r"c must have the result's shape \(16, 16\); got \(3, 16\)"),
    "c f16": (lambda: product(c=C[:3].astype(np.float16)), ValueError, r"c must have the result's shape \(16, 16\)"),
    "out_fmt": (lambda: product(out_fmt="fp17"), ValueError, r"out_fmt must be one of .*got 'fp17'"),
    "scales": (lambda: fp.matmul(*FP8, accumulate=HOPPER_FP8, schedule=PLAIN, scale_a=np.ones((16, 3), f32)),
               ValueError, r"scale_a must be one number, or have one of the shapes \(1, 1\), \(16, 1\).*got \(16, 3\)"),
    "double scales": (lambda: fp.matmul(*FP8, accumulate=HOPPER_FP8, schedule=PLAIN, scale_b=np.full((1, 16), 0.1)),
                      ValueError, r"scale_b must hold float32 numbers; got float64"),
    "scales along k": (lambda: fp.matmul(*ones(HOPPER_FP8, k=256), accumulate=HOPPER_FP8, schedule=PLAIN,
                                         scale_a=np.ones((16, 2), f32)),
                       ValueError, r"no place for scales that change along K; got scales of a per 128 terms"),
    "interval": (lambda: product(schedule=s.cutlass_2xacc(100)), ValueError,
                 r"promotes every 100 terms, which must be a multiple of the 16 terms"),
    "f64": (lambda: fp.matmul(np.eye(8), np.eye(8), accumulate="ampere_f64_f64", schedule=s.cutlass_2xacc()),
            ValueError, r"adds in float32; ampere_f64_f64 has float64 sums\. Take FLAT"),
    "f64 alpha": (lambda: fp.matmul(np.ones((2, 8)), np.ones((8, 2)), accumulate="ampere_f64_f64", alpha=2.0),
                  ValueError, r"work on float32 sums; ampere_f64_f64 has float64 sums"),
    "accumulator": (lambda: product(accumulate=fp.Sequential(fp.FP32), schedule=None, alpha=2.0), ValueError,
                    r"alpha is for matrix units"),
    "arch": (lambda: s.cublas("sm_80"), ValueError, r"chip must be one of sm_89, .*got 'sm_80'"),
    "arch number": (lambda: s.cublas(90), TypeError, r"chip must be the name of a chip, .*got 90"),  # type: ignore[arg-type]
    "family": (lambda: s.cublas(family="nvjets"), ValueError, r"family must be one of .*Did you mean 'nvjet'"),
    "family number": (lambda: s.cublas(family=41), ValueError, r"family must be one of .*got 41"),
    "family of a chip": (lambda: s.cublas("sm_90", family="xmma"), ValueError, r"known on hopper, .*got 'xmma'"),
    "field": (lambda: s.cublas(merge=2), ValueError, r"merge is no field of cuBLAS's nvjet kernels; got 2\. They have"),
    "no fields": (lambda: s.cublas(family="magma", split_k=2), ValueError, r"split_k is no field of cuBLAS's magma"),
    "split_k": (lambda: s.cublas(split_k=0), ValueError, r"split_k must be a positive integer; got 0"),
    "split_k true": (lambda: s.cublas(split_k=True), ValueError, r"split_k must be a positive integer; got True"),
    "merge": (lambda: cutlass(merge=3), ValueError, r"merge must be one of 0, 1, 2, 4, .*got 3"),
    "xmma merge": (lambda: s.cublas("sm_89", merge="compute_type"), ValueError, r"one of serial, pairwise"),
    "stages": (lambda: cutlass(stages=26), ValueError, r"stages must be a STAGES_ID .*got 26"),
    "low stages": (lambda: cutlass(stages=3), ValueError, r"stages must be a STAGES_ID .*got 3"),
    "both": (lambda: cutlass(stages=0, step=8), ValueError, r"stages fixes block_k and step; got both"),
    "block_k": (lambda: cutlass(block_k=48), ValueError, r"block_k must be one of 32, 64, 128.*got 48"),
    "step": (lambda: cutlass(step=32), ValueError, r"step must be 8 .* or 16 terms; got 32"),
    "option": (lambda: gemv(option=1), ValueError, r"option of gemv must be one of the 64 that fp.schedules.*got 1\."),
    "no option": (lambda: gemv(), ValueError, r"option of gemv must be one of the .*got None"),
    "split option": (lambda: gemv(option=5, split_k=2), ValueError, r"without split-K only; .*split_k=2"),
    "gemm_sn": (lambda: s.cublas(family="gemm_sn", option=2), ValueError, r"CUSTOM_OPTION of gemmSN, 0 or 1; got 2"),
    "scale_order": (lambda: s.cublas(family="block_scaled", scale_order="c_first"),  # type: ignore[arg-type]
                    ValueError, r"scale_order must be one of product, a_first, b_first; got 'c_first'"),
    "2xacc": (lambda: s.cutlass_2xacc(0), ValueError, r"interval must be a positive integer; got 0"),
    "tile": (lambda: s.cutlass_2xacc(128, tile=256), ValueError, r"tile must divide the interval.*got a tile of 256"),
    "triton": (lambda: s.triton(64, 65), ValueError, r"must be between 32 and block_k, 64 .*got 65"),
    "least": (lambda: s.triton(64, 16), ValueError, r"must be between 32 and block_k, 64 .*got 16"),
    "kernel": (lambda: s.deepgemm("2d"), ValueError, r"kernel must be one of 1d2d, 1d1d; got '2d'"),
    "deepgemm arch": (lambda: s.deepgemm("1d1d", "sm_89"), ValueError, r"chip must be one of sm_90, .*got 'sm_89'"),
}  # fmt: skip


@in_turn("name", BAD)
def test_bad_input_says_what_was_wanted(name: str) -> None:
    refused, error, words = BAD[name]
    with pytest.raises(error, match=f"(?s){words}"):
        refused()


# ---- found by trying to break it


@pytest.mark.parametrize("schedule", [None, s.FLAT, s.cutlass_2xacc(), s.cublas(), s.deepgemm()], ids=str)
def test_the_result_may_take_the_place_of_c(schedule: fp.schedules.Schedule | None) -> None:
    rng = np.random.default_rng(0)
    a = fp.encode(rng.standard_normal((16, 64)), "e4m3")
    b = fp.encode(rng.standard_normal((64, 32)), "e4m3")
    for options in ({}, {"beta": 2.0}, {"alpha": 3.0}):
        c = rng.standard_normal((16, 32)).astype(np.float32)
        words: dict[str, Any] = {"accumulate": "hopper_e4m3_f32", "schedule": schedule, **options}
        want = fp.matmul(a, b, c.copy(), **words)
        assert fp.matmul(a, b, c, out=c, **words) is c
        assert_bits_equal(c, want)


@pytest.mark.parametrize(
    ("schedule", "unit", "shape", "words"),
    [
        (s.cublas(family="gemv", option=5), "hopper_f16_f32", (8, 32, 1), r"option 5 of gemv was seen with M = 1 only"),
        (s.cublas(family="gemv", option=10), "hopper_f16_f32", (8449, 8, 1), r"up to 8448 outputs.*got 8449"),
        (s.cublas("sm_100", family="gemv", option=10), "blackwell_f16_f32", (9729, 8, 1), r"up to 9728 outputs"),
        (s.cublas(), "hopper_mma_e4m3_f32", (16, 64, 16), r"run on wgmma.*got hopper_mma_e4m3_f32"),
        (s.triton(96), "hopper_e4m3_f32", (16, 96, 16), r"a power of two, 16 or more.*got 96"),
    ],
    ids=str,
)
def test_what_was_never_met_is_refused(
    schedule: fp.schedules.Schedule, unit: str, shape: tuple[int, int, int], words: str
) -> None:
    m, k, n = shape
    instruction = fp.unit(unit)
    a, b = np.zeros((m, k), instruction.a.dtype), np.zeros((k, n), instruction.b.dtype)
    with pytest.raises(ValueError, match=words):
        fp.matmul(a, b, accumulate=unit, schedule=schedule)
    assert not fp.matmul(a, b, accumulate=unit, schedule=schedule, strict=False).any()


def test_a_scale_may_be_an_array_of_one() -> None:
    a, b = np.full((16, 32), 0x38, np.uint8), np.full((32, 16), 0x38, np.uint8)
    half = np.full(1, 0.5, np.float32)
    got = fp.matmul(a, b, accumulate="hopper_e4m3_f32", schedule=s.cublas(), scale_a=half, scale_b=2.0)
    assert np.all(got == 32)
