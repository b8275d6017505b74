"""Faults that people report of casts, planted in NumPy: check_quantizer and identify_quantizer name each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

Array = Any
Quantizer = Callable[[Array], Array]


def causes(fn: Quantizer, fmt: str, **promise: Any) -> str:
    """Return the causes that a check names, all of whose differences they explain."""
    report = fp.testing.check_quantizer(fn, fmt, raises=False, **promise)
    assert not report.ok
    assert report.unexplained == 0, report
    return "; ".join(report.causes)


def in_units(x: Array, fmt: fp.Format) -> tuple[Array, Array]:
    """Return finite magnitudes in units of the last place (0 for Inf and NaN), and these units."""
    size = np.where(np.isfinite(x), np.abs(x.astype(np.float64)), 0.0)
    exponent = np.maximum(np.frexp(size)[1] - 1, fmt.min_exponent)
    unit = np.ldexp(1.0, np.where(size == 0, fmt.min_exponent, exponent) - fmt.mantissa_bits)
    return size / unit, unit


def rounded(fmt: str, choose: Callable[[Array, Array], Array]) -> Quantizer:
    """Return a quantizer to a format with NaN; choose gives integers for units and signs."""
    target = fp.format(fmt)
    beyond = np.inf if target.has_infinity else np.nan

    def quantizer(x: Array) -> Array:
        units, unit = in_units(x, target)
        values = choose(units, np.signbit(x)) * unit
        values = np.where((values > target.max) | np.isinf(x), beyond, values)
        return np.copysign(np.where(np.isnan(x), np.nan, values), x).astype(np.float32)

    return quantizer


def carrying(fmt: str, at: int, faulty: float) -> Quantizer:
    """Return a quantizer that gives `faulty` times the power of two where it carries to `at` times that power."""
    power = 1 << fp.format(fmt).mantissa_bits

    def choose(units: Array, negative: Array) -> Array:
        nearest = np.rint(units)
        return np.where((nearest == at * power) & (units < at * power), np.trunc(faulty * power), nearest)

    return rounded(fmt, choose)


def with_sticky(fmt: str, sticky: Callable[[Array], Array], parity: int = 1) -> Quantizer:
    """Return a quantizer by guard and sticky bit, with the bit of units that ties go by."""

    def choose(units: Array, negative: Array) -> Array:
        whole = np.floor(units)
        rest = units - whole
        odd = whole.astype(np.int64) & parity != 0
        return whole + ((rest >= 0.5) & (sticky(rest) | odd))

    return rounded(fmt, choose)


def masked(bits: int, added: int = 0) -> Quantizer:
    """Return a function that keeps some mantissa bits of float32 patterns."""

    def quantizer(x: Array) -> Array:
        pattern = x.astype(np.float32).view(np.uint32) + np.uint32(added)
        return (pattern & np.uint32(0xFFFFFFFF << (23 - bits) & 0xFFFFFFFF)).view(np.float32)

    return quantizer


def tiny_to_nan(fmt: str) -> Quantizer:
    def encoded(x: Array) -> Array:
        codes = fp.encode(x, fmt)
        return np.where((codes == 0) & (x < 0), np.uint8(0x80), codes)

    return encoded


def without_top(fmt: str, **policy: Any) -> Quantizer:
    top = fp.format(fmt).max_code

    def encoded(x: Array) -> Array:
        codes = fp.encode(x, fmt, **policy)
        return codes - ((codes & 0x7F) == top).astype(np.uint8)

    return encoded


def floor_of_half_more(y: Array, negative: Array) -> Array:
    return np.abs(np.floor(np.where(negative, -y, y) + 0.5))


def floor_in_float32(y: Array, negative: Array) -> Array:
    return np.abs(np.floor(np.where(negative, -y, y).astype(np.float32) + np.float32(0.5)))


NAMED: dict[str, tuple[Quantizer, str, str]] = {
    "triton 11897: 126.24 is 64": (
        carrying("e4m3", 2, 1), "e4m3", "loses the carry of the mantissa into the exponent among normal values"),
    "the same in E5M2": (
        carrying("e5m2", 2, 1), "e5m2", "loses the carry of the mantissa into the exponent among normal values"),
    "universal 684: 31 is 48": (
        carrying("e4m3", 2, 3), "e4m3",
        "sets the first mantissa bit where the mantissa carries into the exponent among normal values"),
    "the largest subnormal is 0": (
        carrying("e4m3", 1, 0), "e4m3",
        "loses the carry of the mantissa into the exponent below the smallest normal value"),
    "no carry": (
        carrying("fp16", 2, 2 - 2**-10), "fp16",
        "keeps the mantissa all ones where it should carry into the exponent among normal values"),
    "universal 684: the last sticky bit": (
        lambda x: fp.quantize(masked(22)(x), "e4m3"), "e4m3", "truncates to 23 significand bits first"),
    "the first sticky bit": (
        with_sticky("e4m3", lambda rest: rest % 0.25 > 0), "e4m3",
        "leaves the first bit behind the half out of its sticky bit: 3/4 is a tie"),
    "two sticky bits": (
        with_sticky("e5m2", lambda rest: rest % 0.125 > 0), "e5m2",
        "leaves two bits behind the half out of its sticky bit: 5/8, 3/4 and 7/8 are ties"),
    "no sticky bit": (
        with_sticky("e4m3", lambda rest: rest < 0), "e4m3",
        "has no sticky bit: takes everything from half of the way on for a tie"),
    "parity of the bit above": (
        with_sticky("e4m3", lambda rest: rest != 0.5, parity=2), "e4m3",
        "takes ties by the bit above the last one, not by the last one"),
    "floor(y + .5)": (rounded("e4m3", floor_of_half_more), "e4m3", "takes ties up, toward +Inf"),
    "floor(y + .5) in float32": (
        rounded("e4m3", floor_in_float32), "e4m3",
        "gives floor(y + 0.5) in float32: takes ties up, and the float below the first tie too"),
    "a half added to magnitudes in float32": (
        rounded("e4m3", lambda y, _: np.floor(y.astype(np.float32) + np.float32(0.5))), "e4m3",
        "adds half a unit in float32 and cuts: takes ties away, and the float below the first one"),
    "onnx 5764: -1e-7 is NaN": (
        tiny_to_nan("e4m3fnuz"), "e4m3fnuz",
        "gives the code of -0, which is NaN, for negative values that round to zero"),
    "the same in E5M2FNUZ": (
        tiny_to_nan("e5m2fnuz"), "e5m2fnuz",
        "gives the code of -0, which is NaN, for negative values that round to zero"),
    "no top code": (without_top("e4m3"), "e4m3", "never gives its top code: 416 takes the place of 448"),
    "no top code of E5M2": (
        without_top("e5m2"), "e5m2", "never gives its top code: 49152 takes the place of 57344"),
    "a mask of the format's width": (
        lambda x: fp.quantize(masked(3)(x), "e4m3"), "e4m3", "truncates to 4 significand bits first"),
    "that mask alone": (
        masked(3), "e4m3",
        "truncates to 4 significand bits, with the exponents of its input; "
        "gives the number that its bits would be for NaN"),
    "half a unit and that mask": (
        masked(3, added=1 << 19), "e4m3",
        "rounds (ties away) to 4 significand bits, with the exponents of its input; "
        "gives the number that its bits would be for NaN"),
}  # fmt: skip


@in_turn("name", NAMED)
def test_a_reported_fault_is_named(name: str) -> None:
    fn, fmt, words = NAMED[name]
    assert causes(fn, fmt) == words


def test_a_top_code_that_saturation_misses_is_named() -> None:
    words = "never gives its top code: 416 takes the place of 448"
    assert causes(without_top("e4m3", overflow="saturate"), "e4m3", overflow="saturate") == words


@in_turn("rounding", ("toward_zero", "up", "down", "odd"))
def test_rounding_to_nearest_is_called_that_where_another_mode_is_promised(rounding: str) -> None:
    for used, ties in (("nearest_even", "to the even code"), ("nearest_away", "away from zero")):
        nearest = partial(fp.quantize, fmt="e4m3", rounding=used)
        assert causes(nearest, "e4m3", rounding=rounding) == f"rounds to nearest, ties {ties}"


def test_ties_alone_are_named_where_nearest_is_promised() -> None:
    words = "takes ties away from zero"
    assert causes(lambda x: fp.quantize(x, "e4m3", rounding="nearest_away"), "e4m3") == words


def test_a_directed_mode_of_one_sign_is_still_said_with_nearest() -> None:
    def mixed(x: Array) -> Array:
        return np.where(x < 0, fp.quantize(x, "e4m3"), fp.quantize(x, "e4m3", rounding="down"))

    assert causes(mixed, "e4m3", rounding="down") == "rounds to nearest, ties to the even code for negative values"


# ---- results in other places, and no floats


def exchanged(x: Array, group: int) -> Array:
    codes = fp.encode(x, "e2m1").ravel()
    whole = codes.size // group * group
    return np.concatenate([codes[:whole].reshape(-1, group)[:, ::-1].ravel(), codes[whole:]]).reshape(x.shape)


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (2, "exchanges the two results of each pair, as packed codes in the wrong order"),
        (4, "reverses each group of 4 results, as bytes of a word in the wrong order"),
    ],
)
def test_packed_codes_in_the_wrong_order_are_named(group: int, words: str) -> None:
    assert causes(lambda x: exchanged(x, group), "e2m1") == words
    identity = fp.testing.identify_quantizer(lambda x: exchanged(x, group), "e2m1")
    assert (identity.faults, identity.exact, identity.rounding) == ((words,), True, "nearest_even")


def on_integers(x: Array) -> Array:
    """Integers up to 448, scaled by the largest finite magnitude: the simulation of FP8 in many trainers."""
    finite = np.abs(x[np.isfinite(x)])
    scale = np.float32(448) / np.max(finite, initial=np.float32(1e-12))
    return np.clip(np.rint(x * scale), -448, 448) / scale


@pytest.mark.parametrize(
    ("fn", "fmt", "words"),
    [
        (on_integers, "e4m3", "rounds to a uniform grid in steps of amax/448, not to E4M3"),
        (lambda x: np.rint(x * 8) / 8, "e5m2", "rounds to a uniform grid in steps of 0.125, not to E5M2"),
    ],
)
def test_a_uniform_grid_is_not_taken_for_a_float(fn: Quantizer, fmt: str, words: str) -> None:
    with np.errstate(all="ignore"):
        assert causes(fn, fmt) == words
        identity = fp.testing.identify_quantizer(fn, fmt)
    assert identity.faults[0] == words
    assert not identity.exact


@in_turn(
    "fmt, levels",
    [(fmt, levels) for fmt in ("e4m3", "e5m2", "e2m1", "e3m2", "bf16") for levels in (7, 31)],
    some=[("e2m1", 7), ("e4m3", 31)],
)
def test_integers_in_the_place_of_narrow_floats_are_a_uniform_grid(fmt: str, levels: int) -> None:
    """INT4 for FP4, and grids so coarse that a quarter of the range has two levels."""
    largest = np.float32(min(fp.format(fmt).max, 100.0))

    def fixed(x: Array) -> Array:
        return np.clip(np.rint(x * (np.float32(levels) / largest)), -levels, levels) * (largest / np.float32(levels))

    def by_amax(x: Array) -> Array:
        amax = np.float32(np.abs(x[np.isfinite(x)]).max(initial=0)) or np.float32(1)
        return np.clip(np.rint(x / amax * np.float32(levels)), -levels, levels) / np.float32(levels) * amax

    with np.errstate(all="ignore"):
        step = f"{float(largest) / levels:.9f}"[:6].rstrip("0").rstrip(".")
        assert causes(fixed, fmt).startswith(f"rounds to a uniform grid in steps of {step}")
        assert causes(by_amax, fmt) == f"rounds to a uniform grid in steps of amax/{levels}, not to {fmt.upper()}"


@in_turn(
    "bits, fmt", [(4, "e4m3"), (2, "e4m3"), (3, "e5m2"), (8, "bf16"), (9, "fp16")], some=[(4, "e4m3"), (9, "fp16")]
)
def test_masks_of_a_bit_more_or_less_are_named(bits: int, fmt: str) -> None:
    for added, does in ((0, "truncates"), (1 << (22 - bits), "rounds (ties away)")):
        words = f"{does} to {bits + 1} significand bits, with the exponents of its input"
        assert causes(masked(bits, added), fmt).startswith(words)


@in_turn(
    "fmt, edge, words",
    [
        ("e4m3", "top_binade", "takes values as too large already from the format's largest power of two on"),
        ("e4m3fnuz", "top_binade", "takes values as too large already from the format's largest power of two on"),
        ("e5m2", "results", "takes results as too large already from the format's largest power of two on"),
        ("e2m1", "carry", "takes values that round up to the format's largest power of two as too large"),
    ],
)
def test_saturation_from_the_top_exponent_on_is_named(fmt: str, edge: str, words: str) -> None:
    """Kernels that compare the exponent with the top one by >=, before or after the rounding, or after a carry."""
    target = fp.format(fmt)
    power = 2.0 ** np.floor(np.log2(target.max))

    def quantizer(x: Array) -> Array:
        values = fp.quantize(x, fmt, overflow="saturate")
        before, after = np.abs(x) >= power, np.abs(values) >= power
        beyond = {"top_binade": before, "results": after, "carry": after & ~before}[edge]
        return np.where(beyond & ~np.isnan(x), np.copysign(np.float32(target.max), x), values)

    assert causes(quantizer, fmt, overflow="saturate") == words


def test_values_that_round_down_to_the_code_of_nan_are_named() -> None:
    def quantizer(x: Array) -> Array:  # as onnxruntime 1.31.1 casts with saturate=0
        size = np.abs(x)
        return np.where((size >= 480) & (size < 496), np.copysign(np.float32(448), x), fp.quantize(x, "e4m3"))

    assert causes(quantizer, "e4m3") == "gives the largest value for values that round down to the code after it"


def test_the_top_exponent_is_named_beside_ties_away_from_zero() -> None:
    def quantizer(x: Array) -> Array:
        values = fp.quantize(x, "e4m3", rounding="nearest_away", overflow="saturate")
        return np.where(np.abs(x) >= 256, np.copysign(np.float32(448), x), values)

    assert causes(quantizer, "e4m3", overflow="saturate") == (
        "takes ties away from zero; takes values as too large already from the format's largest power of two on"
    )


# ---- identities


def through_fp16(x: Array) -> Array:
    return (x.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)  # E5M2 is the upper byte of FP16


def test_rounding_toward_zero_behind_fp16_is_identified_as_that() -> None:
    identity = fp.testing.identify_quantizer(through_fp16, "e5m2")
    assert (identity.rounding, identity.intermediate, identity.exact) == ("toward_zero", "FP16", True)


def test_a_mask_before_the_cast_is_identified_with_the_rounding_of_the_cast() -> None:
    identity = fp.testing.identify_quantizer(lambda x: fp.quantize(masked(3)(x), "e4m3"), "e4m3")
    assert (identity.rounding, identity.faults) == ("nearest_even", ("truncates to 4 significand bits first",))
    assert identity.keywords["rounding"] == "nearest_even"


def test_floor_of_a_half_more_is_not_identified_as_ties_away() -> None:
    identity = fp.testing.identify_quantizer(rounded("e4m3", floor_of_half_more), "e4m3")
    assert (identity.rounding, identity.faults) == ("nearest_up", ("takes ties up, toward +Inf",))
    assert identity.keywords["rounding"] in ("nearest_even", "nearest_away")  # of the nearest policy
