"""The emulation of each instruction, and rival arithmetics from which test inputs must distinguish it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from fpsim.arithmetic import functions
from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode, quantize
from fpsim.cpu.instructions import INSTRUCTIONS, ROUNDINGS
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, FP16, FP32
from fpsim.instructions.dot_add import dot_add
from fpsim.matrix_units.catalogue import float_units, unit
from fpsim.matrix_units.integer_unit import INTEGER_ELEMENTS, IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit

Compute = Callable[..., Array]  # bit patterns of the operands -> bit patterns of the result


class Emulation(NamedTuple):
    """The emulation of an instruction.

    words: the computation as text, such as "fp.encode(x, FP16, rounding='up')". fmt: name of the format of results.
    compute: function from bit patterns of the operands to those of the result. rivals: (name, function) of other
    arithmetics, whose results differ in some bits.
    """

    words: str
    fmt: str
    compute: Compute
    rivals: tuple[tuple[str, Compute], ...]


@cache
def emulation_of(name: str) -> Emulation:
    """Return the emulation of the instruction with this name, a key of INSTRUCTIONS."""
    row = INSTRUCTIONS[name]
    if row.unit:
        return _of_unit(row.unit)
    mnemonic, _, rounding = name.partition(" ")
    if mnemonic == "VCVTPS2PH":
        others = [other for other in ROUNDINGS if other != rounding]
        return Emulation(
            f"fp.encode(x, FP16, rounding={rounding!r})", "fp16", partial(_to_half, rounding),
            (*((f"rounding {other}", partial(_to_half, other)) for other in others),
             ("flushed subnormals", partial(_to_half, rounding, subnormals="flush"))),
        )  # fmt: skip
    return _EMULATIONS[mnemonic]


def _of_unit(name: str) -> Emulation:
    """Return the emulation of the matrix unit `name`, and its rivals: the other float units for the same formats.

    Rivals are arithmetics that test inputs must tell apart from the emulation. For an integer unit see `_of_integers`.
    """
    of = unit(name)
    if isinstance(of, IntegerUnit):
        return _of_integers(of)
    rivals = [
        rival
        for rival in float_units()
        if (rival.a, rival.b, rival.d) == (of.a, of.b, of.d) and rival != of and not rival.scale
    ]
    computes = tuple((rival.name, partial(_dot, rival)) for rival in rivals)
    fmt = {"f32": "fp32", "f16": "fp16"}[of.d.name]
    return Emulation(f"fp.dot_add(a, b, c, {name!r})", fmt, partial(_dot, of), computes)


def _of_integers(of: IntegerUnit) -> Emulation:
    """Return the emulation of an integer unit, and three rivals (arithmetics that test inputs must tell apart from it).

    One rival saturates where the unit wraps, or the reverse. The other two read the bytes of one operand as signed
    where the unit reads them as unsigned, or the reverse.
    """
    other = {"s8": INTEGER_ELEMENTS["u8"], "u8": INTEGER_ELEMENTS["s8"]}
    rivals = {
        "wrapping" if of.saturates else "saturating": replace(of, saturates=not of.saturates),
        f"a of {other[of.a.name].name}": replace(of, a=other[of.a.name]),
        f"b of {other[of.b.name].name}": replace(of, b=other[of.b.name]),
    }
    computes = tuple((words, partial(_dot, rival)) for words, rival in rivals.items())
    return Emulation(f"fp.dot_add(a, b, c, {of.name!r})", "integer", partial(_dot, of), computes)


def _dot(of: MatrixUnit | IntegerUnit, a: Array, b: Array, c: Array) -> Array:
    """Return c + sum of a * b along each row, computed by the matrix unit `of`, as bit patterns (N,).

    a, b: (N, terms) bit patterns of the unit's elements. c: (N,) bit patterns of the accumulator.
    """
    result = dot_add(a.view(of.a.dtype), b.view(of.b.dtype), c.view(of.d.dtype), of)
    return result.view(f"u{result.dtype.itemsize}")


def _to_half(rounding: str, x: Array, subnormals: str = "keep") -> Array:
    """Round float32 values, given by their bits x (uint32), to FP16; return the codes (uint16).

    rounding, subnormals: options of `fpsim.encode`.
    """
    return encode(x.view(np.float32), FP16, rounding=rounding, subnormals=subnormals)


def _from_half(x: Array, flush: bool = False) -> Array:
    """Return the values of FP16 codes x (uint16) as float32 bits (uint32); flush: True takes subnormals as zeros."""
    return decode(np.where(x & 0x7C00, x, x & np.uint16(0x8000)) if flush else x, FP16).view(np.uint32)


def _to_bf16(x: Array, flush: bool = True, rounding: str = "nearest_even") -> Array:
    """Round float32 values, given by their bits x (uint32), to BF16; return the codes (uint16).

    flush: True replaces subnormals by zeros first. rounding: a rounding mode of `fpsim.encode`.
    """
    values = x.view(np.float32)
    return encode(quantize(values, FP32, subnormals="flush") if flush else values, BF16, rounding=rounding)


def _from_double(x: Array, through: bool = False) -> Array:
    """Round float64 values, given by their bits x (uint64), to FP16; return the codes (uint16).

    through: True rounds them to float32 first.
    """
    values = x.view(np.float64)
    with np.errstate(all="ignore"):
        return encode(values.astype(np.float32) if through else values, FP16)


def _arithmetic(operation: str) -> Emulation:
    """Return the emulation of an FP16 operation such as "add".

    Its rivals, the arithmetics that test inputs must tell apart from it, round otherwise or flush subnormals.
    """
    options: tuple[dict[str, str], ...] = (
        {"rounding": "nearest_away"}, {"rounding": "toward_zero"}, {"rounding": "up"}, {"subnormals": "flush"}
    )  # fmt: skip
    if operation == "sqrt":  # square roots are neither halfway between two values nor subnormal
        options = options[1:3]
    rivals: list[tuple[str, Compute]] = [
        (" ".join(map(" ".join, keywords.items())), partial(_of_format, FP16, operation, **keywords))
        for keywords in options
    ]
    if operation == "fma":
        rivals.append(("a rounded product", partial(_two_roundings, FP16)))
    return Emulation(f"fp.{operation} in FP16", "fp16", partial(_of_format, FP16, operation), tuple(rivals))


def _of_format(fmt: Format, operation: str, *codes: Array, **options: str) -> Array:
    """Return the codes that an arithmetic function of fpsim computes from codes of the format `fmt`.

    operation: name of the function, such as "add". codes: the operands. options: keywords of the function, such as
    rounding.
    """
    result: Array = getattr(functions, operation)(*codes, fmt=fmt, **options)
    return result


def _two_roundings(fmt: Format, a: Array, b: Array, c: Array) -> Array:
    """Return the codes of a * b + c in the format `fmt`, with the product rounded before the addition."""
    return _of_format(fmt, "add", _of_format(fmt, "multiply", a, b), c)


def _complex(a: Array, b: Array, c: Array, swapped: bool = False) -> Array:
    """Return c + a * b for complex FP16 numbers, all (N, 2) codes (real, imaginary).

    With a = ar + ai i and so on, the real part is fma(-ai, bi, fma(ar, br, cr)), the imaginary one fma(ar, bi, fma(ai,
    br, ci)). With `swapped`, the products are added in the other order: fma(ar, br, fma(-ai, bi, cr)) and fma(ai, br,
    fma(ar, bi, ci)).
    """
    (ar, ai), (br, bi), (cr, ci) = (np.ascontiguousarray(x.T) for x in (a, b, c))
    minus, fma = ai ^ np.uint16(0x8000), partial(_of_format, FP16, "fma")
    if swapped:
        return np.stack([fma(ar, br, fma(minus, bi, cr)), fma(ai, br, fma(ar, bi, ci))], axis=1)
    return np.stack([fma(minus, bi, fma(ar, br, cr)), fma(ar, bi, fma(ai, br, ci))], axis=1)


_EMULATIONS: dict[str, Emulation] = {
    "VCVTPH2PS": Emulation(
        "fp.decode(x, FP16)", "fp32", _from_half, (("flushed subnormals", partial(_from_half, flush=True)),)
    ),
    "VCVTNEPS2BF16": Emulation(
        "fp.encode(fp.quantize(x, FP32, subnormals='flush'), BF16)", "bf16", _to_bf16,
        (("kept subnormals", partial(_to_bf16, flush=False)),
         *((f"rounding {word}", partial(_to_bf16, rounding=word)) for word in ("nearest_away", "toward_zero", "odd"))),
    ),
    "VCVTPD2PH": Emulation(
        "fp.encode(x, FP16) from float64", "fp16", _from_double,
        (("rounded through float32", partial(_from_double, through=True)),),
    ),
    "VFMADDCPH": Emulation(
        "fp.fma(-ai, bi, fp.fma(ar, br, cr)) and fp.fma(ar, bi, fp.fma(ai, br, ci)) in FP16", "fp16", _complex,
        (("the other order of products", partial(_complex, swapped=True)),),
    ),
    "VFMADDPS": Emulation(
        "fp.fma in FP32", "fp32", partial(_of_format, FP32, "fma"),
        (("a rounded product", partial(_two_roundings, FP32)),
         ("subnormals flush", partial(_of_format, FP32, "fma", subnormals="flush"))),
    ),
    **{mnemonic: _arithmetic(operation) for mnemonic, operation in (
        ("VADDPH", "add"), ("VSUBPH", "subtract"), ("VMULPH", "multiply"), ("VDIVPH", "divide"), ("VSQRTPH", "sqrt"),
        ("VFMADDPH", "fma"),
    )},
}  # fmt: skip
