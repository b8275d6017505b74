"""Products of block-scaled units and scaled products however they are cut up; bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.schedule import Schedule, Slicing
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.products.checks import Array, Product, chained, partials, results
from tests.products.scaled_operands import matrix, operands

f32 = np.float32


ROWS, COLUMNS, BLOCKS = fp.scalings.TILE_1X128, fp.scalings.TILE_128X1, fp.scalings.BLOCK_128X128


MX = fp.scalings.MX


HOPPER, MXFP8, NVFP4 = "hopper_e4m3_f32", "blackwell_mxfp8_e4m3_f32", "blackwell_nvfp4_f32"


UNITS = [fp.unit(name) for name in ("hopper_e4m3_f32", "blackwell_e4m3_f32", "ada_e4m3_f32", "hopper_e4m3_f16",
                                    "hopper_mma_e4m3_f32", "hopper_mma_e4m3_f16", "cdna3_fp8_f32")]  # fmt: skip


every_order = pytest.mark.parametrize("order", ["product", "a_first", "b_first"])


both_ways = pytest.mark.parametrize(("m", "n"), [(3, 130), (130, 3)])


# ---- block-scaled units


def mx_units() -> list[MatrixUnit]:
    """One of every kind and of every element."""
    names = ("mxfp8_e4m3", "mxfp8_e4m3xe5m2", "mxf8f6f4_e2m3", "mxf8f6f4_e3m2xe4m3", "mxf8f6f4_e2m1", "mxfp4_block32")
    return [fp.unit(f"blackwell_{name}_f32") for name in names]


@pytest.mark.parametrize("unit", mx_units(), ids=lambda unit: unit.name)
@both_ways
def test_mx_operands_bring_their_scale_codes(unit: MatrixUnit, m: int, n: int) -> None:
    a = fp.encode_scaled(matrix(m, 160), unit.a.fmt, MX)
    b = fp.encode_scaled(matrix(n, 160, 1), unit.b.fmt, MX).T
    c = matrix(m, n, 2)
    assert a.scale_codes is not None
    assert b.scale_codes is not None
    p = Product(a.codes, b.codes, c.view(np.uint32), a.scale_codes, b.scale_codes)
    want = chained(p, unit)
    assert_bits_equal(results(fp.matmul(a, b, c, accumulate=unit)), want)
    assert_bits_equal(results(fp.matmul(a, b.codes, c, accumulate=unit, scale_b=b.scale_codes)), want)
    assert_bits_equal(results(fp.matmul(a.codes, b, c, accumulate=unit, scale_a=a.scale_codes)), want)


def test_mx_operands_are_promoted_like_others() -> None:
    unit = fp.unit("blackwell_mxfp8_e4m3_f32")
    a = fp.encode_scaled(matrix(3, 160), "e4m3", MX)
    b = fp.encode_scaled(matrix(130, 160, 1), "e4m3", MX).T
    total = np.zeros((3, 130), f32)
    for partial in partials(Product(a.codes, b.codes, None, a.scale_codes, b.scale_codes), unit, 64):
        total = total + partial
    assert_bits_equal(fp.matmul(a, b, accumulate=unit, promote=64), total)


@both_ways
def test_the_tensor_scales_of_nvfp4_multiply_the_sum_once(m: int, n: int) -> None:
    unit = fp.unit("blackwell_nvfp4_f32")
    a = fp.encode_scaled(matrix(m, 208), "e2m1", fp.scalings.NVFP4)
    b = fp.encode_scaled(matrix(n, 208, 1), "e2m1", fp.scalings.NVFP4).T
    total = chained(Product(a.codes, b.codes, None, a.scale_codes, b.scale_codes), unit).view(f32)
    assert a.tensor_scale is not None
    assert b.tensor_scale is not None
    both = f32(a.tensor_scale * b.tensor_scale)
    assert_bits_equal(fp.matmul(a, b, accumulate=unit), total * both)
    assert_bits_equal(fp.matmul(a, b.codes, accumulate=unit, scale_b=b.scale_codes), total * a.tensor_scale)
    assert_bits_equal(fp.matmul(a.codes, b, accumulate=unit, scale_a=a.scale_codes), total * b.tensor_scale)


def test_tensor_scales_multiply_neither_bias_nor_too_little() -> None:
    a = fp.encode_scaled(matrix(3, 128), "e2m1", fp.scalings.NVFP4)
    b = fp.encode_scaled(matrix(16, 128, 1), "e2m1", fp.scalings.NVFP4).T
    bias, in_place = np.arange(16, dtype=f32), Schedule("mine", slicing=Slicing(2, merge="in_place"))
    scales: dict[str, Any] = {"scale_a": a.scale_codes, "scale_b": b.scale_codes}
    assert a.tensor_scale is not None
    assert b.tensor_scale is not None
    both = f32(a.tensor_scale * b.tensor_scale)
    words: dict[str, Any]
    for words in ({}, {"promote": 64}, {"alpha": 3.0}, {"schedule": in_place}, {"schedule": in_place, "alpha": 3.0}):
        want = fp.matmul(a.codes, b.codes, accumulate=NVFP4, **scales, **words) * both
        assert_bits_equal(fp.matmul(a, b, accumulate=NVFP4, **words), want)
        assert_bits_equal(fp.matmul(a, b, accumulate=NVFP4, bias=bias, **words), want + bias)


def test_tensor_scales_may_overflow_the_result() -> None:
    huge = fp.encode_scaled(np.full((2, 64), 1e38, f32), "e2m1", fp.scalings.NVFP4)
    assert fp.matmul(huge, huge.T, accumulate="blackwell_nvfp4_f32").tolist() == 2 * [2 * [np.inf]]


def test_a_tile_that_is_nan_makes_its_sums_nan() -> None:
    x = np.ones((2, 64), f32)
    x[0, 0] = np.nan
    for unit, fmt, scaling in ((MXFP8, "e4m3", MX), (NVFP4, "e2m1", fp.scalings.NVFP4), (HOPPER, "e4m3", ROWS)):
        q = fp.encode_scaled(x, fmt, scaling)
        got = fp.matmul(q, q.T, accumulate=unit)
        assert set(results(got)[[0, 0, 1], [0, 1, 0]].tolist()) == {0x7FFFFFFF}
        assert np.isfinite(got[1, 1])


# ---- however it is cut up


def test_parts_of_scaled_operands_give_parts_of_the_product() -> None:
    unit = UNITS[0]
    a, b = operands(unit, ROWS, BLOCKS, (140, 300, 300))
    whole = fp.matmul(a, b, accumulate=unit)
    assert_bits_equal(fp.matmul(a.blocks[7:9], b, accumulate=unit), whole[7:9])
    assert_bits_equal(fp.matmul(a, b.blocks[:, 2], accumulate=unit), whole[:, 256:])
    assert_bits_equal(fp.matmul(b.T, a.T, accumulate=unit), whole.T)


@every_order
def test_scaled_results_do_not_depend_on_the_number_of_threads(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fpsim.runtime.threads.SMALLEST", 1)
    for m, n in ((5, 300), (300, 140)):
        a, b = operands(UNITS[0], ROWS, BLOCKS, (m, 300, n))
        found = []
        for threads in ("1", "2", "3"):
            monkeypatch.setenv("FPSIM_NUM_THREADS", threads)
            found.append(fp.matmul(a, b, accumulate=UNITS[0], scale_order=order))
        assert_bits_equal(found[1], found[0])
        assert_bits_equal(found[2], found[0])


def test_exchanged_operands_exchange_the_order_of_scales() -> None:
    unit = UNITS[0]
    a, b = operands(unit, ROWS, BLOCKS, (9, 300, 11))
    for order, other in (("product", "product"), ("a_first", "b_first"), ("b_first", "a_first")):
        turned = fp.matmul(b.T, a.T, accumulate=unit, scale_order=other)
        assert_bits_equal(fp.matmul(a, b, accumulate=unit, scale_order=order), turned.T)


@in_turn("shape", [(0, 256, 3), (3, 256, 0), (3, 0, 4), (0, 0, 0)])
@in_turn("of_a, of_b", [(ROWS, BLOCKS), (fp.scalings.ROW, fp.scalings.COLUMN),
                                            (fp.scalings.TENSOR, fp.scalings.TENSOR)])  # fmt: skip
def test_scaled_operands_may_be_empty(shape: tuple[int, int, int], of_a: Scaling, of_b: Scaling) -> None:
    m, k, n = shape
    a = fp.encode_scaled(np.ones((m, k), f32), "e4m3", of_a)
    b = fp.encode_scaled(np.ones((k, n), f32), "e4m3", of_b)
    got = fp.matmul(a, b, accumulate="hopper_e4m3_f32")
    assert got.shape == (m, n)
    if k == 0:
        assert_bits_equal(got, np.zeros((m, n), f32))


@pytest.mark.parametrize(("name", "fmt", "scaling"), [("mxfp8_e4m3", "e4m3", MX),
                                                      ("nvfp4", "e2m1", fp.scalings.NVFP4)])  # fmt: skip
@pytest.mark.parametrize("shape", [(0, 64, 3), (3, 64, 0), (3, 0, 4)])
def test_block_scaled_operands_may_be_empty(name: str, fmt: str, scaling: Scaling, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = (fp.encode_scaled(np.ones((rows, k), f32), fmt, scaling) for rows in (m, n))
    assert_bits_equal(fp.matmul(a, b.T, accumulate=f"blackwell_{name}_f32"), np.zeros((m, n), f32))


def test_no_scaled_terms_leave_the_accumulator() -> None:
    a, b = (fp.encode_scaled(np.ones(shape, f32), "e4m3", fp.scalings.TENSOR) for shape in ((2, 0), (0, 3)))
    c = np.arange(6, dtype=f32).reshape(2, 3)
    assert_bits_equal(fp.matmul(a, b, c, accumulate="hopper_e4m3_f32"), c)


# ---- bad input


def scaled(rows: int, columns: int, fmt: Any = "e4m3", scaling: Scaling = ROWS) -> Scaled:
    """Return an encoded matrix of ones."""
    return fp.encode_scaled(np.ones((rows, columns), f32), fmt, scaling)


A, B = scaled(2, 256), scaled(256, 3, scaling=BLOCKS)


MX_A, MX_B = scaled(2, 64, scaling=MX), scaled(3, 64, scaling=MX).T


SCALES = np.zeros((2, 2), np.uint8)


def product(a: Any, b: Any, unit: str = HOPPER, c: Any = None, **words: Any) -> Array:
    """fp.matmul with the unit named third."""
    return fp.matmul(a, b, c, accumulate=unit, **words)


@in_turn(
    "call, words",
    [
        (lambda: product(scaled(2, 256, "e5m2"), B), r"hopper_e4m3_f32 takes e4m3 as a; got a Scaled array of E5M2"),
        (lambda: product(A, scaled(256, 3, "int8", BLOCKS)), r"takes e4m3 as b; got a Scaled array of INT8"),
        (lambda: product(A, B, scale_a=SCALES), r"a is Scaled and brings its scales; leave scale_a out"),
        (lambda: product(A, B, scale_b=SCALES), r"b is Scaled and brings its scales; leave scale_b out"),
        (lambda: product(A, B.T), r"a \(M, K\) and b \(K, N\) must agree in K; got \(2, 256\) and \(3, 256\)"),
        (lambda: product(fp.encode_scaled(np.ones(256, f32), "e4m3"), B), r"a must have two axes, \(M, K\)"),
        (lambda: product(A, B, promote=96), r"promote must divide the 128 terms of K that share a scale.*got 96"),
        (lambda: product(A, B, promote=256), r"promote must divide the 128 terms of K that share a scale.*got 256"),
        (lambda: product(A, B, promote=16), r"promote must be a multiple of the 32 terms"),
        (lambda: product(scaled(2, 64, scaling=Scaling(block=(1, 16))), scaled(64, 3, scaling=BLOCKS)),
         r"adds 32 terms in a step, and scales of 16 terms of K cannot join between steps"),
        (lambda: product(A, B, scale_order="first_a"), r"scale_order must be one of product, a_first, b_first"),
        (lambda: product(A, B, c=np.zeros((3, 2), f32)), r"c must have the result's shape \(2, 3\); got \(3, 2\)"),
        (lambda: product(scaled(2, 256), scaled(256, 3, scaling=BLOCKS), MXFP8),
         r"takes a in tiles of \(1, 32\) with scales in E8M0; got tiles of \(1, 128\) .* FP32"),
        (lambda: product(MX_A, scaled(64, 3, scaling=MX), MXFP8),
         r"takes b in tiles of \(32, 1\) with scales in E8M0; got tiles of \(1, 3\) "
         r".*encode the \(N, K\) matrix and pass its transpose"),
        (lambda: product(scaled(2, 64, scaling=MX.replace(block=(2, 32))), MX_B, MXFP8), r"got tiles of \(2, 32\)"),
        (lambda: product(scaled(2, 64, scaling=Scaling(block=(1, 32))), MX_B, MXFP8),
         r"with scales in E8M0; got .* with scales in FP32\. Encode"),
        (lambda: product(MX_A, MX_B.codes, MXFP8), r"needs scale_b: ue8m0 codes"),
        (lambda: product(scaled(2, 40, scaling=MX), scaled(3, 40, scaling=MX).T, MXFP8),
         r"K must be a multiple of .*scale block of 32; got K = 40"),
        (lambda: product(scaled(2, 16, scaling=MX), scaled(3, 16, scaling=MX).T, MXFP8),
         r"K must be a multiple of .*scale block of 32; got K = 16"),
        (lambda: product(scaled(2, 64, "e2m1", fp.scalings.NVFP4), scaled(3, 64, "e2m1", fp.scalings.NVFP4).T, NVFP4,
                         np.zeros((2, 3), f32)),
         r"c cannot join a sum that a tensor scale multiplies afterwards; add it to the result"),
    ],
)  # fmt: skip
def test_bad_input_says_what_was_wanted(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){words}"):
        call()


def test_out_that_overlaps_the_codes_is_refused() -> None:
    unit, codes = "ampere_tf32_f32", np.zeros((4, 4), np.uint32)
    x = Scaled(codes, np.ones((4, 1), f32), fp.FP32, fp.scalings.ROW)
    with pytest.raises(ValueError, match="out must not share memory"):
        fp.matmul(x, np.ones((4, 4), f32), accumulate=unit, out=codes.view(f32))


def test_out_that_overlaps_scales_is_refused() -> None:
    out = np.zeros((64, 64), f32)
    tiles = out.reshape(-1)[:128].reshape(64, 2)
    tiles[...] = 0.5
    x = Scaled(np.full((64, 256), 0x38, np.uint8), tiles, fp.E4M3, fp.scalings.TILE_1X128)
    with pytest.raises(ValueError, match="out must not share memory with a, b or their scales"):
        fp.matmul(x, x.codes.T[:, :64], accumulate=HOPPER, out=out)
    blocks = out.view(np.uint8).reshape(-1)[:128].reshape(64, 2)
    codes = np.full((64, 64), 0x38, np.uint8)
    with pytest.raises(ValueError, match="out must not share memory with a, b or their scales"):
        fp.matmul(codes, codes, accumulate=MXFP8, scale_a=blocks, scale_b=np.full((2, 64), 127, np.uint8), out=out)


@pytest.mark.parametrize("promote", [None, 32, 64, 128])
def test_zeros_behind_k_change_nothing(promote: int | None) -> None:
    generator = np.random.default_rng(31)
    x, y = generator.standard_normal((2, 128), f32), generator.standard_normal((128, 130), f32)

    def by_tiles(x: Array, y: Array) -> Array:
        a, b = fp.encode_scaled(x, fp.E4M3, ROWS), fp.encode_scaled(y, fp.E4M3, BLOCKS)
        return fp.matmul(a, b, accumulate=HOPPER, promote=promote)

    longer = by_tiles(np.pad(x, ((0, 0), (0, 128))), np.pad(y, ((0, 128), (0, 0))))
    assert_bits_equal(longer, by_tiles(x, y))
