"""Scaled quantisation: codes, scales and counts are those of a plain oracle, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.runtime.threads import SMALLEST
from fpsim.testing import assert_bits_equal
from tests.core.test_philox import random_word
from tests.kit.samples import float32_patterns
from tests.kit.sweeps import sweep
from tests.oracles import casts
from tests.oracles import scaling as so

Array = npt.NDArray[Any]
SEED = 0x0123456789ABCDEF
SHAPE = (3, 300)

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
    "quotient": "amax/max", "division": "divide", "tensor_scale": False, "symmetric": True,
    "overflow": "saturate_finite", "nan": "tile", "infinity": "skip", "zero_scale": "one", "smallest_scale": None,
}  # fmt: skip

FORMATS = [fp.E4M3, fp.E5M2, fp.E2M1, fp.BF16, fp.INT8]
MORE_FORMATS = [
    fp.E2M3, fp.E3M2, fp.FP16, fp.E4M3FNUZ, fp.E3M4, fp.INT4,
    *(fp.format(f"p3109_{name}") for name in ("k8p4se", "k8p3sf", "k8p1se", "k4p2sf", "k8p4ue")),
]  # fmt: skip
INTEGERS = [fp.INT8, fp.INT4, fp.UINT8, fp.UINT4]

SOME = ["TILE_1X128", "MX", "MX_NEAREST", "NVFP4", "TE_TENSOR", "TE_NVFP4", "TORCHAO_128X1", "DEEPGEMM_1X128_UE8M0"]

presets = pytest.mark.parametrize("name", ROWS)


# ---- comparison


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


# ---- data that bites


def normal(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def between(low: float, high: float, shape: tuple[int, ...], seed: int) -> Array:
    """Gaussian numbers times 2^low to 2^high."""
    powers = np.exp2(np.random.default_rng(seed).uniform(low, high, shape))
    limit = np.finfo(np.float32).max
    x: Array = np.clip(normal(shape, seed) * powers, -limit, limit).astype(np.float32)
    return x


def wide(shape: tuple[int, ...] = SHAPE) -> Array:
    return between(-40, 40, shape, 1)


def tiny(shape: tuple[int, ...] = SHAPE) -> Array:
    """Around and below the smallest normal float32; each row has its own range."""
    x = between(-20, 0, shape, 2)
    x *= np.float32(2) ** -np.linspace(100, 145, x.shape[0], dtype=np.float32).round()[:, None]
    return x


def subnormal(shape: tuple[int, ...] = SHAPE) -> Array:
    """Small multiples of the smallest float32."""
    x = np.random.default_rng(3).integers(-9, 10, shape) * np.float64(2**-149)
    x[:, ::64] *= 2**20
    return x.astype(np.float32)


def huge(shape: tuple[int, ...] = SHAPE) -> Array:
    """Up to the largest float32."""
    x = between(118, 128, shape, 4)
    x[0, 0] = -np.finfo(np.float32).max
    return x


def edges_of_scales(shape: tuple[int, ...] = SHAPE) -> Array:
    """Tiles whose largest value is the edge of a binade, a format's largest value, or a float32 next to one."""
    generator = np.random.default_rng(5)
    x = between(-2, 0, shape, 5).clip(-1, 1)
    x *= np.float32(0.5)
    tops = np.array([1, 1.5, 1.75, 1.875, 1.9375, 448 / 256, 57344 / 32768, 127 / 64], np.float32)
    tops = np.concatenate([np.nextafter(tops, np.float32(0)), tops, np.nextafter(tops, np.float32(2))])
    for row in x:
        for start in range(0, row.size, 16):
            power = np.float32(2.0) ** generator.integers(-30, 30)
            row[start : start + 16] *= power
            row[start] = generator.choice(tops) * power * generator.choice([-1, 1])
    return x


def zeros(shape: tuple[int, ...] = SHAPE) -> Array:
    """Zeros of both signs, whole tiles of them too."""
    x = normal(shape, 6)
    x[:, ::5] = 0
    x[:, 1::7] = -0.0
    x[0, : shape[1] // 2] = 0
    x[-1] = -0.0
    x[:, -40:-20] = 0
    return x


def only_zeros(shape: tuple[int, ...] = SHAPE) -> Array:
    x = np.zeros(shape, np.float32)
    x[:, ::3] = -0.0
    return x


def with_nan(shape: tuple[int, ...] = SHAPE) -> Array:
    x = wide(shape)
    x[0, 5] = x[-1, ::100] = np.nan
    x[0, 6] = -np.float32(np.nan)
    x[0, 32:64] = np.nan
    return x


def with_infinities(shape: tuple[int, ...] = SHAPE) -> Array:
    x = normal(shape, 7)
    x[0, 5] = x[-1, ::100] = np.inf
    x[0, 6], x[0, 140], x[0, 40:50] = -np.inf, -np.inf, 0
    x[1, 32:64] = np.inf
    return x


def anything(shape: tuple[int, ...] = SHAPE) -> Array:
    """Bit patterns of float32: every exponent, NaN and Inf."""
    return float32_patterns(8, int(np.prod(shape))).reshape(shape)


DATA = [
    normal, wide, tiny, subnormal, huge, edges_of_scales, zeros, only_zeros, with_nan, with_infinities, anything,
]  # fmt: skip
SPECIALS = [zeros, with_nan, with_infinities, anything]


# ---- the rows


@presets
def test_a_preset_is_its_row_of_the_documentation(name: str) -> None:
    row = {**DEFAULTS, **ROWS[name]}
    assert {field: getattr(preset(name), field) for field in row} == row


def test_fields_are_those_of_the_documentation_and_so_are_their_defaults() -> None:
    assert {field.name: getattr(scaling(), field.name) for field in fields(fp.Scaling)} == {**DEFAULTS, "name": ""}


@pytest.mark.parametrize("data", DATA, ids=lambda data: data.__name__)
@presets
@sweep("count", 2, len(FORMATS))
def test_every_preset_encodes_as_the_oracle_says(name: str, data: Callable[[], Array], count: int) -> None:
    first = list(ROWS).index(name) + [each.__name__ for each in DATA].index(data.__name__)
    for i in range(first, first + count):  # so that all data together see every format with a preset
        fmt = FORMATS[i % len(FORMATS)]
        if not (fmt is fp.INT8 and "EVEN" in name):  # integers have no mantissa
            check(data(), fmt, preset(name))


@pytest.mark.parametrize("fmt", MORE_FORMATS, ids=str)
@presets
def test_every_preset_takes_other_formats(name: str, fmt: Any) -> None:
    if fmt is fp.INT4 and "EVEN" in name:
        pytest.skip("integers have no mantissa")
    x = np.concatenate([wide((1, 150)), edges_of_scales((1, 150)), with_nan((1, 150))])
    check(x, fmt, preset(name))
    check(normal((3, 40)), fmt, preset(name))


@presets
def test_quantize_scaled_is_encoding_and_decoding(name: str) -> None:
    for x in (wide(), with_nan(), with_infinities(), zeros(), normal(()), normal((5,)), normal((0, 3))):
        want = so.decode(so.encode(x, fp.E4M3, preset(name)), fp.E4M3)
        assert_bits_equal(fp.quantize_scaled(x, fp.E4M3, preset(name)), want)


@pytest.mark.parametrize("fmt", [*FORMATS, *MORE_FORMATS], ids=str)
def test_quantize_scaled_takes_every_format(fmt: Any) -> None:
    for name in ("TILE_1X128", "NVFP4"):
        want = so.decode(so.encode(with_infinities(), fmt, preset(name)), fmt)
        assert_bits_equal(fp.quantize_scaled(with_infinities(), fmt, preset(name)), want)


# ---- shapes

SHAPES: list[tuple[int, ...]] = [
    (), (1,), (7,), (300,), (0,), (0, 5), (5, 0), (1, 1), (3, 300), (130, 257), (257, 130), (2, 3, 70), (3, 0, 4),
    (2, 2, 5, 40), (129, 1), (1, 129),
]  # fmt: skip
ODD_BLOCKS = [5, -1, (-1,), (7,), (2, 3), (-1, 4), (4, -1), (2, 1, 7), (-1, 1, 2), (2, -1, 16), (3, 2, 2, 30), (500, 2)]
THREE_AXES = [(2, 1, 7), (-1, 1, 2), (3, 2, 2, 30)]  # what these extend along cannot be seen as two axes


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [*BLOCKS, "MX", "NVFP4", "TE_128X128", "TORCHAO_128X1", "DEEPGEMM_1X128", "TE_NVFP4"])
def test_every_shape_encodes_as_the_oracle_says(name: str, shape: tuple[int, ...]) -> None:
    q = check(between(-6, 6, shape, 9), fp.E4M3, preset(name))
    assert q.codes.shape == shape
    assert len(q.scales.shape) == len(shape)


@pytest.mark.parametrize("shape", [(), (7,), (0, 5), (5, 33), (2, 3, 70), (2, 2, 5, 40)], ids=str)
@pytest.mark.parametrize("block", ODD_BLOCKS, ids=str)
def test_every_block_encodes_as_the_oracle_says(block: Any, shape: tuple[int, ...]) -> None:
    x = between(-6, 6, shape, 10)
    if block in THREE_AXES and len(shape) > 2:
        with pytest.raises(ValueError, match="two axes"):
            fp.encode_scaled(x, fp.E4M3, scaling(block=block))
        return
    check(x, fp.E4M3, scaling(block=block))
    check(x, fp.INT4, scaling(block=block, symmetric=False))
    check(x, fp.E2M1, scaling(block=block, scale_format=fp.E4M3, tensor_scale=True))


def test_a_block_that_begins_with_the_whole_axis_takes_leading_axes_whole() -> None:
    x = normal((2, 3, 70))
    assert fp.encode_scaled(x, fp.E4M3, scaling(block=(-1, -1))).scales.shape == (1, 1, 1)
    assert fp.encode_scaled(x, fp.E4M3, scaling(block=(-1, 1))).scales.shape == (1, 1, 70)
    assert fp.encode_scaled(x, fp.E4M3, scaling(block=(1, 32))).scales.shape == (2, 3, 3)
    assert fp.encode_scaled(x, fp.E4M3, scaling(block=32)).scales.shape == (2, 3, 3)


# ---- inputs


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ">f4", ">f8"], ids=str)
def test_narrower_inputs_and_other_byte_orders_are_converted_exactly(dtype: Any) -> None:
    x = np.asarray(between(-8, 8, (5, 300), 11).astype(dtype))
    wider: Any = np.float64 if dtype == ">f8" else np.float32
    for name in ("TILE_1X128", "MX_EVEN", "NVFP4", "TE_1X128", "TORCHAO_NVFP4"):
        got = fp.encode_scaled(x, fp.E4M3, preset(name))
        compare(got, so.encode(x.astype(wider), fp.E4M3, preset(name)))


@pytest.mark.parametrize("name", [*SOME, "TILE_128X1", "TENSOR", "TE_MX", "TORCHAO_MX_EVEN", "TORCHAO_NVFP4"])
def test_float64_is_scaled_in_float64(name: str) -> None:
    generator = np.random.default_rng(12)
    x = generator.standard_normal(SHAPE)
    spread = x * np.exp2(generator.uniform(-60, 60, SHAPE))
    beyond = x * np.exp2(generator.uniform(-300, 300, SHAPE))  # of float32's range
    for fmt in (fp.E4M3, fp.FP16):
        for data in (x, spread, beyond, with_infinities().astype(np.float64), with_nan().astype(np.float64)):
            check(data, fmt, preset(name))


def test_lists_and_torch_tensors_are_arrays() -> None:
    torch = pytest.importorskip("torch")
    x = normal((4, 200))
    want = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
    assert_same_encoding(fp.encode_scaled(torch.from_numpy(x), fp.E4M3, fp.scalings.TILE_1X128), want)
    assert_same_encoding(fp.encode_scaled(x, "e4m3", fp.scalings.TILE_1X128), want)
    exact = x.astype(np.float64)
    assert_same_encoding(
        fp.encode_scaled(exact.tolist(), fp.E4M3, fp.scalings.TILE_1X128),
        fp.encode_scaled(exact, fp.E4M3, fp.scalings.TILE_1X128),
    )


@pytest.mark.parametrize("name", [*BLOCKS, *SOME])
def test_layouts_of_memory_change_nothing(name: str) -> None:
    x = between(-20, 20, (140, 150), 13)
    want = fp.encode_scaled(x, fp.E4M3, preset(name))
    layouts = [
        np.asfortranarray(x), x.T.copy().T, np.repeat(x, 2, axis=1)[:, ::2], np.repeat(x, 3, axis=0)[1::3],
        np.flip(np.flip(x).copy()),
    ]  # fmt: skip
    for layout in layouts:
        assert_same_encoding(fp.encode_scaled(layout, fp.E4M3, preset(name)), want)
        assert_bits_equal(fp.quantize_scaled(layout, fp.E4M3, preset(name)), want.decode())


# ---- keywords of the cast


@pytest.mark.parametrize("rounding", casts.MODES)
def test_elements_round_in_the_mode_of_the_call(rounding: str) -> None:
    for x in (normal(), edges_of_scales(), with_infinities()):
        for fmt in (fp.E4M3, fp.E2M1, fp.FP16, fp.p3109_k8p3sf, fp.INT8, fp.INT4):
            check(x, fmt, fp.scalings.TILE_1X128, rounding=rounding)
        check(x, fp.E2M1, fp.scalings.TE_NVFP4, rounding=rounding)


@pytest.mark.parametrize("overflow", casts.OVERFLOWS)
@pytest.mark.parametrize("name", ["MX", "MX_NEAREST", "TE_MX", "DEEPGEMM_1X128", "TE_TENSOR", "TE_NVFP4", "TILE_128X1"])
@sweep("data", [edges_of_scales, with_infinities], [edges_of_scales, with_nan, with_infinities, only_zeros])
def test_the_overflow_of_the_call_comes_before_that_of_the_scaling(name: str, overflow: str, data: Any) -> None:
    for fmt in (fp.E4M3, fp.E5M2, fp.E2M1, fp.p3109_k8p4se, fp.p3109_k8p3sf, fp.E4M3FNUZ, fp.INT8):
        for x in (make() for make in data):
            check(x, fmt, preset(name), overflow=overflow)
            if name == "MX":
                check(x, fmt, preset(name), overflow=overflow, rounding="toward_zero")


@pytest.mark.parametrize("rounding", casts.MODES)
def test_subnormal_elements_can_be_flushed(rounding: str) -> None:
    for fmt in (fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16):
        check(between(-14, 0, SHAPE, 14), fmt, fp.scalings.TILE_1X128, rounding=rounding, subnormals="flush")


@pytest.mark.parametrize("bits", [32, 7])
@pytest.mark.parametrize("name", ["TILE_1X128", "TE_NVFP4", "TE_TENSOR", "TORCHAO_128X1"])
def test_stochastic_rounding_is_that_of_the_scaled_elements(name: str, bits: int) -> None:
    """The random word is that of an element's place in the array, for every layout and tile."""
    how = preset(name)
    words: dict[str, Any] = {"rounding": "stochastic", "seed": SEED, "random_bits": bits}
    for x in (between(-3, 0, (40, 150), 15), normal((2, 3, 70)), normal((7,)), normal(())):
        q = fp.encode_scaled(x, fp.E4M3, how, **words)
        want = so.encode(x, fp.E4M3, how)
        compare_scales(q, want)
        assert_bits_equal(q.codes, fp.encode(want.ratio.astype(np.float32), fp.E4M3, overflow=how.overflow, **words))
        assert_same_encoding(fp.encode_scaled(np.array(x, order="F"), fp.E4M3, how, **words), q)
        assert_bits_equal(fp.quantize_scaled(x, fp.E4M3, how, **words), q.decode())


@pytest.mark.parametrize("bits", [32, 5])
@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_stochastic_integers_use_the_word_of_their_place(fmt: Any, bits: int) -> None:
    x = normal((3, 50), 16)
    how = scaling(block=(1, 32), symmetric=False)
    q = fp.encode_scaled(x, fmt, how, rounding="stochastic", seed=SEED, random_bits=bits)
    want = so.encode(x, fmt, how)
    assert_bits_equal(q.scales, want.scales)
    ratio = (x / so.repeated(want.scales, x.shape, want.sizes)).astype(np.float64)
    words = np.array([random_word(i, SEED) >> (32 - bits) for i in range(x.size)]).reshape(x.shape)
    below = np.floor(np.abs(ratio))
    away = np.floor((np.abs(ratio) - below) * 2.0**bits) + words >= 2**bits
    assert want.zero_points is not None
    integers = np.sign(ratio) * (below + away) + so.repeated(want.zero_points, x.shape, want.sizes)
    assert_bits_equal(q.codes, np.clip(integers, *so.RANGES[fmt.name]).astype(q.codes.dtype))


# ---- fields of fp.Scaling

SCALE_FORMATS = [
    fp.FP32, fp.BF16, fp.FP16, fp.E8M0, fp.E4M3, fp.E5M2, fp.E3M4, fp.p3109_k8p1ue, fp.p3109_k8p4ue, fp.p3109_k8p5uf,
]  # fmt: skip


@pytest.mark.parametrize("scale_format", SCALE_FORMATS, ids=str)
@pytest.mark.parametrize("rule", ["amax", "floor", "ceil", "even", "rceil", "nearest"])
def test_every_rule_gives_scales_of_every_format(rule: str, scale_format: Any) -> None:
    if scale_format == fp.FP32 and rule == "rceil":
        pytest.skip("scales in FP32 are rounded to nearest even")
    for division in ("divide", "multiply"):
        if division == "multiply" and (rule != "amax" or scale_format not in (fp.FP32, fp.E8M0, fp.E4M3)):
            continue
        how = scaling(block=(1, 16), scale_format=scale_format, scale_rule=rule, division=division)
        for data in (wide, edges_of_scales, tiny, with_infinities, with_nan):
            check(data(), fp.E4M3, how)
            check(data(), fp.E2M3, how)


@pytest.mark.parametrize("scale_format", SCALE_FORMATS, ids=str)
@pytest.mark.parametrize("scale_rounding", ["nearest_even", "up", "down"])
def test_the_quotient_rounds_in_the_mode_of_the_field(scale_rounding: str, scale_format: Any) -> None:
    if scale_format == fp.FP32 and scale_rounding != "nearest_even":
        pytest.skip("scales in FP32 are rounded to nearest even")
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


@pytest.mark.parametrize("infinity", ["skip", "propagate", "one"])
@pytest.mark.parametrize("nan", ["tile", "element"])
@pytest.mark.parametrize("zero_scale", ["one", "smallest"])
@sweep("formats", [fp.E4M3, fp.INT8], [fp.E4M3, fp.E5M2, fp.E2M1, fp.INT8])
def test_specials_are_treated_as_the_fields_say(zero_scale: str, nan: str, infinity: str, formats: list[Any]) -> None:
    words = {"nan": nan, "infinity": infinity, "zero_scale": zero_scale, "block": (1, 16)}
    for scale_format in (fp.FP32, fp.E8M0, fp.BF16):
        for quotient in ("amax/max", "amax*(1/max)", "1/(max/amax)"):
            if quotient == "1/(max/amax)" and scale_format == fp.BF16:
                continue
            for division in ("divide", "multiply"):
                how = scaling(**words, scale_format=scale_format, quotient=quotient, division=division)
                for data in SPECIALS:
                    for fmt in formats:
                        check(data(), fmt, how)


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


# ---- two levels


@pytest.mark.parametrize("quotient", ["amax/max", "1/(max/amax)"])
@pytest.mark.parametrize("division", ["divide", "multiply"])
@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.E5M2, fp.p3109_k8p4uf], ids=str)
def test_two_levels_of_scales_are_those_of_the_oracle(scale_format: Any, division: str, quotient: str) -> None:
    for zero_scale in ("one", "smallest"):
        how = scaling(
            block=(1, 16), scale_format=scale_format, tensor_scale=True, division=division, quotient=quotient,
            zero_scale=zero_scale,
        )  # fmt: skip
        for data in DATA:
            for fmt in (fp.E2M1, fp.E4M3, fp.INT4):
                check(data(), fmt, how)


# ---- given scales


@pytest.mark.parametrize("nan", ["tile", "element"])
@presets
def test_given_scales_encode_as_the_oracle_says(name: str, nan: str) -> None:
    how = preset(name).replace(nan=nan)
    sizes = so.tile_sizes(SHAPE, how.block)
    scales = between(-3, 3, so.scales_shape(SHAPE, sizes), 19)
    scales = np.where(scales == 0, np.float32(1), np.abs(scales))
    scales.reshape(-1)[-1] = np.nan if nan == "tile" else 3
    for data in (normal, zeros, only_zeros, with_nan, with_infinities):
        for fmt in (fp.E4M3, fp.E2M1, fp.INT8):
            q = check(data(), fmt, how, scales=scales)
            assert q.tensor_scale is None
            assert_bits_equal(fp.quantize_scaled(data(), fmt, how, scales=scales), q.decode())


@pytest.mark.parametrize("nan", ["tile", "element"])
@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_zero_points_of_given_scales_are_those_of_the_oracle(fmt: Any, nan: str) -> None:
    for infinity in ("skip", "propagate", "one"):
        how = scaling(block=(1, 16), symmetric=False, nan=nan, infinity=infinity)
        for data in (normal, only_zeros, with_nan, with_infinities):
            check(data(), fmt, how, scales=0.1)
            check(data().astype(np.float64), fmt, how.replace(division="multiply"), scales=3.0)


def test_a_nan_makes_its_tile_nan_with_given_scales_too() -> None:
    """Integers have no NaN: the scale says it."""
    x = np.array([[np.nan, 1, -2], [3, 4, 5]], np.float32)
    q = fp.encode_scaled(x, "int8", fp.scalings.ROW, scales=0.5)
    assert_bits_equal(q.decode(), np.array([[np.nan] * 3, [3, 4, 5]], np.float32))
    assert_bits_equal(q.scales, np.array([[np.nan], [0.5]], np.float32))
    assert q.report.nan_tiles == 1
    element = fp.quantize_scaled(x, "int8", fp.scalings.ROW.replace(nan="element"), scales=0.5)
    assert_bits_equal(element, np.array([[63.5, 1, -2], [3, 4, 5]], np.float32))


def test_arrays_of_given_scales_stay_as_they_are() -> None:
    x, scales = with_nan(), np.ones((3, 3), np.float32)
    fp.encode_scaled(x, "e4m3", scales=scales)
    fp.quantize_scaled(x, "e4m3", scales=scales)
    assert_bits_equal(scales, np.ones((3, 3), np.float32))


# ---- integers


@pytest.mark.parametrize("division", ["divide", "multiply"])
@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_integers_with_a_zero_point_are_those_of_the_oracle(fmt: Any, division: str) -> None:
    for scale_format in (fp.FP32, fp.E8M0, fp.BF16):
        how = scaling(block=(1, 16), symmetric=False, division=division, scale_format=scale_format)
        check(normal() + np.float32(5), fmt, how, rounding="toward_zero")
        for data in DATA:
            check(data(), fmt, how)
            check(np.abs(data()), fmt, how)


@pytest.mark.parametrize("rounding", casts.MODES)
@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_integers_round_in_every_mode_and_zero_points_to_nearest(fmt: Any, rounding: str) -> None:
    halves = np.arange(-300, 301, dtype=np.float32).reshape(1, -1) / 2
    for x in (normal(), halves, halves * np.float32(127 / 150)):
        check(x, fmt, scaling(block=(1, -1), symmetric=False), rounding=rounding)
        if fmt in (fp.INT8, fp.INT4):
            check(x, fmt, scaling(block=(1, -1)), rounding=rounding)


def test_a_symmetric_integer_is_never_minus_128() -> None:
    x = np.array([[-1.0, 0.3, -0.999, 127 / 128]], np.float32)
    q = check(x, fp.INT8, fp.scalings.ROW)
    assert q.codes.dtype == np.int8
    assert q.codes.min() == -127


# ---- long arrays


def long_array() -> Array:
    """More than a piece and more than one thread's share, with the same amax in every 100 rows."""
    x = np.tile(between(-10, 10, (300, 1400), 17), (5, 1))
    x[::100, 0] = 2.0**14
    assert x.size > SMALLEST
    return x


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(
    ("name", "quantized"),
    [
        # values in tiles take loops of their own, which take seconds to compile for every recipe
        *[(name, True) for name in ("TILE_1X128", "BLOCK_128X128", "TENSOR", "COLUMN")],
        *[(name, False) for name in ("TILE_128X1", "MX", "NVFP4")],
        *[pytest.param(name, True, marks=pytest.mark.slow) for name in ("TILE_128X1", "MX", "NVFP4")],
    ],
)
def test_any_number_of_threads_gives_the_same_bits(
    name: str, quantized: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = long_array()
    monkeypatch.setenv("FPSIM_NUM_THREADS", str(threads))
    q = fp.encode_scaled(x, fp.E4M3, preset(name))
    values = fp.quantize_scaled(x, fp.E4M3, preset(name)) if quantized else None
    report = asdict(so.Report())
    monkeypatch.setenv("FPSIM_NUM_THREADS", "1")
    columns = name in ("TILE_128X1", "BLOCK_128X128", "COLUMN")  # bands of columns, else of rows
    bands = (
        [x[:, i : i + 256] for i in range(0, 1400, 256)] if columns else [x[i : i + 100] for i in range(0, 1500, 100)]
    )
    if name == "TENSOR":
        bands = [x[:700], x[700:]]
    parts = [fp.encode_scaled(np.ascontiguousarray(band), fp.E4M3, preset(name)) for band in bands]
    axis = 1 if columns else 0
    assert_bits_equal(q.codes, np.concatenate([part.codes for part in parts], axis))
    if values is not None:
        assert_bits_equal(values, np.concatenate([part.decode() for part in parts], axis))
    if name != "TENSOR":
        assert_bits_equal(q.scales, np.concatenate([part.scales for part in parts], axis))
        for count in report:
            assert getattr(q.report, count) == sum(getattr(part.report, count) for part in parts), count


@pytest.mark.parametrize(
    "name", ["TILE_1X128", "TILE_128X1", "BLOCK_128X128", pytest.param("NVFP4", marks=pytest.mark.slow), "TENSOR"]
)
def test_long_arrays_of_any_layout_round_stochastically_alike(name: str) -> None:
    x = long_array()
    words: dict[str, Any] = {"rounding": "stochastic", "seed": SEED}
    q = fp.encode_scaled(x, fp.E5M2, preset(name), **words)
    assert_same_encoding(fp.encode_scaled(np.asfortranarray(x), fp.E5M2, preset(name), **words), q)
    assert_bits_equal(fp.quantize_scaled(x, fp.E5M2, preset(name), **words), q.decode())
    if name == "TENSOR":
        ratio = x / q.scales[0, 0]
        assert_bits_equal(q.codes, fp.encode(ratio, fp.E5M2, overflow="saturate_finite", **words))


# ---- out=


@pytest.mark.parametrize("name", ["TILE_1X128", "MX", "NVFP4", "TE_128X128", "TENSOR"])
def test_an_earlier_result_can_be_filled_again(name: str) -> None:
    first = fp.encode_scaled(with_nan(), fp.E4M3, preset(name))
    codes = first.codes
    q = fp.encode_scaled(normal(), fp.E4M3, preset(name), out=first)
    compare(q, so.encode(normal(), fp.E4M3, preset(name)))
    assert np.shares_memory(q.codes, codes)


def test_an_earlier_result_with_zero_points_can_be_filled_again() -> None:
    how = scaling(block=(1, 32), symmetric=False)
    first = fp.encode_scaled(wide(), fp.UINT8, how)
    compare(fp.encode_scaled(normal(), fp.UINT8, how, out=first), so.encode(normal(), fp.UINT8, how))


@pytest.mark.parametrize("name", ["TILE_1X128", "MX", "NVFP4", "TENSOR"])
def test_quantize_scaled_fills_out(name: str) -> None:
    out = np.full(SHAPE, 7, np.float32)
    assert fp.quantize_scaled(normal(), fp.E4M3, preset(name), out=out) is out
    assert_bits_equal(out, so.decode(so.encode(normal(), fp.E4M3, preset(name)), fp.E4M3))


# ---- decoding


@presets
def test_decoding_to_float64_is_exact(name: str) -> None:
    x = between(-8, 8, SHAPE, 18)
    for fmt in (fp.E4M3, fp.FP16, fp.INT4):
        if fmt is fp.INT4 and "EVEN" in name:
            continue
        q = fp.encode_scaled(x, fmt, preset(name))
        assert_bits_equal(q.decode(dtype=np.float64), so.decode(so.encode(x, fmt, preset(name)), fmt, np.float64))


@pytest.mark.parametrize("fmt", INTEGERS, ids=str)
def test_decoding_integers_to_float64_is_exact(fmt: Any) -> None:
    how = scaling(block=(2, 7), symmetric=False)
    want = so.decode(so.encode(wide(), fmt, how), fmt, np.float64)
    assert_bits_equal(fp.encode_scaled(wide(), fmt, how).decode(dtype=np.float64), want)


# ---- the other way around


@pytest.mark.parametrize("name", ["TILE_128X1", "TILE_128X1_POW2", "MX"])
def test_requantizing_decodes_to_float32_and_encodes_again(name: str) -> None:
    q = fp.encode_scaled(wide((130, 257)), fp.E4M3, fp.scalings.TILE_1X128)
    want = so.encode(q.decode(), fp.E4M3, preset(name))
    compare(q.requantize(preset(name)), want)


@pytest.mark.parametrize("name", ["TILE_1X128", "TE_1X128", "MX"])
def test_encoding_both_ways_encodes_the_original_twice(name: str) -> None:
    x, how = wide((130, 257)), preset(name)
    along_rows, along_columns = fp.encode_both_ways(x, fp.E4M3, how)
    compare(along_rows, so.encode(x, fp.E4M3, how))
    compare(along_columns, so.encode(x, fp.E4M3, how.replace(block=how.block[::-1])))


@pytest.mark.parametrize("rule", ["amax", "floor", "ceil", "even", "rceil", "nearest"])
@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "e2m1", "int8"])
def test_a_tile_with_inf_has_scale_1_where_that_is_the_rule(rule: str, fmt: str) -> None:
    if (rule, fmt) == ("even", "int8"):
        pytest.skip("integers have no mantissa")
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


@pytest.mark.parametrize("infinity", ["skip", "propagate", "one"])
@pytest.mark.parametrize("nan", ["tile", "element"])
def test_specials_of_integers_with_a_zero_point_are_treated_as_the_fields_say(nan: str, infinity: str) -> None:
    for scale_format in (fp.FP32, fp.E8M0, fp.BF16):
        how = scaling(block=(1, 16), symmetric=False, nan=nan, infinity=infinity, scale_format=scale_format)
        for data in SPECIALS:
            for fmt in INTEGERS:
                check(data(), fmt, how)


@pytest.mark.parametrize(("nan", "zero_tiles"), [("tile", 2), ("element", 3)])
def test_the_report_of_logfmt_counts_tiles_of_zeros_nan_and_inf(nan: str, zero_tiles: int) -> None:
    x = np.array([[0, -0.0], [np.inf, 1], [np.nan, 1], [np.inf, np.nan], [np.inf, 0], [2, 3]], np.float32)
    report = fp.encode_scaled(x, fp.LogFMT(8), fp.scalings.ROW.replace(nan=nan)).report
    assert asdict(report) == asdict(so.Report(6, zero_tiles=zero_tiles, nan_tiles=2, infinite_tiles=3))


@pytest.mark.parametrize("scale_format", [fp.E4M3, fp.BF16])
def test_a_scale_that_is_nan_by_two_infinities_has_the_positive_nan(scale_format: Any) -> None:
    x = np.array([[np.inf] + [1.0] * 15], np.float32)  # Inf / Inf: x86 gives NaN a sign
    q = fp.encode_scaled(x, "e2m1", fp.scalings.NVFP4.replace(scale_format=scale_format, infinity="propagate"))
    assert q.scale_codes is not None
    assert q.scale_codes.item() == scale_format.nan_code
    assert np.isnan(q.scales).all()
