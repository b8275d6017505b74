"""The operands of a black box, and the arguments of its calls."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array, code_array, format_of
from fpsim.casts.cast import decode, encode
from fpsim.errors import shown
from fpsim.formats.float_format import DTYPES
from fpsim.formats.named import E8M0, FP32, FP64, TF32, Format, format_argument
from fpsim.matrix_units.matrix_unit import ELEMENTS, Element

INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
TF32_BITS = np.uint32(0xFFFFE000)  # mask of the float32 bits that TF32 keeps


class ProbedOperand(NamedTuple):
    """An operand of a black box: the format of its values, and the kind of array in which they are passed.

    Attributes:
      fmt: the format of floats; FP64 for integers.
      element: the name of a matrix unit's element type, such as "bf8", if the caller named the operand by that; else
        "".
      tensors: whether it is passed as a torch tensor.
      integer: the dtype of integers, such as "int8"; "" for floats.
    """

    fmt: Format  # of floats; FP64 for integers
    element: str = ""  # its name among matrix units' element types, if it was specified by that
    tensors: bool = False  # whether it is passed as a torch tensor
    integer: str = ""  # the dtype of integers, such as "int8"; "" for floats

    @property
    def exponents(self) -> tuple[int, int]:
        """Exponents of the smallest positive value and of the largest power of two of the operand's format."""
        return int(np.log2(self.fmt.smallest_subnormal or self.fmt.smallest_normal)), int(np.frexp(self.fmt.max)[1]) - 1

    @property
    def code_format(self) -> Format | None:
        """Format of the codes that `passed` returns; None if it returns numbers of a dtype."""
        return None if self.integer or self.fmt == TF32 or self.fmt in DTYPES else self.fmt

    def passed(self, values: Array) -> Array:
        """Return float64 values of the operand's format as the array to pass to a function.

        It has the format's dtype (float32 for TF32), or the dtype `integer`; it holds codes if the format has no dtype.
        """
        if self.integer:
            return np.asarray(values).astype(self.integer)
        if self.fmt == TF32:
            return np.asarray(values, np.float32)
        dtype = DTYPES.get(self.fmt)
        if dtype is not None and dtype.kind == "f":
            return np.asarray(values, dtype)
        codes = encode(np.asarray(values, np.float64), self.fmt)
        return codes if dtype is None else codes.view(dtype)

    def drawn(self, values: Array) -> Array:
        """Return float64 values rounded to the format, as float64; finite values beyond its range become the largest.

        Values of TF32 are truncated. For an integer operand, values are rounded and clipped to -8 .. 7 (0 .. 7 if
        unsigned).
        """
        if self.integer:
            return np.clip(np.rint(values), 0 if self.integer.startswith("u") else -8, 7)
        if self.fmt == TF32:
            with np.errstate(over="ignore"):
                bits = np.asarray(values, np.float32).view(np.uint32) & TF32_BITS
            return bits.view(np.float32).astype(np.float64)
        if self.fmt.bits > 32:
            return np.asarray(values, np.float64)
        return decode(
            encode(np.asarray(values, np.float64), self.fmt, overflow="saturate_finite"), self.fmt, np.float64
        )

    def read(self, x: npt.ArrayLike, n: int, name: str) -> Array:
        """Return the values of an argument of a model, as float64 (..., n).

        x: the argument: floats of the operand's dtype, or unsigned codes of its format. n: the number of terms that was
        probed. name: the argument's name, for error messages.

        Raises:
          ValueError: x has another number of terms or another format.
        """
        array = with_terms(x, n, name)
        carrier = FP32 if self.fmt == TF32 else self.fmt
        source = format_of(array.dtype)
        if source is None and array.dtype.kind != "i":
            return decode(code_array(array, carrier, name), carrier, np.float64)
        if source != carrier:  # signed integers, which a list of numbers may hold, are no codes
            raise ValueError(f"{name} must hold {carrier}, which was probed; got {array.dtype}. Cast it with fp.cast.")
        return array.astype(np.float64)

    def values(self, codes: Array) -> Array:
        """Return the float64 values of codes of the format; codes of TF32 are float32 bit patterns."""
        return decode(codes, FP32 if self.fmt == TF32 else self.fmt, np.float64)


def with_terms(x: npt.ArrayLike, n: int, name: str) -> Array:
    """Return an argument of a model as an array (..., n), or raise a ValueError if it has another number of terms.

    n: the number of terms that was probed. name: the argument's name, for the message.
    """
    array = as_array(x, name)
    if array.ndim == 0 or array.shape[-1] != n:
        raise ValueError(
            f"{name} must have {n} terms, the number that was probed; got shape {array.shape}. Probe that length."
        )
    return array


def operand_of(spec: Any, name: str, integers: bool = False) -> ProbedOperand:
    """Return the operand for a format, a dtype of NumPy or torch, or an element type of a matrix unit.

    Args:
      spec: the format, dtype or element type, or its name.
      name: the argument's name, for error messages.
      integers: whether integer dtypes are accepted too.

    Raises:
      ValueError: nothing has that name, or the format has no zero, as E8M0.

    Example:
      >>> from fpsim.probe.operands import operand_of
      >>> operand_of("bf16", "a").fmt.name, operand_of("bf8", "a").fmt.name, operand_of(np.float16, "a").fmt.name
      ('BF16', 'E5M2FNUZ', 'FP16')
    """
    integer = integer_dtype(spec) if integers else ""
    if integer:
        return ProbedOperand(FP64, tensors=str(spec).startswith("torch."), integer=integer)
    if isinstance(spec, Element):
        return ProbedOperand(spec.fmt, spec.name)
    if isinstance(spec, str) and spec.lower() in ELEMENTS:
        element = ELEMENTS[spec.lower()]
        return ProbedOperand(element.fmt, element.name)
    fmt = format_argument(name, spec)
    if not fmt.has_zero or fmt == E8M0:
        raise ValueError(f"{name} must be a format with a zero, such as 'bf16'; got {shown(spec)}.")
    return ProbedOperand(fmt, tensors=str(spec).startswith("torch."))


def integer_dtype(spec: Any) -> str:
    """Return the name of an integer dtype of NumPy or torch; "" for everything else, bool included.

    Example:
      >>> from fpsim.probe.operands import integer_dtype
      >>> integer_dtype(np.uint8), integer_dtype("int32"), integer_dtype("e4m3"), integer_dtype(bool)
      ('uint8', 'int32', '', '')
    """
    named = isinstance(spec, (str, type, np.dtype)) or str(spec).startswith("torch.")
    name = str(spec).removeprefix("torch.") if not isinstance(spec, type) else spec.__name__
    return name if named and name in INTEGERS else ""


def has_tensors(operand: ProbedOperand) -> bool:
    """Return whether torch is imported and has a dtype for an operand's values."""
    dtype = DTYPES.get(operand.fmt)
    name = operand.integer or ("" if dtype is None else dtype.name)
    return bool(name) and "torch" in sys.modules and hasattr(sys.modules["torch"], name)


class ProbedCall(NamedTuple):
    """The form of a black box's calls.

    Attributes:
      kind: "sum" for fn(x) of n terms, "dot" for fn(a, b) of n terms each, "matmul" for (m, n) by (n, columns).
      n: number of terms.
      operands: one operand of a sum, or two.
      shape: rows and columns of a matrix product.
      scale, block: the format of block scales and the number of terms that share one, in calls
        fn(a, b, scale_a, scale_b); "" and 0 for calls fn(a, b).
      layout: the memory layouts of a and b in a matrix product, such as "nt": "n" is row-major, "t" a transposed view
        of a row-major array.
    """

    kind: str  # "sum" for fn(x) of n terms, "dot" for fn(a, b) of n terms each, "matmul" for (m, n) by (n, columns)
    n: int  # number of terms
    operands: tuple[ProbedOperand, ...]  # one operand of a sum, or two
    shape: tuple[int, int] = (1, 1)  # rows and columns of a matrix product
    scale: str = ""
    block: int = 0
    layout: str = "nn"

    @property
    def columns(self) -> int | None:
        """Columns of the products that are probed, on which some orders depend: 1 for "dot"; None for "sum"."""
        return self.shape[1] if self.kind == "matmul" else 1 if self.kind == "dot" else None
