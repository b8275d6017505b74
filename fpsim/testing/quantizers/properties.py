"""Properties of quantizers: right results for each class of values, order, symmetry, and dependence on nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, distinct, format_of
from fpsim.formats.float_format import Format
from fpsim.testing.boundary_points import points
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.black_box import CalledQuantizer, Result, attempted, read
from fpsim.testing.quantizers.layouts import LAYOUTS
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.regions import kinds_of, smallest
from fpsim.testing.quantizers.report import Broken, broken_at
from fpsim.testing.quantizers.rounder import NAN_WORD, SplitInputs, Words, taken_apart

SHOWN = 33  # most elements of an array that a report shows as an expression
MOST = 4096  # inputs of the calls that check whether anything but the value matters
SECONDS_OF_A_CALL = 0.1  # longest time of a call with a large array
# Shapes of large arrays, followed by smaller ones for slow functions. Indices of elements, rows or columns of large
# arrays need more than 16 or 20 bits.
LARGE: tuple[tuple[tuple[int, ...], ...], ...] = (
    (((1 << 20) + 1033,), ((1 << 16) + 1033,), ((1 << 14) + 1033,), (4096 + 1033,)),
    ((521, 509), (67, 131)),
    ((69_997, 3), (4999, 3)),
    ((3, 69_997), (3, 4999)),
    ((1 << 20,), (1 << 16,), (1 << 14,), (4096,)),  # for paths of multiples only
    ((1024, 512), (128, 64)),
)
SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256, 257, 1024)


def right_values(
    box: CalledQuantizer, x: Array, inputs: SplitInputs, got: Words, want: Words
) -> Iterator[tuple[str, Broken | None]]:
    """Yield (class of values, broken property or None) for each class that occurs among the inputs.

    A broken property shows the wrong result whose input is smallest in magnitude; None means that all are right.

    The classes are "values" (of the format), "ties", "rounding" (all other normal values in range), "zeros",
    "subnormals", "overflow", "infinity" and "NaN". box: the quantizer. x, inputs: its inputs, as floats and split into
    signs and magnitudes. got, want: the results for x and the right ones, as bit patterns of float64.
    """
    fmt, magnitude = box.fmt, inputs.magnitude
    kinds, _ = kinds_of(inputs, fmt)
    subnormal = inputs.finite & (magnitude > 0) & (magnitude < fmt.smallest_normal) & fmt.subnormals
    zero = magnitude == 0
    too_large = inputs.finite & (kinds == 3)
    plain = inputs.finite & ~subnormal & ~zero & ~too_large
    classes = {
        "values": plain & (kinds == 4), "ties": plain & (kinds == 5), "rounding": plain & (kinds > 5), "zeros": zero,
        "subnormals": subnormal, "overflow": too_large, "infinity": np.isinf(magnitude), "NaN": np.isnan(magnitude),
    }  # fmt: skip
    for name, members in classes.items():
        wrong = (got != want) & members
        if wrong.any():
            at = smallest(inputs, wrong)
            counts = {"count": int(wrong.sum()), "of": int(members.sum())}
            yield name, broken_at(name, x[[at]], got[at], want[at], fmt, box.name, **counts)
        elif members.any():
            yield name, None


def chosen(x: Array, seed: int = 0) -> Array:
    """Return the inputs x in random order; of more than 4,096, a random choice of 4,096 of them.

    The choice contains all zeros, infinities and NaNs. seed: seed of the order and the choice.
    """
    rng = np.random.default_rng(seed)
    if x.size > MOST:
        with np.errstate(invalid="ignore"):  # signalling NaNs
            special = np.flatnonzero(~np.isfinite(x) | (x == 0))
        x = x[np.union1d(special, rng.choice(x.size, MOST - special.size, replace=False))]
    return rng.permutation(x)


def order_and_symmetry(
    box: CalledQuantizer, x: Array, inputs: SplitInputs, got: Words, want: Words, right: QuantizerModel
) -> Iterator[tuple[str, Broken | None]]:
    """Yield "monotone", "symmetric" and "idempotent", each with the result that breaks it, or None if it holds.

    "monotone": a larger input never has a smaller result. "symmetric": the result for -x is that for x, negated.
    "idempotent": quantizing a result again does not change it. "monotone" and "symmetric" are left out if the right
    results do not have the property; "symmetric" also if no input has its negative among the inputs.

    Args:
      box: the quantizer.
      x, inputs: the inputs, as floats and split into signs and magnitudes.
      got, want: the results for x and the right ones, as bit patterns of float64.
      right: the model of the promised cast.
    """
    fmt = box.fmt
    signed = np.where(inputs.negative, -inputs.magnitude, inputs.magnitude)
    order = np.lexsort((~inputs.negative, signed))
    order = order[~np.isnan(signed[order])]
    if _falls(want, order).size == 0:
        falls = _falls(got, order)
        broken = None
        if falls.size:
            before, at = falls[:, 0]
            broken = broken_at(
                "monotone", x[[at]], got[at], got[before], fmt, box.name, count=falls.shape[1], of=order.size,
                why="a larger input gives a smaller result than the one before it (want: no less than that)",
            )  # fmt: skip
        yield "monotone", broken
    pairs = _mirrored(x)
    if pairs is not None and not _asymmetric(want, *pairs).size:
        odd = _asymmetric(got, *pairs)
        broken = None
        if odd.size:
            at, other = pairs[0][odd[0]], pairs[1][odd[0]]
            broken = broken_at(
                "symmetric", x[[at]], got[at], _negated(got[[other]])[0], fmt, box.name, count=odd.size,
                of=pairs[0].size, why="x and -x give different magnitudes (want: that of the other sign)",
            )  # fmt: skip
        yield "symmetric", broken
    yield "idempotent", _idempotent(box, x, got, right)


def _falls(words: Words, order: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the pairs of results that fall although their inputs rise, as an int array (2, pairs) of indices.

    Each column has the indices of two results whose inputs are next to each other in order; the second is smaller.
    words: results as bit patterns of float64; NaNs are left out. order: the indices that sort the inputs.
    """
    values = words[order].view(np.float64)
    kept = order[~np.isnan(values)]
    values = values[~np.isnan(values)]
    after = np.flatnonzero(values[1:] < values[:-1]) + 1
    return np.stack([kept[after - 1], kept[after]])


def _mirrored(x: Array) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]] | None:
    """Return (indices of inputs x >= 0 whose negative is an input too, indices of -x); None if there are none."""
    bits = x.view(f"u{x.dtype.itemsize}")
    sign = bits.dtype.type(1 << (8 * x.dtype.itemsize - 1))
    order = np.argsort(bits)
    at = np.searchsorted(bits[order], bits ^ sign)
    at = order[np.minimum(at, x.size - 1)]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        positive = np.flatnonzero((bits[at] == bits ^ sign) & (bits < sign) & ~np.isnan(x.astype(np.float64)))
    return (positive, at[positive]) if positive.size else None


def _negated(words: Words) -> Words:
    """Return the bit patterns of the negated float64 values; NaN stays NaN."""
    return np.where(words == NAN_WORD, words, words ^ np.uint64(1 << 63))


def _asymmetric(words: Words, first: npt.NDArray[np.intp], second: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Return the indices of the pairs (x, -x) whose results are not the negatives of each other.

    words: results as bit patterns of float64. first, second: indices of x and of -x, for each pair.
    """
    return np.flatnonzero(words[first] != _negated(words[second]))


def _idempotent(box: CalledQuantizer, x: Array, got: Words, right: QuantizerModel) -> Broken | None:
    """Return the broken property "idempotent" if a result changes when quantized again, else None.

    box: the quantizer. x: its inputs, of which only the dtype is used. got: the results for x, as bit patterns of
    float64. right: the model of the promised cast; results that this model changes too are left out.
    """
    values = distinct(got).view(np.float64)
    with np.errstate(all="ignore"):
        back = values.astype(x.dtype)
    held = back.astype(np.float64).view(np.uint64) == values.view(np.uint64)
    stays = right.run(taken_apart(back)) == values.view(np.uint64)
    held &= stays & np.isfinite(values)
    if not held.any():
        return None
    inputs, expected = back[held], values[held].view(np.uint64)
    again = box.call(inputs.copy()).words
    moved = np.flatnonzero(again != expected)
    if not moved.size:
        return None
    at = moved[0]
    return broken_at(
        "idempotent", inputs[[at]], again[at], expected[at], box.fmt, box.name, count=moved.size, of=inputs.size,
        why="a result that is quantized again changes",
    )  # fmt: skip


# ---- nothing but the value decides


def independence(box: CalledQuantizer, x: Array) -> Iterator[tuple[str, Broken | None, str]]:
    """Yield (name, broken property or None, note) for "calls", "position", "batch", "size", "layout" and "dtype".

    Each of these properties says that a result depends on the value of its input alone: not on earlier calls, the
    element's index, the array's shape ("batch"), its number of elements ("size"), memory layout or dtype. The second
    item describes how the property is broken; it is None if the property holds or could not be tested. The note is "",
    or names the array that the function refused. If two equal calls differ, only "calls" is yielded.
    """
    few = chosen(x)
    want, returned = box.call(few.copy()).words, box.returned
    box.call(few[::-1].copy())
    kept, why = read(returned, few, box.fmt).words, "a later call overwrites the memory of the array that fn returned"
    yield "calls", _broken_if_different(box, "calls", few, kept, want, why, ""), ""
    again, why = box.call(few.copy()).words, "the same call gives another result the second time"
    yield "calls", _broken_if_different(box, "calls", few, again, want, why), ""
    if (again != want).any():
        return  # a function that is not deterministic depends on everything
    specials = np.array([np.nan, np.inf, -np.inf, 0, 1], x.dtype)
    box.call(np.resize(specials, 64))
    box.call(np.full(16, x.dtype.type(3.0e4) if x.dtype.itemsize > 1 else 1, x.dtype))
    after = box.call(few.copy()).words
    yield "calls", _broken_if_different(box, "calls", few, after, want, "results depend on what was called before"), ""
    if (after != want).any():
        return
    turned = np.random.default_rng(1).permutation(few.size)
    for name, order in (
        ("reversed", np.arange(few.size)[::-1]),
        ("in another order", turned),
        ("rolled", np.roll(np.arange(few.size), 1)),
    ):
        got, why = box.call(few[order].copy()).words, f"the array {name} gives other results"
        yield "position", _broken_if_different(box, "position", few[order], got, want[order], why), ""
    yield from _batches(box, few, want)
    yield from _large(box, few, want)
    yield from _layouts(box, few, want)
    yield from _dtypes(box, x)


def _broken_if_different(
    box: CalledQuantizer, name: str, x: Array, got: Words, want: Words, why: str, paste: str | None = None
) -> Broken | None:
    """Return the broken property `name` if the results of two calls differ, else None.

    box: the quantizer. x: the inputs. got, want: the results for x in the call under test and in another call. why:
    sentence on the difference. paste: Python expression that repeats the call; None makes one from x.
    """
    differ = np.flatnonzero(got != want)
    if not differ.size:
        return None
    at = int(differ[0])
    flat = x.ravel()
    if paste is None:
        paste = f"{box.name}({pasted(x)})" if x.size <= SHOWN else ""
    return broken_at(
        name, flat[[at]], got[at], want[at], box.fmt, box.name, count=differ.size, of=want.size, why=why, paste=paste
    )  # fmt: skip


def _batches(box: CalledQuantizer, x: Array, want: Words) -> Iterator[tuple[str, Broken | None, str]]:
    """Check that results do not depend on the length or shape of the array.

    Call the quantizer with parts of x of 1 to 1,024 elements, with x reshaped to matrices, square ones included, and to
    three axes, with a single number without axes, and with empty arrays. Compare with `want`, its results for x as bit
    patterns of float64. Yield for each call ("batch", the broken property or None if all results are equal, ""); for an
    array that the quantizer refuses ("batch", None, a note on it).
    """
    start = 0
    parts: list[tuple[slice, tuple[int, ...], str]] = []
    for size in SIZES:
        start = start if start + size <= x.size else 0
        parts.append((slice(start, start + size), (size,), f"an array of {size}"))
        start += size
    rows, square = x.size // 8, math.isqrt(x.size)
    shapes: tuple[tuple[int, ...], ...] = (
        (8, rows), (rows, 8), (2, 4, rows), (2, 2), (square, square), (3, 3, 3), (), (0,), (8, 0),
    )  # fmt: skip
    parts += [(slice(0, math.prod(shape)), shape, f"shape {shape}") for shape in shapes if math.prod(shape) <= x.size]
    for part, shape, name in parts:
        refusals = ("runs",) if shape else ("runs", "shape")  # np.ascontiguousarray gives a number an axis
        result, refusal = attempted(box.call, x[part].reshape(shape).copy(), refusals=refusals)
        if result is None:
            yield "batch", None, f"it refuses {name}: {refusal}"
            continue
        why = f"{name} gives other results than the same values in a larger one"
        if len(shape) == 2 and (result.words == want[part].reshape(shape).T.ravel()).all():
            why = f"{name} gives the right results in the order of the transposed matrix"
        yield "batch", _broken_if_different(box, "batch", x[part].reshape(shape), result.words, want[part], why), ""


def _large(box: CalledQuantizer, x: Array, want: Words) -> Iterator[tuple[str, Broken | None, str]]:
    """Check that results do not depend on the size of the array.

    Call the quantizer `box` with random elements of x in six arrays of up to a million elements. Compare with `want`,
    its results for x as bit patterns of float64. Yield for each ("size", the broken property or None, ""); for an array
    that the quantizer refuses, or for which it is too slow, ("size", None, a note on it).
    """
    medium = np.resize(x, 1 << 15)
    box.call(medium, new_values=False)  # the first call may compile something
    box.seconds = 0.0
    box.call(medium, new_values=False)
    pace = box.seconds / medium.size
    for shapes in LARGE:
        shape = next((shape for shape in shapes if math.prod(shape) * pace <= SECONDS_OF_A_CALL), None)
        if shape is None:
            yield "size", None, f"it is too slow for an array of {math.prod(shapes[-1]):,} elements"
            continue
        places = np.random.default_rng(2).integers(0, x.size, math.prod(shape))
        values = x[places].reshape(shape)
        result, refusal = attempted(box.call, values, new_values=False)
        if result is None:
            yield "size", None, f"it refuses shape {shape}: {refusal}"
            continue
        yield "size", broken_size(box, values, result.words, want[places]), ""


def broken_size(box: CalledQuantizer, x: Array, got: Words, want: Words) -> Broken | None:
    """Return the broken property "size" for a large array with a wrong result, or None if all results are right.

    box: the quantizer. x: the array. got, want: its results and the right ones, flat, as bit patterns of float64.
    """
    differ = np.flatnonzero(got != want)
    if not differ.size:
        return None
    first = int(differ[0])
    value = x.ravel()[first]
    same = box.call(np.full(x.shape, value), new_values=False).words[first] != want[first]
    paste = f"{box.name}(np.full({x.shape}, {pasted(value)})).ravel()[{first}]" if same else ""
    why = f"an array of shape {x.shape} is wrong from index {first:,} on, where short ones are right"
    return _broken_if_different(box, "size", x, got, want, why, paste)


def _layouts(box: CalledQuantizer, x: Array, want: Words) -> Iterator[tuple[str, Broken | None, str]]:
    """Check that results do not depend on the memory layout of the array.

    Call the quantizer `box` with eight numbers, and with x, in every layout of LAYOUTS. Compare with its results for
    the same values in C order (for x: `want`, as bit patterns of float64). Yield for each call ("layout", the broken
    property or None, ""), or, for a layout that the quantizer refuses, ("layout", None, a note on it).
    """
    with np.errstate(all="ignore"):
        few = np.array([1, 2, 3, 4, 6, 8, 0.5, 1.5], np.float64).astype(x.dtype)
    small = box.call(few.copy()).words
    for values, expected in ((few, small), (x[: x.size // 8 * 8], want[: x.size // 8 * 8])):
        for name, layout in LAYOUTS.items():
            array = layout.make(values.reshape(layout.shape))
            if box.takes == "torch" and min(array.strides) < 0:
                continue  # tensors have no negative strides
            pasted_values = f"{pasted(few)}.reshape{layout.shape}" if layout.axes > 1 else pasted(few)
            paste = f"{box.name}({layout.expression.format(x=pasted_values)})" if values is few else ""
            result, refusal = attempted(box.call, array, name, new_values=False)
            if result is None:
                yield "layout", None, f"it refuses the layout '{name}': {refusal}"
                continue
            why = f"an array with the layout '{name}' gives other results than one in C order"
            yield "layout", _broken_if_different(box, "layout", values, result.words, expected, why, paste), ""


def holds_results(fmt: Format, result: Result) -> bool:
    """Return whether the result of a call has codes, or values of a dtype that can represent all values of `fmt`."""
    returned = format_of(np.dtype(getattr(ml_dtypes, result.dtype, result.dtype)))
    return result.codes or (returned is not None and returned.holds(fmt))


def _dtypes(box: CalledQuantizer, x: Array) -> Iterator[tuple[str, Broken | None, str]]:
    """Check that inputs in float64, float16 and bfloat16 have the same results as equal inputs in the dtype of x.

    Yield for each of these dtypes, without that of x: ("dtype", the broken property or None, ""); for a dtype that the
    quantizer `box` refuses, or for which its results cannot represent the format's values: ("dtype", None, a note on
    it).
    """
    for dtype in (np.float64, np.float16, ml_dtypes.bfloat16):
        other = np.dtype(dtype)
        if other == x.dtype:
            continue
        values = chosen(x) if other == np.float64 else points(box.fmt, other)
        values = chosen(values) if values.size > MOST else values
        with np.errstate(all="ignore"):
            narrow, same = values.astype(other), values.astype(x.dtype)
        # another shape: it reads the bits of the dtype of x, of another width
        result, refusal = attempted(box.call, narrow.copy(), refusals=("runs", "shape"))
        if result is None:
            yield "dtype", None, f"it takes no {other.name}: {refusal}"
            continue
        if not holds_results(box.fmt, result):
            yield "dtype", None, f"given {other.name}, it returns {result.dtype}, which does not hold {box.fmt}"
            continue
        want, why = box.call(same.copy()).words, f"as {other.name} the same values give other results"
        yield "dtype", _broken_if_different(box, "dtype", narrow, result.words, want, why), ""
