"""Faults that broken kernels have in operands, scales and bias, as functions that make the same changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.named import BF16, FP16, FP32
from fpsim.probe.operands import ProbedOperand
from fpsim.testing.products.changes import THROUGH, KernelChange, flushed, has_signed_zeros, rounded, with_last
from fpsim.testing.products.promise import BLOCK, KernelInputs, Promise

# ---- operands: functions of float64 values and their operand's format, which return the changed values


def of_operands(promise: Promise) -> Iterator[tuple[str, KernelChange]]:
    """Yield the faults that broken kernels have in operands, as (operands affected, fault).

    Affected are "a", "b" or "ab". The function of a fault maps (float64 values, `ProbedOperand`) to changed values.
    promise: the arithmetic of the correct kernel; faults that cannot change its results are left out.
    """
    fmts = (promise.a.fmt, promise.b.fmt)
    for side, which in (("ab", "both operands"), ("a", "a"), ("b", "b")):
        mine = [fmt for name, fmt in zip("ab", fmts, strict=True) if name in side]
        yield side, KernelChange(f"takes subnormals of {which} as zeros", lambda v, operand: flushed(v, operand.fmt))
        yield side, KernelChange(f"reads subnormals of {which} without their leading bit", _without_leading_bit)
        if has_signed_zeros(promise):
            yield side, KernelChange(f"loses the signs of zeros of {which}", lambda v, _: v + 0.0)
        for fmt in THROUGH:
            if all(fmt.holds(value) for value in mine):
                continue
            for rounding, said in (("nearest_even", "rounds"), ("toward_zero", "truncates")):
                words = f"{said} {which} to {fmt} first"
                yield side, KernelChange(words, _held(with_last(rounded, fmt, rounding)))
        if any(fmt.has_nan for fmt in mine):
            yield side, KernelChange(f"takes NaN in {which} as 0", _held(lambda v: np.where(np.isnan(v), 0.0, v)))
        if any(fmt.has_infinity for fmt in mine):
            limited = KernelChange(f"limits {which} to finite values", lambda v, x: np.clip(v, -x.fmt.max, x.fmt.max))
            yield side, limited
        yield side, KernelChange(f"loses the signs of {which}", _held(np.abs))
        if side != "ab":
            yield side, KernelChange(f"negates {which}", lambda v, _: -v)
        yield side, KernelChange(f"doubles {which}", _held(lambda v: v * 2))
        yield side, KernelChange(f"halves {which}", _held(lambda v: v / 2))
        if side != "ab":
            yield side, KernelChange(f"reads {which} transposed", lambda v, _: v.T.reshape(v.shape))
            yield side, KernelChange(f"reads {which} in memory as if it were stored the other way round",
                               lambda v, _: v.ravel().reshape(v.shape[::-1]).T.reshape(v.shape))  # fmt: skip


def _without_leading_bit(values: Array, operand: ProbedOperand) -> Array:
    """Return values of an operand, with each subnormal value misread as Triton's interpreter misreads it.

    A subnormal value of m * 2^e, with 1 <= m < 2, becomes (m - 1) * the smallest normal value, with the sign kept; all
    other values are unchanged. values: float64 values (not codes) of the operand's format. operand: its format decides
    which values are subnormal.
    """
    size = np.abs(values)
    fraction = (2 * np.frexp(size)[0] - 1) * operand.fmt.smallest_normal
    return np.where((size < operand.fmt.smallest_normal) & (size > 0), np.copysign(fraction, values), values)


def _held(change: Callable[[Array], Array]) -> Callable[[Array, ProbedOperand], Array]:
    """Return a function (float64 values, operand) -> values that applies `change` and rounds to the operand's format.

    Infinities and NaN that `change` returns are not rounded.
    """

    def changed(values: Array, operand: ProbedOperand) -> Array:
        with np.errstate(all="ignore"):
            changed_values = change(values)
        special = ~np.isfinite(changed_values)
        return np.where(special, changed_values, operand.drawn(np.where(special, 0.0, changed_values)))

    return changed


# ---- scales and bias: functions from KernelInputs to KernelInputs


def of_scales(promise: Promise) -> Iterator[KernelChange]:
    """Yield the faults that broken kernels have in scales and bias.

    The function of each maps KernelInputs to KernelInputs with changed scales or bias. The only faults of block scales,
    which are codes, are that those of other blocks are taken, or those of a and b exchanged. promise: the arithmetic of
    the correct kernel.
    """
    for name in ("scale_a", "scale_b"):
        word = getattr(promise, name)
        if word in ("", "block"):
            continue
        yield KernelChange(f"leaves {name} out", _scale(name, lambda s: np.ones_like(s)))
        yield KernelChange(f"divides by {name}", _scale(name, lambda s: np.float32(1) / s))
        yield KernelChange(f"applies {name} twice", _scale(name, lambda s: s * s))
        yield KernelChange(f"reads {name} transposed", _scale(name, lambda s: s.T.ravel().reshape(s.shape)))
        yield KernelChange(f"reads {name} in memory as if it were stored the other way round",
                     _scale(name, lambda s: s.ravel().reshape(s.shape[::-1]).T.reshape(s.shape)))  # fmt: skip
        for fmt in (BF16, FP16):
            yield KernelChange(f"rounds {name} to {fmt}", _scale(name, with_last(rounded, fmt)))
        power = _scale(name, lambda s: np.exp2(np.floor(np.log2(s))))
        yield KernelChange(f"rounds {name} down to a power of two", power)
        yield KernelChange(f"takes the first of {name} for all", _scale(name, lambda s: np.full_like(s, s.flat[0])))
        for axis, along in ((0, "row"), (1, "column")):
            for by, said in ((1, "before"), (-1, "after")):
                yield KernelChange(f"takes {name} of the {along} {said}", _scale(name, with_last(np.roll, by, axis)))
                words = f"takes {name} of the {along} {said}, but at the end its own"
                yield KernelChange(words, _scale(name, with_last(_moved, by, axis)))
            yield KernelChange(f"takes the first {along} of {name} for all", _scale(name, with_last(_first, axis)))
        yield KernelChange(f"takes {name} of its last tile from the tile before", _scale(name, _last_stale))
    if promise.along_k:
        yield from _of_blocks(promise)
    if promise.scale_a and promise.scale_b:
        yield KernelChange("exchanges the scales of a and b", _exchange)
    if promise.bias:
        yield KernelChange("leaves the bias out", _scale("bias", np.zeros_like))
        for fmt in dict.fromkeys((promise.out, BF16, FP16)):
            if not fmt.holds(FP32):
                yield KernelChange(f"rounds the bias to {fmt}", _scale("bias", with_last(rounded, fmt)))
        yield KernelChange("takes the bias of the column before", _scale("bias", lambda v: np.roll(v, 1)))
        yield KernelChange("takes the bias of the column after", _scale("bias", lambda v: np.roll(v, -1)))
        yield KernelChange("subtracts the bias", _scale("bias", lambda v: -v))
        yield KernelChange("adds the bias twice", _scale("bias", lambda v: 2 * v))


def _of_blocks(promise: Promise) -> Iterator[KernelChange]:
    """Yield the faults of taking the scales of other blocks of K, of one operand or of both, or none of the last block.

    promise: the arithmetic of the correct kernel, whose scales vary along K.
    """
    varying = [name for name in ("scale_a", "scale_b") if getattr(promise, name) in ("1x128", "128x128", "block")]
    for names in [tuple(varying)] * (len(varying) > 1) + [(name,) for name in varying]:
        of = " and ".join(names)
        for count in (2, 4, 8):
            words = f"takes {of} of the first of every {count} blocks of K"
            yield KernelChange(words, _blocks(names, with_last(_first_of_every, count)))
        for slices in (2, 3, 4):
            words = f"begins again with {of} of the first block in each of {slices} slices of K"
            yield KernelChange(words, _blocks(names, with_last(_again, slices)))
        yield KernelChange(
            f"takes {of} of the blocks of K in reverse order", _blocks(names, lambda places: places[::-1])
        )
        if len(names) > 1:  # of one operand, these are rows or columns
            yield KernelChange(f"takes {of} of the first block of K for all", _blocks(names, np.zeros_like))
            for by, said in ((1, "before"), (-1, "after")):
                words = f"takes {of} of the block of K {said}"
                yield KernelChange(words, _blocks(names, with_last(np.roll, by)))
                yield KernelChange(f"{words}, but at the end its own", _blocks(names, with_last(_moved, by, 0)))
        if "block" not in (promise.scale_a, promise.scale_b):
            for ends, grain in (
                ("", 1),
                (", where K ends within it", BLOCK),
                (", where K ends in its middle", BLOCK // 2),
            ):
                yield KernelChange(f"leaves out {of} of the last block of K{ends}", _without_last(names, grain))


def _blocks(names: tuple[str, ...], change: Callable[[Array], Array]) -> Callable[[KernelInputs], KernelInputs]:
    """Return a function of inputs that returns them with the scales `names` of other blocks of K.

    change: function of the indices 0, 1, ... of the blocks that returns the index of the block whose scale is taken.
    """

    def changed(x: KernelInputs) -> KernelInputs:
        replaced: dict[str, Any] = {}
        for name in names:
            scales, axis = getattr(x, name), int(name == "scale_a")
            replaced[name] = np.ascontiguousarray(scales.take(change(np.arange(scales.shape[axis])), axis))
        return replace(x, **replaced)

    return changed


def _first_of_every(places: Array, count: int) -> Array:
    """Return, for the indices 0, 1, ... of blocks, that of the first in its group of `count` blocks."""
    return places // count * count


def _again(places: Array, slices: int) -> Array:
    """Return the indices 0, 1, ... of blocks, counted from 0 again in each of so many slices, the last one shorter."""
    return places % -(-places.size // slices)


def _without_last(names: tuple[str, ...], grain: int) -> Callable[[KernelInputs], KernelInputs]:
    """Return a function of inputs that returns them with 1 for the scales `names` of the last block of K.

    grain: 1, or BLOCK if only where K is no multiple of it, or half of BLOCK if only where K is an odd multiple of it.
    """

    def changed(x: KernelInputs) -> KernelInputs:
        over = x.shape[2] % BLOCK
        if grain > 1 and (over != grain if grain < BLOCK else not over):
            return x
        replaced: dict[str, Any] = {name: getattr(x, name).copy() for name in names}
        for name, scales in replaced.items():
            scales[(slice(None), -1) if name == "scale_a" else -1] = 1
        return replace(x, **replaced)

    return changed


def _scale(name: str, change: Callable[[Array], Array]) -> Callable[[KernelInputs], KernelInputs]:
    """Return a function of inputs that returns them with `change` applied to one array, as float32.

    name: the array, "scale_a", "scale_b" or "bias". change: function of the array.
    """

    def changed(x: KernelInputs) -> KernelInputs:
        with np.errstate(all="ignore"):
            replaced: dict[str, Any] = {name: np.ascontiguousarray(change(getattr(x, name)), np.float32)}
            return replace(x, **replaced)

    return changed


def _moved(s: Array, by: int, axis: int) -> Array:
    """Return the scales s shifted by `by` indices along an axis; the first or last one fills the indices left free."""
    return s.take(np.clip(np.arange(s.shape[axis]) - by, 0, s.shape[axis] - 1), axis)


def _first(s: Array, axis: int) -> Array:
    """Return a copy of the scales s in which every row (axis 0) or column (axis 1) equals the first one."""
    return np.repeat(s.take([0], axis), s.shape[axis], axis)


def _last_stale(s: Array) -> Array:
    """Return the scales s with the last row replaced by the row before it; if there is one row, the last column."""
    flat = s.copy()
    if s.shape[0] > 1:
        flat[-1] = flat[-2]
    elif s.shape[1] > 1:
        flat[:, -1] = flat[:, -2]
    return flat


def _exchange(x: KernelInputs) -> KernelInputs:
    """Return x with the scales of a and b exchanged and transposed.

    It is returned unchanged if the scales of b do not have the transposed shape of those of a.
    """
    first, second = x.scale_a, x.scale_b
    assert first is not None
    assert second is not None
    if first.T.shape == second.shape:
        return replace(x, scale_a=np.ascontiguousarray(second.T), scale_b=np.ascontiguousarray(first.T))
    return x
