"""check_quantizer and identify_quantizer: right ones pass, wrong ones are named."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.formats.named import NAMED
from fpsim.formats.policies import OVERFLOWS
from fpsim.testing.quantizers import inputs
from fpsim.testing.quantizers.properties import _falls
from tests.kit.sweeps import in_turn, sweep

Array = Any


E4M3 = ml_dtypes.float8_e4m3fn


SMALL = [fmt for fmt in NAMED.values() if fmt.bits <= 8] + [
    fp.format(f"p3109_{name}") for name in ("k8p4se", "k8p3ue", "k8p1ue", "k6p2sf", "k8p1se", "k4p2sf")
]


MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "odd")


def report(fn: Callable[..., Any], fmt: Any = "e4m3", **keywords: Any) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, raises=False, **keywords)


@pytest.fixture
def fewer_inputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take one in 29 inputs of formats that have hundreds of thousands, and all specials."""

    every = inputs.inputs_for

    def some(fmt: fp.Format, source: Any = None) -> Array:
        x = every(fmt, source)
        return x if x.size < 50_000 else x[(np.arange(x.size) % 29 == 0) | ~np.isfinite(x) | (x == 0)]

    monkeypatch.setattr(inputs, "inputs_for", some)
    inputs.inputs_of.cache_clear()
    inputs.right_words.cache_clear()
    yield
    inputs.inputs_of.cache_clear()
    inputs.right_words.cache_clear()


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Every small format in every mode, with overflow policies, flush and kind of result drawn: over 100 calls."""
    rng = np.random.default_rng(0)
    found = []
    for fmt, rounding in itertools.product(SMALL, MODES):
        words = {"rounding": rounding, "overflow": str(rng.choice(list(OVERFLOWS)))}
        words["subnormals"] = str(rng.choice(["keep", "flush"]))
        found.append((f"{fmt} {words}", {"fmt": fmt, "words": words, "codes": bool(rng.integers(2))}))
    return found


def some_cases() -> list[tuple[str, dict[str, Any]]]:
    """Every format in one mode, and every mode with several formats."""
    return [each for i, each in enumerate(cases()) if (i // len(MODES) - i) % len(MODES) == 0]


def test_every_format_and_mode_is_called() -> None:
    assert len(cases()) > 100
    every, some = ({(case["fmt"], case["words"]["rounding"]) for _, case in made} for made in (cases(), some_cases()))
    assert {fmt for fmt, _ in some} == {fmt for fmt, _ in every}
    assert {mode for _, mode in some} == {mode for _, mode in every} == set(MODES)
    assert {case["codes"] for _, case in some_cases()} == {False, True}


@sweep("made", some_cases(), cases())
def test_fpsims_own_casts_pass_in_every_mode(made: list[tuple[str, dict[str, Any]]]) -> None:
    for name, case in made:
        function = fp.encode if case["codes"] else fp.quantize
        checked = report(lambda x, f=function, c=case: f(x, c["fmt"], **c["words"]), case["fmt"], **case["words"])
        assert checked.ok, f"{name}: {checked}"


def test_a_format_of_subnormals_that_are_flushed_passes() -> None:
    fmt = fp.Format("all_subnormal", 1, 4)
    words: dict[str, Any] = {"rounding": "toward_zero", "subnormals": "flush"}  # the largest value becomes zero
    assert report(lambda x: fp.encode(x, fmt, **words), fmt, **words).ok


@pytest.mark.usefixtures("fewer_inputs")  # BF16 has all of them in the next tests
def test_casts_of_ml_dtypes_pass_in_every_dtype() -> None:
    for fmt in NAMED.values():
        if fmt.dtype is not None and hasattr(ml_dtypes, fmt.dtype.name) and fmt.name != "E8M0":
            assert report(lambda x, fmt=fmt: x.astype(fmt.dtype), fmt, overflow="ml_dtypes").ok, fmt


def test_the_farther_neighbour_that_ml_dtypes_and_torch_give_in_e8m0_is_found() -> None:
    numpy = report(lambda x: x.astype(ml_dtypes.float8_e8m0fnu), "e8m0", overflow="ml_dtypes")
    assert numpy.causes == ("rounds up, toward +Inf where the input is subnormal",)
    assert report(lambda x: x.to(torch.float8_e8m0fnu), "e8m0", overflow="torch").causes == (
        "rounds away from zero where the input is subnormal",
    )


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bfloat16]
)
def test_casts_of_torch_pass_as_tensors_codes_and_values(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    assert report(lambda x: x.to(dtype), name, overflow="torch").ok
    if dtype.itemsize == 1:
        assert report(lambda x: x.to(dtype).float(), name, overflow="torch").ok
        assert report(lambda x: x.to(dtype).view(torch.uint8), name, overflow="torch").ok


@pytest.mark.parametrize("fmt", ["fp16", "bf16", "tf32", "fp32"])
def test_wide_formats_pass(fmt: str) -> None:
    assert report(lambda x: fp.quantize(x, fmt), fmt).ok


def test_what_a_check_excludes_does_not_depend_on_the_checks_before() -> None:
    def found(fn: Callable[..., Any]) -> tuple[Any, ...]:
        one = report(fn)
        return one.causes, one.excluded, one.rivals

    fns = (lambda x: fp.encode(x, "e4m3"), through_fp16)
    inputs.inputs_of.cache_clear()
    inputs.right_words.cache_clear()
    together = [found(fn) for fn in (*fns, *reversed(fns))]
    inputs.inputs_of.cache_clear()
    inputs.right_words.cache_clear()
    other = found(fns[1])  # as the first one was found above, alone
    assert together == [together[0], other, other, together[0]]


def test_seeded_stochastic_rounding_is_compared_bit_for_bit() -> None:
    def rounds(x: Array) -> Array:
        return fp.encode(x, "e4m3", rounding="stochastic", seed=7)

    assert report(rounds, rounding="stochastic", seed=7).ok
    assert not report(rounds, rounding="stochastic", seed=8).ok


# ---- causes


def through_fp16(x: Array) -> Array:
    return x.astype(np.float16).astype(E4M3)


def test_the_report_of_a_double_rounding_says_all_of_it() -> None:
    checked = report(through_fp16)
    assert checked.causes == ("rounds to FP16 first",)
    assert checked.unexplained == 0
    assert "One cause explains all: it rounds to FP16 first" in str(checked)
    assert f"{checked.differ:,} of {checked.of:,} results differ" in str(checked)
    assert checked.excluded > 400
    assert any("TF32" in rival for rival in checked.rivals)  # which has as many significand bits
    assert "ties" in checked.held
    first = checked.broken[0]
    assert (first.property, first.got_code, first.want_code, first.input_bits) == ("rounding", 0x08, 0x09, 0x3C880001)
    assert first.input.startswith("x = 0x1.1000020000000p-6")
    assert first.paste == "through_fp16(np.array([0x3C880001], np.uint32).view(np.float32))"
    wrong = eval(first.paste, {"np": np, "through_fp16": through_fp16})
    assert wrong.view(np.uint8)[0] == first.got_code


def test_a_failure_raises_its_report() -> None:
    with pytest.raises(AssertionError, match="it rounds to FP16 first"):
        fp.testing.check_quantizer(through_fp16, "e4m3")


def copied(x: Array, change: Callable[[Array, Array], Array]) -> Array:
    return change(x, np.asarray(x.astype(E4M3), np.float32))


def through_bf16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(E4M3).astype(np.float32)


def unsigned_zero(x: Array) -> Array:
    return np.where(x == 0, np.float32(0), np.copysign(np.float32(0), x))


CAUSES: dict[str, tuple[Callable[[Array], Array], str]] = {
    "a sticky bit that forgets 8 bits": (
        lambda x: (x.view(np.uint32) & np.uint32(0xFFFFFF00)).view(np.float32).astype(E4M3),
        "truncates to 16 significand bits first",
    ),
    "saturation of one sign": (
        lambda x: copied(x, lambda x, y: np.where(x < -464, np.float32(-448), y)),
        "overflows as overflow='saturate' does for negative values",
    ),
    "ties by size": (
        lambda x: np.where(np.abs(x) < 1, fp.quantize(x, "e4m3", rounding="nearest_away"), fp.quantize(x, "e4m3")),
        "takes ties away from zero for magnitudes below 2**0",
    ),
    "two faults": (
        lambda x: copied(x.astype(np.float16).astype(np.float32), lambda x, y: np.nan_to_num(y, nan=0.0)),
        "gives +0 for everything that is too large, Inf and NaN too; rounds to FP16 first",
    ),
    "three faults": (
        lambda x: copied(
            x, lambda x, y: np.where(np.abs(through_bf16(x)) < 2**-6, unsigned_zero(x), through_bf16(x))
        ),
        "rounds to BF16 first; turns subnormal results into zeros; gives +0 for -0",
    ),
    "a table with a wrong entry": (
        lambda x: copied(x, lambda x, y: np.where(y == 0.15625, np.float32(0.1875), y)),
        "gives 0x24 (0.1875) for 0x22 (0.15625), always",
    ),
    "another format": (lambda x: x.astype(ml_dtypes.float8_e4m3fnuz), "rounds to E4M3FNUZ, not E4M3"),
    "codes of another format": (
        lambda x: x.astype(ml_dtypes.float8_e4m3fnuz).view(np.uint8),
        "gives codes of E4M3FNUZ, not E4M3",
    ),
    "the sign turned": (lambda x: x.astype(E4M3).view(np.uint8) ^ 0x80, "turns the sign around"),
    "an early largest value": (
        lambda x: copied(x, lambda x, y: np.where(np.abs(y) > 240, np.float32(np.nan), y)),
        "takes 240 for the largest value, not 448",
    ),
}  # fmt: skip


@in_turn("case", CAUSES)
def test_faults_that_are_no_mutants_are_named(case: str) -> None:
    fn, cause = CAUSES[case]
    checked = report(fn)
    assert "; ".join(checked.causes) == cause, checked
    assert checked.unexplained == 0


def test_what_nothing_explains_is_said_with_where_it_lies() -> None:
    def hashed(x: Array) -> Array:
        odd = ((x.view(np.uint32) * np.uint32(2654435761)) >> np.uint32(31)).astype(bool)
        even = fp.quantize(x, "e4m3")
        return np.where(odd & (x > 0) & (x < 400), fp.quantize(x, "e4m3", rounding="toward_zero"), even)

    checked = report(hashed)
    assert checked.causes == ()
    assert checked.unexplained == checked.differ > 0
    assert "causes that were tried explains them" in checked.diagnosis
    assert "all positive" in checked.diagnosis
    assert "Each result is one of the two neighbours" in checked.diagnosis


@pytest.mark.parametrize(
    ("fn", "causes"),
    [
        (lambda x: x, ("does not round at all",)),
        (np.negative, ("does not round at all", "turns the sign around")),
        (lambda x: torch.from_numpy(x).bfloat16(), ("gives values of BF16, which it does not round to E4M3",)),
    ],
    ids=["identity", "negative", "bfloat16"],
)
def test_what_does_not_round_to_the_format_is_named(fn: Any, causes: tuple[str, ...]) -> None:
    checked = report(fn, "e4m3")
    assert set(checked.causes) == set(causes)
    assert checked.unexplained == 0
    if fn is not np.negative:  # two faults, as the next test has
        assert fp.testing.identify_quantizer(fn, "e5m2").exact


def test_neighbours_are_spoken_of_only_within_the_range() -> None:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)

    def nearest(x: Array) -> Array:  # of equal distances in float32, the first one: 0 for 1e30
        sizes = np.nan_to_num(np.abs(x).ravel(), nan=6, posinf=6)
        return np.copysign(values[np.abs(values - sizes[:, None]).argmin(1)].reshape(x.shape), x)

    diagnosis = report(nearest, "e2m1", overflow="saturate", source="float32").diagnosis
    assert diagnosis.endswith("Within the format's range, each result is one of the two neighbours of its input.")


def test_what_does_not_round_and_has_a_limit_is_identified() -> None:
    identity = fp.testing.identify_quantizer(lambda x: np.clip(x, -448, 448), "e4m3")
    assert set(identity.faults) == {"does not round at all", "limits the input to +-448 first"}
    assert identity.exact


@pytest.mark.usefixtures("fewer_inputs")
def test_a_format_that_holds_all_inputs_needs_no_rounding() -> None:
    assert report(lambda x: x, "fp64").ok


def by_float64(change: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a quantizer to E4M3 that changes float64 inputs first."""
    return lambda x: fp.encode(change(x) if x.dtype == np.float64 else x, "e4m3")


def cut_to_29_bits(x: Array) -> Array:
    return (x.view(np.uint64) & np.uint64(0xFFFFFFFFFF000000)).view(np.float64)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda x: x.astype(np.float32), "rounds to FP32 first"),
        (cut_to_29_bits, "truncates to 29 significand bits first"),
        (lambda x: x.astype(np.float16), "rounds to FP16 first"),
        (lambda x: fp.cast(x, "fp32", rounding="toward_zero"), "truncates to FP32 first"),
    ],
    ids=["float32", "cut", "float16", "cut to float32"],
)
def test_float64_that_is_rounded_twice_or_cut_is_named(change: Callable[[Array], Array], cause: str) -> None:
    checked = report(by_float64(change))
    assert {one.property for one in checked.broken} == {"dtype"}, checked
    assert (checked.causes, checked.unexplained) == ((cause,), 0), checked
    assert checked.diagnosis.startswith("float32 inputs are rounded right; of float64 inputs")
    assert report(by_float64(lambda x: x)).ok
    assert "float64" in report(by_float64(lambda x: x)).covered.dtypes


def test_float64_through_float32_is_a_note_where_a_library_is_promised_or_float32_alone() -> None:
    for keywords in ({"overflow": "ml_dtypes"}, {"source": "float32"}):
        checked = report(lambda x: x.astype(E4M3), **keywords)
        assert checked.ok
        assert any("float64 is rounded to float32 first" in note for note in checked.notes)
    wrong = report(lambda x: x.astype(E4M3)).broken[0].count  # the note counts the same results as the fault does
    noted = report(lambda x: x.astype(E4M3), overflow="ml_dtypes").notes
    assert any(f"which changes {wrong:,} of" in note for note in noted), (wrong, noted)
    for keywords in ({}, {"source": "float64"}):
        checked = report(lambda x: x.astype(E4M3), **keywords)
        assert checked.causes == ("rounds to FP32 first",), checked
    assert not report(by_float64(cut_to_29_bits), overflow="ml_dtypes").ok
    assert not report(lambda x: fp.encode(x, "e4m3")).notes


def test_another_source_than_a_float_that_holds_the_format_is_refused() -> None:
    with pytest.raises(ValueError, match="source must be float32 or float64, or an integer dtype; got 'float8'"):
        report(through_fp16, source="float8")
    with pytest.raises(ValueError, match=r"source must hold FP64, .* Use float64"):
        report(through_fp16, "fp64", source="float32")


# ---- functions that break the rules


def one(kind: str, found: fp.testing.QuantizerReport) -> str:
    (broken,) = found.broken
    assert broken.property == kind
    return broken.why


def test_a_fall_behind_a_nan_names_the_smaller_result() -> None:
    words = np.array([3.0, np.nan, 2.0, 5.0, 4.0]).view(np.uint64)
    assert _falls(words, np.arange(5)).tolist() == [[0, 3], [2, 4]]
    assert _falls(words, np.array([4, 1, 0, 2])).tolist() == [[4, 0], [0, 2]]


def test_wrong_results_just_above_the_largest_value_are_of_overflow() -> None:
    def keeps_a_binade(x: Array) -> Array:
        values, magnitude = fp.quantize(x, "e4m3"), np.abs(x.astype(np.float64))
        in_range = (magnitude > 448) & (magnitude < 480)  # as if there were a next value, 480
        return np.where(in_range, np.copysign(448.0, x.astype(np.float64)), values).astype(values.dtype)

    wrong = report(keeps_a_binade)
    assert [one.property for one in wrong.broken] == ["overflow"]
    assert "too large; between 2**8 and 2**9, none below the smallest normal value.\n" in str(wrong)
