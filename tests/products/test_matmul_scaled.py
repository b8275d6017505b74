"""fp.matmul of Scaled operands: scales join partial sums as DeepGEMM and CUTLASS do it, or enter block-scaled units."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.decode import scale_of_elements
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing import assert_bits_equal
from tests.products.checks import Array, Product, multiply_add, partials, results
from tests.products.scaled_operands import matrix, operands

f32 = np.float32


ZERO = np.zeros((), f32)


Fma = Callable[[Array, Array, Array], Array]


ROWS, COLUMNS, BLOCKS = fp.scalings.TILE_1X128, fp.scalings.TILE_128X1, fp.scalings.BLOCK_128X128


UNITS = [fp.unit(name) for name in ("hopper_e4m3_f32", "blackwell_e4m3_f32", "ada_e4m3_f32", "hopper_e4m3_f16",
                                    "hopper_mma_e4m3_f32", "hopper_mma_e4m3_f16", "cdna3_fp8_f32")]  # fmt: skip


every_fp8_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


every_order = pytest.mark.parametrize("order", ["product", "a_first", "b_first"])


both_ways = pytest.mark.parametrize(("m", "n"), [(3, 130), (130, 3)])


# ---- the composition


def exact_fma(x: Array, y: Array, z: Array) -> Array:
    """Return x * y + z of finite float32 arrays, rounded once."""
    got = multiply_add(*np.broadcast_arrays(x, y, z))
    assert np.isfinite(got).all()
    return got


def fma_for(unit: MatrixUnit) -> Fma:
    """Return an exact fma for finite numbers; partial sums of float16 units are not all finite."""
    return exact_fma if unit.d.name == "f32" else fp.fma


def fused(left: Array, right: Array, partial: Array, total: Array, order: str, fma: Fma) -> Array:
    """Return the total plus a partial sum times its two scales."""
    pairs = {"product": (left, right, partial), "a_first": (partial, left, right), "b_first": (partial, right, left)}
    first, second, third = pairs[order]
    return fma(fma(first, second, ZERO), third, total)


def composed(
    a: Scaled, b: Scaled, unit: MatrixUnit, promote: int, order: str = "product", c: Array | None = None,
    fma: Fma | None = None,
) -> Array:  # fmt: skip
    """Partial sums of the codes times their scales, fused into a float32 total."""
    total = np.zeros((len(a.codes), b.codes.shape[1]), f32) if c is None else c
    of_a, of_b = scale_of_elements(a), scale_of_elements(b)
    for part, partial in enumerate(partials(Product(a.codes, b.codes), unit, promote)):
        left, right = of_a[:, part * promote, None], of_b[None, part * promote]
        total = fused(left, right, partial, total, order, fma or fma_for(unit))
    return total


# ---- scales that change along K


@every_fp8_unit
@every_order
@both_ways
@pytest.mark.parametrize("of_b", [BLOCKS, COLUMNS], ids=["128x128", "128x1"])
def test_scales_join_the_partial_sum_of_their_block(
    unit: MatrixUnit, order: str, of_b: Scaling, m: int, n: int
) -> None:
    a, b = operands(unit, ROWS, of_b, (m, 300, n))
    got = fp.matmul(a, b, accumulate=unit, scale_order=order)
    assert_bits_equal(got, composed(a, b, unit, 128, order))


def test_scales_are_no_powers_of_two() -> None:
    a, b = operands(UNITS[0], ROWS, BLOCKS, (3, 300, 130))
    assert np.all(np.frexp(a.scales)[0] != 0.5)
    assert np.all(np.frexp(b.scales)[0] != 0.5)
    orders = [fp.matmul(a, b, accumulate=UNITS[0], scale_order=order) for order in ("product", "a_first", "b_first")]
    assert len({results(x).tobytes() for x in orders}) == 3


def test_deepgemm_takes_rows_of_weights_transposed() -> None:
    unit, a, weights = UNITS[0], fp.encode_scaled(matrix(5, 384), "e4m3"), fp.encode_scaled(matrix(140, 384, 2), "e4m3")
    assert_bits_equal(fp.matmul(a, weights.T, accumulate=unit), composed(a, weights.T, unit, 128))


@every_order
@pytest.mark.parametrize("promote", [32, 64, 128])
def test_promotion_may_be_finer_than_the_scales(order: str, promote: int) -> None:
    for unit in (fp.unit("hopper_e4m3_f32"), fp.unit("hopper_mma_e4m3_f32"), fp.unit("cdna3_fp8_f32")):
        a, b = operands(unit, ROWS, BLOCKS, (3, 270, 130))
        got = fp.matmul(a, b, accumulate=unit, promote=promote, scale_order=order)
        assert_bits_equal(got, composed(a, b, unit, promote, order))


@pytest.mark.parametrize("block", [(1, 32), (1, 64), (2, 96), (3, 256)])
def test_tiles_may_have_any_size_that_is_whole_steps(block: tuple[int, int]) -> None:
    unit = UNITS[0]
    scaling = Scaling(block=block)
    a, b = operands(unit, scaling, scaling.transposed(), (5, 300, 130))
    assert_bits_equal(fp.matmul(a, b, accumulate=unit), composed(a, b, unit, block[1]))


@every_order
@both_ways
def test_one_operand_may_have_scales_along_k_alone(order: str, m: int, n: int) -> None:
    unit = UNITS[0]
    for of_a, of_b in ((ROWS, fp.scalings.COLUMN), (fp.scalings.TENSOR, BLOCKS), (fp.scalings.ROW, COLUMNS)):
        a, b = operands(unit, of_a, of_b, (m, 300, n))
        got = fp.matmul(a, b, accumulate=unit, scale_order=order)
        assert_bits_equal(got, composed(a, b, unit, 128, order))


@every_order
@both_ways
def test_an_operand_without_scales_counts_as_scaled_by_one(order: str, m: int, n: int) -> None:
    unit = UNITS[0]
    a, b = operands(unit, ROWS, BLOCKS, (m, 300, n))
    plain_a, plain_b = (fp.encode_scaled(x.decode(), unit.a.fmt, x.scaling, scales=1.0) for x in (a, b))
    for left, right, of_a, of_b in ((plain_a.codes, b, plain_a, b), (a, plain_b.codes, a, plain_b)):
        got = fp.matmul(left, right, accumulate=unit, scale_order=order)
        assert_bits_equal(got, composed(of_a, of_b, unit, 128, order))


@every_order
def test_the_accumulator_starts_the_total(order: str) -> None:
    for unit in (fp.unit("hopper_e4m3_f32"), fp.unit("hopper_e4m3_f16")):
        a, b = operands(unit, ROWS, BLOCKS, (3, 200, 130))
        c = matrix(3, 130, 5).astype(f"f{unit.d.dtype.itemsize}")
        got = fp.matmul(a, b, c, accumulate=unit, scale_order=order)
        assert_bits_equal(got, composed(a, b, unit, 128, order, c.astype(f32)))


@every_order
@both_ways
def test_special_sums_and_scales_go_through_the_fused_addition(order: str, m: int, n: int) -> None:
    unit, inf = fp.unit("hopper_e5m2_f32"), 0x7C
    a, b = operands(unit, ROWS, COLUMNS, (m + 1, 300, n + 1))
    a.codes[0, [3, 200]], b.codes[250, 1], b.codes[5, 2] = inf, inf, 0x7F
    a.scales[1], b.scales[:, 0] = [2.0**120, 1, np.inf], [2.0**100, np.nan, 1]
    got = fp.matmul(a, b, accumulate=unit, scale_order=order)
    assert_bits_equal(got, composed(a, b, unit, 128, order, fma=fp.fma))
    assert np.isinf(got).any()
    assert np.isfinite(got).any()
    assert set(results(got)[np.isnan(got)].tolist()) == {0x7FFFFFFF}


@every_order
def test_tiny_scales_give_subnormal_totals(order: str) -> None:
    unit = UNITS[0]
    a, b = operands(unit, ROWS, BLOCKS, (3, 300, 130))
    a.scales[...] *= f32(2.0**-70)
    b.scales[...] *= f32(2.0**-68)
    got = fp.matmul(a, b, accumulate=unit, scale_order=order)
    assert_bits_equal(got, composed(a, b, unit, 128, order))
    assert np.any((got != 0) & (np.abs(got) < 2.0**-126))


# ---- scales that are the same along K


@every_fp8_unit
@every_order
@both_ways
def test_scales_of_rows_multiply_the_finished_sum_once(unit: MatrixUnit, order: str, m: int, n: int) -> None:
    for of_a, of_b in ((fp.scalings.TENSOR, fp.scalings.TENSOR), (fp.scalings.ROW, fp.scalings.COLUMN)):
        a, b = operands(unit, of_a, of_b, (m, 200, n))
        got = fp.matmul(a, b, accumulate=unit, scale_order=order)
        assert_bits_equal(got, composed(a, b, unit, 200, order))


@every_fp8_unit
@every_order
def test_scales_of_rows_multiply_the_promoted_sum(unit: MatrixUnit, order: str) -> None:
    a, b = operands(unit, fp.scalings.ROW, fp.scalings.COLUMN, (3, 200, 130))
    c = matrix(3, 130, 5).astype(f"f{unit.d.dtype.itemsize}")
    for start in (None, c):
        got = fp.matmul(a, b, start, accumulate=unit, promote=64, scale_order=order)
        total = fp.matmul(a.codes, b.codes, accumulate=unit, promote=64)
        first = ZERO if start is None else start.astype(f32)
        assert_bits_equal(got, fused(a.scales, b.scales, total, first, order, fma_for(unit)))


def test_one_block_along_k_is_no_promotion() -> None:
    unit = UNITS[0]
    for k in (1, 100, 128):
        a, b = operands(unit, ROWS, BLOCKS, (3, k, 130))
        want = composed(a, b, unit, 128)
        assert_bits_equal(fp.matmul(a, b, accumulate=unit), want)
        assert_bits_equal(fp.matmul(a, b, accumulate=unit, promote=128), want)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_scaled_products_are_float32(unit: MatrixUnit) -> None:
    a, b = operands(unit, fp.scalings.TENSOR, fp.scalings.TENSOR, (2, 64, 3))
    assert fp.matmul(a, b, accumulate=unit).dtype == f32


@pytest.mark.parametrize(("unit", "fmt"), [("ada_e4m3_f16", "e4m3"), ("ampere_s8_s32", "int8")])
@pytest.mark.parametrize("shape", [(3, 0, 5), (0, 0, 5), (0, 64, 5), (3, 64, 0)])
def test_products_of_scaled_operands_are_float32_also_without_terms(
    unit: str, fmt: str, shape: tuple[int, int, int]
) -> None:  # fmt: skip
    m, k, n = shape
    for of_a, of_b in ((fp.scalings.TENSOR, fp.scalings.TENSOR), (fp.scalings.ROW, fp.scalings.COLUMN)):
        a = fp.encode_scaled(np.ones((m, k), np.float32), fmt, of_a)
        b = fp.encode_scaled(np.ones((k, n), np.float32), fmt, of_b)
        assert_bits_equal(fp.matmul(a, b, accumulate=unit), np.full((m, n), k, np.float32))
