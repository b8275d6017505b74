"""What counts as clipped: exactly what rounds beyond a format's largest value, for every format, mode and scaling."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.scaling.clipping import bounds, kept
from fpsim.scaling.recipes import ANY_ELEMENT
from tests.kit.samples import NARROW, P3109, STRANGE
from tests.kit.sweeps import in_turn
from tests.oracles import scaling as so
from tests.oracles.tiling import tiles

Array = npt.NDArray[Any]
MODES = [mode for mode in fp.Rounding if mode is not fp.Rounding.STOCHASTIC]


def wider(fmt: fp.Format) -> fp.Format | None:
    """The same codes and more above, or None where float64 does not hold them."""
    try:
        return fp.Format(
            "wider", fmt.exponent_bits + 1, fmt.mantissa_bits, bias=fmt.bias, signed=fmt.signed, infinities=False,
            nan="top", subnormals=fmt.subnormals, ties_to_even_code=fmt.ties_to_even_code,
        )  # fmt: skip
    except ValueError:
        return None


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_bounds_are_the_last_numbers_that_do_not_become_a_larger_code(mode: fp.Rounding) -> None:
    compared = 0
    for fmt in (*NARROW, *P3109, *STRANGE):
        twin = wider(fmt)
        if twin is None:
            continue
        low, high = bounds(fmt, mode, 64)
        inside = np.array([low, high])
        outside = np.array([np.nextafter(low, -np.inf), np.nextafter(high, np.inf)])
        for numbers, expected in ((inside, False), (outside, True)):
            codes = fp.encode(numbers, twin, rounding=mode)
            beyond = (codes & np.array(twin.top_magnitude, codes.dtype)) > fmt.max_code
            assert np.all(beyond == expected), f"{fmt!r}: {numbers} -> {codes}, expected beyond={expected}"
        compared += 1
    assert compared > 30


def test_stochastic_bounds_are_those_of_truncation_which_is_what_may_come_back() -> None:
    for fmt in (fp.E4M3, fp.E2M1, fp.BF16, fp.E8M0):
        assert bounds(fmt, fp.Rounding.STOCHASTIC, 32) == bounds(fmt, fp.Rounding.TOWARD_ZERO, 32)


def test_bounds_of_the_widest_formats_are_the_largest_floats() -> None:
    assert bounds(fp.FP64, fp.Rounding.NEAREST_EVEN, 64)[1] == np.finfo(np.float64).max
    assert bounds(fp.FP32, fp.Rounding.NEAREST_EVEN, 32)[1] == np.finfo(np.float32).max
    assert not kept(np.array([np.inf], np.float32), fp.FP32, None, fp.Rounding.NEAREST_EVEN)[0]


def data(special: bool) -> Array:
    """Rows of many magnitudes, with edges, zeros, and NaN and Inf where asked."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 300)) * np.exp2(generator.integers(-12, 12, (5, 1)))
    x[1, :128] = 0
    x[2] = np.linspace(-600, 600, 300)
    x[3, ::2] = 448 * 1.03125
    if special:
        x[0, 7], x[2, 200], x[4, 290] = np.nan, np.inf, -np.inf
    return x.astype(np.float32)


RULES = ("amax", "floor", "twice_floor", "ceil", "even", "nearest")  # those of float32 scales
SCALINGS = {**ANY_ELEMENT, **{f"float32 {rule}": fp.Scaling(block=(1, 4), scale_rule=rule) for rule in RULES}}


@in_turn("special", [False, True])
@in_turn("name", SCALINGS)
def test_scaled_elements_are_clipped_where_the_quotient_is_beyond_the_bounds(name: str, special: bool) -> None:
    x, scaling = data(special), SCALINGS[name]
    for fmt, mode in ((fp.E4M3, "nearest_even"), (fp.E2M1, "up"), (fp.E5M2, "toward_zero"), (fp.INT8, "odd")):
        if isinstance(fmt, fp.IntegerFormat) and scaling.scale_rule == "even":
            continue  # which the oracle has for floats only
        element: Any = fmt
        numbers = getattr(fmt, "magnitudes", fmt)
        expected = so.encode(x, fmt, scaling, mode, scaling.overflow)
        low, high = bounds(numbers, fp.Rounding[mode.upper()], 32)
        scales = tiles.repeated(expected.scales, x.shape, expected.sizes)
        ratio = np.where(np.isfinite(scales), expected.ratio, np.nan)  # scales of NaN and Inf decode to NaN
        want = (ratio >= low) & (ratio <= high)
        got = kept(x, element, scaling, fp.Rounding[mode.upper()])
        different = np.flatnonzero(got != want)
        assert not different.size, f"{name} {fmt} {mode}: at {different[:5]}, ratio {ratio.flat[different[:5]]}"


def test_given_scales_clip() -> None:
    x = np.array([[1.0, 464.0, 465.0, -928.0, -930.0, np.nan]], np.float32)
    mode, by_element = fp.Rounding.NEAREST_EVEN, fp.scalings.ROW.replace(nan="element")
    assert kept(x, fp.E4M3, by_element, mode, 1.0).tolist() == [[True, True, *[False] * 4]]
    assert kept(x, fp.E4M3, by_element, mode, [[2.0]]).tolist() == [[True] * 4 + [False] * 2]
    for fmt in (fp.E4M3, fp.INT8):
        assert not kept(x, fmt, fp.scalings.ROW, mode, [[2.0]]).any(), "the NaN of a tile is no value to pass"


@pytest.mark.parametrize("division", ["divide", "multiply"])
@pytest.mark.parametrize("fmt", [fp.INT8, fp.UINT4], ids=str)
def test_integers_with_a_zero_point_are_clipped_where_the_sum_is_clamped(fmt: fp.IntegerFormat, division: str) -> None:
    scaling = fp.scalings.TILE_1X128.replace(symmetric=False, division=division)
    x = data(special=False)
    scales = np.abs(x).max(axis=1, keepdims=True) / np.float32(fmt.highest * 2)
    scales[scales == 0] = 1
    q = fp.encode_scaled(x, fmt, scaling, scales=scales)
    assert q.zero_points is not None
    per_tile = (q.scales.repeat(128, axis=1)[:, :300], q.zero_points.repeat(128, axis=1)[:, :300].astype(int))
    ratio = x / per_tile[0] if division == "divide" else x * (np.float32(1) / per_tile[0])
    sums = np.rint(ratio) + per_tile[1]
    got = kept(x, fmt, scaling, fp.Rounding.NEAREST_EVEN, scales)
    np.testing.assert_array_equal(got, (sums >= fmt.lowest) & (sums <= fmt.highest))
    assert 0 < got.sum() < got.size
    assert kept(x, fmt, scaling, fp.Rounding.STOCHASTIC, scales, seed=1).sum() >= got.sum()


@pytest.mark.parametrize("scaling", [fp.scalings.ROW, fp.scalings.TE_TENSOR, fp.scalings.ROW_POW2], ids=repr)
def test_float64_beyond_the_largest_scale_is_clipped(scaling: fp.Scaling) -> None:
    x = np.array([[1e300, 1.0]])
    assert not np.isfinite(fp.quantize_scaled(x, fp.E4M3, scaling)[0, 0])
    got = kept(x, fp.E4M3, scaling, fp.Rounding.NEAREST_EVEN)
    assert got.tolist() == [[False, np.isfinite(fp.quantize_scaled(x, fp.E4M3, scaling)[0, 1])]]


def test_what_shares_an_infinite_scale_is_no_value_to_pass_a_gradient_for() -> None:
    mode, x = fp.Rounding.NEAREST_EVEN, np.array([[np.inf, 1, 2, -np.inf], [1, 2, 3, 0]], np.float32)
    how = fp.scalings.ROW.replace(infinity="propagate")
    for fmt, scaling in ((fp.E2M1, how), (fp.INT8, how), (fp.UINT8, how.replace(symmetric=False))):
        assert kept(x, fmt, scaling, mode).tolist() == [[False] * 4, [True] * 4]
    # the scale 2**127 makes zeros of them, which are values
    got = kept(x, fp.E2M1, fp.scalings.ROW_POW2.replace(infinity="propagate"), mode)
    assert got.tolist() == [[False, True, True, False], [True] * 4]


def test_logfmt_clips_nothing_that_is_finite() -> None:
    x = data(special=True)
    got = kept(x, fp.LogFMT(8), fp.scalings.TILE_1X128, fp.Rounding.NEAREST_EVEN)
    assert not got[0, :128].any(), "the NaN of a tile is no value to pass a gradient for"
    assert got[0, 128:].all()
    assert got[1].all()
    assert kept(data(special=False), fp.LogFMT(8), fp.scalings.TILE_1X128, fp.Rounding.NEAREST_EVEN).all()


def test_float64_and_narrow_inputs_count_by_their_exact_values() -> None:
    mode = fp.Rounding.NEAREST_EVEN
    for dtype, beyond in ((np.float64, 464.00000000001), (np.float16, 464.25), (ml_dtypes.bfloat16, 466)):
        x = np.array([[464, beyond]], dtype)
        assert kept(x, fp.E4M3, None, mode).tolist() == [[True, False]]
        assert kept(x, fp.E4M3, fp.scalings.ROW, mode, 1.0).tolist() == [[True, False]]


def test_subnormal_scales_and_unsigned_formats_clip_finite_elements() -> None:
    mode = fp.Rounding.NEAREST_EVEN
    tiny = fp.scalings.TENSOR.replace(smallest_scale=2.0**-149)
    x = np.array([1.4 * 448 * 2.0**-149, 2.0**-149], np.float32)  # the scale 1.4 * 2**-149 is rounded to 2**-149
    assert fp.encode_scaled(x, fp.E4M3, tiny).scales.item() == 2.0**-149
    assert kept(x, fp.E4M3, tiny, mode).tolist() == [False, True]
    unsigned = fp.format("p3109_k8p4uf")
    assert kept(np.array([-1, 1], np.float32), unsigned, fp.scalings.TENSOR, mode).tolist() == [False, True]


def test_a_multiplier_beyond_the_largest_float_keeps_zeros() -> None:
    scaling = fp.scalings.TENSOR.replace(symmetric=False, division="multiply", smallest_scale=2.0**-149)
    x = np.array([0, 2.0**-149], np.float32)
    assert fp.encode_scaled(x, "int8", scaling).decode()[0] == 0
    assert kept(x, fp.INT8, scaling, fp.Rounding.NEAREST_EVEN)[0]


def test_numbers_whose_nearest_value_of_a_table_is_finite_are_kept() -> None:
    x = np.array([32768, 36864, 36900, 40959, 40960, 49152, np.inf, np.nan], np.float32)  # Inf from 40960 on
    for sign in (1, -1):
        assert kept(sign * x, fp.HIF8, None, fp.Rounding.NEAREST_EVEN).tolist() == [True] * 4 + [False] * 4
    top = fp.TableFormat("top", (0.0, -(2.0**1023), 1.0, 1.5 * 2.0**1023))
    ends = np.array([1.5e308, np.inf, -np.inf], np.float64)
    assert kept(ends, top, None, fp.Rounding.NEAREST_EVEN).tolist() == [True, False, False]
