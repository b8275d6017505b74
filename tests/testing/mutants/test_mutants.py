"""Every broken quantizer is caught and named, and mutation_score says what a test of quantizers or kernels misses."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.testing.mutants import KERNELS
from fpsim.testing.mutants.quantizers import QUANTIZERS, right
from tests.kit.sweeps import in_turn

CAUSES = {
    "ties_away": "takes ties away from zero",
    "truncates": "rounds toward zero",
    "ties_up": "takes ties up, toward +Inf",
    "through_fp16": "rounds to FP16 first",
    "through_bf16": "rounds to BF16 first",
    "truncated_to_bf16": "truncates to BF16 first",
    "flushes": "turns subnormal results into zeros",
    "subnormals_halved": "gives subnormals at half their size",
    "subnormals_away": "takes ties away from zero where the result is subnormal",
    "never_zero": "gives the smallest value for values that round to zero",
    "unsigned_zero": "loses the sign of zeros",
    "limited": "overflows as overflow='saturate' does",
    "early_overflow": "takes every value above the largest one as too large, also those that round to it",
    "nan_to_max": "gives the largest value for NaN",
    "bias_off": "multiplies by 2**1: its exponent bias is off by 1",
}
PROPERTIES = {
    "tail": {"batch"},
    "memory_order": {"layout"},
    "writes": {"leaves its input alone"},
    "remembers": {"calls"},
    "draws": {"calls"},
}


@cache
def scored() -> tuple[fp.testing.MutationReport, dict[str, fp.testing.QuantizerReport]]:
    """Return what `check_quantizer` scores as a test, and its report on each mutant."""
    reports: list[fp.testing.QuantizerReport] = []

    def check(fn: Callable[..., Any]) -> None:
        reports.append(fp.testing.check_quantizer(fn, "e4m3", raises=False))
        if not reports[-1].ok:
            raise AssertionError(str(reports[-1]))

    score = fp.testing.mutation_score(check)
    return score, dict(zip(QUANTIZERS, [one for one in reports if not one.ok], strict=True))


def test_there_are_twenty() -> None:
    assert len(QUANTIZERS) == 20
    assert set(CAUSES) | set(PROPERTIES) == set(QUANTIZERS)


@pytest.mark.parametrize("name", CAUSES)
def test_a_mutant_of_values_is_named(name: str) -> None:
    checked = scored()[1][name]
    assert checked.causes == (CAUSES[name],), checked
    assert checked.unexplained == 0


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_mutant_that_depends_on_more_than_the_value_is_caught(name: str) -> None:
    assert {one.property for one in scored()[1][name].broken} >= PROPERTIES[name]


@in_turn(
    "fmt, name",
    [(fmt, name) for fmt in ("e4m3fnuz", "e5m2") for name in QUANTIZERS],
    some=[("e4m3fnuz", name) for name in ("unsigned_zero", "nan_to_max", "early_overflow", "flushes")],
)
def test_mutants_of_other_formats_are_caught(fmt: str, name: str) -> None:
    harmless = (fmt, name) == ("e4m3fnuz", "unsigned_zero")  # a format whose zero has no sign
    assert fp.testing.check_quantizer(QUANTIZERS[name].make(fmt), fmt, raises=False).ok == harmless


def test_the_right_one_is_fpsims() -> None:
    x = fp.testing.points("e4m3")
    np.testing.assert_array_equal(right("e4m3")(x), fp.quantize(x, "e4m3"))


def test_check_quantizer_catches_all() -> None:
    score, _ = scored()
    assert (score.score, score.missed, score.passes_right) == (1.0, (), True)


def test_random_floats_miss_what_points_show() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)

    def usual(fn: Callable[..., Any]) -> None:
        np.testing.assert_array_equal(fn(x.copy()), fp.quantize(x, "e4m3"))

    score = fp.testing.mutation_score(usual)
    assert {"ties_away", "tail", "nan_to_max", "unsigned_zero"} <= set(score.missed)
    assert "missed: ties_away, which takes ties away from zero" in str(score)


def test_a_test_that_fails_the_right_one_scores_nothing() -> None:
    def never(fn: Callable[..., Any]) -> None:
        raise AssertionError("no")

    score = fp.testing.mutation_score(never)
    assert (score.score, score.passes_right, score.complaint) == (0.0, False, "no")
    assert str(score).startswith("The test fails the right function")


def test_other_exceptions_are_no_catch() -> None:
    def broken(fn: Callable[..., Any]) -> None:
        raise KeyError("x")

    score = fp.testing.mutation_score(broken)
    assert score.caught == ()
    assert "error: ties_away, which takes ties away from zero (KeyError: 'x')" in str(score)


def test_a_test_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="test must be a function of a quantizer or kernel"):
        fp.testing.mutation_score(3)  # type: ignore[arg-type]


# ---- kernels

FP8: dict[str, Any] = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "promote": 128}
OF_FP8 = (
    "drops_tail", "not_promoted", "promotes_often", "half_total", "half_accumulator", "backwards", "flushes",
    "reads_again",
)  # fmt: skip


@cache
def expected(promise: tuple[tuple[str, Any], ...]) -> list[tuple[list[Any], Any]]:
    """Return the operands of every input that tells kernels of a promise apart, with what comes of them."""
    words = dict(promise)
    how: dict[str, Any] = {name: words[name] for name in ("accumulate", "promote", "out_fmt") if name in words}
    names = [name for name in ("scale_a", "scale_b", "bias") if words.get(name)]
    found = []
    for x in fp.testing.discriminating_inputs(**words):
        extras: list[Any] = [each for each in (x.scale_a, x.scale_b, x.bias) if each is not None]
        want = fp.matmul(x.a, x.b, **how, **dict(zip(names, extras, strict=True)), strict=False)
        found.append(([x.a, x.b, *extras], want))
    return found


def bits_of(kernel: Callable[..., Any], **promise: Any) -> None:
    """Test as one should: every input that distinguishes kernels, bit for bit."""
    for operands, want in expected(tuple(promise.items())):
        with np.errstate(all="ignore"):
            fp.testing.assert_bits_equal(kernel(*operands), want)


def normals(kernel: Callable[..., Any]) -> None:
    """Test as usual: random normals, to one percent."""
    a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_allclose(kernel(a, b), a.astype(float) @ b.astype(float), rtol=0.01, atol=0.01)


@pytest.mark.filterwarnings("ignore:cuBLAS takes")
def test_a_good_test_of_kernels_sees_every_row_with_its_own_promise() -> None:
    score = fp.testing.mutation_score(bits_of, kernel="each")
    assert (score.score, score.missed, score.passes_right) == (1.0, (), True), str(score)
    assert score.caught == tuple(KERNELS)


def test_a_test_of_one_kernel_meets_the_faults_that_its_promise_can_have() -> None:
    score = fp.testing.mutation_score(lambda kernel: bits_of(kernel, **FP8), kernel=FP8)
    assert (score.caught, score.passes_right) == (OF_FP8, True), str(score)


def test_random_normals_and_a_tolerance_miss_what_discriminating_inputs_show() -> None:
    score = fp.testing.mutation_score(normals, kernel=FP8)
    assert score.passes_right
    assert score.caught == ("flushes",)
    assert "missed: not_promoted, which leaves the promotion of partial sums out" in str(score)


def test_a_fault_that_a_promise_cannot_have_is_not_made() -> None:
    chain = {"a": "bf16", "accumulate": "hopper_bf16_f32"}
    assert not KERNELS["not_promoted"].breaks(chain)
    assert not KERNELS["promotes_often"].breaks({**FP8, "promote": 64})  # which is what it should do
    with pytest.raises(ValueError, match="not_promoted is no fault of a kernel of"):
        KERNELS["not_promoted"].make(chain)


def test_broken_kernels_take_and_return_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    promise = {"a": torch.bfloat16, "accumulate": "hopper_bf16_f32", "out_fmt": "bf16"}
    made = KERNELS["truncates"].make(promise)
    a = torch.full((2, 3), 1.0546875, dtype=torch.bfloat16)
    got = made(a, a.T)
    assert got.dtype == torch.bfloat16
    assert got.tolist() == [[3.328125, 3.328125], [3.328125, 3.328125]]  # 3.337..., cut


@pytest.mark.parametrize(
    ("kernel", "error", "words"),
    [
        ("all", ValueError, "kernel must be one of"),
        (3, TypeError, "a kernel's promise must be a mapping"),
        ({"a": "bf16"}, ValueError, "'accumulate' is missing"),
        ({**FP8, "seed": 3}, ValueError, "got 'seed'"),
        ({"a": "bf16", "accumulate": "hopper_f16_f32"}, ValueError, "hopper_f16_f32 takes f16 as a"),
    ],
)
def test_promises_that_mean_nothing_are_refused(kernel: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        fp.testing.mutation_score(normals, kernel=kernel)


@pytest.mark.parametrize(
    ("fmt", "gone"),
    [("e4m3fnuz", {"unsigned_zero"}), ("bf16", {"through_bf16"}), ("e2m1", {"limited", "early_overflow"})],
)
def test_faults_that_a_format_cannot_have_do_not_count_as_missed(fmt: str, gone: set[str]) -> None:
    def passes(quantizer: Any) -> None: ...

    assert {*QUANTIZERS} - {*fp.testing.mutation_score(passes, fmt).missed} == gone


def test_the_right_kernel_is_tested_even_if_no_mutant_breaks_the_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel: Any) -> None:
        raise AssertionError("always")

    monkeypatch.setattr("fpsim.testing.mutants.score.breaking", lambda promise: [])
    promise = {"a": "bf16", "accumulate": "hopper_bf16_f32"}
    assert not fp.testing.mutation_score(fails, kernel=promise).passes_right
