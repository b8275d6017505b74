"""Validation of the operands of integer units, and their conversion to the element's dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array, describe_refused, format_of, is_small_integer
from fpsim.errors import shown
from fpsim.matrix_units.catalogue import INTEGER_ROWS
from fpsim.matrix_units.integer_unit import IntegerElement, IntegerUnit


def integer_operand(x: npt.ArrayLike, element: IntegerElement, unit: IntegerUnit, name: str) -> Array:
    """Return an operand of an integer unit in the dtype of its integer format `element`.

    x: the caller's array. name: the argument's name in errors.

    Raises:
      ValueError: x has a dtype of the other signedness, or integers out of the element's range.
      TypeError: x does not hold integers.
    """
    if type(x) is np.ndarray and x.dtype == element.dtype and element.bits >= 8:
        return x
    if hasattr(x, "codes") and hasattr(x, "decode"):
        raise TypeError(f"{name} must be an array of {element.dtype}; got {type(x).__name__}. Pass {name}.codes.")
    array = as_array(x, name)
    if not array.size and not hasattr(x, "dtype"):
        return np.zeros(array.shape, element.dtype)  # NumPy reads [] as float64
    if is_small_integer(array.dtype):
        array = array.astype(np.uint8 if str(array.dtype).startswith("u") else np.int8)
    if array.dtype.kind not in "iu":
        raise TypeError(_no_integers(x, array, element, unit, name))
    if array.dtype.itemsize == element.dtype.itemsize and array.dtype.kind != element.dtype.kind:
        raise ValueError(
            f"{unit.name} takes {name} of {element.name} ({element.dtype}); got {array.dtype}. "
            f"{_other_sign(unit, name)}Bit patterns become {element.name} by {name}.view(np.{element.dtype})."
        )
    outside = (array < element.lowest) | (array > element.highest)
    if outside.any():
        raise ValueError(
            f"{name} must hold integers {element.lowest} .. {element.highest} ({element.name}); got "
            f"{array[outside].flat[0]}. Clip them, or take a unit with wider operands."
        )
    return np.asarray(array.astype(element.dtype, copy=False))


def refuse_unit_of_integers(x: Any, unit_name: str, name: str) -> None:
    """Raise a ValueError if x, an operand of a unit for floats, is an array of int8 or of integers of 1, 2 or 4 bits.

    The integers of 1, 2 and 4 bits are ml_dtypes' int1, int2, int4, uint1, uint2 and uint4. Arrays of int8 may be
    NumPy's or torch's. Codes of floats are unsigned integers of 8 bits or more, and pass. unit_name, name: names of the
    unit and of the operand in the message.
    """
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, np.dtype):
        is_integer = (dtype.kind == "i" and dtype.itemsize == 1) or is_small_integer(dtype)
    else:
        is_integer = str(dtype) in ("int8", "torch.int8")
    if is_integer:
        raise ValueError(
            f"{unit_name} multiplies floats; got {name} as {dtype}. Units such as hopper_s8_s32 multiply integers; "
            f"codes of floats are unsigned: {name}.view(np.uint8)."
        )


def refuse_scales(unit: IntegerUnit, scale_a: Any, scale_b: Any) -> None:
    """Raise a ValueError if scale_a or scale_b is not None, since no integer unit accepts block scales."""
    for name, scale in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scale is not None:
            raise ValueError(f"{unit.name} takes no block scales; got {name}. fp.matmul applies scales to its sums.")


def _no_integers(x: Any, array: Array, element: IntegerElement, unit: IntegerUnit, name: str) -> str:
    """Return the error sentence for an operand x that does not hold integers.

    array: x as a NumPy array. element: the integer format that the unit needs. name: the argument.
    """
    wanted = f"{unit.name} multiplies integers: {name} must be an array of {element.dtype}"
    if array.dtype.kind in "OUS":
        return f"{wanted}; got {shown(x)}. Pass integers {element.lowest} .. {element.highest}."
    if format_of(array.dtype) is None:
        return f"{wanted}; {describe_refused(x, array, name)}"
    if name == "c":
        return f"{wanted}; got {array.dtype}. Sums start at integers, too."
    return (
        f"{wanted}; got {array.dtype}. fp.encode_scaled(x, fp.{element.fmt}, ...) makes integers of floats, and units "
        "such as hopper_f16_f32 multiply floats."
    )


def _other_sign(unit: IntegerUnit, name: str) -> str:
    """Return a sentence naming the unit that differs from `unit` only in the signedness of operand `name`, or "".

    Both are of one architecture. For an operand of signed integers (s8) the named unit has unsigned ones (u8), or the
    reverse. The sentence is "" if there is no such unit.
    """
    changed = {
        field: f"{'u' if (x := getattr(unit, field)).signed is (field == name) else 's'}{x.bits}" for field in "ab"
    }
    alike = [
        other.name for other in INTEGER_ROWS.values()
        if (other.a.name, other.b.name) == (changed["a"], changed["b"]) and other.saturates == unit.saturates
        and other.name.split(f"_{other.a.name}")[0] == unit.name.split(f"_{unit.a.name}")[0]
    ]  # fmt: skip
    return f"{alike[0]} takes it. " if alike and name != "c" else ""
