"""Casts to integers, and quantizers to integers of which nothing is known: checked, identified, named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp
from tests.kit.sweeps import in_turn

Array = Any
AFFINE = fp.Scaling(block=(-1, -1), symmetric=False)
TENTH = np.float32(0.1)


def report(fn: Callable[..., Any], fmt: str = "int8", **keywords: Any) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, raises=False, **keywords)


def limited(integers: Array, low: int = -128, high: int = 127) -> Array:
    return np.clip(integers, low, high).astype(np.int8 if low < 0 else np.uint8)


def whole(x: Array) -> Array:
    return np.clip(x, -(2.0**31), 2.0**31).astype(np.int64)


def away(y: Array) -> Array:
    y = np.float64(y)
    return np.trunc(y + np.copysign(0.5, y))


RIGHT: dict[str, tuple[Callable[..., Any], str]] = {
    "INT8": (lambda x: limited(np.rint(x)), "int8"),
    "INT8 from -127": (lambda x: limited(np.rint(x), -127), "int8"),
    "UINT8": (lambda x: limited(np.rint(x), 0, 255), "uint8"),
    "INT4": (lambda x: limited(np.rint(x), -8, 7), "int4"),
    "values": (lambda x: np.clip(np.rint(x), -128, 127).astype(np.float32), "int8"),
    "torch": (lambda x: torch.clamp(torch.round(x.contiguous()), -128, 127).to(torch.int8), "int8"),
}


@in_turn("form", RIGHT)
def test_casts_to_integers_pass_without_a_scale(form: str) -> None:
    fn, fmt = RIGHT[form]
    assert report(fn, fmt).ok, report(fn, fmt)


WRONG: dict[str, tuple[Callable[[Array], Array], str, tuple[str, ...]]] = {
    "aiter 4637: truncates and wraps": (
        lambda x: whole(np.trunc(x)).astype(np.int8), "int8",
        ("rounds toward zero", "wraps around where it should saturate")),
    "wraps alone": (
        lambda x: whole(np.rint(x)).astype(np.int8), "int8", ("wraps around where it should saturate",)),
    "wraps from INT32 that saturates": (
        lambda x: np.clip(np.rint(np.float64(x)), -(2**31), 2**31 - 1).astype(np.int64).astype(np.int8), "int8",
        ("wraps around where it should saturate, from integers of 32 bits that saturate",)),
    "wraps above": (
        lambda x: whole(np.maximum(np.rint(x), -128)).astype(np.int8), "int8", ("wraps around above its range",)),
    "UINT8 wraps below": (
        lambda x: whole(np.minimum(np.rint(x), 255)).astype(np.uint8), "uint8", ("wraps around below its range",)),
    "INT4 wraps": (
        lambda x: ((whole(np.rint(x)) + 8) % 16 - 8).astype(np.int8), "int4",
        ("wraps around where it should saturate",)),
    "sglang-jax 1598: no rounding": (lambda x: limited(np.trunc(x)), "int8", ("rounds toward zero",)),
    "tt-metal 56525: ties away": (lambda x: limited(away(x)), "int8", ("takes ties away from zero",)),
    "no sign": (lambda x: limited(np.rint(np.abs(x))), "int8", ("drops the sign",)),
    "no negative values": (lambda x: limited(np.rint(np.maximum(x, 0))), "int8", ("gives 0 for negative values",)),
    "up to 126": (
        lambda x: limited(np.rint(x), -128, 126), "int8", ("never gives its top code: 126 takes the place of 127",)),
    "a scale": (lambda x: limited(np.rint(x / TENTH)), "int8", ("divides by 0.1: pass scale=",)),
    "a scale and ties away": (
        lambda x: limited(away(x / np.float32(0.5))), "int8",
        ("divides by 0.5: pass scale=", "takes ties away from zero")),
    "a zero point": (
        lambda x: limited(np.rint(x / TENTH) + 5), "int8",
        ("divides by 0.1: pass scale=", "adds the zero point 5: pass zero_point=")),
}  # fmt: skip


@in_turn("fault", WRONG)
def test_faults_of_casts_to_integers_are_named(fault: str) -> None:
    fn, fmt, causes = WRONG[fault]
    checked = report(fn, fmt)
    assert (checked.causes, checked.unexplained) == (causes, 0), checked


def test_a_wrapping_quantizer_with_a_given_scale_and_zero_point_is_named() -> None:
    def fn(x: Array) -> Array:
        return (whole(np.rint(x / TENTH)) + 128).astype(np.uint8)

    assert report(fn, "uint8", scale=0.1, zero_point=128).causes == ("wraps around where it should saturate",)


@pytest.mark.parametrize("mode", ["up", "down", "toward_zero", "odd"])
def test_rounding_to_nearest_is_called_that_where_a_directed_mode_is_promised(mode: str) -> None:
    words = ("rounds to nearest, ties to the even code",)
    assert report(lambda x: limited(np.rint(x)), rounding=mode).causes == words
    assert report(lambda x: limited(np.rint(x / TENTH)), rounding=mode, scale=0.1).causes == words


Identity = tuple[float, int, str, str, tuple[str, ...]]  # scale, zero point, rounding, overflow, faults
IDENTITIES: dict[str, tuple[Callable[[Array], Array], str, Identity]] = {
    "tract 2850": (
        lambda x: limited(away(x / np.float32(0.5))), "int8", (0.5, 0, "nearest_away", "saturate", ())),
    "a cast": (lambda x: limited(np.rint(x)), "int8", (1.0, 0, "nearest_even", "saturate", ())),
    "a zero point": (
        lambda x: limited(np.rint(x / np.float32(0.037)) + 200, 0, 255), "uint8",
        (0.037, 200, "nearest_even", "saturate", ())),
    "the last zero point": (
        lambda x: limited(np.trunc(x / TENTH) + 255, 0, 255), "uint8", (0.1, 255, "toward_zero", "saturate", ())),
    "up": (lambda x: limited(np.ceil(x / TENTH)), "int8", (0.1, 0, "up", "saturate", ())),
    "no round number": (
        lambda x: limited(np.rint(x / np.float32(0.0123456))), "int8",
        (0.0123456, 0, "nearest_even", "saturate", ())),
    "127": (
        lambda x: limited(np.rint(x * np.float32(127))), "int8",
        (1 / 127, 0, "nearest_even", "saturate", ("multiplies by the reciprocal of the scale",))),
    "wraps": (
        lambda x: whole(np.rint(x / TENTH)).astype(np.int8), "int8",
        (0.1, 0, "nearest_even", "wrap", ("wraps around where it should saturate",))),
    "INT4": (
        lambda x: limited(np.rint(x / np.float32(3.0)), -8, 7), "int4", (3.0, 0, "nearest_even", "saturate", ())),
    "floor(y + 0.5)": (
        lambda x: limited(np.floor(x / TENTH + np.float32(0.5))), "int8",
        (0.1, 0, "half_added_up", "saturate",
         ("gives floor(y + 0.5) in float32: takes ties up, and the float below the first tie too",))),
    "values": (
        lambda x: np.clip(np.rint(x / TENTH), -127, 127).astype(np.float32) * TENTH, "int8",
        (0.1, 0, "nearest_even", "saturate", ())),
    "values with a zero point": (
        lambda x: (np.clip(np.rint(x / TENTH) + 3, 0, 255) - 3).astype(np.float32) * TENTH, "uint8",
        (0.1, 3, "nearest_even", "saturate", ())),
}  # fmt: skip


@in_turn("name", IDENTITIES)
def test_scale_zero_point_and_rounding_are_identified(name: str) -> None:
    fn, fmt, (scale, zero_point, rounding, overflow, faults) = IDENTITIES[name]
    found: Any = fp.testing.identify_quantizer(fn, fmt)
    assert found.exact, found
    assert np.float32(found.scale) == np.float32(scale)
    assert (found.zero_point, found.rounding, found.overflow, found.faults) == (zero_point, rounding, overflow, faults)
    assert found.is_policy == (not faults)
    if found.is_policy and overflow == "saturate":
        assert report(fn, fmt, **found.keywords).ok


def test_what_nothing_explains_is_no_identity() -> None:
    found: Any = fp.testing.identify_quantizer(lambda x: limited(np.rint(np.sin(x.astype(np.float64)) * 100)), "int8")
    assert (found.exact, found.is_policy) == (False, False)
    assert str(found).startswith("No cause gives all results. The nearest, INT8")
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="not deterministic"):
        fp.testing.identify_quantizer(lambda x: limited(np.rint(x + rng.random(x.shape))), "int8")
    with pytest.raises(TypeError, match="fn must be a function"):
        fp.testing.identify_quantizer(3, "int8")  # type: ignore[call-overload]


# ---- ONNX's DynamicQuantizeLinear


def dynamic(element: Callable[[Array], Array], point: Callable[[Array], Array], wraps: bool = False) -> Any:
    """Return the operator, with the rounding of elements and of zero points."""

    def fn(x: Array) -> Any:
        low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
        scale = (high - low) / np.float32(255) or np.float32(1)
        zero_point = np.clip(point(-low / scale), 0, 255)
        integers = element(x / scale) + zero_point
        codes = whole(integers).astype(np.uint8) if wraps else limited(integers, 0, 255)
        return codes, scale, np.uint8(zero_point)

    return fn


OPERATOR = "ONNX's DynamicQuantizeLinear"
DYNAMIC: dict[str, tuple[Any, tuple[str, ...]]] = {
    "right": (dynamic(np.rint, np.rint), ()),
    "tract 2850: ties away": (
        dynamic(away, away), ("takes ties of elements away from zero", "takes ties of zero points away from zero")),
    "ties of elements": (dynamic(away, np.rint), ("takes ties of elements away from zero",)),
    "ties of zero points": (dynamic(np.rint, away), ("takes ties of zero points away from zero",)),
    "zero points cut": (dynamic(np.rint, np.trunc), ("rounds toward zero, in zero points",)),
    "wraps": (dynamic(np.rint, np.rint, True), ("wraps around where it should saturate, in its elements",)),
}  # fmt: skip


@in_turn("name", DYNAMIC, some=("right", "tract 2850: ties away", "wraps"))
def test_dynamic_quantize_linear_is_named_with_its_faults(name: str) -> None:
    fn, faults = DYNAMIC[name]
    found: Any = fp.testing.identify_quantizer(fn, "uint8")
    assert (found.operator, found.faults, found.exact) == (OPERATOR, faults, not faults), found
    assert str(found).startswith(OPERATOR) or OPERATOR in str(found)
    if faults:
        assert report(fn, "uint8", scaling=AFFINE).causes == faults
    x = np.array([-127, 128, 0.5], np.float32)  # of the report
    assert fn(x)[0][2] == {"tract 2850: ties away": 128, "ties of elements": 128}.get(name, 127)


@pytest.mark.parametrize(
    ("largest", "cause"),
    [
        (128, "has as scales amax/128, and wraps around where it should saturate"),
        (None, "wraps around where it should saturate, in its elements"),
    ],
)
def test_integers_with_a_scale_per_row_that_wrap_are_named(largest: int | None, cause: str) -> None:
    scaling = fp.scalings.ROW if largest else fp.Scaling(block=(1, 32), scale_format=fp.E8M0, scale_rule="floor")

    def fn(x: Array) -> Any:
        q: Any = fp.encode_scaled(x, "int8", scaling)
        scales = q.scales
        if largest:
            amax = np.where(np.isfinite(x), np.abs(x), np.float32(0)).max(1, keepdims=True)
            scales = np.where(amax > 0, amax / np.float32(largest), scales).astype(np.float32)
        block = x.shape[1] if largest else 32
        spread = scales.repeat(block, 1)[:, : x.shape[1]]
        with np.errstate(all="ignore"):
            quotients = x / spread
        codes = whole(np.rint(np.nan_to_num(quotients, posinf=0, neginf=0))).astype(np.int8)
        return np.where(np.isfinite(quotients), codes, q.codes).astype(np.int8), scales

    checked = report(fn, "int8", scaling=scaling)
    assert checked.causes == (cause,), checked


def test_a_function_that_finds_its_scale_is_told_what_to_pass() -> None:
    checked = report(dynamic(np.rint, np.rint), "uint8")
    assert "got 3 arrays. Pass scaling= for a function that finds its scales" in str(checked)
    assert OPERATOR in str(checked)
