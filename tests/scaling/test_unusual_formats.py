"""Scales of elements and in formats far from the usual ones: random fields and data at the ends of the range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import case, sweep
from tests.scaling.checks import check

Array = npt.NDArray[Any]
RULES = ("amax", "amax", "floor", "twice_floor", "ceil", "even", "rceil", "nearest")
QUOTIENTS = ("amax/max", "amax/max", "amax*(1/max)", "1/(max/amax)")


def random_format(rng: np.random.Generator, name: str, low: int, high: int) -> fp.Format | None:
    """Return a format with random fields and a bias from `low` to `high`; None if the fields contradict each other."""
    try:
        return fp.Format(
            name,
            int(rng.integers(1, 9)),
            int(rng.integers(0, 5)),
            bias=int(rng.integers(low, high)),
            signed=bool(rng.random() < 0.8),
            infinities=bool(rng.random() < 0.4),
            nan=str(rng.choice(["ieee", "top", "negative_zero", "none"])),  # type: ignore[arg-type]
            subnormals=bool(rng.random() < 0.8),
        )
    except ValueError:
        return None


def random_scaling(rng: np.random.Generator, scale_format: fp.Format) -> fp.Scaling | None:
    """Return a scaling with random fields; None if they exclude each other."""
    two_levels = bool(rng.random() < 0.4)
    fields: dict[str, Any] = {
        "scale_rule": "amax" if two_levels else str(rng.choice(RULES)),
        "quotient": str(rng.choice(QUOTIENTS)),
        "division": str(rng.choice(["divide", "multiply"])),
        "infinity": str(rng.choice(["skip", "propagate"])),
        "amax_floor": float(rng.choice([0, 0, 0, 2.0**-140, 1e-12])),
    }
    if two_levels and rng.random() < 0.5:
        fields["tensor_top"] = float(scale_format.max * rng.choice([0.3, 0.5, 2.0**-40]))
    if rng.random() < 0.2:
        fields["smallest_scale"] = scale_format.smallest_subnormal
    try:
        return fp.Scaling(
            block=(1, 4), scale_format=scale_format, zero_scale="smallest", tensor_scale=two_levels, **fields
        )
    except ValueError:
        return None


def extreme(rng: np.random.Generator, dtype: Any) -> Array:
    """Numbers of any magnitude or all subnormal, with zeros and the largest number in some places."""
    ends = (-150, 127) if dtype == np.float32 else (-1070, 1020)
    low = rng.uniform(*ends)
    with np.errstate(all="ignore"):
        x = (rng.standard_normal((2, 9)) * np.exp2(rng.uniform(low, low + rng.choice([0, 3, 30]), (2, 9)))).astype(
            dtype
        )
    if rng.random() < 0.4:
        x = (rng.integers(-9, 10, x.shape) * np.finfo(dtype).smallest_subnormal).astype(dtype)
    x.flat[rng.integers(x.size)] = 0
    if rng.random() < 0.1:
        x.flat[rng.integers(x.size)] = np.finfo(dtype).max
    return x


@sweep("count", 150, 10000)
def test_scales_of_unusual_formats_are_those_of_the_oracle(count: int) -> None:
    rng = np.random.default_rng(1)
    usual = [fp.FP32, fp.BF16, fp.E8M0, fp.E4M3, fp.FP16]
    while count:
        element = random_format(rng, "element", *([(-4, 20), (-40, 140)][rng.integers(2)]))
        scales = usual[rng.integers(5)] if rng.random() < 0.4 else random_format(rng, "scales", -30, 150)
        how = None if scales is None else random_scaling(rng, scales)
        x = extreme(rng, [np.float32, np.float32, np.float64][rng.integers(3)])
        if element is None or how is None or not element.has_zero:
            continue
        if element.max < 2.0**-126 or not fp.FP32.holds(element):
            continue
        count -= 1
        with case(repr(element), how, x.tolist()):
            check(x, element, how)


UNIT = fp.Format("unit", 4, 3, bias=15, nan="none", infinities=False)  # up to 1.875, so that emax is 0


@pytest.mark.parametrize(("rule", "scale"), [("floor", 2.0**-142), ("ceil", 2.0**-141), ("even", 2.0**-141)])
def test_a_power_of_two_follows_the_exponent_of_a_subnormal_amax(rule: str, scale: float) -> None:
    how = fp.Scaling(block=(1, 2), scale_rule=rule, smallest_scale=2.0**-149)
    x = np.array([[1.96875 * 2.0**-142, 0]], np.float32)
    assert check(x, UNIT, how).scales[0, 0] == scale
    mx = check(x, UNIT, fp.scalings.MX.replace(block=(1, 2), scale_rule=rule))
    assert mx.scales[0, 0] == 2.0**-127
    assert mx.report.clamped_low == 1


@pytest.mark.parametrize("name", ["NVFP4", "TE_NVFP4", "TORCHAO_NVFP4"])
@pytest.mark.parametrize("amax", [3e38, 1.0])
def test_two_levels_keep_an_array_whose_largest_scale_times_element_exceeds_float32(name: str, amax: float) -> None:
    how = getattr(fp.scalings, name).replace(scale_format=fp.BF16)
    x = np.array([[amax, -amax / 3] + [0] * 14], np.float32)
    q = check(x, fp.E2M1, how)
    # the elements are 6 and -2 exactly, so that only the scale is rounded: to BF16, by half a unit in the last place
    # (2^-9), and a few times to float32, by 2^-24 each
    np.testing.assert_allclose(q.decode(), x, rtol=2.0**-9 + 2.0**-20)
    if amax > 1:
        assert q.tensor_scale == pytest.approx(amax / (fp.BF16.max * 6))


def test_a_tensor_top_leaves_the_scales_of_finite_arrays_finite() -> None:
    small = fp.Format("small", 3, 1, bias=21)  # up to 4.6e-5
    how = fp.Scaling(block=(1, 4), scale_format=fp.FP16, tensor_scale=True, tensor_top=19651.2)
    q = check(np.array([[3e36, 1e20, 0, 1]], np.float32), small, how)
    assert np.isfinite(q.scales).all()
    assert not np.isnan(q.decode()).any()


def test_zeros_stay_zeros_where_an_inverse_or_a_factor_overflows() -> None:
    tiny = np.array([[1e-42, 0, -0.0, 2e-43] + [0] * 12], np.float32)
    got = check(tiny, fp.E2M1, fp.scalings.TORCHAO_NVFP4).decode()
    assert_bits_equal(got[0, 1:3], np.array([0.0, -0.0], np.float32))
    how = fp.Scaling(block=(1, 16), division="multiply", smallest_scale=2.0**-149)
    for q in (check(tiny, fp.E2M1, how), check(tiny, fp.E2M1, how, scales=np.float32(2.0**-149))):
        assert_bits_equal(q.decode()[0, 1:3], np.array([0.0, -0.0], np.float32))
    state = fp.PeriodicScaling(fp.E2M1, how, every=2)
    for x in (tiny, np.zeros_like(tiny)):
        assert_bits_equal(state.quantize(x)[0, 1:3], x[0, 1:3])
    assert state.last.saturated == 0
    with_zero_points = fp.encode_scaled(
        np.array([[0, 5, -0.0, 9]], np.float32), fp.UINT8, how.replace(block=(1, -1), symmetric=False), scales=2.0**-149
    )
    assert with_zero_points.codes.tolist() == [[0, 255, 0, 255]]
    low = fp.Format("low", 3, 3, bias=127)
    q = check(np.array([[1e-44, 0, 0, 0], [0, 0, 0, 0]], np.float32), low, fp.scalings.TE_NVFP4.replace(block=(1, 4)))
    assert_bits_equal(q.decode()[1], np.zeros(4, np.float32))


@pytest.mark.parametrize(("exponent_bits", "bias"), [(2, 133), (1, 132)])
def test_a_scale_format_below_the_smallest_scale_is_refused(exponent_bits: int, bias: int) -> None:
    fmt = fp.Format("deep", exponent_bits, 2, bias=bias)
    with pytest.raises(
        ValueError, match=r"^scale_format must have the value 5\.87.*e-39, the default of smallest_scale; got deep,"
    ):
        fp.Scaling(scale_format=fmt, zero_scale="smallest")
    fp.Scaling(scale_format=fmt, zero_scale="smallest", smallest_scale=fmt.max)
