"""Stacks of matrices are multiplied as numpy.matmul pairs them, each product with the bits of a call of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.products.stacks.short import short_stack
from fpsim.testing import assert_bits_equal
from tests.kit.layouts import read_only
from tests.kit.sweeps import in_turn

Array = npt.NDArray[Any]
f32 = np.float32
BF16, E4M3 = "hopper_bf16_f32", "hopper_e4m3_f32"


def codes(shape: tuple[int, ...], fmt: fp.Format, seed: int = 0) -> Array:
    """Return codes of ordinary values, and of any values in one of twenty places."""
    generator = np.random.default_rng(seed)
    usual = fp.encode(generator.standard_normal(shape).astype(f32), fmt)
    some = generator.integers(0, 1 << fmt.bits, shape).astype(fmt.storage)
    return np.where(generator.random(shape) < 0.05, some, usual)


def one_by_one(a: Array, b: Array, **words: Any) -> Array:
    """Return the products of a stack, one call for each."""
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = (np.broadcast_to(x, (*shape, *x.shape[-2:])) for x in (a, b))
    results = [fp.matmul(left[at], right[at], **words) for at in np.ndindex(shape)]
    return np.reshape(np.array(results), (*shape, *results[0].shape))


SHAPES = [
    ((3, 5, 40), (3, 40, 33)), ((2, 3, 16, 32), (2, 3, 32, 64)), ((2, 1, 9, 20), (3, 20, 70)), ((4, 7), (5, 7, 3)),
    ((3, 70, 16), (3, 16, 5)), ((6, 3, 4), (4, 9)), ((1, 1, 1), (2, 1, 1)), ((2, 130, 130), (2, 130, 3)),
]  # fmt: skip


@in_turn("unit", [BF16, E4M3, "hopper_f16_f32", "ampere_bf16_f32", "ada_e5m2_f32", "hopper_tf32_f32"])
def test_stacks_have_the_bits_of_single_products(unit: str) -> None:
    how = fp.unit(unit)
    for of_a, of_b in SHAPES:
        a, b = codes(of_a, how.a.carrier), codes(of_b, how.b.carrier, 1)
        for promote in (None, 2 * how.terms):
            want = one_by_one(a, b, accumulate=unit, promote=promote)
            assert_bits_equal(fp.matmul(a, b, accumulate=unit, promote=promote), want)


def test_short_stacks_take_one_loop() -> None:
    a, b = codes((3, 5, 40), fp.BF16), codes((3, 40, 33), fp.BF16)
    got = short_stack(a, b, BF16, None, None)
    assert got is not None
    assert_bits_equal(got, one_by_one(a, b, accumulate=BF16))
    assert short_stack(a, b, fp.Sequential(fp.FP32), None, None) is None
    assert short_stack(a.astype(np.int64), b, BF16, None, None) is None


VIEWS: dict[str, Callable[[Array], Array]] = {
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
    "heads between rows": lambda x: np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1),
    "with gaps": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 2)[::2, :, ::3],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "read-only": read_only,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


@in_turn("view", VIEWS)
@pytest.mark.parametrize("unit", [BF16, E4M3])
def test_views_are_read_as_they_are(view: str, unit: str) -> None:
    fmt = fp.unit(unit).a.fmt
    a, b = VIEWS[view](codes((4, 20, 48), fmt)), VIEWS[view](codes((4, 48, 64), fmt, 1))
    want = one_by_one(a.copy(), b.copy(), accumulate=unit)
    assert_bits_equal(fp.matmul(a, b, accumulate=unit), want)
    out = np.empty((4, 20, 128), f32)[..., ::2]
    assert fp.matmul(a, b, accumulate=unit, out=out) is out
    assert_bits_equal(out, want)


@in_turn("accumulate", [fp.Sequential(fp.BF16), fp.Pairwise(fp.FP32), fp.Exact(fp.FP16), fp.FusedMultiplyAdd(fp.FP32),
                        "cdna3_bf16_f32", "x86_amx_bf16_f32", "hopper_f16_f16"])  # fmt: skip
def test_every_accumulator_and_unit_takes_stacks(accumulate: Any) -> None:
    fmt = fp.BF16 if not isinstance(accumulate, str) or "bf16" in accumulate else fp.FP16
    dtype = ml_dtypes.bfloat16 if fmt == fp.BF16 else np.float16
    a, b = codes((2, 1, 5, 37), fmt).view(dtype), codes((3, 37, 4), fmt, 1).view(dtype)
    assert_bits_equal(fp.matmul(a, b, accumulate=accumulate), one_by_one(a, b, accumulate=accumulate))


@pytest.mark.parametrize("accumulate", [fp.Sequential("fp32"), fp.FusedMultiplyAdd("fp32")], ids=str)
@pytest.mark.parametrize("shapes", [((4, 5, 7), (4, 7, 9)), ((2, 1, 3, 8), (3, 8, 33)), ((3, 4), (2, 4, 5))])
def test_chains_of_short_float32_products_have_the_bits_of_single_ones(accumulate: Any, shapes: Any) -> None:
    generator = np.random.default_rng(5)
    a, b = (generator.integers(0, 2**32, shape, dtype=np.uint32).view(np.float32) for shape in shapes)  # all kinds
    a[..., ::2, :], b[..., ::2] = -0.0, generator.standard_normal(b[..., ::2].shape).astype(np.float32)
    got = fp.matmul(a, b, accumulate=accumulate)
    left, right = (
        np.broadcast_to(a, (*got.shape[:-2], *a.shape[-2:])),
        np.broadcast_to(b, (*got.shape[:-2], *b.shape[-2:])),
    )
    for at in np.ndindex(got.shape[:-2]):
        fp.testing.assert_bits_equal(got[at], fp.matmul(left[at], right[at], accumulate=accumulate))


def test_every_matrix_of_a_stack_starts_at_its_c() -> None:
    a, b = codes((3, 4, 32), fp.BF16), codes((32, 5), fp.BF16, 1)
    c = np.random.default_rng(2).standard_normal((3, 4, 5)).astype(f32)
    for accumulate, fmt in ((BF16, None), (fp.FusedMultiplyAdd(fp.FP32), fp.BF16)):
        words: dict[str, Any] = {"accumulate": accumulate, "fmt": fmt}
        want = [fp.matmul(x, b, y, **words) for x, y in zip(a, c, strict=True)]
        assert_bits_equal(fp.matmul(a, b, c, **words), np.stack(want))


@pytest.mark.parametrize("accumulate", [BF16, "hopper_s8_s32", fp.Sequential(fp.FP32), fp.Exact(fp.FP32)], ids=str)
def test_a_result_may_overwrite_its_c_and_the_c_of_the_next_product(accumulate: Any) -> None:
    fmt, dtype = (fp.INT8, np.int8) if accumulate == "hopper_s8_s32" else (fp.BF16, ml_dtypes.bfloat16)
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 9, shape).astype(dtype) for shape in ((4, 3, 8), (4, 8, 5)))
    memory = rng.integers(-9, 9, (5, 3, 5)).astype(np.int32 if fmt == fp.INT8 else f32)
    for c, out in ((memory[:-1], memory[1:]), (memory[1:], memory[:-1]), (memory[:-1], memory[:-1])):
        want = fp.matmul(a, b, c.copy(), accumulate=accumulate)
        fp.matmul(a, b, c, accumulate=accumulate, out=out)
        assert_bits_equal(out, want)


def test_a_result_may_overwrite_the_bias() -> None:
    a, b, out = codes((2, 3, 32), fp.BF16), codes((2, 32, 5), fp.BF16, 1), np.ones((2, 3, 5), f32)
    want = fp.matmul(a, b, accumulate=BF16, bias=out[0, 1].copy())
    assert_bits_equal(fp.matmul(a, b, accumulate=BF16, bias=out[0, 1], out=out), want)


def test_formats_may_be_a_list() -> None:
    a, b = np.ones((2, 3, 4), f32), np.ones((2, 4, 5), f32)
    assert (fp.matmul(a, b, accumulate=fp.Sequential(fp.FP32), fmt=["fp32", "fp32"]) == 4).all()


def test_epilogues_and_schedules_hold_for_every_product() -> None:
    a, b, bias = codes((2, 3, 256), fp.E4M3), codes((2, 256, 16), fp.E4M3, 1), np.arange(16, dtype=f32)
    words: dict[str, Any] = {"bias": bias, "alpha": 0.5, "out_fmt": "bf16", "schedule": fp.schedules.cutlass_2xacc(128)}
    assert_bits_equal(fp.matmul(a, b, accumulate=E4M3, **words), one_by_one(a, b, accumulate=E4M3, **words))
    scales = np.array([[[0.5]], [[3]]], f32)  # one for each matrix of a
    got = fp.matmul(a, b, accumulate=E4M3, scale_a=scales)
    want = [fp.matmul(x, y, accumulate=E4M3, scale_a=s) for x, y, s in zip(a, b, scales, strict=True)]
    assert_bits_equal(got, np.stack(want))


def test_scaled_stacks_bring_the_scales_of_every_matrix() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 256)).astype(f32)
    y = np.random.default_rng(1).standard_normal((256, 4)).astype(f32)
    a, b = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128), fp.encode_scaled(y, fp.E4M3, fp.scalings.BLOCK_128X128)
    alone = [fp.matmul(fp.encode_scaled(part, fp.E4M3, fp.scalings.TILE_1X128), b, accumulate=E4M3) for part in x]
    assert_bits_equal(fp.matmul(a, b, accumulate=E4M3), np.stack(alone))
    whole = fp.encode_scaled(x, fp.E4M3, fp.scalings.TENSOR)  # one scale for all matrices
    got = fp.matmul(whole, b, accumulate=E4M3)
    assert_bits_equal(
        got[1], fp.matmul(whole.codes[1], b.codes, accumulate=E4M3, scale_a=whole.scales[0], scale_b=b.scales)
    )


def test_stochastic_sums_are_numbered_through_the_stack() -> None:
    a, b = codes((3, 4, 32), fp.BF16), codes((32, 5), fp.BF16, 1)
    how = fp.Sequential(fp.FP16, rounding="stochastic", seed=7)
    got = fp.matmul(a, b, accumulate=how, fmt=fp.BF16)
    assert_bits_equal(got.reshape(12, 5), fp.matmul(a.reshape(12, 32), b, accumulate=how, fmt=fp.BF16))


def test_empty_stacks_have_the_shape_and_dtype_of_their_products() -> None:
    for accumulate, dtype in (
        (BF16, f32),
        (fp.Sequential(fp.BF16), ml_dtypes.bfloat16),
        ("hopper_f16_f16", np.float16),
    ):
        x = np.float16 if accumulate == "hopper_f16_f16" else ml_dtypes.bfloat16
        for of_a, of_b, shape in (((0, 2, 8), (8, 3), (0, 2, 3)), ((2, 0, 8), (2, 8, 3), (2, 0, 3)),
                                  ((2, 4, 0), (0, 3), (2, 4, 3))):  # fmt: skip
            got = fp.matmul(np.ones(of_a, x), np.ones(of_b, x), accumulate=accumulate)
            assert got.shape == shape
            assert got.dtype == dtype
            assert not got.any()


def test_lists_may_be_stacks() -> None:
    a = [[[1.0, 2.0]], [[3.0, 4.0]]]
    got = fp.matmul(a, [[1.0], [1.0]], accumulate=fp.Sequential(fp.FP64))
    assert got.tolist() == [[[3.0]], [[7.0]]]


A, B = np.zeros((2, 4, 8), ml_dtypes.bfloat16), np.zeros((2, 8, 3), ml_dtypes.bfloat16)
C = np.zeros((4, 3), f32)


def product(a: Any = A, b: Any = B, c: Any = None, unit: Any = BF16, **words: Any) -> Array:
    """Return a product that is right but for what a case changes."""
    return fp.matmul(a, b, c, accumulate=unit, **words)


@in_turn(
    "call, words",
    [
        (lambda: product(b=B[:, :4]), r"agree in K; got \(2, 4, 8\) and \(2, 4, 3\)\. Transpose"),
        (lambda: product(b=np.zeros((3, 8, 3))), r"before their last two must broadcast.*\(3, 8, 3\)"),
        (lambda: product(b=B[0, :, 0]), r"b must have two axes or more, \(\.\.\., K, N\); got shape \(8,\)"),
        (lambda: product(c=C), r"c must have the result's shape \(2, 4, 3\); got \(4, 3\)"),
        (lambda: product(c=C, unit=fp.Sequential("fp32")), r"c must have the result's shape \(2, 4, 3\); got \(4, 3\)"),
        (lambda: product(out=np.zeros((2, 4, 4), f32)), r"out must have the result's shape"),
        (lambda: product(out=np.zeros((2, 4, 3))), r"out must have dtype float32"),
        (lambda: product(unit=fp.Sequential("fp32"), alpha=2), r"alpha is for matrix units"),
        (lambda: product(unit=3), r"accumulate must be a matrix unit"),
        (lambda: product(scale_a=np.ones((3, 4, 1), f32)), r"scale_a must have the leading axes \(2,\).*\(3, 4, 1\)"),
        (lambda: product(scale_b=[[1], [1, 2]]), r"scale_b must be an array, a number or nested lists"),
        (lambda: product(np.float32, B[0]), r"a must be an array of bfloat16 or codes of BF16; got <class"),
        (lambda: product(b=B.astype(f32)), r"takes a and b of bf16.*got b as float32"),
        (lambda: product(A[:0], B[:0].astype(f32)), r"takes a and b of bf16.*got b as float32"),
    ],
)  # fmt: skip
def test_bad_stacks_get_one_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()


@pytest.mark.parametrize(
    ("unit", "fmt", "scaling"),
    [
        ("blackwell_mxfp8_e4m3_f32", "e4m3", fp.scalings.MX),
        ("blackwell_nvfp4_f32", "e2m1", fp.scalings.NVFP4),
        ("hopper_e4m3_f32", "e4m3", fp.scalings.TILE_1X128),
        ("hopper_s8_s32", "int8", fp.scalings.ROW),
    ],
)
def test_stacks_without_matrices_of_scaled_operands_are_empty(unit: str, fmt: str, scaling: Any) -> None:
    a = fp.encode_scaled(np.zeros((0, 2, 128), np.float32), fmt, scaling)
    b = fp.encode_scaled(np.ones((3, 128), np.float32), fmt, scaling).transpose()
    got = fp.matmul(a, b, accumulate=unit, out_fmt="bf16")
    assert (got.shape, got.dtype.name) == ((0, 2, 3), "bfloat16")


def test_stacks_without_matrices_take_scales_weights_of_integers_and_c() -> None:
    a, b = np.zeros((0, 2, 32), np.uint8), np.zeros((32, 3), np.uint8)
    scales: dict[str, Any] = {"scale_a": np.zeros((0, 2, 1), np.uint8), "scale_b": np.zeros((1, 3), np.uint8)}
    assert fp.matmul(a, b, accumulate="blackwell_mxfp8_e4m3_f32", **scales).shape == (0, 2, 3)
    weights = fp.encode_scaled(np.zeros((0, 32, 3)), "int4", fp.Scaling(block=(32, 1), scale_format=fp.FP16))
    assert fp.matmul(np.ones((2, 32), np.float16), weights, accumulate="hopper_f16_f32").shape == (0, 2, 3)
    c = np.zeros((0, 2, 3), np.float32)
    assert fp.matmul(a, b, c, accumulate="hopper_e4m3_f32", beta=1.0).shape == (0, 2, 3)
    with pytest.raises(ValueError, match=r"c must have the result's shape \(0, 2, 3\); got \(0, 2, 9\)."):
        fp.matmul(a, b, np.zeros((0, 2, 9), np.float32), accumulate="hopper_e4m3_f32")


@pytest.mark.parametrize(("unit", "dtype"), [("ada_e5m2_f32", np.uint8), ("hopper_s8_s32", np.int8)])
def test_scales_of_blocks_of_k_multiply_sums_of_no_terms(unit: str, dtype: type) -> None:
    scales: dict[str, Any] = {"scale_a": np.ones((2, 0), np.float32), "scale_b": np.ones((0, 3), np.float32)}
    got = fp.matmul(np.zeros((2, 0), dtype), np.zeros((0, 3), dtype), accumulate=unit, **scales)
    assert_bits_equal(got, np.zeros((2, 3), np.float32))


@in_turn("how", ["hopper_bf16_f32", fp.Sequential(fp.BF16), fp.Exact(fp.FP32)])
def test_stacks_groups_and_images_of_a_format_are_read_as_their_dtype(how: Any) -> None:
    """They were read as float32, which the unit does not take."""
    x = fp.array(np.arange(16).reshape(2, 1, 2, 4), "bf16")
    typed = x.codes.view(ml_dtypes.bfloat16)
    y, plain = x[0, 0], typed[0, 0]
    assert_bits_equal(fp.matmul(x, y.T, accumulate=how), fp.matmul(typed, plain.T, accumulate=how))
    assert_bits_equal(fp.matmul(y, y.T, accumulate=how), fp.matmul(plain, plain.T, accumulate=how))
    rows, groups = y[:, :2], x[:, 0]
    grouped = fp.grouped_matmul(rows, groups, [1, 1], accumulate=how)
    assert_bits_equal(grouped, fp.grouped_matmul(plain[:, :2], typed[:, 0], [1, 1], accumulate=how))
    assert_bits_equal(fp.conv2d(x, x, accumulate=how), fp.conv2d(typed, typed, accumulate=how))
    assert fp.patches(x, 2).dtype == typed.dtype
