"""Checks of kernels: broken ones are named, right ones pass with a certificate, misbehaved ones get one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.probe.draws import DRAW
from fpsim.testing import check_kernel
from fpsim.testing.mutants.kernels import KERNELS
from fpsim.testing.products import search
from fpsim.testing.products.inputs import OWN, SHOWS
from fpsim.testing.products.report import KernelReport
from tests.kit.sweeps import case, sweep
from tests.testing.kernel_cases import NAMED, _broken

FP8: dict[str, Any] = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "promote": 128}


def _fp8(a: Any, b: Any) -> Any:
    return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)


@cache
def _right(name: str) -> KernelReport:
    """Return the check of the right kernel that a mutant was made from, with its certificate."""
    mutant = KERNELS[name]
    return check_kernel(mutant.right(), **mutant.promise)


# A mutant of each right kernel; the first one is certified in other tests too.
FIRST = {repr(mutant.promise): name for name, mutant in reversed(list(KERNELS.items()))}


RIGHT_ONES = sorted(FIRST.values(), key=list(KERNELS).index)


@pytest.mark.parametrize("name", KERNELS)
def test_each_broken_kernel_is_caught_and_named(name: str) -> None:
    report = _broken(name)
    assert not report.ok
    assert len(report.causes) == 1, str(report)
    assert NAMED[name] in report.causes[0], str(report)
    assert report.unexplained == 0


@pytest.mark.parametrize("name", RIGHT_ONES)
def test_the_right_kernel_of_each_broken_one_passes(name: str) -> None:
    mutant = KERNELS[name]
    assert check_kernel(mutant.right(), **mutant.promise, certificate=False).ok


@sweep("names", RIGHT_ONES[:1], RIGHT_ONES)
def test_the_certificates_of_right_kernels_exclude_hundreds(names: list[str]) -> None:
    for name in names:
        with case(name):
            assert _right(name).excluded > 200


def test_every_mutant_has_its_name_here() -> None:
    assert set(NAMED) == set(KERNELS)


def test_every_kind_of_inputs_is_drawn() -> None:
    assert {*OWN, *DRAW} == {*SHOWS}


def test_a_certificate_of_fp8_on_hopper_leaves_no_rival() -> None:
    report = _right("drops_tail")
    assert report.rivals == ()
    assert report.excluded > 900
    assert "Each of " in str(report)
    assert "exchanges neighbouring runs of 1 of K" in report.same  # a step does not see the order of its terms


def test_a_rival_is_told_that_the_shapes_cannot_exclude() -> None:
    report = check_kernel(_fp8, **FP8, shapes=[(8, 8, 64)])  # shorter than the promotion's interval
    assert "drops the terms beyond a multiple of 32" in report.rivals
    assert "drops the terms beyond a multiple of 32" not in _right("drops_tail").rivals


def _stale_scale(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    stale = scale_a.copy()
    stale[:, 1:] = scale_a[:, :-1]
    return fp.matmul(a, b, accumulate="hopper_e4m3_f32", scale_a=stale, scale_b=scale_b)


def test_the_scales_of_the_block_before_are_named() -> None:
    report = check_kernel(
        _stale_scale, a="e4m3", accumulate="hopper_e4m3_f32", scale_a="1x128", scale_b="128x128", raises=False
    )
    assert report.causes == ("takes scale_a of the column before, but at the end its own",)


def _by_scales_of(blocks: Callable[[Any], Any], last: Callable[[int], bool] = lambda k: False) -> Callable[..., Any]:
    """Return a kernel that takes both scales from blocks(indices), and none for the last block where last(K)."""

    def kernel(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        places = blocks(np.arange(scale_a.shape[1]))
        scale_a, scale_b = scale_a[:, places].copy(), scale_b[places].copy()
        if last(a.shape[1]):
            scale_a[:, -1] = scale_b[-1] = 1
        return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128, scale_a=scale_a, scale_b=scale_b)

    return kernel


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (  # cutlass 3615
            _by_scales_of(lambda places: places % -(-places.size // 2)),
            "begins again with scale_a and scale_b of the first block in each of 2 slices of K"),
        (_by_scales_of(lambda places: places // 4 * 4),  # TIRx-kernels 5
         "takes scale_a and scale_b of the first of every 4 blocks of K"),
        (  # FBGEMM 6159
            _by_scales_of(lambda places: places, lambda k: k % 128 == 64),
            "leaves out scale_a and scale_b of the last block of K, where K ends in its middle"),
        (_by_scales_of(lambda places: places[::-1]), "takes scale_a and scale_b of the blocks of K in reverse order"),
    ],
)  # fmt: skip
def test_scales_of_wrong_blocks_of_k_are_named(kernel: Callable[..., Any], words: str) -> None:
    report = check_kernel(
        kernel, a="e4m3", accumulate="hopper_e4m3_f32", promote=128, scale_a="1x128", scale_b="128x128", raises=False
    )
    assert report.causes == (words,)


def test_codes_of_scales_of_wrong_blocks_are_named() -> None:
    def kernel(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        places = np.arange(scale_a.shape[1]) // 4 * 4
        scales = {"scale_a": scale_a[:, places].copy(), "scale_b": scale_b[places].copy()}
        return fp.matmul(a, b, accumulate="blackwell_mxfp8_e4m3_f32", **scales)

    promise = {"a": "e4m3", "accumulate": "blackwell_mxfp8_e4m3_f32", "scale_a": "block", "scale_b": "block"}
    report = check_kernel(kernel, **promise, raises=False)  # type: ignore[arg-type]
    assert report.causes == ("takes scale_a and scale_b of the first of every 4 blocks of K",)


def test_paths_for_multiples_of_64_columns_are_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(a: Any, b: Any) -> Any:
        results = _fp8(a, b)
        if not b.shape[1] % 64 and b.shape[1] > 64:
            results[:, -64:] = 0
        return results

    monkeypatch.setattr(search, "SECONDS", 0.1)  # for an explanation, which takes compiled loops
    report = check_kernel(kernel, **FP8, raises=False)
    assert report.where == "only where M is 192; only in columns from 256 on"


def test_wrong_rows_after_the_last_whole_tile_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(a: Any, b: Any) -> Any:
        results = _fp8(a, b)
        whole = a.shape[0] // 16 * 16
        results[whole:] = results[max(whole - 1, 0)]
        return results

    monkeypatch.setattr(search, "SECONDS", 0.1)  # for an explanation, which there is none
    report = check_kernel(kernel, **FP8, raises=False)
    assert report.where == "only in rows beyond a multiple of 16"


def test_scaled_sums_that_are_rounded_before_they_are_added_are_named() -> None:
    def kernel(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        how = fp.schedules.deepgemm(fused=False)
        return fp.matmul(a, b, accumulate="hopper_e4m3_f32", schedule=how, scale_a=scale_a, scale_b=scale_b)

    report = check_kernel(
        kernel, a="e4m3", accumulate="hopper_e4m3_f32", schedule=fp.schedules.deepgemm(), scale_a="1x128",
        scale_b="128x128", raises=False,
    )  # fmt: skip
    (cause,) = report.causes
    assert cause.endswith("scales joined as product, rounded before they are added, promotion every 128 terms")


def test_lanes_that_add_every_fourth_term_are_named() -> None:
    def lanes(a: Any, b: Any) -> Any:
        sums = [np.zeros((a.shape[0], b.shape[1]), np.float32) for _ in range(4)]
        for k in range(a.shape[1]):
            sums[k % 4] = sums[k % 4] + a[:, k : k + 1] * b[k : k + 1]
        return (sums[0] + sums[1]) + (sums[2] + sums[3])

    report = check_kernel(lanes, a="fp32", accumulate=fp.FusedMultiplyAdd(fp.FP32), raises=False)
    assert report.causes == ("adds as 4 sums over every 4th term by Sequential(FP32), joined in pairs in FP32",)


def test_two_faults_at_once_are_both_named() -> None:
    def twice(a: Any, b: Any) -> Any:
        return fp.cast(fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=256), "bf16", rounding="toward_zero")

    report = check_kernel(twice, **FP8, out_fmt="bf16", raises=False)
    assert report.causes == ("adds as hopper_e4m3_f32 by cutlass_2xacc(256)", "truncates the result")


def test_a_kernel_for_one_row_alone_is_told_with_its_condition() -> None:
    def gemv(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd(fp.FP32)) if a.shape[0] == 1 else _fp8(a, b)

    report = check_kernel(gemv, **FP8, raises=False)
    assert report.unexplained == 0
    assert report.where == "only where M is 1"
    assert "only where M is 1" in report.explanation


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        pytest.param(np.s_[256:257], "only in row 256", marks=pytest.mark.slow),
        (np.s_[:, 256:257], "only in column 256"),
        pytest.param(np.s_[256:], "only in rows from 256 on", marks=pytest.mark.slow),
        pytest.param(np.s_[:, 1024:], "only in columns from 1024 on", marks=pytest.mark.slow),
        (np.s_[256:, 256:], "only in rows from 256 on; only in columns from 256 on"),
    ],
)
def test_rows_and_columns_beyond_256_are_visited(wrong: Any, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernel(a: Any, b: Any) -> Any:
        sums = np.array(fp.matmul(a, b, accumulate="hopper_e4m3_f32"))
        sums[wrong] *= -1
        return sums

    every = fp.testing.discriminating_inputs(a="e4m3", accumulate="hopper_e4m3_f32")
    shapes = list(dict.fromkeys(x.shape for x in every if max(x.shape[:2]) > 256))
    monkeypatch.setattr(search, "SECONDS", 0.1)  # for an explanation, which there is none
    report = fp.testing.check_kernel(kernel, a="e4m3", accumulate="hopper_e4m3_f32", shapes=shapes, raises=False)
    assert not report.ok
    assert where in report.where, report.where


def test_a_pass_says_which_products_it_covers() -> None:
    def kernel(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate="hopper_e4m3_f32")

    report = fp.testing.check_kernel(kernel, a="e4m3", accumulate="hopper_e4m3_f32", certificate=False)
    rows, columns, terms = zip(*report.covered.shapes, strict=True)
    assert (max(rows), max(columns)) == (1030, 1030)
    assert any(min(m, n) > 256 for m, n in zip(rows, columns, strict=True))
    assert (min(terms), max(terms)) == (1, 595)
    assert (report.covered.dtypes, report.covered.largest) == (("float8_e4m3fn",), 448.0)
    assert {"cancelling", "special"} <= set(report.covered.kinds)
    assert "covered: M 1 to 1,030, N 1 to 1,030, K 1 to 595 in 24 shapes" in str(report)


def test_operands_of_another_format_are_named() -> None:
    def reads_e5m2(a: Any, b: Any) -> Any:
        return fp.matmul(a, b.view(np.uint8), accumulate="hopper_e4m3xe5m2_f32", promote=128)

    assert "reading b as E5M2" in check_kernel(reads_e5m2, **FP8, raises=False).causes[0]


def test_a_tail_that_is_filled_with_the_last_term_is_named() -> None:
    def clamped(a: Any, b: Any) -> Any:
        terms = np.minimum(np.arange(-(-a.shape[1] // 16) * 16), a.shape[1] - 1)
        return _fp8(np.ascontiguousarray(a[:, terms]), np.ascontiguousarray(b[terms]))

    report = check_kernel(clamped, **FP8, raises=False)
    assert report.causes == ("repeats the last term up to a multiple of 16",), str(report)


def test_an_accumulator_is_named_before_the_schedules_that_have_its_bits() -> None:
    def kernel(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd(fp.FP32))

    promise: dict[str, Any] = {"a": "fp32", "accumulate": fp.Sequential(fp.FP32), "shapes": [(4, 4, 64)]}
    assert check_kernel(kernel, **promise, raises=False).causes == ("adds as FusedMultiplyAdd(FP32)",)


def test_sums_of_negative_zeros_are_compared() -> None:
    def kernel(a: Any, b: Any) -> Any:
        sums = a[:, :1] * b[:1]  # where +0 is promised
        for k in range(1, a.shape[1]):
            sums = sums + a[:, k : k + 1] * b[k : k + 1]
        return sums

    promise: dict[str, Any] = {"a": "fp32", "accumulate": fp.Sequential(fp.FP32), "shapes": [(4, 4, 8)]}
    report = check_kernel(kernel, **promise, raises=False)
    assert not report.ok
    assert "only with 'zeros' inputs" in report.explanation


BLOCKED = {"a": "e4m3", "accumulate": "blackwell_mxfp8_e4m3_f32", "scale_a": "block", "scale_b": "block"}
LARGEST = np.float32(np.finfo(np.float32).max)
OF_RESULTS: dict[str, Callable[[Any], Any]] = {
    "gives 0 for NaN": lambda x: np.where(np.isnan(x), np.float32(0), x),
    "limits results to finite values": lambda x: np.clip(x, -LARGEST, LARGEST),
    "turns subnormal results into zeros": lambda x: np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x),
}


@pytest.mark.parametrize("fault", OF_RESULTS)
def test_block_scales_that_are_nan_large_or_small_are_checked(fault: str) -> None:
    def kernel(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        result = fp.matmul(a, b, accumulate=BLOCKED["accumulate"], scale_a=scale_a, scale_b=scale_b)
        return OF_RESULTS[fault](result)

    assert fp.testing.check_kernel(kernel, **BLOCKED, raises=False, certificate=False).causes == (fault,)  # type: ignore[arg-type]


def test_terms_beyond_whole_blocks_are_no_rivals_of_block_scaled_kernels() -> None:
    def kernel(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        return fp.matmul(a, b, accumulate=BLOCKED["accumulate"], scale_a=scale_a, scale_b=scale_b)

    assert fp.testing.check_kernel(kernel, **BLOCKED).rivals == ("loses the signs of zeros",)  # type: ignore[arg-type]
