"""Operands at the door: arrays of codes with their formats, broadcast, and the array that takes the result."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, code_array, format_of, from_torch, is_torch, overlaps, refuse_masked, words
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import DTYPES, Format
from fpsim.formats.named import format as find_format

Formats = FormatLike | tuple[FormatLike | None, ...] | None
NAMES = ("a", "b", "c")


class Operands(NamedTuple):
    """Codes in the storage dtypes of their formats, and whether all came as arrays of float dtypes."""

    codes: tuple[Array, ...]
    formats: tuple[Format, ...]
    shape: tuple[int, ...]
    typed: bool


def operands(name: str, values: tuple[npt.ArrayLike, ...], fmt: Formats) -> Operands:
    """Check the operands of an operation.

    Raises:
      ValueError: codes without a format, out of range, or shapes that do not broadcast.
      TypeError: neither codes nor floats of the format.
    """
    wanted = wanted_formats(name, fmt, len(values))
    read = [read_operand(value, want, label) for value, want, label in zip(values, wanted, NAMES, strict=False)]
    codes = tuple(code for code, _, _ in read)
    return Operands(
        codes, tuple(found for _, found, _ in read), _broadcast(name, codes), all(typed for _, _, typed in read)
    )


def wanted_formats(name: str, fmt: Formats, count: int) -> list[Format | None]:
    """The format that fmt= gives each operand."""
    if fmt is None:
        return [None] * count
    if isinstance(fmt, (tuple, list)):
        if len(fmt) != count:
            raise ValueError(f"fmt must name one format, or {count} for {name}; got {len(fmt)}: {fmt!r}.")
        return [None if one is None else find_format(one) for one in fmt]
    return [find_format(fmt)] * count


def read_operand(value: npt.ArrayLike, wanted: Format | None, label: str) -> tuple[Array, Format, bool]:
    """(codes, format, whether the value came in a float dtype)."""
    refuse_masked(value, label)
    array = from_torch(value) if is_torch(value) else np.asarray(value)
    own = format_of(array.dtype)
    if own is not None and not hasattr(value, "dtype"):
        remedy = (
            "pass its .codes with fmt=, or use its operators and methods"
            if hasattr(value, "codes")
            else (f"pass an array or scalar of a float dtype, such as np.float16({label}), or fpsim.cast({label}, fmt)")
        )
        raise TypeError(f"{label} must be codes or of a float dtype; got {type(value).__name__}: {remedy}.")
    if own is not None and wanted not in (None, own):
        raise TypeError(
            f"{label} is an array of {array.dtype}, which stores {own}, but fmt says codes of {wanted}. Leave fmt out, "
            f"or round it to {wanted} first with fpsim.encode."
        )
    if own is not None and wanted in (None, own):
        return words(array), own, True
    if wanted is None:
        if array.dtype.kind in "iu":
            raise ValueError(
                f"{label} holds integers: say which format they are codes of, as in fmt='e4m3', or pass values in a "
                f"float dtype, such as np.float16({label})."
            )
        raise TypeError(
            f"{label} must be unsigned codes with fmt=, or an array of a float dtype of up to 32 bits; "
            f"got {array.dtype}. fpsim.encode turns values into codes."
        )
    codes = code_array(array, wanted, label)
    return codes.astype(wanted.storage, copy=False), wanted, False


def _broadcast(name: str, codes: tuple[Array, ...]) -> tuple[int, ...]:
    shape = codes[0].shape
    if all(code.shape == shape for code in codes):
        return shape
    try:
        return np.broadcast_shapes(*(code.shape for code in codes))
    except ValueError:
        shapes = " and ".join(str(code.shape) for code in codes)
        raise ValueError(
            f"{name} needs operands whose shapes broadcast; got {shapes}. Reshape one, or insert axes of length 1."
        ) from None


def _names(dtypes: set[Any]) -> str:
    return " or ".join(sorted(np.dtype(dtype).name for dtype in dtypes))


def _is_same(codes: Array, out: Array) -> bool:
    """Whether element i of two arrays lies in the same memory, for every i."""
    return (
        codes.__array_interface__["data"][0] == out.__array_interface__["data"][0]
        and codes.strides == out.strides
        and codes.shape == out.shape
        and codes.itemsize == out.itemsize
    )


def common_format(name: str, formats: tuple[Format, ...], out_fmt: FormatLike | None) -> Format:
    """The result's format: out_fmt, or that of all operands.

    Raises:
      ValueError: the operands differ and out_fmt does not decide.
    """
    if out_fmt is not None:
        return find_format(out_fmt)
    if len(set(formats)) > 1:
        names = ", ".join(str(fmt) for fmt in formats)
        raise ValueError(
            f"{name} got operands in different formats ({names}): say which one the result is rounded to, "
            f"as in out_fmt={formats[0].name!r}."
        )
    return formats[0]


def result_array(out: Array | None, given: Operands, fmt: Format, name: str = "out") -> tuple[Array, Array]:
    """(array to return, the same memory as words) for a result in a format: of its dtype if all operands had one."""
    typed = DTYPES.get(fmt) if given.typed else None
    if out is None:
        result = np.empty(given.shape, typed or fmt.storage)
        return result, words(result)
    check_output(out, given, {fmt.storage, DTYPES.get(fmt, fmt.storage)}, name)
    return out, words(out)


def check_output(out: Any, given: Operands, accepted: set[Any], name: str = "out") -> None:
    """Errors unless an array can take a result element by element while the operands are read.

    Raises:
      ValueError: not an array, of another dtype or shape, read-only, or shifted against an operand in memory.
    """
    wanted = "" if isinstance(out, np.ndarray) and out.dtype in accepted else _names(accepted)
    if not isinstance(out, np.ndarray):
        raise ValueError(f"{name} must be a NumPy array of {wanted}; got {type(out).__name__}.")
    if out.dtype.newbyteorder("=") not in accepted:
        raise ValueError(f"{name} must have dtype {wanted}; got {out.dtype}.")
    if out.shape != given.shape:
        raise ValueError(f"{name} must have the result's shape {given.shape}; got {out.shape}.")
    if not out.flags.writeable:
        raise ValueError(f"{name} must be writeable; got a read-only array. Pass a copy.")
    for codes in given.codes:
        if np.may_share_memory(codes, out) and not _is_same(codes, out) and overlaps(codes, out):
            raise ValueError(
                f"{name} must be an operand itself or share no memory with one; got overlapping arrays. "
                "Pass a separate array."
            )
