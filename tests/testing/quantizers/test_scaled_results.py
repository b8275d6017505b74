"""Quantizers with scales: every form of results is read, and faults that show in few places are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fpsim as fp
from tests.kit.sweeps import in_turn

Array = Any
AFFINE = fp.Scaling(block=(1, 32), symmetric=False)
TILES = fp.scalings.TILE_1X128.replace(block=(1, 16))


def report(fn: Callable[..., Any], fmt: str, scaling: Any) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, scaling=scaling, raises=False)


def packed(codes: Array, high_first: bool = False) -> Array:
    """Return two codes per byte, the first in the low bits."""
    nibbles = np.asarray(codes).view(np.uint8) & 15
    nibbles = np.pad(nibbles, ((0, 0), (0, nibbles.shape[1] % 2)))
    first, second = nibbles[:, ::2], nibbles[:, 1::2]
    return (second | first << 4) if high_first else (first | second << 4)


# ---- forms of results


def two_levels(
    levels: Callable[[Any], tuple[Any, ...]], codes: Callable[[Array], Any] = np.asarray
) -> Callable[[Array], Any]:
    def fn(x: Array) -> Any:
        q: Any = fp.encode_scaled(np.asarray(x), "e2m1", "NVFP4")
        return codes(q.codes), *levels(q)

    return fn


E4M3 = ml_dtypes.float8_e4m3fn
FORMS: dict[str, Callable[[Array], Any]] = {
    "bytes and a tensor scale": two_levels(lambda q: (q.scale_codes, q.tensor_scale)),
    "E4M3 and a tensor scale": two_levels(lambda q: (q.scale_codes.view(E4M3), q.tensor_scale)),
    "bytes alone": two_levels(lambda q: (q.scale_codes,)),
    "the product of both levels": two_levels(lambda q: (q.scales,)),
    "no third part": two_levels(lambda q: (q.scales, None)),
    "packed": two_levels(lambda q: (q.scale_codes, q.tensor_scale), packed),
    "packed tensors": two_levels(
        lambda q: (torch.from_numpy(q.scale_codes).view(torch.float8_e4m3fn), torch.tensor(q.tensor_scale)),
        lambda codes: torch.from_numpy(packed(codes)).view(torch.float4_e2m1fn_x2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_two_levels_of_scales_pass_in_every_form(form: str) -> None:
    checked = report(FORMS[form], "e2m1", "NVFP4")
    assert checked.ok, checked
    assert ("tensor scale" in checked.held) == ("tensor scale" in form or "packed" in form)


@pytest.mark.parametrize("factor", [1 + 2.0**-23, 2.0])
def test_a_wrong_tensor_scale_is_found(factor: float) -> None:
    fn = two_levels(lambda q: (q.scale_codes, np.float32(q.tensor_scale * np.float32(factor))))
    assert "tensor scale" in {one.property for one in report(fn, "e2m1", "NVFP4").broken}


def test_a_tensor_scale_of_nan_twice_is_no_difference_between_two_calls() -> None:
    fn = two_levels(lambda q: (q.scale_codes, np.float32(np.nan)))
    assert "calls" not in {one.property for one in report(fn, "e2m1", "NVFP4").broken}


def test_scale_bytes_are_codes_of_the_scalings_own_format() -> None:
    as_e8m0 = two_levels(lambda q: (fp.encode(fp.decode(q.scale_codes, "e4m3"), "e8m0"), q.tensor_scale))
    assert "scales" in {one.property for one in report(as_e8m0, "e2m1", "NVFP4").broken}
    assert report(lambda x: (q := fp.encode_scaled(x, "e4m3", "MX")) and (q.codes, q.scale_codes), "e4m3", "MX").ok


@pytest.mark.parametrize(
    ("fmt", "scaling"),
    [("int4", TILES), ("uint4", AFFINE), pytest.param("e2m1", fp.scalings.MX, marks=pytest.mark.slow)],
)
def test_two_codes_per_byte_pass_and_their_other_order_is_named(fmt: str, scaling: fp.Scaling) -> None:
    def pack(high_first: bool) -> Callable[[Array], Any]:
        def fn(x: Array) -> Any:
            q: Any = fp.encode_scaled(x, fmt, scaling)
            rest = () if q.zero_points is None else (q.zero_points,)
            return packed(q.codes, high_first), q.scales, *rest

        return fn

    right = report(pack(False), fmt, scaling)
    assert right.ok, right
    wrong = report(pack(True), fmt, scaling)
    assert wrong.causes == ("packs the first of two codes in the high bits of a byte, not in the low ones",), wrong


def test_more_parts_than_a_scaling_has_are_refused() -> None:
    def fn(x: Array) -> Any:
        q: Any = fp.encode_scaled(x, "e4m3", "MX")
        return q.codes, q.scales, np.float32(1)

    (broken,) = report(fn, "e4m3", "MX").broken
    assert broken.why.startswith(
        "fn must return (codes, scales), as fp.scalings.MX has neither a tensor scale nor zero"
    )


# ---- zero points


def affine(fmt: str, of_points: int, of_codes: int) -> Callable[[Array], Any]:
    """Return a quantizer whose zero points and codes are off."""
    low, high = {"uint8": (0, 255), "int8": (-128, 127), "uint4": (0, 15), "int4": (-8, 7)}[fmt]

    def moved(integers: Any, by: int) -> Array:
        return np.clip(integers.astype(int) + by, low, high).astype(integers.dtype)

    def fn(x: Array) -> Any:
        q: Any = fp.encode_scaled(x, fmt, AFFINE)
        return moved(q.codes, of_codes), q.scales, moved(q.zero_points, of_points)

    return fn


@in_turn("fmt, by", [(fmt, by) for fmt in ("uint8", "int4", "int8", "uint4") for by in (1, -1)], some=[("uint8", -1)])
def test_zero_points_that_are_off_are_named(fmt: str, by: int) -> None:
    assert report(affine(fmt, 0, 0), fmt, AFFINE).ok
    causes = {
        (by, by): f"has zero points that are off by {by:+d}",
        (by, 0): f"returns zero points that are off by {by:+d}, and codes of the right ones",
        (0, by): f"adds zero points that are off by {by:+d}, and returns the right ones",
    }
    for moves, cause in causes.items():
        shifted = report(affine(fmt, *moves), fmt, AFFINE)
        assert (shifted.causes, shifted.unexplained) == ((cause,), 0), shifted


def test_zero_points_that_do_not_come_back_are_said() -> None:
    checked = report(lambda x: (q := fp.encode_scaled(x, "uint8", AFFINE)) and (q.codes, q.scales), "uint8", AFFINE)
    assert "fn must return (codes, scales, zero points)" in str(checked)
    assert report(lambda x: fp.encode_scaled(x, "uint8", AFFINE), "uint8", AFFINE).ok
    assert report(lambda x: fp.quantize_scaled(x, "uint8", AFFINE), "uint8", AFFINE).ok


# ---- shapes, layouts, ranges


def test_whole_tiles_are_enough_and_partial_ones_are_a_note() -> None:
    def whole(x: Array) -> Any:
        if x.shape[1] % 16:
            raise ValueError("the last axis must be divisible by 16")
        return fp.encode_scaled(x, "e4m3", TILES)

    checked = report(whole, "e4m3", TILES)
    assert checked.ok, checked
    assert any("it refuses partial tiles: fn raised ValueError" in note for note in checked.notes)
    every = report(lambda x: fp.encode_scaled(x, "e4m3", TILES), "e4m3", TILES)
    assert not every.notes
    assert any(shape[1] % 16 for shape in every.covered.shapes)
    assert not any(shape[1] % 16 for shape in checked.covered.shapes)

    def wrong_at_the_end(x: Array) -> Any:
        q = fp.encode_scaled(x, "e4m3", TILES)
        return q.codes ^ np.uint8(0x80 * bool(x.shape[1] % 16)), q.scales

    assert not report(wrong_at_the_end, "e4m3", TILES).ok


@pytest.mark.usefixtures("of_a_million")
@pytest.mark.parametrize(
    ("fmt", "scaling", "first"),
    [("e4m3", TILES, 1 << 14), ("e4m3", fp.scalings.MX, 1 << 16), ("int8", fp.scalings.ROW, 1 << 18)],
)
def test_what_is_wrong_beyond_an_element_is_found(fmt: str, scaling: fp.Scaling, first: int) -> None:
    def beyond(start: int) -> Callable[[Array], Any]:
        def fn(x: Array) -> Any:
            q = fp.encode_scaled(x, fmt, scaling)
            codes = np.array(q.codes)
            codes.reshape(-1)[start:] = 1
            return codes, q.scales

        return fn

    checked = report(beyond(first), fmt, scaling)
    assert [one.property for one in checked.broken] == ["size"], checked
    assert checked.covered.sizes[1] > 1 << 20
    assert report(beyond(1 << 40), fmt, scaling).ok


@pytest.mark.usefixtures("of_a_million")
def test_scales_that_are_wrong_beyond_a_tile_are_found() -> None:
    def fn(x: Array) -> Any:
        q: Any = fp.encode_scaled(x, "e4m3", TILES)
        scales = np.array(q.scales)
        scales.reshape(-1)[1 << 14 :] *= 2
        return q.codes, scales

    (broken,) = report(fn, "e4m3", TILES).broken
    assert (broken.property, "scales" in broken.why) == ("size", True)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_layout_that_is_read_wrong_is_found(axis: int) -> None:
    def fn(x: Array) -> Any:
        return fp.encode_scaled(np.flip(x, axis) if x.strides[axis] < 0 else x, "e4m3", TILES)

    (broken,) = report(fn, "e4m3", TILES).broken
    assert broken.property == "layout"
    assert f"'{('rows', 'columns')[axis]} reversed'" in broken.why
    right = report(lambda x: fp.encode_scaled(x, "e4m3", TILES), "e4m3", TILES)
    assert {"rows reversed", "columns reversed", "Fortran order"} <= set(right.covered.layouts)
    assert right.covered.smallest == 2.0**-149


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)


@pytest.mark.parametrize("scaling", [fp.scalings.MX, fp.scalings.ROW, TILES], ids=["MX", "ROW", "tiles"])
def test_scales_of_subnormal_magnitudes_are_checked(scaling: fp.Scaling) -> None:
    both = report(lambda x: fp.encode_scaled(flushed(x), "e4m3", scaling), "e4m3", scaling)
    assert both.causes == ("takes subnormals of the input for zeros",), both

    def scales_alone(x: Array) -> Any:
        scales = fp.encode_scaled(flushed(x), "e4m3", scaling).scales
        return fp.encode_scaled(x, "e4m3", scaling, scales=scales).codes, scales

    checked = report(scales_alone, "e4m3", scaling)
    assert checked.causes == ("has as scales those of the input without its subnormals",), checked


def ties_of(negative: bool, fmt: str, scaling: fp.Scaling) -> Callable[[Array], Any]:
    """Return a quantizer to integers that takes ties of one sign away from zero."""

    def fn(x: Array) -> Any:
        q: Any = fp.encode_scaled(x, fmt, scaling)
        with np.errstate(all="ignore"):
            quotient = (x / q.scales.repeat(scaling.block[1], 1)[:, : x.shape[1]]).astype(np.float64)
        tie = (np.abs(quotient) - np.floor(np.abs(quotient)) == 0.5) & (np.signbit(x) == negative)
        away = np.trunc(quotient) + np.copysign(1, quotient)
        return np.where(tie, away, q.codes).astype(np.int8), q.scales

    return fn


@pytest.mark.parametrize("fmt", ["int8", "int4"])
def test_negative_ties_of_integers_are_checked(fmt: str) -> None:
    checked = report(ties_of(True, fmt, TILES), fmt, TILES)
    assert checked.causes == ("takes ties of elements away from zero for negative values",), checked
    assert not report(ties_of(False, fmt, TILES), fmt, TILES).ok


def test_layouts_that_torch_does_not_have_are_not_said_to_be_refused_by_a_function_of_tensors() -> None:
    def of_tensors(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            raise TypeError("give a tensor")
        q = fp.encode_scaled(x.numpy(), "e4m3", fp.scalings.MX)
        return torch.from_numpy(q.codes), torch.from_numpy(q.scales)

    checked = report(of_tensors, "e4m3", fp.scalings.MX)
    assert checked.ok
    (note,) = checked.notes
    assert "give a tensor" in note
    assert "torch has no tensors with negative strides" in note
    assert "ValueError" not in note


def test_a_seed_without_stochastic_rounding_does_not_keep_large_matrices_from_being_compared() -> None:
    def fn(x: Array) -> Any:
        q = fp.encode_scaled(x, "e4m3", "MX")
        codes = q.codes.copy()
        codes.reshape(-1)[1 << 14 :] = 0
        return codes, q.scales

    checked = fp.testing.check_quantizer(fn, "e4m3", scaling="MX", seed=3, raises=False)
    assert [one.property for one in checked.broken] == ["size"]
