"""Scaled quantisation beside the libraries whose conventions have rows in fp.scalings: the same codes and scales."""

from __future__ import annotations

import ast
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
torchao = pytest.importorskip("torchao")
mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
mx_kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
nvfp4_tensor = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
float8_utils = pytest.importorskip("torchao.float8.float8_utils")

Array = npt.NDArray[Any]
Mode = mx_tensor.ScaleCalculationMode
MODES = {
    "TORCHAO_MX": Mode.FLOOR,
    "TORCHAO_MX_CEIL": Mode.CEIL,
    "TORCHAO_MX_EVEN": Mode.EVEN,
    "TORCHAO_MX_RCEIL": Mode.RCEIL,
}
FP8 = {fp.E4M3: torch.float8_e4m3fn, fp.E5M2: torch.float8_e5m2}
MX_ELEMENTS = {
    **FP8,
    fp.E2M1: torch.float4_e2m1fn_x2,
    fp.E2M3: mx_tensor.DTYPE_FP6_E2M3,
    fp.E3M2: mx_tensor.DTYPE_FP6_E3M2,
}
SHAPE = (256, 384)


# ---- data


def normal() -> Array:
    """Gaussian data."""
    return np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)


def wide() -> Array:
    """Exponents from -40 to 40 side by side."""
    return normal() * np.exp2(np.random.default_rng(1).uniform(-40, 40, SHAPE)).astype(np.float32)


def wide_tiles() -> Array:
    """Rows of which each has a power of two, from 2^-30 to 2^30."""
    return normal() * np.exp2(np.linspace(-30, 30, SHAPE[0]).round()).astype(np.float32)[:, None]


def few_bits() -> Array:
    """Small integers times powers of two: largest values on the edge of a binade, and many ties."""
    generator = np.random.default_rng(2)
    powers = np.exp2(generator.integers(-20, 20, (SHAPE[0], SHAPE[1] // 16))).repeat(16, axis=1)
    return (generator.integers(-16, 17, SHAPE) * powers).astype(np.float32)


def zeros() -> Array:
    """Zeros of both signs, tiles of nothing else among them."""
    x = wide_tiles()
    x[::3, :128] = 0
    x[1::3, 100:140] = -0.0
    x[:128, 256:] = 0
    return x


def with_nan() -> Array:
    """NaN here and there."""
    x = wide_tiles()
    x[::7, ::50] = np.nan
    return x


def with_infinities() -> Array:
    """Inf here and there."""
    x = few_bits()
    x[::7, ::50] = np.inf
    x[3::7, 1::50] = -np.inf
    return x


FINITE = (normal, wide, wide_tiles, few_bits, zeros)
finite = pytest.mark.parametrize("data", FINITE, ids=lambda data: data.__name__)
anything = pytest.mark.parametrize("data", [*FINITE, with_nan, with_infinities], ids=lambda data: data.__name__)
fp8_elements = pytest.mark.parametrize("fmt", FP8, ids=str)


# ---- comparison


def codes_of(tensor: Any) -> Array:
    """The bytes of a tensor of codes."""
    return np.asarray(tensor.contiguous().view(torch.uint8).numpy())


def assert_same_values(got: Array, want: Array, fmt: fp.Format) -> None:
    """Codes that mean the same: equal bits, but for the sign of a NaN."""
    assert_bits_equal(fp.decode(got, fmt), fp.decode(want, fmt))


def assert_encodes_alike(x: Array, fmt: fp.Format, scaling: Any, codes: Any, scales: Any) -> None:
    """The codes and scales of a library are those of a row of fp.scalings."""
    q: Any = fp.encode_scaled(x, fmt, scaling)
    assert_bits_equal(q.scales, scales.to(torch.float32).numpy().reshape(q.scales.shape))
    assert_same_values(q.codes, codes_of(codes).reshape(q.codes.shape), fmt)


# ---- torchao, MX


def to_mx(x: Any, fmt: fp.Format, mode: Any) -> tuple[Array, Array]:
    """Codes, one per byte, and E8M0 codes of the scales, as torchao computes them."""
    scales, codes = mx_tensor.to_mx(x, MX_ELEMENTS[fmt], 32, mode)
    if fmt == fp.E2M1:
        codes = mx_kernels.unpack_uint4(codes).reshape(x.shape)
    return codes_of(codes), codes_of(scales)


@anything
@in_turn("fmt", MX_ELEMENTS)
@pytest.mark.parametrize("name", MODES)
def test_mx_scales_and_codes_are_those_of_torchao(name: str, fmt: fp.Format, data: Callable[[], Array]) -> None:
    x = data()
    codes, scales = to_mx(torch.from_numpy(x), fmt, MODES[name])
    q: Any = fp.encode_scaled(x, fmt, getattr(fp.scalings, name))
    assert_bits_equal(q.scale_codes, scales.reshape(q.scales.shape))
    assert_bits_equal(q.scales, fp.decode(scales, fp.E8M0).reshape(q.scales.shape))
    whole = ~np.isnan(q.scales).repeat(32, axis=1)  # all is NaN elsewhere, and torchao's codes are zeros or NaN
    assert_same_values(q.codes[whole], codes[whole], fmt)


@pytest.mark.parametrize("name", MODES)
def test_bfloat16_scales_and_codes_are_those_of_torchao(name: str) -> None:
    x = torch.from_numpy(wide()).to(torch.bfloat16)
    codes, scales = to_mx(x, fp.E4M3, MODES[name])
    q: Any = fp.encode_scaled(x, fp.E4M3, getattr(fp.scalings, name))
    assert_bits_equal(q.scale_codes, scales.reshape(q.scales.shape))
    assert_same_values(q.codes, codes, fp.E4M3)


# ---- torchao, NVFP4


@finite
def test_nvfp4_scales_and_codes_are_those_of_torchao(data: Callable[[], Array]) -> None:
    x = data()
    tensor = torch.from_numpy(x)
    t = nvfp4_tensor.per_tensor_amax_to_scale(tensor.abs().max())
    scales, packed = nvfp4_tensor.nvfp4_quantize(tensor, 16, t)
    q: Any = fp.encode_scaled(x, fp.E2M1, fp.scalings.TORCHAO_NVFP4)
    assert_bits_equal(np.float32(q.tensor_scale), np.float32(t.item()))
    assert_bits_equal(q.scale_codes, codes_of(scales).reshape(q.scales.shape))
    assert_bits_equal(q.codes, codes_of(mx_kernels.unpack_uint4(packed)).reshape(q.codes.shape))


@pytest.mark.parametrize("amax", [1e-36, 1e-38])
def test_nvfp4_of_torchao_differs_where_its_tensor_scale_falls_below_the_normal_numbers(amax: float) -> None:
    x = (normal() / np.abs(normal()).max() * amax).astype(np.float32)
    t = nvfp4_tensor.per_tensor_amax_to_scale(torch.from_numpy(x).abs().max())
    q = fp.encode_scaled(x, fp.E2M1, fp.scalings.TORCHAO_NVFP4)
    assert t.item() < 2.0**-126 == q.tensor_scale
    assert q.report.clamped_low > 0


# ---- torchao, float8 training


def scaled_as_float8(tensor: Any, fmt: fp.Format, **how: Any) -> tuple[Any, Any]:
    """Codes and decode scales of torchao.float8."""
    scale = float8_utils.tensor_to_scale(tensor, FP8[fmt], **how)
    return float8_utils.to_fp8_saturated(tensor * scale, FP8[fmt]), 1.0 / scale


@anything
@fp8_elements
def test_tensorwise_float8_is_that_of_torchao(fmt: fp.Format, data: Callable[[], Array]) -> None:
    x = data()
    assert_encodes_alike(x, fmt, fp.scalings.TORCHAO_TENSOR, *scaled_as_float8(torch.from_numpy(x), fmt))


@anything
@fp8_elements
def test_rowwise_float8_is_that_of_torchao(fmt: fp.Format, data: Callable[[], Array]) -> None:
    x = data()
    rows = {"scaling_granularity": float8_utils.ScalingGranularity.AXISWISE, "axiswise_dim": -1}
    codes, scales = scaled_as_float8(torch.from_numpy(x), fmt, **rows, round_scales_to_power_of_2=True)
    if data is with_infinities:  # 1 / 0 is Inf, which E8M0 does not have
        scales = torch.clamp(scales, max=2.0**127)
    assert_encodes_alike(x, fmt, fp.scalings.TORCHAO_ROW, codes, scales)


@cache
def blockwise(name: str) -> Any:
    """A plain torch function of torchao's blockwise training, whose module cannot be imported without triton."""
    path = Path(torchao.__file__).parent / "prototype/blockwise_fp8_training/kernels.py"
    tree = ast.parse(path.read_text())
    found: list[ast.stmt] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    names = {"torch": torch, "Tuple": tuple, "EPS": 1e-12, "e4m3_dtype": torch.float8_e4m3fn}
    names["FP8_E4M3_DTYPES"] = {torch.float8_e4m3fn}
    exec(compile(ast.Module(found, []), str(path), "exec"), names)
    return names[name]


@anything
@pytest.mark.parametrize(
    ("preset", "function"),
    [
        ("TORCHAO_1X128", "torch_blockwise_scale_act_quant_lhs"),
        ("TORCHAO_128X1", "torch_blockwise_scale_act_quant_rhs"),
        ("TORCHAO_128X128", "torch_blockwise_scale_weight_quant"),
    ],
)
def test_blockwise_float8_is_that_of_torchao(preset: str, function: str, data: Callable[[], Array]) -> None:
    x = data()
    codes, scales = blockwise(function)(torch.from_numpy(x))
    assert_encodes_alike(x, fp.E4M3, getattr(fp.scalings, preset), codes, scales)


def test_128x1_of_torchao_differs_in_bfloat16_below_the_floor() -> None:
    for amax, same in ((1e-11, True), (1e-13, False)):
        x = torch.from_numpy(normal()[:128, :128] * np.float32(amax)).to(torch.bfloat16)
        x[0] = 0.5 * amax
        _, scales = blockwise("torch_blockwise_scale_act_quant_rhs")(x)
        got = fp.encode_scaled(x, fp.E4M3, fp.scalings.TORCHAO_128X1).scales
        want = scales.numpy().reshape(got.shape)
        assert np.array_equal(got, want) == same
        if not same:  # torchao's floor is a bfloat16
            assert_bits_equal(want, np.full_like(want, 1 / np.float32(448 / torch.tensor(1e-12).bfloat16().item())))


# ---- DeepGEMM, deep_gemm/utils/math.py, written out for one block shape


def ceil_to_power_of_two(x: Any) -> Any:
    """The next power of two of positive float32, by its bits."""
    bits = x.view(torch.int32)
    exponents = (bits >> 23 & 0xFF) + ((bits & 0x7FFFFF) != 0).int()
    return (exponents.clamp(1, 254) << 23).view(torch.float32)


def per_block_cast_to_fp8(x: Any, block: tuple[int, int], use_ue8m0: bool) -> tuple[Any, Any]:
    """The function of one block shape: per_token_cast_to_fp8, per_channel_cast_to_fp8, per_block_cast_to_fp8."""
    rows, columns = block
    tiles = x.reshape(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    amax = tiles.abs().float().amax(dim=(1, 3), keepdim=True).clamp(1e-4)
    sf = amax / 448.0
    sf = ceil_to_power_of_two(sf) if use_ue8m0 else sf
    codes = (tiles * (1.0 / sf)).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).reshape(x.shape), sf.reshape(tiles.shape[0], tiles.shape[2])


@anything
@pytest.mark.parametrize("use_ue8m0", [False, True])
@pytest.mark.parametrize("block", [(1, 128), (128, 1), (128, 128)], ids=str)
def test_blocks_are_those_of_deepgemm(block: tuple[int, int], use_ue8m0: bool, data: Callable[[], Array]) -> None:
    if use_ue8m0 and data is with_nan:
        pytest.skip("ceil_to_ue8m0 takes a NaN for a very large number: 2**127")
    x = data()
    name = f"DEEPGEMM_{block[0]}X{block[1]}" + "_UE8M0" * use_ue8m0
    assert_encodes_alike(
        x, fp.E4M3, getattr(fp.scalings, name), *per_block_cast_to_fp8(torch.from_numpy(x), block, use_ue8m0)
    )


@pytest.mark.slow  # torch compiles for seconds what the test above runs uncompiled
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("block", [(1, 128), (128, 128)], ids=str)
def test_blocks_are_those_of_deepgemms_formulas_compiled_by_torch(block: tuple[int, int]) -> None:
    for data in (normal, wide_tiles):
        x = data()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's own
            codes, scales = torch.compile(per_block_cast_to_fp8)(torch.from_numpy(x), block, False)
        name = f"DEEPGEMM_{block[0]}X{block[1]}"
        assert_encodes_alike(x, fp.E4M3, getattr(fp.scalings, name), codes, scales)
