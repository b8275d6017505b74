"""Scaled quantisation of arrays of any shape, dtype, layout and length: the codes and scales of a plain oracle."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.runtime.threads import SMALLEST
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import casts
from tests.oracles import scaling as so
from tests.oracles.tiling import scales as tile_scales
from tests.scaling.checks import SEED, SOME, assert_same_encoding, check, compare, compare_scales, preset, scaling
from tests.scaling.data import SHAPE, between, edges_of_scales, normal, only_zeros, wide, with_infinities, with_nan
from tests.scaling.test_presets import BLOCKS

Array = npt.NDArray[Any]


# ---- shapes

SHAPES: list[tuple[int, ...]] = [
    (), (1,), (7,), (300,), (0,), (0, 5), (5, 0), (1, 1), (3, 300), (130, 257), (257, 130), (2, 3, 70), (3, 0, 4),
    (2, 2, 5, 40), (129, 1), (1, 129),
]  # fmt: skip
ODD_BLOCKS = [5, -1, (-1,), (7,), (2, 3), (-1, 4), (4, -1), (2, 1, 7), (-1, 1, 2), (2, -1, 16), (3, 2, 2, 30), (500, 2)]
THREE_AXES = [(2, 1, 7), (-1, 1, 2), (3, 2, 2, 30)]  # what these extend along cannot be seen as two axes


@pytest.mark.parametrize("name", [*BLOCKS, "MX", "NVFP4", "TE_128X128", "TORCHAO_128X1", "DEEPGEMM_1X128", "TE_NVFP4"])
def test_every_shape_encodes_as_the_oracle_says(name: str) -> None:
    for shape in SHAPES:
        q = check(between(-6, 6, shape, 9), fp.E4M3, preset(name))
        assert q.codes.shape == shape
        assert len(q.scales.shape) == len(shape)


@pytest.mark.parametrize("block", ODD_BLOCKS, ids=str)
def test_every_block_encodes_as_the_oracle_says(block: Any) -> None:
    for shape in ((), (7,), (0, 5), (5, 33), (2, 3, 70), (2, 2, 5, 40)):
        x = between(-6, 6, shape, 10)
        if block in THREE_AXES and len(shape) > 2:
            with pytest.raises(ValueError, match="two axes"):
                fp.encode_scaled(x, fp.E4M3, scaling(block=block))
            continue
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


@in_turn("name", [*BLOCKS, *SOME])
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
    for i, fmt in enumerate((fp.E4M3, fp.E5M2, fp.E2M1, fp.p3109_k8p4se, fp.p3109_k8p3sf, fp.E4M3FNUZ, fp.INT8)):
        for x in (
            make()
            for make in (data if len(data) > 2 else [data[(i + len(name) + casts.OVERFLOWS.index(overflow)) % 2]])
        ):
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
    report = asdict(tile_scales.Report())
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


# ---- what comes back


def test_arrays_of_given_scales_stay_as_they_are() -> None:
    x, scales = with_nan(), np.ones((3, 2), np.float32)
    fp.encode_scaled(x, "e4m3", scales=scales)
    fp.quantize_scaled(x, "e4m3", scales=scales)
    assert_bits_equal(scales, np.ones((3, 2), np.float32))


@pytest.mark.parametrize("name", ["TILE_1X128", "MX", "NVFP4", "TE_128X128", "TENSOR"])
def test_an_earlier_result_can_be_filled_again(name: str) -> None:
    first = fp.encode_scaled(with_nan(), fp.E4M3, preset(name))
    codes = first.codes
    q = fp.encode_scaled(normal(), fp.E4M3, preset(name), out=first)
    compare(q, so.encode(normal(), fp.E4M3, preset(name)))
    assert np.shares_memory(q.codes, codes)


def test_an_earlier_result_without_zero_points_is_not_filled() -> None:
    want = fp.encode_scaled(normal(), fp.INT8, fp.Scaling(symmetric=False))
    bare = fp.Scaled(want.codes.copy(), want.scales.copy(), want.fmt, want.scaling)
    got = fp.encode_scaled(normal(), fp.INT8, fp.Scaling(symmetric=False), out=bare)
    assert got.zero_points is not None
    assert want.zero_points is not None
    assert_bits_equal(got.zero_points, want.zero_points)
    assert_bits_equal(got.codes, want.codes)


@pytest.mark.parametrize("name", ["TILE_1X128", "MX", "NVFP4", "TENSOR"])
def test_quantize_scaled_fills_out(name: str) -> None:
    out = np.full(SHAPE, 7, np.float32)
    assert fp.quantize_scaled(normal(), fp.E4M3, preset(name), out=out) is out
    assert_bits_equal(out, so.decode(so.encode(normal(), fp.E4M3, preset(name)), fp.E4M3))


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


@pytest.mark.parametrize(("nan", "zero_tiles"), [("tile", 2), ("element", 3)])
def test_the_report_of_logfmt_counts_tiles_of_zeros_nan_and_inf(nan: str, zero_tiles: int) -> None:
    x = np.array([[0, -0.0], [np.inf, 1], [np.nan, 1], [np.inf, np.nan], [np.inf, 0], [2, 3]], np.float32)
    report = fp.encode_scaled(x, fp.LogFMT(8), fp.scalings.ROW.replace(nan=nan)).report
    assert asdict(report) == asdict(tile_scales.Report(6, zero_tiles=zero_tiles, nan_tiles=2, infinite_tiles=3))
