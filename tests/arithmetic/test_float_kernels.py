"""Float loops and tables return the codes and flags of the integer core."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.arithmetic import routes
from fpsim.arithmetic.float_plan import float_plan
from fpsim.arithmetic.kernels import nearest, order, table
from fpsim.arithmetic.operation import Operation, operation
from fpsim.formats.float_format import NanEncoding
from fpsim.formats.policies import OVERFLOWS
from fpsim.testing import assert_bits_equal
from tests.arithmetic.checks import assert_same
from tests.arithmetic.float_cases import by_core, compare, ordinary
from tests.kit.hard_columns import hard_columns
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import casts

Array = npt.NDArray[Any]


Formats = tuple[fp.Format, ...]


BINARY = ("add", "subtract", "multiply", "divide")


NAMES = (*BINARY, "sqrt", "fma")


TININESS = ("after", "before")


COUNT = 1500  # of each kind of operand


def arity(name: str) -> int:
    return {"sqrt": 1, "fma": 3}.get(name, 2)


def is_fast(op: Operation, flagged: bool) -> bool:
    """Whether a float loop takes an operation, with flags or without."""
    plan = float_plan(op)
    return routes._nearest(op) is not None or (plan is not None and not (flagged and plan.limits is None))


def compare_float(name: str, columns: list[Array], fmts: Formats, out: fp.Format, **words: Any) -> None:
    compare(
        routes._by_float(operation(name, fmts, out, **words)), operation(name, fmts, out, **words), columns, **words
    )


# ---- every loop

CASES = [
    *[(name, (fmt,) * arity(name), fmt) for fmt in (fp.FP16, fp.BF16, fp.FP32, fp.TF32) for name in NAMES],
    *[(name, (fp.FP16,) * arity(name), fp.E4M3) for name in NAMES],
    *[(name, (fp.FP32,) * arity(name), fp.FP16) for name in NAMES],
    *[(name, (fp.FP16, fp.BF16), fp.BF16) for name in BINARY],
    *[("fma", (fmt,) * 3, fmt) for fmt in (fp.E4M3, fp.E5M2)],
    ("fma", (fp.FP16, fp.BF16, fp.FP32), fp.BF16),
    ("fma", (fp.E4M3, fp.E5M2, fp.FP16), fp.FP16),
]  # fmt: skip


IDS = [f"{name}-{'-'.join(map(str, fmts))}-{out}" for name, fmts, out in CASES]


EVERY_CASE = pytest.mark.parametrize(("name", "fmts", "out"), CASES, ids=IDS)


def is_like_another(name: str, fmts: Formats, out: fp.Format) -> bool:
    """Whether a loop differs from one of another operation, or of other formats, as these differ elsewhere too.

    What is left has every operation, and every pair of formats: each loop takes a second to compile.
    """
    if out == fp.TF32:
        return name not in ("multiply", "fma")
    if len(set(fmts)) > 1:
        return name not in ("subtract", "divide", "fma")
    pairs = {fp.E4M3: ("add", "divide", "fma"), fp.FP16: ("multiply", "sqrt", "fma")}
    return out != fmts[0] and name not in pairs[out]


@pytest.mark.parametrize(
    ("name", "fmts", "out"),
    [
        pytest.param(*case, id=name, marks=[pytest.mark.slow] if is_like_another(*case) else [])
        for case, name in zip(CASES, IDS, strict=True)
    ],
)
def test_float_loops_give_the_cores_codes_and_flags(name: str, fmts: Formats, out: fp.Format) -> None:
    columns = hard_columns(name, fmts, out, COUNT, seed=1)
    for rounding in casts.MODES:
        for tininess in TININESS:
            compare_float(name, columns, fmts, out, rounding=rounding, tininess=tininess)


@pytest.mark.parametrize("name", ["sqrt", "multiply", "divide"])
def test_formats_whose_largest_values_float32_cannot_hold_are_not_computed_in_it(name: str) -> None:
    """Found by drawing formats: a BF16 layout without Inf reaches 2**128, which a float32 kernel read as Inf."""
    big = fp.Format("big", exponent_bits=8, mantissa_bits=1, infinities=False, nan="top")
    columns = hard_columns(name, (big,) * arity(name), big, COUNT, seed=1)
    compare_float(name, columns, (big,) * arity(name), big)


@EVERY_CASE
def test_a_float_loop_serves_each_case(name: str, fmts: Formats, out: fp.Format) -> None:
    loses_infinity = out == fp.E4M3 != fmts[0]  # then the flags follow other rules, and the core makes them
    assert is_fast(operation(name, fmts, out), flagged=False)
    assert is_fast(operation(name, fmts, out), flagged=True) != loses_infinity


@in_turn("overflow", OVERFLOWS)
@in_turn("out", [fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16])
def test_float_loops_follow_every_overflow_word(out: fp.Format, overflow: str) -> None:
    fmts = (fp.FP16, fp.FP16)
    for name in ("multiply", "add"):
        columns = hard_columns(name, fmts, out, COUNT, seed=2)
        for rounding in ("nearest_even", "down", "odd"):
            for subnormals in ("keep", "flush"):
                words = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
                compare_float(name, columns, fmts, out, **words)


TABLES = [
    *[(name, fmts) for name in (*BINARY, "minimum") for fmts in ((fp.E4M3, fp.E4M3), (fp.E5M2, fp.E4M3))],
    *[(name, (fmt,)) for name in ("sqrt", "round_to_integral", "convert", "next_up") for fmt in (fp.E5M2, fp.FP16)],
    *[(name, (fp.E5M2, fp.E2M1)) for name in ("less", "equal", "add")],
]


@in_turn("name, fmts", TABLES)
def test_tables_give_the_cores_codes_and_flags(name: str, fmts: Formats) -> None:
    op = operation(name, fmts, fmts[0])
    index = np.random.default_rng(0).permutation(1 << op.operand_bits)  # every combination, in no order
    low = fmts[-1].bits
    sources = [index] if len(fmts) == 1 else [index >> low, index & ((1 << low) - 1)]
    columns = [source.astype(fmt.storage) for source, fmt in zip(sources, fmts, strict=True)]
    compare(routes._by_table(op), op, columns)
    compare(routes._by_table(op), op, [column[:777] for column in columns])


@pytest.mark.parametrize("out", [fp.E4M3, fp.BF16], ids=str)
def test_tables_read_around_the_caches_give_the_same_bits(out: fp.Format) -> None:
    pairs, single = operation("add", (fp.E4M3, fp.E4M3), out), operation("convert", (out,), fp.BF16)
    drawn = np.random.default_rng(3).integers(0, 256, (2, 5000)).astype(np.uint8)
    sums = by_core(pairs, list(drawn))[0]
    converted = by_core(single, [sums])[0]
    results, by_code = routes._tables(pairs)[0], routes._tables(single)[0]
    for size in (0, 1, 127, 500, 5000):
        for offset in (0, 1, 31, 32, 63):  # of the target from a cache line
            codes, around = _from_a_cache_line(size, offset, out.storage)
            table.pair_kernel(True)(drawn[0, :size], drawn[1, :size], np.uint16(8), results, codes)
            assert np.array_equal(codes, sums[:size]), (size, offset)
            words, beside = _from_a_cache_line(size, offset, fp.BF16.storage)
            table.single_kernel(True)(codes, by_code, words)
            assert np.array_equal(words, converted[:size]), (size, offset)
            assert {*np.concatenate([*around, *beside]).tolist()} == {0x55}


def _from_a_cache_line(size: int, offset: int, dtype: np.dtype[Any]) -> tuple[Array, tuple[Array, Array]]:
    """Return (array of `size` elements, arrays before and after it), of 0x55, in one buffer.

    offset: elements from the start of a cache line, of 64 bytes, to the array.
    """
    space = np.full(size + 256, 0x55, dtype)
    first = -space.ctypes.data % 64 // space.itemsize + offset
    return space[first : first + size], (space[:first], space[first + size :])


ORDERED = list(itertools.product((fp.FP16, fp.FP32, fp.E4M3FNUZ), (*order.COMPARISONS, *order.EXTREMA)))


@pytest.mark.parametrize(
    ("fmt", "name"),
    [
        # all operations and all formats; every loop takes a second to compile
        pytest.param(fmt, name, id=f"{name}-{fmt}", marks=[pytest.mark.slow] * (fmt != fp.FP16 and i % 3 != 0))
        for i, (fmt, name) in enumerate(ORDERED)
    ],
)
def test_comparisons_by_integers_give_the_cores_results_and_flags(fmt: fp.Format, name: str) -> None:
    columns = hard_columns("subtract", (fmt, fmt), fmt, COUNT, seed=3)
    for input_subnormals in ("keep", "flush"):
        op = operation(name, (fmt, fmt), fmt, input_subnormals=input_subnormals)
        compare(routes._by_float(op), op, columns, input_subnormals=input_subnormals)


# ---- FP16 and BF16 to nearest even, block by block

SHORT = pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16], ids=str)


# ---- bugs that were found

MANY = routes.FLOAT_FROM  # elements from which the public functions take float loops


def test_a_format_with_no_normal_value_overflows_like_any_other() -> None:
    all_subnormal = fp.Format("all_subnormal", 1, 4)
    a, b = np.full(MANY, 0xBFB7, np.uint16), np.full(MANY, 0x9DA7, np.uint16)
    _, flags = fp.add(a, b, fmt="fp16", out_fmt=all_subnormal, flags=True)
    assert set(flags.tolist()) == {int(fp.Flags.INEXACT | fp.Flags.UNDERFLOW)}
    fmts = (fp.FP16, fp.FP16)
    for rounding in casts.MODES:
        columns = hard_columns("add", fmts, all_subnormal, COUNT, seed=12)
        compare_float("add", columns, fmts, all_subnormal, rounding=rounding)


def test_a_largest_value_beyond_float32_warns_of_nothing() -> None:
    x = np.full(MANY, 0x3C00, np.uint16)
    assert set(fp.add(x, x, fmt="fp16", out_fmt="bf16", rounding="toward_zero", flags=True)[0].tolist()) == {0x4000}


def test_a_top_binade_that_ends_where_float64_does_overflows() -> None:
    op, out = fp.Format("op", 4, 11, bias=-1008), fp.Format("out", 5, 10, bias=-993)
    x = np.full(MANY, op.max_code, np.uint16)
    _, flags = fp.add(x, x, fmt=op, out_fmt=out, flags=True)
    assert set(flags.tolist()) == {int(fp.Flags.INEXACT | fp.Flags.OVERFLOW)}
    for rounding in casts.MODES:
        columns = hard_columns("add", (op, op), out, COUNT, seed=13)
        compare_float("add", columns, (op, op), out, rounding=rounding)


@pytest.mark.parametrize(("name", "codes"), [("multiply", (0x0D80, 0x0D80)), ("divide", (0x0D80, 0x7180))])
def test_results_that_vanish_in_float32_underflow(name: str, codes: tuple[int, int]) -> None:
    columns = [np.full(MANY, code, np.uint16) for code in codes]  # 2**-100 times 2**-100, by 2**100
    results, flags = getattr(fp, name)(*columns, fmt="bf16", flags=True)
    assert set(results.tolist()) == {0}
    assert set(flags.tolist()) == {int(fp.Flags.INEXACT | fp.Flags.UNDERFLOW)}
    op = operation(name, (fp.BF16, fp.BF16), fp.BF16)
    for count in (1, 511):  # of them in a block, the others ordinary or exact zeros
        for other in (*zip(*ordinary(3), strict=True), (0, 0x3F80)):
            mixed = [np.full(3 * nearest.BLOCK, code, np.uint16) for code in other]
            for column, code in zip(mixed, codes, strict=True):
                column[nearest.BLOCK : nearest.BLOCK + count] = code
            compare(routes._by_float(op), op, mixed)


# ---- any formats


@st.composite
def held_formats(draw: st.DrawFn, like: fp.Format | None = None) -> fp.Format:
    """Formats of 9 to 16 bits that floats hold; most often with the exponents of another one."""
    bits = draw(st.integers(9, 16))
    exponent_bits = draw(st.integers(1, min(11, bits - 1)))
    mantissa_bits = bits - 1 - exponent_bits
    nans: tuple[NanEncoding, ...] = ("ieee", "ieee", "top", "negative_zero", "none")
    nan = draw(st.sampled_from(nans))
    usual = 2 ** (exponent_bits - 1) - 1
    if like is not None:
        usual += like.bias - (2 ** (like.exponent_bits - 1) - 1)
    lowest, highest = 2**exponent_bits - 1 - 1023, 1074 - mantissa_bits
    near_float32 = [126, 127, 149 - mantissa_bits, 150 - mantissa_bits, 2**exponent_bits - 128, 2**exponent_bits - 129]
    near_float64 = [lowest, lowest + 1, lowest + 2, 1022, 1023, highest]
    bias = draw(
        st.just(usual)
        | st.integers(usual - 40, usual + 40)
        | st.sampled_from(near_float32)
        | st.sampled_from(near_float64)
        | st.integers(lowest, highest)
    )
    infinities = True if nan == "ieee" else draw(st.booleans())
    try:
        return fp.Format("drawn", exponent_bits, mantissa_bits, bias=bias, infinities=infinities, nan=nan)
    except ValueError:
        reject()


WIDER = [fp.FP32, fp.FP64]


# Operation -> longer formats of operands, and of results: every length of words is another loop to compile.
FEW_WIDER: dict[str, tuple[list[fp.Format], list[fp.Format]]] = {
    "add": ([], [fp.FP32]), "multiply": ([], [fp.FP64]), "sqrt": ([fp.FP32], [])
}  # fmt: skip


@sweep("wider", FEW_WIDER, dict.fromkeys(NAMES, (WIDER[:1], WIDER)))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_float_loops_give_the_cores_bits_whatever_the_formats(
    wider: dict[str, tuple[list[fp.Format], list[fp.Format]]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(NAMES))
    of_operands, of_results = wider.get(name, ([], []))
    first = data.draw(held_formats() | st.sampled_from([fp.FP16, fp.BF16, *of_operands]))
    again = st.just(first) | held_formats(like=first)
    fmts = (first, *[data.draw(again) for _ in range(arity(name) - 1)])
    out = data.draw(st.just(first) | held_formats(like=first) | st.sampled_from([fp.FP16, fp.BF16, *of_results]))
    words = {
        "rounding": data.draw(st.sampled_from(casts.MODES)),
        "overflow": data.draw(st.sampled_from(["nonfinite", "nonfinite", *OVERFLOWS])),
        "tininess": data.draw(st.sampled_from(TININESS)),
    }
    op = operation(name, fmts, out, **words)
    assume(is_fast(op, flagged=False))
    columns = hard_columns(name, fmts, out, 700, seed=data.draw(st.integers(0, 1 << 20)))
    compare(routes._by_float(op), op, columns, **words)


# ---- every pair


@pytest.mark.slow
@SHORT
@pytest.mark.parametrize("name", ["add", "multiply", "divide"])
def test_every_pair_of_codes_gives_the_cores_bits(fmt: fp.Format, name: str) -> None:
    op = operation(name, (fmt, fmt), fmt)
    core, fast = routes.by_core(op), routes._by_float(op)
    rows = 2  # of 2**16 pairs at a time, so that all of them stay in the cache
    second = np.tile(np.arange(1 << 16).astype(np.uint16), rows)
    want, want_flags = np.empty(second.size, np.uint16), np.empty(second.size, np.uint8)
    codes, flags, alone = np.empty_like(want), np.empty_like(want_flags), np.empty_like(want)
    for start in range(0, 1 << 16, rows):
        columns = [np.repeat(np.arange(start, start + rows).astype(np.uint16), 1 << 16), second]
        core(tuple(columns), (want, want_flags), 0)
        fast(tuple(columns), (codes, flags), 0)
        fast(tuple(columns), (alone,), 0)
        assert_same(codes, want, name, columns, {"fmt": fmt, "flags": True}, "codes")
        assert_same(flags, want_flags, name, columns, {"fmt": fmt, "flags": True}, "flags")
        assert_same(alone, want, name, columns, {"fmt": fmt}, "codes")


@pytest.mark.parametrize("name", ["multiply", "divide"])
def test_bf16_results_near_half_the_smallest_number_are_rounded_once(name: str) -> None:
    """Cover all pairs of mantissas, with results around 2**-134 and around float32's smallest normal number."""
    mantissas = np.arange(128, dtype=np.uint16)
    first, second = (x.ravel() for x in np.meshgrid(mantissas, mantissas, indexing="ij"))
    for exponent in (-136, -135, -134, -133, -127, -126):
        other = 67 if name == "multiply" else -67  # both factors are normal
        a = (first | np.uint16((exponent + 67 + 127) << 7)).astype(np.uint16)
        b = (second | np.uint16((-other + 127) << 7)).astype(np.uint16)
        x, y = (fp.decode(codes, fp.BF16, np.float64) for codes in (a, b))
        want = fp.encode(x * y if name == "multiply" else x / y, fp.BF16)
        for stop in (16384, 700):  # whole blocks, and a short one
            assert_bits_equal(getattr(fp, name)(a[:stop], b[:stop], fmt="bf16"), want[:stop])
