"""Plain products go a way of their own: with the bits of the long one, and only where nothing is left unchecked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.casts.pipelines import SHORT
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.products.plain import plain_product
from fpsim.sums.accumulators import Accumulator, Chunked
from fpsim.sums.float32_plan import float32_layout, float32_sums
from fpsim.sums.float32_sums import plain_sum
from fpsim.sums.plan import seedless
from fpsim.testing import assert_bits_equal
from tests.kit.layouts import read_only, unaligned
from tests.kit.processor import IS_SUPPORTED, STATES, processor_state
from tests.kit.sweeps import each_once, in_turn
from tests.products.checks import KERNELS, Product, chained

Array = npt.NDArray[Any]

UNITS = [unit for unit in KERNELS if unit.rule is Rule.FUSED and unit.d.fmt == fp.FP32]
ACCUMULATORS = [
    fp.Sequential(fp.BF16), fp.Sequential(fp.FP16, rounding="up"), fp.Sequential(fp.FP32, seed=1),
    fp.FusedMultiplyAdd(fp.FP32), fp.FusedMultiplyAdd(fp.BF16), fp.Pairwise(fp.BF16), fp.Pairwise(fp.FP32),
    Chunked(fp.FP16, chunk=8), Chunked(fp.BF16, chunk=8, outer=fp.FP32),
]  # fmt: skip
SHAPES = ((1, 1, 1), (5, 7, 3), (32, 32, 32), (40, 65, 33), (33, 8, 2), (2, 130, 70))


def operands(element: tuple[fp.Format, fp.Format], shape: tuple[int, int, int], special: bool) -> tuple[Array, Array]:
    """Return codes of ordinary values, or any codes."""
    m, k, n = shape
    generator = np.random.default_rng(sum(shape))
    found = []
    for fmt, size in zip(element, ((m, k), (k, n)), strict=True):
        codes = fp.encode(generator.standard_normal(size), fmt)
        any_codes = generator.integers(0, 1 << fmt.bits, size).astype(fmt.storage)
        found.append(np.where(generator.random(size) < 0.2, any_codes, codes) if special else codes)
    return found[0], found[1]


def the_long_way(a: Array, b: Array, accumulate: Any, **words: Any) -> Array:
    """Return the product through an array with gaps, which no plain product fills."""
    result = fp.matmul(a, b, accumulate=accumulate, **words)
    gaps = np.zeros((result.shape[0], 2 * result.shape[1]), result.dtype)
    return fp.matmul(a, b, accumulate=accumulate, out=gaps[:, ::2], **words)


@in_turn("unit", UNITS)
def test_short_products_of_units_have_the_bits_of_long_ones(unit: MatrixUnit) -> None:
    for shape in SHAPES:
        for special in (False, True):
            a, b = operands((unit.a.carrier, unit.b.carrier), shape, special)
            got = plain_product(a, b, unit, None)
            assert got is not None
            want = the_long_way(a, b, unit)
            assert_bits_equal(got, want)
            assert_bits_equal(fp.matmul(a, b, accumulate=unit), want)
            assert_bits_equal(got.view(np.uint32), chained(Product(a, b), unit))


@in_turn("unit", UNITS)
def test_short_products_are_promoted_as_long_ones(unit: MatrixUnit) -> None:
    for promote in (unit.terms, 2 * unit.terms, 64, unit.terms << 70):
        for special in (False, True):
            a, b = operands((unit.a.carrier, unit.b.carrier), (32, 97, 33), special)
            got = plain_product(a, b, unit, None, promote)
            assert got is not None
            assert_bits_equal(got, the_long_way(a, b, unit, promote=promote))
            assert_bits_equal(fp.matmul(a, b, accumulate=unit, promote=promote), got)
    for refused in (True, 0, -unit.terms, unit.terms + 1, float(unit.terms)):
        assert plain_product(a, b, unit, None, refused) is None


@each_once(
    "shape, unit",
    [(1, SHORT + 1, 1), (256, 1, 256), (300, 700, 130), (130, 2100, 20), (3, 1500, 900)],
    ["hopper_e4m3_f32", "ampere_bf16_f32", "ada_e5m2_f32", "hopper_tf32_f32"],
    turns=2,
)
def test_long_plain_products_have_the_bits_of_others(unit: str, shape: tuple[int, int, int]) -> None:
    how = fp.unit(unit)
    for special in (False, True):
        a, b = operands((how.a.carrier, how.b.carrier), shape, special)
        for right in (b, np.asfortranarray(b)):
            for promote in (None, 128, how.terms << 70):
                want = the_long_way(a, right, how, promote=promote)
                got = plain_product(a, right, how, None, promote)
                assert got is not None
                assert_bits_equal(got, want)
                assert_bits_equal(fp.matmul(a, right, accumulate=unit, promote=promote), want)


@in_turn("accumulator", ACCUMULATORS)
def test_short_products_of_accumulators_have_the_bits_of_long_ones(accumulator: Accumulator) -> None:
    for formats in ((fp.E4M3, fp.E4M3), (fp.BF16, fp.BF16)):
        for shape in SHAPES:
            a, b = operands(formats, shape, special=False)
            got = plain_product(a, b, accumulator, formats[0])
            assert got is not None
            assert_bits_equal(got, the_long_way(a, b, accumulator, fmt=formats[0]))


def test_sums_that_leave_the_range_of_short_ones_are_right_too() -> None:
    a, b = operands((fp.E4M3, fp.E4M3), (32, 32, 32), special=True)
    for accumulator in ACCUMULATORS:
        got = fp.matmul(a, b, accumulate=accumulator, fmt=fp.E4M3)
        assert_bits_equal(got, the_long_way(a, b, accumulator, fmt=fp.E4M3))
    assert plain_product(a, b, ACCUMULATORS[0], fp.E4M3) is None


WAYS: dict[str, Callable[[Array], Array]] = {
    "in C order": lambda x: x,
    "in Fortran's": np.asfortranarray,
    "with gaps": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "at an odd address": unaligned,
    "read-only": read_only,
}


@pytest.mark.parametrize("accumulate", ["hopper_e4m3_f32", "hopper_bf16_f32", fp.Sequential(fp.BF16)], ids=str)
def test_short_operands_may_lie_anyhow_and_be_of_floats(accumulate: Any) -> None:
    fmt: Any = fp.BF16 if accumulate == "hopper_bf16_f32" else fp.E4M3
    words: dict[str, Any] = {"fmt": fmt} if isinstance(accumulate, Accumulator) else {}
    a, b = operands((fmt, fmt), (32, 40, 33), special=False)
    want = the_long_way(a, b, accumulate, **words)
    for change in WAYS.values():
        assert_bits_equal(fp.matmul(change(a), change(b), accumulate=accumulate, **words), want)
    left, right = a.view(fmt.dtype), b.view(fmt.dtype)
    assert_bits_equal(fp.matmul(left, right, accumulate=accumulate), want)
    assert_bits_equal(fp.matmul(left, b, accumulate=accumulate, **words), want)


@pytest.mark.parametrize("accumulate", ["hopper_e4m3_f32", fp.Sequential(fp.BF16), fp.Pairwise(fp.FP32)], ids=str)
def test_short_results_go_where_they_may(accumulate: Any) -> None:
    words: dict[str, Any] = {"fmt": fp.E4M3} if isinstance(accumulate, Accumulator) else {}
    for special in (False, True):
        a, b = operands((fp.E4M3, fp.E4M3), (32, 40, 33), special)
        want = the_long_way(a, b, accumulate, **words)
        fmt = words.get("fmt")
        room = np.zeros((33, 34), want.dtype)
        for out in (np.full_like(want, 7), np.asfortranarray(want), room[1:, 1:], room.T[1:33]):
            out[...] = 7
            assert fp.matmul(a, b, accumulate=accumulate, out=out, **words) is out
            assert_bits_equal(np.ascontiguousarray(out), want)
            taken = plain_product(a, b, accumulate, fmt, None, out)
            assert taken is None or (taken is out and out.flags.c_contiguous)
        assert plain_product(a, b, accumulate, fmt, None, np.empty_like(want[:-1])) is None
        assert plain_product(a, b, accumulate, fmt, None, want.astype(np.float64)) is None
        assert plain_product(a, b, accumulate, fmt, None, read_only(want)) is None
    square = np.full((32, 32), 0x38, np.uint8)
    memory = np.zeros((32, 32), want.dtype)
    inside = memory.view(np.uint8)[:, :32]
    inside[...] = square
    for x, y in ((inside, square), (square, inside)):
        assert plain_product(x, y, accumulate, fmt, None, memory) is None
        with pytest.raises(ValueError, match="must not share memory"):
            fp.matmul(x, y, accumulate=accumulate, out=memory, **words)


def test_a_name_of_a_unit_is_as_good_as_the_unit_and_of_a_format_too() -> None:
    a, b = operands((fp.E4M3, fp.E4M3), (32, 32, 32), special=False)
    for name in ("hopper_e4m3_f32", " Hopper_E4M3_F32 "):
        assert_bits_equal(fp.matmul(a, b, accumulate=name), the_long_way(a, b, fp.unit("hopper_e4m3_f32")))
    for fmt in ("e4m3", "float8_e4m3fn", fp.E4M3.dtype, (fp.E4M3, "e4m3")):
        got = fp.matmul(a, b, accumulate=fp.Sequential("bf16"), fmt=fmt)
        assert_bits_equal(got, the_long_way(a, b, fp.Sequential("bf16"), fmt=fp.E4M3))


def test_what_would_have_to_be_looked_at_goes_the_long_way() -> None:
    codes = np.full((32, 32), 0x38, np.uint8)
    unit, sequential = fp.unit("hopper_e4m3_f32"), fp.Sequential(fp.BF16)
    for a, b, accumulate, fmt in (
        (codes.tolist(), codes, unit, None), (codes[0], codes, unit, None), (codes, codes[:16], unit, None),
        (codes[:0], codes, unit, None), (codes[:, :0], codes[:0], unit, None), (codes, codes, unit, "e4m3"),
        (codes.astype(np.int64), codes, unit, None), (codes, codes.astype(np.uint16), unit, None),
        (codes, codes, sequential, None), (codes, codes, fp.Exact(fp.BF16), "e4m3"),
        (codes, codes, fp.Sequential(fp.BF16, rounding="stochastic", seed=1), "e4m3"),
        (codes, codes, fp.Sequential(fp.FP64), fp.E4M3), (codes, codes, sequential, fp.E2M1),
        (codes, codes.astype(np.float64), sequential, None), (codes, codes, "hopper", None), (codes, codes, None, None),
        (np.ones((1, SHORT + 1), np.uint8), np.ones((SHORT + 1, 1), np.uint8), sequential, fp.E4M3),
        (np.ones((256, 1), np.uint8), np.ones((1, 256), np.uint8), sequential, fp.E4M3),
    ):  # fmt: skip
        assert plain_product(a, b, accumulate, fmt) is None
    assert plain_product(codes, codes, sequential, fp.E4M3, 32) is None
    assert plain_product(codes, codes, unit, None) is not None
    assert plain_product(codes, codes, sequential, fp.E4M3) is not None


@pytest.mark.skipif(not IS_SUPPORTED, reason="sets the state of an x86 processor through glibc")
@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_short_products_are_the_same_whatever_the_processor_is_set_to(state: int) -> None:
    a, b = (np.ldexp(np.random.default_rng(i).standard_normal((32, 32)), -66) for i in (0, 1))  # sums are subnormal
    left, right = fp.encode(a, fp.BF16), fp.encode(b, fp.BF16)
    for accumulate in ("hopper_bf16_f32", "ampere_bf16_f32", fp.Sequential(fp.BF16), fp.Pairwise(fp.FP32)):
        words: dict[str, Any] = {} if isinstance(accumulate, str) else {"fmt": fp.BF16}
        want = fp.matmul(left, right, accumulate=accumulate, **words)
        assert 0 < abs(want.astype(np.float64)).max() < 2.0**-126
        with processor_state(state):
            got = fp.matmul(left, right, accumulate=accumulate, **words)
        assert_bits_equal(got, want)


@in_turn("accumulator", ACCUMULATORS)
def test_short_sums_have_the_bits_of_long_ones(accumulator: Accumulator) -> None:
    generator = np.random.default_rng(0)
    formats: tuple[Any, ...] = (fp.E4M3, fp.FP16, fp.FP32)
    for fmt in formats:
        for size in (1, 5, 64, 1001):
            usual = fp.encode(generator.standard_normal(size), fmt)
            special = np.where(generator.random(size) < 0.1, fmt.nan_code, usual).astype(fmt.storage)
            for codes in (usual, special):
                rows = np.stack([codes, codes])
                got = fp.sum(codes, accumulate=accumulator, fmt=fmt)
                assert_bits_equal(np.full(2, got), fp.sum(rows, accumulate=accumulator, fmt=fmt, axis=1))
            assert (plain_sum(usual, accumulator, fmt) is None) == (
                float32_sums(seedless(accumulator), (None, fmt)) is None
            )
            assert_bits_equal(
                fp.sum(usual.view(fmt.dtype), accumulate=accumulator), fp.sum(usual, accumulate=accumulator, fmt=fmt)
            )
    assert plain_sum(np.zeros(0, np.uint8), accumulator, fp.E4M3) is None
    assert plain_sum(np.zeros(SHORT + 1, np.uint8), accumulator, fp.E4M3) is None


def test_codes_that_become_floats_by_a_table_are_summed_too() -> None:
    low = fp.Format("low", 4, 3, bias=140)  # float32 has its values as subnormals
    assert float32_layout(low) is None
    a, b = operands((low, low), (32, 40, 33), special=True)
    values = [fp.decode(codes, low) for codes in (a, b)]
    for accumulator in (fp.Sequential(fp.FP32), fp.Pairwise(fp.FP32)):
        assert float32_sums(seedless(accumulator), (low, low)) is not None
        assert_bits_equal(fp.matmul(a, b, accumulate=accumulator, fmt=low), fp.matmul(*values, accumulate=accumulator))
        assert plain_product(a, b, accumulator, low) is None
