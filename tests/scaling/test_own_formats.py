"""Scalings and elements of the user's own: extreme ones are refused in a sentence, others give the oracle's bits."""

from __future__ import annotations

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn
from tests.scaling.checks import check

DEEP = fp.Format("deep", 5, 4, bias=166)  # up to 2**-136, a subnormal float32
WIDE = fp.Format("wide", 9, 4)  # far beyond float32
POWERS = fp.Format("powers", 4, 0, signed=False, infinities=False, nan="top", subnormals=False)


@pytest.mark.parametrize("fmt", [DEEP, WIDE], ids=lambda fmt: fmt.name)
def test_elements_whose_scales_float32_cannot_hold_are_refused(fmt: fp.Format) -> None:
    with pytest.raises(ValueError, match=r"^scales are float32: element formats must have values that float32 holds.*"):
        fp.encode_scaled(np.ones((2, 4), np.float32), fmt, fp.scalings.ROW)


def test_an_encode_scale_is_a_float32_or_an_e8m0_code() -> None:
    with pytest.raises(ValueError, match=r"^quotient '1/\(max/amax\)' needs scale_format FP32 or E8M0; got powers\.$"):
        fp.Scaling(scale_format=POWERS, quotient="1/(max/amax)")
    alike = fp.Format("like E8M0", 8, 0, bias=127, signed=False, infinities=False, nan="top", subnormals=False)
    check(np.array([[1, 3, -500]], np.float32), fp.E4M3, fp.Scaling(scale_format=alike, quotient="1/(max/amax)"))


def test_two_levels_of_float32_scales_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^tensor_scale with quotient '1/\(max/amax\)' needs scales narrower than"):
        fp.Scaling(tensor_scale=True, quotient="1/(max/amax)")


@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.E5M2], ids=str)
def test_the_tile_of_an_infinity_gets_the_largest_of_two_levels(scale_format: fp.Format) -> None:
    how = fp.Scaling(
        block=(1, 4), scale_format=scale_format, tensor_scale=True, quotient="1/(max/amax)", infinity="propagate"
    )
    q = check(np.array([[1, 2, 3, np.inf, 1, 2, 3, 4]], np.float32), fp.E4M3, how)
    assert q.scales[0, 0] == scale_format.max


TINY = fp.Format("tiny", 3, 2, bias=40)  # at most 2**-33 and more


@in_turn("quotient", ["amax/max", "amax*(1/max)", "1/(max/amax)"])
@in_turn("scale_format", [fp.FP32, fp.BF16, fp.E5M2, fp.E8M0])
def test_finite_tiles_have_finite_scales_where_the_quotient_leaves_float32(
    scale_format: fp.Format, quotient: str
) -> None:
    if quotient == "1/(max/amax)" and scale_format not in (fp.FP32, fp.E8M0):
        return  # which no encode scale is rounded to
    x = np.array([[3e38, 1, 2, 3, 1e38, 5, 0, -1, np.inf, 1, 2, 3, 1e-30, 0, 0, 0]], np.float32)
    for infinity in ("skip", "propagate"):
        how = fp.Scaling(
            block=(1, 4), scale_format=scale_format, quotient=quotient, infinity=infinity,
            scale_rule="amax", overflow="saturate",
        )  # fmt: skip
        q = check(x, TINY, how)
        assert np.isfinite(q.scales[0, :2]).all()
        assert (q.codes[0, [0, 4]] == TINY.max_code).all()
        check(x, fp.E4M3, how)


@pytest.mark.parametrize("rule", ["floor", "ceil", "even"])
def test_powers_of_two_beyond_float32_are_the_largest_scale(rule: str) -> None:
    x = np.array([[3.4e38, 1, 1e-30, 2]], np.float32)
    for scale_format in (fp.FP32, fp.BF16, fp.E8M0):
        q = check(x, TINY, fp.Scaling(block=(1, 2), scale_format=scale_format, scale_rule=rule))
        assert q.report.clamped_high >= 1


@pytest.mark.parametrize(("bias", "smallest"), [(128, 2.0**-127), (131, 2.0**-127), (127, 2.0**-127), (126, 2.0**-126)])
def test_the_smallest_scale_is_the_first_normal_one_whose_reciprocal_float32_holds(bias: int, smallest: float) -> None:
    scale_format = fp.Format("low", 5, 1, bias=bias)
    how = fp.Scaling(block=(1, 4), scale_format=scale_format, scale_rule="floor", zero_scale="smallest")
    assert how.lower_bound == smallest
    x = np.array([[0, 0, 0, 0, 1e-44, 0, 0, 0, 1, 2, 3, 4]], np.float32)
    assert check(x, fp.E4M3, how).scales[0, 0] == smallest
