"""Quantizers whose scale is given: ONNX's forms pass, and the usual faults are named."""

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


def report(fn: Callable[..., Any], fmt: str, **keywords: Any) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, raises=False, **keywords)


def linear(x: Array, scale: Any, zero_point: Any = 0, fmt: Any = np.int8) -> Array:
    """ONNX's QuantizeLinear."""
    low, high = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7)}[np.dtype(fmt).name]
    integers = np.rint(x.astype(np.float32) / np.float32(scale)) + np.float32(zero_point)
    return np.clip(integers, low, high).astype(fmt)


def half_away(x: Array, scale: float) -> Array:
    quotient = (x / np.float32(scale)).astype(np.float64)
    return np.clip(np.trunc(quotient + np.copysign(0.5, quotient)), -128, 127).astype(np.int8)


SCALES = np.array([0.1, 0.3, 2.0], np.float32)
RIGHT: dict[str, tuple[Callable[..., Any], str, dict[str, Any]]] = {
    "INT8 by a closure": (lambda x: linear(x, 0.1), "int8", {"scale": 0.1}),
    "INT8 with a zero point": (lambda x: linear(x, 0.1, -5), "int8", {"scale": 0.1, "zero_point": -5}),
    "fn(x, scale)": (lambda x, scale: linear(x, scale), "int8", {"scale": 0.3}),
    "fn(x, scale, zero point)": (
        lambda x, scale, zero_point: linear(x, scale, zero_point, np.uint8), "uint8", {"scale": 0.1, "zero_point": 127}
    ),
    "of columns": (
        lambda x, s, z: linear(x, s, z, np.uint8), "uint8", {"scale": SCALES, "zero_point": np.array([0, 128, 255])}
    ),
    "of rows": (lambda x, s: linear(x, s), "int8", {"scale": SCALES[:, None]}),
    "int4 of ml_dtypes": (lambda x: linear(x, 0.5, 1, ml_dtypes.int4), "int4", {"scale": 0.5, "zero_point": 1}),
    "float16": (lambda x: linear(x, 0.1), "int8", {"scale": 0.1, "source": "float16"}),
    "bfloat16": (lambda x: linear(x, 0.1), "int8", {"scale": 0.1, "source": "bfloat16"}),
    "int32": (lambda x: linear(x, 3.0), "int8", {"scale": 3.0, "source": "int32"}),
    "int32, of columns": (lambda x, s: linear(x, s), "int8", {"scale": SCALES[None], "source": "int32"}),
    "uint8 to INT8": (lambda x: linear(x, 3.0, -7), "int8", {"scale": 3.0, "zero_point": -7, "source": np.uint8}),
    "E4M3": (
        lambda x: fp.encode(x / np.float32(0.1), "e4m3", overflow="saturate_finite"), "e4m3", {"scale": 0.1}
    ),
    "E5M2 without saturation": (
        lambda x: fp.encode(x / np.float32(0.1), "e5m2"), "e5m2", {"scale": 0.1, "overflow": "nonfinite"}
    ),
    "ties away": (lambda x: half_away(x, 0.5), "int8", {"scale": 0.5, "rounding": "nearest_away"}),
    "values": (lambda x: linear(x, 0.1) * np.float32(0.1), "int8", {"scale": 0.1, "zero_point": 0}),
    "values in float64": (lambda x: linear(x, 0.1) * np.float64(np.float32(0.1)), "int8", {"scale": 0.1}),
    "values in the dtype of tensors": (
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 3, 0, 255), "uint8",
        {"scale": 0.5, "zero_point": 3, "source": "bfloat16"},
    ),
    "tensors of bfloat16": (
        lambda x: torch.clamp(torch.round(x.float() / 0.5), -128, 127).to(torch.int8), "int8",
        {"scale": 0.5, "source": "bfloat16"},
    ),
    "torch": (
        lambda x: torch.clamp(torch.round(x.contiguous() / 0.5) + 3, 0, 255).to(torch.uint8), "uint8",
        {"scale": 0.5, "zero_point": 3},
    ),
}  # fmt: skip


@in_turn("form", RIGHT)
def test_right_quantizers_pass_in_every_form(form: str) -> None:
    fn, fmt, keywords = RIGHT[form]
    checked = report(fn, fmt, **keywords)
    assert checked.ok, checked
    assert checked.covered.sizes[1] > 1 << 16
    source = keywords.get("source", "float32")
    assert checked.covered.dtypes == (source if isinstance(source, str) else np.dtype(source).name,)


def test_codes_packed_two_per_byte_pass() -> None:
    def packed(x: Array) -> Array:
        nibbles = linear(x, 0.5, 1, ml_dtypes.int4).astype(np.int8).view(np.uint8) & 15
        nibbles = np.pad(nibbles, [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] % 2)])
        return nibbles[..., ::2] | nibbles[..., 1::2] << 4

    assert report(packed, "int4", scale=0.5, zero_point=1).ok
    assert not report(lambda x: packed(x) >> 4 | packed(x) << 4, "int4", scale=0.5, zero_point=1).ok


def test_a_symmetric_range_is_a_note_without_a_zero_point_and_a_fault_with_one() -> None:
    def symmetric(x: Array) -> Array:
        return np.maximum(linear(x, 0.1), -127)

    assert report(symmetric, "int8", scale=0.1).ok
    assert report(symmetric, "int8", scale=0.1).notes == ("it saturates at -127, not at -128",)
    assert report(symmetric, "int8", scale=0.1, zero_point=0).causes == ("saturates at -127",)


def wrapping(x: Array) -> Array:
    whole = np.rint(np.clip(x / np.float32(0.1), -(2.0**31), 2.0**31)).astype(np.int64)
    return (whole & 255).astype(np.uint8).view(np.int8)


def added_before(x: Array) -> Array:
    return np.clip(np.rint(x / np.float32(0.5) + np.float32(127)), 0, 255).astype(np.uint8)


def added_half(x: Array) -> Array:
    quotient = x / np.float32(0.5)
    return np.clip(np.trunc(quotient + np.copysign(np.float32(0.5), quotient)), -128, 127).astype(np.int8)


def to_int8(change: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: np.clip(change(x), -128, 127).astype(np.int8)


POINT = {"scale": 0.5, "zero_point": 127}
FAULTS: dict[str, tuple[Callable[..., Any], str, dict[str, Any], str]] = {
    "truncation": (to_int8(lambda x: np.trunc(x / np.float32(0.1))), "int8", {"scale": 0.1}, "rounds toward zero"),
    "ties away": (lambda x: half_away(x, 0.5), "int8", {"scale": 0.5}, "takes ties away from zero"),
    "half added": (
        added_half, "int8", {"scale": 0.5},
        "adds half a unit in float32 and cuts: takes ties away, and the float below the first one",
    ),
    "floor": (to_int8(lambda x: np.floor(x / np.float32(0.1))), "int8", {"scale": 0.1}, "rounds down, toward -Inf"),
    "wrap": (wrapping, "int8", {"scale": 0.1}, "wraps around where it should saturate"),
    "zero point + 1": (
        lambda x: linear(x, 0.5, 128, np.uint8), "uint8", POINT, "has zero points that are off by +1"
    ),
    "zero point - 1": (
        lambda x: linear(x, 0.5, -6), "int8", {"scale": 0.5, "zero_point": -5}, "has zero points that are off by -1"
    ),
    "no zero point": (lambda x: linear(x, 0.5, 0, np.uint8), "uint8", POINT, "leaves out the zero point"),
    "added before": (added_before, "uint8", POINT, "adds the zero point before it rounds"),
    "fused, as torch.quantize_per_tensor on x86": (
        lambda x: np.clip(np.rint(np.float32(x.astype(np.float64) * 10 + 3)), 0, 255).astype(np.uint8), "uint8",
        {"scale": 0.1, "zero_point": 3},
        "adds the zero point to x * (1 / scale) by a fused multiply-add, before it rounds",
    ),
    "reciprocal": (
        to_int8(lambda x: np.rint(x * (np.float32(1) / np.float32(0.1)))), "int8", {"scale": 0.1},
        "multiplies by the reciprocal of the scale",
    ),
    "float64": (
        to_int8(lambda x: np.rint(x.astype(np.float64) / float(np.float32(0.1)))), "int8", {"scale": 0.1},
        "divides in float64",
    ),
    "E4M3": (
        lambda x: fp.encode(x / np.float32(0.1), "e4m3", rounding="toward_zero", overflow="saturate_finite"), "e4m3",
        {"scale": 0.1}, "rounds toward zero",
    ),
}  # fmt: skip


@in_turn("fault", FAULTS)
def test_faults_are_named(fault: str) -> None:
    fn, fmt, keywords, cause = FAULTS[fault]
    checked = report(fn, fmt, **keywords)
    assert (checked.causes, checked.unexplained) == ((cause,), 0), checked


INTEGER_INPUTS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "a large scale": (
        lambda x: np.rint(x / np.float64(1e6)).astype(np.int8), {"source": "int32", "scale": 1e6},
        "wraps around where it should saturate",
    ),
    "16 bits of 32": (
        lambda x: np.clip(x.astype(np.int16), -128, 127).astype(np.int8), {"source": "int32"},
        "keeps 16 bits of the input",
    ),
    "32 bits of 64": (
        lambda x: np.clip(x.astype(np.int32), -128, 127).astype(np.int8), {"source": "int64"},
        "keeps 32 bits of the input",
    ),
    "codes as floats": (
        lambda x: linear(x, 0.5).astype(np.float32), {"scale": 0.5},
        "returns codes as floats, without multiplying them by the scale",
    ),
}  # fmt: skip


@in_turn("fault", INTEGER_INPUTS)
def test_large_integers_and_codes_as_floats_are_named(fault: str) -> None:
    fn, keywords, cause = INTEGER_INPUTS[fault]
    checked = report(fn, "int8", **keywords)
    assert (checked.ok, checked.causes, checked.unexplained) == (False, (cause,), 0), checked


def test_codes_that_the_dtype_of_values_does_not_tell_apart_are_noted() -> None:
    def rounds(x: Any) -> Any:
        return (torch.clamp(torch.round(x.float() / 3e-7), 0, 255) * 3e-7).to(x.dtype)

    checked = report(rounds, "uint8", scale=3e-7, source="bfloat16")
    assert "codes have only" in checked.notes[0]
    assert "values in BF16" in checked.notes[0]


def test_tensors_in_other_memory_layouts_are_checked() -> None:
    def by_memory(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            raise TypeError("tensors only")
        x = x if x.is_contiguous() else torch.as_strided(x, x.shape, torch.empty(x.shape).stride())
        return torch.clamp(torch.round(x / 0.5), -128, 127).to(torch.int8)

    assert [broken.property for broken in report(by_memory, "int8", scale=0.5).broken] == ["layout"]


@pytest.mark.parametrize("scale", [1000.0, 1e-7])
def test_integer_casts_get_no_nan_where_multiples_of_the_scale_leave_the_range_of_their_dtype(scale: float) -> None:
    assert report(lambda x: linear(x, scale), "int8", scale=scale, source="float16").ok


def test_a_nan_that_becomes_zero_is_found_in_float_formats() -> None:
    """Inputs with a scale had no NaN any more."""

    def loses_nans(x: Any) -> Any:
        return fp.encode(np.where(np.isnan(x), 0, x / np.float32(2)), "e4m3", overflow="saturate_finite")

    report = fp.testing.check_quantizer(loses_nans, "e4m3", scale=2, overflow="saturate_finite", raises=False)
    assert "NaNs" in report.covered.specials
    assert report.differ == 2


def test_a_division_in_float64_is_named_for_float_formats_too() -> None:
    def fn(x: Array) -> Array:
        return fp.encode(x.astype(np.float64) / np.float32(0.1).astype(np.float64), "e4m3", overflow="saturate_finite")

    assert report(fn, "e4m3", scale=0.1).causes == ("divides in float64",)


def test_a_path_for_powers_of_two_is_visited() -> None:
    def fn(x: Array) -> Array:
        codes = linear(x, 0.1)
        if x.size > 4096 and not x.size % 4096:
            codes.reshape(-1)[-1] ^= 1
        return codes

    (broken,) = report(fn, "int8", scale=0.1).broken
    assert broken.property == "size"


@pytest.mark.usefixtures("of_a_million")
@pytest.mark.parametrize("first", [1 << 14, 1 << 20])
def test_what_is_wrong_beyond_an_index_is_found(first: int) -> None:
    def fn(x: Array) -> Array:
        codes = linear(x, 0.1)
        codes.reshape(-1)[first:] = 3
        return codes

    (broken,) = report(fn, "int8", scale=0.1).broken
    assert broken.property == "size"


def test_a_square_matrix_that_comes_back_transposed_is_found() -> None:
    def quantizer(x: Array) -> Array:
        codes = np.clip(np.rint(x / np.float32(0.3)), -128, 127).astype(np.int8)
        return codes.T if codes.ndim == 2 and codes.shape[0] == codes.shape[1] else codes

    (broken,) = fp.testing.check_quantizer(quantizer, "int8", scale=0.3, raises=False).broken
    assert broken.property == "batch"


def test_writing_into_a_scale_is_a_fault() -> None:
    def quantizer(x: Array, scale: Array) -> Array:
        codes = np.clip(np.rint(x / scale), -128, 127).astype(np.int8)
        scale *= np.float32(2)  # also a model that shares this memory would be wrong from now on
        return codes

    (broken,) = fp.testing.check_quantizer(quantizer, "int8", scale=0.3, raises=False).broken
    assert (broken.property, broken.why) == ("leaves its input alone", "fn writes into its scale.")


def test_a_reversed_vector_that_is_read_wrong_is_found() -> None:
    (broken,) = report(lambda x: linear(x[::-1] if x.strides[0] < 0 else x, 0.1), "int8", scale=0.1).broken
    assert broken.property == "layout"
    assert "reversed" in broken.why


@pytest.mark.parametrize(
    ("fmt", "keywords", "words"),
    [
        ("logfmt-8", {}, "a quantizer to LogFMT-8 needs a scaling; pass scaling="),
        ("int8", {"scale": -1.0}, "scale must be positive and finite"),
        ("int8", {"scale": 1.0, "zero_point": 200}, r"zero_point must be integers of INT8, -128 \.\. 127; got 200"),
        ("e4m3", {"scale": 1.0, "zero_point": 1}, "zero_point must be 0 for E4M3"),
        ("int8", {"scale": 1.0, "source": "float64"}, "source must be float16, bfloat16, float32 or an integer dtype"),
        ("int8", {"scale": 1.0, "scaling": "ROW"}, "takes scaling= or scale=, not both"),
        ("int8", {"scale": 1.0, "rounding": "stochastic", "seed": 1}, "INT8 needs a deterministic rounding"),
        ("e4m3", {"zero_point": 1}, "zero_point needs scale="),
        ("e4m3", {"zero_point": 1, "scaling": "MX"}, "zero_point needs scale="),
        ("e4m3", {"source": "float64", "scaling": "MX"}, "source must be float32 or None with scaling=; got 'float64'"),
        ("int8", {"scale": 1.0, "overflow": "never"}, "overflow must be one of .*; got 'never'"),
        ("int8", {"scale": 1.0, "subnormals": "lost"}, "subnormals must be one of keep, flush; got 'lost'"),
    ],
)
def test_what_cannot_be_asked_is_refused(fmt: str, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        report(lambda x: x, fmt, **keywords)


# ---- a scale per tile, as ONNX's axis and block_size


GRID = np.exp2(np.random.default_rng(3).uniform(-4, 4, (6, 4))).astype(np.float32)
POINTS = np.random.default_rng(4).integers(-20, 20, (6, 4)).astype(np.int8)


def blocked(x: Array, scale: Any, zero_point: Any, axis: int, size: int, rounds: Any = np.rint) -> Array:
    """ONNX's QuantizeLinear with axis and block_size."""
    scales, points = (np.repeat(part, size, axis) for part in (scale, np.float32(zero_point)))
    return np.clip(rounds(x / scales) + points, -128, 127).astype(np.int8)


BLOCKED: dict[str, tuple[Callable[..., Any], str, dict[str, Any], tuple[str, ...]]] = {
    "axis 1": (lambda x: blocked(x, GRID, 0 * POINTS, 1, 32), "int8", {"block": (1, 32)}, ()),
    "axis 0, zero points": (
        lambda x: blocked(x, GRID, POINTS, 0, 16), "int8", {"block": (16, 1), "zero_point": POINTS}, ()),
    "fn(x, scale, zero point)": (
        lambda x, s, z: blocked(x, s, z, 1, 32), "int8", {"block": (1, 32), "zero_point": POINTS}, ()),
    "both axes": (
        lambda x: np.clip(np.rint(x / GRID.repeat(8, 0).repeat(16, 1)), -128, 127).astype(np.int8), "int8",
        {"block": (8, 16)}, ()),
    "E4M3": (
        lambda x: fp.encode(x / GRID.repeat(32, 1), "e4m3", overflow="saturate_finite"), "e4m3", {"block": (1, 32)}, ()
    ),
    "float16": (
        lambda x: blocked(x.astype(np.float32), GRID, 0 * POINTS, 1, 32), "int8",
        {"block": (1, 32), "source": "float16"}, ()),
    "truncation": (
        lambda x: blocked(x, GRID, POINTS, 1, 32, np.trunc), "int8", {"block": (1, 32), "zero_point": POINTS},
        ("rounds toward zero",)),
    "the tile before": (
        lambda x: blocked(x, np.roll(GRID, 1, 1), 0 * POINTS, 1, 32), "int8", {"block": (1, 32)},
        ("takes scales of the tile before in its row",)),
    "one scale per row": (
        lambda x: blocked(x, GRID[:, [0] * 4], 0 * POINTS, 1, 32), "int8", {"block": (1, 32)},
        ("takes scales of the first tile for a whole row",)),
    "scales in turns": (
        lambda x: np.clip(np.rint(x / np.tile(GRID, (1, 32))), -128, 127).astype(np.int8), "int8", {"block": (1, 32)},
        ("takes turns with the scales of a row, element by element",)),
    "zero points of the tile before": (
        lambda x: blocked(x, GRID, np.roll(POINTS, 1, 0), 0, 16), "int8", {"block": (16, 1), "zero_point": POINTS},
        ("takes zero points of the tile before in its column",)),
    "two causes": (
        lambda x: blocked(x, GRID[:, [0] * 4], 0 * POINTS, 1, 32, np.trunc), "int8", {"block": (1, 32)},
        ("rounds toward zero", "takes scales of the first tile for a whole row")),
}  # fmt: skip


@in_turn("form", BLOCKED)
def test_a_scale_per_tile_is_checked(form: str) -> None:
    fn, fmt, keywords, causes = BLOCKED[form]
    checked = report(fn, fmt, scale=GRID, **keywords)
    assert (checked.ok, checked.causes, checked.unexplained) == (not causes, causes, 0), checked
    if form == "fn(x, scale, zero point)":
        assert checked.covered.sizes[1] > 1 << 16
    elif not causes:
        assert "its scales fix the shape of a matrix" in checked.notes[0]


@pytest.mark.usefixtures("of_a_million")
def test_a_row_of_tiles_beyond_those_of_a_small_matrix_is_checked() -> None:
    def fn(x: Array, scale: Array) -> Array:
        codes = blocked(x, scale, 0 * scale, 1, 32)
        codes[300:] = 0
        return codes

    (broken,) = report(fn, "int8", scale=GRID, block=(1, 32)).broken
    assert broken.property == "size"


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"scale": GRID}, r"got shape \(6, 4\)\. Pass block=, such as \(1, 32\), for scales of tiles"),
        ({"scale": 0.5, "block": (1, 2)}, r"scale must be \(m, n\) of the tiles of a matrix where block= is passed"),
        (
            {"scale": GRID, "block": (0, 1)},
            r"block must be rows and columns of a tile, such as \(1, 32\); got \(0, 1\)",
        ),
        ({"scale": GRID, "block": 32}, "block must be rows and columns of a tile"),
        ({"scale": GRID, "zero_point": [1, 2], "block": (1, 32)}, r"must have the shape of scale, \(6, 4\)"),
    ],
)
def test_tiles_that_cannot_be_are_refused(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        report(lambda x: x, "int8", **keywords)
    with pytest.raises(ValueError, match="block needs scale="):
        report(lambda x: x, "e4m3", block=(1, 32))
