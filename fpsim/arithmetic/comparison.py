"""Comparison of encoded arrays by value: order, the smaller and the larger one, and the class of each element."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.evaluate import evaluate, evaluate_rounded
from fpsim.arithmetic.keywords import Rounded, WantedFlags, rounded
from fpsim.arithmetic.operands import Formats, check_output, operands
from fpsim.arithmetic.operation import operation
from fpsim.arrays import Array


@rounded
def minimum(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """The smaller of two values; -0 is smaller than +0, and NaN if either is NaN (IEEE 754-2019 minimum).

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.

    Example:
      >>> import fpsim as fp
      >>> fp.minimum(np.float16([1, 0, np.nan]), np.float16([2, -0.0, 1]))
      array([ 1., -0., nan], dtype=float16)
    """
    return evaluate_rounded("minimum", (a, b), keywords)


@rounded
def maximum(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """The larger of two values; +0 is larger than -0, and NaN if either is NaN (IEEE 754-2019 maximum).

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.

    Example:
      >>> import fpsim as fp
      >>> fp.maximum(np.float16([1, -0.0]), np.float16([2, 0]))
      array([2., 0.], dtype=float16)
    """
    return evaluate_rounded("maximum", (a, b), keywords)


@rounded
def minimum_number(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """The smaller of two values, where a NaN gives way to a number (IEEE 754-2019 minimumNumber).

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.

    Example:
      >>> import fpsim as fp
      >>> fp.minimum_number(np.float16([np.nan, np.nan]), np.float16([1, np.nan]))
      array([ 1., nan], dtype=float16)
    """
    return evaluate_rounded("minimum_number", (a, b), keywords)


@rounded
def maximum_number(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """The larger of two values, where a NaN gives way to a number (IEEE 754-2019 maximumNumber).

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.

    Example:
      >>> import fpsim as fp
      >>> fp.maximum_number(np.float16([np.nan, 3]), np.float16([1, 2]))
      array([1., 3.], dtype=float16)
    """
    return evaluate_rounded("maximum_number", (a, b), keywords)


def equal(
    a: npt.ArrayLike, b: npt.ArrayLike, *, fmt: Formats = None, input_subnormals: str = "keep",
    flags: WantedFlags = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """Whether a == b by value; NaN equals nothing, -0 equals +0.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`, in one format or two; their shapes broadcast.
      fmt, input_subnormals: as for `fpsim.add`.
      flags: as for `fpsim.add`; a signalling NaN raises INVALID.
      out: bool array of the broadcast shape to fill.

    Returns:
      bool array of the broadcast shape; with flags, a tuple of it and them.

    Example:
      >>> import fpsim as fp
      >>> fp.equal(np.uint8([0x00, 0x38, 0x7F]), np.uint8([0x80, 0x3C, 0x7F]), fmt=("e4m3", "e5m2"))
      array([ True,  True, False])
    """
    return _compare("equal", a, b, fmt, input_subnormals, flags, out)


def less(
    a: npt.ArrayLike, b: npt.ArrayLike, *, fmt: Formats = None, input_subnormals: str = "keep",
    flags: WantedFlags = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """Whether a < b by value; false where one is NaN, which raises INVALID.

    Args: as for `fpsim.equal`.

    Example:
      >>> import fpsim as fp
      >>> fp.less(np.float16([1, np.nan]), np.float16([2, 2]), flags=True)
      (array([ True, False]), array([ 0, 16], dtype=uint8))
    """
    return _compare("less", a, b, fmt, input_subnormals, flags, out)


def less_equal(
    a: npt.ArrayLike, b: npt.ArrayLike, *, fmt: Formats = None, input_subnormals: str = "keep",
    flags: WantedFlags = False, out: Array | None = None,
) -> Any:  # fmt: skip
    """Whether a <= b by value; false where one is NaN, which raises INVALID.

    Args: as for `fpsim.equal`.

    Example:
      >>> import fpsim as fp
      >>> fp.less_equal(np.float16([0, 3]), np.float16([-0.0, 2]))
      array([ True, False])
    """
    return _compare("less_equal", a, b, fmt, input_subnormals, flags, out)


def classify(a: npt.ArrayLike, *, fmt: Formats = None, out: Array | None = None) -> Array:
    """The class of each element.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      out: uint8 array of a's shape to fill.

    Returns:
      uint8 array of a's shape with the values of `fpsim.FloatClass`.

    Source: IEEE 754-2019, 5.7.2.

    Example:
      >>> import fpsim as fp
      >>> [fp.FloatClass(c).name for c in fp.classify(np.float16([-0.0, 6e-8, 1, np.inf]))]
      ['NEGATIVE_ZERO', 'POSITIVE_SUBNORMAL', 'POSITIVE_NORMAL', 'POSITIVE_INFINITY']
    """
    given = operands("classify", (a,), fmt)
    what = operation("classify", given.formats, given.formats[0])
    result = np.empty(given.shape, np.uint8) if out is None else out
    check_output(result, given, {np.dtype(np.uint8)})
    found: Array = evaluate(what, given, result, result, False)
    return found


def _compare(
    name: str, a: npt.ArrayLike, b: npt.ArrayLike, fmt: Formats, input_subnormals: str, flags: WantedFlags,
    out: Array | None,
) -> Any:  # fmt: skip
    given = operands(name, (a, b), fmt)
    what = operation(name, given.formats, given.formats[0], input_subnormals=input_subnormals)
    result = np.empty(given.shape, np.bool_) if out is None else out
    check_output(result, given, {np.dtype(np.bool_)})
    return evaluate(what, given, result, result, flags)
