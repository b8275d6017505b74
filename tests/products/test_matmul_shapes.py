"""fp.matmul however it is cut up: threads, parts, layouts, sizes of zero, promotion, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles.units.rows import any_code, normal, special, wide, zeros
from tests.products.checks import (
    KERNELS,
    Array,
    Product,
    chained,
    lengths,
    multiplied,
    promoted,
    random_product,
    results,
)

f32 = np.float32


every_unit = in_turn("unit", float_units())


every_kernel = in_turn("unit", KERNELS)


# ---- however it is cut up


@every_kernel
@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(("m", "n"), [(5, 300), (300, 130), (300, 5), (5, 600)])
def test_results_do_not_depend_on_the_number_of_threads(
    unit: MatrixUnit, threads: int, m: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fpsim.runtime.threads.SMALLEST", 1)
    p = random_product(unit, wide, (m, unit.terms, n))
    monkeypatch.setenv("FPSIM_NUM_THREADS", "1")
    want = results(multiplied(p, unit))
    monkeypatch.setenv("FPSIM_NUM_THREADS", str(threads))
    assert_bits_equal(results(multiplied(p, unit)), want)


@pytest.mark.parametrize(("m", "n"), [(64, 640), (640, 128)])
def test_a_large_product_does_not_depend_on_the_number_of_threads(
    m: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = fp.unit("hopper_bf16_f32")
    p = random_product(unit, wide, (m, 512, n))
    found = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("FPSIM_NUM_THREADS", threads)
        found.append(results(multiplied(p, unit, promote=128)))
    assert_bits_equal(found[1], found[0])
    assert_bits_equal(found[2], found[0])


@every_kernel
@pytest.mark.parametrize("kind", [wide, special], ids=lambda kind: kind.__name__)
def test_a_part_of_the_result_is_the_product_of_parts(unit: MatrixUnit, kind: Any) -> None:
    p = random_product(unit, kind, (140, lengths(unit)[-1], 140))
    whole = results(multiplied(p, unit))
    for picked in (slice(0, 1), slice(3, 130), slice(139, 140), slice(1, 140, 7), slice(None, None, -1)):
        assert_bits_equal(results(multiplied(p.rows(picked), unit)), whole[picked])
        assert_bits_equal(results(multiplied(p.columns(picked), unit)), whole[:, picked])


@every_kernel
@pytest.mark.parametrize("promote", [False, True], ids=["chained", "promoted"])
def test_a_part_of_a_promoted_result_is_too(unit: MatrixUnit, promote: bool) -> None:
    if unit.d.name == "f64" and promote:
        return
    words = {"promote": unit.terms} if promote else {}
    p = random_product(unit, normal, (140, lengths(unit)[-1], 140))
    whole = results(multiplied(p, unit, **words))
    assert_bits_equal(results(multiplied(p.columns(slice(5, 6)), unit, **words)), whole[:, 5:6])
    assert_bits_equal(results(multiplied(p.rows(slice(5, 6)), unit, **words)), whole[5:6])


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "wide": lambda x: x.astype(np.int64) if x.dtype.itemsize < 8 else x,
}


@in_turn("layout", LAYOUTS)
@in_turn("name", ["hopper_e4m3_f16", "ampere_tf32_f32", "cdna2_bf16_f32", "blackwell_nvfp4_f32",
                                  "hopper_f64_f64"])  # fmt: skip
def test_results_do_not_depend_on_the_layout(name: str, layout: str) -> None:
    unit, arranged = fp.unit(name), LAYOUTS[layout]
    for m, n in ((3, 130), (130, 3)):
        p = random_product(unit, normal, (m, lengths(unit)[-1], n))
        moved = p.each(lambda x: arranged(np.ascontiguousarray(x)))
        assert_bits_equal(results(multiplied(moved, unit)), results(multiplied(p, unit)))


def exchanged(unit: MatrixUnit) -> MatrixUnit:
    """Return the unit whose a is this one's b."""
    return next(
        other
        for other in float_units(unit.arch)
        if (other.a, other.b, other.d) == (unit.b, unit.a, unit.d)
        and (other.rule, other.scale, other.block) == (unit.rule, unit.scale, unit.block)
    )


@every_unit
def test_a_product_is_the_transpose_of_that_of_the_transposes(unit: MatrixUnit) -> None:
    p = random_product(unit, any_code, (6, lengths(unit)[-1], 9))
    turned = p.transposed()
    assert_bits_equal(results(multiplied(turned, exchanged(unit))), results(multiplied(p, unit)).T)


OUTS: dict[str, Callable[[tuple[int, int], Any], Array]] = {
    "C": lambda shape, dtype: np.full(shape, 7, dtype),
    "Fortran": lambda shape, dtype: np.full(shape, 7, dtype, "F"),
    "strided": lambda shape, dtype: np.full((2 * shape[0], 3 * shape[1]), 7, dtype)[::2, ::3],
}


@pytest.mark.parametrize("order", OUTS)
@pytest.mark.parametrize("name", ["hopper_f16_f32", "hopper_f16_f16", "cdna3_fp8_f32"])
def test_out_takes_the_result(name: str, order: str) -> None:
    unit = fp.unit(name)
    for m, n in ((5, 130), (130, 5)):
        p = random_product(unit, special, (m, lengths(unit)[-1], n))
        want = multiplied(p, unit)
        out = OUTS[order]((m, n), want.dtype)
        assert multiplied(p, unit, out=out) is out
        assert_bits_equal(results(out), results(want))


@pytest.mark.parametrize("name", ["hopper_f16_f32", "hopper_f16_f16"])
def test_out_may_be_the_accumulator(name: str) -> None:
    unit = fp.unit(name)
    p = random_product(unit, normal, (5, lengths(unit)[-1], 130))
    want, c = multiplied(p, unit), p.c.copy().view(f"f{unit.d.dtype.itemsize}")  # type: ignore[union-attr]
    assert_bits_equal(multiplied(p._replace(c=c), unit, out=c), want)


def test_operands_are_left_alone() -> None:
    for unit in KERNELS:
        p = random_product(unit, special, (3, lengths(unit)[-1], 130))
        before = [None if x is None else x.copy() for x in p]
        multiplied(p, unit)
        for x, y in zip(p, before, strict=True):
            assert x is y is None or np.array_equal(x, y)  # type: ignore[arg-type]


# ---- sizes of zero


@every_kernel
def test_no_terms_give_the_accumulator_or_plus_zero(unit: MatrixUnit) -> None:
    p = random_product(unit, any_code, (3, unit.block or 1, 4)).part(0, 0, unit)
    assert_bits_equal(results(multiplied(p, unit)), np.zeros((3, 4), unit.d.dtype))
    for kind in (normal, zeros):
        c = random_product(unit, kind, (3, unit.block or 1, 4)).c
        got = results(multiplied(p._replace(c=c), unit))
        assert_bits_equal(got, chained(p._replace(c=c), unit))


@every_kernel
@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (0, 0)])
def test_no_rows_or_columns_give_an_empty_result(unit: MatrixUnit, m: int, n: int) -> None:
    p = random_product(unit, normal, (3, unit.block or 1, 3)).rows(slice(0, m)).columns(slice(0, n))
    assert multiplied(p, unit).shape == (m, n)
    if unit.d.name != "f64":
        assert multiplied(p, unit, promote=unit.terms).dtype == f32


# ---- promotion

promoting = [unit for unit in KERNELS if unit.d.name != "f64"]


every_promoting_unit = in_turn("unit", promoting)


@every_promoting_unit
@pytest.mark.parametrize(("m", "n"), [(2, 130), (130, 2)])
@sweep("whole", False, True)
def test_promotion_adds_partial_sums_in_float32(unit: MatrixUnit, m: int, n: int, whole: bool) -> None:
    turn = KERNELS.index(unit) + 2 * (m > n)
    for i, (terms, k) in enumerate(((unit.terms, 3 * unit.terms), (128, 384), (256, 300), (128, 100))):
        k = -(-k // (unit.block or 1)) * (unit.block or 1)
        for j, kind in enumerate((normal, wide, zeros, special)):
            if not whole and (i + j + turn) % 4:
                continue  # of either shape every length once and every kind once
            p = random_product(unit, kind, (m, k, n))
            for c in (p.c, None) if whole else ((p.c, None)[(i // 2 + j // 2) % 2],):
                got = multiplied(p._replace(c=c), unit, promote=terms)
                assert_bits_equal(got, promoted(p._replace(c=c), unit, terms))


@every_promoting_unit
def test_a_promoted_nan_is_that_of_the_unit(unit: MatrixUnit) -> None:
    p = random_product(unit, special, (20, 3 * unit.terms, 130))
    got, nan = multiplied(p, unit, promote=unit.terms), np.isnan(promoted(p, unit, unit.terms))
    quiet = dict.fromkeys((Rule.EXACT, Rule.FLUSHED_TREE, Rule.ODD_PAIR, Rule.FUSED_PAIR), 0x7FC00000)
    quiet |= dict.fromkeys((Rule.REVERSED_CHAIN, Rule.TWO_CHAINS), 0xFFC00000)
    assert set(results(got)[nan].tolist()) == {quiet.get(unit.rule, 0x7FFFFFFF)}


def test_promotion_keeps_the_zero_that_an_addition_gives() -> None:
    a, b = np.zeros((2, 32), np.float16), np.ones((32, 3), np.float16)
    c = np.full((2, 3), -0.0, f32)
    assert_bits_equal(fp.matmul(a, b, c, accumulate="hopper_f16_f32", promote=16), np.zeros((2, 3), f32))
    kept = fp.matmul(a, -b, c, accumulate="cdna1_f16_f32", promote=16)  # its partial sums start at +0 as well
    assert_bits_equal(kept, np.zeros((2, 3), f32))


@every_promoting_unit
def test_promotion_after_all_terms_is_one_addition(unit: MatrixUnit) -> None:
    p = random_product(unit, normal, (3, 2 * unit.terms, 129))
    whole = multiplied(p._replace(c=None), unit).astype(f32)
    want = whole if p.c is None else p.c.view(f"f{unit.d.dtype.itemsize}").astype(f32) + whole
    for terms in (2 * unit.terms, 20 * unit.terms):
        assert_bits_equal(multiplied(p, unit, promote=terms), want)


def test_promotion_of_a_float16_unit_keeps_float32_totals() -> None:
    ones = np.ones((1, 4096), np.float16)
    got = fp.matmul(ones * np.float16(8), ones.T * np.float16(8), accumulate="hopper_f16_f16", promote=128)
    assert_bits_equal(got, np.full((1, 1), 64 * 4096, f32))  # which is too large for float16


# ---- what comes in


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("hopper_e4m3_f32", ml_dtypes.float8_e4m3fn),
        ("hopper_e5m2_f16", ml_dtypes.float8_e5m2),
        ("blackwell_e2m1_f32", ml_dtypes.float4_e2m1fn),
        ("cdna3_fp8_f32", ml_dtypes.float8_e4m3fnuz),
        ("ampere_f16_f16", np.float16),
        ("ampere_bf16_f32", ml_dtypes.bfloat16),
        ("ampere_tf32_f32", np.float32),
        ("hopper_f64_f64", np.float64),
    ],
)
def test_arrays_of_the_element_are_their_codes(name: str, dtype: Any) -> None:
    unit = fp.unit(name)
    p = random_product(unit, normal, (3, unit.terms, 5))
    floats = Product(p.a.view(dtype), p.b.view(dtype), p.c.view(f"f{unit.d.dtype.itemsize}"))  # type: ignore[union-attr]
    got = fp.matmul(floats.a, floats.b, floats.c, accumulate=name)
    assert_bits_equal(results(got), chained(p, unit))


def test_torch_tensors_are_taken() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    codes = x.view(torch.uint16).numpy()
    want = fp.matmul(codes, codes.T, accumulate="hopper_bf16_f32")
    assert_bits_equal(fp.matmul(x, x.T, accumulate="hopper_bf16_f32"), want)


# ---- bad input

E4M3 = "hopper_e4m3_f32"


MXFP8 = "blackwell_mxfp8_e4m3_f32"


NVFP4 = "blackwell_nvfp4_f32"


A, B = np.zeros((2, 64), np.uint8), np.zeros((64, 3), np.uint8)


SA, SB = np.zeros((2, 2), np.uint8), np.zeros((2, 3), np.uint8)


def product(a: Any = A, b: Any = B, c: Any = None, unit: Any = E4M3, **words: Any) -> Array:
    """fp.matmul, right but for what a case changes."""
    return fp.matmul(a, b, c, accumulate=unit, **words)


@in_turn(
    "call, words",
    [
        (lambda: product(A[0]), r"a must have two axes, \(M, K\); got shape \(64,\)"),
        (lambda: product(b=B[:, 0]), r"b must have two axes, \(K, N\); got shape \(64,\)"),
        (lambda: product(b=B.T), r"a \(M, K\) and b \(K, N\) must agree in K; got \(2, 64\) and \(3, 64\)\. Transpose"),
        (lambda: product(A.view(ml_dtypes.float8_e5m2)),
         r"hopper_e4m3_f32 takes a and b of e4m3 \(float8_e4m3fn or its codes\).*got a as float8_e5m2.*hopper_e5m2_"),
        (lambda: product(b=B.astype(f32)), r"takes a and b of e4m3.*got b as float32.*fpsim\.encode"),
        (lambda: product(unit="hopper_e4m3xe5m2_f32", b=B.view(ml_dtypes.float8_e4m3fn)),
         r"takes a of e4m3 .* and b of e5m2 .*got b as float8_e4m3fn"),
        (lambda: product(c=np.zeros((2, 3), np.float16)), r"c of f32 \(float32 or its codes\); got c as float16"),
        (lambda: product(A + 200, B, unit="blackwell_e2m1_f32"), r"a must lie in 0 \.\. 0xf.*E2M1; got 0xc8"),
        (lambda: product(b=B.astype(np.int64) - 1), r"b must lie in 0 \.\. 0xff.*got -0x1"),
        (lambda: product(c=np.full((2, 3), 1 << 32)), r"c must lie in 0 \.\. 0xffffffff"),
        (lambda: product(c=np.zeros((3, 2), f32)), r"c must have the result's shape \(2, 3\); got \(3, 2\)"),
        (lambda: product(c=np.zeros(3, f32)), r"c must have the result's shape \(2, 3\); got \(3,\)"),
        (lambda: product(promote=48), r"promote must be a multiple of the 32 terms that hopper_e4m3_f32 adds.*got 48"),
        (lambda: product(promote=0), r"promote must be a number of terms, or None for no promotion; got 0"),
        (lambda: product(promote=-32), r"promote must be a number of terms.*got -32"),
        (lambda: product(promote=True), r"promote must be a number of terms.*got True"),
        (lambda: product(promote=128.0), r"promote must be a number of terms.*got 128\.0"),
        (lambda: product(A.astype(float), B.astype(float), unit="hopper_f64_f64", promote=128),
         r"promote adds partial sums to a float32 total; hopper_f64_f64 has float64 sums"),
        (lambda: product(unit="hopper_e4m3_f31"), r"accumulate must be .*got 'hopper_e4m3_f31'\. Did you mean"),
        (lambda: product(unit="pascal_f16_f16"), r"accumulate must be one of .*got 'pascal_f16_f16'"),
        (lambda: product(scale_order="a"), r"scale_order must be one of product, a_first, b_first; got 'a'"),
        (lambda: product(fmt="e4m3"), r"fmt is for accumulators; hopper_e4m3_f32 has its own formats"),
        (lambda: product(scale_a=SA), r"hopper_e4m3_f32 takes no block scales; got scale_a.*blackwell_mxfp8"),
        (lambda: product(scale_b=SB), r"hopper_e4m3_f32 takes no block scales; got scale_b"),
        (lambda: product(unit=MXFP8), r"blackwell_mxfp8_e4m3_f32 needs scale_a: ue8m0 codes, one per 32 terms"),
        (lambda: product(unit=MXFP8, scale_a=SA), r"needs scale_b"),
        (lambda: product(A[:, :40], B[:40], unit=MXFP8, scale_a=SA, scale_b=SB),
         r"K must be a multiple of .*scale block of 32; got K = 40\. Pad"),
        (lambda: product(unit=MXFP8, scale_a=SA.T[:1], scale_b=SB), r"scale_a must have shape \(2, 2\); got \(1, 2\)"),
        (lambda: product(unit=MXFP8, scale_a=SA, scale_b=SB.T), r"scale_b must have shape \(2, 3\); got \(3, 2\)"),
        (lambda: product(unit=NVFP4, scale_a=SA, scale_b=SB), r"scale_a must have shape \(2, 4\); got \(2, 2\)"),
        (lambda: product(unit=MXFP8, scale_a=SA + np.uint16(256), scale_b=SB), r"scale_a must lie in 0 \.\. 0xff"),
        (lambda: product(unit=MXFP8, scale_a=SA, scale_b=SB.astype(f32)), r"scale_b.*float32"),
        (lambda: product(out=np.zeros((2, 3))), r"out must have dtype float32; got float64"),
        (lambda: product(out=np.zeros((3, 2), f32)), r"out must have .*shape \(2, 3\); got \(3, 2\)"),
        (lambda: product(out=np.zeros((2, 3), np.float16), promote=64), r"out must have dtype float32; got float16"),
        (lambda: product(out=[[0.0]]), r"out must be a NumPy array of float32 and shape \(2, 3\); got list"),
        (lambda: product(out=np.broadcast_to(f32(0), (2, 3))), r"out must be writeable"),
    ],
)  # fmt: skip
def test_bad_input_says_what_was_wanted(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"(?s){words}"):
        call()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: product([[1.0]], [[1.0]]), r"a must be an array of float8_e4m3fn or codes of E4M3.*encode"),
        (lambda: product([["1"]]), r"a must be an array of float8_e4m3fn or codes of E4M3; got texts"),
        (lambda: product(np.ma.masked_array(A, A == 0)), r"a must not be masked"),
        (lambda: product(c=np.zeros((2, 3), bool)), r"c must be an array of float32 or codes of FP32; got bool"),
        (lambda: product(unit=MXFP8, scale_a=np.ma.masked_array(SA, SA == 0), scale_b=SB), r"scale_a must not be"),
    ],
)  # fmt: skip
def test_what_is_neither_codes_nor_floats_is_refused(call: Any, words: str) -> None:
    with pytest.raises(TypeError, match=f"(?s){words}"):
        call()


@pytest.mark.parametrize("side", ["a", "b"])
def test_out_that_overlaps_an_operand_is_refused(side: str) -> None:
    x, other = np.ones((4, 4), f32), np.ones((4, 4), f32)
    a, b = (x, other) if side == "a" else (other, x)
    with pytest.raises(ValueError, match="out must not share memory"):
        fp.matmul(a, b, accumulate="ampere_tf32_f32", out=x)


def test_every_rule_is_tried() -> None:
    assert {unit.rule for unit in KERNELS} == set(Rule)
