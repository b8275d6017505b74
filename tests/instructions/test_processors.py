"""Matrix instructions of x86 and Arm: what processors gave, and the oracle where results are close to 2**-126."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import each_once
from tests.oracles.units.rows import Rows, dot_add_rows

Array = npt.NDArray[Any]

UNITS = (*float_units("x86"), *float_units("arm"))
every_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
BF16, TDP = fp.unit("x86_avx512_bf16_f32"), fp.unit("x86_amx_bf16_f32")
NAN = 0xFFC00000  # what an invalid operation gives; the instructions keep the payload of a NaN that comes in


@cache
def recorded() -> dict[str, Array]:
    """Return the results of an Intel Emerald Rapids (2026-11-26), by instruction and operand; tests/data/README.md."""
    with np.load(Path(__file__).parents[1] / "data" / "x86.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def one_nan(codes: Array) -> Array:
    """Float32 codes with one code for every NaN."""
    return np.where((codes & 0x7FFFFFFF) > 0x7F800000, np.uint32(NAN), codes)


def test_vdpbf16ps_gives_the_bits_of_the_processor() -> None:
    a, b, c, d = (recorded()[f"vdpbf16ps_{operand}"] for operand in "abcd")
    got = fp.dot_add(a, b, c, BF16).view(np.uint32)
    assert_bits_equal(got, one_nan(d))
    assert (got == NAN).sum() > 200


def test_tdpbf16ps_gives_the_bits_of_the_processor() -> None:
    a, b, c, d = (recorded()[f"tdpbf16ps_{operand}"] for operand in "abcd")
    b = b.reshape(-1, 16, 16, 2).transpose(0, 1, 3, 2).reshape(-1, 32, 16)  # rows of pairs of terms
    for x, y, z, want in zip(a, b, c, d, strict=True):
        rows, columns = np.repeat(x, 16, axis=0), np.tile(y.T, (16, 1))
        assert_bits_equal(fp.dot_add(rows, columns, z.reshape(-1), TDP).view(np.uint32), one_nan(want.reshape(-1)))
        assert_bits_equal(fp.matmul(x, y, z.view(np.float32), accumulate=TDP).view(np.uint32), one_nan(want))


def test_a_result_is_tiny_where_24_bits_of_it_lie_below_the_smallest_normal_value() -> None:
    c = np.array([2.0**-126], np.float32).view(np.uint32)
    for eighths, want in ((4, 0x00800000), (8, 0x00800000), (9, 0), (12, 0), (16, 0), (-4, 0x00800000)):
        # 2**-126 - eighths / 8 * 2**-151, of which float32 with subnormals makes 2**-126 in every case
        a = fp.encode(np.array([[0.0, 2.0**-76]]), fp.BF16)
        b = fp.encode(np.array([[0.0, -eighths / 8 * 2.0**-75]]), fp.BF16)
        for unit in (BF16, TDP):
            want_code = want if unit is BF16 else 0x00800000  # the product alone is tiny there, and flushed
            got = fp.dot_add(a, b, c, unit).view(np.uint32)
            assert got[0] == want_code, (unit, eighths)
            assert fp.matmul(a, b.T, c.view(np.float32)[None], accumulate=unit).view(np.uint32)[0, 0] == want_code


def near_tiny(unit: MatrixUnit, count: int, k: int, seed: int) -> Rows:
    """Rows whose products and accumulators lie within 20 binades of 2**-126, where that is possible."""
    rng = np.random.default_rng(seed)
    fmt = unit.a.fmt
    middle = max(-126 // 2, fmt.min_exponent)
    fields = rng.integers(max(middle - 8, fmt.min_exponent), middle + 1, (2, count, k)) + fmt.bias
    words = (rng.integers(0, 2, fields.shape) << fmt.bits - 1) | (fields << fmt.mantissa_bits)
    words |= rng.integers(0, 1 << fmt.mantissa_bits, fields.shape)
    words[rng.random(fields.shape) < 0.2] &= 1 << fmt.bits - 1  # zeros of both signs
    c = rng.integers(0, 1 << 32, count).astype(np.uint32) & np.uint32(0x83FFFFFF)
    return Rows(words[0].astype(np.uint16), words[1].astype(np.uint16), c)


@each_once("unit, k", UNITS, [1, 2, 5, 32, 33, 70], turns=2, ids=str)
def test_results_near_the_smallest_normal_value_are_the_oracles(unit: MatrixUnit, k: int) -> None:
    rows = near_tiny(unit, 400, k, seed=k)
    want = dot_add_rows(rows, unit)
    assert_bits_equal(fp.dot_add(rows.a, rows.b, rows.c, unit).view(np.uint32), want)
    if unit.a.fmt == fp.BF16 and k <= 5 and unit.name != "arm_ebf_bf16_f32":
        assert ((want & 0x7FFFFFFF) == 0).sum() > 5  # results are flushed


@every_unit
@pytest.mark.parametrize("k", [7, 32, 100])
def test_products_near_the_smallest_normal_value_are_chains_of_dot_add(unit: MatrixUnit, k: int) -> None:
    m, n = 9, 150
    left, right = near_tiny(unit, m, k, seed=k), near_tiny(unit, n, k, seed=k + 1)
    c = near_tiny(unit, m * n, 1, seed=k + 2).c
    want = fp.dot_add(np.repeat(left.a, n, axis=0), np.tile(right.b, (m, 1)), c, unit).reshape(m, n)
    start = c.view(np.float32).reshape(m, n)
    assert_bits_equal(fp.matmul(left.a, right.b.T, start, accumulate=unit), want.view(np.float32))
    turned = fp.matmul(right.b, left.a.T, np.ascontiguousarray(start.T), accumulate=unit)
    assert_bits_equal(np.ascontiguousarray(turned.T), want.view(np.float32))


def test_arms_pair_of_products_is_rounded_to_odd_and_overflows_to_infinity() -> None:
    unit = fp.unit("arm_bf16_f32")
    one, tiny, large = (fp.encode(np.array([x]), fp.BF16)[0] for x in (1.0, 2.0**-30, 2.0**127))
    zero = np.zeros(1, np.uint32)

    def pair(a: Any, b: Any, c: Any = zero) -> int:
        return int(fp.dot_add(np.array([a]), np.array([b]), c, unit).view(np.uint32)[0])

    assert pair([one, tiny], [one, one]) == 0x3F800001  # 1 + 2**-30: inexact, so the last bit is set
    assert pair([one, one], [one, one]) == 0x40000000
    assert pair([large, large], [one, one]) == 0x7F800000
    assert pair([large, 0], [large, 0]) == 0x7F800000
    assert pair([large, large | 0x8000], [large, large]) == 0x7FC00000  # infinities of both signs
    ebf = fp.dot_add(np.array([[one, tiny]]), np.array([[one, one]]), zero, "arm_ebf_bf16_f32")
    assert ebf.view(np.uint32)[0] == 0x3F800000


@every_unit
def test_the_probe_names_a_unit_and_says_how_it_adds(unit: MatrixUnit) -> None:
    model = fp.probe.matmul(lambda a, b: fp.matmul(a, b, accumulate=unit), 40, a=unit.a.fmt, b=unit.b.fmt)
    assert unit.name == model.unit
    flushes = {"x86": "inputs and sums", "arm": "inputs, products and sums"}[unit.arch]
    flush = "" if unit.name == "arm_ebf_bf16_f32" else f"; subnormal {flushes} become zero"
    rounds = f"each of its additions rounds {unit.rounding.replace('_', ' ')} to float32"
    assert f"A step takes {unit.terms} terms; {rounds}{flush}." in str(model)


SHAPES = [(1, 1, 33), (5, 3, 64), (17, 9, 200)]


PROCESSORS = float_units("x86")  # Arm's go by the specification


@pytest.mark.parametrize(
    "unit",  # in `make test` one of each format
    [pytest.param(x, marks=[] if x.a.fmt not in [y.a.fmt for y in PROCESSORS[:i]] else pytest.mark.slow)
     for i, x in enumerate(PROCESSORS)],
    ids=lambda unit: unit.name,
)  # fmt: skip
def test_check_kernel_holds_a_kernel_to_a_unit(unit: MatrixUnit) -> None:
    fmt = unit.a.fmt

    def right(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=unit)

    def wrong(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=other)

    promise: dict[str, Any] = {"a": fmt, "b": fmt, "accumulate": unit, "shapes": SHAPES, "raises": False}
    assert fp.testing.check_kernel(right, **promise).ok
    other = "cdna2_f16_f32" if unit.a.fmt == fp.FP16 else "cdna2_bf16_f32"
    report = fp.testing.check_kernel(wrong, **promise)
    assert f"it adds as {other} in one chain" in str(report.explanation)
