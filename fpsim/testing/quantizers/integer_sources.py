"""Check of casts from integers to a float format: the exact integer is rounded once, also above 2**53."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arrays import Array, distinct
from fpsim.formats.cast_options import CastOptions
from fpsim.formats.float_format import Format
from fpsim.formats.rounding import Rounding
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.boundary_points import points
from fpsim.testing.quantizers.black_box import CalledQuantizer
from fpsim.testing.quantizers.inputs import rounded_words
from fpsim.testing.quantizers.report import (
    Broken,
    Findings,
    QuantizerReport,
    code_of,
    explained,
    keywords_of,
    shown_result,
)
from fpsim.testing.quantizers.rounder import SENTENCES, Words

LARGE = (1 << 20) + 1033  # elements of the large array
DRAWN = 4096  # number of random integers
KEPT = 52  # leading bits of an integer that are kept in float64; the last is or-ed with all dropped bits


def check_integers(fn: Callable[..., Any], options: CastOptions, dtype: np.dtype[Any]) -> QuantizerReport:
    """Return the report of `check_quantizer` for inputs of an integer dtype; options: the promised cast."""
    fmt = options.fmt
    box = CalledQuantizer(fn, fmt)
    x = integers_for(fmt, dtype)
    findings = Findings()
    findings.record("leaves its input alone")
    fields: dict[str, Any] = {}
    try:
        box.settle(x)
        got = box.call(x.copy()).words
        want = rounded_words(odd_float64(x), options)
        differ = got != want
        fields = {"differ": int(differ.sum()), "of": x.size}
        if differ.any():
            order = np.argsort(np.abs(x.astype(np.float64)) + np.where(differ, 0, np.inf))
            findings.record("rounding", _broken("rounding", box, x, got, want, int(order[0])))
            fields |= _cause(x, got, options)
        else:
            findings.record("rounding")
            places = np.random.default_rng(1).integers(0, x.size, LARGE)
            large = box.call(x[places], new_values=False).words
            wrong = np.flatnonzero(large != want[places])
            broken = _broken("size", box, x[places], large, want[places], int(wrong[0])) if wrong.size else None
            findings.record("size", broken)
    except FunctionMisbehaved as refusal:
        findings.refuse(refusal)
    return findings.report(box.name, fmt, {**keywords_of(options), "source": dtype.name}, box.covered, **fields)


@lru_cache(maxsize=16)
def integers_for(fmt: Format, dtype: np.dtype[Any]) -> Array:
    """Return the integers of `dtype` at which a cast to `fmt` is checked, as a sorted, cached, read-only array (n,).

    They are the format's values and ties, sums of two powers of two and random integers, each with both signs and with
    its neighbours 1 below and above, and the ends of the range of `dtype`.
    """
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    near = points(fmt, "float64")
    with np.errstate(invalid="ignore"):
        near = near[np.isfinite(near) & (np.abs(near) < 2.0**64)]
    powers = [1 << bit for bit in range(64)]
    exact = {int(value) for value in near} | {a + b for a in powers for b in powers}
    exact |= {int(word) >> int(shift) for word, shift in zip(
        rng.integers(0, 1 << 64, DRAWN, dtype=np.uint64), rng.integers(0, 64, DRAWN), strict=True)}  # fmt: skip
    exact = {value for value in exact if abs(value) <= max(info.max, -info.min) + 1}
    around = {sign * value + step for value in exact for step in (-1, 0, 1) for sign in (1, -1)} | {info.min, info.max}
    integers = distinct(np.array([value for value in around if info.min <= value <= info.max], dtype))
    integers.flags.writeable = False
    return integers


def odd_float64(x: Array) -> Array:
    """Return integers rounded to odd in float64; rounding these to a format equals rounding the integers directly."""
    negative = x < 0
    magnitude = x.astype(np.uint64)
    magnitude = np.where(negative, ~magnitude + np.uint64(1), magnitude)
    bits = np.frexp(magnitude.astype(np.float64))[1]
    shift = np.maximum(bits - KEPT, 0).astype(np.uint64)
    kept = magnitude >> shift
    lost = (kept << shift) != magnitude
    values = np.ldexp((kept | lost.astype(np.uint64)).astype(np.float64), shift.astype(np.int32))
    return np.asarray(np.where(negative, -values, values))


def _broken(name: str, box: CalledQuantizer, x: Array, got: Words, want: Words, at: int) -> Broken:
    """Return the broken property `name`, as shown by the result of index `at`.

    box: the quantizer. x: its inputs. got, want: its results and the right ones, as bit patterns of float64.
    """
    differ = got != want
    return Broken(
        name, f"first at index {at:,}" if name == "size" else "", input=f"x = {int(x[at])} ({x.dtype.name})",
        got=shown_result(got[at], box.fmt), want=shown_result(want[at], box.fmt), got_code=code_of(got[at], box.fmt),
        want_code=code_of(want[at], box.fmt), paste=f"{box.name}(np.array([{int(x[at])}], np.{x.dtype.name}))",
        count=int(differ.sum()), of=x.size,
    )  # fmt: skip


def _variants(x: Array, options: CastOptions) -> Iterator[tuple[str, Words]]:
    """Yield known faults as (clause such as "drops the sign", results for the integers x with that fault).

    The results are bit patterns of float64. options: the promised cast.
    """
    with np.errstate(all="ignore"):
        for name, dtype in (("FP32", np.float32), ("FP64", np.float64), ("FP16", np.float16)):
            yield f"rounds to {name} first", rounded_words(x.astype(dtype), options)
    exact = odd_float64(x)
    for mode in Rounding:
        if mode not in (options.rounding, Rounding.STOCHASTIC):
            yield SENTENCES[mode.name.lower()], rounded_words(exact, options._replace(rounding=mode))
    for bits in (16, 32):
        if 8 * x.itemsize > bits:
            cut = x.astype(f"{x.dtype.kind}{bits // 8}").astype(np.int64)
            yield f"keeps {bits} bits of the integer", rounded_words(odd_float64(cut), options)


def _cause(x: Array, got: Words, options: CastOptions) -> dict[str, Any]:
    """Return the `QuantizerReport` fields on the first known fault that explains all results, or on having found none.

    x: the inputs, integers. got: the results, as bit patterns of float64. options: the promised cast.
    """
    tried = 0
    for tried, (clause, results) in enumerate(_variants(x, options), 1):
        if (results == got).all():
            return {**explained(clause), "excluded": tried - 1}
    differ = int((rounded_words(odd_float64(x), options) != got).sum())
    return {"diagnosis": f"none of the {tried} causes that were tried explains them", "unexplained": differ}
