"""Validation of the operands of matrix units, and their conversion to codes of the unit's elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.encoded_array import EncodedArray
from fpsim.arithmetic.operands import full_dtype
from fpsim.arrays import Array, as_array, code_array, describe_refused, format_of, overlaps, words
from fpsim.formats.named import DTYPES, FP16, Format
from fpsim.instructions.integer_operands import refuse_unit_of_integers
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule


def operand(x: npt.ArrayLike, element: Element, unit: MatrixUnit, name: str) -> Array:
    """Return an operand of a matrix unit as codes of its format, in the dtype of these codes.

    x: codes, an EncodedArray, or an array of the format's float dtype. element: the operand's format in the unit. unit:
    the unit, which errors name. name: the argument's name in errors.

    Raises:
      ValueError: x has another format, or codes out of range.
      TypeError: x holds neither codes nor floats.
    """
    fmt = element.carrier
    if type(x) is np.ndarray and x.dtype is full_dtype(fmt):  # codes that are all in range
        return x
    refuse_unit_of_integers(x, unit.name, name)
    if isinstance(x, EncodedArray):
        if x.fmt == fmt:
            return x.codes
        raise ValueError(
            f"{unit.name} takes {_accepted_operands(unit)}; got {name} as an array of {x.fmt}. {_others(unit, x.fmt)}"
            f"{name}.astype(fpsim.{fmt}) rounds its values."
        )
    array = as_array(x, name)
    source = format_of(array.dtype)
    if array.dtype.kind not in "iuf" and source is None:
        raise TypeError(
            f"{name} must be an array of {DTYPES.get(fmt, fmt.storage)} or codes of {fmt}; "
            f"{describe_refused(x, array, name)}"
        )
    if not hasattr(x, "dtype") and array.size and (source is not None or array.dtype.kind not in "iu"):
        remedy = "pass its codes" if hasattr(x, "codes") else f"fpsim.encode(values, fpsim.{fmt}) makes codes"
        raise TypeError(
            f"{name} must be an array of {DTYPES.get(fmt, fmt.storage)} or codes of {fmt}; got {type(x).__name__}: "
            f"{remedy}."
        )
    if source is not None and source != fmt and array.size:
        raise ValueError(
            f"{unit.name} takes {_accepted_operands(unit)}; got {name} as {array.dtype}. {_others(unit, source)}"
            f"fpsim.encode turns values into codes."
        )
    codes = code_array(array, fmt, name) if source is None else words(array)
    return codes.astype(element.dtype, copy=False)


def row_operands(
    a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike | None, unit: Any, read: Callable[..., Array]
) -> tuple[Array, Array, Array]:
    """Return a and b (..., K) and c (...), from which sums start, checked and converted to the dtypes of `unit`.

    c becomes zeros if it is None. read: the function that converts one operand, `operand` or `integer_operand`. A
    ValueError is raised for other shapes.
    """
    left, right = read(a, unit.a, unit, "a"), read(b, unit.b, unit, "b")
    if left.ndim == 0 or left.shape != right.shape:
        raise ValueError(f"a and b must have one shape (N, K); got {left.shape} and {right.shape}.")
    shape = left.shape[:-1]
    start = np.zeros(shape, unit.d.dtype) if c is None else read(c, unit.d, unit, "c")
    if start.shape != shape:
        raise ValueError(f"c must have the shape {shape} of the rows of a; got {start.shape}.")
    return left, right, start


def block_count(k: int, unit: MatrixUnit) -> int:
    """Return the number of block scales along K, one per `unit.block` terms; 1 for units without. k: terms of K.

    Raises:
      ValueError: K is not a multiple of the block.
    """
    if unit.scale and k % unit.block:
        raise ValueError(
            f"K must be a multiple of {unit.name}'s scale block of {unit.block}; got K = {k}. Pad with zero codes."
        )
    return k // unit.block if unit.scale else 1


def takes_scales(codes: Any, unit: MatrixUnit, name: str) -> bool:
    """Return whether a unit has block scales; codes: the scales passed for the operand `name`, or None.

    Raises:
      ValueError: the unit has block scales and none are passed, or has none and some are passed.
    """
    if unit.scale is None and codes is not None:
        raise ValueError(
            f"{unit.name} takes no block scales; got {name}. Scales of a Scaled operand belong to "
            "matmul(..., promote=); units with scales have names such as blackwell_mxfp8_e4m3_f32."
        )
    if unit.scale is not None and codes is None:
        raise ValueError(f"{unit.name} needs {name}: {unit.scale} codes, one per {unit.block} terms of K.")
    return unit.scale is not None


def block_scales(codes: Any, shape: tuple[int, ...], unit: MatrixUnit, name: str) -> Array:
    """Return the scale codes of an operand's blocks as an unsigned array; zeros (uint8) for units without block scales.

    codes: the caller's scales, or None. shape: the shape that scales must have, (..., blocks along K). unit: the matrix
    unit. name: the argument that errors name.

    Raises:
      ValueError: scales are missing, unwanted, or of another shape.
    """
    if not takes_scales(codes, unit, name):
        return np.zeros(shape, np.uint8)
    fmt: Any = unit.scale_format
    scales = operand(codes, Element(str(unit.scale), fmt, fmt), unit, name)
    if scales.shape != shape:
        raise ValueError(f"{name} must have shape {shape}; got {scales.shape}.")
    return scales


def _accepted_operands(unit: MatrixUnit) -> str:
    """Return text that names the formats of the operands that a unit accepts, for an error."""

    def shown(element: Element) -> str:
        return f"{element.name} ({DTYPES.get(element.carrier, element.carrier.name)} or its codes)"

    both = f"a and b of {shown(unit.a)}" if unit.a == unit.b else f"a of {shown(unit.a)} and b of {shown(unit.b)}"
    blocks = f", with block scales of {unit.scale}" if unit.scale else ""
    return f"{both}, and c of {shown(unit.d)}{blocks}"


def _others(unit: MatrixUnit, fmt: Format) -> str:
    """Return a sentence naming the units of the architecture of `unit` that accept operands of the format `fmt`.

    The sentence is "" if there are none.
    """
    names = [
        candidate.name for candidate in units(unit.arch) if candidate.a == candidate.b and candidate.a.carrier == fmt
    ]
    return f"{', '.join(names)} take{'s' if len(names) == 1 else ''} {fmt}. " if names else ""


def widened(codes: Array, element: Element, unit: MatrixUnit) -> Array:
    """Return codes in the format that the unit's emulation reads, FP16 or the format of `element`.

    The format is FP16 for units of Rule.TWO_PASSES (matrix_units/rule.py), which multiply FP8 on FP16 hardware. codes:
    array of codes of `element`, which is returned unchanged if the formats are the same.
    """
    if unit.rule is not Rule.TWO_PASSES or element.fmt == FP16:
        return codes
    from fpsim.casts.cast import decode, encode

    fmt = element.fmt
    half = encode(decode(np.arange(1 << fmt.bits, dtype=fmt.storage), fmt), FP16)  # of every code; NaN keeps its sign
    return half[codes]


def refuse_axes(shape: tuple[int, ...], name: str) -> None:
    """Raise a ValueError unless `shape`, that of the operand `name`, has two axes."""
    if len(shape) != 2:
        wanted = "(M, K)" if name == "a" else "(K, N)"
        raise ValueError(f"{name} must have two axes, {wanted}; got shape {shape}.")


def refuse_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raise a ValueError unless matrices of the shapes a and b can be multiplied."""
    if a[1] != b[0]:
        raise ValueError(
            f"a (M, K) and b (K, N) must agree in K; got {a} and {b}. Transpose b if its rows are columns."
        )


def refuse_overlap(out: Array | None, *operands: Array) -> None:
    """Raise a ValueError if `out` shares memory with an operand; None is accepted."""
    if out is not None and any(overlaps(out, x) for x in operands):
        raise ValueError(
            "out must not share memory with a, b or their scales; got overlapping arrays. Pass a separate array."
        )
