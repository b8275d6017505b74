"""The rows of fp.scalings: they are those of docs/scaling.md, and encode as a plain oracle says, bit for bit."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import case, in_turn, sweep
from tests.oracles import scaling as so
from tests.oracles.tiling import tiles
from tests.scaling.checks import FORMATS, MORE_FORMATS, check, preset, scaling
from tests.scaling.data import (
    DATA,
    SHAPE,
    between,
    edges_of_scales,
    normal,
    only_zeros,
    wide,
    with_infinities,
    with_nan,
    zeros,
)

# ---- the rows of docs/scaling.md

E8M0: dict[str, Any] = {"scale_format": fp.E8M0}
ENCODE = {"quotient": "1/(max/amax)", "overflow": "saturate"}
DEEPGEMM = {"amax_floor": 1e-4, "division": "multiply", "overflow": "saturate", "infinity": "propagate"}
TE = {**ENCODE, "nan": "element", "infinity": "one"}
TE_MX = {**E8M0, "scale_rule": "rceil", "quotient": "amax*(1/max)", "overflow": "saturate", "nan": "element",
         "infinity": "propagate", "zero_scale": "smallest"}  # fmt: skip
TORCHAO = {**ENCODE, "amax_floor": 1e-12, "infinity": "propagate"}
TORCHAO_MX = {**E8M0, "overflow": "saturate", "infinity": "propagate", "zero_scale": "smallest"}
NVFP4 = {"block": (1, 16), "scale_format": fp.E4M3, "tensor_scale": True}
BLOCKS = {
    "TENSOR": (-1, -1), "ROW": (1, -1), "COLUMN": (-1, 1),
    "TILE_1X128": (1, 128), "TILE_128X1": (128, 1), "BLOCK_128X128": (128, 128),
}  # fmt: skip
TILES = {"1X128": (1, 128), "128X1": (128, 1), "128X128": (128, 128)}
MX_RULES = {"": "floor", "_CEIL": "ceil", "_EVEN": "even", "_RCEIL": "rceil"}
ROWS: dict[str, dict[str, Any]] = {
    **{name: {"block": block} for name, block in BLOCKS.items()},
    **{f"{name}_POW2": {"block": block, **E8M0} for name, block in BLOCKS.items()},
    **{f"MX{end}": {"block": (1, 32), **E8M0, "scale_rule": rule} for end, rule in MX_RULES.items()},
    "TRAINIUM_MX": {"block": (1, 32), **E8M0, "scale_rule": "twice_floor"},
    "MX_NEAREST": {"block": (1, 32), **E8M0, "scale_rule": "nearest"},
    "NVFP4": NVFP4,
    **{f"DEEPGEMM_{name}": {"block": block, **DEEPGEMM} for name, block in TILES.items()},
    **{f"DEEPGEMM_{name}_UE8M0": {"block": block, **DEEPGEMM, **E8M0} for name, block in TILES.items()},
    "TE_TENSOR": {"block": (-1, -1), **TE},
    "TE_1X128": {"block": (1, 128), **TE, **E8M0},
    "TE_128X128": {"block": (128, 128), **TE, **E8M0},
    "TE_1X128_FP32": {"block": (1, 128), **TE},
    "TE_128X128_FP32": {"block": (128, 128), **TE},
    "TE_MX": {"block": (1, 32), **TE_MX},
    "TE_NVFP4": {**NVFP4, **ENCODE, "nan": "element"},
    "TORCHAO_TENSOR": {"block": (-1, -1), **TORCHAO},
    "TORCHAO_ROW": {"block": (1, -1), **TORCHAO, **E8M0},
    **{f"TORCHAO_{name}": {"block": block, **TORCHAO} for name, block in TILES.items()},
    **{f"TORCHAO_MX{end}": {"block": (1, 32), **TORCHAO_MX, "scale_rule": rule} for end, rule in MX_RULES.items()},
    "TORCHAO_NVFP4": {**NVFP4, "division": "multiply", "smallest_scale": 2.0**-6, "overflow": "saturate",
                      "zero_scale": "smallest"},
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "block": (1, 128), "scale_format": fp.FP32, "scale_rule": "amax", "scale_rounding": None, "amax_floor": 0,
    "quotient": "amax/max", "division": "divide", "tensor_scale": False, "tensor_top": None, "adaptive": "",
    "symmetric": True,
    "overflow": "saturate_finite", "nan": "tile", "infinity": "skip", "zero_scale": "one", "smallest_scale": None,
}  # fmt: skip
presets = pytest.mark.parametrize("name", ROWS)


@presets
def test_a_preset_is_its_row_of_the_documentation(name: str) -> None:
    row = {**DEFAULTS, **ROWS[name]}
    assert {field: getattr(preset(name), field) for field in row} == row


def test_fields_are_those_of_the_documentation_and_so_are_their_defaults() -> None:
    assert {field.name: getattr(scaling(), field.name) for field in fields(fp.Scaling)} == {**DEFAULTS, "name": ""}


# ---- what they give


@presets
@sweep("count", 1, len(FORMATS))
def test_every_preset_encodes_as_the_oracle_says(name: str, count: int) -> None:
    for first, data in enumerate(DATA, list(ROWS).index(name)):
        for i in range(first, first + count):  # so that all data together see every format with a preset
            fmt = FORMATS[i % len(FORMATS)]
            if not (fmt is fp.INT8 and "EVEN" in name):  # integers have no mantissa
                with case(data.__name__):
                    check(data(), fmt, preset(name))


@presets
@sweep("shapes", 1, 2)
def test_every_preset_takes_other_formats(name: str, shapes: int) -> None:
    x = np.concatenate([wide((1, 150)), edges_of_scales((1, 150)), with_nan((1, 150))])
    for fmt in MORE_FORMATS:
        if not (fmt is fp.INT4 and "EVEN" in name):  # integers have no mantissa
            for each in (x, normal((3, 40)))[:shapes]:
                check(each, fmt, preset(name))


@presets
def test_quantize_scaled_is_encoding_and_decoding(name: str) -> None:
    for x in (wide(), with_nan(), with_infinities(), zeros(), normal(()), normal((5,)), normal((0, 3))):
        want = so.decode(so.encode(x, fp.E4M3, preset(name)), fp.E4M3)
        assert_bits_equal(fp.quantize_scaled(x, fp.E4M3, preset(name)), want)


@in_turn("fmt", [*FORMATS, *MORE_FORMATS])
def test_quantize_scaled_takes_every_format(fmt: Any) -> None:
    for name in ("TILE_1X128", "NVFP4"):
        want = so.decode(so.encode(with_infinities(), fmt, preset(name)), fmt)
        assert_bits_equal(fp.quantize_scaled(with_infinities(), fmt, preset(name)), want)


@pytest.mark.parametrize("nan", ["tile", "element"])
@presets
@sweep("count", 1, 3)
def test_given_scales_encode_as_the_oracle_says(name: str, nan: str, count: int) -> None:
    how = preset(name).replace(nan=nan)
    sizes = tiles.tile_sizes(SHAPE, how.block)
    scales = between(-3, 3, tiles.scales_shape(SHAPE, sizes), 19)
    scales = np.where(scales == 0, np.float32(1), np.abs(scales))
    scales.reshape(-1)[-1] = np.nan if nan == "tile" else 3
    for i, data in enumerate((normal, zeros, only_zeros, with_nan, with_infinities), list(ROWS).index(name)):
        for number in range(i, i + count):
            fmt = (fp.E4M3, fp.E2M1, fp.INT8)[number % 3]
            q = check(data(), fmt, how, scales=scales)
            assert q.tensor_scale is None
            assert_bits_equal(fp.quantize_scaled(data(), fmt, how, scales=scales), q.decode())


@pytest.mark.parametrize("name", ["TILE_1X128", "TE_1X128_FP32", "DEEPGEMM_1X128"])
def test_given_scales_divide_or_multiply_as_the_row_says(name: str) -> None:
    scales = np.random.default_rng(20).uniform(0.5, 2, (1, 600)).astype(np.float32)
    ties = scales * np.resize(np.array([1.0625, 1.1875, 1.4375, 1.8125], np.float32), scales.shape)
    check(ties, fp.E4M3, preset(name).replace(block=(1, 1)), scales=scales)


@pytest.mark.parametrize("spelling", ["NVFP4", "nvfp4", "TILE_1X128", "tile-1x128", "fp.scalings.MX", "mx"])
def test_a_row_may_be_named(spelling: str) -> None:
    row = getattr(fp.scalings, spelling.upper().replace("-", "_").removeprefix("FP.SCALINGS."))
    x = between(-8, 8, SHAPE, 18)
    want = fp.encode_scaled(x, fp.E4M3, row)
    assert_bits_equal(fp.encode_scaled(x, fp.E4M3, spelling), want)
    assert_bits_equal(fp.quantize_scaled(x, fp.E4M3, spelling), fp.quantize_scaled(x, fp.E4M3, row))
    assert_bits_equal(
        fp.encode_scaled(x, fp.E4M3, "TENSOR").requantize(spelling),
        fp.encode_scaled(fp.encode_scaled(x, fp.E4M3, "TENSOR").decode(), fp.E4M3, row),
    )
    assert [each.scaling for each in fp.encode_both_ways(x, fp.E4M3, spelling)] == [row, row.transposed()]
    assert fp.OnlineScaling("e4m3", spelling).scaling == row
    assert fp.DelayedScaling("e4m3", "row").scaling == fp.scalings.ROW


@pytest.mark.parametrize(
    ("spelling", "meant"),
    [
        ("mxfp8", "MX"), ("MXFP4", "MX"), ("fp4", "NVFP4"), ("1x128", "TILE_1X128"), ("tile", "TILE_1X128"),
        ("128x128", "BLOCK_128X128"), ("block", "BLOCK_128X128"), ("per_token", "ROW"), ("tensr", "TENSOR"),
    ],
)  # fmt: skip
def test_another_name_of_a_row_is_refused_with_the_right_one(spelling: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"scaling must be one of the \d+ that fp.scalings lists, .*mean '{meant}'\?"):
        fp.encode_scaled(np.ones((1, 32), np.float32), fp.E4M3, spelling)


@presets
def test_decoding_to_float64_is_exact(name: str) -> None:
    x = between(-8, 8, SHAPE, 18)
    for fmt in (fp.E4M3, fp.FP16, fp.INT4):
        if fmt is fp.INT4 and "EVEN" in name:
            continue
        q = fp.encode_scaled(x, fmt, preset(name))
        assert_bits_equal(q.decode(dtype=np.float64), so.decode(so.encode(x, fmt, preset(name)), fmt, np.float64))
