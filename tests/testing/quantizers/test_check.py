"""check_quantizer and identify_quantizer: right ones pass, wrong ones are named."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.formats.named import NAMED
from fpsim.formats.policies import OVERFLOWS
from fpsim.testing.quantizers import black_box, inputs
from fpsim.testing.quantizers.black_box import CalledQuantizer
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

    def some(fmt: fp.Format, every: Callable[[fp.Format], Array] = inputs.inputs_for) -> Array:
        x = every(fmt)
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
        found = report(lambda x, f=function, c=case: f(x, c["fmt"], **c["words"]), case["fmt"], **case["words"])
        assert found.ok, f"{name}: {found}"


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
    found = report(through_fp16)
    assert found.causes == ("rounds to FP16 first",)
    assert found.unexplained == 0
    assert "One cause explains all: it rounds to FP16 first" in str(found)
    assert f"{found.differ:,} of {found.of:,} results differ" in str(found)
    assert found.excluded > 400
    assert any("TF32" in rival for rival in found.rivals)  # which has as many significand bits
    assert "ties" in found.held
    first = found.broken[0]
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
    found = report(fn)
    assert "; ".join(found.causes) == cause, found
    assert found.unexplained == 0


def test_what_nothing_explains_is_said_with_where_it_lies() -> None:
    def hashed(x: Array) -> Array:
        odd = ((x.view(np.uint32) * np.uint32(2654435761)) >> np.uint32(31)).astype(bool)
        even = fp.quantize(x, "e4m3")
        return np.where(odd & (x > 0) & (x < 400), fp.quantize(x, "e4m3", rounding="toward_zero"), even)

    found = report(hashed)
    assert found.causes == ()
    assert found.unexplained == found.differ > 0
    assert "causes that were tried explains them" in found.diagnosis
    assert "all positive" in found.diagnosis
    assert "Each result is one of the two neighbours" in found.diagnosis


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
    found = report(fn, "e4m3")
    assert set(found.causes) == set(causes)
    assert found.unexplained == 0
    if fn is not np.negative:  # two faults, as the next test has
        assert fp.testing.identify_quantizer(fn, "e5m2").exact


def test_what_does_not_round_and_has_a_limit_is_identified() -> None:
    found = fp.testing.identify_quantizer(lambda x: np.clip(x, -448, 448), "e4m3")
    assert set(found.faults) == {"does not round at all", "limits the input to +-448 first"}
    assert found.exact


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
    found = report(by_float64(change))
    assert {one.property for one in found.broken} == {"dtype"}, found
    assert (found.causes, found.unexplained) == ((cause,), 0), found
    assert found.diagnosis.startswith("float32 inputs are rounded right; of float64 inputs")
    assert report(by_float64(lambda x: x)).ok
    assert "float64" in report(by_float64(lambda x: x)).covered.dtypes


def test_float64_through_float32_is_a_note_where_a_library_is_promised_or_float32_alone() -> None:
    for keywords in ({"overflow": "ml_dtypes"}, {"source": "float32"}):
        found = report(lambda x: x.astype(E4M3), **keywords)
        assert found.ok
        assert any("float64 is rounded to float32 first" in note for note in found.notes)
    for keywords in ({}, {"source": "float64"}):
        found = report(lambda x: x.astype(E4M3), **keywords)
        assert found.causes == ("rounds to FP32 first",), found
    assert not report(by_float64(cut_to_29_bits), overflow="ml_dtypes").ok
    assert not report(lambda x: fp.encode(x, "e4m3")).notes


def test_another_source_than_a_float_that_holds_the_format_is_refused() -> None:
    with pytest.raises(ValueError, match="source must be float32 or float64, or an integer dtype; got 'float8'"):
        report(through_fp16, source="float8")
    with pytest.raises(ValueError, match=r"source must hold FP64, .* Use float64"):
        report(through_fp16, "fp64", source="float32")


# ---- anything but the value


def test_results_that_change_from_call_to_call_are_found() -> None:
    seeds = itertools.count()
    found = report(lambda x: fp.quantize(x, "e4m3", rounding="stochastic", seed=next(seeds)))
    assert "it is not deterministic" in found.diagnosis
    assert "as in stochastic rounding" in found.diagnosis
    assert "calls" in {one.property for one in found.broken}


def test_a_pasted_layout_shows_the_fault() -> None:
    mutant = fp.testing.mutants.QUANTIZERS["memory_order"].make("e4m3")
    (broken,) = report(mutant).broken
    assert broken.property == "layout"
    x = np.array([[1, 2], [3, 4], [6, 8], [0.5, 1.5]], np.float32)
    assert (eval(broken.paste, {"np": np, "memory_order": mutant}) != x).any()


def beyond(first: int, axis: int | None = None) -> Callable[[Array], Array]:
    """Return a quantizer to E4M3 that turns signs from an index on, of elements or along an axis."""

    def quantizer(x: Array) -> Array:
        codes = np.array(fp.encode(x, "e4m3"), order="C")
        if axis is None:
            codes.reshape(-1)[first:] ^= 0x80
        elif codes.ndim == 2:
            np.moveaxis(codes, axis, 0)[first:] ^= 0x80
        return codes

    return quantizer


@pytest.mark.parametrize(
    ("first", "axis"), [(4096, None), (1 << 14, None), (1 << 16, None), (1 << 20, None), (1 << 16, 0), (1 << 16, 1)]
)
def test_what_is_wrong_beyond_an_index_is_found(first: int, axis: int | None) -> None:
    found = report(beyond(first, axis))
    (broken,) = found.broken
    assert broken.property == "size"
    index = {None: first, 0: 3 * first, 1: first}[axis]
    assert f"is wrong from index {index:,} on" in broken.why
    assert eval(broken.paste, {"np": np, "quantizer": beyond(first, axis)}) == broken.got_code
    assert found.covered.sizes[1] > 1 << 20
    assert report(beyond(1 << 40, axis)).ok


@pytest.mark.parametrize("first", [4096, 1 << 16, 1 << 20])
def test_what_is_wrong_beyond_an_index_in_seeded_rounding_is_found(first: int) -> None:
    def quantizer(x: Array) -> Array:
        codes = fp.encode(x, "e4m3", rounding="stochastic", seed=7)
        codes.reshape(-1)[first:] ^= 0x80
        return codes

    (broken,) = report(quantizer, rounding="stochastic", seed=7).broken
    assert broken.property == "size"


REVERSED: dict[str, tuple[Callable[[Array], bool], Callable[[Array], Array]]] = {
    "vector reversed": (lambda x: x.ndim == 1 and x.strides[0] < 0, lambda x: x[::-1]),
    "rows reversed": (lambda x: x.ndim == 2 and x.strides[0] < 0 < x.strides[1], lambda x: x[::-1]),
    "columns reversed": (lambda x: x.ndim == 2 and x.strides[1] < 0 < x.strides[0], lambda x: x[:, ::-1]),
    "both axes reversed": (lambda x: x.ndim == 2 and max(x.strides) < 0, lambda x: x[::-1, ::-1]),
    "Fortran order reversed": (
        lambda x: x.ndim == 2 and 0 > x.strides[0] > x.strides[1], lambda x: x[::-1, ::-1]
    ),
    "axes permuted": (lambda x: x.ndim == 3 and not x.flags.c_contiguous, lambda x: x.swapaxes(0, 1)),
}  # fmt: skip


@in_turn("layout", REVERSED)
def test_a_layout_that_is_read_wrong_is_named(layout: str) -> None:
    is_concerned, read = REVERSED[layout]

    def quantizer(x: Array) -> Array:
        return fp.encode(read(x) if is_concerned(x) else x, "e4m3")

    (broken,) = report(quantizer).broken
    assert broken.property == "layout"
    assert f"the layout '{layout}'" in broken.why
    right = report(lambda x: fp.encode(x, "e4m3"))
    assert right.ok
    assert layout in right.covered.layouts
    wrong = eval(broken.paste, {"np": np, "quantizer": quantizer})
    assert (wrong.ravel() != fp.encode(np.array([1, 2, 3, 4, 6, 8, 0.5, 1.5]), "e4m3")).any()


def test_a_pass_says_what_it_covers() -> None:
    found = report(lambda x: fp.encode(x, "e4m3"))
    covered = found.covered
    assert covered.sizes == (1, (1 << 20) + 1033)
    assert {len(shape) for shape in covered.shapes} == {1, 2, 3}
    assert covered.dtypes == ("float32", "float64", "float16", "bfloat16")
    assert (covered.smallest, covered.largest) == (2.0**-1074, np.finfo(np.float64).max)
    assert covered.specials == ("zeros", "infinities", "NaNs")
    assert f"covered: {covered}" in str(found)
    assert "arrays of 1 to 1,049,609 elements" in str(covered)
    narrow = report(lambda x: x.astype(E4M3) if x.dtype == np.float32 else 1 / 0)
    assert narrow.covered.dtypes == ("float32",)


def test_a_dtype_of_its_own_rule_is_found() -> None:
    def by_dtype(x: Array) -> Array:
        return fp.quantize(x, "e4m3", rounding="toward_zero" if x.dtype == np.float16 else "nearest_even")

    (broken,) = report(by_dtype).broken
    assert broken.property == "dtype"
    assert broken.why == "as float16 the same values give other results"


# ---- functions that break the rules


def one(kind: str, found: fp.testing.QuantizerReport) -> str:
    (broken,) = found.broken
    assert broken.property == kind
    return broken.why


def test_a_function_that_raises_is_shown_with_the_input() -> None:
    def raises(x: Array) -> Array:
        if np.isnan(x).any():
            raise RuntimeError("no NaN, please")
        return fp.quantize(x, "e4m3")

    found = report(raises)
    assert "fn raised RuntimeError('no NaN, please') on an array of float32" in one("runs", found)
    assert found.broken[0].paste == "raises(np.array([0x7F800001], np.uint32).view(np.float32))"


def test_a_function_of_vectors_alone_passes_with_a_note() -> None:
    def of_vectors(x: Array) -> Array:
        if x.ndim != 1:
            raise TypeError("vectors only")
        return fp.quantize(x, "e4m3")

    found = report(of_vectors)
    assert found.ok, found
    assert any("it refuses shape (8, 377): fn raised TypeError('vectors only')" in note for note in found.notes)


def test_another_shape_is_said() -> None:
    assert one("shape", report(lambda x: fp.quantize(x, "e4m3")[:-1])) == (
        "fn must return the shape of its input, (16,); got (15,)."
    )


def test_another_kind_of_result_is_said() -> None:
    assert one("dtype", report(lambda x: x > 0)) == "fn must return floats, or codes of E4M3; got bool."
    assert one("returns", report(lambda x: [[1], [1, 2]])).startswith("fn must return")


def test_codes_beyond_the_format_are_said() -> None:
    why = one("codes", report(lambda x: fp.encode(x, "e2m1") + np.uint8(0x20), "e2m1"))
    assert why.startswith("fn must return codes of E2M1, below 0x10; got 0x2")


def test_writing_into_the_input_is_shown_with_the_input() -> None:
    why = one("leaves its input alone", report(fp.testing.mutants.QUANTIZERS["writes"].make("e4m3")))
    assert why.endswith("The smallest input that shows it: x = inf (inf, 0x7F800000).")


def test_a_function_that_needs_minutes_is_refused_before_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "TOO_SLOW", 0.1)  # seconds; the usual one would have 1,024 values tried

    def slow(x: Array) -> Array:
        end = time.process_time() + 0.002 * x.size
        while time.process_time() < end:
            pass
        return fp.quantize(x, "e4m3")

    assert "make it take whole arrays" in one("fast enough", report(slow))


def test_a_price_of_each_call_is_not_taken_for_one_of_each_value() -> None:
    def dispatched(x: Array) -> Array:
        stop = time.process_time() + 4e-4
        while time.process_time() < stop:
            pass
        return x.astype(np.float16)

    CalledQuantizer(dispatched, fp.FP16).settle(
        np.ones(400_000, np.float32)
    )  # 64 values at this price would take minutes


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="fn must be a function of an array"):
        fp.testing.check_quantizer(3, "e4m3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rounding must be one of"):
        fp.testing.check_quantizer(through_fp16, "e4m3", rounding="nearest")
    with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
        fp.testing.check_quantizer(through_fp16, "e4m3", rounding="stochastic")


# ---- identify


POLICIES = list(itertools.product(MODES, ("nonfinite", "saturate"), ("keep", "flush")))
PAIRS = [each for i, each in enumerate(POLICIES) if i % 4 in ((0, 3) if i // 4 % 2 else (1, 2))]  # any two words meet


@sweep("policies", PAIRS, POLICIES)
def test_every_policy_is_identified(policies: list[tuple[str, str, str]]) -> None:
    for rounding, overflow, subnormals in policies:
        words: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
        found = fp.testing.identify_quantizer(lambda x, w=words: fp.quantize(x, "e5m2", **w), "e5m2")
        assert found.is_policy, found
        again = fp.quantize(fp.testing.points("e5m2"), "e5m2", **found.keywords)
        np.testing.assert_array_equal(again, fp.quantize(fp.testing.points("e5m2"), "e5m2", **words))


def test_an_intermediate_format_is_identified() -> None:
    found = fp.testing.identify_quantizer(lambda x: through_fp16(x).astype(np.float32), "e4m3")
    assert (found.intermediate, found.exact, found.rounding) == ("FP16", True, "nearest_even")
    assert "but it rounds to FP16 first" in str(found)


def test_a_function_that_is_not_deterministic_has_no_identity() -> None:
    seeds = itertools.count()
    with pytest.raises(ValueError, match=r"fn is not deterministic: x = .* Use check_stochastic\."):
        fp.testing.identify_quantizer(lambda x: fp.quantize(x, "e4m3", rounding="SR", seed=next(seeds)), "e4m3")


@pytest.mark.parametrize(
    ("fmt", "nans"), [("e5m2", (0x7D, 0x7E, 0xFD, 0xFF)), ("e4m3", (0x7F, 0xFF)), ("e4m3fnuz", (0x80,))]
)
def test_every_nan_code_of_a_format_is_its_nan_and_no_other_code_is(fmt: str, nans: tuple[int, ...]) -> None:
    def with_nan(code: int) -> Any:
        return lambda x: np.where(np.isnan(x), np.uint8(code), fp.encode(x, fmt))

    for code in nans:
        assert fp.testing.check_quantizer(with_nan(code), fmt).ok
    largest = int(fp.encode(np.float32(fp.format(fmt).max), fmt))
    for code in (largest, largest | 0x80):
        report = fp.testing.check_quantizer(with_nan(code), fmt, raises=False)
        assert "NaN" in [one.property for one in report.broken], str(report)


def test_nans_as_values_may_have_any_sign_and_payload() -> None:
    def negative(x: Any) -> Any:
        found = np.asarray(fp.quantize(x, "e4m3"), np.float32)
        return np.where(np.isnan(x), np.uint32(0xFFC12345).view(np.float32), found)

    assert fp.testing.check_quantizer(negative, "e4m3").ok


def _as_is(x: Any) -> Any:
    return fp.quantize(x, "e4m3").astype(np.float32)


def _bits_to_bf16(x: Any) -> Any:
    """Round by the usual trick with bits, which forgets NaN."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)


def _infinite_nan(x: Any) -> Any:
    low = np.isnan(x) & (x.astype(np.float32).view(np.uint32) & 0x7F0000 == 0)
    return np.where(low, np.copysign(np.float32(np.inf), x), fp.quantize(x, "bf16").astype(np.float32))


@pytest.mark.parametrize(
    ("fn", "fmt", "causes"),
    [
        (lambda x: np.clip(_as_is(x), -240, 240), "e4m3", ("limits results to +-240",)),
        (lambda x: _as_is(x * np.float32(1.0000001)), "e4m3", ("multiplies the input by 1.0000001192092896 first",)),
        (lambda x: _as_is(x + np.float32(1e-6)), "e4m3", ("adds 1e-06 to the input first",)),
        (
            lambda x: np.where(np.signbit(x) & ~np.isnan(x), np.float32(0), _as_is(x)), "e4m3",
            ("gives +0 for negative values",),
        ),
        (
            lambda x: np.where(np.abs(x) < 2.0**-5, 0 * x, _as_is(x)), "e4m3",
            ("gives zeros for magnitudes below 2**-5",),
        ),
        (lambda x: np.clip(x.astype(np.float16), -32768, 32768), "fp16", ("limits results to +-32768",)),
        (
            lambda x: np.where(np.isnan(x), np.float32(np.inf), np.where(np.isinf(x), np.nan, fp.quantize(x, "e5m2"))),
            "e5m2", ("gives +Inf for NaN", "gives NaN for Inf"),
        ),
        (_bits_to_bf16, "bf16", ("reads the bits of NaN as a number, and lets codes run over into the sign",)),
        (_infinite_nan, "bf16", ("gives Inf, where its first bits are none, for NaN",)),
    ],
)  # fmt: skip
def test_faults_with_numbers_and_bits_of_their_own_are_named(fn: Any, fmt: str, causes: tuple[str, ...]) -> None:
    found = fp.testing.check_quantizer(lambda x: fn(x.astype(np.float32)), fmt, raises=False)
    assert (found.causes, found.unexplained) == (causes, 0), found
