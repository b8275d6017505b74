"""check_stochastic: right ones pass, biased and dependent ones do not."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import each_once, in_turn, sweep

Array = Any


def check(fn: Any, fmt: str = "e4m3", **keywords: Any) -> fp.testing.StochasticReport:
    return fp.testing.check_stochastic(fn, fmt, raises=False, **keywords)


def seeded(x: Array, seed: int) -> Array:
    return fp.quantize(x, "e4m3", rounding="stochastic", seed=seed)


def by_bits(x: Array, words: Array) -> Array:
    """Away from zero where the random word and the dropped share carry."""
    low = fp.quantize(x, "e4m3", rounding="toward_zero")
    up, down = (fp.quantize(x, "e4m3", rounding=mode) for mode in ("up", "down"))
    high = np.where(np.signbit(x), down, up)
    with np.errstate(all="ignore"):
        share = np.where(high != low, (x.astype(np.float64) - low) / (high.astype(np.float64) - low), 0)
    return np.where(words.astype(np.float64) + np.floor(share * 2**32) >= 2**32, high, low).astype(np.float32)


def broken(found: fp.testing.StochasticReport) -> set[str]:
    return {one.property for one in found.broken}


def test_a_seeded_cast_passes_with_its_power_stated() -> None:
    report = check(seeded)
    assert report.ok, report
    assert (report.driven, report.held) == (
        "seed", ("exact values", "neighbours", "mean", "elements", "calls", "seeds", "repeats", "averaging"),
    )  # fmt: skip
    assert 0 < report.detects < 0.03
    assert report.detects < report.detects_in_binades < 0.1
    assert {len(shape) for shape in report.covered.shapes} == {1, 2, 3}
    assert (report.covered.largest, report.covered.specials) == (448.0, ("zeros",))
    assert f"covered: {report.covered}" in str(report)
    assert report.false_alarm <= 1e-6


def test_a_cast_that_draws_for_itself_passes() -> None:
    rng = np.random.default_rng(0)
    assert check(lambda x: seeded(x, int(rng.integers(1 << 60)))).ok


@pytest.mark.parametrize("fmt", ["e5m2", "e2m1", "bf16", "fp16", "p3109_k8p3se"])
def test_other_formats_pass(fmt: str) -> None:
    assert check(lambda x, seed: fp.quantize(x, fmt, rounding="stochastic", seed=seed), fmt).ok


@sweep("starts", range(6), range(40))
def test_no_false_alarm_in_many_seeded_runs(starts: range) -> None:
    for start in starts:
        report = check(lambda x, seed, start=start: seeded(x, 1_000_003 * start + seed))
        assert report.ok, (start, str(report))


def test_random_bits_give_exact_means() -> None:
    report = check(by_bits)
    assert report.ok, report
    assert report.detects == 0
    assert report.means[5 / 16] == 5 / 16


def test_too_few_random_bits_are_counted() -> None:
    report = check(lambda x, words: by_bits(x, words & np.uint32(0xE0000000)))
    assert "mean" in broken(report)
    assert report.causes == ("compares 3 random bits: it cuts the fraction to them",)
    assert (report.random_bits, report.more_bits) == (3, False)
    assert "It compares 3 random bits" in str(report)


@pytest.mark.parametrize("bits", [1, 3, 8, 10, 12])
def test_random_bits_are_counted_from_seeds_too(bits: int) -> None:
    report = check(lambda x, seed: fp.quantize(x, "e4m3", rounding="stochastic", seed=seed, random_bits=bits))
    assert (report.random_bits, report.more_bits) == (bits, False)
    assert f"random bits that decide results: {bits}" in str(report)


def test_bits_that_seeds_cannot_tell_are_not_claimed() -> None:
    report = check(seeded)
    assert (report.random_bits, report.more_bits) == (13, True)
    assert "random bits that decide results: at least 13" in str(report)
    exact = check(by_bits)
    assert (exact.random_bits, exact.more_bits) == (32, False)


def chosen(goes: Any, fmt: str = "e4m3") -> Any:
    """Return a quantizer that goes away from zero where goes(dropped share, uniform number, input) says."""

    def quantizer(x: Array, seed: int) -> Array:
        low = fp.quantize(x, fmt, rounding="toward_zero").astype(np.float64)
        up, down = (fp.quantize(x, fmt, rounding=mode).astype(np.float64) for mode in ("up", "down"))
        high = np.where(np.signbit(x), down, up)
        with np.errstate(all="ignore"):
            share = np.where(high != low, (x - low) / (high - low), 0)
        u = np.random.default_rng(seed).random(x.shape)
        return np.where(goes(share, u, x) & (share > 0), high, low).astype(np.float32)

    return quantizer


def of_words(goes: Any) -> Any:
    return lambda x, words: chosen(lambda share, _, x: goes(share, words.astype(np.float64)))(x, 0)


def shared_by(group: int) -> Any:
    def goes(share: Array, u: Array, x: Array) -> Array:
        return u.ravel()[: -(-u.size // group)].repeat(group)[: u.size].reshape(u.shape) < share

    return chosen(goes)


CAUSES: dict[str, tuple[Any, str, str]] = {
    "oneDNN 2903": (
        chosen(lambda share, u, _: share + u / 2 >= 1, "e5m2"), "e5m2",
        "adds its random bits 1 place too low: fractions up to 0.5 never go away from zero"),
    "3 places, by words": (
        of_words(lambda share, words: share + words * 2.0**-35 >= 1), "e4m3",
        "adds its random bits 3 places too low: fractions up to 0.875 never go away from zero"),
    "no randomness": (
        lambda x, seed: fp.quantize(x, "e4m3"), "e4m3", "is not random: it rounds to nearest, ties to the even code"),
    "truncation": (
        lambda x: fp.quantize(x, "e4m3", rounding="toward_zero"), "e4m3", "is not random: it rounds toward zero"),
    "a coin": (
        chosen(lambda share, u, _: u < 0.5), "e4m3", "goes either way half of the time, whatever the fraction"),
    "the other side": (
        chosen(lambda share, u, _: u > share), "e4m3",
        "goes away from zero with the probability of the other neighbour"),
    "toward +Inf": (
        chosen(lambda share, u, x: np.where(x < 0, u > share, u < share)), "e4m3",
        "goes up with the probability with which it should go away from zero"),
    "a sign": (
        chosen(lambda share, u, x: (x > 0) & (u < share)), "e4m3",
        "is not random: it rounds toward zero, for negative values"),
    "subnormals": (
        chosen(lambda share, u, x: np.where(np.abs(x) < 2.0**-6, share > 0.5, u < share)), "e4m3",
        "is not random: it rounds to nearest, ties to the even code, where the result is subnormal"),
    "rounding up to 4 bits": (
        of_words(lambda share, words: np.floor(words * 2.0**-28) < np.ceil(share * 16)), "e4m3",
        "compares 4 random bits: it rounds the fraction up to them"),
    "<=": (
        of_words(lambda share, words: words <= share * 2.0**32), "e4m3",
        "compares 32 random bits by <=, not by <: it goes away 2**-32 too often"),
    "BF16 first": (
        lambda x, seed: seeded(fp.quantize(x, "bf16"), seed), "e4m3",
        "rounds the fraction to 4 bits first, where the result is a normal value"),
    "one number": (
        chosen(lambda share, u, _: u.ravel()[0] < share), "e4m3", "uses one random number for all elements of a call"),
    "one number for four": (shared_by(4), "e4m3", "uses one random number for each 4 elements"),
    "one seed": (lambda x, seed: seeded(x, 0), "e4m3", "uses the same random numbers in every call"),
    "half the seeds": (
        lambda x, seed: seeded(x, seed // 2), "e4m3", "uses the random numbers of a call again in the next one"),
}  # fmt: skip


@in_turn("name", CAUSES, some=list(CAUSES)[::2])
def test_what_stochastic_rounding_does_wrong_is_named(name: str) -> None:
    fn, fmt, cause = CAUSES[name]
    report = check(fn, fmt)
    assert report.causes == (cause,), report
    assert f"It {cause}." in str(report)


def test_random_numbers_that_repeat_in_rows_and_long_arrays_are_found() -> None:
    rng = np.random.default_rng(0)

    def rounded(x: Array, numbers: Array) -> Array:
        return ((x.view(np.uint32) + numbers) & np.uint32(0xFFFF0000)).view(np.float32)

    def of_rows(x: Array) -> Array:
        numbers = rng.integers(0, 1 << 16, x.shape[-1:] if x.ndim == 2 else x.shape, np.uint32)
        return rounded(x, np.broadcast_to(numbers, x.shape))

    def of_period(x: Array) -> Array:
        return rounded(x, np.resize(rng.integers(0, 1 << 16, 1 << 18, np.uint32), x.shape))

    assert check(of_rows, "bf16").causes == ("uses the same random numbers in each row",)
    assert check(of_period, "bf16").causes == ("uses the same random numbers again within a long array",)


def test_random_numbers_that_repeat_after_a_block_are_not_called_one_number_for_each_element() -> None:
    def period(elements: int) -> Any:
        return chosen(lambda share, u, _: np.resize(u.ravel()[:elements], u.shape) < share)

    assert "uses the same random numbers again after 1024 elements" in check(period(1024), "e4m3").causes
    assert "uses random numbers that depend on each other from element to element" in check(period(999), "e4m3").causes


def test_a_right_function_has_no_cause() -> None:
    assert check(seeded).causes == ()


def test_a_bit_more_comes_with_each_four_calls() -> None:
    # A gain is log2(m / m') / 2 for mean squares m, m' of means of n and 4 n calls over N = 4,096 elements, whose
    # dropped shares are uniform: the variance of m is 1.2 (2 n - 1) / n < 2.4 of its square, over N. Six deviations,
    # which chance passes once in 10^9 draws:
    allowed = 6 * np.sqrt(2 * 2.4 / 4096) / (2 * np.log(2))
    assert allowed < 0.15
    gains = np.diff(check(seeded).bits)
    assert (np.abs(gains - 1) < allowed).all(), gains


def test_calls_that_are_alike_in_pairs_gain_half_a_bit_and_are_found() -> None:
    report = check(lambda x, seed: seeded(x, seed // 2))
    assert "averaging" in broken(report)
    assert abs(np.diff(report.bits)[0] - 0.5) < 0.15  # twelve deviations below 1


def test_one_draw_for_all_elements_is_found() -> None:
    def shared(x: Array, seed: int) -> Array:
        return by_bits(x, np.full(x.shape, np.random.default_rng(seed).integers(1 << 32), np.uint32))

    assert "elements" in broken(check(shared))


def of_axis(axis: int) -> Any:
    """Stochastic rounding that draws once for all that is along an axis of an array with several."""

    def rounds(x: Array, seed: int) -> Array:
        shape = tuple(1 if place == axis and x.ndim > 1 else size for place, size in enumerate(x.shape))
        words = np.random.default_rng(seed).integers(0, 1 << 32, shape, dtype=np.uint32)
        return by_bits(x, np.broadcast_to(words, x.shape))

    return rounds


@pytest.mark.parametrize(
    ("axis", "why"),
    [(0, "an element and that of the row before"), (1, "were rounded the same way"), (2, "elements 1 apart"), (5, "")],
)
def test_draws_that_are_equal_along_an_axis_are_found(axis: int, why: str) -> None:
    report = check(of_axis(axis))
    assert broken(report) == ({"elements"} if why else set()), report
    assert why in str(report)


@pytest.mark.parametrize("period", [200, 1000, 4096])
def test_draws_that_come_again_after_a_period_are_found(period: int) -> None:
    def rounds(x: Array, seed: int) -> Array:
        words = np.random.default_rng(seed).integers(0, 1 << 32, period, dtype=np.uint32)
        return by_bits(x, np.resize(words, x.shape))

    (one,) = [one for one in check(rounds).broken if one.property == "elements"]
    assert f"elements {period} apart were rounded the same way" in one.why


CUTS: dict[str, Any] = {
    "4 bits": lambda seed: seed & 0xF, "8 bits": lambda seed: seed & 0xFF, "16 bits": lambda seed: seed & 0xFFFF,
    "31 bits": lambda seed: seed & 0x7FFFFFFF, "float32": lambda seed: int(np.float32(seed)),
    "the upper half": lambda seed: seed >> 16 << 16 if seed >> 16 else seed,
}  # fmt: skip


@pytest.mark.parametrize("cut", CUTS)
def test_seeds_that_are_cut_are_found(cut: str) -> None:
    report = check(lambda x, seed: seeded(x, CUTS[cut](seed)))
    assert "seeds" in broken(report), report
    assert "give the same results" in str(report)


def test_seeds_of_32_bits_are_a_note_and_refused_ones_too() -> None:
    report = check(lambda x, seed: seeded(x, seed & 0xFFFFFFFF))
    assert report.ok
    assert report.notes == ("seeds 0 and 4,294,967,296 give the same results: only 32 bits of a seed are used",)

    def narrow(x: Array, seed: int) -> Array:
        return seeded(x, int(np.array(seed, np.int32)))

    refused = check(narrow)
    assert refused.ok
    assert refused.notes[0].startswith("it refuses seeds from 2,147,483,648 on: fn raised OverflowError")


@each_once(
    "ends, rounding", [(256, 512), (16, 32), (0, 2.0**-6), (2.0**-6, 2.0**-5)], ["toward_zero", "nearest_even", "away"]
)
def test_a_binade_with_another_rounding_is_found(ends: tuple[float, float], rounding: str) -> None:
    low, high = ends

    def rounds(x: Array, seed: int, draws: Any = seeded) -> Array:
        other = fp.quantize(x, "e4m3", rounding="nearest_even" if rounding == "away" else rounding)
        other = np.where((rounding == "away") & (np.abs(other) < np.abs(x)), draws(x, seed), other)
        return np.where((np.abs(x) >= low) & (np.abs(x) < high), other, draws(x, seed)).astype(np.float32)

    assert "mean" in broken(check(rounds))
    assert "mean" in broken(check(lambda x, words: rounds(x, words, by_bits)))


def test_the_largest_binade_of_one_sign_is_checked() -> None:
    def rounds(x: Array, seed: int) -> Array:
        return np.where(x <= -256, fp.quantize(x, "e4m3"), seeded(x, seed)).astype(np.float32)

    assert "mean" in broken(check(rounds))


def test_the_same_draws_in_every_call_are_found() -> None:
    report = check(lambda x, seed: seeded(x, 0))
    assert {"calls", "averaging"} <= broken(report)


def test_draws_that_only_move_along_from_call_to_call_are_found() -> None:
    def rolled(x: Array, seed: int) -> Array:
        words = np.random.default_rng(0).integers(0, 1 << 32, x.size + 64, dtype=np.uint32)
        return by_bits(x, words[seed % 64 :][: x.size].reshape(x.shape))

    assert "calls" in broken(check(rolled))


def test_a_small_bias_is_found() -> None:
    report = check(lambda x, seed: seeded((x * np.float32(1.002)).astype(np.float32), seed))
    assert {"mean", "exact values"} <= broken(report)


def test_values_that_move_are_found() -> None:
    def moves(x: Array, seed: int) -> Array:
        return np.where(x == 1, np.float32(1.125), seeded(x, seed))

    (value,) = [one for one in check(moves).broken if one.property == "exact values"]
    assert (value.got_code, value.want_code) == (0x39, 0x38)


def test_randomness_that_does_not_repeat_is_found() -> None:
    drawn = itertools.count()
    assert broken(check(lambda x, seed: seeded(x, next(drawn)))) == {"repeats"}


GRID = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def on_e2m1(x: Array, u: Array) -> Array:
    at = np.clip(np.searchsorted(GRID, x, side="right") - 1, 0, 6)
    share = (x - GRID[at]) / (GRID[at + 1] - GRID[at])
    return np.where(u < share, GRID[at + 1], GRID[at])


def four_over_six(x: Array, seed: int) -> Array:
    """Scales amax to 6 (17/96 for the format's sake) or to 4, whichever comes nearer after stochastic rounding."""
    u = np.random.default_rng(seed).random(x.shape)
    tried = [on_e2m1(x / scale, u) * scale for scale in (17 / 96, 17 / 64)]
    return min(tried, key=lambda values: ((values - x) ** 2).sum()).astype(np.float32)


def test_four_over_six_is_biased_by_a_64th_at_1() -> None:
    x = np.zeros(16, np.float32)
    x[0] = 1
    report = check(four_over_six, "e2m1", x=x)
    (mean,) = report.broken
    assert abs(float(mean.got) - 65 / 64) < 0.006  # a standard error is 0.0016
    assert mean.want == "1"
    assert "standard errors off" in mean.why


def test_a_recipe_of_one_scale_is_unbiased() -> None:
    def six(x: Array, seed: int) -> Array:
        return (on_e2m1(x * 96 / 17, np.random.default_rng(seed).random(x.shape)) * 17 / 96).astype(np.float32)

    x = np.linspace(0, 1, 256, dtype=np.float32)
    report = check(six, "e2m1", x=x)
    assert report.held == ("mean", "averaging"), report


def test_recipes_whose_results_are_exact_pass() -> None:
    few = np.where(np.arange(64) == 5, np.float32(1.03), np.float32(1))  # one element decides the error of a mean
    for x, bits in ((np.ones(64), np.inf), (np.zeros(64), np.inf), (few, None)):
        report = check(seeded, x=x)
        assert report.held == ("mean", "averaging"), report
        assert bits is None or set(report.bits) == {bits}


@pytest.mark.parametrize("x", [[], [1.0, np.nan], [np.inf]])
def test_arrays_without_means_are_refused(x: list[float]) -> None:
    with pytest.raises(ValueError, match="x must be an array of one or more finite floats; got"):
        check(seeded, x=x)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="random must be one of seed, generator, bits, uniform, own; got 'dice'"):
        check(seeded, random="dice")
    with pytest.raises(AssertionError, match="does not round stochastically to E4M3"):
        fp.testing.check_stochastic(lambda x, seed: seeded(x, 0), "e4m3")
