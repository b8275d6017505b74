"""Elementwise comparison of encoded arrays by value: order, minimum and maximum, and the IEEE 754 class."""

from __future__ import annotations

from typing import Any, Unpack

import numpy.typing as npt

from fpsim.arithmetic.evaluate import evaluate
from fpsim.arithmetic.keywords import Rounded, WantedFlags, rounded
from fpsim.arithmetic.operands import Fillable, Formats
from fpsim.arrays import Array


@rounded
def minimum(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Return the elementwise minimum of a and b; NaN if either is NaN, and -0 is below +0 (IEEE 754-2019 minimum).

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.minimum)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.minimum(np.float16([1, 0, np.nan]), np.float16([2, -0.0, 1]))
      array([ 1., -0., nan], dtype=float16)
    """
    return evaluate("minimum", (a, b), keywords)


@rounded
def maximum(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Return the elementwise maximum of a and b; NaN if either is NaN, and +0 is above -0 (IEEE 754-2019 maximum).

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.maximum)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.maximum(np.float16([1, -0.0]), np.float16([2, 0]))
      array([2., 0.], dtype=float16)
    """
    return evaluate("maximum", (a, b), keywords)


@rounded
def minimum_number(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Return the elementwise minimum of a and b; if one is NaN, the other one (IEEE 754-2019 minimumNumber).

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags;
        `help(fpsim.minimum_number)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.minimum_number(np.float16([np.nan, np.nan]), np.float16([1, np.nan]))
      array([ 1., nan], dtype=float16)
    """
    return evaluate("minimum_number", (a, b), keywords)


@rounded
def maximum_number(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Return the elementwise maximum of a and b; if one is NaN, the other one (IEEE 754-2019 maximumNumber).

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags;
        `help(fpsim.maximum_number)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.maximum_number(np.float16([np.nan, 3]), np.float16([1, 2]))
      array([1., 3.], dtype=float16)
    """
    return evaluate("maximum_number", (a, b), keywords)


def equal(
    a: npt.ArrayLike, b: npt.ArrayLike, *, fmt: Formats = None, input_subnormals: str = "keep",
    flags: WantedFlags = False, out: Fillable | None = None,
) -> Any:  # fmt: skip
    """Return whether a == b by value, elementwise; NaN equals nothing, -0 equals +0.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`, in one format or two; their shapes broadcast.
      fmt: format of operands that are codes; a tuple of two if they differ, None for arrays of float dtypes.
      input_subnormals: "keep", or "flush" to read subnormal operands as zeros.
      flags: True to return (bools, uint8 flags per element), "any" for (bools, one `fpsim.Flags` of all); a signalling
        NaN raises INVALID.
      out: bool array of the broadcast shape to fill.

    Returns:
      bool array of the broadcast shape, or `out`; with flags, a tuple (bools, flags).

    Example:
      >>> import fpsim as fp
      >>> fp.equal(np.uint8([0x00, 0x38, 0x7F]), np.uint8([0x80, 0x3C, 0x7F]), fmt=("e4m3", "e5m2"))
      array([ True,  True, False])
    """
    words = {"fmt": fmt, "input_subnormals": input_subnormals, "flags": flags, "out": out}
    return evaluate("equal", (a, b), words)


def less(
    a: npt.ArrayLike, b: npt.ArrayLike, *, fmt: Formats = None, input_subnormals: str = "keep",
    flags: WantedFlags = False, out: Fillable | None = None,
) -> Any:  # fmt: skip
    """Return whether a < b by value, elementwise; a NaN makes the result False, and raises the flag INVALID.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`, in one format or two; their shapes broadcast.
      fmt, input_subnormals, out: as for `fpsim.equal`.
      flags: True to return (bools, uint8 flags per element), "any" for (bools, one `fpsim.Flags` of all).

    Returns:
      bool array of the broadcast shape, or `out`; with flags, a tuple (bools, flags).

    Example:
      >>> import fpsim as fp
      >>> fp.less(np.float16([1, np.nan]), np.float16([2, 2]), flags=True)
      (array([ True, False]), array([ 0, 16], dtype=uint8))
    """
    words = {"fmt": fmt, "input_subnormals": input_subnormals, "flags": flags, "out": out}
    return evaluate("less", (a, b), words)


def less_equal(
    a: npt.ArrayLike, b: npt.ArrayLike, *, fmt: Formats = None, input_subnormals: str = "keep",
    flags: WantedFlags = False, out: Fillable | None = None,
) -> Any:  # fmt: skip
    """Return whether a <= b by value, elementwise; a NaN makes the result False, and raises the flag INVALID.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`, in one format or two; their shapes broadcast.
      fmt, input_subnormals, out: as for `fpsim.equal`.
      flags: True to return (bools, uint8 flags per element), "any" for (bools, one `fpsim.Flags` of all).

    Returns:
      bool array of the broadcast shape, or `out`; with flags, a tuple (bools, flags).

    Example:
      >>> import fpsim as fp
      >>> fp.less_equal(np.float16([0, 3]), np.float16([-0.0, 2]))
      array([ True, False])
    """
    words = {"fmt": fmt, "input_subnormals": input_subnormals, "flags": flags, "out": out}
    return evaluate("less_equal", (a, b), words)


def classify(a: npt.ArrayLike, *, fmt: Formats = None, out: Fillable | None = None) -> Array:
    """Return the IEEE 754 class of each element: zero, subnormal, normal, infinity or NaN, with its sign.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      fmt: the format of a if a holds codes, by name, dtype or object; None if a has a float dtype.
      out: uint8 array of a's shape to fill.

    Returns:
      uint8 array of a's shape with the values of `fpsim.FloatClass`, or `out`.

    Source: IEEE 754-2019, 5.7.2.

    Example:
      >>> import fpsim as fp
      >>> [fp.FloatClass(c).name for c in fp.classify(np.float16([-0.0, 6e-8, 1, np.inf]))]
      ['NEGATIVE_ZERO', 'POSITIVE_SUBNORMAL', 'POSITIVE_NORMAL', 'POSITIVE_INFINITY']
    """
    classes: Array = evaluate("classify", (a,), {"fmt": fmt, "out": out})
    return classes
