"""Calls fpsim's arithmetic on columns of codes and compares codes, and flags where asked, with the oracle's.

A failure says how many elements differ and prints a line to paste for the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from tests.core.test_philox import random_word
from tests.kit.samples import NARROW, P3109, STRANGE, p3109_names
from tests.oracles import arithmetic as ao
from tests.oracles import arithmetic_arrays, casts

Array = npt.NDArray[Any]
Formats = tuple[fp.Format, ...]
Words = dict[str, Any]

SMALL = [fp.E2M1, fp.E2M3, fp.E3M2]
EIGHT_BITS = [fmt for fmt in NARROW if fmt.bits == 8]
P3109_EIGHT_BITS = [fp.format(name) for name in p3109_names(within_float64=True) if name.startswith("p3109_k8p")]
SOME_P3109 = [fmt for fmt in P3109 if fmt.bits == 8]
# Layouts of 9 to 16 bits that no standard has, and P3109's.
ODD_WIDTHS = [
    fp.Format("nine", 4, 4),
    fp.Format("ten_unsigned", 5, 5, signed=False),
    fp.Format("eleven_without_inf", 3, 7, infinities=False, nan="top"),
    fp.Format("twelve_one_zero", 6, 5, infinities=True, nan="negative_zero"),
    fp.Format("thirteen_finite", 5, 7, infinities=False, nan="none"),
    fp.Format("fourteen_without_zero", 5, 9, signed=False, infinities=True, nan="top", subnormals=False),
    fp.Format("fifteen_inf_without_nan", 3, 11, infinities=True, nan="none"),
    fp.Format("sixteen_one_exponent_bit", 2, 13),
    fp.Format("sixteen_powers", 11, 0, infinities=True, nan="top"),
    *[fmt for fmt in P3109 if fmt.bits > 8],
    fp.format("p3109_k10p10ue"),
    fp.format("p3109_k16p15sf"),
]
UNUSUAL = STRANGE
WIDE = [fp.FP16, fp.BF16, fp.TF32, fp.FP32]


def subnormals_of(fmt: fp.Format) -> tuple[str, ...]:
    """Treatments of subnormals; flushing is not defined where every value is subnormal, the largest too."""
    return casts.SUBNORMALS if fmt.max >= fmt.smallest_normal else ("keep",)


# ---- comparing


def keywords(fmts: Formats, out: fp.Format | None, words: Words) -> Words:
    """What a call is given besides its operands."""
    named: Words = {"fmt": fmts[0] if len(set(fmts)) == 1 else fmts}
    return named | ({"out_fmt": out} if out is not None else {}) | words


def snippet(operation: str, row: Sequence[Any], named: Words) -> str:
    """A line to paste that repeats one element of a call."""
    operands = [f"np.array({value.item():#x}, '{value.dtype}')" for value in row]
    shown = [
        f"{key}={value!r}" if not isinstance(value, fp.Format) else f"{key}={value}" for key, value in named.items()
    ]
    return f"fp.{operation}({', '.join([*operands, *shown])})"


def assert_same(got: Array, want: Array, operation: str, columns: Sequence[Array], named: Words, results: str) -> None:
    """Fail unless codes or flags agree, with a line to paste."""
    assert got.dtype == want.dtype, f"{operation} gives {got.dtype}, not {want.dtype}: {named}"
    assert got.shape == want.shape, f"{operation} gives shape {got.shape}, not {want.shape}"
    differ = got != want
    if differ.any():
        i = int(np.argmax(differ))
        call = snippet(operation, [column[i] for column in columns], named)
        count = f"{int(differ.sum())} of {differ.size} {results} differ"
        raise AssertionError(f"{call}: got {int(got[i]):#x}, want {int(want[i]):#x} at index {i}; {count}.")


def options_of(words: Words) -> ao.Options:
    """The oracle's words of a call."""
    return ao.Options(**{key: value for key, value in words.items() if key in ao.Options._fields})


def check(
    operation: str,
    columns: Sequence[Array],
    fmts: Formats,
    out: fp.Format | None = None,
    *,
    flags: bool = False,
    roundings: Iterable[str] = casts.MODES,
    **words: Any,
) -> None:
    """Compare an operation in several deterministic modes, the exact results worked out once."""
    data = tuple(column.tobytes() for column in columns)
    got = exact_results(operation, data, fmts, out or fmts[0], words.get("input_subnormals", "keep"))
    check_outcomes(got, operation, columns, fmts, out, flags=flags, roundings=roundings, **words)


@lru_cache(maxsize=4)
def exact_results(
    operation: str, data: tuple[bytes, ...], fmts: Formats, out: fp.Format, input_subnormals: str
) -> arithmetic_arrays.Outcomes:
    """The oracle's outcomes; calls that differ in how these are rounded, or in what overflows give, share them."""
    columns = [np.frombuffer(codes, fmt.storage) for codes, fmt in zip(data, fmts, strict=True)]
    return arithmetic_arrays.outcomes(operation, columns, fmts, out, input_subnormals)


def check_outcomes(
    found: arithmetic_arrays.Outcomes,
    operation: str,
    columns: Sequence[Array],
    fmts: Formats,
    out: fp.Format | None = None,
    *,
    flags: bool = False,
    roundings: Iterable[str] = casts.MODES,
    **words: Any,
) -> None:
    """The same with the exact results at hand."""
    target = out or fmts[0]
    for rounding in roundings:
        named = keywords(fmts, out, {"rounding": rounding, **words})
        want, want_flags = arithmetic_arrays.deliver_all(found, target, options_of(named))
        compare_with(operation, columns, named, want, want_flags if flags else None)


def check_stochastic(
    operation: str,
    columns: Sequence[Array],
    fmts: Formats,
    out: fp.Format | None = None,
    *,
    seed: int,
    flags: bool = False,
    **words: Any,
) -> None:
    """Compare an operation in the stochastic mode: every element has the random word of its place."""
    named = keywords(fmts, out, {"rounding": "stochastic", "seed": seed, **words})
    options = options_of(named)
    rows = [
        ao.compute(operation, row, fmts, out or fmts[0], options._replace(word=word))
        for word, *row in zip(random_words(seed, columns[0].size), *[c.tolist() for c in columns], strict=True)
    ]
    want, want_flags = columns_of(rows, (out or fmts[0]).storage)
    compare_with(operation, columns, named, want, want_flags if flags else None)


def compare_with(
    operation: str, columns: Sequence[Array], named: Words, want: Array, want_flags: Array | None = None
) -> None:
    """Call fpsim and compare codes, and flags where they are given."""
    function = getattr(fp, operation)
    if want_flags is None:
        assert_same(function(*columns, **named), want, operation, columns, named, "codes")
        return
    got, got_flags = function(*columns, **named, flags=True)
    assert_same(got, want, operation, columns, named | {"flags": True}, "codes")
    assert_same(got_flags, want_flags, operation, columns, named | {"flags": True}, "flags")


def columns_of(rows: Iterable[tuple[int, int]], storage: np.dtype[Any]) -> tuple[Array, Array]:
    """Pairs of a result and its flags as two arrays."""
    results, flags = zip(*rows, strict=True)
    return np.array(results, storage), np.array(flags, np.uint8)


@lru_cache(maxsize=64)
def random_words(seed: int, count: int) -> list[int]:
    """The random words of the first elements."""
    return [random_word(i, seed) for i in range(count)]
