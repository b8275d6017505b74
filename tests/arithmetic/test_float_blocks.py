"""Loops over blocks of FP16 and BF16, and calls of float loops through the public functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.arithmetic import routes
from fpsim.arithmetic.kernels import nearest, nearest_fma
from fpsim.arithmetic.operation import operation
from fpsim.runtime.pipeline import PIECE
from fpsim.runtime.stream import STREAM_BYTES
from fpsim.runtime.vectors import has_avx512
from tests.arithmetic.checks import assert_same
from tests.arithmetic.float_cases import by_core, compare, ordinary, run
from tests.kit.hard_columns import hard_columns

Array = npt.NDArray[Any]


BINARY = ("add", "subtract", "multiply", "divide")


NAMES = (*BINARY, "sqrt", "fma")


COUNT = 1500  # of each kind of operand


def arity(name: str) -> int:
    return {"sqrt": 1, "fma": 3}.get(name, 2)


# ---- FP16 and BF16 to nearest even, block by block

SHORT = pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)


SCALED = pytest.mark.parametrize("name", ["multiply", "divide"])


SHORT_NAMES = pytest.mark.parametrize("name", NAMES)


@SHORT
@SHORT_NAMES
def test_every_size_around_the_blocks_gives_the_same_bits(fmt: fp.Format, name: str) -> None:
    op = operation(name, (fmt,) * arity(name), fmt)
    way = routes._by_float(op)
    columns = [column[:1025] for column in hard_columns(name, op.formats, fmt, 300, seed=4)]
    want = by_core(op, columns)
    for size in (*range(1, 70), *range(480, 545), *range(990, 1026)):  # a block is 512
        part = [column[-size:] for column in columns]
        codes, flags = run(way, part, op, True)
        (alone,) = run(way, part, op, False)
        assert np.array_equal(codes, want[0][-size:]), size
        assert np.array_equal(flags, want[1][-size:]), size
        assert np.array_equal(alone, codes), size


@SCALED
@pytest.mark.parametrize("place", [0, 1, 15, 16, 255, 510, 511])
def test_one_subnormal_result_in_one_block_is_rounded_once(name: str, place: int) -> None:
    size = 40 * nearest.BLOCK + 77
    op = operation(name, (fp.BF16, fp.BF16), fp.BF16)
    tiny = (0x0081, 0x3EAB) if name == "multiply" else (0x0081, 0x40AB)  # a third or a fifth of the smallest normal
    blocks = (0, 1, nearest.PATIENCE - 1, nearest.PATIENCE, nearest.PATIENCE + 1, 39, 40)
    for chosen in [*[(block,) for block in blocks], (0, nearest.PATIENCE), (3, 3 + nearest.PATIENCE - 1, 38)]:
        columns = ordinary(size)
        for block in chosen:
            at = min(block * nearest.BLOCK + place, size - 1)
            columns[0][at], columns[1][at] = tiny
        compare(routes._by_float(op), op, columns)
        part = [column[place + 1 :] for column in columns]  # the same at other places of the blocks
        compare(routes._by_float(op), op, part)


@SCALED
def test_patience_ends_whatever_came_before(name: str) -> None:
    op = operation(name, (fp.BF16, fp.BF16), fp.BF16)
    hard = hard_columns(name, (fp.BF16, fp.BF16), fp.BF16, 200, seed=6)
    columns = [np.concatenate([h, o, h[:50], o]) for h, o in zip(hard, ordinary(17 * nearest.BLOCK + 9), strict=True)]
    compare(routes._by_float(op), op, columns)


def in_float32_range(size: int, seed: int) -> list[Array]:
    """BF16 operands of fma whose products float32 holds: up to the bounds that the loop looks for, many near ties."""
    generator = np.random.default_rng(seed)
    low, high = int(nearest_fma.SMALLEST_FACTOR), int(nearest_fma.LARGEST_FACTOR)
    factors = generator.integers(low, high, (2, size))
    factors[:, ::3] = generator.integers(0x3F00, 0x4080, factors[:, ::3].shape)
    factors[0, ::7], factors[1, ::11] = low, high - 1
    factors[0, ::13] = 0
    signs = generator.integers(0, 2, (3, size)) << 15
    a, b = ((factors | signs[:2]) & 0xFFFF).astype(np.uint16)
    products = np.asarray(fp.decode(a, fp.BF16, np.float64)) * np.asarray(fp.decode(b, fp.BF16, np.float64))
    # the product's own place, half of its last bit but one, and far below, where only the sign of c decides a tie
    scale = 2.0 ** generator.choice([0, -1, -7, -8, -9, -15, -16, -17, -30, -60], size)
    c = np.asarray(fp.encode(np.where(signs[2] > 0, -1, 1) * products * scale, fp.BF16))
    c[::5] = generator.integers(0, high, c[::5].size) | signs[2][::5]
    return [a, b, np.where((c & 0x7FFF) < high, c, 0x3F80).astype(np.uint16)]


def at_the_ends(columns: list[Array]) -> list[Array]:
    """The elements of the largest and smallest magnitudes of a column, zeros aside, which decide about a range."""
    sizes = [column & 0x7FFF for column in columns]
    rows = [i for size in sizes for i in (np.argmax(size), np.argmin(np.where(size == 0, 0xFFFF, size)))]
    return [column[rows] for column in columns]


def test_products_that_float32_holds_are_summed_and_rounded_once() -> None:
    columns = in_float32_range(200 * nearest.BLOCK + 77, seed=8)
    with np.errstate(over="ignore"):
        assert nearest_fma._in_range(*at_the_ends(columns))
    op = operation("fma", (fp.BF16,) * 3, fp.BF16)
    compare(routes._by_float(op), op, columns)


@pytest.mark.parametrize("place", [0, 1, 63, 511])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_one_factor_out_of_range_sends_its_block_another_way(column: int, place: int) -> None:
    op = operation("fma", (fp.BF16,) * 3, fp.BF16)
    low, high = int(nearest_fma.SMALLEST_FACTOR), int(nearest_fma.LARGEST_FACTOR)
    for code in (1, low - 1, high, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0xFF80, 0xFFC1):
        columns = in_float32_range(3 * nearest.BLOCK, seed=9)
        columns[column][nearest.BLOCK + place] = code
        with np.errstate(over="ignore"):
            block = [each[nearest.BLOCK : 2 * nearest.BLOCK] for each in columns]
            assert nearest_fma._in_range(*block) == (column == 2 and code < high)
        compare(routes._by_float(op), op, columns)


@SHORT
@pytest.mark.parametrize("vectors", [True, False])
def test_fused_codes_are_rounded_once_in_vectors_and_without(
    vectors: bool, fmt: fp.Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    if vectors and not has_avx512():
        pytest.skip("this processor, or numba's target, has no AVX-512")
    monkeypatch.setattr(nearest_fma, "has_avx512", lambda: vectors)
    loop = nearest_fma.fma_kernel.__wrapped__(fmt)
    op = operation("fma", (fmt,) * 3, fmt)
    hard, near = hard_columns("fma", op.formats, fmt, 2000, seed=10), in_float32_range(40 * nearest.BLOCK, seed=11)
    random = np.random.default_rng(12).integers(0, 1 << 16, (3, 100_000), np.uint16)
    columns = [np.concatenate(parts) for parts in zip(near, hard, random, strict=True)]
    codes = np.empty_like(columns[0])
    loop(*columns, codes)
    assert np.array_equal(codes, by_core(op, columns)[0])


AROUND = [(name, fmt) for fmt in (fp.FP16, fp.BF16) for name in (*BINARY, "fma")]


@pytest.mark.parametrize(
    ("name", "fmt"),
    [
        pytest.param(name, fmt, id=f"{name}-{fmt}", marks=[pytest.mark.slow] * (i % 3 != 0))
        for i, (name, fmt) in enumerate(AROUND)
    ],
)
def test_loops_around_the_caches_give_the_same_bits(name: str, fmt: fp.Format) -> None:
    op = operation(name, (fmt,) * arity(name), fmt)
    columns = hard_columns(name, op.formats, fmt, 2000, seed=7)
    if name == "fma":
        columns = [np.concatenate([x, y]) for x, y in zip(columns, in_float32_range(2000, seed=7), strict=True)]
    loop = nearest_fma.fma_kernel(fmt, True) if name == "fma" else nearest.binary_kernel(fmt, name, True)
    want = by_core(op, columns)[0]
    for size in (0, 1, 127, 500, columns[0].size):
        for offset in (0, 1, 31, 32):  # of the target from a cache line
            space = np.empty(size + 128, np.uint16)
            first = -space.ctypes.data % 64 // 2 + offset
            codes = space[first : first + size]
            loop(*[column[:size] for column in columns], codes)
            assert np.array_equal(codes, want[:size]), (size, offset)


@SCALED
def test_results_too_large_for_the_caches_are_the_same(name: str) -> None:
    repeats = STREAM_BYTES // 2 // 4000 + 1
    op = operation(name, (fp.BF16, fp.BF16), fp.BF16)
    columns = hard_columns(name, op.formats, fp.BF16, 1000, seed=8)
    want = np.tile(by_core(op, columns)[0], repeats)
    long = [np.tile(column, repeats) for column in columns]
    assert long[0].nbytes >= STREAM_BYTES
    codes = getattr(fp, name)(*long, fmt=fp.BF16)
    assert np.array_equal(codes, want)
    codes = getattr(fp, name)(*long, fmt=fp.BF16, out=long[1])
    assert np.array_equal(codes, want)


# ---- through the public functions: targets that are operands, scalars, gaps

PUBLIC = [(name, fmt, "nearest_even") for name in NAMES for fmt in (fp.FP16, fp.BF16)] + [
    (name, fp.FP32, "up") for name in ("add", "divide", "fma", "sqrt")
]


PUBLIC_IDS = [f"{name}-{fmt}-{rounding}" for name, fmt, rounding in PUBLIC]


LEFT_OUT = {
    *(f"{name}-BF16-nearest_even" for name in ("add", "subtract", "divide", "sqrt")),
    *(f"{name}-FP16-nearest_even" for name in ("multiply", "fma")),
    *(f"{name}-FP32-up" for name in ("add", "sqrt")),
}  # all operations, all formats, and each rounding


EVERY_PUBLIC = pytest.mark.parametrize(("name", "fmt", "rounding"), PUBLIC, ids=PUBLIC_IDS)


@EVERY_PUBLIC
def test_results_may_replace_any_operand(name: str, fmt: fp.Format, rounding: str) -> None:
    op = operation(name, (fmt,) * arity(name), fmt, rounding=rounding)
    drawn = hard_columns(name, op.formats, fmt, PIECE // 8, seed=9)
    columns = [np.tile(column, 3)[: PIECE + 777] for column in drawn]  # more than one piece
    want = by_core(op, columns)
    for replaced in range(len(columns)):
        for flags in (False, True):
            operands = [column.copy() for column in columns]
            got = getattr(fp, name)(*operands, fmt=fmt, rounding=rounding, flags=flags, out=operands[replaced])
            assert np.array_equal(operands[replaced], want[0])
            assert not flags or np.array_equal(got[1], want[1])
            others = [index for index in range(len(columns)) if index != replaced]
            assert all(np.array_equal(operands[index], columns[index]) for index in others)


@pytest.mark.parametrize("name", BINARY)
def test_a_result_may_replace_an_operand_that_is_given_twice(name: str) -> None:
    x = np.random.default_rng(10).integers(0, 1 << 16, 20_000).astype(np.uint16)
    for fmt in (fp.FP16, fp.BF16):
        want, want_flags = by_core(operation(name, (fmt, fmt), fmt), [x, x])
        operand = x.copy()
        _, flags = getattr(fp, name)(operand, operand, fmt=fmt, out=operand, flags=True)
        assert np.array_equal(operand, want)
        assert np.array_equal(flags, want_flags)


@pytest.mark.parametrize(
    ("name", "fmt", "rounding"),
    [
        # scalars and rows have loops of their own, which take seconds to compile
        pytest.param(*case, id=name, marks=[pytest.mark.slow] * (name in LEFT_OUT))
        for case, name in zip(PUBLIC, PUBLIC_IDS, strict=True)
    ],
)
def test_scalars_rows_and_gaps_give_the_same_bits(name: str, fmt: fp.Format, rounding: str) -> None:
    op = operation(name, (fmt,) * arity(name), fmt, rounding=rounding)
    columns = [np.resize(column, (80, 120)) for column in hard_columns(name, op.formats, fmt, COUNT, seed=11)]
    edges = [0, 1, 1 << fmt.mantissa_bits, fmt.sign_bit | 3, fmt.max_code, fmt.infinity_code, fmt.nan_code]
    spreads = [
        [np.asfortranarray(column) for column in columns],
        [column[::-1, ::-1] for column in columns],
        [np.repeat(column, 2, axis=1)[:, ::2] for column in columns],
    ]
    if len(columns) > 1:
        spreads += [
            [columns[0], *[column[:1] for column in columns[1:]]],
            [columns[0][:, :1], *columns[1:]],
            *[[*columns[:-1], np.array(edge, fmt.storage)] for edge in edges],
            *[[np.array([edge], fmt.storage), *columns[1:]] for edge in edges],
        ]
    for spread in spreads:
        shape = np.broadcast_shapes(*[column.shape for column in spread])
        full = [np.broadcast_to(column, shape).reshape(-1) for column in spread]
        want = by_core(op, full)
        codes, flags = getattr(fp, name)(*spread, fmt=fmt, rounding=rounding, flags=True)
        assert_same(codes.reshape(-1), want[0], name, full, {"fmt": fmt, "rounding": rounding}, "codes")
        assert_same(flags.reshape(-1), want[1], name, full, {"fmt": fmt, "rounding": rounding}, "flags")
        assert np.array_equal(getattr(fp, name)(*spread, fmt=fmt, rounding=rounding), codes)
