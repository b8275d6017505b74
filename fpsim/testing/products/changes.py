"""The changes that broken kernels make, one each: to operands, terms, scales and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32, FP64, TF32
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.probe.black_box import ProbedOperand
from fpsim.products.backend import output_overflow
from fpsim.schedules.schedule import Epilogue
from fpsim.testing.products.promise import Adding, KernelInputs, Promise, cast, finish, values_of

GRAINS = (2, 4, 8, 16, 32, 64, 128, 256)
MANY = 1 << 12  # terms, more than a check has
ALIGNING = (Rule.FUSED, Rule.SCALED, Rule.GROUPED, Rule.TWO_PASSES)  # docs/matrix-units.md
THROUGH = (BF16, FP16, TF32, E5M2, E4M3)


class KernelChange(NamedTuple):
    """A change, in words that follow "it", and what does it."""

    words: str
    apply: Callable[..., Any]


def _of(function: Callable[..., Any], *last: Any) -> Callable[..., Any]:
    """A function with its last arguments given."""
    return lambda *arguments: function(*arguments, *last)


# ---- operands: float64 values and their operand -> values


def rounded(values: Array, fmt: Format, rounding: str = "nearest_even") -> Array:
    """float64 values rounded to a format of up to 32 bits."""
    with np.errstate(all="ignore"):
        return decode(encode(np.asarray(values, np.float64), fmt, rounding=rounding), fmt, np.float64)


def _flushed(values: Array, operand: ProbedOperand) -> Array:
    return np.where(np.abs(values) < operand.fmt.smallest_normal, np.copysign(0.0, values), values)


def _without_leading_bit(values: Array, operand: ProbedOperand) -> Array:
    """Subnormals that are normalised and then keep their exponent field of 0, as Triton's interpreter does."""
    size = np.abs(values)
    fraction = (2 * np.frexp(size)[0] - 1) * operand.fmt.smallest_normal
    return np.where((size < operand.fmt.smallest_normal) & (size > 0), np.copysign(fraction, values), values)


def _held(change: Callable[[Array], Array]) -> Callable[[Array, ProbedOperand], Array]:
    """A change after which values are brought back into the operand's format."""

    def changed(values: Array, operand: ProbedOperand) -> Array:
        with np.errstate(all="ignore"):
            found = change(values)
        special = ~np.isfinite(found)
        return np.where(special, found, operand.drawn(np.where(special, 0.0, found)))

    return changed


def of_operands(promise: Promise) -> Iterator[tuple[str, KernelChange]]:
    """Changes of a, of b ("a", "b") and of both ("ab")."""
    fmts = (promise.a.fmt, promise.b.fmt)
    for side, which in (("ab", "both operands"), ("a", "a"), ("b", "b")):
        mine = [fmt for name, fmt in zip("ab", fmts, strict=True) if name in side]
        yield side, KernelChange(f"takes subnormals of {which} as zeros", _flushed)
        yield side, KernelChange(f"reads subnormals of {which} without their leading bit", _without_leading_bit)
        if has_signed_zeros(promise):
            yield side, KernelChange(f"loses the signs of zeros of {which}", lambda v, _: v + 0.0)
        for fmt in THROUGH:
            if all(fmt.holds(each) for each in mine):
                continue
            for rounding, said in (("nearest_even", "rounds"), ("toward_zero", "truncates")):
                words = f"{said} {which} to {fmt} first"
                yield side, KernelChange(words, _held(_of(rounded, fmt, rounding)))
        if any(fmt.has_nan for fmt in mine):
            yield side, KernelChange(f"takes NaN in {which} as 0", _held(lambda v: np.where(np.isnan(v), 0.0, v)))
        if any(fmt.has_infinity for fmt in mine):
            yield side, KernelChange(f"limits {which} to finite values", _limited)
        yield side, KernelChange(f"loses the signs of {which}", _held(np.abs))
        if side != "ab":
            yield side, KernelChange(f"negates {which}", lambda v, _: -v)
        yield side, KernelChange(f"doubles {which}", _held(lambda v: v * 2))
        yield side, KernelChange(f"halves {which}", _held(lambda v: v / 2))
        if side != "ab":
            yield side, KernelChange(f"reads {which} transposed", lambda v, _: v.T.reshape(v.shape))
            yield side, KernelChange(f"reads {which} in memory as if it were stored the other way round",
                               lambda v, _: v.ravel().reshape(v.shape[::-1]).T.reshape(v.shape))  # fmt: skip


def has_signed_zeros(promise: Promise) -> bool:
    """Return whether zeros of the promised sums can have either sign: units that align their terms give +0."""
    return promise.unit is None or promise.unit.rule not in ALIGNING


def can_overflow(promise: Promise) -> bool:
    """Return whether results can be too large for their format."""
    a, b = promise.a.fmt, promise.b.fmt
    if a.has_infinity or b.has_infinity or promise.scaled or promise.bias:
        return True
    return float(a.max) * float(b.max) * MANY >= promise.out.max


def can_underflow(promise: Promise) -> bool:
    """Return whether results can be subnormal."""
    smallest = [fmt.smallest_subnormal or fmt.smallest_normal for fmt in (promise.a.fmt, promise.b.fmt)]
    return promise.scaled or smallest[0] * smallest[1] < promise.out.smallest_normal


def _limited(values: Array, operand: ProbedOperand) -> Array:
    return np.clip(values, -operand.fmt.max, operand.fmt.max)


# ---- terms: K -> the terms of a and of b, in order; -1 for a term that counts as zero


Terms = tuple[Array, Array]


def of_terms() -> Iterator[KernelChange]:
    """Changes of which terms are added, and in which order."""
    yield KernelChange("adds K from the last term to the first", _same(lambda t: t[::-1]))
    for grain in GRAINS:
        yield KernelChange(f"drops the terms beyond a multiple of {grain}", _same(_up_to(grain)))
    for count in (1, 16, 32, 64, 128):
        said = "term" if count == 1 else f"{count} terms"
        yield KernelChange(f"drops the first {said}", _same(_of(lambda t, c: np.where(t < c, -1, t), count)))
        yield KernelChange(f"drops the last {said}", _same(_of(lambda t, c: np.where(t >= t.size - c, -1, t), count)))
        yield KernelChange(f"adds the last {said} twice", _same(_of(lambda t, c: np.concatenate([t, t[-c:]]), count)))
        yield KernelChange(f"adds the first {said} twice", _same(_of(lambda t, c: np.concatenate([t[:c], t]), count)))
    for grain in GRAINS[2:]:
        yield KernelChange(
            f"reads the last {grain} terms again where K is no multiple of {grain}", _same(_again(grain))
        )
        repeated = _of(lambda t, g: np.concatenate([t, np.repeat(t[-1:], -t.size % g)]), grain)
        yield KernelChange(f"repeats the last term up to a multiple of {grain}", _same(repeated))
        yield KernelChange(f"adds blocks of {grain} terms from the last to the first", _same(_blocks_reversed(grain)))
        yield KernelChange(
            f"adds each block of {grain} terms from its last to its first", _same(_within_reversed(grain))
        )
        yield KernelChange(f"starts {grain} terms late and adds the first {grain} last", _same(_of(np.roll, -grain)))
        yield KernelChange(
            f"drops every other block of {grain} terms", _same(_of(lambda t, g: np.where(t // g % 2, -1, t), grain))
        )
    for lanes in (2, 4, 8, 16, 32, 64):
        yield KernelChange(f"adds every {lanes}th term first", _same(_strided(lanes)))
        yield KernelChange(f"adds {lanes} runs of K side by side", _same(_across(lanes)))
    for step in (1, 2, 4, 8, 16):
        yield KernelChange(f"exchanges neighbouring runs of {step} of K", _same(_exchanged(step)))
        yield KernelChange(f"pairs a's terms with b's after exchanging runs of {step}", _unlike(_exchanged(step)))
    for grain in (8, 16, 32):
        yield KernelChange(
            f"takes, of every {grain} terms, those with k mod 4 in {{0, 1}} first", _same(_pairs_first(grain))
        )
        yield KernelChange(f"takes, of every {grain} terms, the even ones first", _same(_even_first(grain)))
    for by in (1, -1):
        yield KernelChange(f"pairs a[k] with b[k {'+' if by > 0 else '-'} 1]", _unlike(_shifted(by)))


def _same(order: Callable[[Array], Array]) -> Callable[[int], Terms]:
    def terms(k: int) -> Terms:
        found = np.asarray(order(np.arange(k)))
        return found, found

    return terms


def _unlike(order: Callable[[Array], Array]) -> Callable[[int], Terms]:
    return lambda k: (np.arange(k), np.asarray(order(np.arange(k))))


def _up_to(grain: int) -> Callable[[Array], Array]:
    return lambda t: np.where(t < t.size // grain * grain, t, -1)


def _again(grain: int) -> Callable[[Array], Array]:
    def order(t: Array) -> Array:
        whole = t.size // grain * grain
        return t if whole in (0, t.size) else np.concatenate([t[:whole], t[-grain:]])

    return order


def _blocks_reversed(grain: int) -> Callable[[Array], Array]:
    return lambda t: t[np.lexsort((t, -(t // grain)))]


def _within_reversed(grain: int) -> Callable[[Array], Array]:
    return lambda t: t[np.lexsort((-t, t // grain))]


def _strided(lanes: int) -> Callable[[Array], Array]:
    return lambda t: t[np.lexsort((t, t % lanes))]


def _across(lanes: int) -> Callable[[Array], Array]:
    return lambda t: t[np.lexsort((t, t % max(-(-t.size // lanes), 1)))]


def _exchanged(step: int) -> Callable[[Array], Array]:
    def order(t: Array) -> Array:
        found = t ^ step
        return np.where(found < t.size, found, t)

    return order


def _pairs_first(grain: int) -> Callable[[Array], Array]:
    return lambda t: t[np.lexsort((t, t % 4 > 1, t // grain))]


def _even_first(grain: int) -> Callable[[Array], Array]:
    return lambda t: t[np.lexsort((t, t % 2, t // grain))]


def _shifted(by: int) -> Callable[[Array], Array]:
    return lambda t: np.where((t + by >= 0) & (t + by < t.size), t + by, -1)


# ---- scales and bias: KernelInputs -> KernelInputs


def of_scales(promise: Promise) -> Iterator[KernelChange]:
    """Changes of scales and bias before they are used."""
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
            yield KernelChange(f"rounds {name} to {fmt}", _scale(name, _of(rounded, fmt)))
        yield KernelChange(f"rounds {name} down to a power of two", _scale(name, _power))
        yield KernelChange(f"takes the first of {name} for all", _scale(name, lambda s: np.full_like(s, s.flat[0])))
        for axis, along in ((0, "row"), (1, "column")):
            for by, said in ((1, "before"), (-1, "after")):
                yield KernelChange(f"takes {name} of the {along} {said}", _scale(name, _of(np.roll, by, axis)))
                words = f"takes {name} of the {along} {said}, but at the end its own"
                yield KernelChange(words, _scale(name, _of(_moved, by, axis)))
            yield KernelChange(f"takes the first {along} of {name} for all", _scale(name, _of(_first, axis)))
        yield KernelChange(f"takes {name} of its last tile from the tile before", _scale(name, _last_stale))
    if promise.scale_a and promise.scale_b:
        yield KernelChange("exchanges the scales of a and b", _exchange)
    if promise.bias:
        yield KernelChange("leaves the bias out", _bias(np.zeros_like))
        for fmt in dict.fromkeys((promise.out, BF16, FP16)):
            if not fmt.holds(FP32):
                yield KernelChange(f"rounds the bias to {fmt}", _bias(_of(rounded, fmt)))
        yield KernelChange("takes the bias of the column before", _bias(lambda v: np.roll(v, 1)))
        yield KernelChange("takes the bias of the column after", _bias(lambda v: np.roll(v, -1)))
        yield KernelChange("subtracts the bias", _bias(lambda v: -v))
        yield KernelChange("adds the bias twice", _bias(lambda v: 2 * v))


def _scale(name: str, change: Callable[[Array], Array]) -> Callable[[KernelInputs], KernelInputs]:
    def changed(x: KernelInputs) -> KernelInputs:
        with np.errstate(all="ignore"):
            found: dict[str, Any] = {name: np.ascontiguousarray(change(getattr(x, name)), np.float32)}
            return replace(x, **found)

    return changed


def _bias(change: Callable[[Array], Array]) -> Callable[[KernelInputs], KernelInputs]:
    return _scale("bias", change)


def _power(s: Array) -> Array:
    return np.exp2(np.floor(np.log2(s)))


def _moved(s: Array, by: int, axis: int) -> Array:
    return s.take(np.clip(np.arange(s.shape[axis]) - by, 0, s.shape[axis] - 1), axis)


def _first(s: Array, axis: int) -> Array:
    return np.repeat(s.take([0], axis), s.shape[axis], axis)


def _last_stale(s: Array) -> Array:
    flat = s.copy()
    if s.shape[0] > 1:
        flat[-1] = flat[-2]
    elif s.shape[1] > 1:
        flat[:, -1] = flat[:, -2]
    return flat


def _exchange(x: KernelInputs) -> KernelInputs:
    first, second = x.scale_a, x.scale_b
    assert first is not None
    assert second is not None
    if first.T.shape == second.shape:
        return replace(x, scale_a=np.ascontiguousarray(second.T), scale_b=np.ascontiguousarray(first.T))
    return x


# ---- the end: (promise, inputs, adding) -> float32 before the cast, or codes of the result


def of_epilogue(promise: Promise) -> Iterator[KernelChange]:
    """Changes of the order of scales, bias and cast; each gives codes."""
    if promise.along_k:
        return
    orders = ("product", "a_first", "b_first") if promise.scaled else ("product",)
    for order in orders:
        for fused in (False, True) if promise.bias else (False,):
            if (order, fused) == _promised(promise):
                continue
            words = f"multiplies by the scales as {order}" if promise.scaled else ""
            words += f"{' and ' if words else ''}{'fuses the bias' if fused else 'adds the bias apart'}" * promise.bias
            if words:
                yield KernelChange(words, lambda p, x, s, o=order, f=fused: cast(finish(p, x, s, o, f), FP32, p.out))
    if promise.bias and promise.scaled:
        yield KernelChange("adds the bias before the scales", _bias_first)
    if promise.bias:
        yield KernelChange("adds the bias after the cast", _bias_last)
    if promise.scaled:
        yield KernelChange("applies the scales after the cast", _scales_last)
        if promise.bias:
            yield KernelChange("multiplies by scale_b after the bias", _one_scale_last)


def _promised(promise: Promise) -> tuple[str, bool]:
    """The promised order of scales, and whether the bias is fused."""
    schedule = promise.adding.schedule if isinstance(promise.adding, Adding) else None
    epilogue = Epilogue() if schedule is None else schedule.epilogue
    return epilogue.scale_order, epilogue.fused_bias and promise.bias


def _bias_first(p: Promise, x: KernelInputs, sums: Array) -> Array:
    assert x.bias is not None
    return cast(finish(p, _without(x, "bias"), sums + x.bias), FP32, p.out)


def _one_scale_last(p: Promise, x: KernelInputs, sums: Array) -> Array:
    assert x.bias is not None
    first = finish(p, _without(x, "bias", "scale_b"), sums) + x.bias
    return cast(finish(p, _without(x, "bias", "scale_a"), first), FP32, p.out)


def _bias_last(p: Promise, x: KernelInputs, sums: Array) -> Array:
    assert x.bias is not None
    codes = cast(finish(p, _without(x, "bias"), sums), FP32, p.out)
    return cast((values_of(codes, p.out).astype(np.float32) + x.bias), FP32, p.out)


def _scales_last(p: Promise, x: KernelInputs, sums: Array) -> Array:
    codes = cast(sums, FP32, p.out)
    return cast(finish(p, x, values_of(codes, p.out).astype(np.float32)), FP32, p.out)


def _without(x: KernelInputs, *names: str) -> KernelInputs:
    absent: dict[str, Any] = dict.fromkeys(names)
    return replace(x, **absent)


# ---- results: (values float64 (M, N) before the cast, format of the result) -> codes


def of_results(promise: Promise, own_format: Format) -> Iterator[KernelChange]:
    """Changes of the cast, and of finished results; own_format: that of what is cast."""
    out = promise.out
    if out != own_format:
        for word in ("toward_zero", "nearest_away", "up", "down", "to_odd"):
            yield KernelChange(ROUNDED[word], _cast(rounding=word))
    if can_overflow(promise):
        if out != own_format and output_overflow(out) == "nonfinite":
            yield KernelChange("lets results that are too large saturate", _cast(overflow="saturate"))
        elif out != own_format:
            yield KernelChange("lets results that are too large overflow", _cast(overflow="nonfinite"))
        yield KernelChange("limits results to finite values", _on_values(lambda v, f: np.clip(v, -f.max, f.max)))
        yield KernelChange("limits infinite results to the largest number", _on_values(_limit_infinite))
        yield KernelChange("gives NaN for Inf", _on_values(lambda v, _: np.where(np.isinf(v), np.nan, v)))
    if can_underflow(promise):
        yield KernelChange("turns subnormal results into zeros", _on_values(
            lambda v, f: np.where(np.abs(v) < f.smallest_normal, np.copysign(0.0, v), v)))  # fmt: skip
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
            yield KernelChange(f"leaves {lines} beyond a multiple of {grain} zero", _on_values(_tile_zero(axis, grain)))
            words = f"gives the last one before for {lines} beyond a multiple of {grain}"
            yield KernelChange(words, _on_values(_tile_stale(axis, grain)))
        for by, said in ((1, "before"), (-1, "after")):
            yield KernelChange(
                f"gives each of the {lines} the one {said}",
                _on_values(_of(lambda v, _, b, x: np.roll(v, b, x), by, axis)),
            )
        for grain in (2, 4, 8, 16, 32):
            for place, said in ((0, "first"), (grain - 1, "last")):
                words = f"leaves the {said} of every {grain} {lines} zero"
                yield KernelChange(words, _on_values(_every_zero(axis, grain, place)))
        for grain in (16, 32, 64, 128):
            yield KernelChange(f"gives {lines} from {grain} on as zero", _on_values(_from_zero(axis, grain)))
        yield KernelChange(f"leaves the last of the {lines} zero", _on_values(_last_zero(axis)))


ROUNDED = {
    "toward_zero": "truncates the result", "nearest_away": "takes ties of the result away from zero",
    "up": "rounds the result up", "down": "rounds the result down",
    "to_odd": "rounds the result to odd",
}  # fmt: skip
Results = Callable[[Array, Format], Array]


def _cast(**how: str) -> Results:
    def codes(values: Array, out: Format) -> Array:
        return cast(values, FP64, out, **how)

    return codes


def _through(fmt: Format, rounding: str) -> Results:
    return lambda values, out: cast(rounded(values, fmt, rounding), FP64, out)


def _on_values(change: Results) -> Results:
    """A change of results that have been cast."""

    def codes(values: Array, out: Format) -> Array:
        with np.errstate(all="ignore"):
            return cast(change(values_of(cast(values, FP64, out), out), out), FP64, out)

    return codes


def _limit_infinite(values: Array, fmt: Format) -> Array:
    return np.where(np.isinf(values), np.copysign(fmt.max, values), values)


def _tile_zero(axis: int, grain: int) -> Results:
    return _from_zero(axis, grain, whole=True)


def _tile_stale(axis: int, grain: int) -> Results:
    def changed(values: Array, _: Format) -> Array:
        whole = values.shape[axis] // grain * grain
        lines = np.arange(values.shape[axis])
        return values.take(np.minimum(lines, whole - 1) if whole else lines, axis)

    return changed


def _from_zero(axis: int, grain: int, whole: bool = False) -> Results:
    def changed(values: Array, _: Format) -> Array:
        size = values.shape[axis]
        stop = size // grain * grain if whole else grain
        kept = np.arange(size) < stop
        return np.where(kept[:, None] if axis == 0 else kept[None], values, 0.0)

    return changed


def _every_zero(axis: int, grain: int, place: int) -> Results:
    def changed(values: Array, _: Format) -> Array:
        kept = np.arange(values.shape[axis]) % grain != place
        return np.where(kept[:, None] if axis == 0 else kept[None], values, 0.0)

    return changed


def _last_zero(axis: int) -> Results:
    def changed(values: Array, _: Format) -> Array:
        kept = np.arange(values.shape[axis]) < values.shape[axis] - 1
        return np.where(kept[:, None] if axis == 0 else kept[None], values, 0.0)

    return changed
