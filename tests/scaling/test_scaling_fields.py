"""Every field of fp.Scaling does what docs/scaling.md says, as a plain oracle does it, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import casts
from tests.scaling.checks import check, scaling
from tests.scaling.data import (
    DATA,
    SPECIALS,
    edges_of_scales,
    huge,
    normal,
    only_zeros,
    tiny,
    wide,
    with_infinities,
    with_nan,
    zeros,
)

SCALE_FORMATS = [
    fp.FP32, fp.BF16, fp.FP16, fp.E8M0, fp.E4M3, fp.E5M2, fp.E3M4, fp.p3109_k8p1ue, fp.p3109_k8p4ue, fp.p3109_k8p5uf,
]  # fmt: skip


@in_turn("scale_format", SCALE_FORMATS)
@in_turn("rule", ["amax", "floor", "twice_floor", "ceil", "even", "rceil", "nearest"])
@sweep("whole", False, True)
def test_every_rule_gives_scales_of_every_format(rule: str, scale_format: Any, whole: bool) -> None:
    if scale_format == fp.FP32 and rule == "rceil":
        return  # scales in FP32 are rounded to nearest even
    for division in ("divide", "multiply"):
        if division == "multiply" and (rule != "amax" or scale_format not in (fp.FP32, fp.E8M0, fp.E4M3)):
            continue
        how = scaling(block=(1, 16), scale_format=scale_format, scale_rule=rule, division=division)
        for i, data in enumerate((edges_of_scales, wide, tiny, edges_of_scales, with_nan, with_infinities)):
            for fmt in (fp.E4M3, fp.E2M3) if whole else ((fp.E4M3, fp.E2M3)[i % 2],):
                check(data(), fmt, how)


@in_turn("scale_format", SCALE_FORMATS)
@in_turn("scale_rounding", casts.MODES)
def test_the_quotient_rounds_in_the_mode_of_the_field(scale_rounding: str, scale_format: Any) -> None:
    if scale_format == fp.FP32 and scale_rounding != "nearest_even":
        return  # scales in FP32 are rounded to nearest even
    for quotient in ("amax/max", "amax*(1/max)") if scale_format in (fp.FP32, fp.E8M0) else ("amax/max",):
        how = scaling(
            block=(1, 16), scale_format=scale_format, scale_rounding=scale_rounding, quotient=quotient
        )  # fmt: skip
        for data in (wide, edges_of_scales, tiny, huge):
            check(data(), fp.E4M3, how)


@pytest.mark.parametrize("scale_format", [fp.FP32, fp.E8M0], ids=str)
@pytest.mark.parametrize("scale_rounding", [None, "nearest_even", "up", "down"])
def test_an_encode_scale_rounds_in_the_mirrored_mode(scale_rounding: Any, scale_format: Any) -> None:
    if scale_format == fp.FP32 and scale_rounding in ("up", "down"):
        pytest.skip("scales in FP32 are rounded to nearest even")
    how = scaling(block=(1, 16), scale_format=scale_format, scale_rounding=scale_rounding, quotient="1/(max/amax)")
    for data in DATA:
        check(data(), fp.E4M3, how)
        check(data(), fp.E5M2, how)


@pytest.mark.parametrize("floor", [1e-30, 1e-12, 1e-4, 3.0])
@pytest.mark.parametrize("quotient", ["amax/max", "amax*(1/max)", "1/(max/amax)"])
def test_no_amax_lies_below_the_floor(quotient: str, floor: float) -> None:
    for scale_format in (fp.FP32, fp.E8M0):
        how = scaling(block=(1, 16), amax_floor=floor, quotient=quotient, scale_format=scale_format)
        for data in (normal, wide, zeros, only_zeros, tiny):
            check(data(), fp.E4M3, how)
            check(data().astype(np.float64), fp.E4M3, how)


@pytest.mark.parametrize("smallest", [2.0**-120, 2.0**-10, 0.75, 1.0])
def test_no_scale_lies_below_the_smallest_one(smallest: float) -> None:
    for scale_format in (fp.FP32, fp.BF16):
        for rounding in ("nearest_even", "down", "up") if scale_format == fp.BF16 else (None,):
            how = scaling(
                block=(1, 16), scale_format=scale_format, smallest_scale=smallest, scale_rounding=rounding,
                zero_scale="smallest",
            )  # fmt: skip
            for data in (wide, zeros, tiny):
                check(data(), fp.E4M3, how)


def test_scales_at_the_bounds_are_counted() -> None:
    x = np.array([[448, 224, 223.5, 225, 0]], np.float32) * np.float32(2**-126)
    report = check(x, fp.E4M3, scaling(block=(1, 1))).report
    assert (report.clamped_low, report.clamped_high, report.zero_tiles) == (3, 0, 1)
    x = np.array([[1, 0.99, 448 * 448, 449 * 448, 2**-9 * 448, 2**-10 * 448, 1.01 * 2**-10 * 448]], np.float32)
    report = check(x, fp.E4M3, scaling(block=(1, 1), scale_format=fp.E4M3)).report
    assert (report.clamped_low, report.clamped_high) == (1, 1)  # what lies above 2**-10 rounds to 2**-9


@pytest.mark.parametrize("quotient", ["amax/max", "1/(max/amax)"])
@pytest.mark.parametrize("division", ["divide", "multiply"])
@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.E5M2, fp.p3109_k8p4uf], ids=str)
@sweep("whole", False, True)
def test_two_levels_of_scales_are_those_of_the_oracle(
    scale_format: Any, division: str, quotient: str, whole: bool
) -> None:
    formats = [fp.E2M1, fp.E4M3, fp.INT4]
    for zero_scale in ("one", "smallest"):
        how = scaling(
            block=(1, 16), scale_format=scale_format, tensor_scale=True, division=division, quotient=quotient,
            zero_scale=zero_scale,
        )  # fmt: skip
        for i, data in enumerate(DATA, len(quotient + zero_scale)):
            for fmt in formats if whole else formats[i % 3 :][:1]:
                check(data(), fmt, how)


# ---- specials


@pytest.mark.parametrize("infinity", ["skip", "propagate", "one"])
@pytest.mark.parametrize("nan", ["tile", "element"])
@pytest.mark.parametrize("zero_scale", ["one", "smallest"])
@sweep("whole", False, True)
def test_specials_are_treated_as_the_fields_say(zero_scale: str, nan: str, infinity: str, whole: bool) -> None:
    words = {"nan": nan, "infinity": infinity, "zero_scale": zero_scale, "block": (1, 16)}
    number = ("skip", "propagate", "one").index(infinity) + (nan == "tile")
    for scale_format in (fp.FP32, fp.E8M0, fp.BF16):
        for quotient in ("amax/max", "amax*(1/max)", "1/(max/amax)"):
            if quotient == "1/(max/amax)" and scale_format == fp.BF16:
                continue
            for division in ("divide", "multiply"):
                how = scaling(**words, scale_format=scale_format, quotient=quotient, division=division)
                number += 1
                for i, data in enumerate(SPECIALS, number):  # all words together see every way to divide both
                    for fmt in (fp.E4M3, fp.E5M2, fp.E2M1, fp.INT8) if whole else ((fp.E4M3, fp.INT8)[i % 2],):
                        check(data(), fmt, how)


@in_turn("rule", ["amax", "floor", "twice_floor", "ceil", "even", "rceil", "nearest"])
@in_turn("fmt", ["e4m3", "e5m2", "e2m1", "int8"])
def test_a_tile_with_inf_has_scale_1_where_that_is_the_rule(rule: str, fmt: str) -> None:
    if (rule, fmt) == ("even", "int8"):
        return  # integers have no mantissa
    words: dict[str, Any] = {} if rule == "amax" else {"scale_format": "e8m0", "scale_rule": rule}
    how = fp.Scaling(block=(1, 4), infinity="one", overflow="saturate", **words)
    x = np.array([[np.inf, 1, 2, 3, 4, 5, 6, 7]], np.float32)  # ceil gave 2: 448 / 256 lies above a power of two
    assert fp.encode_scaled(x, fmt, how).scales[0, 0] == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"quotient": "amax*(1/max)"},  # gave 1 - 2**-24: the largest BF16 times its rounded inverse
        {"quotient": "amax*(1/max)", "division": "multiply"},
        {"amax_floor": 1e6},
        {"amax_floor": 1e6, "quotient": "1/(max/amax)"},
        {"smallest_scale": 4.0, "scale_format": "e8m0"},
        {"smallest_scale": 4.0, "scale_format": "bf16", "division": "multiply"},
    ],
    ids=str,
)
def test_no_other_field_moves_the_scale_1_of_a_tile_with_inf(changes: dict[str, Any]) -> None:
    how = scaling(block=(1, 8), infinity="one", **changes)
    for fmt in (fp.BF16, fp.E4M3, fp.INT8):
        for data in (with_infinities(), with_infinities().astype(np.float64)):
            assert check(data, fmt, how).scales[0, 0] == 1


@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.BF16])
def test_a_scale_that_is_nan_by_two_infinities_has_the_positive_nan(scale_format: Any) -> None:
    x = np.array([[np.inf] + [1.0] * 15], np.float32)  # Inf / Inf: x86 gives NaN a sign
    q = fp.encode_scaled(x, "e2m1", fp.scalings.NVFP4.replace(scale_format=scale_format, infinity="propagate"))
    assert q.scale_codes is not None
    assert q.scale_codes.item() == scale_format.nan_code
    assert np.isnan(q.scales).all()
