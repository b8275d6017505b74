"""Scalar core: tables from the names of operations to the functions that compute them exactly, before rounding."""

from __future__ import annotations

from typing import Any

from fpsim.core import exact_arithmetic
from fpsim.core.exact_arithmetic import extremum
from fpsim.runtime.compile import scalar

# (number, random word, mask of random bits, mode) -> (number, flags)
UNARY: dict[str, Any] = {
    "sqrt": scalar(lambda x, word, mask, mode: exact_arithmetic.sqrt(x)),
    "round_to_integral": exact_arithmetic.round_to_integral,
    "convert": scalar(lambda x, word, mask, mode: (x, exact_arithmetic.signals(x))),
}
# (number, number, mode) -> (number, flags)
BINARY: dict[str, Any] = {
    "add": exact_arithmetic.add,
    "subtract": scalar(lambda x, y, mode: exact_arithmetic.add(x, exact_arithmetic.negated(y), mode)),
    "multiply": scalar(lambda x, y, mode: exact_arithmetic.multiply(x, y)),
    "divide": scalar(lambda x, y, mode: exact_arithmetic.divide(x, y)),
    "remainder": scalar(lambda x, y, mode: exact_arithmetic.remainder(x, y)),
    "minimum": scalar(lambda x, y, mode: extremum(x, y, False, False)),
    "maximum": scalar(lambda x, y, mode: extremum(x, y, True, False)),
    "minimum_number": scalar(lambda x, y, mode: extremum(x, y, False, True)),
    "maximum_number": scalar(lambda x, y, mode: extremum(x, y, True, True)),
}
# (number, number) -> whether the comparison holds, if neither is NaN
COMPARISONS: dict[str, Any] = {
    "equal": exact_arithmetic.equal,
    "less": exact_arithmetic.less,
    "less_equal": scalar(lambda x, y: exact_arithmetic.less(x, y) | exact_arithmetic.equal(x, y)),
}
