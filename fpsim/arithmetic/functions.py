"""Elementwise arithmetic on encoded arrays: the exact result, rounded once, with the flags of IEEE 754."""

from __future__ import annotations

from typing import Any, Unpack

import numpy.typing as npt

from fpsim.arithmetic.evaluate import evaluate
from fpsim.arithmetic.keywords import Rounded, WantedFlags, rounded
from fpsim.arithmetic.operands import Fillable, Formats


@rounded
def add(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a + b elementwise, rounded once.

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.add)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> x = fp.cast(np.float32([448, 0.0625, 1]), "e4m3")
      >>> fp.add(x, x[1:2])
      array([448, 0.125, 1], dtype='float8_e4m3fn')
      >>> fp.add(np.uint8([0x38, 0x7E]), np.uint8([0x30, 0x7E]), fmt="e4m3", flags=True)
      (array([ 60, 127], dtype=uint8), array([0, 5], dtype=uint8))
    """
    return evaluate("add", (a, b), keywords)


@rounded
def subtract(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a - b elementwise, rounded once.

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.subtract)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.subtract(np.float16([1, 1]), np.float16([1, 0.5]), rounding="down")
      array([-0. ,  0.5], dtype=float16)
    """
    return evaluate("subtract", (a, b), keywords)


@rounded
def multiply(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a * b elementwise, rounded once.

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.multiply)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> codes = fp.multiply(np.uint8([0x39]), np.uint8([0x3D]), fmt=("e4m3", "e5m2"), out_fmt="bf16")
      >>> fp.decode(codes, "bf16")
      array([1.40625], dtype=float32)
    """
    return evaluate("multiply", (a, b), keywords)


@rounded
def divide(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a / b elementwise, rounded once.

    A quotient x / 0 is infinite, with the flag DIVIDE_BY_ZERO; its code follows `overflow`, as in `fpsim.encode`.

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.divide)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> one, zero = np.float16(1), np.float16([0, 3])
      >>> fp.divide(one, zero, flags="any")
      (array([   inf, 0.3333], dtype=float16), <Flags.INEXACT|DIVIDE_BY_ZERO: 9>)
    """
    return evaluate("divide", (a, b), keywords)


@rounded
def remainder(a: npt.ArrayLike, b: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute IEEE 754's remainder a - n * b elementwise, where n is the integer nearest to a / b, ties to even.

    The remainder is exact in the format of a and b.

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.remainder)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.remainder(np.float16([5, 6, 7]), np.float16(4))
      array([ 1., -2., -1.], dtype=float16)
    """
    return evaluate("remainder", (a, b), keywords)


@rounded
def fma(a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute a * b + c elementwise, rounded once (fused multiply-add).

    The result has the operands' broadcast shape, and their format or `out_fmt`. It holds unsigned codes if an operand
    does or if no dtype stores the format; else it has the format's dtype.

    Args:
      a, b, c: arrays of a float dtype, or unsigned codes with `fmt`; their shapes broadcast.
      keywords: options of formats, rounding and flags; `help(fpsim.fma)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> x = np.float16(1.001)
      >>> fp.fma(x, x, np.float16(-1.002)), fp.add(fp.multiply(x, x), np.float16(-1.002))
      (array(9.5e-07, dtype=float16), array(0., dtype=float16))
    """
    return evaluate("fma", (a, b, c), keywords)


@rounded
def sqrt(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Compute the square root elementwise, rounded once.

    The root of -0 is -0; other negative numbers become NaN, with the flag INVALID.

    The result has the shape of a, and its format or `out_fmt`. It holds unsigned codes if a does or if no dtype stores
    the format; else it has the format's dtype.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags; `help(fpsim.sqrt)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.sqrt(np.float16([4, 2, -1]), flags=True)
      (array([2.   , 1.414,   nan], dtype=float16), array([ 0,  1, 16], dtype=uint8))
    """
    return evaluate("sqrt", (a,), keywords)


@rounded
def round_to_integral(a: npt.ArrayLike, **keywords: Unpack[Rounded]) -> Any:
    """Round each element to an integer in the same format and raise the flag INEXACT where it was not one.

    The result has the shape and format of a, and its dtype.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      keywords: options of formats, rounding and flags;
        `help(fpsim.round_to_integral)` lists them, and describes the result.

    Example:
      >>> import fpsim as fp
      >>> fp.round_to_integral(np.float16([2.5, -0.3]), rounding="nearest_even")
      array([ 2., -0.], dtype=float16)
    """
    return evaluate("round_to_integral", (a,), keywords)


def next_up(
    a: npt.ArrayLike, *, fmt: Formats = None, overflow: str = "nonfinite", flags: WantedFlags = False,
    out: Fillable | None = None,
) -> Any:  # fmt: skip
    """Return for each element the next larger value of its format.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      fmt: the format of a if a holds codes, by name, dtype or object; None if a has a float dtype.
      overflow: the overflow policy, as in `fpsim.encode`, which decides the result above the largest finite value: Inf,
        NaN, or that value.
      flags: True to return (values, uint8 flags per element), "any" for (values, one `fpsim.Flags` of all); a
        signalling NaN raises INVALID.
      out: array to fill, of the dtype and shape of a; it may be a.

    Returns:
      Array of a's dtype and shape, or `out`; with flags, a tuple (values, flags). A NaN stays a NaN.

    Example:
      >>> import fpsim as fp
      >>> fp.next_up(np.uint8([0x38, 0x80, 0x7E]), fmt="e4m3")
      array([ 57,   1, 127], dtype=uint8)
    """
    return evaluate("next_up", (a,), {"fmt": fmt, "overflow": overflow, "flags": flags, "out": out})


def next_down(
    a: npt.ArrayLike, *, fmt: Formats = None, overflow: str = "nonfinite", flags: WantedFlags = False,
    out: Fillable | None = None,
) -> Any:  # fmt: skip
    """Return for each element the next smaller value of its format.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      fmt, overflow, flags, out: as for `fpsim.next_up`; overflow decides the result below the lowest finite value.

    Returns:
      Array of a's dtype and shape, or `out`; with flags, a tuple (values, flags). A NaN stays a NaN.

    Example:
      >>> import fpsim as fp
      >>> fp.next_down(np.float16([1, 0]))
      array([ 9.995e-01, -5.960e-08], dtype=float16)
    """
    return evaluate("next_down", (a,), {"fmt": fmt, "overflow": overflow, "flags": flags, "out": out})


def negative(a: npt.ArrayLike, *, fmt: Formats = None, overflow: str = "nonfinite", out: Fillable | None = None) -> Any:
    """Return -a elementwise: the sign bit is flipped, of NaN too. Formats without -0 keep their zero and their NaN.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      fmt: the format of a if a holds codes, by name, dtype or object; None if a has a float dtype.
      overflow: the overflow policy, as in `fpsim.encode`, which decides what a negative value becomes in an unsigned
        format.
      out: array to fill, of the dtype and shape of a; it may be a.

    Returns:
      Array of a's dtype and shape, or `out`.

    Example:
      >>> import fpsim as fp
      >>> fp.negative(np.uint8([0x38, 0x00, 0x7F]), fmt="e4m3")
      array([184, 128, 255], dtype=uint8)
    """
    return evaluate("negative", (a,), {"fmt": fmt, "overflow": overflow, "out": out})


def absolute(a: npt.ArrayLike, *, fmt: Formats = None, out: Fillable | None = None) -> Any:
    """Return |a| elementwise: the sign bit is cleared, of NaN too.

    Args:
      a: array of a float dtype, or unsigned codes with `fmt`.
      fmt: the format of a if a holds codes, by name, dtype or object; None if a has a float dtype.
      out: array to fill, of the dtype and shape of a; it may be a.

    Returns:
      Array of a's dtype and shape, or `out`.

    Example:
      >>> import fpsim as fp
      >>> fp.absolute(np.float16([-1.5, -0.0]))
      array([1.5, 0. ], dtype=float16)
    """
    return evaluate("absolute", (a,), {"fmt": fmt, "out": out})
