"""Faults that no model of single values describes: results in the wrong order, and evenly spaced results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.formats.float_format import Format
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.quantizers.black_box import CalledQuantizer

Places = npt.NDArray[np.intp]
PROBED = 8192  # inputs of one test for evenly spaced results
LEVELS = 5  # fewest positive results from which even spacing is concluded
FEWEST_BINADES = 4  # smallest range tested, in smallest normal values; below, the format itself is evenly spaced
EXACT = 2.0**-18  # relative tolerance of results that are products in float32


def arrangements(size: int) -> Iterator[tuple[str, Places]]:
    """Yield known wrong orders of results, each as (clause that describes it, array of `size` indices).

    Result i of the faulty quantizer is the correct result whose index is element i of that array.
    """
    places = np.arange(size)
    yield "exchanges the two results of each pair, as packed codes in the wrong order", reversed_groups(size, 2)
    for group in (4, 8):
        words = f"reverses each group of {group} results, as bytes of a word in the wrong order"
        yield words, reversed_groups(size, group)
    yield "gives its results from the last to the first", places[::-1]
    yield "gives each element the result of the one before", np.roll(places, 1)
    yield "gives each element the result of the one after", np.roll(places, -1)
    dealt = np.concatenate([places[::2], places[1::2]])
    yield "gives the results of even places first, then those of odd places", dealt
    yield "gives the results of its first and second half in turn", np.argsort(dealt)


def reversed_groups(size: int, group: int) -> Places:
    """Return the indices 0 to size - 1 with each whole group of `group` reversed; an incomplete last group stays."""
    whole = size // group * group
    places = np.arange(size)
    return np.concatenate([places[:whole].reshape(-1, group)[:, ::-1].ravel(), places[whole:]])


def arrangement_of(got: Any, want: Any) -> str | None:
    """Return the clause on a known wrong order: the first in which the right results `want` equal `got`, or None.

    got, want: arrays (n,) of a quantizer's results and of the right ones, as bit patterns of float64.
    """
    return next((words for words, places in arrangements(want.size) if (got == want[places]).all()), None)


def uniform_grid(box: CalledQuantizer) -> str | None:
    """Return a clause saying that a quantizer's results are evenly spaced, unlike its format; None if they are not.

    box: the quantizer. It is called with uniform values of two ranges, because the spacing may depend on the largest
    input.
    """
    fmt = box.fmt
    if fmt.exponent_bits == 1 or fmt.mantissa_bits == 0:
        return None  # its values are evenly spaced, or all powers of two
    try:
        size = min(fmt.max, 2.0**60)
        results = np.abs(box.call(_uniform(size)).words.view(np.float64))
        largest = float(results[np.isfinite(results)].max(initial=0.0))
        size = largest if 0 < largest < size else size
        while size >= FEWEST_BINADES * fmt.smallest_normal:
            first, second = _step(box, size), _step(box, size / 4)
            if first is not None and second is None and _on_grid(box, size / 4, first):
                second = first
            if first is not None and second is not None:
                return _grid_words(size, first, second, fmt)
            size /= 8
    except FunctionMisbehaved:
        pass
    return None


def _uniform(size: float) -> npt.NDArray[np.float32]:
    """Return PROBED random float32 values, uniform between -size and size; the first is `size`."""
    drawn = np.random.default_rng(0).uniform(-1, 1, PROBED)
    drawn[0] = 1
    return (drawn * size).astype(np.float32)


def _on_grid(box: CalledQuantizer, size: float, step: float) -> bool:
    """Return whether a quantizer's results are multiples of `step`, and at most one step from their inputs.

    box: the quantizer, called with random inputs of magnitudes up to `size`.
    """
    x = _uniform(size)
    got = box.call(x.copy()).words.view(np.float64)
    if not np.isfinite(got).all():
        return False
    multiples = np.abs(got - np.rint(got / step) * step) <= EXACT * np.abs(got)
    return bool((multiples & (np.abs(got - x) <= 1.001 * step)).all())


def _grid_words(size: float, first: float, second: float, fmt: Format) -> str | None:
    """Return the clause on a uniform grid of results, whose spacing is fixed or proportional to the largest input.

    first, second: spacing of results for inputs of magnitudes up to `size`, and up to `size` / 4. They must be equal,
    or in the ratio 4; otherwise return None. fmt: the promised format, which the clause names.
    """
    if abs(first / second - 1) < EXACT:
        return f"rounds to a uniform grid in steps of {first:.9g}, not to {fmt}"
    if abs(first / second / 4 - 1) > 2 * EXACT:
        return None
    count = size / first
    whole = round(count)
    return f"rounds to a uniform grid in steps of amax/{whole if abs(count - whole) < 0.01 else count:g}, not to {fmt}"


def _step(box: CalledQuantizer, size: float) -> float | None:
    """Return the spacing of a quantizer's results for inputs of magnitudes up to `size`; None if it is not uniform.

    box: the quantizer.
    """
    x = _uniform(size)
    got = box.call(x.copy()).words.view(np.float64)
    sizes = np.unique(np.abs(got))
    if not np.isfinite(sizes).all() or sizes.size < LEVELS:
        return None
    positive = sizes[sizes > 0]
    numbers = np.rint(positive / positive[0])
    step = float(positive[-1] / numbers[-1])
    off = np.abs(positive - numbers * step) > EXACT * positive
    if off.any() or np.diff(numbers).max() > 2 or numbers.size < 0.9 * numbers[-1]:
        return None
    return step if (np.abs(got - x) <= 1.001 * step).all() else None
