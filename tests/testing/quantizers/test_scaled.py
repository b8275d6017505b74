"""Quantizers with scales: recipes are named, and codes, scales and axes told apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.scaling.recipes import ANY_ELEMENT
from fpsim.testing.quantizers.scales.check import ScaledCheck
from tests.kit.sweeps import case, sweep

S = fp.scalings
BOTH = {"codes", "scales"}


def matrix() -> Any:
    """Tiles of different size, and so few elements that no recipe has a loop of its own compiled."""
    rng = np.random.default_rng(1)
    x = np.random.default_rng(0).standard_normal((60, 260)) * np.exp2(rng.integers(-9, 9, (60, 1)))
    return x.astype(np.float32)


def report(fn: Callable[..., Any], fmt: str, scaling: fp.Scaling) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, scaling=scaling, raises=False)


NAMES = ("ROW", "TILE_1X128", "MX", "NVFP4", "TE_MX")
RESULTS = ("scaled", "pair", "values")


@sweep("calls", [(name, RESULTS[i % 3]) for i, name in enumerate(NAMES)], list(itertools.product(NAMES, RESULTS)))
def test_fpsims_own_encodings_pass_as_scaled_pairs_and_values(calls: list[tuple[str, str]]) -> None:
    for name, result in calls:
        with case(name, result):
            check_own(ANY_ELEMENT[name], result)


def check_own(scaling: fp.Scaling, result: str) -> None:

    def pair(x: Any) -> Any:
        q = fp.encode_scaled(x, "e4m3", scaling)
        return q.codes, q.scales

    encodings: dict[str, Callable[[Any], Any]] = {
        "scaled": lambda x: fp.encode_scaled(x, "e4m3", scaling),
        "pair": pair,
        "values": lambda x: fp.quantize_scaled(x, "e4m3", scaling),
    }
    checked = report(encodings[result], "e4m3", scaling)
    assert checked.ok, checked


def test_integers_pass() -> None:
    assert report(lambda x: fp.encode_scaled(x, "int8", S.ROW), "int8", S.ROW).ok


@sweep("some", list(ANY_ELEMENT)[::7], list(ANY_ELEMENT))
def test_every_recipe_is_identified_by_its_results(some: list[str]) -> None:
    for name in some:
        scaling = ANY_ELEMENT[name]
        block = (1, *scaling.block)[-2:]
        x = matrix() if block[0] <= block[1] else np.ascontiguousarray(matrix().T)
        identity = fp.testing.identify_scaling(lambda x, s=scaling: fp.encode_scaled(x, "e4m3", s), "e4m3", x)
        assert identity.exact, (name, str(identity))
        assert name in identity.names, (name, str(identity))


def turned(scaling: fp.Scaling, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def encode(x: Any) -> Any:
        q = fp.encode_scaled(x, "e4m3", scaling)
        return q.codes, change(q.scales)

    return encode


@pytest.mark.parametrize(
    ("fn", "scaling", "cause", "broken"),
    [
        (lambda x: fp.encode_scaled(x, "e4m3", S.MX_CEIL), S.MX, "has scale_rule='ceil', not 'floor'", BOTH),
        (
            lambda x: fp.encode_scaled(x, "e4m3", S.TILE_128X1), S.TILE_1X128, "has block=(128, 1), not (1, 128)",
            {"codes", "axis"},
        ),
        (
            lambda x: fp.encode_scaled(x, "e4m3", S.TILE_1X128.replace(amax_floor=1e-10)), S.TILE_1X128,
            "has amax_floor=1e-10, not 0.0", {"codes", "scales"},
        ),
        (
            turned(S.ROW, lambda s: np.float32(1) / s), S.ROW,
            "returns encode scales, 1 / scale, instead of scales", {"scales"},
        ),
        (
            turned(S.BLOCK_128X128, lambda scales: scales.T.copy()), S.BLOCK_128X128,
            "returns its scales transposed", {"scales"},
        ),
    ],
)  # fmt: skip
def test_wrong_scales_are_named(fn: Any, scaling: fp.Scaling, cause: str, broken: set[str]) -> None:
    checked = report(fn, "e4m3", scaling)
    assert checked.causes == (cause,), checked
    assert {one.property for one in checked.broken} == broken


WIDTH = 16
TILES = S.TILE_1X128.replace(block=(1, WIDTH))  # whose matrices are an eighth as large


def elements(x: Any, scales: Any, **cast: Any) -> Any:
    """Return codes of elements that have these scales, one for each of TILES."""
    quotients = np.float32(x) / scales.repeat(WIDTH, 1)[:, : x.shape[1]]
    return fp.encode(quotients, "e4m3", overflow="saturate_finite", **cast)


def scaled(change: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any], Any]:
    """Return a quantizer whose codes and scales of TILES are what a function makes of the matrix and these scales."""
    return lambda x: change(x, np.array(fp.encode_scaled(x, "e4m3", TILES).scales))


def neighbours(x: Any, scales: Any) -> tuple[Any, Any]:
    moved = np.hstack([scales[:, :1], scales[:, :-1]])
    return elements(x, moved), moved


def doubled(x: Any, scales: Any) -> tuple[Any, Any]:
    return elements(x, scales), 2 * scales


def zeros_to_nan(x: Any, scales: Any) -> tuple[Any, Any]:
    codes = elements(x, scales)
    for tile in range(scales.shape[1]):
        part = slice(WIDTH * tile, WIDTH * tile + WIDTH)
        codes[(x[:, part] == 0).all(1), part] = 0x7F
    return codes, scales


def truncated(x: Any, scales: Any) -> tuple[Any, Any]:
    return elements(x, scales, rounding="RTZ"), scales


def signed(x: Any, scales: Any) -> tuple[Any, Any]:
    got = np.array(fp.encode_scaled(np.where(np.isnan(x), x, np.maximum(x, 0)), "e4m3", TILES).scales)
    return elements(x, got), got


def through_bf16(x: Any, scales: Any) -> tuple[Any, Any]:
    return elements(fp.quantize(x, "bf16"), scales), scales


def limited(x: Any, scales: Any) -> tuple[Any, Any]:
    return fp.encode(np.clip(fp.decode(elements(x, scales), "e4m3"), -240, 240), "e4m3"), scales


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (neighbours, "has as scales those of the tile before along the row"),
        (doubled, "returns as scales 2 times the right ones, and scales elements by the right ones"),
        (zeros_to_nan, "gives tiles of zeros elements nan"),
        (truncated, "rounds elements toward zero"),
        (signed, "has as scales those of the largest value, not the largest magnitude"),
        (through_bf16, "rounds elements to BF16 before it divides them by their scale"),
        (limited, "limits elements to +-240"),
    ],
)
def test_faults_beside_a_recipe_are_named(change: Any, cause: str) -> None:
    whole = {"has nan='element', not 'tile'"}  # NaN is a number among others to elements()
    checked = report(np.errstate(all="ignore")(scaled(change)), "e4m3", TILES)
    assert checked.unexplained == 0, checked
    assert checked.causes[0] == cause, checked
    assert set(checked.causes[1:]) <= whole, checked


def test_scales_of_the_call_before_are_named() -> None:
    last: list[Any] = []

    def stale(x: Any) -> Any:
        right = fp.encode_scaled(x, "e4m3", TILES)
        scales = last[-1] if last and last[-1].shape == right.scales.shape else right.scales
        last.append(right.scales)
        return fp.encode_scaled(x, "e4m3", TILES, scales=scales).codes, scales

    checked = report(stale, "e4m3", TILES)
    assert "calls" in {one.property for one in checked.broken}
    assert checked.causes == ("has as scales those of the call before",), checked


RECIPROCAL = ": it multiplies by the rounded reciprocal of the scale"


@pytest.mark.parametrize(
    ("scaling", "changes", "cause"),
    [
        (TILES, {"division": "multiply"}, f"has division='multiply', not 'divide'{RECIPROCAL}"),
        (S.NVFP4, {"scale_rounding": "nearest_away"}, "has scale_rounding=NEAREST_AWAY, not None"),
        (S.NVFP4, {"tensor_scale": False}, "has tensor_scale=False, not True"),
    ],
)
def test_recipes_are_told_apart_at_ties(scaling: fp.Scaling, changes: dict[str, Any], cause: str) -> None:
    checked = report(lambda x: fp.encode_scaled(x, "e2m1", scaling.replace(**changes)), "e2m1", scaling)
    assert checked.causes == (cause,), checked


def test_another_block_behind_values_is_named() -> None:
    checked = report(lambda x: fp.quantize_scaled(x, "e2m1", S.NVFP4), "e2m1", S.MX)
    assert "has block=(1, 16), not (1, 32)" in checked.causes
    assert "Its recipe is fp.scalings.NVFP4" in str(checked)


def test_tiles_of_the_flattened_array_are_named() -> None:
    def flat(x: Any) -> Any:
        return fp.quantize_scaled(x.reshape(1, -1), "e4m3", S.MX).reshape(x.shape)

    checked = report(flat, "e4m3", S.MX)
    assert checked.causes == ("cuts tiles from the flattened array, across the ends of rows",), checked
    assert checked.unexplained == 0


def test_what_does_not_round_is_named() -> None:
    checked = report(lambda x: x, "e4m3", S.MX)
    assert (checked.causes, checked.unexplained) == (("does not round at all",), 0)
    assert "explains all" in checked.diagnosis
    assert report(lambda x: x / 2, "e4m3", S.MX).causes != checked.causes


def test_bad_results_are_said() -> None:
    (broken,) = report(lambda x: "nothing", "e4m3", S.MX).broken
    assert broken.property == "returns"
    with pytest.raises(ValueError, match=r"scaling must be one of .* got 'MXFP8'"):
        fp.testing.check_quantizer(abs, "e4m3", scaling="MXFP8")
    with pytest.raises(ValueError, match="x must be a float32 matrix with elements; got"):
        fp.testing.identify_scaling(abs, "e4m3", [1.0])


def test_a_check_compiles_no_loop_for_a_single_recipe_that_it_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries hundreds, and a loop takes a second to compile."""
    from fpsim.scaling import plan, run_tiles
    from fpsim.scaling.kernels import elements as kernels
    from fpsim.scaling.kernels import scales

    settles, elements = scales.settle_kernel, kernels.element_strips
    fixed: list[Any] = []

    def settle_kernel(width: int, encodes: bool, choices: Any) -> Any:
        fixed.append(choices)
        return settles(width, encodes, choices)

    def element_strips(how: Any) -> Any:
        fixed.append(how.choices)
        return elements(how)

    monkeypatch.setattr(plan, "settle_kernel", settle_kernel)
    monkeypatch.setattr(run_tiles, "element_strips", element_strips)
    # a large matrix has the function under test, here fpsim's own, compile such a loop
    monkeypatch.setattr(ScaledCheck, "compare_large", lambda check, x: None)
    run_tiles._short_loops.cache_clear()
    for scaling in (fp.scalings.MX, fp.scalings.NVFP4):
        assert fp.testing.check_quantizer(
            lambda x, how=scaling: fp.encode_scaled(x, "e4m3", how), "e4m3", scaling=scaling
        ).ok
    assert len(fixed) > 100
    assert set(fixed) == {None}

    fixed.clear()  # matrices of such long tiles are large: loops are compiled for the promised recipe, and no other
    scaling = fp.Scaling(block=(1, 1024))
    assert fp.testing.check_quantizer(lambda x: fp.encode_scaled(x, "e4m3", scaling), "e4m3", scaling=scaling).ok
    assert len(fixed) > 100
    assert len(set(fixed)) <= 3


def test_results_that_a_later_call_overwrites_are_a_fault_and_are_judged_as_they_were() -> None:
    held: dict[Any, Any] = {}

    def keeps(name: str, x: Any) -> Any:
        held.setdefault((name, x.shape), np.empty_like(x))[...] = x
        return held[name, x.shape]

    def again(x: Any) -> Any:
        q = fp.encode_scaled(x, "e4m3", S.MX_CEIL)
        return keeps("codes", np.asarray(q.codes)), keeps("scales", np.asarray(q.scales))

    found = report(again, "e4m3", S.MX_CEIL)
    assert [each.property for each in found.broken] == ["calls"]
    assert "a later call overwrites the memory of what fn returned" in found.broken[0].why
    found = report(again, "e4m3", S.MX)
    assert found.causes == ("has scale_rule='ceil', not 'floor'",)


@pytest.mark.parametrize(("noun", "axis"), [("row", 0), ("column", 1)])
def test_a_single_row_and_a_single_column_are_compared(noun: str, axis: int) -> None:
    def thin(x: Any) -> Any:
        q = fp.encode_scaled(x, "e4m3", S.MX)
        return q.codes, np.asarray(q.scales) * (2 if x.shape[axis] == 1 else 1)

    found = report(thin, "e4m3", S.MX)
    assert [each.property for each in found.broken] == ["size"]
    assert "is wrong, where other ones are right: scales" in found.broken[0].why

    def refuses(x: Any) -> Any:
        if x.shape[axis] == 1:
            raise ValueError("too thin")
        return fp.encode_scaled(x, "e4m3", S.MX)

    found = report(refuses, "e4m3", S.MX)
    assert found.ok
    assert any(f"it refuses a single {noun}: " in note for note in found.notes)


@pytest.mark.parametrize("name", ["MX", "TILE_1X128", "ROW"])
def test_a_path_for_multiples_of_128_is_visited(name: str) -> None:
    def quantizer(x: Any) -> Any:
        q = fp.encode_scaled(x, "e4m3", name)
        if max(x.shape) > 128 and not (x.shape[0] % 128 or x.shape[1] % 128):
            q.codes[-1, -1] ^= 0x80
        return q

    (broken,) = report(quantizer, "e4m3", ANY_ELEMENT[name]).broken
    assert broken.property == "size"


def test_a_square_matrix_that_comes_back_transposed_is_found() -> None:
    def square(x: Any) -> Any:
        q = fp.encode_scaled(x, "int8", S.ROW)
        return (q.codes.T if x.shape[0] == x.shape[1] else q.codes), q.scales

    (broken,) = report(square, "int8", S.ROW).broken
    assert broken.property == "size"
    assert broken.why.startswith("a matrix of shape (48, 48) is wrong, where other ones are right: codes")


@pytest.mark.parametrize("scaling", ["MX_EVEN", "ROW", "TILE_128X1", "TE_128X128"])
def test_a_scale_without_the_last_element_of_the_matrix_is_found(scaling: str) -> None:
    def fn(x: Any) -> Any:
        shorter = x.copy()
        shorter[-1, -1] = 0
        scales = fp.encode_scaled(shorter, "e2m1", scaling).scales
        q = fp.encode_scaled(x, "e2m1", scaling, scales=np.where(np.isinf(scales), 1, scales))
        return q.codes, q.scales

    report = fp.testing.check_quantizer(fn, "e2m1", scaling=scaling, raises=False)
    assert report.differ > 0


@pytest.mark.parametrize("scaling", ["NVFP4_46", "TE_NVFP4", "IF4"])
def test_a_rounded_input_is_named_for_scalings_that_choose_between_encodings(scaling: str) -> None:
    def fn(x: Any) -> Any:
        q = fp.encode_scaled(fp.quantize(x, "bf16").astype(np.float32), "e2m1", scaling)
        return q.codes, q.scales

    report = fp.testing.check_quantizer(fn, "e2m1", scaling=scaling, raises=False)
    assert (report.causes, report.unexplained) == (("rounds the input to BF16 first",), 0)


def test_a_fault_of_one_kind_of_matrix_is_not_explained_by_faults_that_change_nothing() -> None:
    def fn(x: Any) -> Any:
        q = fp.encode_scaled(np.clip(x, -3e38, 3e38), "e2m1", "IF4")
        return q.codes, q.scales

    report = fp.testing.check_quantizer(fn, "e2m1", scaling="IF4", raises=False)
    assert report.causes == ("treats matrices with an Inf as no recipe that was tried does",)


def test_a_wrong_quantizer_to_logarithms_gets_a_report() -> None:
    def fn(x: Any) -> Any:
        q = fp.encode_scaled(x, "logfmt-8", S.TILE_1X128)
        return np.where(q.codes == 5, 6, q.codes).astype(q.codes.dtype), q.scales

    assert fp.testing.check_quantizer(fn, "logfmt-8", scaling=S.TILE_1X128, raises=False).differ
