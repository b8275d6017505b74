"""Bitwise comparison of arrays, with a message that names the first different element, its bits and its codes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.encoded_array import EncodedArray
from fpsim.arrays import Array, as_array, describe_refused, format_of, is_small_integer, without_gradient, words
from fpsim.casts.cast import decode, encode
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.element import Element, coded_element
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import Format
from fpsim.scaling.scaled_arrays import ScaledArrays
from fpsim.scaling.scaling import Scaling
from fpsim.testing.pasted import hexadecimal

DERIVED = ("scale_codes", "tensor_scale")  # parts that follow from the scales


class ComparedSide(NamedTuple):
    """One of the two objects that `assert_bits_equal` compares.

    Attributes:
      kind: "a plain array", "an EncodedArray" or "a Scaled array".
      fmt: the format of its elements, or None.
      scaling: the scaling of a Scaled array, else None.
      parts: its arrays by name, each with the format of its elements or None. The name is "" for the only array of a
        plain or an EncodedArray; a Scaled has "codes", "scales", "scale_codes", "zero_points" and "tensor_scale", those
        that are not None.
    """

    kind: str
    fmt: Element | None
    scaling: Scaling | None
    parts: dict[str, tuple[Array, Element | None]]


def assert_bits_equal(got: object, want: object, *, fmt: FormatLike | None = None) -> None:
    """Raise an AssertionError unless two arrays hold the same bits; -0.0 differs from 0.0, and any two NaNs are equal.

    Codes (integer arrays, `fp.array`, `fp.Scaled`) are compared as integers: the code of a NaN equals only itself. An
    `fp.array` equals only an `fp.array`, and an `fp.Scaled` only an `fp.Scaled`, of the same format, scaling and
    scales.

    Args:
      got: the result under test: an array of floats (NumPy, ml_dtypes, torch) or integers, of any shape; an
        EncodedArray; or a Scaled.
      want: the right result, of the same kind, dtype and shape.
      fmt: the format whose values or codes these are, by name, dtype or object: the message then shows each element as
        a number, a hexadecimal float and a code. The format of an EncodedArray or Scaled must equal `fmt`. None shows
        each element of a plain array as a bit pattern and a number.

    Raises:
      AssertionError: kind, format, scaling, dtype, shape or a bit differs; the message names the index of the first
        difference, and says if scales are along the wrong axis.
      TypeError: a masked array, or an object that holds neither real floats nor integers.
      ValueError: an unknown format.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.testing import assert_bits_equal
      >>> assert_bits_equal(np.float32([0.0, np.nan]), np.float32([0.0, np.nan]))
      >>> assert_bits_equal(np.float32([1.0, 0.0]), np.float32([1.0, -0.0]))
      Traceback (most recent call last):
          ...
      AssertionError: 1 of 2 elements differ, first at index (1,): got 0x00000000 (0.0), want 0x80000000 (-0.0).
      >>> assert_bits_equal(np.uint8([0x38, 0x3A]), np.uint8([0x38, 0x3B]), fmt="e4m3")
      Traceback (most recent call last):
          ...
      AssertionError: 1 of 2 elements differ, first at index (1,): got code 0x3A (1.25 = 0x1.4000000000000p+0), want
        code 0x3B (1.375 = 0x1.6000000000000p+0) of E4M3.
    """
    __tracebackhide__ = True
    element = None if fmt is None else coded_element(fmt)
    difference = _difference(_side(got, "got", element), _side(want, "want", element), element)
    if difference:
        raise AssertionError(difference)


def _side(x: Any, name: str, fmt: Element | None) -> ComparedSide:
    """Return an argument of `assert_bits_equal` split into its arrays.

    x: the argument: an EncodedArray, a Scaled array or anything `np.asarray` takes. name: its name in errors. fmt: the
    format of a plain array's elements, or None.

    Raises:
      TypeError: the object holds neither real floats nor integers nor truth values.
    """
    if isinstance(x, EncodedArray):
        return ComparedSide("an EncodedArray", x.fmt, None, {"": (x.codes, x.fmt)})
    if isinstance(x, ScaledArrays):
        formats = {"codes": x.fmt, "scale_codes": x.scaling.scale_format}
        arrays = {**x._arrays(), "tensor_scale": x.tensor_scale}
        parts = {part: (as_array(array), formats.get(part)) for part, array in arrays.items() if array is not None}
        return ComparedSide("a Scaled array", x.fmt, x.scaling, parts)
    array = as_array(without_gradient(x), name)
    if array.dtype.kind not in "iub" and format_of(array.dtype) is None and not is_small_integer(array.dtype):
        raise TypeError(
            f"{name} must hold real floats of up to 64 bits, integers or truth values; "
            f"{describe_refused(x, array, name)}"
        )
    return ComparedSide("a plain array", None, None, {"": (array, fmt)})


def _difference(got: ComparedSide, want: ComparedSide, fmt: Element | None) -> str:
    """Return a sentence on the first difference between the compared objects `got` and `want`, or "" if they are equal.

    fmt: the format that the caller of `assert_bits_equal` passed, or None.
    """
    if got.kind != want.kind:
        kinds = [side.kind if side.fmt is None else f"{side.kind} of {side.fmt}" for side in (got, want)]
        return (
            f"kinds differ: got {kinds[0]}, want {kinds[1]}. Compare codes with codes (.codes), or values with values "
            "(np.asarray)."
        )
    expected = want.fmt if fmt is None or want.fmt is None else fmt
    for side in (got, want):
        if side.fmt != expected:
            return f"formats differ: got {side.fmt}, want {expected}."
    if got.scaling != want.scaling:
        assert got.scaling is not None
        assert want.scaling is not None
        small = max(len(got.scaling.block), len(want.scaling.block)) <= 2
        turned = small and got.scaling.transposed() == want.scaling.replace()
        along = ": the scales are along the other axis" if turned else ""
        return f"scalings differ: got {got.scaling!r}, want {want.scaling!r}{along}."
    for part in dict.fromkeys([*want.parts, *got.parts]):
        if part in got.parts and part in want.parts:
            difference = _of_arrays(part, *got.parts[part], want.parts[part][0])
            if difference:
                return difference
        elif part not in DERIVED:
            return f"{part} are missing from {'want' if part in got.parts else 'got'}."
    return ""


def _of_arrays(part: str, got: Array, fmt: Element | None, want: Array) -> str:
    """Return a sentence on the first difference between the arrays `got` and `want`, or "" if they are equal.

    part: attribute of an `fp.Scaled` that holds the arrays, such as "codes"; "" for arrays from other objects. fmt: the
    format of their codes or values, in which the sentence shows them; None shows bit patterns.
    """
    of = f" of {part}" if part else ""
    if got.dtype != want.dtype:
        return f"dtypes{of} differ: got {got.dtype}, want {want.dtype}."
    if got.shape != want.shape:
        return f"shapes{of} differ: got {got.shape}, want {want.shape}{_transposed(part, got, want)}."
    differ = _differing(got, want)
    if not differ.any():
        return ""
    index = tuple(int(i) for i in np.argwhere(differ)[0])
    shown = f"got {_shown(got[index], fmt)}, want {_shown(want[index], fmt)}{f' of {fmt}' if fmt else ''}"
    where = f"{int(differ.sum())} of {got.size} {part or 'elements'} differ, first at index {index}"
    return f"{where}: {shown}{_transposed(part, got, want)}."


def _differing(got: Array, want: Array) -> Any:
    """Return a bool mask of the elements whose bits differ between two arrays; of floats, two NaNs count as equal.

    Codes of NaN count as equal only if they are the same code.
    """
    differ = np.asarray(words(got) != words(want))
    if got.dtype.kind in "iub":
        return differ
    with np.errstate(invalid="ignore"):  # a signalling NaN is a NaN like any other
        return differ & ~(np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))


def _transposed(part: str, got: Array, want: Array) -> str:
    """Return a remark for the message if `got` is `want` transposed or has scales along the other axis, else "".

    part: name of the arrays, such as "scale_codes".
    """
    if got.ndim < 2 or got.T.shape != want.shape:
        return ""
    equal = not _differing(got.T, want).any()
    if part.startswith("scale") and (equal or got.shape != want.shape):
        return ": the scales are along the other axis"
    return ": got is want with its axes swapped (got.T)" if equal else ""


def _shown(value: Any, fmt: Element | None) -> str:
    """Return an array element (a NumPy scalar) as text: its bit pattern and value.

    fmt: the format of the element, in which the text also shows a hexadecimal float and a code; or None.
    """
    bits = words(np.asarray(value))
    pattern = hexadecimal(bits)
    if fmt is None:
        return f"{pattern} ({value})"
    stored = format_of(value.dtype)
    if stored is None or stored == fmt:
        return f"code {pattern}{_value_of(int(bits), fmt)}"
    number = float(value)
    return f"{pattern} ({number!r} = {number.hex()}, {_code_of(value, fmt)})"


def _value_of(code: int, fmt: Element) -> str:
    """Return the value of a code in parentheses, such as " (-3)"; "" for LogFMT, whose values depend on the tile."""
    if isinstance(fmt, IntegerFormat):
        return f" ({code - (1 << 8) if fmt.signed and code >= 1 << 7 else code})"  # a byte holds each
    if not isinstance(fmt, Format):
        return ""  # levels of a logarithm, which its tile decides
    if code >= 1 << fmt.bits:
        return f" (beyond the {fmt.bits} bits)"
    value = fmt.value_of(code)
    return f" ({value!r} = {value.hex()})"


def _code_of(value: Any, fmt: Element) -> str:
    """Return the code of `value`, a NumPy scalar, in a format as text, such as "code 0x38".

    The text is "no value" if `fmt` cannot represent the value, and "no code" if `fmt` is not a float format
    (`fpsim.Format`).
    """
    if not isinstance(fmt, Format):
        return "no code"
    double = np.asarray(value, np.float64)
    code = encode(double, fmt)
    if _differing(decode(code, fmt, np.float64), double):
        return "no value"
    return f"code {hexadecimal(code)}"
