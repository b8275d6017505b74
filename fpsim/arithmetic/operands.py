"""Validation of operands: arrays of codes with their formats, their broadcast shape, and the array for the result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fpsim.arrays import (
    FORMAT_OF,
    Array,
    as_array,
    code_array,
    describe_refused,
    format_of,
    is_plain,
    is_small_integer,
    overlaps,
    refuse_shared_elements,
    words,
)
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format

Formats = FormatLike | tuple[FormatLike | None, ...] | None
NAMES = ("a", "b", "c")
MOST_AXES = 32  # that numpy.broadcast takes

UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}


class Fillable(Protocol):
    """An array that results are written to: a NumPy array, or an array of the operands' GPU library."""

    @property
    def dtype(self) -> Any:
        """Dtype of the elements."""

    @property
    def shape(self) -> Any:
        """Lengths of the axes."""


class Operands(NamedTuple):
    """The operands of a call of an elementwise operation.

    Attributes:
      codes: the operands' codes, arrays of unsigned integers that may still have to be broadcast (for from_int: 64-bit
        integers).
      formats: one per operand, () for from_int.
      shape: the broadcast shape.
      typed: True if all operands were passed as arrays of float dtypes, not of codes.
    """

    codes: tuple[Array, ...]
    formats: tuple[Format, ...]
    shape: tuple[int, ...]
    typed: bool


def operands(name: str, values: tuple[npt.ArrayLike, ...], fmt: Formats) -> Operands:
    """Return the checked operands of the operation `name`: codes, formats and broadcast shape.

    values: arrays of float dtypes, or of unsigned codes. fmt: the format of codes, or a tuple of one for each operand;
    None for arrays of float dtypes.

    Raises:
      ValueError: codes have no format or are out of range, or the shapes do not broadcast.
      TypeError: an operand holds neither codes nor floats of the format.
    """
    if type(fmt) is Format and _all_codes(values, full_dtype(fmt)):  # without other calls' checks of each operand
        arrays: tuple[Any, ...] = values
        return Operands(arrays, (fmt,) * len(arrays), broadcast_shape(name, [array.shape for array in arrays]), False)
    wanted_fmts = wanted_formats(name, fmt, len(values))
    codes, formats, typed = zip(*map(read_operand, values, wanted_fmts, NAMES), strict=True)
    return Operands(codes, formats, broadcast_shape(name, [code.shape for code in codes]), all(typed))


def _all_codes(values: tuple[npt.ArrayLike, ...], dtype: np.dtype[Any] | None) -> bool:
    """Return whether all values are NumPy arrays of `dtype`, compared with `is`; False if `dtype` is None."""
    for value in values:  # noqa: SIM110  # a generator takes as long as the rest
        if type(value) is not np.ndarray or value.dtype is not dtype:
            return False
    return True


def integers(n: npt.ArrayLike) -> Operands:
    """Return the operand of from_int, an array of integers, converted to int64 if its dtype is signed, else to uint64.

    Raises:
      TypeError: n does not have an integer dtype of up to 64 bits.
    """
    array = as_array(n, "n")
    if is_small_integer(array.dtype) or (array.size == 0 and not hasattr(n, "dtype")):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        floats = array.dtype.kind == "f" or format_of(array.dtype) is not None
        refusal = f"got {array.dtype}. fpsim.encode rounds floats." if floats else describe_refused(n, array, "n")
        raise TypeError(f"n must be an array of integers of up to 64 bits; {refusal}")
    return Operands((array.astype(f"{array.dtype.kind}8", copy=False),), (), array.shape, False)


def wanted_formats(name: str, fmt: Formats, count: int) -> list[Format | None]:
    """Return a list of the formats that `fmt` names for the `count` operands of the operation `name`.

    fmt: one format for all operands, a tuple or list with one for each, or None. An entry of the result is None for an
    operand for which no format is named.

    Raises:
      ValueError: a tuple of another length than `count`, or an unknown format.
    """
    if fmt is None:
        return [None] * count
    if isinstance(fmt, (tuple, list)):
        if len(fmt) != count:
            raise ValueError(f"fmt must name one format, or {count} for {name}; got {len(fmt)}: {fmt!r}.")
        return [None if item is None else find_format(item) for item in fmt]
    return [find_format(fmt)] * count


def read_operand(value: npt.ArrayLike, wanted_fmt: Format | None, label: str) -> tuple[Array, Format, bool]:
    """Return (codes, format, typed) of one operand of an operation.

    codes: array of unsigned integers, a view of the operand if possible. typed: True if the operand was passed as an
    array of a float dtype, False if it holds codes.

    Args:
      value: codes, or an array of a dtype that stores a format.
      wanted_fmt: the format of codes; None if the dtype determines it.
      label: the operand's name in errors.

    Raises:
      ValueError: codes without a format, or outside it.
      TypeError: the dtype stores another format than `wanted_fmt`, or none.
    """
    if type(value) is np.ndarray:  # the most common input, without the checks that other inputs need
        dtype = value.dtype
        stored = FORMAT_OF.get(dtype)
        if stored is not None and (wanted_fmt is None or wanted_fmt is stored):
            return value.view(UNSIGNED[dtype.itemsize]), stored, True
        if wanted_fmt is not None and dtype is full_dtype(wanted_fmt):
            return value, wanted_fmt, False
    array = as_array(value, label)
    if wanted_fmt is not None and array.size == 0 and not (hasattr(value, "dtype") or hasattr(value, "codes")):
        array = array.astype(wanted_fmt.storage)  # NumPy reads [] as float64
    stored_fmt = format_of(array.dtype)
    if stored_fmt is not None:
        if not hasattr(value, "dtype"):
            remedy = (
                f"pass an array or scalar of a float dtype, such as np.float16({label}), or fpsim.cast({label}, fmt)"
            )
            if hasattr(value, "codes"):
                remedy = "its .decode() returns the values, with which to compute"
            raise TypeError(f"{label} must be codes or of a float dtype; got {type(value).__name__}: {remedy}.")
        if wanted_fmt not in (None, stored_fmt):
            raise TypeError(
                f"{label} is an array of {array.dtype}, which stores {stored_fmt}, but fmt says codes of {wanted_fmt}. "
                f"Leave fmt out, or round it to {wanted_fmt} first with fpsim.encode."
            )
        return words(array), stored_fmt, True
    if wanted_fmt is None:
        if array.dtype.kind in "iu":
            raise ValueError(
                f"{label} holds integers: say which format they are codes of, as in fmt='e4m3', or pass values in a "
                f"float dtype, such as np.float16({label})."
            )
        raise TypeError(
            f"{label} must be unsigned codes with fmt=, or an array of a float dtype of up to 32 bits; "
            f"{describe_refused(value, array, label)}"
        )
    codes = code_array(value, wanted_fmt, label)
    return codes.astype(wanted_fmt.storage, copy=False), wanted_fmt, False


@cache
def full_dtype(fmt: Format) -> np.dtype[Any] | None:
    """Return the storage dtype of a format if every integer of that dtype is a code, else None."""
    return fmt.storage if fmt.bits == 8 * fmt.storage.itemsize else None


def broadcast_shape(
    name: str, shapes: Sequence[tuple[int, ...]], whole: Sequence[tuple[int, ...]] = ()
) -> tuple[int, ...]:  # fmt: skip
    """Return the shape to which `shapes` broadcast by NumPy's rules.

    name: the operation, for errors. whole: the shapes that errors show instead of `shapes`.

    Raises:
      ValueError: the shapes do not broadcast, or have more axes than NumPy broadcasts.
    """
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    axes = max(map(len, shapes))
    if axes > MOST_AXES:
        raise ValueError(
            f"{name} broadcasts arrays of up to {MOST_AXES} axes, as NumPy does; got {axes}. Reshape them to one shape."
        )
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        got = " and ".join(map(str, whole or shapes))
        raise ValueError(
            f"{name} needs operands whose shapes broadcast; got {got}. Reshape one, or insert axes of length 1."
        ) from None


def _is_same(codes: Array, out: Array) -> bool:
    """Return whether `codes` and `out` have the same shape and hold each element at the same address."""
    return (
        codes.__array_interface__["data"][0] == out.__array_interface__["data"][0]
        and codes.strides == out.strides
        and codes.shape == out.shape
        and codes.itemsize == out.itemsize
    )


def check_output(out: Any, inputs: Operands, accepted: Collection[np.dtype[Any]], name: str = "out") -> None:
    """Check that the results of an operation can be written to `out` element by element while operands are read.

    out: the array, or whatever a caller passed. inputs: the operands. accepted: dtypes that `out` may have. name: the
    argument's name, for errors.

    Raises:
      ValueError: out is not an array, has another dtype or shape, is read-only, or shares memory with an operand,
        unless each of its elements is at the address of the same element of that operand.
    """
    dtypes = "" if is_plain(out) and out.dtype in accepted else " or ".join(sorted(np.dtype(x).name for x in accepted))
    if not is_plain(out):
        raise ValueError(f"{name} must be a NumPy array of {dtypes}; got {type(out).__name__}.")
    if out.dtype.newbyteorder("=") not in accepted:
        raise ValueError(f"{name} must have dtype {dtypes}; got {out.dtype}.")
    if out.shape != inputs.shape:
        raise ValueError(f"{name} must have the result's shape {inputs.shape}; got {out.shape}.")
    if not out.flags.writeable:
        raise ValueError(f"{name} must be writeable; got a read-only array. Pass a copy.")
    refuse_shared_elements(out, name)
    for codes in inputs.codes:
        if np.may_share_memory(codes, out) and not _is_same(codes, out) and overlaps(codes, out):
            raise ValueError(
                f"{name} must be an operand itself or share no memory with one; got overlapping arrays. "
                "Pass a separate array."
            )
