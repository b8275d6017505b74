"""fp.matmul by units of integers: every loop beside Python's integers, epilogues in floats, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import INTEGER_ROWS, integer_units
from fpsim.matrix_units.integer_unit import INTEGER_ELEMENTS, IntegerUnit
from fpsim.products.integers import product as loops
from fpsim.runtime.vectors import widest_vectors
from fpsim.testing import assert_bits_equal
from tests.kit.integers import KINDS, drawn
from tests.kit.sweeps import in_turn
from tests.oracles.integers import product

Array = npt.NDArray[Any]
f32 = np.float32

S8, VNNI_SAT = INTEGER_ROWS["hopper_s8_s32"], INTEGER_ROWS["x86_vnni_u8xs8_s32_sat"]
SHAPES = ((1, 1, 1), (3, 7, 5), (70, 9, 3), (5, 300, 66), (9, 65, 64), (2, 4, 129))
every_unit = in_turn("unit", integer_units())


def operands(unit: IntegerUnit, shape: tuple[int, int, int], kind: str, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return a (M, K), b (K, N) and accumulators c (M, N) close to the ends of their range."""
    m, k, n = shape
    rng = np.random.default_rng([seed, *shape])
    a, b = drawn(unit.a, (m, k), kind, rng), drawn(unit.b, (n, k), kind, rng).T
    c = np.where(rng.random((m, n)) < 0.5, unit.d.highest - rng.integers(0, 99999, (m, n)), unit.d.lowest)
    return a, b, c.astype(unit.d.dtype)


def check(unit: IntegerUnit, shape: tuple[int, int, int], kind: str) -> None:
    """Compare a product with Python's integers, with accumulators and without."""
    a, b, c = operands(unit, shape, kind)
    for start in (c, None):
        pair = unit.pair and unit.pair.dtype
        want = product(a, b, start, unit.terms, unit.d.dtype, unit.saturates, pair)
        got = fp.matmul(a, b, start, accumulate=unit)
        assert got.dtype == unit.d.dtype
        assert_bits_equal(got, want)


@every_unit
def test_a_product_has_the_sums_of_pythons_integers(unit: IntegerUnit) -> None:
    for i, shape in enumerate(((1, 1, 1), (3, 7, 5), (9, 65, 3), (2, 130, 9))):
        check(unit, shape, KINDS[(i + len(unit.name)) % 3])


@pytest.mark.parametrize("vectors", ["avx512", "avx2", ""])
@pytest.mark.parametrize(
    "name", ["hopper_s8_s32", "x86_vnni_u8xs8_s32_sat", "x86_vnni_u8_u32_sat", "x86_avx2_u8xs8_s32"]
)
def test_every_loop_has_the_sums_of_pythons_integers(
    name: str, vectors: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    if vectors and not (widest_vectors() == vectors or (vectors == "avx2" and widest_vectors())):
        pytest.skip("this processor has no such vectors")
    monkeypatch.setattr(loops, "widest_vectors", lambda: vectors)
    for shape in SHAPES:
        check(INTEGER_ROWS[name], shape, KINDS[shape[1] % 3])


@pytest.mark.parametrize("terms", [1, 3, 5, 32, 300, 40000])
def test_steps_of_any_length_saturate_as_they_should(terms: int) -> None:
    for kind in KINDS:
        check(replace(VNNI_SAT, terms=terms), (3, 310, 5), kind)


@pytest.mark.parametrize("pair", ["s8", "u8", "u16", "s32"])
def test_pairs_of_products_saturate_to_any_range(pair: str) -> None:
    wraps = replace(INTEGER_ROWS["x86_avx2_u8xs8_s32"], pair=INTEGER_ELEMENTS[pair])
    for unit in (wraps, replace(wraps, saturates=True)):
        for shape in SHAPES:
            check(unit, shape, KINDS[shape[1] % 3])


@pytest.mark.parametrize("signs", ["ab", "a", "b"])
def test_negative_products_saturate_at_zero_in_unsigned_sums(signs: str) -> None:
    s8, unit = INTEGER_ELEMENTS["s8"], INTEGER_ROWS["x86_vnni_u8_u32_sat"]
    unit = replace(unit, a=s8 if "a" in signs else unit.a, b=s8 if "b" in signs else unit.b)
    for shape in SHAPES:
        check(unit, shape, KINDS[shape[1] % 3])


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.uint64])
def test_facts_of_a_unit_may_be_numpy_integers(number: Any) -> None:
    unit = replace(VNNI_SAT, terms=number(32), b=replace(VNNI_SAT.b, bits=number(8)))
    assert unit == replace(VNNI_SAT, terms=32)
    assert unit.b.lowest == -128
    check(unit, (3, 310, 5), "uniform")


def test_long_sums_wrap() -> None:
    a, b = np.full((2, 200_000), -128, np.int8), np.full((200_000, 3), -128, np.int8)
    exact = 200_000 * 128 * 128
    assert (fp.matmul(a, b, accumulate="ampere_s8_s32") == exact - 2**32).all()
    assert (fp.matmul(a, b, accumulate="ampere_s8_s32_sat") == 2**31 - 1).all()
    assert (fp.matmul(a, b, [[5] * 3] * 2, accumulate="ampere_s8_s32") == exact + 5 - 2**32).all()


def test_torch_multiplies_integers_alike() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    for m, k, n in ((17, 64, 32), (40, 3000, 24)):
        a, b = (torch.from_numpy(rng.integers(-128, 128, shape).astype(np.int8)) for shape in ((m, k), (k, n)))
        want = torch._int_mm(a, b).numpy()
        assert_bits_equal(fp.matmul(a, b, accumulate="x86_amx_s8_s32"), want)


@in_turn("shape", [(1, 50, 9), (9, 51, 1), (3, 54, 9), (9, 50, 4), (1, 6, 5000), (5000, 7, 2)])
def test_few_rows_and_columns_in_any_layout(shape: tuple[int, int, int]) -> None:
    a, b, c = operands(S8, shape, "uniform")
    exact = a.astype(int) @ b.astype(int) + c
    want = ((exact + 2**31) % 2**32 - 2**31).astype(np.int32)
    for left in (a, np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2]):
        for right in (np.ascontiguousarray(b), np.asfortranarray(b), np.repeat(b, 2, axis=1)[:, ::2]):
            assert_bits_equal(fp.matmul(left, right, c, accumulate=S8), want)


def test_dot_products_are_those_of_the_unit() -> None:
    a, b, _ = operands(S8, (4, 40, 1), "uniform")
    want = (a.astype(int) @ b.astype(int))[:, 0]
    assert_bits_equal(fp.dot(a, b[:, 0], accumulate="hopper_s8_s32"), want.astype(np.int32))
    assert fp.dot(a[0], b[:, 0], accumulate=S8) == want[0]


def test_layouts_outputs_and_empty_products() -> None:
    a, b, c = operands(S8, (6, 40, 70), "uniform")
    want = fp.matmul(a, b, c, accumulate=S8)
    strided = np.zeros((12, 80), np.int8)
    strided[::2, ::2] = a
    assert_bits_equal(fp.matmul(strided[::2, ::2], np.asfortranarray(b), c.T.copy().T, accumulate=S8), want)
    out = np.zeros((6, 70), np.int32)
    assert fp.matmul(a, b, c, accumulate=S8, out=out) is out
    assert_bits_equal(out, want)
    for x in (a, b, c):
        x.flags.writeable = False
    assert_bits_equal(fp.matmul(a, b, c.astype(">i4"), accumulate=S8), want)
    into_c = c.copy()
    assert_bits_equal(fp.matmul(a, b, into_c, accumulate=S8, out=into_c), want)
    for m, k, n in ((0, 3, 2), (2, 0, 2), (2, 3, 0)):
        empty = fp.matmul(np.zeros((m, k), np.int8), np.zeros((k, n), np.int8), accumulate=S8)
        assert_bits_equal(empty, np.zeros((m, n), np.int32))


# ---- epilogues


def test_w8a8_scales_multiply_the_sums_in_float32() -> None:
    rng = np.random.default_rng(2)
    a, b, _ = operands(S8, (5, 3000, 7), "uniform")
    rows, columns = rng.lognormal(size=(5, 1)).astype(f32), rng.lognormal(size=(1, 7)).astype(f32)
    bias = rng.standard_normal(7).astype(f32)
    sums = fp.matmul(a, b, accumulate=S8).astype(f32)
    plain = fp.matmul(a, b, accumulate=S8, scale_a=rows, scale_b=columns)
    assert_bits_equal(plain, sums * (rows * columns))
    assert_bits_equal(fp.matmul(a, b, accumulate=S8, scale_b=columns, bias=bias), sums * columns + bias)
    for order, want in (("a_first", (sums * rows) * columns), ("b_first", (sums * columns) * rows)):
        got = fp.matmul(a, b, accumulate=S8, scale_a=rows, scale_b=columns, scale_order=order)
        assert_bits_equal(got, want)
    vllm = fp.schedules.Schedule("vllm", epilogue=fp.schedules.Epilogue("b_first", fused_bias=True))
    fused = fp.matmul(a, b, accumulate=S8, scale_a=rows, scale_b=columns, bias=bias, schedule=vllm)
    tall, wide = (np.broadcast_to(x, sums.shape).copy() for x in (rows, bias))
    assert_bits_equal(fused, fp.fma(sums * columns, tall, wide))
    half = fp.matmul(a, b, accumulate=S8, scale_a=rows, scale_b=columns, bias=bias, out_fmt=fp.BF16)
    assert_bits_equal(half, fp.cast(sums * (rows * columns) + bias, fp.BF16))
    assert half.dtype == ml_dtypes.bfloat16


def test_scaled_operands_bring_their_scales() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((6, 300)).astype(f32), rng.standard_normal((300, 9)).astype(f32)
    a, b = fp.encode_scaled(x, fp.INT8, fp.scalings.ROW), fp.encode_scaled(w, fp.INT8, fp.scalings.COLUMN)
    got = fp.matmul(a, b, accumulate="ampere_s8_s32")
    assert_bits_equal(got, fp.matmul(a.codes, b.codes, accumulate=S8, scale_a=a.scales, scale_b=b.scales))
    sums = a.codes.astype(np.int64) @ b.codes.astype(np.int64)  # below 2**24, which float32 holds
    exact = sums * a.scales.astype(np.float64) * b.scales
    assert (np.abs(got - exact) <= 2.0**-23 * (1 + 2.0**-20) * np.abs(exact)).all()  # two roundings: scales, product


def test_scales_of_blocks_of_k_multiply_their_partial_sums() -> None:
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((4, 300)).astype(f32), rng.standard_normal((300, 6)).astype(f32)
    a = fp.encode_scaled(x, fp.INT8, fp.scalings.TILE_1X128)
    b = fp.encode_scaled(w, fp.INT8, fp.scalings.BLOCK_128X128)
    total = np.zeros((4, 6), f32)
    for i, start in enumerate(range(0, 300, 128)):
        terms = slice(start, start + 128)
        sums = fp.matmul(a.codes[:, terms], b.codes[terms], accumulate=S8).astype(f32)
        factor = a.scales[:, i : i + 1] * b.scales[i : i + 1]
        total = fp.fma(np.broadcast_to(factor, sums.shape).copy(), sums, total)
    assert_bits_equal(fp.matmul(a, b, accumulate=S8), total)


def test_zero_points_of_scaled_operands_are_taken_off() -> None:
    rng = np.random.default_rng(5)
    x, w = (rng.random((5, 40)) + 1).astype(f32), (rng.random((40, 8)) - 0.8).astype(f32)
    asymmetric = [scaling.replace(symmetric=False) for scaling in (fp.scalings.ROW, fp.scalings.COLUMN)]
    a, b = (fp.encode_scaled(v, fp.UINT8, s) for v, s in zip((x, w), asymmetric, strict=True))
    assert a.zero_points is not None
    assert b.zero_points is not None
    centred = a.codes.astype(int) - a.zero_points.astype(int), b.codes.astype(int) - b.zero_points.astype(int)
    want = (centred[0] @ centred[1]).astype(f32) * (a.scales * b.scales)
    assert_bits_equal(fp.matmul(a, b, accumulate="hopper_u8_s32"), want)
    signed = fp.encode_scaled(w, fp.INT8, fp.scalings.COLUMN)
    want = (centred[0] @ signed.codes.astype(int)).astype(f32) * (a.scales * signed.scales)
    assert_bits_equal(fp.matmul(a, signed, accumulate="hopper_u8xs8_s32"), want)


def test_sums_beyond_2_24_lose_their_last_bits_in_a_float_epilogue() -> None:
    # CUTLASS issue 2716: D = alpha * accumulator + beta * C in float32 for an int32 result
    a, b = np.ones((1, 1), np.uint8), np.ones((1, 1), np.uint8)
    c = np.array([[2**24]], np.int32)
    exact = fp.matmul(a, b, c, accumulate="ampere_u8_s32")
    assert exact.tolist() == [[2**24 + 1]]
    by_floats = fp.matmul(a, b, c, accumulate="ampere_u8_s32", alpha=1.0, beta=1.0, out_fmt=np.int32)
    assert by_floats.dtype == np.int32
    assert by_floats.tolist() == [[2**24]]
    start = [[2**30 + 1]]
    assert fp.matmul([[127]], [[1]], start, accumulate=S8).tolist() == [[2**30 + 128]]
    assert fp.matmul([[127]], [[2]], start, accumulate=S8, out_fmt="int32").tolist() == [[2**30 + 256]]


def test_results_of_8_bits_are_rounded_to_even_and_saturate() -> None:
    a, b = np.array([[1], [3], [5], [100], [-100]], np.int8), np.array([[1, 2, 100]], np.int8)
    got = fp.matmul(a, b, accumulate=S8, alpha=0.5, out_fmt=fp.INT8)
    assert got.dtype == np.int8
    halves = np.clip(np.rint(a.astype(float) * b / 2), -128, 127)
    assert got.tolist() == halves.astype(int).tolist()
    unsigned = fp.matmul(a, b, accumulate=S8, alpha=0.5, out_fmt="uint8")
    assert unsigned.tolist() == np.clip(np.rint(a.astype(float) * b / 2), 0, 255).astype(int).tolist()
    nothing = fp.matmul(a, b, accumulate=S8, alpha=float("nan"), out_fmt=np.dtype(np.int8))
    assert not nothing.any()
    ends = fp.matmul(a, b, accumulate=S8, alpha=3e38, out_fmt=np.int32)
    assert set(ends.reshape(-1).tolist()) == {2**31 - 1, -(2**31)}


def test_beta_adds_c_to_scaled_sums() -> None:
    a, b, _ = operands(S8, (3, 9, 4), "uniform")
    c = np.arange(12, dtype=np.int32).reshape(3, 4)
    sums = fp.matmul(a, b, accumulate=S8)
    got = fp.matmul(a, b, c, accumulate=S8, scale_a=f32(0.5), beta=2.0)
    assert_bits_equal(got, sums.astype(f32) * f32(0.5) + 2 * c.astype(f32))
    assert_bits_equal(fp.matmul(a, b, c, accumulate=S8, alpha=1.0, beta=0.0), sums.astype(f32))
    assert_bits_equal(fp.matmul(a, b, c, accumulate=S8, alpha=2.0), 2 * (sums + c).astype(f32))


@pytest.mark.parametrize(("unit", "fmt"), [("ampere_f16_f32", fp.FP16), ("hopper_bf16_f32", fp.BF16)])
def test_w4a16_decodes_weights_and_rounds_them_once(unit: str, fmt: fp.Format) -> None:
    rng = np.random.default_rng(6)
    x = fp.cast(rng.standard_normal((3, 128)), fmt)
    w = rng.standard_normal((128, 20)).astype(f32)
    groups = fp.Scaling(block=(32, 1), scale_format=fp.FP16)
    for q in (
        fp.encode_scaled(w, fp.INT4, groups),
        fp.encode_scaled(w, fp.UINT4, groups.replace(symmetric=False)),
        fp.encode_scaled(w, fp.INT8, fp.scalings.COLUMN),  # float32 scales
    ):
        exact = np.repeat(q.scales, 128 // q.scales.shape[0], axis=0).astype(np.float64)
        points = 0 if q.zero_points is None else np.repeat(q.zero_points, 32, axis=0).astype(int)
        weights = fp.cast(exact * (q.codes.astype(int) - points), fmt)
        assert_bits_equal(fp.matmul(x, q, accumulate=unit), fp.matmul(x, weights, accumulate=unit))
        turned = fp.matmul(q.transpose(), x.T, accumulate=unit)
        assert_bits_equal(turned, fp.matmul(weights.T, x.T, accumulate=unit))


ONE = np.ones((2, 2), np.int8)
WRONG: Any = "flat"
MISPLACED: Any = S8
SCALED = fp.encode_scaled(np.ones((2, 200), f32), fp.INT8, fp.scalings.TILE_1X128)


@in_turn(
    "call, message",
    [
        (lambda: fp.matmul(ONE.astype(np.float16), ONE, accumulate=S8), "a must be an array of int8; got float16"),
        (lambda: fp.matmul(ONE, ONE, accumulate="hopper_f16_f32"), "multiplies floats; got a as int8. Units such as"),
        (lambda: fp.matmul(ONE.view(np.uint8), ONE, accumulate=S8), "hopper_u8xs8_s32 takes it"),
        (lambda: fp.matmul(ONE, ONE[:1], accumulate=S8), "must agree in K"),
        (lambda: fp.matmul(ONE, ONE[0], accumulate=S8), "b must have two axes"),
        (lambda: fp.matmul(ONE, ONE, [1, 2], accumulate=S8), "c must have the result's shape"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, promote=128), "promote is for units of floats"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, schedule=fp.schedules.cutlass_2xacc(128)), "orders sums of floats"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, schedule=WRONG), "schedule must be"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, scale_order="none"), "scale_order must be one of"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, fmt="int8"), "fmt is for accumulators"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, beta=1.0), "beta multiplies c; got no c"),
        (lambda: fp.matmul(ONE, ONE, ONE.astype(np.int32), accumulate=S8, scale_a=f32(2)), "c would be scaled"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, scale_a=np.ones(3, f32)), "scale_a must be one number"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, out_fmt="int4"), "out_fmt must be int8, uint8, int32 or a float"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, out_fmt="e4m9"), "e4m9"),
        (lambda: fp.matmul(ONE, ONE, accumulate=S8, out=np.zeros((2, 2), f32)), "out must have dtype int32"),
        (lambda: fp.matmul(SCALED, np.ones((200, 2), np.uint8), accumulate=S8), "takes b of s8"),
        (lambda: fp.matmul(SCALED, ONE, accumulate="hopper_u8xs8_s32"), "takes UINT8 as a; got a Scaled array of INT8"),
        (lambda: fp.matmul(SCALED, ONE, accumulate=S8, scale_a=f32(1)), "brings its scales; leave scale_a out"),
        (lambda: fp.matmul(ONE, MISPLACED, ONE), "accumulate must be passed by its name"),
        (lambda: fp.dot(ONE, ONE > 0, accumulate=S8), "b must be an array of int8; got bool"),
    ],
)
def test_bad_input_says_what_was_wanted(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("shape", [(3, 0, 5), (1, 0, 1), (0, 64, 5), (3, 64, 0), (0, 0, 0)])
def test_empty_products_of_operands_with_zero_points(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    for of_a, of_b in ((fp.scalings.TENSOR, fp.scalings.COLUMN), (fp.scalings.ROW, fp.scalings.TENSOR)):
        a = fp.encode_scaled(np.ones((m, k), f32), "uint8", of_a.replace(symmetric=False))
        b = fp.encode_scaled(np.ones((k, n), f32), "int8", of_b.replace(symmetric=False))
        assert_bits_equal(fp.matmul(a, b, accumulate="ampere_u8xs8_s32"), np.zeros((m, n), f32))
