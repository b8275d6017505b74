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
TF32_BITS = np.uint32(0xFFFFE000)  # the bits of a float32 that TF32 has


class ProbedOperand(NamedTuple):
    """An operand: the format of its values, and the arrays in which they are passed."""

    fmt: Format  # of floats; FP64 for integers, whose arrays are made elsewhere
    element: str = ""  # its name in units, if it was given by that
    tensors: bool = False  # whether it is passed as a torch tensor
    integer: str = ""  # the dtype of integers, such as "int8"

    @property
    def exponents(self) -> tuple[int, int]:
        """Exponents of the smallest value and of the largest power of two."""
        return int(np.log2(self.fmt.smallest_subnormal or self.fmt.smallest_normal)), int(np.frexp(self.fmt.max)[1]) - 1

    def passed(self, values: Array) -> Array:
        """Return float64 values, which the format holds, as the array to pass to a callable."""
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
        """Return float64 values rounded to the format; finite ones beyond its range saturate, Inf stays."""
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
        """Return the float64 values of an argument of a model of n terms; name: the argument's, for error messages.

        Raises:
          ValueError: the argument has another number of terms or another format than the model.
        """
        array = with_terms(x, n, name)
        carrier = FP32 if self.fmt == TF32 else self.fmt
        source = format_of(array.dtype)
        if source is None:
            return decode(code_array(array, carrier, name), carrier, np.float64)
        if source != carrier:
            raise ValueError(f"{name} must hold {carrier}, which was probed; got {array.dtype}. Cast it with fp.cast.")
        return array.astype(np.float64)

    def values(self, codes: Array) -> Array:
        """Return the float64 values of codes."""
        return decode(codes, FP32 if self.fmt == TF32 else self.fmt, np.float64)


def with_terms(x: npt.ArrayLike, n: int, name: str) -> Array:
    """Return an argument of a model as an array, whose last axis must have the n terms that were probed."""
    array = as_array(x, name)
    if array.ndim == 0 or array.shape[-1] != n:
        raise ValueError(
            f"{name} must have {n} terms, the number that was probed; got shape {array.shape}. Probe that length."
        )
    return array


def operand_of(spec: Any, name: str, integers: bool = False) -> ProbedOperand:
    """Return the operand for a format, a dtype of NumPy or torch, or an element of a matrix unit.

    Args:
      spec: the format, dtype or element, or its name.
      name: the argument's name, for error messages.
      integers: whether integer dtypes are accepted too.

    Raises:
      ValueError: nothing has that name, or the format has no zero.

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
    """Return the name of an integer dtype of NumPy or torch; "" for everything else, bool too.

    Example:
      >>> from fpsim.probe.operands import integer_dtype
      >>> integer_dtype(np.uint8), integer_dtype("int32"), integer_dtype("e4m3"), integer_dtype(bool)
      ('uint8', 'int32', '', '')
    """
    named = isinstance(spec, (str, type, np.dtype)) or str(spec).startswith("torch.")
    name = str(spec).removeprefix("torch.") if not isinstance(spec, type) else spec.__name__
    return name if named and name in INTEGERS else ""


def has_tensors(operand: ProbedOperand) -> bool:
    """Return whether torch is loaded and has a dtype for an operand."""
    dtype = DTYPES.get(operand.fmt)
    name = operand.integer or ("" if dtype is None else dtype.name)
    return bool(name) and "torch" in sys.modules and hasattr(sys.modules["torch"], name)


class ProbedCall(NamedTuple):
    """The arguments of the calls of a black box.

    Attributes:
      kind: "sum": fn(x) of n terms; "dot": fn(a, b); "matmul": fn(a, b) of (m, n) by (n, columns).
      n: number of terms.
      operands: one, or two.
      shape: rows and columns of a matrix product.
      scale, block: the format of block scales, and the number of terms that share one; the call is
        fn(a, b, scale_a, scale_b) then.
      layout: the memory layout of the matrices of a product, such as "nt": n is row-major, t its transpose.
    """

    kind: str
    n: int
    operands: tuple[ProbedOperand, ...]
    shape: tuple[int, int] = (1, 1)
    scale: str = ""
    block: int = 0
    layout: str = "nn"
