"""`fp.analysis.underflow`: counts the elements of an array times 2**k that are too small or too large for a format."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.iterables import as_list
from fpsim.analysis.tensors.chunks import flat_chunks
from fpsim.arrays import Array, float_array, without_gradient
from fpsim.casts.cast import quantize
from fpsim.deprecation import warn_renamed
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import percent, plural, power
from fpsim.errors import is_integer, require_same, shown
from fpsim.formats.cast_options import FormatLike, cast_options
from fpsim.formats.named import Format
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling.clipping import bounds

Integers = npt.NDArray[np.int64]
LARGEST_SCALE = 900  # largest |k|: 2**k times any float32 value is exact in float64
SMALLEST = 2.0**-900  # formats need a smallest subnormal of at least this, far above the products that float64 rounds
# (value, side) for np.searchsorted in sorted values: the indices at which finite values, zeros, positive values, Inf
# and NaN begin.
EDGES: tuple[tuple[float, Literal["left", "right"]], ...] = (
    (-np.inf, "right"), (0.0, "left"), (0.0, "right"), (np.inf, "left"), (np.inf, "right"),
)  # fmt: skip
COLUMNS = ("log2_scale", "lost", "subnormal", "saturated", "lost_energy")


@dataclass(frozen=True)
class UnderflowRow:
    """Counts of the elements of an array times 2**log2_scale that a format cannot represent well.

    Attributes:
      log2_scale: the exponent k of the scale 2**k.
      lost: number of nonzero elements that become 0 or -0 in the format.
      subnormal: number of elements that become subnormal in the format.
      saturated: number of finite elements that rounding to nearest even would take beyond the format's largest value.
      lost_squares: sum x**2 over the `lost` elements, of x before scaling.
    """

    log2_scale: int
    lost: int
    subnormal: int
    saturated: int
    lost_squares: float

    @property
    def scale(self) -> int:
        """Deprecated name of `log2_scale`; reading it warns."""
        warn_renamed("UnderflowRow.scale", "log2_scale")
        return self.log2_scale


@dataclass(frozen=True)
class UnderflowReport:
    """The shares of elements of an array times 2**k that a format loses; `merge` adds another part of the array.

    Attributes:
      fmt, rounding, subnormals: the format and the settings of the rounding.
      rows: an UnderflowRow for each k.
      count: number of all elements; every share is relative to it.
      zeros, infinities, nans: numbers of elements that are 0, +-Inf and NaN, which no scale changes.
      amax: largest finite magnitude; 0 if there is none.
      squares: sum x**2 over the finite elements.
    """

    fmt: Format
    rounding: str
    subnormals: str
    rows: tuple[UnderflowRow, ...]
    count: int
    zeros: int
    infinities: int
    nans: int
    amax: float
    squares: float

    @property
    def format(self) -> str:
        """Name of the format to which the scaled array was rounded."""
        return self.fmt.name

    @property
    def scales(self) -> tuple[int, ...]:
        """The exponents k of the scales 2**k, in the given order."""
        return tuple(row.log2_scale for row in self.rows)

    @property
    def lost(self) -> tuple[float, ...]:
        """Share of all elements that are not 0 and become 0, for each k of `scales`."""
        return tuple(self._share(row.lost) for row in self.rows)

    @property
    def subnormal(self) -> tuple[float, ...]:
        """Share of all elements that become subnormal, for each k of `scales`."""
        return tuple(self._share(row.subnormal) for row in self.rows)

    @property
    def saturated(self) -> tuple[float, ...]:
        """Share of all elements that are finite and exceed the format's range after scaling, for each k of `scales`."""
        return tuple(self._share(row.saturated) for row in self.rows)

    @property
    def lost_energy(self) -> tuple[float, ...]:
        """Sum of x**2 over the elements that become 0, as a share of all finite elements' sum, for each k of `scales`.

        NaN if the sum of all finite elements is 0 or exceeds float64.
        """
        known = 0 < self.squares < math.inf
        return tuple(row.lost_squares / self.squares if known else math.nan for row in self.rows)

    @property
    def best_scale(self) -> int | None:
        """The k of `scales` with the fewest elements that become 0 or exceed the range; None without finite nonzeros.

        Among several such k, the one with the fewest subnormals, then the one nearest to 0.
        """
        if not self.amax:
            return None
        return min(self.rows, key=lambda row: (row.lost + row.saturated, row.subnormal, abs(row.log2_scale))).log2_scale

    @property
    def headroom(self) -> int | None:
        """The largest integer k for which no element times 2**k exceeds the format's range.

        None if no element is finite and other than 0.

        Example:
          >>> import fpsim as fp
          >>> fp.analysis.underflow(np.float32([1.0, 100.0]), fp.E4M3).headroom
          2
        """
        if not self.amax:
            return None
        (size, exponent), (limit, top) = math.frexp(self.amax), math.frexp(_highest(self.fmt))
        return top - exponent - (size > limit)

    def merge(self, other: UnderflowReport) -> UnderflowReport:
        """Return the report on the data of `self` and `other` together, such as two parts of an array.

        Raises:
          ValueError: format, rounding, subnormals or scales differ.
        """
        require_same("reports", self, other, ("fmt", "rounding", "subnormals", "scales"))
        rows = tuple(
            UnderflowRow(
                a.log2_scale, a.lost + b.lost, a.subnormal + b.subnormal, a.saturated + b.saturated,
                a.lost_squares + b.lost_squares,
            )
            for a, b in zip(self.rows, other.rows, strict=True)
        )  # fmt: skip
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("count", "zeros", "infinities", "nans", "squares")
        }
        return replace(self, rows=rows, amax=max(self.amax, other.amax), **sums)

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each scale 2**k and the columns below.

        log2_scale: k. lost, subnormal, saturated: shares of all elements (0 to 1) that are not 0 and become 0; that
        become subnormal; and that are finite but beyond the format's range. lost_energy: sum of x**2 over the elements
        that become 0, divided by that over all finite elements.
        """
        return frame(self._dicts())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the lost, subnormal and saturated shares against the scale; return the axes (ax None: new ones)."""
        from fpsim.analysis.measures.scales.figures import underflow_axes

        return underflow_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence on the best scale, and the shares that become 0 and saturate with it and unscaled.

        Example:
          >>> import fpsim as fp
          >>> x = np.float32([2.0**-30, 2.0**-20, 1.0])
          >>> print(fp.analysis.underflow(x, fp.FP16))
          in FP16, 2⁶ loses the least of 3 values: 0 % become 0 and 0 % saturate, where 33.3 % and 0 % do unscaled
        """
        best, values = self.best_scale, plural(self.count, "value")
        if best is None:
            return f"in {self.format}, no scale changes {values}: none is finite and other than 0"
        rows = {row.log2_scale: row for row in self.rows}
        lost, saturated = (percent(self._share(x)) for x in (rows[best].lost, rows[best].saturated))
        words = f"in {self.format}, {power(best)} loses the least of {values}: {lost} become 0 and {saturated} saturate"
        if best == 0 or 0 not in rows:
            return words
        unscaled = " and ".join(percent(self._share(x)) for x in (rows[0].lost, rows[0].saturated))
        return f"{words}, where {unscaled} do unscaled"

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the text of `str()`, and a table of the shares for every scale."""
        rows = ([row[name] for name in COLUMNS] for row in self._dicts())
        return f"<p>{html.escape(str(self))}</p>{html_table(COLUMNS, rows)}"

    def _dicts(self) -> list[dict[str, Any]]:
        """Return a dict for each k: log2_scale, lost, subnormal, saturated, lost_energy."""
        columns = (self.scales, self.lost, self.subnormal, self.saturated, self.lost_energy)
        return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]

    def _share(self, number: int) -> float:
        """Return a number of elements as a share of all elements; NaN for an empty array."""
        return number / self.count if self.count else math.nan


def underflow(
    x: npt.ArrayLike,
    fmt: FormatLike,
    scales: Iterable[int] = range(-24, 25),
    *,
    rounding: str | Rounding = "nearest_even",
    subnormals: str = "keep",
) -> UnderflowReport:
    """Count the elements that become 0, subnormal or too large when an array is multiplied by 2**k and rounded.

    The counts are those of `fp.quantize(x * 2.0**k, fmt)` with an exact product. Values are sorted once for all k; a
    binary search that calls `quantize` finds the first value that is not lost.

    Args:
      x: float16, bfloat16, float32, float64 or any ml_dtypes float array of any shape; a sorted copy is made, in
        float32 or float64.
      fmt: the format, by name, dtype or object; not FP64.
      scales: the exponents k, integers in -900 .. 900.
      rounding, subnormals: as for `fp.encode`; "stochastic" is refused, as its losses are random.
    Returns:
      An UnderflowReport with a row for each k.
    Raises:
      ValueError: an unknown format or name of a mode, stochastic rounding, FP64, no scales or one out of range.
      TypeError: x is not an array of floats, or a scale is not an integer.

    Example:
      >>> import fpsim as fp
      >>> x = np.float32([2.0**-30, 2.0**-20, 1.0, 300.0])
      >>> report = fp.analysis.underflow(x, fp.E5M2, scales=[0, 6, 12])
      >>> report.lost, report.saturated, report.best_scale, report.headroom
      ((0.5, 0.25, 0.25), (0.0, 0.0, 0.25), 6, 7)
    """
    if rounding_mode(rounding) is Rounding.STOCHASTIC:
        raise ValueError(
            "rounding must be deterministic, as underflow counts the values that are lost; got 'stochastic'. Take "
            "'nearest_even', for example."
        )
    options = cast_options(fmt, rounding, "saturate", subnormals)
    if options.fmt.smallest_subnormal < SMALLEST:
        raise ValueError(
            f"underflow needs products that float64 holds exactly; got {options.fmt}. Take FP32 or a smaller format."
        )
    exponents = _checked_scales(scales)
    array, _ = float_array(without_gradient(x))
    sides, special = _sides(array)

    def rounded(y: Array) -> Array:
        return np.asarray(quantize(y, options.fmt, rounding=rounding, overflow="saturate", subnormals=subnormals))

    counts = [_counts(side, exponents, options.fmt, rounded) for side in sides]
    squares = [_squares(side, [*count[0].tolist(), len(side)]) for side, count in zip(sides, counts, strict=True)]
    rows = []
    for j, k in enumerate(exponents):
        lost, small, beyond = (int(sum(side[i][j] for side in counts)) for i in range(3))
        rows.append(UnderflowRow(k, lost, small, beyond, sum(side[j] for side in squares)))
    amax = max((float(abs(side[-1])) for side in sides if len(side)), default=0.0)
    energy = sum(side[-1] for side in squares)
    name = options.rounding.name.lower()
    return UnderflowReport(options.fmt, name, subnormals, tuple(rows), array.size, *special, amax, energy)


def _sides(array: Array) -> tuple[list[Array], tuple[int, int, int]]:
    """Return ([negative finite values, positive ones], (number of zeros, of infinities, of NaNs)).

    Values are 1-d float32 or float64, in ascending order of magnitude.
    """
    dtype = np.float64 if array.dtype.itemsize == 8 else np.float32  # float32 holds all smaller dtypes
    with np.errstate(invalid="ignore"):
        values = array.reshape(-1).astype(dtype)
    values.sort()  # NaN last
    ends = (np.searchsorted(values, edge, side) for edge, side in EDGES)
    first, zero, positive, last, nan = (int(end) for end in ends)
    infinities = first + nan - last
    return [values[first:zero][::-1], values[positive:last]], (positive - zero, infinities, len(values) - nan)


def _squares(values: Array, ends: list[int]) -> list[float]:
    """Return for each of `ends` the sum of x**2 over values[:end], added in float64."""
    sums, total, start = {0: 0.0}, 0.0, 0
    for end in sorted(set(ends)):
        for part in flat_chunks(values[start:end]):
            with np.errstate(over="ignore", under="ignore"):
                total += float(np.sum(np.square(part.astype(np.float64))))
        sums[end], start = total, end
    return [sums[end] for end in ends]


def _counts(side: Array, exponents: list[int], fmt: Format, rounded: Any) -> tuple[Integers, Integers, Integers]:
    """Return for each exponent k the numbers of values times 2**k that become 0, subnormal, and too large.

    side: values of one sign in ascending order of magnitude. rounded: function that rounds a float64 array to `fmt`.
    """
    lost = _boundary(side, exponents, lambda y: rounded(y) == 0)
    small = _boundary(side, exponents, lambda y: np.abs(rounded(y)) < fmt.smallest_normal)
    inside = _boundary(side, exponents, lambda y: np.abs(y) <= _highest(fmt))
    return lost, (small - lost if fmt.subnormals else 0 * lost), len(side) - inside


def _boundary(values: Array, exponents: list[int], holds: Any) -> Integers:
    """Return for each exponent k the number of values that fulfil a condition after multiplication by 2**k.

    values: in ascending order of magnitude. holds: function from float64 products to bools; it must be true up to some
    magnitude and false beyond, which a binary search finds.
    """
    scales = np.array(exponents)
    low, high = np.zeros(len(scales), np.int64), np.full(len(scales), len(values), np.int64)
    while (open_ := low < high).any():
        middle = (low + high) // 2
        with np.errstate(under="ignore", over="ignore"):
            scaled = np.ldexp(values[middle[open_]].astype(np.float64), scales[open_])
        scaled = np.where(scaled == 0, np.copysign(2.0**-1074, scaled), scaled)  # a product is never 0
        yes = holds(scaled)
        low[open_] = np.where(yes, middle[open_] + 1, low[open_])
        high[open_] = np.where(yes, high[open_], middle[open_])
    return low


def _highest(fmt: Format) -> float:
    """Return the largest float64 that rounds to a finite value of `fmt`, by rounding to nearest even."""
    return bounds(fmt, Rounding.NEAREST_EVEN, 64)[1]


def _checked_scales(scales: Any) -> list[int]:
    """Return the exponents k of scales 2**k as a list of integers.

    Raises:
      TypeError, ValueError: they are not integers, out of range, or none.
    """
    exponents = as_list(scales)
    if exponents is None:
        raise TypeError(f"scales must be integers k, of the factors 2**k; got {shown(scales)}.")
    for k in exponents:
        if not is_integer(k):
            raise TypeError(f"scales must be integers k, of the factors 2**k; got {shown(k)} among them.")
        if abs(int(k)) > LARGEST_SCALE:
            raise ValueError(f"scales must be in {-LARGEST_SCALE} .. {LARGEST_SCALE}; got {shown(k)}.")
    if not exponents:
        raise ValueError("scales must have at least one integer k, of the factor 2**k; got none.")
    return [int(k) for k in exponents]
