"""Faults of broken kernels after the sums: the order of scales, bias and cast, the cast, and finished results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64
from fpsim.products.backend import output_overflow
from fpsim.schedules.schedule import Epilogue
from fpsim.testing.products.changes import (
    GRAINS,
    THROUGH,
    KernelChange,
    can_overflow,
    can_underflow,
    flushed,
    has_signed_zeros,
    rounded,
    with_last,
)
from fpsim.testing.products.promise import Adding, KernelInputs, Promise, cast, finish, values_of

# ---- epilogue: functions of (promise, inputs, float32 sums), which return codes of the result


def of_epilogue(promise: Promise) -> Iterator[KernelChange]:
    """Yield faults in the order of scales, bias and cast, for a promise (the arithmetic of the correct kernel).

    The function of each maps (promise, inputs, float32 sums) to codes of the results.
    """
    if promise.along_k:
        return
    schedule = promise.adding.schedule if isinstance(promise.adding, Adding) else None
    promised = Epilogue() if schedule is None else schedule.epilogue
    orders = ("product", "a_first", "b_first") if promise.scaled else ("product",)
    for order in orders:
        for fused in (False, True) if promise.bias else (False,):
            if (order, fused) == (promised.scale_order, promised.fused_bias and promise.bias):
                continue
            words = f"multiplies by the scales as {order}" if promise.scaled else ""
            words += f"{' and ' if words else ''}{'fuses the bias' if fused else 'adds the bias apart'}" * promise.bias
            if words:
                yield KernelChange(words, lambda p, x, s, o=order, f=fused: cast(finish(x, s, o, f), FP32, p.out))
    if promise.bias and promise.scaled:
        yield KernelChange("adds the bias before the scales", lambda p, x, s: cast(
            finish(_without(x, "bias"), s + x.bias), FP32, p.out))  # fmt: skip
    if promise.bias:
        yield KernelChange("adds the bias after the cast", lambda p, x, s: cast(
            _after_cast(finish(_without(x, "bias"), s), p.out) + x.bias, FP32, p.out))  # fmt: skip
    if promise.scaled:
        yield KernelChange("applies the scales after the cast", lambda p, x, s: cast(
            finish(x, _after_cast(s, p.out)), FP32, p.out))  # fmt: skip
        if promise.bias:
            yield KernelChange("multiplies by scale_b after the bias", lambda p, x, s: cast(
                finish(_without(x, "bias", "scale_a"), finish(_without(x, "bias", "scale_b"), s) + x.bias),
                FP32, p.out))  # fmt: skip


def _after_cast(values: Array, out: Format) -> Array:
    """Return float32 values rounded to `out` by the promised cast, as float32."""
    return values_of(cast(values, FP32, out), out).astype(np.float32)


def _without(x: KernelInputs, *names: str) -> KernelInputs:
    """Return `x` without the arrays that `names` lists, such as "scale_a" and "bias", which are set to None."""
    absent: dict[str, Any] = dict.fromkeys(names)
    return replace(x, **absent)


# ---- results: functions of (float64 values (M, N) before the cast, format of the result), which return codes


def of_results(promise: Promise, own_format: Format) -> Iterator[KernelChange]:
    """Yield faults in the cast and in finished results, for a promise (the arithmetic of the correct kernel).

    The function of each maps (float64 values, result format) to codes. own_format: the format of the values before the
    cast.
    """
    out = promise.out
    if out != own_format:
        for word, clause in ROUNDED.items():
            yield KernelChange(clause, _cast(rounding=word))
    if can_overflow(promise):
        if out != own_format and output_overflow(out) == "nonfinite":
            yield KernelChange("lets results that are too large saturate", _cast(overflow="saturate"))
        elif out != own_format:
            yield KernelChange("lets results that are too large overflow", _cast(overflow="nonfinite"))
        yield KernelChange("limits results to finite values", _on_values(lambda v, f: np.clip(v, -f.max, f.max)))
        yield KernelChange("limits infinite results to the largest number", _on_values(
            lambda v, f: np.where(np.isinf(v), np.copysign(f.max, v), v)))  # fmt: skip
        yield KernelChange("gives NaN for Inf", _on_values(lambda v, _: np.where(np.isinf(v), np.nan, v)))
    if can_underflow(promise):
        yield KernelChange("turns subnormal results into zeros", _on_values(flushed))
        if out != own_format:
            yield KernelChange("turns results below the smallest normal number into zeros before rounding",
                         _cast(subnormals="flush"))  # fmt: skip
    for fmt in THROUGH:
        if fmt == out or fmt.holds(own_format):
            continue
        for rounding, said in (("nearest_even", "rounds"), ("toward_zero", "truncates")):
            yield KernelChange(f"{said} the result to {fmt} first", _through(fmt, rounding))
    yield KernelChange("gives 0 for NaN", _on_values(lambda v, _: np.where(np.isnan(v), 0.0, v)))
    yield KernelChange("gives Inf for NaN", _on_values(lambda v, _: np.where(np.isnan(v), np.inf, v)))
    if has_signed_zeros(promise) or can_underflow(promise):
        yield KernelChange("loses the signs of zeros", _on_values(lambda v, _: v + 0.0))
    yield KernelChange("gives -0 for zeros", _on_values(lambda v, _: np.where(v == 0, -0.0, v)))
    yield KernelChange("gives 0 for negative results", _on_values(lambda v, _: np.where(v < 0, 0.0, v)))
    yield KernelChange("negates results", _on_values(lambda v, _: -v))
    yield KernelChange("loses the signs of results", _on_values(lambda v, _: np.abs(v)))
    yield KernelChange("doubles results", _on_values(lambda v, _: v * 2))
    yield KernelChange("halves results", _on_values(lambda v, _: v / 2))
    yield KernelChange("exchanges rows and columns of the result", _on_values(lambda v, _: v.T.reshape(v.shape)))
    for axis, lines in ((0, "rows"), (1, "columns")):
        for grain in GRAINS[:-1]:
            words = f"leaves {lines} beyond a multiple of {grain} zero"
            yield KernelChange(words, _on_values(_zeroed(axis, lambda line, g: line < line.size // g * g, grain)))
            words = f"gives the last one before for {lines} beyond a multiple of {grain}"
            yield KernelChange(words, _on_values(_stale(axis, grain)))
        for by, said in ((1, "before"), (-1, "after")):
            rolled = with_last(lambda v, _, by, axis: np.roll(v, by, axis), by, axis)
            yield KernelChange(f"gives each of the {lines} the one {said}", _on_values(rolled))
        for grain in (2, 4, 8, 16, 32):
            for place, said in ((0, "first"), (grain - 1, "last")):
                words = f"leaves the {said} of every {grain} {lines} zero"
                keeps = with_last(lambda line, p, g: line % g != p, grain)
                yield KernelChange(words, _on_values(_zeroed(axis, keeps, place)))
        for grain in (16, 32, 64, 128):
            first = _zeroed(axis, lambda line, g: line < g, grain)
            yield KernelChange(f"gives {lines} from {grain} on as zero", _on_values(first))
        but_last = _zeroed(axis, lambda line, _: line < line.size - 1)
        yield KernelChange(f"leaves the last of the {lines} zero", _on_values(but_last))


ROUNDED = {
    "toward_zero": "truncates the result",
    "nearest_away": "takes ties of the result away from zero",
    "up": "rounds the result up",
    "down": "rounds the result down",
    "to_odd": "rounds the result to odd",
}
Results = Callable[[Array, Format], Array]


def _cast(**how: str) -> Results:
    """Return the function (float64 values, format) -> codes that casts with the keywords `how` of `fpsim.encode`.

    how: rounding, overflow or subnormals. A keyword that is left out has the value with which `fpsim.matmul` casts
    results, such as rounding="nearest_even".
    """
    return lambda values, out: cast(values, FP64, out, **how)


def _through(fmt: Format, rounding: str) -> Results:
    """Return the function (float64 values, format) -> codes that rounds to `fmt` by `rounding` before the cast."""
    return lambda values, out: cast(rounded(values, fmt, rounding), FP64, out)


def _on_values(change: Results) -> Results:
    """Return the function (float64 values, format) -> codes that casts as promised and then changes the results.

    change: function (cast values, format) -> changed values, which are then encoded.
    """

    def codes(values: Array, out: Format) -> Array:
        with np.errstate(all="ignore"):
            return cast(change(values_of(cast(values, FP64, out), out), out), FP64, out)

    return codes


def _stale(axis: int, grain: int) -> Results:
    """Return a function (values, format) -> values that overwrites the rows after the last whole block of `grain` rows.

    Each of these rows becomes a copy of the last row of that block. axis: 0 for rows; 1 for columns instead.
    """

    def changed(values: Array, _: Format) -> Array:
        whole = values.shape[axis] // grain * grain
        lines = np.arange(values.shape[axis])
        return values.take(np.minimum(lines, whole - 1) if whole else lines, axis)

    return changed


def _zeroed(axis: int, keeps: Callable[[Array, int], Array], number: int = 0) -> Results:
    """Return a function (values, format) -> values that sets some rows (axis 0) or columns (axis 1) to zero.

    keeps: function (indices of all rows or columns, number) -> mask of those that are not changed. number: the second
    argument of `keeps`, such as a size of blocks.
    """

    def changed(values: Array, _: Format) -> Array:
        kept = keeps(np.arange(values.shape[axis]), number)
        return np.where(kept[:, None] if axis == 0 else kept[None], values, 0.0)

    return changed
