"""Counts of the results in which a quantizer with scales differs from each recipe."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.runtime.general_loops import general_loops
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.quantizers.rounder import Words, words_of
from fpsim.testing.quantizers.scales.results import ReturnedParts, in_tiles, same_scales

Results = list[tuple[Array, ReturnedParts]]  # matrices with what a quantizer returned for each
NO_NUMBER = -(1 << 31)  # number of an element that is the value of no code


class CountedDifference(NamedTuple):
    """Difference between a quantizer's results and a recipe's.

    Attributes:
      wrong: number of elements and scales that differ.
      of: number of all elements and scales.
      layout: the layout of scales with the fewest differences, such as "tiles" or "transposed reciprocal".
    """

    wrong: int
    of: int
    layout: str


class ReadResult(NamedTuple):
    """A matrix with a quantizer's result, prepared for comparisons with hundreds of recipes.

    Attributes:
      x: the matrix.
      parts: the quantizer's result.
      numbers: an int32 for each returned element that identifies its value.
      special: whether the matrix has an Inf or a NaN.
      smallest: the smallest magnitude of an element of x; NaN if one is NaN.
    """

    x: Array
    parts: ReturnedParts
    numbers: Array
    special: bool
    smallest: float


class RecipeDifferences:
    """Cache of the number of codes and scales in which a quantizer's results differ from each scaling recipe.

    Args:
      fmt: the element format.
      cast: keywords of the cast of elements.
    """

    def __init__(self, fmt: Element, cast: dict[str, Any]) -> None:
        self.fmt, self.cast = fmt, cast
        self._read: dict[ReturnedParts, ReadResult] = {}
        self._kept: dict[tuple[ReturnedParts, Scaling], CountedDifference] = {}

    def of(self, results: Results, scaling: Scaling, enough: int | None = None) -> CountedDifference:
        """Return how much a quantizer's results differ from those of `scaling`, summed over matrices.

        results: pairs of a matrix and the quantizer's result for it. enough: number of differences above which the
        remaining matrices are skipped; None compares all.
        """
        total, of, layouts = 0, 0, set()
        for x, parts in results:
            if enough is not None and total > enough:
                break
            difference = self._of_matrix(x, parts, scaling)
            total, of = total + difference.wrong, of + difference.of
            layouts.add(difference.layout)
        layouts -= {"tiles"} if len(layouts) > 1 else set()
        return CountedDifference(total, of, " or ".join(sorted(layouts)))

    def _of_matrix(self, x: Array, parts: ReturnedParts, scaling: Scaling) -> CountedDifference:
        """Return the difference between a quantizer's result `parts` for a matrix x and the result of `scaling` for x.

        Scalings with equal results for the matrix share a cached difference.
        """
        result = self._read.get(parts)
        if result is None:
            magnitudes = np.abs(x)
            special, smallest = not np.isfinite(magnitudes).all(), float(magnitudes.min(initial=np.inf))
            result = ReadResult(x, parts, _numbers(parts.elements, self.fmt), special, smallest)
            self._read[parts] = result
        key = parts, relevant(scaling, x.shape, result.special, result.smallest)
        difference = self._kept.get(key)
        if difference is None:
            difference = self._kept[key] = _difference(result, self.fmt, key[1], self.cast)
        return difference


def relevant(scaling: Scaling, shape: tuple[int, ...], special: bool, smallest: float) -> Scaling:
    """Return a copy of `scaling` with fixed values in the fields that cannot affect its results for a matrix.

    Scalings that differ only in such fields thus become equal, and share one entry of a cache.

    Args:
      scaling: the scaling.
      shape: shape of the matrix.
      special: whether the matrix has an Inf or a NaN.
      smallest: the smallest magnitude of an element of the matrix.
    """
    return _relevant(scaling, shape, special, smallest > 0, bool(scaling.amax_floor * (1 + 2.0**-20) < smallest))


@lru_cache(maxsize=1 << 14)
def _relevant(scaling: Scaling, shape: tuple[int, ...], special: bool, positive: bool, above_floor: bool) -> Scaling:
    """Return a copy of `scaling` with fixed values in the fields that cannot affect its results for a matrix; cached.

    shape: shape of the matrix. special: whether it has an Inf or a NaN. positive: whether all its magnitudes exceed 0.
    above_floor: whether all its magnitudes exceed the scaling's amax_floor.
    """
    changes: dict[str, Any] = {}
    if len(scaling.block) == len(shape):
        changes["block"] = tuple(
            -1 if size >= whole else size for size, whole in zip(scaling.block, shape, strict=True)
        )
    if not special:
        changes |= {"infinity": "skip", "nan": "tile"}
    if not special and positive:
        changes["zero_scale"] = "one"
    if not special and above_floor:
        changes["amax_floor"] = 0.0
    if all(getattr(scaling, name) == value for name, value in changes.items()):
        return scaling
    try:
        return scaling.replace(**changes)
    except ValueError:  # no such combination
        return scaling


def _difference(result: ReadResult, fmt: Element, scaling: Scaling, cast: dict[str, Any]) -> CountedDifference:
    """Return the difference between a quantizer's result and that of `fpsim.encode_scaled` for the same matrix.

    If the quantizer returned another number of scales and any wrong element, all count as different, since its tiles
    are others.

    result: the matrix and the quantizer's result. fmt, scaling, cast: element format, scaling, and keywords of the cast
    of elements for `encode_scaled`.
    """
    x, parts = result.x, result.parts
    with general_loops():  # compiled loops of hundreds of recipes would take minutes
        q = encode_scaled(x, fmt, scaling, **cast)
    if parts.scales is None:
        return CountedDifference(int(np.count_nonzero(parts.elements != values_of_scaled(q))), x.size, "values")
    codes, scales = q.codes.ravel(), q.scales
    numbers = _values_of_codes(fmt)[1][codes] if isinstance(fmt, Format) else codes
    wrong = int(np.count_nonzero(result.numbers != numbers))
    best, layout = _scales_apart(parts.scales, scales)
    if wrong and parts.scales.size != scales.size:
        wrong = x.size
    return CountedDifference(wrong + best, x.size + scales.size, layout)


def _scales_apart(got: Array, want: Array) -> tuple[int, str]:
    """Return (number of wrong scales, layout) for the known layout of `got` in which the fewest scales are wrong.

    want: the right scales, float32, in the shape of the grid of tiles. The layout is "tiles" or "transposed", followed
    by " reciprocal" if `got` has 1 / scale; or "another shape", with all scales wrong.
    """
    best, layout = want.size, "another shape"
    transposed = got.T if want.ndim == 2 and got.shape == want.shape[::-1] else None
    for name, scales_read in (("tiles", in_tiles(got, want.shape)), ("transposed", transposed)):
        if scales_read is None:
            continue
        contiguous = np.ascontiguousarray(scales_read)
        for form in (name, f"{name} reciprocal"):
            scales = want
            if form != name:
                with np.errstate(all="ignore"):
                    scales = np.float32(1) / want
            differ = scales.size - int(np.count_nonzero(same_scales(contiguous, scales)))
            if differ < best:
                best, layout = differ, form
            if not best:
                return best, layout
    return best, layout


def elements_of(q: Scaled, fmt: Element) -> Words:
    """Return the value of each code of a scaled array, without its scale, as bit patterns of float64, flat."""
    codes = q.codes.ravel()
    if not isinstance(fmt, Format):
        return words_of(codes.astype(np.float64))
    words, numbers = _values_of_codes(fmt)
    return words[numbers[codes]]


def values_of_scaled(q: Scaled) -> Words:
    """Return the value of each element of a scaled array, code times scale, as bit patterns of float64, flat."""
    return words_of(np.asarray(q.decode().ravel().astype(np.float64)))


def _numbers(elements: Words, fmt: Element) -> Array:
    """Return an int32 for each element that identifies its value, so that comparisons take less time.

    It is the value's index in `_values_of_codes`, for integer formats the value itself, and NO_NUMBER for values that
    no code has. elements: bit patterns of float64.
    """
    if isinstance(fmt, Format):
        words, _ = _values_of_codes(fmt)
        places = np.minimum(np.searchsorted(words, elements), words.size - 1)
        return np.where(words[places] == elements, places, NO_NUMBER).astype(np.int32)
    values = elements.view(np.float64)
    integers = np.where(np.abs(values) < -NO_NUMBER, values, 0).astype(np.int32)
    return np.where(words_of(integers.astype(np.float64)) == elements, integers, np.int32(NO_NUMBER))


@lru_cache(maxsize=16)
def _values_of_codes(fmt: Format) -> tuple[Words, Array]:
    """Return a format's distinct values, sorted as bit patterns of float64, and for each code its value's index."""
    words, numbers = np.unique(words_of(fmt.table()), return_inverse=True)
    return words, numbers.astype(np.int32)
