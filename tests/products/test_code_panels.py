"""Products whose panels come straight from codes of a byte: every code, any order in memory, the ends of panels."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from fpsim.products import fused, result_parts
from fpsim.products.fast_units import rows_of, source_of
from fpsim.products.kernels.transpose import transposer
from fpsim.runtime import threads as threads_of
from fpsim.runtime.compile import kernel
from fpsim.runtime.vectors import has_avx2
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.units import changed
from tests.oracles.units.rows import any_code, normal, wide
from tests.products.checks import Product, chained, check, multiplied, powers, random_product, results, take_other_loops

FP8, TO_HALF, LONG, SCALED = "hopper_e4m3_f32", "hopper_e5m2_f16", "blackwell_e4m3_f32", "blackwell_mxfp8_e4m3_f32"
HALVES = ("hopper_f16_f32", "hopper_bf16_f32", "ampere_bf16_f32", "volta_f16_f16")  # 16, 8 and 4 terms
FORMATS = {
    fmt.name: fmt
    for fmt in (
        fp.E4M3, fp.E5M2, fp.E3M2, fp.E2M3, fp.E2M1,
        fp.Format("narrow", 1, 2), fp.Format("steep", 5, 0, nan="top"), fp.Format("low", 5, 2, bias=21),
        fp.Format("high", 4, 3, bias=-5), fp.Format("no specials", 4, 3, nan="none", infinities=False),
    )
}  # fmt: skip
# rows, terms, columns: one, or beside panels, steps and squares of 16 bytes
SHAPES = [
    (1, 32, 64), (1, 33, 63), (2, 31, 65), (3, 129, 16), (1, 1, 1), (4, 70, 17), (5, 64, 200), (1, 300, 129),
    (20, 96, 48),
]  # fmt: skip


needs_vectors = pytest.mark.skipif(not has_avx2(), reason="this processor, or numba's target, has no AVX2")


@pytest.fixture(params=["own", "plain"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the rows in vectors, where the processor has them, and with the ones for any processor."""
    if request.param == "plain":
        take_other_loops(monkeypatch, rows_of="plain")
    return str(request.param)


@pytest.fixture
def from_floats(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the product of a unit whose panels are made from floats."""

    def product(p: Product, unit: MatrixUnit, **words: Any) -> Any:
        with monkeypatch.context() as patch:
            take_other_loops(patch, source_of="floats")
            return results(multiplied(p, unit, **words))

    return product


@in_turn("name", FORMATS)
def test_every_code_counts_as_in_an_instruction(name: str, rows: str) -> None:
    """Beside zeros, beside larger and beside smaller terms, on both sides."""
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    unit = changed(FP8, a=Element("mine", fmt, fmt), b=Element("mine", fmt, fmt))
    assert source_of(unit, rows_of(unit)) == "bytes"
    b = np.stack([codes, codes[::-1], np.roll(codes, 1), np.zeros_like(codes)])
    one = 1 << fmt.mantissa_bits
    a = np.array([[one, 0, 0, one], [one, one, 0, 0], [0, 1, fmt.max_code, one]], np.uint8)
    for product in (Product(a, b), Product(b.T, a.T), Product(codes[:, None], codes[None, :])):
        check(product, unit)


@in_turn("name", HALVES[:2])
def test_every_half_counts_as_in_an_instruction(name: str) -> None:
    unit = fp.unit(name)
    codes = np.arange(1 << 16, dtype=np.uint16)
    for x in (1.0, -(2.0**-9)):
        a = fp.encode(np.full((1, 1), x), unit.a.fmt)
        for b in (codes[None], codes[:, None].T):
            check(Product(a, b), unit)
    check(Product(codes[:, None], a), unit)


@in_turn("fmt", [fp.E5M2FNUZ, fp.E4M3FNUZ, fp.E8M0, fp.Format("wide", 6, 1, bias=40)])
def test_other_formats_of_a_byte_go_by_floats(fmt: fp.Format) -> None:
    """Those whose largest exponent FP16 has for Inf, with NaN in the place of -0, without a sign, or far from one."""
    unit = changed(FP8, a=Element("mine", fmt, fmt), b=Element("mine", fmt, fmt))
    assert source_of(unit, rows_of(unit)) == "floats"
    codes = np.arange(256, dtype=np.uint8)
    check(Product(codes[:, None], codes[None, :]), unit)


@pytest.mark.parametrize(
    ("rows", "name"),
    [
        ("own", FP8), ("own", TO_HALF), ("own", LONG), ("own", SCALED), ("plain", FP8), ("plain", SCALED),
        *(pytest.param("own", name, marks=needs_vectors) for name in HALVES),
    ],
    indirect=["rows"],
)  # fmt: skip
def test_panels_end_where_operands_do(name: str, rows: str) -> None:
    """However codes lie in memory, and whatever they are."""
    unit = fp.unit(name)
    exchanged = replace(unit, a=unit.b, b=unit.a)
    assert source_of(unit, rows_of(unit)) == ("bytes" if unit.b.fmt.bits <= 8 else "halves")
    for (m, k, n), kind in itertools.product(SHAPES, (normal, any_code, wide)):
        k = max(k // (unit.block or 1), 1) * (unit.block or 1)
        p = random_product(unit, kind, (m, k, n), seed=k)
        want = chained(p, unit)
        for order, step in itertools.product("CF", (1, 2)):
            a, b = (_with_gaps(x, order, step) for x in (p.a, p.b))
            assert_bits_equal(results(multiplied(p._replace(a=a, b=b), unit)), want)
            assert_bits_equal(results(multiplied(p._replace(a=a, b=b).transposed(), exchanged)), want.T)


def _with_gaps(codes: Any, order: Any, step: int) -> Any:
    """Codes in an order of memory, every so many elements of it."""
    room = np.zeros([step * length for length in codes.shape], codes.dtype, order)
    room[::step, ::step] = codes
    return room[::step, ::step]


@pytest.mark.parametrize("shape", [(1, 5000, 300), (9, 1100, 700), (600, 1056, 130)])
def test_runs_blocks_and_threads_give_the_same_bits(
    shape: tuple[int, int, int], from_floats: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More panels than the caches hold, promoted or not, into an array of the caller's."""
    (m, k, n), unit, rng = shape, fp.unit(FP8), np.random.default_rng(1)
    a, b = (fp.encode(rng.standard_normal(size, np.float32), fp.E4M3) for size in ((m, k), (k, n)))
    b[k // 2, n // 2], b[0, -1] = 0x7F, 0xFF  # NaN
    for module in (result_parts, threads_of):  # so that two threads share the work
        monkeypatch.setattr(module, "SMALLEST", 1)
    seen: set[int] = set()
    one_part = fused.one_part

    def noted(*args: Any) -> Any:
        seen.add(threading.get_ident())
        return one_part(*args)

    monkeypatch.setattr(fused, "one_part", noted)
    for promote in (None, 128):
        words: dict[str, Any] = {"promote": promote} if promote else {}
        want = from_floats(Product(a, b), unit, **words)
        for threads, order in itertools.product("12", "CF"):
            monkeypatch.setenv("FPSIM_NUM_THREADS", threads)
            p, out = Product(a, np.array(b, order="F" if order == "F" else "C")), np.empty((m, n), np.float32)
            multiplied(p, unit, out=out, **words)
            assert_bits_equal(results(out), want)
            assert_bits_equal(results(multiplied(p.transposed(), unit, **words)), want.T)
    assert len(seen) > 1


@in_turn("name", [FP8, "hopper_f16_f32", "hopper_bf16_f32"])
def test_one_special_code_of_a_panel_is_seen(name: str) -> None:
    unit = fp.unit(name)
    p, columns = random_product(unit, normal, (2, unit.terms, 65)), np.arange(65)
    for column in columns:
        b = p.b.copy()
        b[column % unit.terms, column] = unit.b.fmt.nan_code
        got = multiplied(p._replace(b=b), unit)
        assert_bits_equal(np.isnan(got), np.tile(columns == column, (2, 1)))
        check(p._replace(b=b).columns(slice(column, column + 1)), unit)


def test_columns_may_lie_far_apart() -> None:
    """Those beyond the window of relative exponents too, and what lies beyond it in columns of larger values."""
    unit = fp.unit("hopper_bf16_f32")
    apart = np.linspace(-60, 60, 70).astype(int)[None]
    for spread in (0, 3, 45):
        p = powers(unit, np.zeros((3, 40), int), np.repeat(apart, 40, axis=0), spread)
        check(p, unit)
        check(p._replace(b=np.asfortranarray(p.b)), unit)


def test_arrays_that_cannot_be_written_are_multiplied() -> None:
    p = random_product(fp.unit(FP8), normal, (3, 70, 70))
    for x in (p.a, p.b):
        x.flags.writeable = False
    check(p, fp.unit(FP8))
    check(p.transposed(), fp.unit(FP8))


def test_scales_may_leave_the_window_of_float32(rows: str) -> None:
    """Such rows are multiplied in float64, from the same panel."""
    unit = fp.unit(SCALED)
    p = random_product(unit, any_code, (5, 96, 70))
    scale_b = np.array(p.scale_b)
    scale_b[1] = 3
    check(p._replace(scale_b=scale_b), unit)
    scale_a = np.array(p.scale_a)
    scale_a[2:4] = 250
    check(p._replace(scale_a=scale_a), unit)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("squares", [1, 2])
def test_squares_are_transposed(squares: int, dtype: Any) -> None:
    square, side, terms = transposer(16, squares), 16, 16 * squares

    def transpose(source: Any, target: Any) -> None:
        square(source, 2, 3, target, 1, 4)

    source = np.random.default_rng(0).integers(0, 1 << 8 * dtype().itemsize, (side + 3, terms + 5), dtype)
    target, want = (np.zeros((terms + 2, side + 6), dtype) for _ in range(2))
    kernel(transpose)(source, target)
    want[1 : 1 + terms, 4 : 4 + side] = source[2 : 2 + side, 3 : 3 + terms].T
    assert_bits_equal(target, want)
