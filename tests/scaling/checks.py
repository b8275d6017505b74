"""Encodes arrays in tiles, and compares everything with the oracle."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.oracles import scaling as so

Array = npt.NDArray[Any]
SEED = 0x0123456789ABCDEF


FORMATS = [fp.E4M3, fp.E5M2, fp.E2M1, fp.BF16, fp.INT8]
MORE_FORMATS = [
    fp.E2M3, fp.E3M2, fp.FP16, fp.E4M3FNUZ, fp.E3M4, fp.INT4,
    *(fp.format(f"p3109_{name}") for name in ("k8p4se", "k8p3sf", "k8p1se", "k4p2sf", "k8p4ue")),
]  # fmt: skip
INTEGERS = [fp.INT8, fp.INT4, fp.UINT8, fp.UINT4]
SOME = ["TILE_1X128", "MX", "MX_NEAREST", "NVFP4", "TE_TENSOR", "TE_NVFP4", "TORCHAO_128X1", "DEEPGEMM_1X128_UE8M0"]


def preset(name: str) -> Any:
    return getattr(fp.scalings, name)


def scaling(**fields: Any) -> Any:
    return fp.Scaling(**fields)


def check(x: Array, fmt: Any, how: Any, **options: Any) -> Any:
    """Encode an array, and compare everything with the oracle."""
    q = fp.encode_scaled(x, fmt, how, **options)
    want = so.encode(np.asarray(x), fmt, how, **options)
    try:
        compare(q, want)
        assert_bits_equal(q.decode(), so.decode(want, fmt))
    except AssertionError as error:
        raise AssertionError(f"{fmt}, {how}, {options}, x of shape {np.shape(x)}: {error}") from None
    return q


def compare(q: Any, want: so.Expected) -> None:
    """Everything that an encoding holds."""
    if want.tensor_scale is not None:
        assert_named("tensor_scale", np.float32(q.tensor_scale), want.tensor_scale)
    compare_scales(q, want)
    if want.zero_points is not None:
        assert_named("zero_points", q.zero_points, want.zero_points)
    assert_named("codes", q.codes, want.codes)
    counts = {name: getattr(q.report, name) for name in asdict(want.report)}
    assert counts == asdict(want.report), f"got {counts}, want {want.report}"


def compare_scales(q: Any, want: so.Expected) -> None:
    """The scales, and their codes where they are not float32."""
    assert_named("scales", q.scales, want.scales)
    if q.scaling.scale_format == fp.FP32 or want.scale_codes is None:
        assert q.scale_codes is None
    else:
        assert_named("scale_codes", q.scale_codes, want.scale_codes)


def assert_named(name: str, got: Any, want: Any) -> None:
    try:
        assert_bits_equal(got, want)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from None


def assert_same_encoding(got: Any, want: Any) -> None:
    """Two encodings hold the same."""
    for name in ("codes", "scales", "scale_codes"):
        if getattr(want, name) is None:
            assert getattr(got, name) is None
        else:
            assert_named(name, getattr(got, name), getattr(want, name))
