"""Checks of kernels: reports, error bounds, right kernels that pass, other arrays, and bad input."""

from __future__ import annotations

import itertools
import re
import time
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.runtime import clock
from fpsim.testing import check_kernel, discriminating_inputs
from fpsim.testing.mutants.kernels import KERNELS, kernel_of
from fpsim.testing.products import search
from fpsim.testing.products.report import distance
from fpsim.testing.products.variants import Emulator
from tests.kit.chains import chained
from tests.kit.sweeps import sweep
from tests.testing.kernel_cases import NAMED, _broken

FEW_SHAPES = [(8, 8, 435), (1, 33, 64)]  # of which each gets inputs of every kind


SHORT: dict[str, Any] = {"a": "bf16", "accumulate": "hopper_bf16_f32", "shapes": [(5, 7, 40)]}


def _fp8(a: Any, b: Any) -> Any:
    return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)


# ---- what a report shows


def test_two_terms_show_a_missing_promotion_and_both_trees_say_where_they_meet() -> None:
    report = _broken("not_promoted")
    assert len(report.terms) == 2
    promised, explained = report.meet
    assert "joins the total, rounded nearest even to float32" in promised
    assert "cut at 13 fraction bits" in explained
    assert report.smallest is not None
    x = report.smallest
    assert (_fp8(x.a, x.b) != KERNELS["not_promoted"].make()(x.a, x.b)).any()
    tree, other = report.trees
    assert tree is not None
    assert other is not None
    assert tree != other


def test_the_first_mismatch_has_both_patterns_and_their_distance() -> None:
    report = _broken("truncates")
    assert report.max_ulp == 1
    first = report.first
    assert first is not None
    row, column = first.element
    right = KERNELS["truncates"].right()(first.inputs.a, first.inputs.b)[row, column]
    assert right.view(np.uint16) == first.want_code
    assert abs(first.got_code - first.want_code) == first.ulps == 1


def test_distance_counts_values_across_zero() -> None:
    codes = np.array([0x0001, 0x0000, 0x7C00, 0x3C00], np.uint16)
    others = np.array([0x8001, 0x8000, 0x7BFF, 0x3C00], np.uint16)
    assert distance(codes, others, fp.FP16).tolist() == [2.0, 1.0, np.inf, 0.0]


def test_a_kernel_whose_order_is_its_own_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SECONDS", 0.2)  # nothing would explain it in the usual time either
    weights = 1 + np.arange(64) % 3

    def by_weight(a: Any, b: Any) -> Any:
        order = np.argsort(weights[np.arange(a.shape[1]) % 64], kind="stable")
        return chained(a, b, order)

    report = check_kernel(by_weight, a="fp32", accumulate=fp.Pairwise(fp.FP32), shapes=[(6, 6, 64)], raises=False)
    assert not report.ok
    assert report.model is not None
    assert "A probe of 64 terms, 6 x 6, says" in report.explanation


def test_a_search_does_not_count_seconds_of_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose kernels all take a minute to compile."""
    minutes, differing = [0], Emulator.differing

    def compiled(self: Any, *arguments: Any) -> Any:
        with clock.compiling():
            minutes[0] += 1
        return differing(self, *arguments)

    later = SimpleNamespace(
        perf_counter=lambda: time.perf_counter() + 60 * minutes[0],
        thread_time=lambda: time.thread_time() + 60 * minutes[0],
    )
    monkeypatch.setattr(clock, "time", later)
    monkeypatch.setattr(Emulator, "differing", compiled)
    mutant = KERNELS["truncates"]
    report = check_kernel(mutant.make(), **mutant.promise, raises=False)
    assert minutes[0] > 3
    assert not [note for note in report.notes if "stopped" in note]
    assert NAMED["truncates"] in report.causes[0]


# ---- without bits


def test_an_envelope_takes_any_order_and_refuses_a_narrower_sum() -> None:
    report = check_kernel(np.matmul, a="fp32", accumulate=fp.Sequential(fp.FP32), envelope=True, shapes=FEW_SHAPES)
    assert 0 < report.share <= 1
    assert "in whatever order" in report.derivation

    def half(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=fp.Sequential(fp.BF16)).astype(np.float32)

    promise: dict[str, Any] = {"a": "bf16", "accumulate": fp.Sequential(fp.FP32), "shapes": FEW_SHAPES}
    wrong = check_kernel(half, **promise, envelope=True, raises=False)
    assert not wrong.ok
    assert wrong.causes == ("adds as Sequential(BF16)",)


def test_an_envelope_asks_for_no_infinity_where_finite_products_may_become_the_other() -> None:
    def chained(a: Any, b: Any) -> Any:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        with np.errstate(all="ignore"):
            for k in range(a.shape[1]):
                total = total + a[:, k : k + 1] * b[k : k + 1]  # each product rounded, where an fma would not be
        return total

    promise: dict[str, Any] = {"a": "fp32", "accumulate": fp.Sequential(fp.FP32), "shapes": FEW_SHAPES}
    assert check_kernel(chained, **promise, envelope=True).ok


@pytest.mark.parametrize("overflow", ["saturate", "nonfinite"])
def test_an_envelope_takes_either_cast_of_infinite_sums(overflow: str) -> None:
    def kernel(a: Any, b: Any) -> Any:
        return fp.cast(fp.matmul(a, b, accumulate="hopper_bf16_f32"), "e5m2", overflow=overflow)

    promise = {"a": "bf16", "accumulate": "hopper_bf16_f32", "out_fmt": "e5m2", "shapes": [(16, 16, 35)]}
    assert check_kernel(kernel, **promise, envelope=True).ok  # type: ignore[arg-type]
    wrong = check_kernel(lambda a, b: np.where(np.isinf(kernel(a, b)), 0, kernel(a, b)).astype(fp.E5M2.dtype),
                         **promise, envelope=True, raises=False)  # type: ignore[arg-type]  # fmt: skip
    assert wrong.ok == (overflow == "saturate")  # which gives no Inf


def test_an_envelope_without_bounds_says_so() -> None:
    def kernel(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=fp.Sequential(fp.FP16, overflow="saturate"))

    report = check_kernel(
        kernel, a="bf16", accumulate=fp.Sequential(fp.FP16, overflow="saturate"), envelope=True, shapes=[(2, 2, 2000)]
    )
    assert "None of " in str(report)
    assert "elements have no bound" in report.notes[0]


def test_an_envelope_of_a_unit_holds_for_it_and_not_for_a_coarser_one() -> None:
    promise: dict[str, Any] = {
        "a": "e4m3", "accumulate": "hopper_mma_e4m3_f32", "envelope": True, "shapes": [(5, 7, 40), (4, 8, 256)],
    }  # fmt: skip
    assert check_kernel(kernel_of(accumulate="hopper_mma_e4m3_f32"), **promise).ok
    assert not check_kernel(kernel_of(accumulate="hopper_e4m3_f32"), **promise, raises=False).ok


# ---- no false alarm


RIGHT: tuple[dict[str, Any], ...] = (
    {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "promote": 64},
    {"a": "e4m3", "b": "e5m2", "accumulate": "blackwell_e4m3xe5m2_f32", "out_fmt": "fp16"},
    {"a": "bf16", "accumulate": "cdna3_bf16_f32"},
    {"a": "tf32", "accumulate": "ampere_tf32_f32", "out_fmt": "bf16"},
    {"a": "fp16", "accumulate": "hopper_f16_f16"},
    {"a": "fp16", "accumulate": fp.Chunked(fp.FP16, 8, fp.FP32)},
    {"a": "e2m1", "accumulate": "blackwell_nvfp4_f32", "scale_a": "block", "scale_b": "block"},
    {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "scale_a": "row", "scale_b": "row", "bias": True,
     "out_fmt": "bf16"},
    {"a": "float64", "accumulate": fp.FusedMultiplyAdd(fp.FP64)},
    {"a": "fp16", "accumulate": "hopper_f16_f32", "schedule": fp.schedules.cublas("sm_90", split_k=3)},
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:cuBLAS takes")
@sweep("seeds", range(2), range(20))
@pytest.mark.parametrize("place", range(len(RIGHT)))
def test_right_kernels_raise_no_alarm_over_many_seeds(place: int, seeds: range) -> None:
    promise = RIGHT[place]
    kernel = kernel_of(**{"promote": None, **promise})
    shapes = [(3, 4, 96 if "block" in promise.values() else 75), (1, 5, 64)]
    for seed in seeds:
        report = check_kernel(kernel, **promise, shapes=shapes, seed=seed, certificate=False, raises=False)
        assert report.ok, str(report)


# ---- other arrays, and bad input


def test_variants_that_explain_as_much_do_not_count_as_excluded() -> None:
    report = check_kernel(
        lambda a, b: fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd(fp.FP32)), a="e4m3", accumulate="hopper_e4m3_f32",
        shapes=[(8, 8, 8)], raises=False,
    )  # fmt: skip
    assert len(report.others) > 100  # eight terms tell few orders apart
    assert report.excluded < 1000


def test_torch_tensors_are_passed_and_read() -> None:
    torch = pytest.importorskip("torch")

    def kernel(a: Any, b: Any) -> Any:
        assert isinstance(a, torch.Tensor)
        arrays = [x.view(torch.uint16).numpy().view(ml_dtypes.bfloat16) for x in (a, b)]
        got = fp.matmul(*arrays, accumulate="hopper_bf16_f32", out_fmt="bf16")
        return torch.from_numpy(got.view(np.uint16)).view(torch.bfloat16)

    how: dict[str, Any] = {"accumulate": "hopper_bf16_f32", "out_fmt": "bf16", "shapes": [(4, 4, 40)],
                           "certificate": False}  # fmt: skip
    assert check_kernel(kernel, a=torch.bfloat16, **how).ok
    assert check_kernel(kernel, a="bf16", takes="torch", **how).ok


def test_torch_has_the_bits_of_the_model_of_a_probe() -> None:
    torch = pytest.importorskip("torch")
    model = fp.probe.matmul(torch.mm, 24, a=torch.float32)
    assert check_kernel(torch.mm, a=torch.float32, accumulate=model, certificate=False).ok


def test_codes_are_results_too() -> None:
    def kernel(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate="hopper_bf16_f32", out_fmt="bf16").view(np.uint16)

    assert check_kernel(kernel, **SHORT, out_fmt="bf16", certificate=False).ok


def _raises(a: Any, b: Any) -> Any:
    raise RuntimeError("no kernel image")


def _writes(a: Any, b: Any) -> Any:
    a[0, 0] = 1
    return fp.matmul(a, b, accumulate="hopper_bf16_f32")


_DRAWS = itertools.count()


def _draws(a: Any, b: Any) -> Any:
    return fp.matmul(a, b, accumulate="hopper_bf16_f32") + np.float32(next(_DRAWS))


_HELD: dict[tuple[int, ...], Any] = {}


def _returns_again(a: Any, b: Any) -> Any:
    sums = np.asarray(fp.matmul(a, b, accumulate="hopper_bf16_f32"))
    _HELD.setdefault(sums.shape, np.empty_like(sums))[...] = sums
    return _HELD[sums.shape]


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (_returns_again, "fn returns an array whose memory a later call overwrites, first seen for masks 5 x 7 x 40"),
        (_raises, "fn raised RuntimeError('no kernel image') for masks 5 x 7 x 40 (arrays, bfloat16 (5, 40) and"),
        (_writes, "fn writes into a for masks 5 x 7 x 40"),
        (_draws, "fn gives other bits at the second call for masks 5 x 7 x 40"),
        (lambda a, b: fp.matmul(a, b, accumulate="hopper_bf16_f32").T, "fn must return the shape (5, 7); got (7, 5)"),
        (lambda a, b: np.float64(fp.matmul(a, b, accumulate="hopper_bf16_f32")), "must return float32, as FP32 is"),
        (lambda a, b: None, "fn must return an array; got None"),
    ],
)
def test_a_kernel_that_misbehaves_gets_one_sentence_with_the_input(kernel: Any, words: str) -> None:
    report = check_kernel(kernel, **SHORT, raises=False)
    assert not report.ok
    assert len(report.broken) == 1
    assert words in report.broken[0]
    with pytest.raises(AssertionError, match="does not have the bits"):
        check_kernel(kernel, **SHORT)


def test_a_kernel_that_is_far_too_slow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpsim.testing.products.black_box.PATIENCE", 0.0)
    report = check_kernel(kernel_of(accumulate="hopper_bf16_f32"), **SHORT, raises=False)
    assert "pass shapes= that are smaller" in report.broken[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"accumulate": "hoper_bf16_f32"},
            "accumulate must be one of the 240 that fp.units() or `fpsim units` lists, such as hopper_bf16_f32, "
            "hopper_f16_f32, ampere_bf16_f32; got 'hoper_bf16_f32'",
        ),
        ({"accumulate": "hopper_f16_f32"}, "hopper_f16_f32 takes f16 as a; got BF16"),
        ({"shapes": [(0, 1, 1)]}, "shapes must be triples"),
        ({"scale_a": "column"}, "scale_a must be one of"),
        ({"scale_a": "1x128", "promote": 256}, "promote must divide the 128 terms of K that share a scale; got 256"),
        (
            {"scale_a": "1x128", "schedule": fp.schedules.cublas("sm_90")},
            "schedule must apply scales that change along K",
        ),
        ({"promote": 0}, "promote must be an integer >= 1; got 0"),
        ({"accumulate": fp.Exact(fp.FP32), "promote": 32}, "promote is for matrix units"),
        ({"takes": "cupy"}, "takes must be one of"),
        ({"envelope": True, "bias": True}, "envelope=True takes sums without scales and bias"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        check_kernel(_fp8, **{**SHORT, **changes})
    with pytest.raises(TypeError, match=r"accumulate must be a matrix unit, .* or a model of .*; got 3"):
        check_kernel(_fp8, **{**SHORT, "accumulate": 3})
    with pytest.raises(TypeError, match="fn must be a function of two matrices"):
        check_kernel(3, **SHORT)  # type: ignore[arg-type]


def test_inputs_are_functions_of_their_seed() -> None:
    first, again, other = (discriminating_inputs(**SHORT, seed=seed) for seed in (0, 0, 1))
    assert all((x.a.view(np.uint16) == y.a.view(np.uint16)).all() for x, y in zip(first, again, strict=True))
    assert any((x.a.view(np.uint16) != y.a.view(np.uint16)).any() for x, y in zip(first, other, strict=True))


def _in_halves(a: Any, b: Any) -> Any:
    half = a.shape[1] // 2
    parts = [(a[:, :half], b[:half]), (a[:, half:], b[half:])] if half else [(a, b)]
    sums = [kernel_of(accumulate="hopper_bf16_f32")(*map(np.ascontiguousarray, part)) for part in parts]
    with np.errstate(all="ignore"):
        return sums[0] if len(sums) == 1 else np.float32(sums[0]) + np.float32(sums[1])


def _without_last_of_16(a: Any, b: Any) -> Any:
    right = kernel_of(accumulate="hopper_bf16_f32")(a, b)
    return np.where(np.arange(b.shape[1]) % 16 == 15, np.float32(0), right)


@pytest.mark.parametrize(
    ("kernel", "cause"),
    [
        (_in_halves, "adds as 2 slices of K (the last ones longer) by hopper_bf16_f32 in one chain, joined in FP32"),
        (_without_last_of_16, "leaves the last of every 16 columns zero"),
    ],
)
def test_longer_last_slices_and_zero_columns_are_named(kernel: Any, cause: str) -> None:
    report = check_kernel(
        kernel, a="bf16", accumulate="hopper_bf16_f32", shapes=[(8, 33, 301), (4, 16, 64)], certificate=False,
        raises=False,
    )  # fmt: skip
    assert report.causes == (cause,), report
