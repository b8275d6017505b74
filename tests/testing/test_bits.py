"""assert_bits_equal: what counts as equal, and what the message says where it is not."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fpsim as fp
from fpsim.testing import assert_bits_equal

ROWS = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)


def message(got: Any, want: Any, **keywords: Any) -> str:
    """Return the message of the failure, which must be one line."""
    with pytest.raises(AssertionError) as failure:
        assert_bits_equal(got, want, **keywords)
    assert "\n" not in str(failure.value)
    return str(failure.value)


def test_encoded_arrays_of_the_same_values_in_two_formats_differ() -> None:
    text = message(fp.array([1.0, 2.0], fp.E4M3), fp.array([1.0, 2.0], fp.E5M2))
    assert text == "formats differ: got E4M3, want E5M2."


def test_an_encoded_array_differs_from_its_values() -> None:
    x = fp.array([1.0, 2.0], fp.E4M3)
    assert message(x, np.asarray(x)).startswith(
        "kinds differ: got an EncodedArray of E4M3, want a plain array. Compare codes with codes (.codes)"
    )


def test_encoded_arrays_are_compared_by_codes_and_shown_in_values_and_codes() -> None:
    assert_bits_equal(fp.array([1.0, np.nan], "e4m3"), fp.array([1.0, np.nan], "e4m3"))
    assert message(fp.array([1.0, 0.0], "e4m3"), fp.array([1.0, -0.0], "e4m3")) == (
        "1 of 2 elements differ, first at index (1,): got code 0x00 (0.0 = 0x0.0p+0), "
        "want code 0x80 (-0.0 = -0x0.0p+0) of E4M3."
    )


def test_scaled_arrays_equal_those_of_the_same_codes_scales_format_and_scaling() -> None:
    q = fp.encode_scaled(ROWS, "e4m3", fp.scalings.MX)
    assert_bits_equal(q, fp.encode_scaled(ROWS, "e4m3", fp.scalings.MX))
    assert_bits_equal(fp.Scaled(q.codes, q.scales, q.fmt, q.scaling), q)  # as a kernel returns them
    assert message(q, q.decode()).startswith("kinds differ: got a Scaled array of E4M3, want a plain array.")


def test_scaled_arrays_of_the_same_values_in_another_format_or_scaling_differ() -> None:
    ones = np.ones((2, 32), np.float32)
    want = fp.encode_scaled(ones, "e4m3", fp.scalings.MX)
    assert message(fp.encode_scaled(ones, "e5m2", fp.scalings.MX), want) == "formats differ: got E5M2, want E4M3."
    assert message(fp.encode_scaled(ones, "e4m3", fp.scalings.TILE_1X128_POW2), want) == (
        "scalings differ: got fp.scalings.TILE_1X128_POW2, want fp.scalings.MX."
    )


def test_scaled_arrays_of_the_same_values_by_other_codes_and_scales_differ() -> None:
    want = fp.encode_scaled(np.ones((1, 4), np.float32), "e4m3", fp.scalings.ROW, scales=1.0)
    got = fp.encode_scaled(np.ones((1, 4), np.float32), "e4m3", fp.scalings.ROW, scales=2.0)
    np.testing.assert_array_equal(got.decode(), want.decode())
    assert message(got, want).startswith("4 of 4 codes differ, first at index (0, 0): got code 0x30 (0.5 = ")


def test_scales_are_compared() -> None:
    want = fp.encode_scaled(ROWS, "e4m3", fp.scalings.TILE_1X128)
    scales = want.scales.copy()
    scales[3, 1] *= 2
    text = message(fp.Scaled(want.codes, scales, want.fmt, want.scaling), want)
    assert text.startswith("1 of 512 scales differ, first at index (3, 1): got 0x")


@pytest.mark.parametrize(
    ("along_columns", "along_rows"),
    [(fp.scalings.TILE_128X1, fp.scalings.TILE_1X128), (fp.scalings.COLUMN, fp.scalings.ROW)],
)
def test_scales_along_the_wrong_axis_are_called_that(along_columns: fp.Scaling, along_rows: fp.Scaling) -> None:
    got, want = (fp.encode_scaled(ROWS, "e4m3", scaling) for scaling in (along_columns, along_rows))
    assert message(got, want) == (
        f"scalings differ: got {along_columns!r}, want {along_rows!r}: the scales are along the other axis."
    )


def test_transposed_scales_of_square_tiles_are_called_that() -> None:
    want = fp.encode_scaled(ROWS, "e4m3", fp.scalings.BLOCK_128X128)
    got = fp.Scaled(want.codes, want.scales.T.copy(), want.fmt, want.scaling)
    assert message(got, want).endswith(": the scales are along the other axis.")


def test_swapped_axes_are_called_that() -> None:
    want = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert message(want.T, want) == (
        "shapes differ: got (3, 2), want (2, 3): got is want with its axes swapped (got.T)."
    )


def test_another_scaling_that_lies_along_the_same_axis_is_not_called_a_wrong_axis() -> None:
    other = fp.encode_scaled(ROWS, "e4m3", fp.scalings.TE_1X128)
    assert "axis" not in message(other, fp.encode_scaled(ROWS, "e4m3", fp.scalings.TILE_1X128))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32])
def test_tensors_are_taken(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, -0.0, float("nan")]).to(dtype)
    assert_bits_equal(x, x.clone())
    assert_bits_equal(x, np.asarray([1.0, -0.0, np.nan]).astype(fp.format(dtype).dtype))
    assert message(x, x.abs() if dtype.itemsize > 1 else x.float().abs().to(dtype)).startswith("1 of 3 elements differ")


def test_a_tensor_that_requires_a_gradient_is_taken() -> None:
    assert_bits_equal(torch.ones(2, requires_grad=True), np.ones(2, np.float32))


def test_codes_with_a_format_are_shown_as_values_hexadecimal_floats_and_codes() -> None:
    assert message(np.array([0x38, 0x3A], np.uint8), np.array([0x38, 0x3B], np.uint8), fmt="e4m3") == (
        "1 of 2 elements differ, first at index (1,): got code 0x3A (1.25 = 0x1.4000000000000p+0), "
        "want code 0x3B (1.375 = 0x1.6000000000000p+0) of E4M3."
    )


def test_values_with_a_format_are_shown_with_their_codes() -> None:
    text = message(np.array([1.25], np.float32), np.array([1.3], np.float32), fmt="e4m3")
    assert "got 0x3FA00000 (1.25 = 0x1.4000000000000p+0, code 0x3A), want 0x3FA66666 (1.2999" in text
    assert text.endswith(", no value) of E4M3.")


def test_values_of_a_dtype_of_the_format_are_shown_as_codes() -> None:
    x = np.asarray([1.25, 2]).astype(ml_dtypes.float8_e4m3fn)
    assert "got code 0x3A (1.25 = " in message(x, x[::-1], fmt=fp.E4M3)


def test_the_format_that_is_asked_for_must_be_that_of_the_arrays() -> None:
    x = fp.array([1.0], "e5m2")
    assert message(x, x, fmt="e4m3") == "formats differ: got E5M2, want E4M3."


def test_numbers_of_integer_formats_are_shown() -> None:
    assert "got code 0xFF (-1), want code 0x01 (1) of INT8" in message(
        np.array([-1], np.int8), np.array([1], np.int8), fmt="int8"
    )


@pytest.mark.parametrize("x", [np.complex64(1), "text", [object()]])
def test_what_holds_no_numbers_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match="got must hold real floats of up to 64 bits, integers or truth values; got "):
        assert_bits_equal(x, x)
