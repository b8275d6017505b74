"""Scalar core: tables from the names of operations to the functions that compute them exactly, before rounding."""

from __future__ import annotations

from typing import Any

from fpsim.core import exact_arithmetic
from fpsim.core.number import Number
from fpsim.runtime.compile import scalar


@scalar
def _add(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.add(x, y, mode)


@scalar
def _subtract(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.add(x, exact_arithmetic.negated(y), mode)


@scalar
def _multiply(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.multiply(x, y)


@scalar
def _divide(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.divide(x, y)


@scalar
def _remainder(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.remainder(x, y)


@scalar
def _minimum(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.extremum(x, y, False, False)


@scalar
def _maximum(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.extremum(x, y, True, False)


@scalar
def _minimum_number(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.extremum(x, y, False, True)


@scalar
def _maximum_number(x: Number, y: Number, mode: int) -> Any:
    return exact_arithmetic.extremum(x, y, True, True)


@scalar
def _sqrt(x: Number, word: Any, mask: Any, mode: int) -> Any:
    return exact_arithmetic.sqrt(x)


@scalar
def _integral(x: Number, word: Any, mask: Any, mode: int) -> Any:
    return exact_arithmetic.round_to_integral(x, word, mask, mode)


@scalar
def _convert(x: Number, word: Any, mask: Any, mode: int) -> Any:
    return x, exact_arithmetic.signals(x)


@scalar
def _is_equal(x: Number, y: Number) -> Any:
    return exact_arithmetic.equal(x, y)


@scalar
def _is_less(x: Number, y: Number) -> Any:
    return exact_arithmetic.less(x, y)


@scalar
def _is_less_or_equal(x: Number, y: Number) -> Any:
    return exact_arithmetic.less(x, y) | exact_arithmetic.equal(x, y)


# (number, random word, mask of random bits, mode) -> (number, flags)
UNARY = {"sqrt": _sqrt, "round_to_integral": _integral, "convert": _convert}
# (number, number, mode) -> (number, flags)
BINARY = {
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "divide": _divide,
    "remainder": _remainder,
    "minimum": _minimum,
    "maximum": _maximum,
    "minimum_number": _minimum_number,
    "maximum_number": _maximum_number,
}
# (number, number) -> whether the comparison holds; it does not for a NaN
COMPARISONS = {"equal": _is_equal, "less": _is_less, "less_equal": _is_less_or_equal}
