"""The rounded operations from which softmax and norms are composed, for any backend."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.operands import wanted_formats
from fpsim.casts.cast import encode
from fpsim.errors import shown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options
from fpsim.formats.keywords import check_keywords
from fpsim.formats.named import FP32, Format, format_argument
from fpsim.norms.backend import NormBackend, Values
from fpsim.norms.keywords import DEFAULTS, NormKeywords
from fpsim.norms.lane_sum import LaneSum
from fpsim.products.reduce import checked_axis
from fpsim.sums.accumulators import Accumulator

MOST_TERMS = 1 << 24  # elements along the axis: float32 holds larger counts only in part
KINDS = "fp.LaneSum(), Sequential, FusedMultiplyAdd, Pairwise, Chunked or Exact"


class Method(NamedTuple):
    """A checked call of softmax or a norm: the operand x, and the settings of all roundings.

    Attributes:
      backend: the CPU's or a GPU's operations.
      x: the operand: codes and their format.
      axis: the axis along which the function is computed, counted from 0.
      intermediate: format of intermediate results.
      accumulate: order and format of sums.
      result: format and rounding of the result.
      typed: True if all operands have float dtypes, so that the result has one as well; False makes it codes.
    """

    backend: NormBackend
    x: Values
    axis: int
    intermediate: Format
    accumulate: LaneSum | Accumulator
    result: CastOptions
    typed: bool

    @property
    def length(self) -> int:
        """Number of elements of x along the axis."""
        return self.x.shape[self.axis]

    def step(self, name: str, *operands: Values) -> Values:
        """Return the result of an operation on codes, rounded to nearest even to the intermediate format.

        name: operation of `fpsim.arithmetic`, such as "divide". operands: codes with their formats, which broadcast.
        """
        return self.backend.step(name, operands, self.intermediate)

    def last(self, name: str, *operands: Values) -> Any:
        """Return the result of the last operation, rounded with the call's options, as an array for the caller.

        name: operation of `fpsim.arithmetic`, such as "divide". operands: codes with their formats, which broadcast.
        """
        return self.backend.last(name, operands, self.result, self.typed)

    def sum(self, terms: Values, *, squares: bool = False) -> Values:
        """Return the sums of `terms` along the axis, whose length becomes 1, rounded to the intermediate format.

        squares: add the squares of the terms instead.

        Raises:
          ValueError: the accumulator is a LaneSum, and float32 does not hold the terms' format.
        """
        if isinstance(self.accumulate, LaneSum):
            if not FP32.holds(terms.fmt):
                raise ValueError(f"fp.LaneSum adds in float32, which does not hold {terms.fmt}. Pass fp.Exact('fp32').")
            sums = self.backend.lane_sums(self.accumulate, terms, self.axis, squares)
        else:
            sums = self.backend.sums(self.accumulate, terms, self.axis, squares)
        shape = list(self.x.shape)
        shape[self.axis] = 1
        sums = self.backend.reshaped(sums, tuple(shape))
        return sums if sums.fmt == self.intermediate else self.backend.rounded(sums, self.intermediate)

    def divided_by_count(self, total: Values) -> Values:
        """Return the sums `total` / number of elements along the axis, rounded to the intermediate format."""
        count = Values(encode(np.float64(self.length), FP32), FP32)  # exact
        return self.step("divide", total, count)

    def centred(self) -> Values:
        """Return x minus its mean along the axis, both rounded to the intermediate format."""
        return self.step("subtract", self.x, self.divided_by_count(self.sum(self.x)))

    def along(self, values: Values, name: str) -> Values:
        """Return an operand, such as a weight with a number for each element along the axis, in a shape for x.

        values: the operand, (n,). The result broadcasts with x. name: what the error calls the operand, such as
        "weight".

        Raises:
          ValueError: the operand has another shape.
        """
        if values.shape != (self.length,):
            raise ValueError(
                f"{name} must have one element for each along the axis, shape ({self.length},); got {values.shape}."
            )
        shape = [1] * len(self.x.shape)
        shape[self.axis] = self.length
        return self.backend.reshaped(values, tuple(shape))


def read(
    function: Callable[..., Any], operands: Mapping[str, Any], keywords: NormKeywords, backend: NormBackend
) -> tuple[Method, list[Values | None]]:
    """Check the arguments of softmax or a norm; return (the checked call, its other operands).

    The list of other operands is [] for softmax, [weight] for rms_norm and [weight, bias] for layer_norm; a weight or
    bias that was not passed is None in the list.

    Args:
      function: the function that was called, such as `fp.softmax`.
      operands: name -> array, x first, then weight and bias, which may be None.
      keywords: keyword arguments of the call; missing ones have the defaults.
      backend: the operations of the CPU or a GPU.

    Raises:
      ValueError, TypeError: as the functions document.
    """
    check_keywords(function, keywords, DEFAULTS)
    name = function.__name__
    rest: dict[str, Any] = {**DEFAULTS, **keywords}
    axis, fmt, out_fmt, intermediate, accumulate = (
        rest.pop(key) for key in ("axis", "fmt", "out_fmt", "intermediate", "accumulate")
    )
    (x_format, *formats) = wanted_formats(name, fmt, len(operands))
    (x_name, *names) = operands
    x, typed = backend.read(operands[x_name], x_format, x_name)
    values: list[Values | None] = []
    for label, wanted in zip(names, formats, strict=True):
        if operands[label] is None:
            values.append(None)
            continue
        operand, is_float = backend.read(operands[label], wanted, label)
        values.append(operand)
        typed = typed and is_float
    if x.fmt.bits > 32:
        raise ValueError(f"{name} takes formats of up to 32 bits; got {x.fmt}. Round x first with fpsim.cast.")
    along = _checked_axis(name, x, axis)
    result = cast_options(x.fmt if out_fmt is None else format_argument("out_fmt", out_fmt), **rest)
    between = _checked_intermediate(name, intermediate)
    return Method(backend, x, along, between, _checked_accumulate(accumulate), result, typed), values


def _checked_axis(name: str, x: Values, axis: Any) -> int:
    """Return the axis, counted from 0; raise ValueError unless x has 1 to 2**24 elements along this axis.

    name: name of the function, for the error.
    """
    along = checked_axis(axis, len(x.shape))
    if along is None or not x.shape:
        raise ValueError(f"{name} works along one axis of x; got axis={shown(axis)} and shape {x.shape}.")
    if not 1 <= x.shape[along] <= MOST_TERMS:
        raise ValueError(f"{name} works along an axis of 1 to 2**24 elements; got shape {x.shape} and axis={along}.")
    return along % len(x.shape)


def _checked_intermediate(name: str, intermediate: FormatLike) -> Format:
    """Return the intermediate format; raise ValueError unless it is FP32, or signed with up to 16 bits and a zero.

    name: name of the function, for the error.
    """
    fmt = format_argument("intermediate", intermediate)
    if not (fmt.signed and fmt.has_zero and (fmt == FP32 or fmt.bits <= 16)):
        raise ValueError(
            f"intermediate must be FP32, or a signed format of up to 16 bits with a zero, for {name}; got {fmt}. "
            "Pass intermediate='fp32' or 'bf16', for instance."
        )
    return fmt


def _checked_accumulate(accumulate: Any) -> LaneSum | Accumulator:
    """Return `accumulate` unchanged, after checking that it is one and that its sums have at most 32 bits.

    Raises:
      TypeError: accumulate is neither a LaneSum nor an Accumulator.
      ValueError: accumulate is an Accumulator, and its result format has more than 32 bits.
    """
    if not isinstance(accumulate, (LaneSum, Accumulator)):
        raise TypeError(
            f"accumulate must be {KINDS}; got {shown(accumulate)}. Pass fp.Pairwise(fp.FP32), for instance."
        )
    if isinstance(accumulate, Accumulator) and accumulate.result_format.bits > 32:
        raise ValueError(
            f"accumulate must have sums of up to 32 bits; got {accumulate.result_format}. Pass fp.Exact(fp.FP32), say."
        )
    return accumulate


def checked_eps(eps: Any) -> float:
    """Return eps as a float; raise a ValueError unless it is a finite number >= 0 (bools and texts are not numbers)."""
    try:
        value = math.nan if isinstance(eps, (bool, np.bool_, str, bytes, bytearray)) else float(eps)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"eps must be a finite number >= 0; got {shown(eps)}.")
    return value
