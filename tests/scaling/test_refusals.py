"""What cannot be scaled is refused in one sentence, which says what was wanted, what came and what to do."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

X = np.ones((2, 32), np.float32)
WITHOUT_ONE = fp.Format("without1", 3, 2, bias=8)  # up to 0.875


@in_turn(
    "fields, message",
    [
        ({"block": (0, 1)}, r"block must be a tuple of tile sizes >= 1, .*; got \(0, 1\)"),
        ({"scale_rule": "max"}, "scale_rule must be one of amax, .*; got 'max'"),
        ({"tensor_scale": 1}, "tensor_scale must be True or False; got 1"),
        ({"amax_floor": -1.0}, r"amax_floor must be a finite number >= 0; got -1\.0"),
        ({"scale_format": "fp64"}, "scale_format must be FP32 or a format of up to 16 bits .*; got FP64. Use"),
        ({"scale_format": "e2m1"}, "scale_format must have a NaN, .*; got E2M1. Use"),
        ({"scale_format": "e8m0", "smallest_scale": 3.0}, r"smallest_scale must be a positive value of E8M0; got 3\.0"),
        ({"scale_format": WITHOUT_ONE}, "a scale of 1 needs a scale_format with that value; got without1. Use zero_"),
        (
            {"scale_format": WITHOUT_ONE, "zero_scale": "smallest", "infinity": "one"},
            "a scale of 1 needs a scale_format with that value; got without1. .*another infinity than 'one'",
        ),
        ({"scale_format": "bf16", "scale_rounding": "sr"}, "scale_rounding must be deterministic; got 'stochastic'"),
        ({"scale_rounding": "up"}, "scales in FP32 are quotients rounded to nearest even; got .*Use scale_format"),
        ({"scale_rule": "floor", "scale_rounding": "up"}, "scale_rounding needs scale_rule='amax'; got 'floor'"),
        ({"quotient": "1/(max/amax)", "scale_rule": "floor"}, r"quotient '1/\(max/amax\)' needs scale_rule='amax'"),
        ({"quotient": "1/(max/amax)", "scale_format": "bf16"}, "needs scale_format FP32 or E8M0; got BF16"),
        ({"tensor_scale": True, "scale_format": "e8m0"}, "tensor_scale needs .* scales with a mantissa; got 'amax'"),
        ({"tensor_scale": True, "infinity": "one"}, "infinity='one' needs tensor_scale=False, .*Use infinity='skip'"),
        ({"symmetric": False, "tensor_scale": True}, "symmetric=False needs scale_rule='amax', .*; got 'amax'"),
    ],
)
def test_a_scaling_that_is_not_possible_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fp.Scaling(**fields)


def test_a_scale_format_without_1_serves_where_no_rule_asks_for_it() -> None:
    x = np.array([[0, 0], [2, 1]], np.float32)
    how = fp.scalings.ROW.replace(scale_format=WITHOUT_ONE, zero_scale="smallest")
    assert fp.encode_scaled(x, fp.E2M1, how).scales.tolist() == [[WITHOUT_ONE.smallest_subnormal], [0.3125]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.encode_scaled(X, "fp32"), "element formats have up to 16 bits; got FP32"),
        (lambda: fp.encode_scaled(X, "e8m0"), "element formats need a zero; got E8M0"),
        (lambda: fp.encode_scaled(X, "uint8"), r"UINT8 needs a zero point; use scaling.replace\(symmetric=False\)"),
        (lambda: fp.encode_scaled(X, "e4m3", fp.Scaling(symmetric=False)), "symmetric=False needs an integer format"),
        (lambda: fp.encode_scaled(X, "e4m3", scales=[1.0, 2, 3]), r"scales must be one per tile, shape \(2, 1\)"),
        (lambda: fp.encode_scaled(X, np.int8(1)), "Values come before their format"),
        (lambda: fp.encode_scaled(X, "e4m3", scales=0.0), r"scales must be positive and finite in float32; got 0\.0"),
        (lambda: fp.encode_scaled(X, "logfmt-8", scales=1.0), "LogFMT finds its own levels; got scales"),
        (lambda: fp.encode_scaled(X, "logfmt-8", rounding="up"), "LogFMT takes the nearest level; got another"),
    ],
)
def test_a_call_that_is_not_possible_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("field", ["scales", "zero_points"])
def test_out_that_overlaps_what_decoding_reads_is_refused(field: str) -> None:
    scaling = fp.Scaling(block=(1, 32), symmetric=field == "scales")
    q = fp.encode_scaled(X, "int8" if field == "scales" else "uint8", scaling)
    out = np.zeros((2, 32), np.float32)
    place = out.reshape(-1).view(getattr(q, field).dtype)[:2].reshape(2, 1)
    place[...] = getattr(q, field)
    with pytest.raises(ValueError, match="out must not share memory with the input"):
        dataclasses.replace(q, **{field: place}).decode(out=out)


def test_arrays_to_fill_that_overlap_the_input_are_refused() -> None:
    x = X.copy()
    q = fp.encode_scaled(x, "e4m3", "TILE_1X128")
    into = dataclasses.replace(q, scales=x.reshape(-1)[:2].reshape(2, 1))
    with pytest.raises(ValueError, match="out must not share memory with the input"):
        fp.encode_scaled(x, "e4m3", "TILE_1X128", out=into)


@pytest.mark.filterwarnings("error")
def test_numbers_of_numpy_give_no_warning() -> None:
    how = fp.Scaling(smallest_scale=np.float32(0.5), amax_floor=np.float16(2))  # type: ignore[arg-type]
    assert how == fp.Scaling(smallest_scale=0.5, amax_floor=2.0)


def test_a_scale_that_float32_rounds_to_zero_is_named() -> None:
    with pytest.raises(ValueError, match=r"^scales must be positive and finite in float32; got 1e-60\.$"):
        fp.encode_scaled(np.ones((1, 4)), fp.E4M3, fp.scalings.MX, scales=1e-60)


def test_the_scale_of_the_array_is_a_float() -> None:
    q = fp.encode_scaled(X, "e2m1", fp.scalings.NVFP4)
    assert type(dataclasses.replace(q, tensor_scale=0.5).tensor_scale) is np.float32  # type: ignore[arg-type]
    for wrong in ("0.5", np.ones(1, np.float32), True, 1):
        with pytest.raises(TypeError, match="tensor_scale must be a float or None; got"):
            dataclasses.replace(q, tensor_scale=wrong)  # type: ignore[arg-type]
