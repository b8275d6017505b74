"""Elements of formats given by a table: codes and scales of an oracle and of bitsandbytes, files, and errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.scaling.clipping import kept
from fpsim.testing import assert_bits_equal
from tests.kit.processes import ROOT
from tests.oracles import tables as oracle

Array = npt.NDArray[Any]
QLORA = fp.Scaling(block=(64,))
SINGLE = fp.TableFormat("single", (0.0, 0.1, 0.5, 1.0))  # 0.1 is no float32


def data(special: bool = False) -> Array:
    x = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    x[1, :64] = 0
    if special:
        x[2, 3], x[3, 70], x[4, 5], x[5, 0] = np.nan, np.inf, -0.0, 1e-42
    return x


@pytest.mark.parametrize("table", [fp.NF4, fp.BNB_FP4, fp.HIF8], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_codes_are_those_of_quotients_by_the_scale(table: fp.TableFormat, dtype: Any) -> None:
    x = data().astype(dtype)
    q = fp.encode_scaled(x, table, QLORA)
    wide = x.astype(np.float64 if dtype == np.float64 else np.float32)
    scales = np.repeat(q.scales, 64, axis=1)[:, :200].astype(wide.dtype)
    tops = np.maximum.reduceat(np.abs(wide), [0, 64, 128, 192], axis=1) / table.largest
    assert_bits_equal(q.scales, np.where(tops == 0, 1, tops).astype(np.float32))
    want = [oracle.encode(float(value), table, overflow="saturate_finite") for value in (wide / scales).ravel()]
    assert_bits_equal(q.codes.ravel(), np.array(want, np.uint8))
    values = table.table().astype(np.float32)[q.codes]
    assert_bits_equal(q.decode(), values * np.repeat(q.scales, 64, axis=1)[:, :200])
    assert_bits_equal(fp.quantize_scaled(x, table, QLORA), q.decode())
    exact = table.table()[q.codes] * np.repeat(q.scales, 64, axis=1)[:, :200].astype(np.float64)
    assert_bits_equal(q.decode(np.float64), exact)


def test_nf4_and_fp4_have_the_codes_of_bitsandbytes() -> None:
    with np.load(ROOT / "tests" / "data" / "tables.npz") as recorded:
        x, nf4, fp4, absmax = (recorded[name] for name in ("bnb_source", "bnb_nf4", "bnb_fp4", "bnb_absmax"))
    q = fp.encode_scaled(x, fp.NF4, QLORA)
    assert_bits_equal(q.codes, nf4)
    assert_bits_equal(np.where(absmax == 0, 1, absmax).astype(np.float32), q.scales)
    four = fp.encode_scaled(x, fp.BNB_FP4, QLORA)
    table = fp.BNB_FP4.table()
    other = table[four.codes] != table[fp4]  # zeros aside, whose sign its CPU kernel chooses by another rule
    quotients = x[other] / np.repeat(four.scales, 64)[other]
    assert quotients.tolist() == [float(np.float32(-5 / 12))]  # which lies next to a midpoint
    assert q.nbytes * 8 == x.size * 4.5


def test_special_elements_follow_the_scaling() -> None:
    q = fp.encode_scaled(data(special=True), "nf4", QLORA)
    values = q.decode()
    assert np.isnan(values[2, :64]).all()
    assert np.isfinite(values[3]).all()
    assert values[3, 70] == q.scales[3, 1]
    assert (q.report.nan_tiles, q.report.infinite_tiles, q.report.zero_tiles) == (1, 1, 1)
    one = fp.encode_scaled(data(special=True), "hif8", QLORA.replace(nan="element"))
    assert np.isnan(one.decode()).sum() == 1
    assert one.codes[2, 3] == 0x80


@pytest.mark.parametrize("scaling", ["MX_CEIL", "NVFP4", "ROW", "TE_TENSOR", "TORCHAO_128X1", "DEEPGEMM_1X128_UE8M0"])
def test_every_rule_of_scales_serves_tables(scaling: str) -> None:
    x = np.random.default_rng(1).standard_normal((130, 160)).astype(np.float32)
    q = fp.encode_scaled(x, "nf4", scaling)
    assert np.abs(q.decode() - x).max() < 1.2
    half = fp.encode_scaled(x, "nf4", fp.scalings.ROW, scales=0.5)
    assert_bits_equal(half.codes, fp.encode(x / 0.5, "nf4"))


def test_stochastic_elements_are_those_of_the_cast() -> None:
    x = data()
    q = fp.encode_scaled(x, "hif8", fp.scalings.TENSOR, scales=1.0, rounding="stochastic", seed=3)
    assert_bits_equal(q.codes, fp.encode(x, "hif8", rounding="stochastic", seed=3))


def test_a_table_is_saved_and_transposed(tmp_path: Path) -> None:
    mine = fp.TableFormat("mine", (-1.0, 0.0, 0.5, 1.0))
    for fmt in (fp.NF4, mine):
        q = fp.encode_scaled(data(), fmt, QLORA)
        q.save(tmp_path / "q.npz")
        again = fp.Scaled.load(tmp_path / "q.npz")
        assert again.fmt == fmt
        assert_bits_equal(again.decode(), q.decode())
        assert_bits_equal(q.T.decode(), q.decode().T)
        assert_bits_equal(q.blocks[1:3, 0].decode(), q.decode()[1:3, :64])


def test_error_measures_tables() -> None:
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    bare = fp.analysis.error(x, "hif8")
    assert bare.mse == pytest.approx(np.mean((fp.quantize(x, "hif8").astype(np.float64) - x) ** 2), rel=1e-12)
    assert (bare.bits_per_value, bare.scaling) == (8, None)
    scaled = fp.analysis.error(x, "nf4", scaling=QLORA)
    assert scaled.bits_per_value == 4.5
    assert 20.70 < scaled.sqnr_db < 20.73  # as measured, seed 0
    assert fp.analysis.error(x, "nf4", scale="amax").scale == np.abs(x).max()


def test_elements_in_range_are_kept() -> None:
    x = data()
    assert kept(x, fp.NF4, QLORA, fp.Rounding.NEAREST_EVEN).all()
    inside = kept(np.array([0.5, 1.2, -1.16, -5, np.inf], np.float32), fp.NF4, None, fp.Rounding.NEAREST_EVEN)
    assert inside.tolist() == [True, False, False, False, False]


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: fp.encode_scaled(data(), SINGLE), "scales are float32: element formats must have values that float32"),
    (lambda: fp.encode_scaled(data(), "nf4", "MX_EVEN"), "scale_rule 'even' rounds to the element's mantissa"),
    (lambda: fp.encode_scaled(data(), "nf4", QLORA.replace(symmetric=False)), "symmetric=False needs an integer"),
    (lambda: fp.encode_scaled(data(), "nf4", QLORA, rounding="odd"), "rounding 'odd' needs significands"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_combinations_that_mean_nothing_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


def test_codes_without_the_numbers_that_their_values_need_are_refused() -> None:
    codes, scales = np.zeros((1, 64), np.uint8), np.ones((1, 1), np.float32)
    with pytest.raises(ValueError, match="zero_points must be an array for codes of HIF4"):
        fp.Scaled(codes, scales, fp.HIF4, fp.scalings.HIF4)
    with pytest.raises(ValueError, match="scale_codes must be an array for codes of IF4"):
        fp.Scaled(codes, np.ones((1, 4), np.float32), fp.IF4, fp.scalings.IF4)
    with pytest.raises(ValueError, match="zero_points must be an array for codes of LogFMT-8"):
        fp.Scaled(codes, scales, fp.LogFMT(8), fp.scalings.ROW)
    affine = fp.scalings.ROW.replace(symmetric=False)
    with pytest.raises(TypeError, match="zero_points of INT8 must be integers; got float32"):
        fp.Scaled(codes.view(np.int8), scales, fp.INT8, affine, zero_points=np.array([[7.5]], np.float32))
    with pytest.raises(TypeError, match="zero_points of HIF4 must be uint32; got int64"):
        fp.Scaled(codes, scales, fp.HIF4, fp.scalings.HIF4, zero_points=np.zeros((1, 1), np.int64))
    with pytest.raises(TypeError, match="scale_codes in E4M3 must be uint8; got float32"):
        fp.Scaled(codes, np.ones((1, 4), np.float32), fp.IF4, fp.scalings.IF4, np.ones((1, 4), np.float32))
    q = fp.Scaled(codes.view(np.int8), scales, fp.INT8, affine, zero_points=np.array([[7]], np.int32))
    assert q.decode()[0, 0] == q.decode(np.float64)[0, 0] == -7


FORMATS = [fp.NF4, fp.HIF4, fp.E2M1, fp.E3M2, fp.INT4, fp.UINT4, fp.LogFMT(5), fp.format("p3109_k5p2se")]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_packed_codes_are_refused(fmt: Any) -> None:
    scaling = fp.scalings.HIF4 if fmt == fp.HIF4 else fp.scalings.ROW.replace(symmetric=fmt != fp.UINT4)
    q = fp.encode_scaled(np.linspace(-1, 1, 64, dtype=np.float32)[None], fmt, scaling)
    assert_bits_equal(dataclasses.replace(q).decode(), q.decode())
    packed = q.codes.copy()
    packed[0, 3] = 100
    with pytest.raises(ValueError, match=r"codes must lie in (0|-8) \.\. \d+, the codes of .*; got 100. Mask or shift"):
        dataclasses.replace(q, codes=packed)
