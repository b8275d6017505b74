"""The rounded steps of which softmax and norms are made, each an operation of fpsim on codes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.evaluate import evaluate
from fpsim.arithmetic.operands import read_operand, wanted_formats
from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.errors import shown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options
from fpsim.formats.named import DTYPES, FP32, Format, format_argument
from fpsim.lazy import deferred
from fpsim.norms.lane_sum import LaneSum
from fpsim.products.reduce import checked_axis, dot
from fpsim.products.reduce import sum as sum_of
from fpsim.sums.accumulators import Accumulator

processor = deferred("fpsim.runtime.processor")  # imports numba
MOST_TERMS = 1 << 24  # of a row: its length is a float32
KINDS = "fp.LaneSum(), Sequential, FusedMultiplyAdd, Pairwise, Chunked or Exact"


class Values(NamedTuple):
    """An array of codes with their format."""

    codes: Array
    fmt: Format


class Method(NamedTuple):
    """The checked keywords of a call: the operand, and how its intermediate and last results are rounded."""

    x: Values
    axis: int
    intermediate: Format
    accumulate: LaneSum | Accumulator
    result: CastOptions
    typed: bool  # whether all operands came as arrays of a float dtype

    @property
    def length(self) -> int:
        """Number of elements along the axis."""
        return int(self.x.codes.shape[self.axis])

    def step(self, name: str, *operands: Values) -> Values:
        """Return an operation rounded to nearest even into the intermediate format."""
        return operation(name, operands, self.intermediate, {})

    def last(self, name: str, *operands: Values) -> Any:
        """Return an operation rounded as the call says, as the result of the call."""
        fmt = self.result.fmt
        options = {key: value for key, value in self.result.keywords().items() if key != "fmt"}
        codes = operation(name, operands, fmt, options).codes
        return codes.view(DTYPES[fmt]) if self.typed and fmt in DTYPES else codes

    def sum(self, terms: Values) -> Values:
        """Return the sums along the axis by the accumulator, with an axis of one element."""
        if isinstance(self.accumulate, LaneSum):
            total = self.accumulate.sum(self._rows(terms))
            return self._sums(total.view(np.uint32), FP32)
        codes = sum_of(terms.codes, accumulate=self.accumulate, fmt=terms.fmt, axis=self.axis)
        return self._sums(codes, self.accumulate.result_format)

    def sum_of_squares(self, terms: Values) -> Values:
        """Return the sums of squares along the axis by the accumulator, with an axis of one element."""
        if isinstance(self.accumulate, LaneSum):
            total = self.accumulate.sum_of_squares(self._rows(terms))
            return self._sums(total.view(np.uint32), FP32)
        rows = np.moveaxis(terms.codes, self.axis, -1)
        codes = dot(rows, rows, accumulate=self.accumulate, fmt=terms.fmt)
        return self._sums(codes, self.accumulate.result_format)

    def _rows(self, terms: Values) -> Array:
        """Return values along the axis as float32 rows."""
        values = np.moveaxis(decode(terms.codes, terms.fmt), self.axis, -1)
        return values.reshape(-1, self.length)

    def _sums(self, codes: Any, fmt: Format) -> Values:
        """Return one sum for each row, rounded into the intermediate format, with an axis of one element."""
        shape = list(self.x.codes.shape)
        shape[self.axis] = 1
        sums = np.asarray(codes).view(fmt.storage).reshape(shape)
        if fmt == self.intermediate:
            return Values(sums, fmt)
        values = decode(sums, fmt, np.float64)
        return Values(encode(values, self.intermediate), self.intermediate)

    def number(self, value: float) -> Values:
        """Return a number rounded to nearest even into the intermediate format."""
        return Values(encode(np.float64(value), self.intermediate), self.intermediate)

    def divided_by_count(self, total: Values) -> Values:
        """Return sums divided by the number of terms, rounded into the intermediate format."""
        count = Values(encode(np.float64(self.length), FP32), FP32)  # exact
        return self.step("divide", total, count)

    def largest(self) -> Values:
        """Return the largest element along the axis, NaN if one is NaN, with an axis of one element."""
        fmt = self.x.fmt
        values = decode(self.x.codes, fmt, np.float32 if FP32.holds(fmt) else np.float64)
        with processor().ieee_arithmetic():
            largest = values.max(axis=self.axis, keepdims=True)
        return Values(encode(largest, fmt), fmt)


def operation(name: str, operands: tuple[Values, ...], out: Format, options: Mapping[str, Any]) -> Values:
    """Return an operation on values, rounded once into a format."""
    formats = tuple(each.fmt for each in operands)
    keywords = {"fmt": formats, "out_fmt": out, **options}
    return Values(evaluate(name, tuple(each.codes for each in operands), keywords), out)


def read(name: str, operands: Mapping[str, Any], keywords: Mapping[str, Any]) -> tuple[Method, list[Values | None]]:
    """Check the arguments of a call, and return its method and the operands after x.

    operands: x first, then those that scale and shift it, with their names in messages.
    keywords: axis, fmt, out_fmt, intermediate, accumulate, and those of a cast.
    """
    rest = dict(keywords)
    axis, fmt, out_fmt, intermediate, accumulate = (
        rest.pop(key) for key in ("axis", "fmt", "out_fmt", "intermediate", "accumulate")
    )
    formats = wanted_formats(name, fmt, len(operands))
    values: list[Values | None] = []
    typed = True
    for (label, value), wanted in zip(operands.items(), formats, strict=True):
        if value is None and values:  # x itself must be given
            values.append(None)
            continue
        codes, of_codes, is_float = read_operand(value, wanted, label)
        values.append(Values(codes, of_codes))
        typed = typed and is_float
    x = values[0]
    assert x is not None
    if x.fmt.bits > 32:
        raise ValueError(f"{name} takes formats of up to 32 bits; got {x.fmt}. Round x first with fpsim.cast.")
    along = _checked_axis(name, x, axis)
    result = cast_options(x.fmt if out_fmt is None else format_argument("out_fmt", out_fmt), **rest)
    between = _checked_intermediate(name, intermediate)
    return Method(x, along, between, _checked_accumulate(accumulate, x.fmt), result, typed), values[1:]


def _checked_axis(name: str, x: Values, axis: Any) -> int:
    """Return the axis, counted from 0, if there are elements along it, and not too many."""
    along = checked_axis(axis, x.codes.ndim)
    if along is None or x.codes.ndim == 0:
        raise ValueError(f"{name} works along one axis of x; got axis={shown(axis)} and shape {x.codes.shape}.")
    if not 1 <= x.codes.shape[along] <= MOST_TERMS:
        raise ValueError(
            f"{name} works along an axis of 1 to 2**24 elements; got shape {x.codes.shape} and axis={along}."
        )
    return along % x.codes.ndim


def _checked_intermediate(name: str, intermediate: FormatLike) -> Format:
    """Return the intermediate format, or raise a ValueError if intermediate results cannot have it."""
    fmt = format_argument("intermediate", intermediate)
    if not (fmt.signed and fmt.has_zero and (fmt == FP32 or fmt.bits <= 16)):
        raise ValueError(
            f"{name} has intermediate results in FP32, or in a signed format of up to 16 bits with a zero; got {fmt}. "
            "Pass intermediate='fp32' or 'bf16', for instance."
        )
    return fmt


def _checked_accumulate(accumulate: Any, fmt: Format) -> LaneSum | Accumulator:
    """Return the accumulator, or raise an error if its sums cannot be operands of the steps after it."""
    if not isinstance(accumulate, (LaneSum, Accumulator)):
        raise TypeError(
            f"accumulate must be {KINDS}; got {shown(accumulate)}. Pass fp.Pairwise(fp.FP32), for instance."
        )
    if isinstance(accumulate, LaneSum) and not FP32.holds(fmt):
        raise ValueError(f"fp.LaneSum adds in float32, which does not hold {fmt}; pass another accumulator.")
    if isinstance(accumulate, Accumulator) and accumulate.result_format.bits > 32:
        raise ValueError(
            f"accumulate must give sums of up to 32 bits; got {accumulate.result_format}. Pass fp.Exact(fp.FP32), say."
        )
    return accumulate


def checked_eps(eps: Any) -> float:
    """Return eps as a float.

    Raises:
      ValueError: eps is not a finite number >= 0.
    """
    try:
        value = float(eps)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"eps must be a finite number from 0 on; got {shown(eps)}.")
    return value
